import assert from "node:assert/strict";
import { test } from "node:test";
import { search } from "../src/data/query.ts";
import { ROLES } from "../src/data/schema.gen.ts";
import { plural } from "../src/data/text.ts";
import { amountOf, duration, parseAmount, signed, size, sizes } from "../src/data/units.ts";
import { Memory } from "../src/data/memory.ts";
import { flame } from "../src/data/flame.ts";
import { Forest } from "../src/tree/forest.ts";
import { checkpointed, compared, makeRun, tower } from "./samples.ts";

test("words, patterns and filters", () => {
  const run = tower(3);
  const names = (text: string): string[] => search(run, text).nodes.map((node) => run.name(node));
  assert.deepEqual(names("relu"), ["relu", "relu", "relu"]);
  assert.deepEqual(names("/^ad+mm$/"), ["addmm", "addmm"]);
  assert.deepEqual(names("op:add*"), ["addmm", "add", "add", "add", "addmm"]);
  assert.deepEqual(names("op:add"), ["add", "add", "add"]);
  assert.deepEqual(names("path:layers.1"), ["mm", "relu", "add"]);
  assert.deepEqual(names("layers.1 relu"), ["relu"]);
  assert.deepEqual(names("class:Linear phase:forward"), ["addmm", "addmm"]);
  assert.deepEqual(names("-op:*mm class:Block -op:add"), ["relu", "relu", "relu"]);
  assert.deepEqual(names("time>1us"), ["addmm"]);
  assert.deepEqual(names("time<=200ns"), ["addmm", "mm"]);
  assert.deepEqual(names("dtype:float32 shape:4 op:relu").length, 3);
  assert.deepEqual(names("phase:backward"), []);
  assert.equal(search(run, "Block").scopes.length, 3);
});

test("what a person most likely means comes first: the last part of a path, any part, the operator, the class", () => {
  const run = makeRun({
    modules: [
      ["", "Net"],
      ["conv1", "Conv2d"],
      ["layer.conv2", "Conv2d"],
      ["conv2.inner", "Block"],
      ["layer.conv20", "Other"],
    ],
    scopes: [
      [-1, 0],
      [0, 1],
      [0, 2],
      [0, 3],
      [0, 4],
    ],
    ops: [1, 2, 3, 4].map((scope) => ({ name: scope === 3 ? "relu" : "conv2d", scope, reads: [-1], shape: [2] })),
  });
  const result = search(run, "conv2");
  assert.deepEqual(
    result.scopes.map((scope) => run.path(scope)),
    ["layer.conv2", "layer.conv20", "conv2.inner", "conv1"],
  );
  assert.deepEqual(result.nodes, [0, 1, 3, 2], "operators of that name before what only stands in such a module");
  assert.ok(result.scopeRank[2] < result.nodeRank[0] && result.nodeRank[0] < result.scopeRank[3]);
  assert.deepEqual("layer.conv2".match(result.marks!), ["conv2"]);
  assert.equal(search(run, "time>1").marks, null);
});

test("of a path that is typed in part, the modules that it ends in come before what is inside of the first", () => {
  const run = makeRun({
    modules: ["", "encoder.block.1", "encoder.block.1.fc", "decoder.block.1", "decoder.block.10"].map((path) => [
      path,
      "M",
    ]),
    scopes: [
      [-1, 0],
      [0, 1],
      [1, 2],
      [0, 3],
      [0, 4],
    ],
    ops: [1, 2, 3, 4].map((scope) => ({ name: "relu", scope, reads: [-1], shape: [2] })),
  });
  assert.deepEqual(
    search(run, "block.1").scopes.map((scope) => run.path(scope)),
    ["encoder.block.1", "decoder.block.1", "decoder.block.10", "encoder.block.1.fc"],
  );
});

