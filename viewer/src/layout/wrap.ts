/** A long chain of ranks, cut into columns side by side; the lines that pass a cut go round through a gutter. */

import type { Cells, Room, Work } from "./layered.ts";

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
  turn: (upper: number, lower: number) => { x: number; below: number; above: number };
}

type Rows = { upper: number[]; lower: number[] };

const MOST_COLUMNS = 60;
const GUTTER = 34;
const CHANNEL = 7;
const EDGE = 14; // above and below the columns, where lines go round
const COST_OF_A_CUT = 0.1; // beside the logarithm of how much smaller than life it would be drawn
const COST_OF_A_LINE = 0.05; // that goes round besides the chain's own
const MANY_LINES = 8;
const COST_OF_EMPTINESS = 3; // of a few alike: two below each other and a third beside them are not read in their order
const SOME_EMPTINESS = 0.1;
const FEW = 4;
const SLACK = 0.056; // the logarithm of how much larger than its room a sheet may be and still be read when it is fitted
const STEEP = 2;
const ALIKE = 1.3; // how much taller one of them may be

export function wrapped(work: Work, cells: Cells, bands: Bands, rows: Rows, room: Room): Columns | null {
  const ranks = work.ranks.length;
  const height = bands.bottom[ranks - 1] ?? 0;
  if (height <= room.h || ranks < 4) return null;
  const extents = extentsOf(work);
  const crossing = new Int32Array(ranks); // lines from each rank to the next
  const ports = work.ranks.map((_, rank) => onlyPorts(work, cells, rank));
  const few = areFewAlike(ports, bands);
  for (const upper of rows.upper) crossing[work.rank[upper]] += 1;
  let best: Int32Array | null = null;
  const whole = { w: Math.max(...bounds(extents)), h: height };
  let least = unreadable(whole, room, few);
  const guess = Math.round(Math.sqrt((height * room.w) / (room.h * whole.w)));
  const most = Math.min(MOST_COLUMNS, ranks >> 1, guess + 4);
  const divisions = [filled(ports, bands, room.h)];
  for (let tried = Math.max(2, guess - 4); tried <= most; tried++)
    divisions.push(divide(ports, bands, crossing, tried));
  for (const of of divisions) {
    const cost = costOf(of, bands, extents, crossing, room, few);
    if (cost < least) {
      least = cost;
      best = of;
    }
  }
  return best ? lay(work, bands, best, rows) : null;
}

/** Whether it is a chain of a few that are about equally tall, as the instances of a repeat are. */
function areFewAlike(ports: boolean[], { top, bottom }: Bands): boolean {
  const heights = [...ports.keys()].filter((rank) => !ports[rank]).map((rank) => bottom[rank] - top[rank]);
  return heights.length <= FEW && Math.max(...heights) <= ALIKE * Math.min(...heights);
}

/** The same as a cost: what can still be read when it is fitted costs little, and all beyond costs much. */
function unreadable(sheet: Room, room: Room, few: boolean): number {
  const over = oversize(sheet, room);
  return over + (few ? 0 : STEEP * Math.max(0, over - SLACK));
}

/** How much smaller than life a sheet must be drawn to fit, as a logarithm. */
export function oversize({ w, h }: Room, room: Room): number {
  return Math.log(Math.max(1, w / room.w, h / room.h));
}

interface Extents {
  low: Float64Array;
  high: Float64Array;
}

function extentsOf(work: Work): Extents {
  const low = new Float64Array(work.ranks.length).fill(Infinity);
  const high = new Float64Array(work.ranks.length).fill(-Infinity);
  for (let i = 0; i < work.count; i++) {
    const rank = work.rank[i];
    low[rank] = Math.min(low[rank], work.x[i] - work.w[i] / 2);
    high[rank] = Math.max(high[rank], work.x[i] + work.w[i] / 2);
  }
  return { low, high };
}

function bounds({ low, high }: Extents): [number] {
  let [left, right] = [Infinity, -Infinity];
  for (const x of low) left = Math.min(left, x);
  for (const x of high) right = Math.max(right, x);
  return [right - left];
}

function costOf(
  of: Int32Array,
  bands: Bands,
  { low, high }: Extents,
  crossing: Int32Array,
  room: Room,
  few: boolean,
): number {
  const count = of[of.length - 1] + 1;
  if (count < 2) return Infinity;
  let [w, h, cost, most, filled] = [0, 0, 0, 0, 0];
  for (let from = 0; from < of.length;) {
    let to = from;
    let [left, right] = [Infinity, -Infinity];
    for (; to < of.length && of[to] === of[from]; to++) {
      left = Math.min(left, low[to]);
      right = Math.max(right, high[to]);
    }
    const tall = bands.bottom[to - 1] - bands.top[from];
    h = Math.max(h, tall);
    filled += tall;
    w += right - left;
    if (to < of.length) {
      const round = crossing[to - 1];
      w += GUTTER + round * CHANNEL;
      most = Math.max(most, round);
      cost += (COST_OF_A_CUT + COST_OF_A_LINE * Math.min(MANY_LINES, Math.max(0, round - 1))) / (of[from] + 1);
    }
    from = to;
  }
  if (few) cost += COST_OF_EMPTINESS * Math.max(0, 1 - filled / (count * h) - SOME_EMPTINESS);
  return cost + unreadable({ w, h: h + 2 * (EDGE + most * CHANNEL) }, room, few);
}

/** Cuts near equal heights, where the fewest lines pass; before what would make a column much too high, wherever that is. */
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
      const next = bands.bottom[rank + 1] - bands.top[begin];
      if (reached < each * 0.7 && next <= each * 1.2) continue;
      if (reached > each * 1.2 && best < Infinity) break;
      if (ports[rank] || ports[rank + 1]) continue;
      const cost = crossing[rank] + (4 * Math.abs(reached - each)) / each;
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

/** Cuts where the next rank would make a column higher than the room. */
function filled(ports: boolean[], { top, bottom }: Bands, most: number): Int32Array {
  const of = new Int32Array(ports.length);
  let [column, begin] = [0, 0];
  for (let rank = 1; rank < ports.length; rank++) {
    const isFull = bottom[rank] - top[begin] > most - 2 * EDGE;
    if (isFull && !ports[rank] && !ports[rank - 1]) {
      column += 1;
      begin = rank;
    }
    of[rank] = column;
  }
  return of;
}

function onlyPorts(work: Work, cells: Cells, rank: number): boolean {
  return work.ranks[rank].every((cell) => cell >= work.real || cells.edge[cell] !== 0);
}
function lay(work: Work, bands: Bands, of: Int32Array, rows: Rows): Columns | null {
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
  const head = EDGE + most * CHANNEL;
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
    height = Math.max(
      height,
      head + end[column] - begin[column] + (column < count - 1 ? EDGE + channels[column] * CHANNEL : 0),
    );
  }
  return {
    of,
    shiftX,
    shiftY,
    width: at,
    height,
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
