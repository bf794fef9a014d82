import assert from "node:assert/strict";
import { test } from "node:test";
import { numbersText, rootBox, type Box } from "../src/tree/box.ts";
import { Forest } from "../src/tree/forest.ts";
import { openAll, openAtFirst, wayTo } from "../src/tree/expansion.ts";
import { compose, type Picture } from "../src/tree/picture.ts";
import { compared, makeRun, setFolds, tower } from "./samples.ts";

const options = { views: false, up: false, measure: () => ({ w: 100, h: 40 }), header: 30, headerWidth: () => 0 };

function edgesOf(picture: Picture): string[] {
  const name = (item: number): string => picture.items[item].box.label;
  return picture.edges.map((edge) => `${name(edge.source)}→${name(edge.target)}`).sort();
}

function netOf(run: ReturnType<typeof tower>): { root: Box; net: Box } {
  const root = rootBox(new Forest(run, [0]));
  return { root, net: root.children[0] };
}

test("equal layers fold into one box", () => {
  const { net } = netOf(tower(12));
  assert.deepEqual(
    net.children.map((box) => [box.label, box.kind, box.count]),
    [
      ["stem", "module", 1],
      ["layers.0–11", "fold", 12],
      ["head", "module", 1],
    ],
  );
  assert.equal(net.children[1].children.length, 12);
  assert.deepEqual(net.children[1].oddInstances, []);
});

test("the layer that differs is in the fold, and marked", () => {
  const { net } = netOf(tower(12, 5));
  assert.equal(net.children[1].count, 12);
  assert.deepEqual(net.children[1].oddInstances, [5]);
  assert.ok(net.children[1].children[5].odd);
});

test("repeats are those of the phases that are shown", () => {
  const run = tower(3);
  setFolds(run, [
    { scope: 1, start: 1, times: 3, phases: [0] },
    { scope: 1, start: 2, times: 2, phases: [0, 1] },
  ]);
  const labels = (phases: number[]): string[] =>
    rootBox(new Forest(run, phases)).children[0].children.map((box) => box.label);
  assert.deepEqual(labels([0]), ["stem", "layers.0–2", "head"]);
  assert.deepEqual(labels([0, 1]), ["stem", "layers.0", "layers.1–2", "head"]);
});

test("where a frame would hold too many boxes, they are put together, and repeats stay what they are", () => {
  const count = 6000;
  const ops = Array.from({ length: count }, (_, i) => ({ name: `op${i}`, scope: 0, reads: [-1] }));
  const folds = [{ scope: 0, start: 3000, period: 2, times: 5, odd: [4] }];
  const root = rootBox(new Forest(makeRun({ modules: [["", "run"]], scopes: [[-1, 0]], ops, folds }), [0]));
  assert.ok(root.children.length < 100 && root.children.every(({ kind }) => kind === "bundle"));
  const inside = root.children.flatMap((bundle) => bundle.children);
  assert.equal(inside.length, count - 2 * 5 + 1);
  const [fold] = inside.filter(({ kind }) => kind === "fold");
  assert.deepEqual([fold.start, fold.count, fold.period, fold.oddInstances], [3000, 5, 2, [4]]);
  assert.deepEqual(
    inside.flatMap((box) => Array.from(box.elements)),
    Array.from(ops.keys()),
  );
});

test("a fold that shows one instance has the edges of that instance and of the ends", () => {
  const { root, net } = netOf(tower(12));
  net.opening = "all";
  net.children[1].opening = "one";
  for (const shown of [0, 4, 11]) {
    net.children[1].shown = shown;
    const found = edgesOf(compose(root, options));
    assert.deepEqual(found, ["add→head", "head→output", "mm→relu", "relu→add", "stem→add", "stem→mm", "x→stem"]);
  }
});

test("all instances shown are a chain", () => {
  const { root, net } = netOf(tower(3));
  net.opening = "all";
  net.children[1].opening = "all";
  assert.deepEqual(edgesOf(compose(root, options)), [
    "head→output",
    "layers.0→layers.1",
    "layers.1→layers.2",
    "layers.2→head",
    "stem→layers.0",
    "x→stem",
  ]);
});

test("everything open has exactly the edges of the graph", () => {
  const run = tower(6);
  const root = rootBox(new Forest(run, [0]));
  openAll(root, 1e6);
  const picture = compose(root, options);
  const found = picture.edges
    .filter((edge) => picture.items[edge.source].box.node >= 0 && picture.items[edge.target].box.node >= 0)
    .map((edge) => `${picture.items[edge.source].box.node}>${picture.items[edge.target].box.node}`);
  const expected: string[] = [];
  for (let node = 0; node < run.count; node++) for (const from of run.producers(node)) expected.push(`${from}>${node}`);
  assert.deepEqual(found.sort(), expected.sort());
});

test("views are looked through, or shown when asked for", () => {
  const run = makeRun({
    modules: [["", "run"]],
    scopes: [[-1, 0]],
    ops: [
      { name: "mul", scope: 0, reads: [-1] },
      { name: "view", scope: 0, reads: [0], view: true },
      { name: "add", scope: 0, reads: [1] },
    ],
  });
  const root = rootBox(new Forest(run, [0]));
  assert.deepEqual(edgesOf(compose(root, options)), ["add→output", "mul→add", "x→mul"]);
  assert.deepEqual(edgesOf(compose(root, { ...options, views: true })), [
    "add→output",
    "mul→view",
    "view→add",
    "x→mul",
  ]);
});

