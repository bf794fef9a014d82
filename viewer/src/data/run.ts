/** One recorded run: the graph's columns, and the questions that views ask of it. */

import type { Column } from "./decode.ts";
import { Flag, FLAGS, Kind, METRIC_INFO, Phase, Role, SHORT_DTYPE, type ColumnName } from "./schema.gen.ts";
import type { Break, Metric, ModuleRow, Plain, Tables, TypeRow } from "./tables.ts";
import { visibleAll } from "./text.ts";

/** What an operation is marked with; that gradients were recorded is said of nearly all and told of none. */
export const MARKS = FLAGS.filter(([bit]) => bit !== Flag.GRAD_MODE);
export const DIFFERENCES = ["same", "added", "removed", "changed"];
export const ADDED = 1;
export const REMOVED = 2;
/** In a comparison, by metric: what the difference B − A is called. */
export const COMPARED: Record<string, string> = Object.fromEntries(
  Object.entries(METRIC_INFO).flatMap(([name, info]) => (info?.differenceOf ? [[info.differenceOf, name]] : [])),
);

const NONE: readonly number[] = [];
export const OUTSIDE = "outside any module";
export const WHOLE_RUN = "whole run";
const LONGEST_SIDE = 14; // letters of the name of a run in a comparison
const PARTITION = /^(?:partition|forward) (\d+)$/;

/** A stretch of a call's elements that repeats: `times` equal steps of `period` elements each, from `start` on. */
export interface Stretch {
  start: number;
  period: number;
  times: number;
  /** The instances that are not like most of the others. */
  odd: readonly number[];
  /** What a step of several elements is called. */
  label: string;
}

export function shortName(op: string): string {
  return op.slice(op.lastIndexOf("::") + (op.includes("::") ? 2 : 1)).split(".")[0];
}

export class Run {
  readonly tables: Tables["tables"];
  readonly count: number;
  readonly values: number;
  readonly scopes: number;
  readonly storages: number;
  readonly nodeCall: Column;
  readonly nodeScope: Column;
  readonly nodeSite: Column;
  readonly nodeLink: Column;
  readonly nodePhase: Column;
  readonly nodeFlags: Column;
  private readonly nodeApi: Column;
  /** Which operations are views that are looked through: worked out in Python, as roots are. */
  private readonly nodePassing: Column;
  /** For each value the one whose bytes it shows. */
  readonly roots: Column;
  readonly inStart: Column;
  readonly outStart: Column;
  readonly inValue: Column;
  readonly inSlot: Column;
  readonly inKind: Column;
  readonly outValue: Column;
  readonly producer: Int32Array;
  readonly valueType: Column;
  readonly valueRole: Column;
  readonly valueName: Column;
  readonly valueStorage: Column;
  readonly valueCarries: Column;
  readonly scopeParent: Column;
  readonly scopeModule: Column;
  readonly scopeCall: Column;
  private readonly scopeLabel: Column;
  private readonly scopeOutput: Column;
  readonly metrics = new Map<string, Metric>();
  readonly callName: string[];
  readonly opIds: Int32Array;
  /** In a comparison, for each operation: 0 the same, 1 added, 2 removed, 3 changed. */
  readonly difference: Column | null;
  private readerStart: Int32Array | null = null;
  private readerNode: Int32Array | null = null;
  private linkStart: Int32Array | null = null;
  private linkNode: Int32Array | null = null;
  private busy: Uint8Array | null = null;

