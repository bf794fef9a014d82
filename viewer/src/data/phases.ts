/** The stretches of a run that belong to one phase. */

import type { Run } from "./run.ts";
import { PHASES } from "./schema.gen.ts";

export interface Stretch {
  from: number; // the first operation
  to: number; // the one after the last
  name: string;
}

export function phaseStretches(run: Run): Stretch[] {
  const results: Stretch[] = [];
  for (let node = 0; node < run.count; node++) {
    const name = PHASES[run.nodePhase[node]];
    const last = results[results.length - 1];
    if (last?.name === name) last.to = node + 1;
    else results.push({ from: node, to: node + 1, name });
  }
  return results;
}

/** A round number at or above a step. */
export function nice(step: number): number {
  const power = 10 ** Math.floor(Math.log10(Math.max(step, 1e-9)));
  for (const factor of [1, 2, 5, 10]) if (power * factor >= step) return power * factor;
  return power * 10;
}
