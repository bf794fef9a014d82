/** The search language: words, /regular expressions/ and filters such as `time>1ms dtype:float32 op:conv* phase:backward`. */

import { FIELDS, fieldTest, globbed, type Test } from "./fields.ts";
import { AGAIN, isOutermost, isRepeated, RECOMPUTED } from "./recomputed.ts";
import type { Run } from "./run.ts";
import type { Metric } from "./tables.ts";
import { Phase } from "./schema.gen.ts";
import { parseAmount } from "./units.ts";

export interface Found {
  /** Operations and calls of modules, best first; views come last. */
  nodes: number[];
  scopes: number[];
  /** How well each of them fits: lower is better, and the two lists can be merged by it. */
  nodeRank: number[];
  scopeRank: number[];
  total: number;
  /** By operation. */
  mask: Uint8Array;
  /** What is to be marked in the names that are shown; null where nothing can be. */
  marks: RegExp | null;
  error: string;
}

/** How a word fits a name, best first: a module by the last part of its path, then any part of it; an operator; a class. */
const Rank = {
  NAME: 0,
  NAME_START: 1,
  NAME_PART: 2,
  PATH: 3,
  OP: 4,
  OP_START: 5,
  OP_PART: 6,
  CLASS: 7,
  INSIDE: 8,
} as const;
const VIEW_RANK = 10;

/** What a person calls a metric. */
const METRICS: Record<string, string> = {
  time: "time_ns",
  self: "time_ns",
  memory: "alloc_bytes",
  mem: "alloc_bytes",
  bytes: "moved_bytes",
  live: "live_bytes",
  freed: "free_bytes",
  params: "parameters",
};
/** Metrics of one phase alone, by what a person calls them. */
const OF_PHASE: Record<string, [metric: string, phase: number]> = {
  activation_norm: ["norm", Phase.FORWARD],
  activation: ["norm", Phase.FORWARD],
  gradient_norm: ["norm", Phase.BACKWARD],
  gradient: ["norm", Phase.BACKWARD],
  grad: ["norm", Phase.BACKWARD],
  grad_norm: ["norm", Phase.BACKWARD],
};
const UNTOLD = new Set(["difference", "start_ns", "bound", "units"]);
const MOST = 1000;
const LEAST = 5; // letters of the word for what backward ran again, for it to be meant

/** Looks into names; `again`: what backward ran again is meant as well; `text`: as a pattern of the letters that it matches. */
interface Word {
  in: (text: string) => boolean;
  again: boolean;
  text: string;
  parts: number; // of a path: the last so many are compared with it
}

interface Parsed {
  tests: Test[];
  words: Word[];
  error: string;
}

export function search(run: Run, text: string): Found {
  const { tests, words, error } = parse(run, text);
  const mask = new Uint8Array(run.count);
  const result: Found = {
    nodes: [],
    scopes: [],
    nodeRank: [],
    scopeRank: [],
    total: 0,
    mask,
    marks: marksOf(words),
    error,
  };
  if (error || (!tests.length && !words.length)) return result;
  const moduleRanks = run.tables.modules.map(([path, type]) => words.map((word) => moduleRank(word, path, type)));
  const callRanks = run.tables.calls.map((_, call) => words.map((word) => opRank(word, run.callName[call])));
  const hits = new Ranked();
  for (let node = 0; node < run.count; node++) {
    const inModule = moduleRanks[run.scopeModule[run.nodeScope[node]]];
    const inCall = callRanks[run.nodeCall[node]];
    let rank = 0;
    for (let i = 0; i < words.length; i++) {
      const again = words[i].again && isRepeated(run, node);
      // An operation that is named by its module alone comes after the module itself.
      const fit = Math.min(inCall[i], inModule[i] < Infinity || again ? Rank.INSIDE : Infinity);
      rank = Math.max(rank, fit);
    }
    if (rank === Infinity || !tests.every((test) => test.node(node))) continue;
    mask[node] = 1;
    result.total += 1;
    hits.add(node, run.isView(node) ? rank + VIEW_RANK : rank);
  }
  [result.nodes, result.nodeRank] = hits.best(MOST);
  if (tests.every((test) => test.scope)) {
    const calls = new Ranked();
    for (let scope = 1; scope < run.scopes; scope++) {
      const inModule = moduleRanks[run.scopeModule[scope]];
      let rank = 0;
      for (let i = 0; i < words.length; i++)
        rank = Math.max(
          rank,
          words[i].again && isOutermost(run, scope) ? Math.min(inModule[i], Rank.PATH) : inModule[i],
        );
      if (rank < Infinity && tests.every((test) => test.scope!(scope))) calls.add(scope, rank);
    }
    [result.scopes, result.scopeRank] = calls.best(MOST);
    // Of calls that fit alike, those with nothing to go to come last.
    const rows = result.scopes.map((scope, i) => ({ scope, rank: result.scopeRank[i], idle: !run.ranAnything(scope) }));
    rows.sort((a, b) => a.rank - b.rank || Number(a.idle) - Number(b.idle));
    result.scopes = rows.map(({ scope }) => scope);
  }
  return result;
}

/** Hits in the order of the run, by how well they fit. */
class Ranked {
  private readonly byRank: number[][] = [];

  add(hit: number, rank: number): void {
    (this.byRank[rank] ??= []).push(hit);
  }

  best(most: number): [hits: number[], ranks: number[]] {
    const hits: number[] = [];
    const ranks: number[] = [];
    this.byRank.forEach((list, rank) => {
      for (const hit of list.slice(0, most - hits.length)) {
        hits.push(hit);
        ranks.push(rank);
      }
    });
    return [hits, ranks];
  }
}

