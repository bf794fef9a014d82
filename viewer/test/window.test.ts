import assert from "node:assert/strict";
import { test } from "node:test";
import { fitted as fittedCamera, freeAreas, READABLE } from "../src/draw/fitting.ts";
import { labelsOf, meets } from "../src/draw/labels.ts";
import { freeSteps, placeOf } from "../src/draw/names.ts";
import { Scene, titleWidth } from "../src/draw/scene.ts";
import { fitted } from "../src/draw/words.ts";
import { navigate, type Direction } from "../src/input/tree_navigation.ts";
import { Layout, type FrameSpec } from "../src/layout/frames.ts";
import type { Cells, Lines, Sheet } from "../src/layout/layered.ts";
import { set } from "../src/layout/pack.ts";
import { rootBox, type Box } from "../src/tree/box.ts";
import { Forest } from "../src/tree/forest.ts";
import { openAll } from "../src/tree/expansion.ts";
import { compose } from "../src/tree/picture.ts";
import { tower } from "./samples.ts";

const room = { w: 900, h: 600 };
const spacing = { gap: 26, rankGap: 36, wrap: true, room };

function cellsOf(count: number): Cells {
  return {
    w: new Float64Array(count).fill(120),
    h: new Float64Array(count).fill(44),
    order: Int32Array.from({ length: count }, (_, i) => i),
    edge: new Uint8Array(count),
  };
}

function linesOf(pairs: [number, number][]): Lines {
  return {
    src: Int32Array.from(pairs, ([a]) => a),
    dst: Int32Array.from(pairs, ([, b]) => b),
    key: Int32Array.from(pairs, ([a]) => a),
    exit: new Float64Array(pairs.length),
    entry: new Float64Array(pairs.length),
  };
}

const chain = (count: number): [number, number][] => Array.from({ length: count - 1 }, (_, i) => [i, i + 1]);

function noneMeet(cells: Cells, sheet: Sheet): void {
  const rect = (i: number) => ({ x: sheet.x[i], y: sheet.y[i], w: cells.w[i], h: cells.h[i] });
  for (let a = 0; a < cells.w.length; a++)
    for (let b = a + 1; b < cells.w.length; b++) assert.ok(!meets(rect(a), rect(b)), `${a} and ${b} overlap`);
}

/** Points along a line as it is drawn, the curves taken as straight. */
function inside(sheet: Sheet, cells: Cells, line: number, cell: number): boolean {
  for (let i = sheet.pathStart[line]; i + 2 < sheet.pathStart[line + 1]; i += 2) {
    for (let step = 1; step < 20; step++) {
      const x = sheet.path[i] + ((sheet.path[i + 2] - sheet.path[i]) * step) / 20;
      const y = sheet.path[i + 1] + ((sheet.path[i + 3] - sheet.path[i + 1]) * step) / 20;
      if (
        x > sheet.x[cell] + 1 &&
        x < sheet.x[cell] + cells.w[cell] - 1 &&
        y > sheet.y[cell] + 1 &&
        y < sheet.y[cell] + cells.h[cell] - 1
      )
        return true;
    }
  }
  return false;
}

test("a chain of ten that is taller than the window wraps and fits in it", () => {
  const sheet = set(cellsOf(10), linesOf(chain(10)), { ...spacing, room: { w: 450, h: 420 } });
  assert.ok(
    sheet.columns > 1 && sheet.width <= 450 && sheet.height <= 450,
    `${sheet.columns}: ${sheet.width} × ${sheet.height}`,
  );
  assert.equal(
    set(cellsOf(5), linesOf(chain(5)), { ...spacing, room: { w: 450, h: 420 } }).columns,
    1,
    "one that fits does not",
  );
});