  constructor(
    readonly data: Tables,
    readonly columns: Map<string, Column>,
  ) {
    visibleAll([
      data.tables,
      data.meta,
      data.limits,
      data.breaks,
      data.compare,
      data.class_families,
      data.labels,
      data.names,
    ]);
    this.tables = data.tables;
    const column = (name: ColumnName | "scope_label" | "scope_output"): Column =>
      columns.get(name) ?? new Int32Array(0);
    this.nodeCall = column("node_call");
    this.nodeScope = column("node_scope");
    this.nodeSite = column("node_site");
    this.nodeLink = column("node_link");
    this.nodePhase = column("node_phase");
    this.nodeFlags = column("node_flags");
    this.nodeApi = column("node_api");
    this.nodePassing = columns.get("node_passing") ?? new Int32Array(0);
    this.roots = columns.get("value_root") ?? new Int32Array(0);
    this.inStart = column("in_start");
    this.outStart = column("out_start");
    this.inValue = column("in_value");
    this.inSlot = column("in_slot");
    this.inKind = column("in_kind");
    this.outValue = column("out_value");
    this.valueType = column("value_type");
    this.valueRole = column("value_role");
    this.valueName = column("value_name");
    this.valueStorage = column("value_storage");
    this.valueCarries = column("value_carries");
    this.scopeParent = column("scope_parent");
    this.scopeModule = column("scope_module");
    this.scopeCall = column("scope_call");
    this.scopeLabel = column("scope_label");
    this.scopeOutput = column("scope_output");
    this.difference = columns.get("metric:difference") ?? null;
    this.count = this.nodeCall.length;
    this.values = this.valueType.length;
    this.scopes = this.scopeCall.length;
    this.storages = column("storage_bytes").length;
    this.producer = new Int32Array(this.values).fill(-1);
    for (let node = 0; node < this.count; node++) {
      for (let row = this.outStart[node]; row < this.outStart[node + 1]; row++)
        this.producer[this.outValue[row]] = node;
    }
    for (const { name, along, masked } of data.metrics) {
      const known = masked ? (columns.get(`known:${name}`) as Uint8Array) : null;
      this.metrics.set(name, { name, along, values: columns.get(`metric:${name}`) ?? new Int32Array(0), known });
    }
    if (this.difference) for (const [name, delta] of Object.entries(COMPARED)) this.subtract(name, delta);
    this.callName = data.tables.calls.map((call) => {
      const name = shortName(call[0]);
      return data.names[name] ?? name;
    });
    const ids = new Map<string, number>();
    const numberOf = (name: string): number => {
      if (!ids.has(name)) ids.set(name, ids.size);
      return ids.get(name)!;
    };
    this.opIds = Int32Array.from(this.callName, numberOf);
    this.functionIds = new Map(
      [...new Set(this.nodeApi)].filter((name) => name >= 0).map((name) => [name, numberOf(this.tables.names[name])]),
    );
    this.functionNames = [...ids.keys()];
  }

  /** Whether the recording added an operation to what the program did: to sum outputs, or to begin backward. */
  isAdded(node: number): boolean {
    this.added ??= new Set([...(this.data.added?.summed ?? []), ...(this.data.added?.seeds ?? [])]);
    return this.added.has(node);
  }

  private added: Set<number> | null = null;

  /** Whether a scope is the call of a function and not of a module. */
  isFunction(scope: number): boolean {
    return this.module(scope)[2] === "function";
  }

  /** What a call is called inside the module that it is in. */
  label(scope: number): string {
    return this.data.labels[this.scopeLabel[scope]] ?? this.module(scope)[1];
  }

  /** The value that the call of a module hands out; -1 where it hands out none. */
  handedOut(scope: number): number {
    return this.scopeOutput[scope] ?? -1;
  }

  /** Whether an operation ran in the call of a module, or in what it called. */
  ranAnything(scope: number): boolean {
    if (!this.busy) {
      this.busy = new Uint8Array(this.scopes);
      for (const own of this.nodeScope)
        for (let at = own; at >= 0 && !this.busy[at]; at = this.scopeParent[at]) this.busy[at] = 1;
    }
    return this.busy[scope] === 1;
  }

  /** B − A of a metric; what only one of them has counts in full. */
  private subtract(name: string, into: string): void {
    const after = this.metrics.get(name);
    const before = this.metrics.get(`${name}@a`);
    if (!after || !before) return;
    const values = new Float64Array(this.count);
    const known = new Uint8Array(this.count).fill(1);
    const part = (metric: Metric, node: number, absent: number): number => {
      if (this.difference![node] === absent) return 0;
      if (metric.known && !metric.known[node]) known[node] = 0;
      return metric.values[node];
    };
    for (let node = 0; node < this.count; node++) values[node] = part(after, node, REMOVED) - part(before, node, ADDED);
    this.metrics.set(into, { name: into, along: "node", values, known });
  }

  /** In a comparison: ADDED for an operation of B alone, REMOVED for one of A alone, 0 for all others. */
  sideOf(node: number): number {
    const status = this.difference?.[node] ?? 0;
    return status === ADDED || status === REMOVED ? status : 0;
  }

  /** Whether an operation is not there in the run that a metric is of: it has no figure, and none is missing. */
  isAbsent(metric: Metric, node: number): boolean {
    if (!this.difference || METRIC_INFO[metric.name]?.differenceOf || metric.name === "difference") return false;
    return this.difference[node] === (metric.along === "before" ? ADDED : REMOVED);
  }

