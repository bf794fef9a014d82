/** Places within ranks: each cell as near to its neighbours as order and distance allow. */

import type { Work } from "./layered.ts";

const SWEEPS = 8;
const LARGE = 4000;
const WIDE = 240;

export function place(work: Work, gap: number): void {
  for (const rank of work.ranks) {
    let at = 0;
    for (const cell of rank) {
      work.x[cell] = at + work.w[cell] / 2;
      at += work.w[cell] + gap;
    }
    for (const cell of rank) work.x[cell] -= at / 2;
  }
  const sweeps = work.count > LARGE ? SWEEPS / 2 : SWEEPS;
  for (let sweep = 0; sweep < 2 * sweeps; sweep++) {
    const down = sweep % 2 === 0;
    const both = sweep >= sweeps;
    for (let i = 0; i < work.ranks.length; i++) settle(work, down ? i : work.ranks.length - 1 - i, down, both, gap);
  }
}

function settle(work: Work, at: number, down: boolean, both: boolean, gap: number): void {
  const rank = work.ranks[at];
  const wanted = new Float64Array(rank.length);
  const weights = new Float64Array(rank.length);
  for (let i = 0; i < rank.length; i++) {
    const cell = rank[i];
    let pull = 0;
    let weight = 0;
    for (const near of both ? [work.up, work.down] : [down ? work.up : work.down]) {
      for (let row = near.start[cell]; row < near.start[cell + 1]; row++) {
        weight += near.weight[row];
        const other = near.other[row];
        // Two wide frames are set one below the other, and the line between them bends; else chains of them drift aside.
        const bend = work.w[cell] > WIDE && work.w[other] > WIDE ? 0 : near.theirs[row] - near.mine[row];
        pull += near.weight[row] * (work.x[other] + bend);
      }
    }
    wanted[i] = weight ? pull / weight : work.x[cell];
    weights[i] = weight || 0.1;
  }
  const places = spread(wanted, weights, Float64Array.from(rank, (cell) => work.w[cell]), gap);
  for (let i = 0; i < rank.length; i++) work.x[rank[i]] = places[i];
}

/** The places nearest to the wanted ones (weighted squares) that keep the order and the distance. */
export function spread(wanted: Float64Array, weights: Float64Array, widths: Float64Array, gap: number): Float64Array {
  const count = wanted.length;
  const shift = new Float64Array(count);
  for (let i = 1; i < count; i++) shift[i] = shift[i - 1] + (widths[i - 1] + widths[i]) / 2 + gap;
  const total = new Float64Array(count);
  const weight = new Float64Array(count);
  const size = new Int32Array(count);
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
  const places = new Float64Array(count);
  for (let block = 0, i = 0; block < blocks; block++) {
    for (let n = 0; n < size[block]; n++, i++) places[i] = total[block] / weight[block] + shift[i];
  }
  return places;
}
