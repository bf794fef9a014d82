import assert from "node:assert/strict";
import { test } from "node:test";
import { Layout, type FrameResult } from "../src/layout/frames.ts";
import { arrange, type Cells, type Lines, type Sheet } from "../src/layout/layered.ts";
import { Spreader } from "../src/layout/place.ts";
import { rootBox, type Box } from "../src/tree/box.ts";
import { Forest } from "../src/tree/forest.ts";
import { openAll } from "../src/tree/expansion.ts";
import { compose } from "../src/tree/picture.ts";
import { checkpointed, tower } from "./samples.ts";

function random(seed: number): () => number {
  return () => (seed = (seed * 16807) % 2147483647) / 2147483647;
}

function makeCells(count: number, size: () => [number, number]): Cells {
  const cells = {
    w: new Float64Array(count),
    h: new Float64Array(count),
    order: Int32Array.from({ length: count }, (_, i) => i),
    edge: new Uint8Array(count),
  };
  for (let i = 0; i < count; i++) [cells.w[i], cells.h[i]] = size();
  return cells;
}

function makeLines(pairs: [number, number][]): Lines {
  return {
    src: Int32Array.from(pairs, ([a]) => a),
    dst: Int32Array.from(pairs, ([, b]) => b),
    key: Int32Array.from(pairs, ([a]) => a),
    exit: new Float64Array(pairs.length),
    entry: new Float64Array(pairs.length),
  };
}

const spacing = { gap: 20, rankGap: 30, wrap: true };

function check(cells: Cells, pairs: [number, number][], sheet: Sheet): void {
  const count = cells.w.length;
  for (let a = 0; a < count; a++) {
    for (let b = a + 1; b < count; b++) {
      const apart =
        sheet.x[a] + cells.w[a] <= sheet.x[b] + 1e-6 ||
        sheet.x[b] + cells.w[b] <= sheet.x[a] + 1e-6 ||
        sheet.y[a] + cells.h[a] <= sheet.y[b] + 1e-6 ||
        sheet.y[b] + cells.h[b] <= sheet.y[a] + 1e-6;
      assert.ok(apart, `cells ${a} and ${b} overlap`);
    }
  }
  for (let line = 0; line < pairs.length; line++) {
    const points: [number, number][] = [];
    for (let i = sheet.pathStart[line]; i < sheet.pathStart[line + 1]; i += 2)
      points.push([sheet.path[i], sheet.path[i + 1]]);
    const [a, b] = pairs[line];
    assert.ok(Math.abs(points[0][1] - sheet.y[a] - cells.h[a]) < 1e-6, "a line begins at the foot of its source");
    assert.ok(Math.abs(points[points.length - 1][1] - sheet.y[b]) < 1e-6, "and ends at the head of its target");
    for (let i = 1; i < points.length; i++) {
      for (let cell = 0; cell < count; cell++)
        assert.ok(
          !crosses(points[i - 1], points[i], sheet.x[cell], sheet.y[cell], cells.w[cell], cells.h[cell]),
          `line ${a}→${b} crosses cell ${cell}`,
        );
    }
  }
}

/** Whether a segment passes through the inside of a box. */
function crosses(
  [x0, y0]: [number, number],
  [x1, y1]: [number, number],
  x: number,
  y: number,
  w: number,
  h: number,
): boolean {
  for (let step = 1; step < 16; step++) {
    const px = x0 + ((x1 - x0) * step) / 16;
    const py = y0 + ((y1 - y0) * step) / 16;
    if (px > x + 0.5 && px < x + w - 0.5 && py > y + 0.5 && py < y + h - 0.5) return true;
  }
  return false;
}

test("places keep order and distance", () => {
  const spreader = new Spreader(2);
  spreader.weights.fill(1);
  spreader.widths.fill(10);
  assert.deepEqual([...spreader.spread(2, 2)], [-6, 6]);
  spreader.wanted[1] = 100;
  assert.deepEqual([...spreader.spread(2, 2)], [0, 100]);
});

test("random graphs: no cell overlaps another, no line crosses a cell", () => {
  for (let seed = 1; seed <= 40; seed++) {
    const next = random(seed);
    const count = 2 + Math.floor(next() * 40);
    const pairs: [number, number][] = [];
    for (let i = 1; i < count; i++) for (let n = 0; n < 1 + next() * 2; n++) pairs.push([Math.floor(next() * i), i]);
    const unique = [...new Map(pairs.map((pair) => [pair.join(), pair])).values()];
    const cells = makeCells(count, () => [40 + next() * 120, 20 + next() * 60]);
    check(cells, unique, arrange(cells, makeLines(unique), spacing));
  }
});

test("a long chain wraps into columns, and its lines go round", () => {
  const count = 80;
  const pairs = Array.from({ length: count - 1 }, (_, i): [number, number] => [i, i + 1]);
  pairs.push([0, 40], [3, 79]);
  const cells = makeCells(count, () => [100, 40]);
  const sheet = arrange(cells, makeLines(pairs), spacing);
  assert.ok(sheet.columns > 2, `${sheet.columns} columns`);
  assert.ok(sheet.height < sheet.width * 2 && sheet.width < sheet.height * 4, `${sheet.width} × ${sheet.height}`);
  check(cells, pairs, sheet);
});

test("a chain goes on in the next column where the first is full, however tall one of it is", () => {
  const heights = [40, 40, 400, 40, 40, 40];
  let at = 0;
  const cells = makeCells(heights.length, () => [200, heights[at++]]);
  const pairs = heights.slice(1).map((_, i): [number, number] => [i, i + 1]);
  const sheet = arrange(cells, makeLines(pairs), { ...spacing, room: { w: 1000, h: 600 } });
  assert.equal(sheet.columns, 2);
  assert.equal(sheet.x[0], sheet.x[2]);
  assert.ok(sheet.x[3] > sheet.x[2] + 200 && sheet.height <= 640);
});

