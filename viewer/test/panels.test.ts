import assert from "node:assert/strict";
import { Memory } from "../src/data/memory.ts";
import { test } from "node:test";
import { amountAt, measures, rangeOf, shareOf } from "../src/draw/heat.ts";
import { difference, instanceName } from "../src/panels/repeats.ts";
import { rootBox, type Box } from "../src/tree/box.ts";
import { Forest } from "../src/tree/forest.ts";
import { openAtFirst, wayToCall } from "../src/tree/expansion.ts";
import { makeRun, tower } from "./samples.ts";
import { typeText, type Run } from "../src/data/run.ts";

function withMetric(run: Run, name: string, values: number[], known?: number[]): Run {
  run.metrics.set(name, {
    name,
    along: "node",
    values: Float64Array.from(values),
    known: known ? Uint8Array.from(known) : null,
  });
  return run;
}

function measured(run: Run, id: string): (box: Box) => number | null {
  const found = measures(run).find((one) => one.id === id);
  assert.ok(found, id);
  return found.of;
}

test("going to one of several alike opens the repeat at that one", () => {
  const run = tower(12);
  const root = rootBox(new Forest(run, [0]));
  openAtFirst(root);
  const scope = run.tables.modules.findIndex(([path]) => path === "layers.7");
  const box = wayToCall(root, scope)!;
  assert.equal(box.kind, "fold");
  assert.equal(box.opening, "one");
  assert.equal(box.shown, 7);
  assert.equal(box.subject.scope, scope);
  assert.equal(box.subject.operations, 3);
});

test("an instance that differs says in what", () => {
  const root = rootBox(new Forest(tower(12, 5), [0]));
  const fold = root.children[0].children[1];
  assert.equal(instanceName(fold.children[5]), "layers.5");
  assert.equal(difference(fold.children[5], fold.children[0]), "mm makes f32[8], not f32[4]");
});

test("steps of plain operations are named by the parameter they work on", () => {
  const weights = ["a", "b", "c", "d"];
  const steps = weights.flatMap((_, i) => ["mul", "add"].map((name) => ({ name, scope: 0, reads: [i] })));
  const run = makeRun({
    modules: [["", "run"]],
    scopes: [[-1, 0]],
    ops: [...weights.map((name) => ({ name, scope: 0, reads: [-1] })), ...steps],
    folds: [{ scope: 0, start: 4, period: 2, times: 4 }],
  });
  run.tables.names.push(...weights);
  weights.forEach((_, i) => {
    (run.valueRole as Int32Array)[i + 1] = 2;
    (run.valueName as Int32Array)[i + 1] = i + 1;
  });
  const fold = rootBox(new Forest(run, [0])).children[4];
  assert.equal(fold.kind, "fold");
  assert.deepEqual(fold.children.map(instanceName), weights);
});

test("steps that share a parameter are not named by it", () => {
  const names = ["mul", "add", "mul", "add", "mul", "add", "mul", "add"];
  const run = makeRun({
    modules: [["", "run"]],
    scopes: [[-1, 0]],
    ops: names.map((name) => ({ name, scope: 0, reads: [-1] })),
    folds: [{ scope: 0, start: 0, period: 2, times: 4 }],
  });
  (run.valueRole as Int32Array)[0] = 2;
  const [fold] = rootBox(new Forest(run, [0])).children;
  assert.equal(instanceName(fold.children[2]), "mul, add, 3 of 4");
});

test("the most that is alive within a stretch is not the sum of all that lived in it", () => {
  const memory = new Memory(tower(6));
  const [from, to] = [2, 12];
  const sum = memory.alive(from, to).reduce((bytes, storage) => bytes + memory.bytes[storage], 0);
  const most = memory.total[memory.highest(from, to)];
  assert.ok(most < sum);
  assert.equal(most, Math.max(...memory.total.slice(from, to + 1)));
});

