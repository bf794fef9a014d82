/** The order within each rank: by the neighbours' mean, down and up in turn, then by swapping neighbours. */

import type { Adjacent, Work } from "./layered.ts";

const LARGE = 4000; // cells from which on fewer sweeps must do
const SWAPS_UP_TO = 700;

/** Improves the order of all ranks in place; returns how many pairs of lines still cross. */
export function improve(work: Work): number {
  let fewest = countCrossings(work);
  if (!fewest) return 0;
  let best = work.ranks.map((rank) => rank.slice());
  const most = work.count > LARGE ? 4 : 16;
  let without = 0;
  for (let sweep = 0; sweep < most && fewest && without < 5; sweep++) {
    const down = sweep % 2 === 0;
    const near = down ? work.up : work.down;
    for (let at = 0; at < work.ranks.length; at++) sort(work, near, down ? at : work.ranks.length - 1 - at, sweep % 4 > 1);
    if (work.count <= SWAPS_UP_TO) swap(work);
    const crossings = countCrossings(work);
    without += 1;
    if (crossings < fewest) {
      fewest = crossings;
      best = work.ranks.map((rank) => rank.slice());
      without = 0;
    }
  }
  work.ranks = best;
  number(work);
  return fewest;
}

function number(work: Work): void {
  for (const rank of work.ranks) for (let at = 0; at < rank.length; at++) work.slot[rank[at]] = at;
}

function sort(work: Work, near: Adjacent, at: number, fromRight: boolean): void {
  const rank = work.ranks[at];
  if (rank.length < 2) return;
  const wanted = new Float64Array(rank.length);
  for (let place = 0; place < rank.length; place++) {
    const cell = rank[place];
    let sum = 0;
    for (let row = near.start[cell]; row < near.start[cell + 1]; row++) {
      sum += work.slot[near.other[row]] + 0.001 * near.theirs[row];
    }
    const count = near.start[cell + 1] - near.start[cell];
    wanted[place] = count ? sum / count : place;
  }
  const turn = fromRight ? -1 : 1;
  const order = Array.from(rank, (_, place) => place).sort((a, b) => wanted[a] - wanted[b] || turn * (a - b));
  const cells = order.map((place) => rank[place]);
  for (let place = 0; place < cells.length; place++) {
    rank[place] = cells[place];
    work.slot[cells[place]] = place;
  }
}

/** Swap neighbours wherever that takes away crossings, until nothing is left to gain. */
function swap(work: Work): void {
  for (let round = 0, better = true; better && round < 8; round++) {
    better = false;
    for (const rank of work.ranks) {
      for (let at = 0; at + 1 < rank.length; at++) {
        const [a, b] = [rank[at], rank[at + 1]];
        const gain =
          pairs(work, work.up, a, b) + pairs(work, work.down, a, b) - pairs(work, work.up, b, a) - pairs(work, work.down, b, a);
        if (gain <= 0) continue;
        rank[at] = b;
        rank[at + 1] = a;
        work.slot[a] = at + 1;
        work.slot[b] = at;
        better = true;
      }
    }
  }
}

/** How many lines of `a` cross lines of `b` while `a` stands to the left. */
function pairs(work: Work, near: Adjacent, a: number, b: number): number {
  let found = 0;
  for (let i = near.start[a]; i < near.start[a + 1]; i++) {
    const mine = work.slot[near.other[i]] + 1e-4 * near.theirs[i];
    for (let j = near.start[b]; j < near.start[b + 1]; j++) {
      if (mine > work.slot[near.other[j]] + 1e-4 * near.theirs[j]) found += 1;
    }
  }
  return found;
}

/** Pairs of lines that cross, counted rank by rank with a Fenwick tree over the lower ends. */
export function countCrossings(work: Work): number {
  let total = 0;
  const { down, slot } = work;
  let widest = 0;
  for (const rank of work.ranks) widest = Math.max(widest, rank.length);
  const tree = new Int32Array(widest + 2);
  for (const rank of work.ranks) {
    if (rank.length < 2 && down.start[rank[0] + 1] - down.start[rank[0]] < 2) continue;
    tree.fill(0);
    let seen = 0;
    for (const cell of rank) {
      const from = down.start[cell];
      const to = down.start[cell + 1];
      for (let row = from; row < to; row++) {
        let below = 0;
        for (let i = slot[down.other[row]] + 1; i > 0; i -= i & -i) below += tree[i];
        total += seen - below;
      }
      for (let row = from; row < to; row++) {
        for (let i = slot[down.other[row]] + 1; i <= widest; i += i & -i) tree[i] += 1;
      }
      seen += to - from;
    }
  }
  return total;
}