  name(node: number): string {
    return this.callName[this.nodeCall[node]];
  }

  op(node: number): string {
    return this.tables.calls[this.nodeCall[node]][0];
  }

  module(scope: number): ModuleRow {
    return this.tables.modules[this.scopeModule[scope]];
  }

  path(scope: number): string {
    return this.module(scope)[0];
  }

  /** The module around a call of a function, by its path; of a module its own, and of the outermost its class. */
  where(scope: number): string {
    const [path, type, kind] = this.module(this.moduleAround(scope));
    return path || (kind === "run" ? OUTSIDE : type);
  }

  /** The same after a preposition; a number alone says nothing, so that its class stands before it. */
  placeText(scope: number): string {
    const [path, type] = this.module(this.moduleAround(scope));
    const name = /(^|\.)\d+$/.test(path) ? `${type} ${path}` : this.where(scope);
    return name === OUTSIDE ? name : `in ${name}`;
  }

  /** The innermost module around a call, or the call itself if it is of one. */
  moduleAround(scope: number): number {
    let at = scope;
    while (at > 0 && this.module(at)[2] === "function") at = this.scopeParent[at];
    return at;
  }

  type(value: number): TypeRow {
    return this.tables.types[this.valueType[value]];
  }

  /** How many numbers a tensor has. */
  elements(value: number): number {
    return this.type(value)[1].reduce((product, size) => product * size, 1);
  }

  typeText(value: number): string {
    return typeText(this.type(value));
  }

  valueLabel(value: number): string {
    const name = this.valueName[value];
    return name >= 0 ? this.tables.names[name] : `%${value}`;
  }

  /** What a value is called: its name, or what made it and where. */
  originText(value: number): string {
    const named = [value, this.rootOf(value)].find((other) => this.valueName[other] >= 0);
    if (named !== undefined) return this.valueLabel(named) + (named === value ? "" : " (view)");
    const maker = this.producer[this.rootOf(value)];
    if (maker < 0) return `%${value}`;
    return `the result of ${this.name(maker)} ${this.placeText(this.nodeScope[maker])}`;
  }

  /** The operation whose line an operation is due to: of a gradient what it is the gradient of, not what called backward. */
  dueTo(node: number): number {
    const forward = this.nodePhase[node] === Phase.BACKWARD ? this.nodeLink[node] : -1;
    return forward >= 0 && this.nodeSite[forward] >= 0 ? forward : node;
  }

  /** What `functionOf` counts: functions that the program called, then operators. */
  readonly functionNames: string[];
  private readonly functionIds: Map<number, number>;

  /** The function that the program called for an operation, or for what it is the gradient of; else its operator: a place in `functionNames`. */
  functionOf(node: number): number {
    const link = this.nodePhase[node] === Phase.BACKWARD ? this.nodeLink[node] : -1;
    return this.functionIds.get(this.nodeApi[link >= 0 ? link : node]) ?? this.opIds[this.nodeCall[node]];
  }

  /** By source line, what it is called: "models.py:12". */
  get lines(): string[] {
    return (this.lineTexts ??= this.tables.sites.map(([file, line]) => `${file.split(/[\\/]/).pop()}:${line}`));
  }

  private lineTexts: string[] | null = null;

  /** Whether an operation of the backward pass adds gradients of one tensor up. */
  addsGradients(node: number): boolean {
    if (this.nodePhase[node] !== Phase.BACKWARD) return false;
    if (this.nodeFlags[node] & Flag.IN_PLACE_SUM) return true;
    if (!/^add_?$/.test(this.name(node))) return false;
    if (this.nodeLink[node] < 0) return true;
    // What belongs to an operation may be a step of its formula; what comes of two operations is two parts of one gradient.
    const of = new Set<number>();
    for (let row = this.inStart[node]; row < this.inStart[node + 1]; row++) {
      const maker = this.producer[this.rootOf(this.inValue[row])];
      if (maker < 0 || this.nodePhase[maker] !== Phase.BACKWARD || this.nodeLink[maker] < 0) return false;
      of.add(this.nodeLink[maker]);
    }
    return of.size > 1;
  }

  /** The call of a partition of a compiled program, by its number; -1 if it never ran. */
  partitionScope(partition: number): number {
    const module = this.tables.modules.findIndex(
      ([path, , kind]) => kind === "compiled" && PARTITION.exec(path)?.[1] === String(partition),
    );
    for (let scope = 0; module >= 0 && scope < this.scopes; scope++)
      if (this.scopeModule[scope] === module) return scope;
    return -1;
  }

