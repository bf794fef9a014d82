/** Places within ranks: each cell as near to its neighbours as order and distance allow. */

import type { Work } from "./layered.ts";

const MOST_SWEEPS = 8;
const WORK = 5000; // cells times sweeps that are worth their time
const WIDE = 40;

const BESIDE_A_LANE = 5;

export function place(work: Work, distance: number): void {
  // Lines that run side by side need less room between them than boxes do: boxes are taken as wider, and the gap as smaller.
  const gap = Math.min(distance, BESIDE_A_LANE);
  const w = Float64Array.from(work.w, (wide, cell) => (cell < work.real ? wide + distance - gap : wide));
  spread({ ...work, w }, gap);
}

function spread(work: Work, gap: number): void {
  let longest = 0;
  for (const rank of work.ranks) {
    let at = 0;
    for (const cell of rank) {
      work.x[cell] = at + work.w[cell] / 2;
      at += work.w[cell] + gap;
    }
    for (const cell of rank) work.x[cell] -= at / 2;
    longest = Math.max(longest, rank.length);
  }
  const sweeps = Math.max(3, Math.min(MOST_SWEEPS, Math.round(WORK / work.count)));
  const spreader = new Spreader(longest);
  for (let sweep = 0; sweep < 2 * sweeps; sweep++) {
    const down = sweep % 2 === 0;
    const both = sweep >= sweeps;
    for (let i = 0; i < work.ranks.length; i++)
      settle(work, down ? i : work.ranks.length - 1 - i, down, both, gap, spreader);
  }
}

function settle(work: Work, at: number, down: boolean, both: boolean, gap: number, spreader: Spreader): void {
  const rank = work.ranks[at];
  const { wanted, weights, widths } = spreader;
  for (let i = 0; i < rank.length; i++) {
    const cell = rank[i];
    let pull = 0;
    let weight = 0;
    for (let side = 0; side < 2; side++) {
      if (!both && (side === 0) !== down) continue;
      const near = side === 0 ? work.up : work.down;
      for (let row = near.start[cell]; row < near.start[cell + 1]; row++) {
        const other = near.other[row];
        // Where a line would lead far aside it bends, and the two are set one below the other; else chains of frames drift.
        const aside = near.theirs[row] - near.mine[row];
        const bend = Math.abs(aside) > WIDE ? 0 : aside;
        weight += near.weight[row];
        pull += near.weight[row] * (work.x[other] + bend);
      }
    }
    wanted[i] = weight ? pull / weight : work.x[cell];
    weights[i] = weight || 0.1;
    widths[i] = work.w[cell];
  }
  const places = spreader.spread(rank.length, gap);
  for (let i = 0; i < rank.length; i++) work.x[rank[i]] = places[i];
}

/** The places nearest to the wanted ones (weighted squares) that keep the order and the distance. */
export class Spreader {
  readonly wanted: Float64Array;
  readonly weights: Float64Array;
  readonly widths: Float64Array;
  private readonly shift: Float64Array;
  private readonly total: Float64Array;
  private readonly weight: Float64Array;
  private readonly size: Int32Array;
  private readonly places: Float64Array;

  constructor(most: number) {
    [this.wanted, this.weights, this.widths, this.shift, this.total, this.weight, this.places] = Array.from(
      { length: 7 },
      () => new Float64Array(most),
    );
    this.size = new Int32Array(most);
  }

  spread(count: number, gap: number): Float64Array {
    const { wanted, weights, widths, shift, total, weight, size, places } = this;
    shift[0] = 0;
    for (let i = 1; i < count; i++) shift[i] = shift[i - 1] + (widths[i - 1] + widths[i]) / 2 + gap;
    let blocks = 0;
    for (let i = 0; i < count; i++) {
      total[blocks] = (wanted[i] - shift[i]) * weights[i];
      weight[blocks] = weights[i];
      size[blocks++] = 1;
      while (blocks > 1 && total[blocks - 2] * weight[blocks - 1] >= total[blocks - 1] * weight[blocks - 2]) {
        blocks -= 1;
        total[blocks - 1] += total[blocks];
        weight[blocks - 1] += weight[blocks];
        size[blocks - 1] += size[blocks];
      }
    }
    for (let block = 0, i = 0; block < blocks; block++) {
      for (let n = 0; n < size[block]; n++, i++) places[i] = total[block] / weight[block] + shift[i];
    }
    return places;
  }
}
