/** What the page is given: the rows of a run's tables, and what is known of it besides. */

import type { Column, Entry } from "./decode.ts";

export type Plain = null | boolean | number | string | Plain[] | { [kind: string]: string | number };
export type CallRow = [op: string, args: Plain[], kwargs: [string, Plain][]];
export type TypeRow = [
  dtype: string,
  shape: number[],
  stride: number[],
  layout: string,
  conj: boolean,
  neg: boolean,
  symbols?: string[], // names of the sizes that a captured program leaves open, "" for the others
];
export type SiteRow = [file: string, line: number, fn: string];
export type ModuleRow = [path: string, type: string, kind: string];
export type ResultRow = [name: string, kind: string];

/** The facts of a run that are plain text and numbers. */
export type Meta = Record<string, Fact | Fact[] | undefined>;
type Fact = null | boolean | number | string;

export interface Tables {
  version: number;
  directory: Entry[];
  metrics: { name: string; along: string; masked: boolean }[];
  limits: string[];
  meta: Meta;
  /** By the name of an operator as it is shown. */
  families: Record<string, string>;
  /** What operators are called that have another name in torch. */
  names: Record<string, string>;
  /** What calls of modules and steps of loops are called. */
  labels: string[];
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
  /** Operations that the recording added: those that sum the outputs, and the seeds of backward. */
  added?: { summed: number[]; seeds: number[] };
  uses?: string[]; // what memory is for, in words; without any, none was recorded
  breaks?: Break[];
  /** In a comparison, what an operation of both runs read in A alone, and in B alone: operation and value in turn. */
  read_before?: number[];
  read_after?: number[];
  /** Of a run that writes a text: its calls of the model, prefill first. */
  generation?: [scope: number, tokens: number, start: number, end: number][];
  compare?: {
    a: string;
    b: string;
    counts: Record<string, number>;
    notes: string[];
    sides: Side[];
    changes: { texts: string[]; rows: number[][] };
    /** What changed by module and in words: where, what, and the first operation that it is about, or -1. */
    lines: [path: string, what: string, node: number][];
    was: [scope: number, path: string][];
  };
}

/** Where a compiled graph broke. */
export interface Break {
  reason: string;
  explanation: string;
  hints: string[];
  id: string;
  file: string;
  line: number;
  function: string;
  code: string;
  partition: number | null; // that it ended
  nodes: number | null;
  partitions?: number[]; // all that it ended
  times?: number; // how often it was met
  lost?: [op: string, count: number, file: string, line: number][]; // what ran in eager mode because of it
}

/** What one run comes to. */
export interface Side {
  name: string;
  phases: Record<string, number>;
  operations: number;
  tensors: number;
  calls: number;
  recomputed?: number; // operations of backward that belong to forward
  peak_bytes: number | null;
  totals: Record<string, [total: number | null, unknown: number]>;
  meta: Meta;
}

export interface Metric {
  name: string;
  along: string;
  values: Column;
  known: Uint8Array | null;
}