function moduleRank(word: Word, path: string, type: string): number {
  const name = path.split(".").slice(-word.parts).join(".");
  if (word.in(name)) return fit(word, name, Rank.NAME);
  return word.in(path) ? Rank.PATH : word.in(type) ? Rank.CLASS : Infinity;
}

function opRank(word: Word, name: string): number {
  return word.in(name) ? fit(word, name, Rank.OP) : Infinity;
}

/** The whole name, its beginning, or a part of it: the rank given, and the next two. */
function fit(word: Word, name: string, whole: number): number {
  if (new RegExp(`^(?:${word.text})$`, "is").test(name)) return whole;
  return new RegExp(`^(?:${word.text})`, "is").test(name) ? whole + 1 : whole + 2;
}

function marksOf(words: Word[]): RegExp | null {
  const texts = words.map((word) => word.text).filter((text) => text && text !== ".*");
  return texts.length ? new RegExp(texts.join("|"), "gi") : null;
}

function parse(run: Run, text: string): Parsed {
  const parsed: Parsed = { tests: [], words: [], error: "" };
  for (const token of text.match(/\/(?:[^/\\]|\\.)+\/i?|-?\w+:\[[^\]]*\]?|[^\s"]*"[^"]*"|\S+/g) ?? []) {
    const compare = /^(\w+)(>=|<=|>|<|=)(.*)$/.exec(token);
    const field = /^(-?)(\w+):(.*)$/.exec(token);
    if (token.length > 2 && token.startsWith("/") && /\/i?$/.test(token)) {
      try {
        const pattern = new RegExp(token.slice(1, token.lastIndexOf("/")), "i");
        parsed.words.push({ in: (name) => pattern.test(name), again: false, text: pattern.source, parts: 1 });
      } catch {
        parsed.error = `${token} is no regular expression`;
      }
    } else if (compare) addComparison(run, parsed, compare);
    else if (field && field[2] in FIELDS) addField(run, parsed, field);
    else if (field && !text.includes("::")) {
      parsed.error = `no filter “${field[2]}”; there are ${Object.keys(FIELDS).join(", ")} and metrics such as time>1ms`;
    } else {
      const low = token.replaceAll('"', "").toLowerCase();
      const glob = /[*?]/.test(low) ? globbed(low) : null;
      const pattern = escaped(low).replaceAll("\\*", ".*").replaceAll("\\?", ".");
      const again =
        low === AGAIN.trim() || (glob ? glob(RECOMPUTED) : low.length >= LEAST && RECOMPUTED.startsWith(low));
      parsed.words.push({
        in: glob ?? ((name) => name.toLowerCase().includes(low)),
        again,
        text: pattern,
        parts: low.split(".").length,
      });
    }
  }
  return parsed;
}

/** The metrics of operations by the names that a person types. */
export function metricNames(run: Run): string[] {
  const typed = new Map(
    Object.entries(METRICS)
      .filter(([name]) => name !== "mem" && name !== "self")
      .map(([name, metric]) => [metric, name]),
  );
  return [...run.metrics.values()]
    .filter((metric) => metric.along === "node" && !UNTOLD.has(metric.name))
    .flatMap((metric) =>
      metric.name === "norm"
        ? ["gradient_norm", "activation_norm"]
        : (typed.get(metric.name) ?? metric.name.replace(/_(ns|bytes)$/, "")),
    );
}

function metricOf(run: Run, name: string): Metric | undefined {
  const metric =
    run.metrics.get(OF_PHASE[name]?.[0] ?? METRICS[name] ?? name) ??
    run.metrics.get(`${name}_ns`) ??
    run.metrics.get(`${name}_bytes`);
  return metric?.along === "node" ? metric : undefined;
}

function addComparison(run: Run, parsed: Parsed, [, name, sign, text]: RegExpExecArray): void {
  const metric = metricOf(run, name);
  const limit = parseAmount(text);
  if (!metric) parsed.error = `no metric “${name}”; there are ${metricNames(run).join(", ") || "none in this run"}`;
  else if (!text) parsed.error = `${name}${sign} what? Write ${example(metric, name, sign)}`;
  else if (Number.isNaN(limit)) parsed.error = `“${text}” is no amount; write ${example(metric, name, sign)}`;
  else if (metric.name.endsWith("_ns") && limit !== 0 && !/[a-zµ]$/i.test(text))
    parsed.error = `${text} of what? Write ${name}${sign}${text}ns, ${text}us, ${text}ms or ${text}s`;
  else {
    const compare: Record<string, (a: number) => boolean> = {
      ">": (a) => a > limit,
      "<": (a) => a < limit,
      ">=": (a) => a >= limit,
      "<=": (a) => a <= limit,
      "=": (a) => a === limit,
    };
    const { known, values } = metric;
    const phase = OF_PHASE[name]?.[1] ?? -1;
    parsed.tests.push({
      node: (node) =>
        (phase < 0 || run.nodePhase[node] === phase) && (!known || known[node] === 1) && compare[sign](values[node]),
    });
  }
}

function example(metric: Metric, name: string, sign: string): string {
  return `${name}${sign}${metric.name.endsWith("_ns") ? "1.5ms" : metric.name.endsWith("_bytes") ? "20MiB" : "3e9 or 3G"}`;
}

function addField(run: Run, parsed: Parsed, [, not, name, raw]: RegExpExecArray): void {
  const test = fieldTest(run, name, raw.replaceAll('"', ""));
  if (typeof test === "string") parsed.error = test;
  else parsed.tests.push(not ? { node: (node) => !test.node(node) } : test);
}

function escaped(text: string): string {
  return text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
}
