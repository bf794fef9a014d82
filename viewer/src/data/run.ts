/** One recorded run: the graph's columns, its tables, and the questions that views ask of it. */

import type { Column, Entry } from "./decode.ts";

export type Plain = null | boolean | number | string | Plain[] | { [kind: string]: string | number };
export type CallRow = [op: string, args: Plain[], kwargs: [string, Plain][]];
export type TypeRow = [dtype: string, shape: number[], stride: number[], layout: string, conj: boolean, neg: boolean];
export type SiteRow = [file: string, line: number, fn: string];
export type ModuleRow = [path: string, type: string, kind: string];
export type ResultRow = [name: string, kind: string];

export interface Tables {
  version: number;
  directory: Entry[];
  metrics: { name: string; along: string; masked: boolean }[];
  limits: string[];
  meta: Record<string, unknown>;
  families: Record<string, string>;
  class_families: Record<string, string>;
  arguments: Record<string, string[]>;
  tables: {
    calls: CallRow[];
    types: TypeRow[];
    sites: SiteRow[];
    modules: ModuleRow[];
    names: string[];
    devices: string[];
    results: ResultRow[];
    sources: Record<string, Record<string, string>>;
  };
  compare?: { a: string; b: string; counts: Record<string, number>; notes: string[] };
}

export interface Metric {
  name: string;
  along: string;
  values: Column;
  known: Uint8Array | null;
}

export const PHASES = ["forward", "backward", "optimizer"];
export const ROLES = ["activation", "input", "parameter", "buffer", "constant", "gradient", "optimizer state", "output"];
export const KINDS = ["data", "whole", "shape"];
export const FLAGS: [number, string][] = [
  [1, "escape"], [2, "random"], [4, "opaque"], [8, "recompute"], [16, "view"],
];
export const VIEW = 16;
export const SHAPE = 2;
export const PARAMETER = 2;
export const DIFFERENCES = ["same", "added", "removed", "changed"];

const SHORT: Record<string, string> = {
  float32: "f32", float64: "f64", float16: "f16", bfloat16: "bf16", int64: "i64", int32: "i32", int16: "i16",
  int8: "i8", uint8: "u8", complex64: "c64", complex128: "c128",
};

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
  readonly metrics = new Map<string, Metric>();
  readonly callName: string[];
  readonly opIds: Int32Array;
  /** In a comparison, for each operation: 0 the same, 1 added, 2 removed, 3 changed. */
  readonly difference: Column | null;
  private readerStart: Int32Array | null = null;
  private readerNode: Int32Array | null = null;
  private linkStart: Int32Array | null = null;
  private linkNode: Int32Array | null = null;

  constructor(readonly data: Tables, readonly columns: Map<string, Column>) {
    this.tables = data.tables;
    const column = (name: string): Column => columns.get(name) ?? new Int32Array(0);
    this.nodeCall = column("node_call");
    this.nodeScope = column("node_scope");
    this.nodeSite = column("node_site");
    this.nodeLink = column("node_link");
    this.nodePhase = column("node_phase");
    this.nodeFlags = column("node_flags");
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
    this.difference = columns.get("metric:difference") ?? null;
    this.count = this.nodeCall.length;
    this.values = this.valueType.length;
    this.scopes = this.scopeCall.length;
    this.storages = column("storage_bytes").length;
    this.producer = new Int32Array(this.values).fill(-1);
    for (let node = 0; node < this.count; node++) {
      for (let row = this.outStart[node]; row < this.outStart[node + 1]; row++) this.producer[this.outValue[row]] = node;
    }
    for (const { name, along, masked } of data.metrics) {
      const known = masked ? (columns.get(`known:${name}`) as Uint8Array) : null;
      this.metrics.set(name, { name, along, values: column(`metric:${name}`), known });
    }
    this.callName = data.tables.calls.map((call) => shortName(call[0]));
    const ids = new Map<string, number>();
    this.opIds = Int32Array.from(this.callName, (name) => {
      if (!ids.has(name)) ids.set(name, ids.size);
      return ids.get(name)!;
    });
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

  type(value: number): TypeRow {
    return this.tables.types[this.valueType[value]];
  }

  typeText(value: number): string {
    return typeText(this.type(value));
  }

  valueLabel(value: number): string {
    const name = this.valueName[value];
    return name >= 0 ? this.tables.names[name] : `%${value}`;
  }

  /** A metric of a node, scope or value; null where it is not known. */
  metric(name: string, row: number): number | null {
    const metric = this.metrics.get(name);
    if (!metric || (metric.known && !metric.known[row])) return null;
    return metric.values[row];
  }

  flags(node: number): string[] {
    return FLAGS.filter(([bit]) => this.nodeFlags[node] & bit).map(([, name]) => name);
  }

  /** The operations that read a value, in order. */
  readers(value: number): number[] {
    this.indexReaders();
    const found: number[] = [];
    for (let row = this.readerStart![value]; row < this.readerStart![value + 1]; row++) {
      const node = this.readerNode![row];
      if (found[found.length - 1] !== node) found.push(node);
    }
    return found;
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
    const found = new Set<number>();
    for (let row = this.inStart[node]; row < this.inStart[node + 1]; row++) {
      const from = this.producer[this.inValue[row]];
      if (this.inKind[row] !== SHAPE && from >= 0) found.add(from);
    }
    return [...found].sort((a, b) => a - b);
  }

  users(node: number): number[] {
    const found = new Set<number>();
    for (let row = this.outStart[node]; row < this.outStart[node + 1]; row++) {
      for (const reader of this.readers(this.outValue[row])) if (reader !== node) found.add(reader);
    }
    return [...found].sort((a, b) => a - b);
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

export function typeText(row: TypeRow): string {
  return `${SHORT[row[0]] ?? row[0]}[${row[1].join(", ")}]`;
}

export function shapeText(row: TypeRow): string {
  return row[1].length ? row[1].join("×") : "scalar";
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