test("what many read is named at each reader", () => {
  const ops = [
    { name: "mask", scope: 0, reads: [-1] },
    ...Array.from({ length: 9 }, (_, i) => ({ name: `op${i}`, scope: 0, reads: [0] })),
  ];
  const root = rootBox(new Forest(makeRun({ modules: [["", "run"]], scopes: [[-1, 0]], ops }), [0]));
  const picture = compose(root, options);
  assert.equal(picture.edges.filter((edge) => edge.hub).length, 8);
  assert.equal(picture.items.filter((item) => item.tags.length).length, 8);
});

test("sums over boxes add up", () => {
  const run = tower(12);
  const forest = new Forest(run, [0]);
  const root = rootBox(forest);
  const total = (box: Box): number => forest.sum("time_ns", box.start, box.end)!.total;
  const net = root.children[0];
  assert.equal(
    net.children.map(total).reduce((a, b) => a + b),
    total(root),
  );
  assert.equal(total(root), (100 * run.count * (run.count + 1)) / 2);
});

test("the way to an operation opens what is around it", () => {
  const run = tower(12);
  const root = rootBox(new Forest(run, [0]));
  openAtFirst(root);
  const node = 1 + 3 * 7 + 1; // relu of layer 7
  const way = wayTo(root, root.forest.position[node], true);
  assert.equal(way[way.length - 1].node, node);
  assert.equal(root.children[0].children[1].shown, 7);
});

test("a chain of modules so deep that recursion would fail", () => {
  const depth = 20_000;
  const modules: [string, string][] = [
    ["", "run"],
    ...Array.from({ length: depth }, (_, i): [string, string] => [`m${i}`, `M${i % 7}`]),
  ];
  const scopes: [number, number][] = modules.map((_, i) => [i - 1, i]);
  const run = makeRun({ modules, scopes, ops: [{ name: "relu", scope: depth, reads: [-1] }] });
  const root = rootBox(new Forest(run, [0]));
  openAll(root, 1e9);
  assert.equal(compose(root, options).frames.length, depth + 1);
});

test("an empty run", () => {
  const run = makeRun({ modules: [["", "run"]], scopes: [[-1, 0]], ops: [] });
  run.tables.results.length = 0;
  const root = rootBox(new Forest(run, [0]));
  openAtFirst(root);
  assert.equal(compose(root, options).items.length, 0);
});

test("what ran again is the only thing marked", () => {
  const modules: [string, string][] = [
    ["", "run"],
    ["layers.0", "Layer"],
    ["layers.1", "Layer"],
  ];
  const scopes: [number, number][] = [
    [-1, 0],
    [0, 1],
    [0, 2],
    [0, 2],
    [0, 1],
  ];
  const ops = [1, 2, 3, 4].map((scope, i) => ({ name: "mm", scope, reads: [i - 1] }));
  const folds = [0, 2].map((start) => ({ scope: 0, start, times: 2 }));
  const run = makeRun({ modules, scopes, ops, folds });
  run.columns.set("scope_recomputed", Uint8Array.of(0, 0, 0, 1, 1));
  const boxes = rootBox(new Forest(run, [0])).children;
  assert.deepEqual(
    boxes.map((box) => [box.label, box.count, box.recomputed, box.isMarked]),
    [
      ["layers.0–1", 2, false, false],
      ["layers.0–1", 2, true, true],
    ],
  );
  assert.deepEqual(
    boxes[1].children.map((box) => box.isMarked),
    [false, false],
    "the repeat says it for all in it",
  );
});

test("in a comparison the one that was removed has its own name, and the one in its place says what it was", () => {
  const run = compared(tower(3), [0, 0, 0, 0, 2, 2, 2, 0, 0, 0, 0], new Array<number>(11).fill(0));
  setFolds(run, []);
  // What was layers.2 has the number of the one that was removed.
  run.tables.modules[5][0] = run.data.labels[5] = "layers.1";
  run.data.compare = {
    a: "A",
    b: "B",
    counts: {},
    notes: [],
    sides: [],
    changes: { texts: [], rows: [] },
    lines: [],
    was: [[5, "layers.2"]],
  };
  const net = rootBox(new Forest(run, [0])).children[0];
  const found = net.children
    .filter((box) => box.label.startsWith("layers"))
    .map((box) => [box.label, box.difference, box.was]);
  assert.deepEqual(found, [
    ["layers.0", 0, ""],
    ["layers.1", 2, ""],
    ["layers.1", 0, "was layers.2"],
  ]);
});

test("numbers that do not follow on each other are told one by one", () => {
  assert.equal(numbersText([3, 0, 1, 2]), "0–3");
  assert.equal(numbersText([0, 2]), "0, 2");
  assert.equal(numbersText([0, 1, 2, 5]), "0–2, 5");
  assert.equal(numbersText([0, 2, 4, 6, 8, 10]), "0, 2 … 10");
});