test("three alike stand below or beside each other, not two below each other and one beside", () => {
  for (const [w, h] of [
    [500, 440],
    [900, 600],
    [1400, 500],
    [300, 900],
  ]) {
    const cells = { ...cellsOf(3), w: new Float64Array(3).fill(700), h: new Float64Array(3).fill(600) };
    const sheet = set(cells, linesOf(chain(3)), { ...spacing, room: { w, h } });
    noneMeet(cells, sheet);
    assert.ok(sheet.columns === 1 || sheet.columns === 3, `${w} × ${h}: ${sheet.columns} columns`);
    for (const i of [1, 2]) assert.ok(sheet.columns === 1 ? sheet.y[i] > sheet.y[i - 1] : sheet.x[i] > sheet.x[i - 1]);
  }
});

test("of the height of a frame, one that holds much has more than small ones beside it", () => {
  const outer = { ...plainSpec(3), child: Int32Array.of(1, 2, 3), room: { w: 500, h: 900 } };
  Object.assign(outer, linesOf(chain(3)), { srcPort: Int32Array.of(-1, -1), dstPort: Int32Array.of(-1, -1) });
  const long = {
    ...plainSpec(9),
    ...linesOf(chain(9)),
    srcPort: new Int32Array(8).fill(-1),
    dstPort: new Int32Array(8).fill(-1),
  };
  const [, first, middle] = new Layout().all([outer, plainSpec(1), long, plainSpec(1)]);
  assert.ok(middle.width < 2 * first.width, `it need not be wrapped: ${middle.width}`);
});

test("frames in frames, however many levels, are as tall as what stands in them and their names", () => {
  const nested = (levels: number): FrameSpec[] =>
    Array.from({ length: levels }, (_, level) => {
      const spec = { ...plainSpec(2), header: 30 };
      if (level + 1 < levels) spec.child[1] = level + 1;
      Object.assign(spec, linesOf(chain(2)), { srcPort: Int32Array.of(-1), dstPort: Int32Array.of(-1) });
      return spec;
    });
  const [few] = new Layout().all(nested(30));
  const [many] = new Layout().all(nested(2000));
  assert.ok(few.header > 30, "the name of a frame that holds frames has more room");
  assert.ok(many.height < 2000 * 300, `${many.height}`);
});

test("parts that nothing joins are set in rows, about as wide as the window is", () => {
  const pairs = Array.from({ length: 200 }, (_, i): [number, number] => [2 * i, 2 * i + 1]);
  const cells = cellsOf(400);
  const sheet = set(cells, linesOf(pairs), spacing);
  noneMeet(cells, sheet);
  const shape = sheet.width / sheet.height;
  assert.ok(shape > 0.75 && shape < 3, `${sheet.width} × ${sheet.height}`);
});

test("what touches the frame's ports stays where its lines reach the border", () => {
  const cells = cellsOf(6);
  cells.edge.set([1, 2]);
  cells.w.set([8, 8]);
  cells.h.set([0, 0]);
  cells.order.set([-1, 100]);
  const sheet = set(
    cells,
    linesOf([
      [0, 2],
      [2, 1],
    ]),
    spacing,
  ); // 3, 4 and 5 are alone
  for (const line of [0, 1]) for (const cell of [3, 4, 5]) assert.ok(!inside(sheet, cells, line, cell));
  assert.ok(sheet.y[0] < sheet.y[2] && sheet.y[2] < sheet.y[1]);
});

test("nested skips make a U: what a skip joins stands side by side, and no line crosses a box", () => {
  const pairs = chain(14);
  const skips: [number, number][] = [
    [1, 12],
    [3, 10],
    [5, 8],
  ];
  const cells = cellsOf(14);
  const sheet = set(cells, linesOf([...pairs, ...skips]), spacing);
  noneMeet(cells, sheet);
  for (const [a, b] of skips) {
    assert.ok(Math.abs(sheet.y[a] - sheet.y[b]) < 130, `${a} and ${b}: ${sheet.y[a]} and ${sheet.y[b]}`);
    assert.ok(sheet.x[b] > sheet.x[a] + 120);
  }
  assert.ok(sheet.flip![12] && !sheet.flip![1], "the second half runs up");
  for (let line = 0; line < pairs.length + skips.length; line++)
    for (let cell = 0; cell < 14; cell++) assert.ok(!inside(sheet, cells, line, cell), `line ${line}, box ${cell}`);
  const plain = set(cellsOf(14), linesOf([...pairs, [1, 4], [4, 7], [7, 10]]), spacing);
  assert.ok(!plain.flip?.some(Boolean), "skips one after another do not");
});

