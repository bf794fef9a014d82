/** A run that writes a text, token by token: what each call of the model takes, and how its cache grows. */

import { Memory } from "./memory.ts";
import type { Run } from "./run.ts";

/** One call of the model, and what the program does until the next one. */
export interface TokenStep {
  scope: number;
  tokens: number; // that it was given: all of the prompt, then one
  start: number; // its first operation, and the one after its last
  end: number;
  modelNs: number | null; // time of the operations of the model
  outsideNs: number | null; // and of those that follow until the next call
  flops: number | null;
  cacheBytes: number | null; // of the cache when the call has returned
}

export interface TokenTotals {
  prompt: number;
  written: number;
  prefillNs: number | null;
  decodeNs: number | null; // of all calls but the first, with what is between them
  decodeFlops: number | null; // of one of them, on average
  cacheBytes: number | null; // at the end
}

/** The calls in order; none where the run does not write a text. */
export function tokenSteps(run: Run): TokenStep[] {
  const calls = run.data.generation ?? [];
  const memory = calls.length ? Memory.of(run) : null;
  const cache = memory?.words.indexOf("KV cache") ?? -1;
  const sum = (name: string, from: number, to: number): number | null => {
    const metric = run.metrics.get(name);
    if (!metric?.values.length) return null;
    let total = 0;
    for (let node = from; node < to; node++) if (!metric.known || metric.known[node]) total += metric.values[node];
    return total;
  };
  return calls.map(([scope, tokens, start, end], number) => {
    const next = calls[number + 1]?.[2] ?? run.count;
    return {
      scope,
      tokens,
      start,
      end,
      modelNs: sum("time_ns", start, end),
      outsideNs: sum("time_ns", end, next),
      flops: sum("flops", start, end),
      cacheBytes: memory && cache >= 0 ? memory.live[cache][Math.min(end, run.count - 1)] : null,
    };
  });
}

export function tokenTotals(steps: TokenStep[]): TokenTotals {
  const [first, ...rest] = steps;
  const add = (parts: (number | null)[]): number | null =>
    parts.length && parts.every((part) => part !== null) ? parts.reduce((a, b) => a + b, 0) : null;
  const flops = add(rest.map((step) => step.flops));
  return {
    prompt: first.tokens,
    written: steps.length,
    prefillNs: add([first.modelNs, first.outsideNs]),
    decodeNs: add(rest.flatMap((step) => [step.modelNs, step.outsideNs])),
    decodeFlops: flops === null ? null : flops / rest.length,
    cacheBytes: steps[steps.length - 1].cacheBytes,
  };
}
