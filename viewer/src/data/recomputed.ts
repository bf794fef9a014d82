/** What backward ran again, as the printed table has them: the second computation of what was checkpointed. */

import type { Run } from "./run.ts";
import { Flag } from "./schema.gen.ts";

/** What such a call is marked with. */
export const RECOMPUTED = "recomputed";
export const SAID = "run again during backward";
/** The same where only names can be read. */
export const AGAIN = "↻ ";

/** Whether backward ran a call of a module again. */
export function isRecomputed(run: Run, scope: number): boolean {
  return scope >= 0 && run.columns.get("scope_recomputed")?.[scope] === 1;
}

/** Whether a call is one that is not inside of another such call: what was checkpointed, not what is in it. */
export function isOutermost(run: Run, scope: number): boolean {
  return isRecomputed(run, scope) && !isRecomputed(run, run.scopeParent[scope]);
}

/** Whether an operation is one of forward that backward ran again, in such a call or by itself. */
export function isRepeated(run: Run, node: number): boolean {
  return (run.nodeFlags[node] & Flag.RECOMPUTE) !== 0;
}

/** How many of them there are. */
export function recomputedOperations(run: Run): number {
  let result = 0;
  for (let node = 0; node < run.count; node++) if (isRepeated(run, node)) result += 1;
  return result;
}

/** Of the modules that are called in some calls, the other calls: those that backward ran again, or those that it did not. */
export function callsOf(run: Run, scopes: Iterable<number>, again: boolean): number[] {
  if (!run.columns.has("scope_recomputed")) return [];
  const modules = new Set<number>();
  for (const scope of scopes) modules.add(run.scopeModule[scope]);
  const results: number[] = [];
  for (let scope = 0; scope < run.scopes; scope++) {
    if (modules.has(run.scopeModule[scope]) && isRecomputed(run, scope) === again) results.push(scope);
  }
  return results;
}