test("a filter of modules takes all that is inside, and lists the calls", () => {
  const run = tower(3);
  assert.equal(search(run, "class:Net").total, run.count);
  assert.deepEqual(search(run, "class:Net").scopes, [1]);
  assert.equal(search(run, "class:Block").total, 9);
  assert.equal(search(run, "class:Block").scopes.length, 3);
  assert.deepEqual(
    search(run, "path:layers.1").scopes.map((scope) => run.path(scope)),
    ["layers.1"],
  );
  assert.deepEqual(search(run, "class:Block op:relu").scopes, [], "a filter of operations asks for operations");
  assert.equal(search(run, "-class:Block").total, 2);
});

test("types and shapes as the page writes them", () => {
  const run = tower(2);
  for (const text of ["dtype:f32", "dtype:float32", "dtype:f*", "shape:[4]", "shape:4", "self>=0ns"])
    assert.equal(search(run, text).total, run.count, text);
  const wide = makeRun({
    modules: [["", "run"]],
    scopes: [[-1, 0]],
    ops: [{ name: "mul", scope: 0, reads: [-1], shape: [2, 64, 768] }],
  });
  for (const text of [
    "shape:[2, 64, 768]",
    "shape:2x64x768",
    "shape:2,64,768",
    "shape:*x768",
    "shape:[2,*,768] op:mul",
  ])
    assert.equal(search(wide, text).total, 1, text);
});

test("what is not drawn comes last", () => {
  const ops = [
    { name: "t", scope: 0, reads: [-1], view: true },
    { name: "trace", scope: 0, reads: [0] },
  ];
  const run = makeRun({ modules: [["", "run"]], scopes: [[-1, 0]], ops });
  assert.deepEqual(
    search(run, "t").nodes.map((node) => run.name(node)),
    ["trace", "t"],
  );
});

test("characters that turn or hide text are written out", () => {
  const run = makeRun({
    modules: [
      ["", "run"],
      ["\u202eRTL evil", "A\u200bB"],
    ],
    scopes: [
      [-1, 0],
      [0, 1],
    ],
    ops: [{ name: "mul", scope: 1, reads: [-1] }],
  });
  assert.deepEqual(run.module(1).slice(0, 2), ["\\u202eRTL evil", "A\\u200bB"]);
});

test("a view of a parameter is a parameter", () => {
  const ops = [
    { name: "t", scope: 0, reads: [-1], view: true },
    { name: "mm", scope: 0, reads: [0] },
  ];
  const run = makeRun({ modules: [["", "run"]], scopes: [[-1, 0]], ops });
  (run.valueRole as Int32Array)[0] = ROLES.indexOf("parameter");
  assert.equal(ROLES[run.roleOf(run.outputs(0)[0])], "parameter");
  assert.equal(ROLES[run.roleOf(run.outputs(1)[0])], "activation");
  assert.equal(search(run, "role:parameter").total, 2);
});

test("what backward makes is no gradient where it shows something older or computes something again", () => {
  const run = checkpointed();
  const [parameter, gradient] = [ROLES.indexOf("parameter"), ROLES.indexOf("gradient")];
  for (let node = 3; node < run.count; node++) (run.valueRole as Int32Array)[run.outputs(node)[0]] = gradient;
  const roles = (): string[] => [4, 5, 6, 7].map((node) => ROLES[run.roleOf(run.outputs(node)[0])]);
  assert.deepEqual(roles(), ["gradient", "gradient", "activation", "gradient"]);
  const views = makeRun({
    modules: [["", "run"]],
    scopes: [[-1, 0]],
    ops: [{ name: "t", scope: 0, reads: [-1], view: true, phase: 1 }],
  });
  (views.valueRole as Int32Array).set([parameter, gradient]);
  assert.equal(ROLES[views.roleOf(1)], "parameter");
});

test("both runs of a comparison, and the difference", () => {
  const run = compared(tower(1), [0, 2, 1, 3, 0], [10, 20, 0, 40, 50]);
  assert.equal(run.metric("difference_ns", 0), 100 - 10);
  assert.equal(run.metric("difference_ns", 1), -20, "only in A");
  assert.equal(run.metric("difference_ns", 2), 300, "only in B");
  const forest = new Forest(run, [0]);
  assert.deepEqual(forest.sum("time_ns", 0, 5), { total: 100 + 300 + 400 + 500, known: 4, unknown: 0 });
  assert.deepEqual(forest.sum("time_ns@a", 0, 5), { total: 10 + 20 + 40 + 50, known: 4, unknown: 0 });
});