  /** The graph break that ends a partition. */
  breakOf(scope: number): Break | undefined {
    const [path, , kind] = this.module(scope);
    const number = kind === "compiled" ? PARTITION.exec(path)?.[1] : undefined;
    return number === undefined
      ? undefined
      : this.data.breaks?.find((graphBreak) =>
          [graphBreak.partition, ...(graphBreak.partitions ?? [])].includes(Number(number)),
        );
  }

  private before: Map<number, number[]> | null = null;
  private after: Map<number, number[]> | null = null;

  /** In a comparison, the values that an operation of both runs read in A alone. */
  readBefore(node: number): readonly number[] {
    return (this.before ??= byNode(this.data.read_before)).get(node) ?? NONE;
  }

  /** The same in B alone. */
  readAfter(node: number): readonly number[] {
    return (this.after ??= byNode(this.data.read_after)).get(node) ?? NONE;
  }

  /** In a comparison, what the two runs are called where there is little room. */
  get sides(): [a: string, b: string] {
    const { a, b } = this.data.compare ?? { a: "", b: "" };
    return a !== b && Math.max(a.length, b.length) <= LONGEST_SIDE ? [a, b] : ["A", "B"];
  }

  /** A metric of a node, scope or value; null where it is not known. */
  metric(name: string, row: number): number | null {
    const metric = this.metrics.get(name);
    if (!metric || (metric.known && !metric.known[row])) return null;
    return metric.values[row];
  }

  /** Whether an operation only looks at memory that is there: such ones are looked through, not drawn. */
  isView(node: number): boolean {
    return this.nodePassing[node] === 1;
  }

  /**
   * What a value is to the run; a view of a parameter is that parameter.
   *
   * All that backward makes is recorded as gradients: also views of what is older, and what it computes again.
   */
  roleOf(value: number): number {
    const [own, root] = [this.valueRole[value], this.rootOf(value)];
    if (own !== Role.GRADIENT || this.valueName[value] >= 0) return own || this.valueRole[root];
    const maker = this.producer[root];
    return maker >= 0 && this.nodeFlags[maker] & Flag.RECOMPUTE ? Role.ACTIVATION : this.valueRole[root];
  }

  /** The value whose bytes a value shows: views are looked through. */
  rootOf(value: number): number {
    return this.roots[value];
  }

  /** Of a view, the value that it was taken of, which shows the same bytes; -1 for none. */
  viewed(node: number, root: number): number {
    for (let row = this.inStart[node]; row < this.inStart[node + 1]; row++)
      if (this.inKind[row] !== Kind.SHAPE && this.roots[this.inValue[row]] === root) return this.inValue[row];
    return -1;
  }

  /** By call, the stretches of it that repeat where these phases are shown together: found in Python. */
  stretches(phases: readonly number[]): Map<number, Stretch[]> {
    const column = (name: string): ArrayLike<number> => this.columns.get(`fold_${name}`) ?? NONE;
    const [bits, scope, start] = [column("phases"), column("scope"), column("start")];
    const [period, times, odd, instance] = [column("period"), column("times"), column("odd"), column("odd_instance")];
    const label = column("label");
    const wanted = phases.reduce((sum, phase) => sum | (1 << phase), 0);
    const results = new Map<number, Stretch[]>();
    let next = 0;
    for (let row = 0; row < bits.length; row++) {
      const own: number[] = [];
      for (; next < odd.length && odd[next] === row; next++) own.push(instance[next]);
      if (bits[row] !== wanted) continue;
      const stretch = {
        start: start[row],
        period: period[row],
        times: times[row],
        odd: own,
        label: this.data.labels[label[row]] ?? "",
      };
      const known = results.get(scope[row]);
      if (known) known.push(stretch);
      else results.set(scope[row], [stretch]);
    }
    return results;
  }

  flags(node: number): string[] {
    return MARKS.filter(([bit]) => this.nodeFlags[node] & bit).map(([, name]) => name);
  }

  /** The operations that read a value, in order. */
  readers(value: number): number[] {
    this.indexReaders();
    const results: number[] = [];
    for (let row = this.readerStart![value]; row < this.readerStart![value + 1]; row++) {
      const node = this.readerNode![row];
      if (results[results.length - 1] !== node) results.push(node);
    }
    return results;
  }