test("a partition says that a graph break ends it", () => {
  const run = makeRun({
    modules: [
      ["", "run"],
      ["partition 0", "partition 0"],
      ["partition 1", "partition 1"],
    ],
    scopes: [
      [-1, 0],
      [0, 1],
      [0, 2],
    ],
    ops: [1, 2].map((scope) => ({ name: `op${scope}`, scope, reads: [-1] })),
  });
  for (const row of run.tables.modules.slice(1)) row[2] = "compiled";
  run.data.breaks = [
    {
      reason: "Data-dependent branching",
      explanation: "",
      hints: [],
      id: "GB1",
      file: "a.py",
      line: 3,
      function: "f",
      code: "if x:",
      partition: 0,
      nodes: 1,
    },
  ];
  const root = rootBox(new Forest(run, [0]));
  assert.deepEqual(
    root.children.map((box) => box.type),
    ["⚡ ended by Data-dependent branching", "partition 1"],
  );
  assert.equal(run.partitionScope(0), 1);
});

test("norms: the largest of a group, each phase by itself", () => {
  const run = withMetric(tower(2), "norm", [1, 5, 2, 9, 3, 4, 7, 1e-6]);
  const {
    children: [net],
  } = rootBox(new Forest(run, [0]));
  assert.equal(measured(run, "activation_norm")(net), 9);
  assert.equal(
    measures(run).some((one) => one.id === "gradient_norm"),
    false,
    "nothing ran backward",
  );
  assert.equal(
    measures(tower(2)).some((one) => one.id === "activation_norm"),
    false,
  );
});

test("bounds: a group is bound by what takes most of its time", () => {
  const run = withMetric(tower(1), "bound", [1, 2, 2, 3, 1]); // times are 100, 200, 300, 400, 500
  const {
    children: [net],
  } = rootBox(new Forest(run, [0]));
  assert.equal(measured(run, "bound")(net), 1);
  assert.equal(measured(run, "bound")(net.children[1]), 2, "200 + 300 against 400");
  const views = withMetric(tower(1), "bound", [0, 0, 0, 0, 0]);
  assert.equal(measured(views, "bound")(rootBox(new Forest(views, [0]))), null, "views are bound by nothing");
});

test("the share of the peak: of a group, by time", () => {
  const run = withMetric(
    withMetric(tower(1), "bound", [1, 1, 1, 1, 1]),
    "peak_share",
    [1, 0.5, 0, 1, 1],
    [1, 1, 0, 1, 1],
  );
  const {
    children: [net],
  } = rootBox(new Forest(run, [0]));
  assert.equal(measured(run, "peak_share")(net.children[1]), (0.5 * 200 + 400) / 600);
  assert.equal(measures(run).filter((one) => one.id === "peak_share").length, 1);
});

test("relevance: of a group, what its results were given", () => {
  const run = withMetric(tower(1), "relevance", [0.5, -2, 3, -0.75, 1]);
  const {
    children: [net],
  } = rootBox(new Forest(run, [0]));
  assert.equal(measured(run, "relevance")(net.children[1]), -0.75, "only the last leaves the block");
  assert.equal(measured(run, "relevance")(net), 1);
});

test("colours and the ticks beside them say the same", () => {
  const range = { least: 1e-4, most: 100 };
  for (const scale of ["root", "log", "diverging"] as const) {
    for (const share of [0, 0.5, 1])
      assert.ok(Math.abs(shareOf(scale, range, amountAt(scale, range, share)) - share) < 1e-9, `${scale} ${share}`);
  }
  assert.equal(amountAt("log", range, 0.5), 0.1);
});

test("what is not finite is not part of the range", () => {
  const run = withMetric(tower(1), "norm", [1, NaN, Infinity, 4, 2]);
  const root = rootBox(new Forest(run, [0]));
  const boxes = [...root.children[0].children[1].children, root.children[0].children[0]];
  assert.deepEqual(
    rangeOf(
      measures(run).find((one) => one.id === "activation_norm")!,
      boxes,
    ),
    { least: 1, most: 4 },
  );
});

test("open sizes are shown by their names", () => {
  assert.equal(typeText(["float32", [4, 8], [8, 1], "strided", false, false, ["batch", ""]]), "f32[batch, 8]");
  assert.equal(typeText(["float32", [4, 8], [8, 1], "strided", false, false]), "f32[4, 8]");
});