test("a frame in the half that runs up is turned round with all that is in it", () => {
  const outer = { ...plainSpec(14), child: new Int32Array(14).fill(-1) };
  outer.child[12] = 1;
  const inner = { ...plainSpec(2), header: 30 };
  Object.assign(outer, linesOf([...chain(14), [1, 12], [3, 10], [5, 8]]), {
    srcPort: new Int32Array(16).fill(-1),
    dstPort: new Int32Array(16).fill(-1),
  });
  Object.assign(inner, linesOf([[0, 1]]), { srcPort: Int32Array.of(-1), dstPort: Int32Array.of(-1) });
  const [, result] = new Layout().all([outer, inner]);
  assert.ok(result.y[0] > result.y[1] && result.y[1] >= 30, "its first box is below, its name still above");
});

function plainSpec(count: number): FrameSpec {
  const cells = cellsOf(count);
  return {
    ...cells,
    child: new Int32Array(count).fill(-1),
    src: new Int32Array(0),
    dst: new Int32Array(0),
    key: new Int32Array(0),
    srcPort: new Int32Array(0),
    dstPort: new Int32Array(0),
    up: false,
    header: 0,
    least: 0,
    pad: 16,
  };
}

test("lines into a frame keep off its name and its buttons", () => {
  const spec = plainSpec(2);
  spec.edge[0] = 1;
  [spec.w[0], spec.h[0], spec.order[0]] = [8, 0, -1];
  Object.assign(spec, linesOf([[0, 1]]), {
    srcPort: Int32Array.of(-1),
    dstPort: Int32Array.of(-1),
    header: 30,
    least: 220,
    title: 130,
    buttons: 40,
  });
  const [result] = new Layout().all([spec]);
  const x = result.path[result.pathStart[0]];
  assert.ok(x > 130 && x < result.width - 40, `${x} of ${result.width}`);
  assert.equal(result.path[result.pathStart[0] + 1], 0);
  assert.ok(Math.abs(result.x[0] + 4 - x) < 1e-9, "its port is where it passes");
});

test("the graph is fitted where nothing lies on it", () => {
  const overlays = [
    { x: 10, y: 540, w: 500, h: 50 },
    { x: 860, y: 10, w: 34, h: 64 },
  ];
  for (const [w, h] of [
    [400, 800],
    [3000, 900],
    [100, 100],
    [900, 600],
  ]) {
    const camera = fittedCamera({ x: 0, y: 0, w, h }, freeAreas(900, 600, overlays), 1.2, 10);
    const shown = { x: camera.x, y: camera.y, w: w * camera.scale, h: h * camera.scale };
    for (const over of overlays) assert.ok(!meets(shown, over), JSON.stringify({ shown, over }));
    assert.ok(shown.x >= 0 && shown.y >= 0 && shown.x + shown.w <= 900.1 && shown.y + shown.h <= 600.1);
  }
});

function sceneOf(layers: number, open = true): Scene {
  const root = rootBox(new Forest(tower(layers), [0]));
  if (open) openAll(root, 1e6);
  const picture = compose(root, {
    views: false,
    up: false,
    measure: () => ({ w: 100, h: 40 }),
    header: 30,
    headerWidth: () => 150,
  });
  const results = new Layout().all(picture.specs);
  for (const spec of picture.specs)
    spec.child.forEach((child, cell) => {
      if (child >= 0) [spec.w[cell], spec.h[cell]] = [results[child].width, results[child].height];
    });
  return new Scene([{ picture, results, title: "forward · 1,234,567 operations", up: false }]);
}

test("a line has no label where the box that it comes from says the same", () => {
  const [column] = sceneOf(4).columns;
  column.picture.frames.forEach((_, number) => assert.deepEqual(labelsOf(column, number), []));
});

