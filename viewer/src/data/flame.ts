/** Bars of the flame chart: for each depth of the module tree, the spans of time in which a module was running. */

import type { Run } from "./run.ts";

export interface Bars {
  start: Float64Array;
  end: Float64Array;
  owner: Int32Array; // a call, or ~operation
}

export interface Flame {
  rows: Bars[];
  from: number;
  to: number;
  isTime: boolean;
}

export function flame(run: Run): Flame {
  const starts = run.metrics.get("start_ns");
  const times = run.metrics.get("time_ns");
  const isTime = Boolean(starts && times);
  const begin = (node: number): number => (isTime ? starts!.values[node] : node);
  const finish = (node: number): number => (isTime ? starts!.values[node] + times!.values[node] : node + 1);
  const rows: { start: number[]; end: number[]; owner: number[] }[] = [];
  const add = (depth: number, owner: number, start: number, end: number): void => {
    rows[depth] ??= { start: [], end: [], owner: [] };
    rows[depth].start.push(start);
    rows[depth].end.push(end);
    rows[depth].owner.push(owner);
  };
  const chains = new Map<number, number[]>();
  let open: { scope: number; start: number }[] = [];
  let last = 0;
  let phase = -1;
  let from = Infinity;
  let to = 0;
  for (let node = 0; node < run.count; node++) {
    const chain = chainOf(run, run.nodeScope[node], chains);
    let same = 0;
    while (
      same < open.length &&
      same < chain.length &&
      open[same].scope === chain[same] &&
      run.nodePhase[node] === phase
    )
      same += 1;
    for (let depth = open.length - 1; depth >= same; depth--) add(depth, open[depth].scope, open[depth].start, last);
    open = open.slice(0, same);
    const start = begin(node);
    for (let depth = same; depth < chain.length; depth++) open.push({ scope: chain[depth], start });
    last = finish(node);
    phase = run.nodePhase[node];
    add(chain.length, ~node, start, last);
    from = Math.min(from, start);
    to = Math.max(to, last);
  }
  for (let depth = open.length - 1; depth >= 0; depth--) add(depth, open[depth].scope, open[depth].start, last);
  return { rows: rows.map(pack), from: from === Infinity ? 0 : from, to, isTime };
}

function chainOf(run: Run, scope: number, known: Map<number, number[]>): number[] {
  let chain = known.get(scope);
  if (chain) return chain;
  chain = [];
  for (let at = scope; at > 0; at = run.scopeParent[at]) chain.push(at);
  chain.reverse();
  if (known.size < 200_000) known.set(scope, chain);
  return chain;
}

function pack(row: { start: number[]; end: number[]; owner: number[] }): Bars {
  const order = row.start.map((_, i) => i).sort((a, b) => row.start[a] - row.start[b]);
  return {
    start: Float64Array.from(order, (i) => row.start[i]),
    end: Float64Array.from(order, (i) => row.end[i]),
    owner: Int32Array.from(order, (i) => row.owner[i]),
  };
}