test("an axis has one unit", () => {
  assert.deepEqual(sizes([0, 0.9 * 1024 ** 3, 1.8 * 1024 ** 3]), ["0.00 GiB", "0.90 GiB", "1.80 GiB"]);
  assert.deepEqual(sizes([0, 4, 8]), ["0 B", "4 B", "8 B"]);
});

test("signs and units", () => {
  assert.equal(signed(duration)(547_000), "+547 µs");
  assert.equal(signed(duration)(-547_000), "−547 µs");
  assert.equal(amountOf("FLOP/s")(0), "0 FLOP/s");
  assert.equal(amountOf("FLOP")(1.5e9), "1.50 GFLOP");
  assert.equal(plural(1, "operation"), "1 operation");
  assert.equal(plural(2, "box"), "2 boxes");
});

test("what cannot be understood is said", () => {
  const run = tower(1);
  assert.match(search(run, "nonsense:3").error, /no filter “nonsense”/);
  assert.match(search(run, "warmth>3").error, /no metric “warmth”; there are time$/);
  assert.match(search(run, "phase:nope").error, /no phase “nope”; there are forward, backward, optimizer/);
  assert.match(search(run, "dtype:flaot32").error, /no dtype “flaot32”/);
  assert.match(search(run, "flag:red").error, /there are escape/);
  assert.match(search(run, "op:").error, /op: what\?/);
  assert.match(search(run, "time>").error, /time> what\? Write time>1.5ms/);
  assert.match(search(run, "time>1").error, /1 of what\? Write time>1ns/);
  assert.equal(search(run, "time>0").error, "");
  assert.match(search(run, "time>soon").error, /no amount/);
  assert.match(search(run, "/(/").error, /no regular expression/);
});

test("the word on a mark finds what it marks", () => {
  const run = checkpointed();
  for (const text of ["recomputed", "Recomp", "↻", "recomp*", "flag:recomputed"]) {
    const { nodes, scopes } = search(run, text);
    assert.deepEqual([nodes, scopes], [[6], [5]], text);
  }
  assert.equal(search(run, "reco").total, 0, "a shorter word is looked for in names alone");
  assert.equal(search(run, "recomputed layers.1").total, 0);
});

test("amounts", () => {
  assert.equal(parseAmount("1.5ms"), 1.5e6);
  assert.equal(parseAmount("2MiB"), 2 * 1024 * 1024);
  assert.ok(Number.isNaN(parseAmount("3 parsecs")));
  assert.equal(duration(1_500_000), "1.50 ms");
  assert.equal(size(1536), "1.50 KiB");
  assert.equal(size(0), "0 B");
  assert.deepEqual(
    [34048, 34304, 1000, 1_023_000, 1_024_000].map(size),
    ["33.2 KiB", "33.5 KiB", "1000 B", "999 KiB", "0.98 MiB"],
    "as they are printed",
  );
});

test("memory alive adds up at every operation", () => {
  const run = tower(4);
  const memory = new Memory(run);
  for (let node = 0; node < run.count; node++) {
    const bytes = memory.alive(node, node).reduce((sum, storage) => sum + memory.bytes[storage], 0);
    assert.equal(memory.total[node], bytes);
  }
});

test("the flame chart has a bar for every call and every operation", () => {
  const run = tower(4);
  const { rows, isTime } = flame(run);
  assert.equal(isTime, false);
  assert.equal(
    rows.reduce((sum, row) => sum + row.owner.filter((owner) => owner < 0).length, 0),
    run.count,
  );
  assert.equal(
    rows.reduce((sum, row) => sum + row.owner.filter((owner) => owner >= 0).length, 0),
    run.scopes - 1,
  );
});
