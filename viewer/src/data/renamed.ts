/** In a comparison: what a module that has another name or place in B was called in A. */

import type { Run } from "./run.ts";

const known = new WeakMap<Run, Map<number, string>>();

/** The path in A of a call of a module; empty where it is the same. */
export function pathBefore(run: Run, scope: number): string {
  let paths = known.get(run);
  if (!paths) known.set(run, (paths = new Map(run.data.compare?.was ?? [])));
  return paths.get(scope) ?? "";
}

/** The same for several calls, below the path of what they are in: `was blocks.2`, `was blocks.1–2`. */
export function wasText(run: Run, scopes: number[], above: string, join: (labels: string[]) => string): string {
  const paths = scopes.map((scope) => pathBefore(run, scope));
  if (!paths.length || paths.includes("")) return "";
  return `was ${join(paths.map((path) => (above && path.startsWith(`${above}.`) ? path.slice(above.length + 1) : path)))}`;
}
