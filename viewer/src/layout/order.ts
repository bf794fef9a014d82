/** The order within each rank: by the neighbours' mean, down and up in turn, then by swapping neighbours. */

import type { Adjacent, Work } from "./layered.ts";

const WORK = 12_000; // cells times sweeps that are worth their time
const SWAPS_EACH_TIME = 350; // cells up to which neighbours are swapped after each sweep
const SWAPS_UP_TO = 1500;
const BOTH_WAYS_UP_TO = 450;
const SHORT = 64;

/** Improves the order of all ranks in place; returns how many pairs of lines still cross. */
export function improve(work: Work): number {
  const best = new Best(work);
  if (!best.fewest) return 0;
  sweep(work, best, true);
  if (best.fewest && work.count <= BOTH_WAYS_UP_TO) {
    // The first order decides which of several good ones is found: begin once more from the other side.
    for (const rank of work.ranks) rank.reverse();
    number(work);
    sweep(work, best, false);
  }
  best.restore();
  if (best.fewest && work.count <= SWAPS_UP_TO) {
    swap(work, 4);
    best.keep();
    best.restore();
  }
  return best.fewest;
}

/** The best order so far. */
class Best {
  fewest: number;
  private readonly ranks: Int32Array[];

  constructor(readonly work: Work) {
    this.fewest = countCrossings(work);
    this.ranks = work.ranks.map((rank) => rank.slice());
  }

  keep(): boolean {
    const crossings = countCrossings(this.work);
    if (crossings >= this.fewest) return false;
    this.fewest = crossings;
    this.work.ranks.forEach((rank, at) => this.ranks[at].set(rank));
    return true;
  }

  restore(): void {
    this.work.ranks.forEach((rank, at) => rank.set(this.ranks[at]));
    number(this.work);
  }
}

function sweep(work: Work, best: Best, downFirst: boolean): void {
  const most = Math.max(4, Math.min(16, Math.round(WORK / work.count)));
  let without = 0;
  for (let turn = 0; turn < most && best.fewest && without < 4; turn++) {
    const down = (turn % 2 === 0) === downFirst;
    const near = down ? work.up : work.down;
    for (let at = 0; at < work.ranks.length; at++)
      sort(work, near, down ? at : work.ranks.length - 1 - at, turn % 4 > 1);
    if (work.count <= SWAPS_EACH_TIME) swap(work, 3);
    without = best.keep() ? 0 : without + 1;
  }
}

function number(work: Work): void {
  for (const rank of work.ranks) for (let at = 0; at < rank.length; at++) work.slot[rank[at]] = at;
}

let wanted = new Float64Array(256);

function sort(work: Work, near: Adjacent, at: number, fromRight: boolean): void {
  const rank = work.ranks[at];
  if (rank.length < 2) return;
  if (wanted.length < rank.length) wanted = new Float64Array(2 * rank.length);
  for (let index = 0; index < rank.length; index++) {
    const cell = rank[index];
    let sum = 0;
    for (let row = near.start[cell]; row < near.start[cell + 1]; row++) {
      sum += work.slot[near.other[row]] + 0.001 * near.theirs[row];
    }
    const count = near.start[cell + 1] - near.start[cell];
    wanted[index] = count ? sum / count : index;
  }
  // Ranks are nearly in order after the first sweeps, which insertion makes use of; equal ones keep or change their order.
  for (let position = 1; position < rank.length; position++) {
    const cell = rank[position];
    const want = wanted[position];
    let to = position;
    while (to > 0 && (fromRight && position < SHORT ? wanted[to - 1] >= want : wanted[to - 1] > want)) {
      rank[to] = rank[to - 1];
      wanted[to] = wanted[to - 1];
      to -= 1;
    }
    rank[to] = cell;
    wanted[to] = want;
  }
  for (let place = 0; place < rank.length; place++) work.slot[rank[place]] = place;
}

/** Swap neighbours wherever that takes away crossings, until nothing is left to gain. */
function swap(work: Work, rounds: number): void {
  for (let round = 0, better = true; better && round < rounds; round++) {
    better = false;
    for (const rank of work.ranks) {
      for (let at = 0; at + 1 < rank.length; at++) {
        const [a, b] = [rank[at], rank[at + 1]];
        const gain =
          pairs(work, work.up, a, b) +
          pairs(work, work.down, a, b) -
          pairs(work, work.up, b, a) -
          pairs(work, work.down, b, a);
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
  let result = 0;
  for (let i = near.start[a]; i < near.start[a + 1]; i++) {
    const mine = work.slot[near.other[i]] + 1e-4 * near.theirs[i];
    for (let j = near.start[b]; j < near.start[b + 1]; j++) {
      if (mine > work.slot[near.other[j]] + 1e-4 * near.theirs[j]) result += 1;
    }
  }
  return result;
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
