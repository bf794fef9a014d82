/** The search language: words, /regular expressions/ and filters such as `time>1ms dtype:float32 op:conv* phase:backward`. */

import { FIELDS, fieldTest, globbed, type Test } from "./fields.ts";
import { AGAIN, isOutermost, isRepeated, RECOMPUTED } from "./recomputed.ts";
import type { Run } from "./run.ts";
import type { Metric } from "./tables.ts";
import { Phase } from "./schema.gen.ts";
import { parseAmount } from "./units.ts";

export interface Found {
  nodes: number[];
  scopes: number[];
  total: number;
  mask: Uint8Array; // by operation
  error: string;
}

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

/** Looks into names; `again`: what backward ran again is meant as well. */
interface Word {
  in: (text: string) => boolean;
  again: boolean;
}

interface Parsed {
  tests: Test[];
  words: Word[];
  error: string;
}

export function search(run: Run, text: string): Found {
  const { tests, words, error } = parse(run, text);
  const mask = new Uint8Array(run.count);
  const result: Found = { nodes: [], scopes: [], total: 0, mask, error };
  if (error || (!tests.length && !words.length)) return result;
  const moduleHit = run.tables.modules.map(([path, type]) => words.map((word) => word.in(path) || word.in(type)));
  const callHit = run.tables.calls.map((_, call) => words.map((word) => word.in(run.callName[call])));
  const views: number[] = [];
  for (let node = 0; node < run.count; node++) {
    const inModule = moduleHit[run.scopeModule[run.nodeScope[node]]];
    const inCall = callHit[run.nodeCall[node]];
    if (!words.every(({ again }, i) => inModule[i] || inCall[i] || (again && isRepeated(run, node)))) continue;
    if (!tests.every((test) => test.node(node))) continue;
    mask[node] = 1;
    result.total += 1;
    const list = run.isView(node) ? views : result.nodes;
    if (list.length < MOST) list.push(node);
  }
  result.nodes.push(...views.slice(0, MOST - result.nodes.length)); // what is not drawn comes last
  if (tests.every((test) => test.scope)) {
    for (let scope = 1; scope < run.scopes && result.scopes.length < MOST; scope++) {
      const inModule = moduleHit[run.scopeModule[scope]];
      if (
        words.every(({ again }, i) => inModule[i] || (again && isOutermost(run, scope))) &&
        tests.every((test) => test.scope!(scope))
      )
        result.scopes.push(scope);
    }
  }
  return result;
}

function parse(run: Run, text: string): Parsed {
  const parsed: Parsed = { tests: [], words: [], error: "" };
  for (const token of text.match(/\/(?:[^/\\]|\\.)+\/i?|-?\w+:\[[^\]]*\]?|[^\s"]*"[^"]*"|\S+/g) ?? []) {
    const compare = /^(\w+)(>=|<=|>|<|=)(.*)$/.exec(token);
    const field = /^(-?)(\w+):(.*)$/.exec(token);
    if (token.length > 2 && token.startsWith("/") && /\/i?$/.test(token)) {
      try {
        const pattern = new RegExp(token.slice(1, token.lastIndexOf("/")), "i");
        parsed.words.push({ in: (name) => pattern.test(name), again: false });
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
      const again =
        low === AGAIN.trim() || (glob ? glob(RECOMPUTED) : low.length >= LEAST && RECOMPUTED.startsWith(low));
      parsed.words.push({ in: glob ?? ((name) => name.toLowerCase().includes(low)), again });
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
