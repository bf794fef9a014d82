/** Crossings of a page's pictures, laid out by us and by dagre: `node .bench/crossings.mjs page.html …` prints JSON. */

import dagre from "@dagrejs/dagre";
import { readFileSync } from "node:fs";
import { inflate, unpack } from "../src/data/decode.ts";
import { Run } from "../src/data/run.ts";
import type { Tables } from "../src/data/tables.ts";
import { arrange } from "../src/layout/layered.ts";
import { rootBox, type Box } from "../src/tree/box.ts";
import { Forest } from "../src/tree/forest.ts";
import { eachShown } from "../src/tree/expansion.ts";
import { compose, type Frame, type Picture } from "../src/tree/picture.ts";

const options = { views: false, up: false, measure: () => ({ w: 120, h: 44 }), header: 30, headerWidth: () => 0 };

async function read(path: string): Promise<Run> {
  const text = readFileSync(path, "utf8");
  const part = (id: string): string => new RegExp(`id="${id}">([^<]*)<`).exec(text)![1];
  const tables = JSON.parse(part("tables")) as Tables;
  tables.tables = JSON.parse(new TextDecoder().decode(await inflate(part("names")))) as Tables["tables"];
  return new Run(tables, await unpack(tables.directory, await inflate(part("columns"))));
}

/** One frame as cells and pairs: boxes of one size, ports left out, each pair once. */
function flat(picture: Picture, frame: Frame): { count: number; pairs: [number, number][]; order: number[] } {
  const cells = frame.items.flatMap((item, cell) => (item >= 0 ? [cell] : []));
  const place = new Map(cells.map((cell, i) => [cell, i]));
  const pairs = new Map<string, [number, number]>();
  for (const { from, to } of frame.lines) {
    const [a, b] = [place.get(from), place.get(to)];
    if (a !== undefined && b !== undefined && a !== b) pairs.set(`${a},${b}`, [a, b]);
  }
  const order = cells.map((cell) => {
    const { box } = picture.items[frame.items[cell]];
    return box.kind === "input" ? -1 : box.kind === "output" ? 0x7ffffff0 : box.start;
  });
  return { count: cells.length, pairs: [...pairs.values()], order };
}

type Polyline = [number, number][];

/** Pairs of lines that meet in a point that is no end of either. */
function crossings(lines: Polyline[]): number {
  let found = 0;
  for (let i = 0; i < lines.length; i++) {
    for (let j = i + 1; j < lines.length; j++) if (meet(lines[i], lines[j])) found += 1;
  }
  return found;
}

function meet(one: Polyline, two: Polyline): boolean {
  const ends = [one[0], one[one.length - 1]];
  const others = [two[0], two[two.length - 1]];
  if (ends.some((end) => others.some((other) => Math.hypot(end[0] - other[0], end[1] - other[1]) < 45))) return false;
  for (let i = 1; i < one.length; i++)
    for (let j = 1; j < two.length; j++) if (cross(one[i - 1], one[i], two[j - 1], two[j])) return true;
  return false;
}

function cross(a: number[], b: number[], c: number[], d: number[]): boolean {
  const side = (p: number[], q: number[], r: number[]): number =>
    (q[0] - p[0]) * (r[1] - p[1]) - (q[1] - p[1]) * (r[0] - p[0]);
  return side(a, b, c) * side(a, b, d) < -1e-9 && side(c, d, a) * side(c, d, b) < -1e-9;
}

function ours(count: number, pairs: [number, number][], order: number[]): { lines: Polyline[]; ms: number } {
  const started = performance.now();
  const sheet = arrange(
    {
      w: new Float64Array(count).fill(120),
      h: new Float64Array(count).fill(44),
      order: Int32Array.from(order),
      edge: new Uint8Array(count),
    },
    {
      src: Int32Array.from(pairs, ([a]) => a),
      dst: Int32Array.from(pairs, ([, b]) => b),
      key: Int32Array.from(pairs, ([a]) => a),
      exit: new Float64Array(pairs.length),
      entry: new Float64Array(pairs.length),
    },
    { gap: 26, rankGap: 40, wrap: false },
  );
  const ms = performance.now() - started;
  const lines = pairs.map((_, line) => {
    const points: Polyline = [];
    for (let i = sheet.pathStart[line]; i < sheet.pathStart[line + 1]; i += 2)
      points.push([sheet.path[i], sheet.path[i + 1]]);
    return points;
  });
  return { lines, ms };
}

function theirs(count: number, pairs: [number, number][]): { lines: Polyline[]; ms: number } {
  const started = performance.now();
  const graph = new dagre.graphlib.Graph();
  graph.setGraph({ nodesep: 26, ranksep: 40 });
  graph.setDefaultEdgeLabel(() => ({}));
  for (let i = 0; i < count; i++) graph.setNode(String(i), { width: 120, height: 44 });
  for (const [a, b] of pairs) graph.setEdge(String(a), String(b));
  dagre.layout(graph);
  const ms = performance.now() - started;
  return {
    lines: pairs.map(([a, b]) =>
      (graph.edge(String(a), String(b)) as { points: { x: number; y: number }[] }).points.map((p): [number, number] => [
        p.x,
        p.y,
      ]),
    ),
    ms,
  };
}

function openOne(root: Box): void {
  const stack = [root];
  while (stack.length) {
    const box = stack.pop()!;
    if (!box.canOpen) continue;
    box.opening = box.kind === "fold" ? "one" : "all";
    stack.push(...box.inside);
  }
}

/** The same without modules and repeats: every operation in one frame. */
function whole(run: Run, root: Box): Record<string, number> {
  const { forest } = root;
  const { source, target } = forest.edges(true);
  const used = new Set<number>();
  const pairs = new Map<string, [number, number]>();
  for (let i = 0; i < source.length; i++) {
    if (source[i] < 0) continue;
    pairs.set(`${source[i]},${target[i]}`, [source[i], target[i]]);
    used.add(source[i]).add(target[i]);
  }
  const cells = [...used].sort((a, b) => a - b);
  const place = new Map(cells.map((cell, i) => [cell, i]));
  const list = [...pairs.values()].map(([a, b]): [number, number] => [place.get(a)!, place.get(b)!]);
  if (cells.length > MOST_FLAT) return { flat_operations: run.count };
  const one = ours(
    cells.length,
    list,
    cells.map((cell) => forest.order[cell]),
  );
  const two = theirs(cells.length, list);
  return {
    flat_ours: crossings(one.lines),
    flat_dagre: crossings(two.lines),
    flat_ours_ms: one.ms,
    flat_dagre_ms: two.ms,
    flat_operations: cells.length,
  };
}

const MOST_FLAT = 1500; // dagre takes minutes beyond

for (const path of process.argv.slice(2)) {
  const run = await read(path);
  const root = rootBox(new Forest(run, [0]));
  openOne(root);
  let shown = 0;
  eachShown(root, () => (shown += 1));
  const total = { ours: 0, dagre: 0, ours_ms: 0, dagre_ms: 0, boxes: shown };
  const picture = compose(root, options);
  for (const frame of picture.frames) {
    const { count, pairs, order } = flat(picture, frame);
    if (pairs.length < 2) continue;
    const one = ours(count, pairs, order);
    const two = theirs(count, pairs);
    total.ours += crossings(one.lines);
    total.dagre += crossings(two.lines);
    total.ours_ms += one.ms;
    total.dagre_ms += two.ms;
  }
  console.log(JSON.stringify({ page: path, ...total, ...whole(run, root) }));
}
