/** The search language: words, /regular expressions/ and filters such as `time>1ms dtype:float32 op:conv* phase:backward`. */

import { FLAGS, PHASES, ROLES, type Run } from "./run.ts";
import { parseAmount } from "./units.ts";

export interface Found {
  nodes: number[];
  scopes: number[];
  total: number;
  mask: Uint8Array; // by operation
  error: string;
}

export const FIELDS: Record<string, string> = {
  op: "operator, * and ? stand for anything",
  path: "module path",
  class: "module class",
  phase: "forward, backward or optimizer",
  dtype: "element type of an output",
  shape: "shape of an output, such as 1x128x768 or *x768",
  flag: "escape, random, opaque, recompute or view",
  role: "role of an input: parameter, buffer, input…",
  file: "source file, or file:line",
  diff: "in a comparison: same, added, removed or changed",
};
const METRICS: Record<string, string> = {
  time: "time_ns", memory: "alloc_bytes", mem: "alloc_bytes", bytes: "moved_bytes", live: "live_bytes", params: "parameters",
};
const MOST = 1000;

type Test = (node: number) => boolean;

interface Parsed {
  tests: Test[];
  words: ((text: string) => boolean)[];
  error: string;
}

export function search(run: Run, text: string): Found {
  const { tests, words, error } = parse(run, text);
  const mask = new Uint8Array(run.count);
  const found: Found = { nodes: [], scopes: [], total: 0, mask, error };
  if (error || (!tests.length && !words.length)) return found;
  const moduleHit = run.tables.modules.map(([path, type]) => words.map((word) => word(path) || word(type)));
  const callHit = run.tables.calls.map((_, call) => words.map((word) => word(run.callName[call])));
  for (let node = 0; node < run.count; node++) {
    const inModule = moduleHit[run.scopeModule[run.nodeScope[node]]];
    const inCall = callHit[run.nodeCall[node]];
    if (!words.every((_, i) => inModule[i] || inCall[i])) continue;
    if (!tests.every((test) => test(node))) continue;
    mask[node] = 1;
    found.total += 1;
    if (found.nodes.length < MOST) found.nodes.push(node);
  }
  if (!tests.length) {
    for (let scope = 1; scope < run.scopes && found.scopes.length < MOST; scope++) {
      if (moduleHit[run.scopeModule[scope]].every(Boolean)) found.scopes.push(scope);
    }
  }
  return found;
}

function parse(run: Run, text: string): Parsed {
  const parsed: Parsed = { tests: [], words: [], error: "" };
  for (const token of text.match(/\/(?:[^/\\]|\\.)+\/i?|[^\s"]*"[^"]*"|\S+/g) ?? []) {
    const compare = /^(\w+)(>=|<=|>|<|=)(.+)$/.exec(token);
    const field = /^(-?)(\w+):(.*)$/.exec(token);
    if (token.length > 2 && token.startsWith("/") && /\/i?$/.test(token)) {
      try {
        const pattern = new RegExp(token.slice(1, token.lastIndexOf("/")), "i");
        parsed.words.push((word) => pattern.test(word));
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
      parsed.words.push(glob ?? ((word) => word.toLowerCase().includes(low)));
    }
  }
  return parsed;
}

function addComparison(run: Run, parsed: Parsed, [, name, sign, text]: RegExpExecArray): void {
  const metric = run.metrics.get(METRICS[name] ?? name) ?? run.metrics.get(`${name}_ns`) ?? run.metrics.get(`${name}_bytes`);
  const limit = parseAmount(text);
  if (!metric || metric.along !== "node") {
    const known = [...run.metrics.values()].filter((one) => one.along === "node").map((one) => one.name);
    parsed.error = `no metric “${name}”; there are ${known.join(", ") || "none in this run"}`;
  } else if (Number.isNaN(limit)) parsed.error = `“${text}” is no amount; write 1.5ms, 20MiB or 3e9`;
  else {
    const compare: Record<string, (a: number) => boolean> = {
      ">": (a) => a > limit, "<": (a) => a < limit, ">=": (a) => a >= limit, "<=": (a) => a <= limit, "=": (a) => a === limit,
    };
    const { known, values } = metric;
    parsed.tests.push((node) => (!known || known[node] === 1) && compare[sign](values[node]));
  }
}

function addField(run: Run, parsed: Parsed, [, not, name, raw]: RegExpExecArray): void {
  const text = raw.replaceAll('"', "");
  const match = globbed(text);
  const test = fieldTest(run, name, text, match);
  parsed.tests.push(not ? (node) => !test(node) : test);
}

function fieldTest(run: Run, name: string, text: string, match: (word: string) => boolean): Test {
  const outputs = (check: (type: number) => boolean): Test => (node) => {
    for (let row = run.outStart[node]; row < run.outStart[node + 1]; row++) if (check(run.valueType[run.outValue[row]])) return true;
    return false;
  };
  const byModule = (check: boolean[]): Test => (node) => check[run.scopeModule[run.nodeScope[node]]];
  switch (name) {
    case "op": {
      const hit = run.tables.calls.map((call, i) => match(run.callName[i]) || match(call[0]) || match(call[0].split(".")[0]));
      return (node) => hit[run.nodeCall[node]];
    }
    case "path":
      return byModule(run.tables.modules.map(([path]) => match(path) || path.startsWith(`${text}.`)));
    case "class":
      return byModule(run.tables.modules.map(([, type]) => match(type)));
    case "phase":
      return (node) => match(PHASES[run.nodePhase[node]]);
    case "dtype": {
      const hit = run.tables.types.map(([dtype]) => match(dtype));
      return outputs((type) => hit[type]);
    }
    case "shape": {
      const hit = run.tables.types.map(([, shape]) => match(shape.join("x")) || match(shape.join(",")) || match(shape.join("×")));
      return outputs((type) => hit[type]);
    }
    case "flag": {
      const bits = FLAGS.filter(([, flag]) => match(flag)).reduce((sum, [bit]) => sum | bit, 0);
      return (node) => (run.nodeFlags[node] & bits) !== 0;
    }
    case "role": {
      const roles = new Set(ROLES.flatMap((role, i) => (match(role) ? [i] : [])));
      return (node) => {
        for (let row = run.inStart[node]; row < run.inStart[node + 1]; row++) if (roles.has(run.valueRole[run.inValue[row]])) return true;
        return false;
      };
    }
    case "diff":
      return (node) => Boolean(run.difference && match(["same", "added", "removed", "changed"][run.difference[node]]));
    default: {
      const hit = run.tables.sites.map(([file, line]) => file.includes(text) || `${file}:${line}`.endsWith(text));
      return (node) => run.nodeSite[node] >= 0 && hit[run.nodeSite[node]];
    }
  }
}

/** A pattern with * and ? over a whole word, without regard to case. */
function globbed(text: string): (word: string) => boolean {
  const source = text.replace(/[.+^${}()|[\]\\]/g, "\\$&").replaceAll("*", ".*").replaceAll("?", ".");
  const pattern = new RegExp(`^${source}$`, "is");
  return (word) => pattern.test(word);
}