  private indexReaders(): void {
    if (this.readerStart) return;
    const start = new Int32Array(this.values + 1);
    for (let row = 0; row < this.inValue.length; row++) start[this.inValue[row] + 1] += 1;
    for (let i = 0; i < this.values; i++) start[i + 1] += start[i];
    const free = start.slice();
    this.readerNode = new Int32Array(this.inValue.length);
    for (let node = 0; node < this.count; node++) {
      for (let row = this.inStart[node]; row < this.inStart[node + 1]; row++) {
        this.readerNode[free[this.inValue[row]]++] = node;
      }
    }
    this.readerStart = start;
  }

  producers(node: number): number[] {
    const results = new Set<number>();
    for (let row = this.inStart[node]; row < this.inStart[node + 1]; row++) {
      const from = this.producer[this.inValue[row]];
      if (this.inKind[row] !== Kind.SHAPE && from >= 0) results.add(from);
    }
    return [...results].sort((a, b) => a - b);
  }

  users(node: number): number[] {
    const results = new Set<number>();
    for (let row = this.outStart[node]; row < this.outStart[node + 1]; row++) {
      for (const reader of this.readers(this.outValue[row])) if (reader !== node) results.add(reader);
    }
    return [...results].sort((a, b) => a - b);
  }

  outputs(node: number): number[] {
    return Array.from(this.outValue.subarray(this.outStart[node], this.outStart[node + 1]));
  }

  /** The backward operations that belong to a forward operation. */
  linked(node: number): number[] {
    if (!this.linkStart) {
      const start = new Int32Array(this.count + 1);
      for (let i = 0; i < this.count; i++) if (this.nodeLink[i] >= 0) start[this.nodeLink[i] + 1] += 1;
      for (let i = 0; i < this.count; i++) start[i + 1] += start[i];
      const free = start.slice();
      this.linkNode = new Int32Array(start[this.count]);
      for (let i = 0; i < this.count; i++) if (this.nodeLink[i] >= 0) this.linkNode[free[this.nodeLink[i]]++] = i;
      this.linkStart = start;
    }
    return Array.from(this.linkNode!.subarray(this.linkStart[node], this.linkStart[node + 1]));
  }

  /** The arguments of an operation by name: text, or the value that stands in their place. */
  arguments(node: number): { name: string; text: string; values: number[] }[] {
    const [op, args, kwargs] = this.tables.calls[this.nodeCall[node]];
    const slots = new Map<number, number>();
    for (let row = this.inStart[node]; row < this.inStart[node + 1]; row++) {
      if (this.inSlot[row] >= 0) slots.set(this.inSlot[row], this.inValue[row]);
    }
    const names = this.data.arguments[op] ?? [];
    const all: [string, Plain][] = [...args.map((arg, i): [string, Plain] => [names[i] ?? `arg${i}`, arg]), ...kwargs];
    return all.map(([name, arg]) => {
      const values: number[] = [];
      return { name, text: argumentText(arg, slots, values), values };
    });
  }
}

/** Pairs of an operation and a value, in turn, by operation. */
function byNode(pairs: readonly number[] = []): Map<number, number[]> {
  const results = new Map<number, number[]>();
  for (let i = 0; i < pairs.length; i += 2) {
    const list = results.get(pairs[i]);
    if (list) list.push(pairs[i + 1]);
    else results.set(pairs[i], [pairs[i + 1]]);
  }
  return results;
}

export function typeText(row: TypeRow): string {
  return `${SHORT_DTYPE[row[0]] ?? row[0]}[${sizes(row).join(", ")}]`;
}

function sizes(row: TypeRow): (string | number)[] {
  return row[1].map((size, index) => row[6]?.[index] || size);
}

export function shapeText(row: TypeRow): string {
  return row[1].length ? sizes(row).join("×") : "scalar";
}

function argumentText(arg: Plain, slots: Map<number, number>, values: number[]): string {
  if (arg === null) return "None";
  if (arg === true) return "True";
  if (arg === false) return "False";
  if (Array.isArray(arg)) return `[${arg.map((part) => argumentText(part, slots, values)).join(", ")}]`;
  if (typeof arg === "object") {
    const [kind, text] = Object.entries(arg)[0] ?? ["", ""];
    if (kind !== "tensor") return String(text);
    const value = slots.get(Number(text));
    if (value === undefined) return "%?";
    values.push(value);
    return `%${value}`;
  }
  return typeof arg === "string" ? JSON.stringify(arg) : String(arg);
}