test("what nothing reads is set in rows where it is wider than the room", () => {
  const cells = makeCells(6, () => [300, 40]);
  const pairs = [1, 2, 3, 4, 5].map((end): [number, number] => [0, end]);
  const sheet = arrange(cells, makeLines(pairs), { ...spacing, room: { w: 800, h: 600 } });
  check(cells, pairs, sheet);
  assert.ok(sheet.width <= 1000, `${sheet.width} wide`);
});

test("a chain is cut before what is much taller than the rest", () => {
  const cells = makeCells(6, () => [200, 50]);
  cells.h[2] = 420;
  const pairs = [0, 1, 2, 3, 4].map((i): [number, number] => [i, i + 1]);
  const sheet = arrange(cells, makeLines(pairs), { ...spacing, room: { w: 900, h: 600 } });
  check(cells, pairs, sheet);
  assert.ok(sheet.x[2] > sheet.x[1] + 200 && sheet.y[2] < 100, "it stands at the head of a column");
});

test("a line against the order of execution is drawn from its source to its target", () => {
  const cells = makeCells(2, () => [50, 20]);
  const sheet = arrange(cells, makeLines([[1, 0]]), spacing);
  const points = [...sheet.path];
  assert.ok(points[1] > points[points.length - 1], "it runs upwards");
});

test("a planar ladder has no crossings", () => {
  const pairs: [number, number][] = [];
  for (let i = 0; i < 40; i += 2) pairs.push([i, i + 2], [i + 1, i + 3], [i, i + 1]);
  const cells = makeCells(44, () => [60, 20]);
  assert.equal(arrange(cells, makeLines(pairs), { ...spacing, wrap: false }).crossings, 0);
});

test("frames in frames: the same layer is laid out once, and lines meet at ports", () => {
  const root = rootBox(new Forest(tower(6), [0]));
  openAll(root, 1e6);
  for (const up of [false, true]) {
    const picture = compose(root, {
      views: false,
      up,
      measure: () => ({ w: 100, h: 40 }),
      header: 30,
      headerWidth: () => 0,
    });
    const results = new Layout().all(picture.specs);
    const layers = picture.frames.flatMap((frame, i) =>
      frame.item >= 0 &&
      picture.items[frame.item].box.kind === "module" &&
      picture.items[frame.item].box.type === "Block"
        ? [results[i]]
        : [],
    );
    assert.equal(layers.length, 6);
    assert.equal(new Set(layers).size, 1);
    checkEnds(picture, results);
  }
});

/** Every edge is one line from its source to its target, whatever frames it passes. */
function checkEnds(picture: ReturnType<typeof compose>, results: FrameResult[]): void {
  for (const edge of picture.edges) {
    const ends: [number, number][] = [];
    for (let i = 0; i < edge.lines.length; i += 2) {
      const [x, y] = origin(picture, results, edge.lines[i]);
      const { path, pathStart } = results[edge.lines[i]];
      const line = edge.lines[i + 1];
      ends.push(
        [x + path[pathStart[line]], y + path[pathStart[line] + 1]],
        [x + path[pathStart[line + 1] - 2], y + path[pathStart[line + 1] - 1]],
      );
    }
    const loose = ends.filter(
      (end, i) => !ends.some((other, j) => i !== j && Math.hypot(end[0] - other[0], end[1] - other[1]) < 0.01),
    );
    assert.equal(loose.length, 2, "only the two ends of an edge are loose");
  }
}

test("what is computed again stands before what reads it, and its lines pass every frame between", () => {
  for (const phases of [[1], [0, 1]]) {
    const root = rootBox(new Forest(checkpointed(), phases));
    openAll(root, 1e6);
    const up = phases.length === 1;
    const picture = compose(root, {
      views: false,
      up,
      measure: () => ({ w: 100, h: 40 }),
      header: 30,
      headerWidth: () => 0,
    });
    const results = new Layout().all(picture.specs);
    checkEnds(picture, results);
    const item = (wanted: (box: Box) => boolean): number => picture.items.findIndex(({ box }) => wanted(box));
    const [net, again] = [item((box) => box.type === "Net"), item((box) => box.isMarked)];
    const top = (number: number): number => results[0].y[picture.items[number].cell];
    assert.ok(top(again) > top(net), "below: backward is read upwards, also where it is laid over forward");
    assert.ok(
      picture.edges.some(
        ({ source, target }) =>
          picture.items[source].box.parent === picture.items[again].box &&
          picture.items[target].frame !== picture.items[source].frame,
      ),
    );
  }
});

function origin(
  picture: ReturnType<typeof compose>,
  results: { x: Float64Array; y: Float64Array }[],
  frame: number,
): [number, number] {
  let [x, y] = [0, 0];
  while (picture.frames[frame].item >= 0) {
    const item = picture.items[picture.frames[frame].item];
    x += results[item.frame].x[item.cell];
    y += results[item.frame].y[item.cell];
    frame = item.frame;
  }
  return [x, y];
}

test("ten thousand cells, and none of it is recursive", () => {
  const count = 10_000;
  const pairs = Array.from({ length: count - 1 }, (_, i): [number, number] => [i, i + 1]);
  for (let i = 0; i + 500 < count; i += 37) pairs.push([i, i + 500]);
  const cells = makeCells(count, () => [80, 30]);
  const sheet = arrange(cells, makeLines(pairs), spacing);
  assert.ok(Number.isFinite(sheet.width) && sheet.width > 0);
});
