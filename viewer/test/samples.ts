/** Small runs made by hand. */

import type { Column } from "../src/data/decode.ts";
import { Run } from "../src/data/run.ts";
import type { Tables } from "../src/data/tables.ts";

export interface Op {
  name: string;
  scope: number;
  reads: number[]; // operations whose first output it takes; -1: the input
  phase?: number;
  link?: number;
  shape?: number[];
  view?: boolean;
}

export interface Sample {
  modules: [path: string, type: string][]; // the first is the run
  scopes: [parent: number, module: number][];
  ops: Op[];
  folds?: Fold[];
}

/** A stretch of a call's elements that repeats, where some phases are shown; `odd`: the instances that differ. */
export interface Fold {
  phases?: number[];
  scope: number;
  start: number;
  period?: number;
  times: number;
  odd?: number[];
}

/** The columns that Python finds them as. */
export function setFolds(run: Run, folds: Fold[]): void {
  const set = (name: string, values: number[]): void => void run.columns.set(`fold_${name}`, Int32Array.from(values));
  set(
    "phases",
    folds.map(({ phases = [0] }) => phases.reduce((bits, phase) => bits | (1 << phase), 0)),
  );
  set(
    "scope",
    folds.map(({ scope }) => scope),
  );
  set(
    "start",
    folds.map(({ start }) => start),
  );
  set(
    "period",
    folds.map(({ period = 1 }) => period),
  );
  set(
    "times",
    folds.map(({ times }) => times),
  );
  set(
    "odd",
    folds.flatMap(({ odd = [] }, fold) => odd.map(() => fold)),
  );
  set(
    "odd_instance",
    folds.flatMap(({ odd = [] }) => odd),
  );
}

export function makeRun({ modules, scopes, ops, folds = [] }: Sample): Run {
  const names = [...new Set(ops.map((op) => op.name))];
  const shapes = [...new Set(["[4]", ...ops.map((op) => JSON.stringify(op.shape ?? [4]))])];
  const columns = new Map<string, Column>();
  const ints = (values: number[]): Int32Array => Int32Array.from(values);
  columns.set("node_call", ints(ops.map((op) => names.indexOf(op.name))));
  columns.set("node_scope", ints(ops.map((op) => op.scope)));
  columns.set("node_site", ints(ops.map(() => 0)));
  columns.set("node_link", ints(ops.map((op) => op.link ?? -1)));
  columns.set("node_phase", ints(ops.map((op) => op.phase ?? 0)));
  columns.set("node_flags", ints(ops.map((op) => (op.view ? 16 : 0))));
  columns.set("node_passing", ints(ops.map((op) => (op.view ? 1 : 0))));
  const roots = [0];
  for (const [i, op] of ops.entries()) roots.push(op.view ? roots[op.reads[0] + 1] : i + 1);
  columns.set("value_root", ints(roots));
  const reads = ops.flatMap((op) => op.reads.map((from) => from + 1)); // value 0 is the input
  const starts = [0];
  for (const op of ops) starts.push(starts[starts.length - 1] + op.reads.length);
  columns.set("in_start", ints(starts));
  columns.set("in_value", ints(reads));
  columns.set("in_slot", ints(ops.flatMap((op) => op.reads.map((_, i) => i))));
  columns.set("in_kind", ints(reads.map(() => 0)));
  columns.set("out_start", ints([...ops.keys(), ops.length]));
  columns.set("out_value", ints(ops.map((_, i) => i + 1)));
  columns.set("out_slot", ints(ops.map(() => 0)));
  columns.set("value_type", ints([0, ...ops.map((op) => shapes.indexOf(JSON.stringify(op.shape ?? [4])))]));
  columns.set("value_role", ints([1, ...ops.map(() => 0)]));
  columns.set("value_name", ints([0, ...ops.map(() => -1)]));
  columns.set("value_storage", ints([0, ...ops.map((_, i) => i + 1)]));
  columns.set("value_carries", ints([-1, ...ops.map(() => -1)]));
  columns.set("scope_parent", ints(scopes.map(([parent]) => parent)));
  columns.set("scope_module", ints(scopes.map(([, module]) => module)));
  columns.set("scope_call", ints(scopes.map(() => 0)));
  columns.set("scope_label", ints([...scopes.keys()]));
  columns.set("storage_bytes", ints([16, ...ops.map(() => 16)]));
  columns.set("storage_birth", ints([-1, ...ops.map((_, i) => i)]));
  columns.set("storage_death", ints([ops.length + 1, ...ops.map((_, i) => i + 2)]));
  columns.set("storage_use", ints([0, ...ops.map(() => 1)]));
  columns.set("storage_value", ints([0, ...ops.map((_, i) => i + 1)]));
  columns.set("use:0", ints(ops.map(() => 16)));
  columns.set("use:1", ints(ops.map((_, i) => (i ? 32 : 16)))); // what it makes, and what the one before it made
  columns.set("result_start", ints([0, 1]));
  columns.set("result_value", ints([ops.length]));
  columns.set("metric:time_ns", ints(ops.map((_, i) => (i + 1) * 100)));
  const tables: Tables = {
    version: 1,
    directory: [],
    uses: ["buffer or input", "activation"],
    limits: [],
    meta: { model: "Sample" },
    families: {},
    names: {},
    labels: scopes.map(([parent, module]) => labelOf(modules[module], parent < 0 ? "" : modules[scopes[parent][1]][0])),
    class_families: {},
    arguments: {},
    metrics: [{ name: "time_ns", along: "node", masked: false }],
    tables: {
      calls: names.map((name) => [`aten::${name}`, [{ tensor: 0 }], []]),
      types: shapes.map((shape) => ["float32", JSON.parse(shape) as number[], [1], "strided", false, false]),
      sites: [["model.py", 3, "forward"]],
      modules: modules.map(([path, type]) => [path, type, "module"]),
      names: ["x"],
      devices: ["cpu"],
      results: [["output", "output"]],
      sources: {},
    },
  };
  const run = new Run(tables, columns);
  setFolds(run, folds);
  return run;
}