test("labels lie on no box, on no name and on no other label", () => {
  const scene = sceneOf(4);
  const [column] = scene.columns;
  for (const { box } of column.picture.items) Object.defineProperty(box, "output", { value: -1 });
  let seen = 0;
  column.picture.frames.forEach((frame, number) => {
    const labels = labelsOf(column, number);
    seen += labels.length;
    labels.forEach((label, at) => {
      for (const other of labels.slice(at + 1)) assert.ok(!meets(label, other));
      frame.items.forEach((item) => {
        if (item < 0) return;
        const box = {
          x: column.x[item] - column.frameX[number],
          y: column.y[item] - column.frameY[number],
          w: column.w[item],
          h: column.h[item],
        };
        assert.ok(!meets(label, box));
      });
      assert.ok(
        label.y >= column.picture.specs[number].header &&
          label.x >= 0 &&
          label.x + label.w <= column.results[number].width,
      );
    });
  });
  assert.ok(seen > 5, `${seen} labels`);
});

test("names of frames lie on no box, and those of what frames are in have more room", () => {
  const scene = sceneOf(5);
  const [column] = scene.columns;
  let seen = 0;
  for (let scale = 0.05; scale < 0.84; scale += 0.04) {
    column.picture.frames.forEach((frame, number) => {
      if (!number) return;
      const result = column.results[number];
      const steps = freeSteps(column, number);
      for (const name of [12, 40, 110, 240]) {
        const place = placeOf(steps, result, name, 36, scale, Infinity);
        if (!place) continue;
        seen += 1;
        assert.ok(place.grow * scale * 13 >= 6.99 && place.grow * scale <= READABLE + 1e-9);
        const plate = {
          x: 8 * place.grow,
          y: 6,
          w: Math.min((name + 24) * place.grow, place.room - 8 * place.grow),
          h: 22 * place.grow,
        };
        frame.items.forEach((item, cell) => {
          if (item < 0) return;
          assert.ok(
            !meets(plate, { x: result.x[cell], y: result.y[cell], w: column.w[item], h: column.h[item] }),
            `${scale} ${name}`,
          );
        });
      }
      const holds = [...column.picture.specs[number].child].some((child) => child >= 0);
      assert.ok(holds ? result.header >= 30 : result.header === 30);
    });
  }
  assert.ok(seen > 100, `${seen} names`);
});

test("names on small boxes all have one size, and each is whole or says enough", () => {
  assert.deepEqual(fitted("addmm", "", 200, 0, 44, 0.5), { text: "addmm", size: 22 });
  assert.equal(fitted("− addmm", "− ", 80, 0, 44, 0.4)?.text, "addmm", "its colour says the rest");
  assert.equal(fitted("output", "", 20, 0, 44, 0.4), null, "and not ou…t");
  assert.match(fitted("_scaled_dot_product", "", 200, 0, 44, 0.4)!.text, /^_sca.*…/);
  assert.equal(fitted("addmm", "", 200, 0, 44, 0.3), null, "no box is high enough for its letters");
});

test("a phase is as wide as its title, so that titles neither collide nor are cut off", () => {
  const scene = sceneOf(1, false);
  assert.ok(scene.width >= titleWidth(scene.columns[0].title));
});

test("arrows navigate from the input through every frame to the output and back", () => {
  const scene = sceneOf(3);
  const go = (from: Box | null, direction: Direction): Box | null => navigate(scene, from, direction);
  let box = go(null, "down");
  assert.equal(box!.kind, "input");
  const names: string[] = [];
  while (box && names.length < 40) {
    names.push(box.label);
    box = go(box, "down");
  }
  assert.equal(names[names.length - 1], "output", names.join(" "));
  assert.ok(names.filter((name) => name === "add").length === 3, names.join(" "));
  box = scene.columns[0].picture.items.find((item) => item.box.kind === "output")!.box;
  for (let step = 0; step < 40 && box && box.kind !== "input"; step++) box = go(box, "up");
  assert.equal(box?.kind, "input");
  const frame = scene.columns[0].picture.items.find((item) => item.own >= 0)!.box;
  const entered = go(frame, "down")!;
  assert.ok(entered.start >= frame.start && entered.end <= frame.end && entered !== frame, "down enters a frame");
});
