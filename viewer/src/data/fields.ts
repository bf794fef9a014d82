/** The filters of the search: what each takes, and which operations it lets through. */

import { isOutermost, RECOMPUTED } from "./recomputed.ts";
import { DIFFERENCES, MARKS, type Run } from "./run.ts";
import { PHASES, ROLES, SHORT_DTYPE } from "./schema.gen.ts";

/** Whether an operation passes; for a filter of modules also whether the call of a module is itself what was asked for. */
export interface Test {
  node: (node: number) => boolean;
  scope?: (scope: number) => boolean;
}

export const FIELDS: Record<string, string> = {
  op: "operator or function that it is called by, * and ? stand for anything",
  path: "module path or the end of one, with all that is inside",
  class: "module class, with all that is inside",
  phase: "forward, backward or optimizer",
  dtype: "element type of an output: float32 or f32",
  shape: "shape of an output, such as [1, 128, 768], 1x128x768 or *x768",
  flag: "escape, random, opaque, recomputed or view",
  role: "role of an input: parameter, buffer, input…",
  file: "source file, or file:line",
  diff: "in a comparison: same, added, removed or changed",
};

/** The test of a filter, or what is wrong with it. */
export function fieldTest(run: Run, name: string, text: string): Test | string {
  if (!text) return `${name}: what? It takes the ${FIELDS[name]}`;
  const match = globbed(text);
  switch (name) {
    case "op": {
      const hit = run.tables.calls.map(
        (call, i) => match(run.callName[i]) || match(call[0]) || match(call[0].split(".")[0]),
      );
      const called = run.functionNames.map(match);
      return { node: (node) => hit[run.nodeCall[node]] || called[run.functionOf(node)] };
    }
    case "path": {
      const below = globbed(`*.${text}`); // the end of a path will do
      return (
        within(run, ([path]) => match(path) || below(path)) ??
        `no module at “${text}”; * stands for anything, as in *${text}*`
      );
    }
    case "class":
      return (
        within(run, ([, type]) => match(type)) ?? `no module of class “${text}”; * stands for anything, as in *${text}*`
      );
    case "phase":
      return oneOf(name, text, PHASES, match) ?? { node: (node) => match(PHASES[run.nodePhase[node]]) };
    case "dtype": {
      const known = [
        ...Object.keys(SHORT_DTYPE),
        ...Object.values(SHORT_DTYPE),
        "bool",
        ...run.tables.types.map(([dtype]) => dtype),
      ];
      const hit = run.tables.types.map(([dtype]) => match(dtype) || match(SHORT_DTYPE[dtype] ?? dtype));
      return oneOf(name, text, [...new Set(known)], match) ?? outputs(run, (type) => hit[type]);
    }
    case "shape": {
      const plain = globbed(text.replace(/^\[|\]$/g, "").replace(/\s*[,x×]\s*/gi, "x"));
      const hit = run.tables.types.map(([, shape]) => plain(shape.join("x")));
      return outputs(run, (type) => hit[type]);
    }
    case "flag": {
      // In data it is called after what was done, on the page after what it is marked with.
      const again = match("recompute") || match(RECOMPUTED);
      const bits = MARKS.filter(([, flag]) => match(flag) || (again && flag === "recompute")).reduce(
        (sum, [bit]) => sum | bit,
        0,
      );
      const wrong = oneOf(name, text, [...MARKS.map(([, flag]) => flag), RECOMPUTED], match);
      return (
        wrong ?? {
          node: (node) => (run.nodeFlags[node] & bits) !== 0,
          ...(again ? { scope: (scope: number) => isOutermost(run, scope) } : {}),
        }
      );
    }
    case "role":
      return (
        oneOf(name, text, ROLES, match) ?? inputs(run, new Set(ROLES.flatMap((role, i) => (match(role) ? [i] : []))))
      );
    case "diff":
      if (!run.difference) return "diff: is for a page that compares two runs";
      return oneOf(name, text, DIFFERENCES, match) ?? { node: (node) => match(DIFFERENCES[run.difference![node]]) };
    default: {
      const hit = run.tables.sites.map(([file, line]) => file.includes(text) || `${file}:${line}`.endsWith(text));
      // What backward does for a line belongs to that line.
      return { node: (node) => hit[run.nodeSite[run.dueTo(node)]] };
    }
  }
}

/** What is wrong where none of the things there are is meant. */
function oneOf(name: string, text: string, known: string[], match: (word: string) => boolean): string | null {
  return known.some(match) ? null : `no ${name} “${text}”; there are ${known.slice(0, 12).join(", ")}`;
}

/** Operations of a call of such a module, and of all calls inside of it. */
function within(run: Run, match: (module: [path: string, type: string, kind: string]) => boolean): Test | null {
  const module = run.tables.modules.map(match);
  if (!module.includes(true)) return null;
  const inside = new Uint8Array(run.scopes);
  for (let scope = 0; scope < run.scopes; scope++) {
    const parent = run.scopeParent[scope];
    inside[scope] = module[run.scopeModule[scope]] || (parent >= 0 && inside[parent]) ? 1 : 0;
  }
  return { node: (node) => inside[run.nodeScope[node]] === 1, scope: (scope) => module[run.scopeModule[scope]] };
}

function outputs(run: Run, check: (type: number) => boolean): Test {
  return {
    node: (node) => {
      for (let row = run.outStart[node]; row < run.outStart[node + 1]; row++)
        if (check(run.valueType[run.outValue[row]])) return true;
      return false;
    },
  };
}

function inputs(run: Run, roles: Set<number>): Test {
  return {
    node: (node) => {
      for (let row = run.inStart[node]; row < run.inStart[node + 1]; row++)
        if (roles.has(run.roleOf(run.inValue[row]))) return true;
      return false;
    },
  };
}

/** A pattern with * and ? over a whole word, without regard to case. */
export function globbed(text: string): (word: string) => boolean {
  const source = text
    .replace(/[.+^${}()|[\]\\]/g, "\\$&")
    .replaceAll("*", ".*")
    .replaceAll("?", ".");
  const pattern = new RegExp(`^${source}$`, "is");
  return (word) => pattern.test(word);
}