/** As Python names it: the path below the module that it is in. */
function labelOf([path, type]: [path: string, type: string], above: string): string {
  return !path ? type : above ? path.slice(above.length + 1) : path;
}

/** A model with a stem, so many equal layers of two operations with a skip, and a head; `odd` has another shape. */
export function tower(layers: number, odd = -1): Run {
  const modules: Sample["modules"] = [
    ["", "run"],
    ["", "Net"],
    ["stem", "Linear"],
  ];
  const scopes: Sample["scopes"] = [
    [-1, 0],
    [0, 1],
    [1, 2],
  ];
  const ops: Op[] = [{ name: "addmm", scope: 2, reads: [-1] }];
  for (let layer = 0; layer < layers; layer++) {
    modules.push([`layers.${layer}`, "Block"]);
    scopes.push([1, modules.length - 1]);
    const before = ops.length - 1;
    const shape = layer === odd ? [8] : [4];
    ops.push({ name: "mm", scope: scopes.length - 1, reads: [before], shape });
    ops.push({ name: "relu", scope: scopes.length - 1, reads: [before + 1], shape });
    ops.push({ name: "add", scope: scopes.length - 1, reads: [before + 2, before] });
  }
  modules.push(["head", "Linear"]);
  scopes.push([1, modules.length - 1]);
  ops.push({ name: "addmm", scope: scopes.length - 1, reads: [ops.length - 1] });
  const folds = layers > 1 ? [{ scope: 1, start: 1, times: layers, odd: odd < 0 ? [] : [odd] }] : [];
  return makeRun({ modules, scopes, ops, folds });
}

/** Forward and backward of two layers and a head, of which backward computes the first layer again: in a call outside of the model. */
export function checkpointed(): Run {
  const modules: Sample["modules"] = [
    ["", "run"],
    ["", "Net"],
    ["layers.0", "Block"],
    ["layers.1", "Block"],
    ["head", "Linear"],
  ];
  const scopes: Sample["scopes"] = [
    [-1, 0],
    [0, 1],
    [1, 2],
    [1, 3],
    [1, 4],
    [0, 2],
  ];
  const [backward, recompute] = [1, 8];
  const run = makeRun({
    modules,
    scopes,
    ops: [
      { name: "mm", scope: 2, reads: [-1] },
      { name: "exp", scope: 3, reads: [0] },
      { name: "addmm", scope: 4, reads: [1] },
      { name: "ones_like", scope: 0, reads: [], phase: backward },
      { name: "mm", scope: 4, reads: [3], phase: backward },
      { name: "mul", scope: 3, reads: [4, 1], phase: backward },
      { name: "mm", scope: 5, reads: [-1], phase: backward }, // once more, when backward has begun in the model
      { name: "mul", scope: 2, reads: [5, 6], phase: backward },
    ],
  });
  (run.nodeFlags as Int32Array)[6] = recompute;
  run.columns.set("scope_recomputed", Uint8Array.of(0, 0, 0, 0, 0, 1));
  return run;
}

/** A run as a comparison: the status of each operation, and the times that the earlier run had. */
export function compared(run: Run, status: number[], before: number[]): Run {
  const { data, columns } = run;
  columns.set("metric:difference", Int32Array.from(status));
  columns.set(
    "known:time_ns",
    Uint8Array.from(status, (one) => (one === 2 ? 0 : 1)),
  );
  columns.set("metric:time_ns@a", Int32Array.from(before));
  columns.set(
    "known:time_ns@a",
    Uint8Array.from(status, (one) => (one === 1 ? 0 : 1)),
  );
  const metrics = [
    { name: "difference", along: "node", masked: false },
    { name: "time_ns", along: "node", masked: true },
    { name: "time_ns@a", along: "before", masked: true },
  ];
  return new Run({ ...data, metrics }, columns);
}
