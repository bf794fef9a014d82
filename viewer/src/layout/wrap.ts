/** A long chain of ranks, cut into columns side by side; the lines that pass a cut go round through a gutter. */

import type { Cells, Work } from "./layered.ts";

export interface Bands {
  top: Float64Array;
  bottom: Float64Array;
}

export interface Columns {
  of: Int32Array; // by rank, its column
  shiftX: Float64Array;
  shiftY: Float64Array;
  width: number;
  height: number;
  turn(upper: number, lower: number): { x: number; below: number; above: number };
}

const TALL = 1000; // a frame that is no taller is not wrapped
const ASPECT = 0.62; // height to width that columns aim at
const GUTTER = 34;
const CHANNEL = 7;

export function wrapped(
  work: Work, cells: Cells, bands: Bands, rows: { upper: number[]; lower: number[] },
): Columns | null {
  const ranks = work.ranks.length;
  const height = bands.bottom[ranks - 1] ?? 0;
  if (height < TALL || ranks < 6) return null;
  let left = Infinity;
  let right = -Infinity;
  for (let i = 0; i < work.count; i++) {
    left = Math.min(left, work.x[i] - work.w[i] / 2);
    right = Math.max(right, work.x[i] + work.w[i] / 2);
  }
  const width = right - left + GUTTER;
  const count = Math.min(60, Math.round(Math.sqrt(height / (width * ASPECT))));
  if (count < 2) return null;
  const crossing = new Int32Array(ranks); // lines from each rank to the next
  const ports = work.ranks.map((_, rank) => onlyPorts(work, cells, rank));
  for (const upper of rows.upper) crossing[work.rank[upper]] += 1;
  let best: Int32Array | null = null;
  let least = Infinity;
  for (let tried = Math.max(2, count - 2); tried <= count + 2; tried++) {
    const of = divide(ports, bands, crossing, tried);
    const score = unevenness(of, bands, width);
    if (score < least) {
      least = score;
      best = of;
    }
  }
  return lay(work, bands, best!, rows);
}

/** How far columns are from the shape aimed at, and how much of the room in them stays empty. */
function unevenness(of: Int32Array, bands: Bands, width: number): number {
  const count = of[of.length - 1] + 1;
  const heights = new Float64Array(count);
  let begin = 0;
  for (let rank = 0; rank < of.length; rank++) {
    if (rank && of[rank] !== of[rank - 1]) begin = rank;
    heights[of[rank]] = bands.bottom[rank] - bands.top[begin];
  }
  let tallest = 1;
  let total = 0;
  for (const height of heights) {
    tallest = Math.max(tallest, height);
    total += height;
  }
  return Math.abs(Math.log(tallest / (count * width) / ASPECT)) + 2 * (1 - total / (tallest * count));
}

/** Cuts near equal heights, where the fewest lines pass. */
function divide(ports: boolean[], bands: Bands, crossing: Int32Array, count: number): Int32Array {
  const ranks = ports.length;
  const of = new Int32Array(ranks);
  let begin = 0;
  for (let column = 0; begin < ranks; column++) {
    let end = ranks;
    let best = column < count - 1 ? Infinity : -1;
    const each = (bands.bottom[ranks - 1] - bands.top[begin]) / Math.max(1, count - column);
    for (let rank = begin; rank < ranks - 1; rank++) {
      const reached = bands.bottom[rank] - bands.top[begin];
      if (reached < each * 0.75) continue;
      if (reached > each * 1.2 && best < Infinity) break;
      if (ports[rank] || ports[rank + 1]) continue;
      const cost = crossing[rank] + 3 * Math.abs(reached - each) / each;
      if (cost < best) {
        best = cost;
        end = rank + 1;
      }
    }
    of.fill(column, begin, end);
    begin = end;
  }
  return of;
}

function onlyPorts(work: Work, cells: Cells, rank: number): boolean {
  return work.ranks[rank].every((cell) => cell >= work.real || cells.edge[cell] !== 0);
}

function lay(work: Work, bands: Bands, of: Int32Array, rows: { upper: number[]; lower: number[] }): Columns | null {
  const count = of[of.length - 1] + 1;
  if (count < 2) return null;
  const low = new Float64Array(count).fill(Infinity);
  const high = new Float64Array(count).fill(-Infinity);
  const begin = new Float64Array(count).fill(Infinity);
  const end = new Float64Array(count);
  for (let i = 0; i < work.count; i++) {
    const column = of[work.rank[i]];
    low[column] = Math.min(low[column], work.x[i] - work.w[i] / 2);
    high[column] = Math.max(high[column], work.x[i] + work.w[i] / 2);
  }
  for (let rank = 0; rank < of.length; rank++) {
    begin[of[rank]] = Math.min(begin[of[rank]], bands.top[rank]);
    end[of[rank]] = Math.max(end[of[rank]], bands.bottom[rank]);
  }
  const turns = new Map<string, { column: number; channel: number }>();
  const channels = new Int32Array(count);
  const crossing = rows.upper
    .map((upper, i) => [upper, rows.lower[i]])
    .filter(([upper, lower]) => of[work.rank[upper]] !== of[work.rank[lower]])
    .sort((a, b) => work.x[b[0]] - work.x[a[0]]);
  for (const [upper, lower] of crossing) {
    const column = of[work.rank[upper]];
    const key = `${upper},${lower}`;
    if (!turns.has(key)) turns.set(key, { column, channel: channels[column]++ });
  }
  const most = channels.reduce((a, b) => Math.max(a, b), 0);
  const head = 14 + most * CHANNEL;
  const shiftX = new Float64Array(count);
  const shiftY = new Float64Array(count);
  const gutter = new Float64Array(count);
  let at = 0;
  let height = 0;
  for (let column = 0; column < count; column++) {
    shiftX[column] = at - low[column];
    shiftY[column] = head - begin[column];
    at += high[column] - low[column];
    gutter[column] = at + GUTTER / 2;
    if (column < count - 1) at += GUTTER + channels[column] * CHANNEL;
    height = Math.max(height, head + end[column] - begin[column] + (column < count - 1 ? 14 + channels[column] * CHANNEL : 0));
  }
  return {
    of, shiftX, shiftY, width: at, height,
    turn: (upper, lower) => {
      const { column, channel } = turns.get(`${upper},${lower}`)!;
      return {
        x: gutter[column] + channel * CHANNEL,
        below: head + end[column] - begin[column] + 10 + channel * CHANNEL,
        above: head - 10 - channel * CHANNEL,
      };
    },
  };
}
