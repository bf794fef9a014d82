import assert from "node:assert/strict";
import { test } from "node:test";
import { search } from "../src/data/query.ts";
import { duration, parseAmount, size } from "../src/data/units.ts";
import { Memory } from "../src/data/memory.ts";
import { flame } from "../src/data/flame.ts";
import { tower } from "./samples.ts";

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

test("what cannot be understood is said", () => {
  const run = tower(1);
  assert.match(search(run, "nonsense:3").error, /no filter “nonsense”/);
  assert.match(search(run, "warmth>3").error, /no metric “warmth”; there are time_ns/);
  assert.match(search(run, "time>soon").error, /no amount/);
  assert.match(search(run, "/(/").error, /no regular expression/);
});

test("amounts", () => {
  assert.equal(parseAmount("1.5ms"), 1.5e6);
  assert.equal(parseAmount("2MiB"), 2 * 1024 * 1024);
  assert.ok(Number.isNaN(parseAmount("3 parsecs")));
  assert.equal(duration(1_500_000), "1.50 ms");
  assert.equal(size(1536), "1.50 KiB");
  assert.equal(size(0), "0 B");
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
  assert.equal(rows.reduce((sum, row) => sum + row.owner.filter((owner) => owner < 0).length, 0), run.count);
  assert.equal(rows.reduce((sum, row) => sum + row.owner.filter((owner) => owner >= 0).length, 0), run.scopes - 1);
});
