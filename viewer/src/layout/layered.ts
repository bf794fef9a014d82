/**
 * Cells of one frame set in layers, top to bottom, with lanes for the lines that pass between them.
 *
 * Ranks are longest paths; a line that spans several ranks has a lane in each one that it passes; the order within a rank
 * follows the neighbours' mean; places are the least-squares ones that keep order and distance. A line is upright where it
 * passes a rank and moves sideways only in the gaps, so that it never crosses a cell. Nothing here is recursive.
 */

import { improve } from "./order.ts";
import { place } from "./place.ts";
import { splitEnds, splitWide } from "./rows.ts";
import { wrapped, type Bands } from "./wrap.ts";

export const TOP = 1;
export const BOTTOM = 2;

export interface Cells {
  w: Float64Array;
  h: Float64Array;
  order: Int32Array;
  edge: Uint8Array; // TOP or BOTTOM: a port of the frame
}

export interface Lines {
  src: Int32Array;
  dst: Int32Array;
  key: Int32Array; // lines of one source and key share their lanes
  exit: Float64Array; // where a line touches its cells, from their middle
  entry: Float64Array;
}

/** The window that a sheet should fit in and still be read, in its own units. */
export interface Room {
  w: number;
  h: number;
}

export interface Spacing {
  gap: number;
  rankGap: number;
  wrap: boolean;
  room?: Room;
}

export const ROOM: Room = { w: 1000, h: 640 };

export interface Sheet {
  width: number;
  height: number;
  x: Float64Array; // left
  y: Float64Array; // top
  path: Float64Array; // knots, x and y in turn
  pathStart: Int32Array;
  crossings: number;
  columns: number;
  top: Float64Array; // by cell, where its rank begins and ends
  bottom: Float64Array;
  flip?: Uint8Array; // by cell, whether what is in it is to be read the other way up
}

/** Everything that the steps share: real cells first, lanes after them. */
export interface Work {
  real: number;
  count: number;
  ranks: Int32Array[];
  rank: Int32Array;
  w: Float64Array;
  x: Float64Array; // middle
  slot: Int32Array;
  up: Adjacent;
  down: Adjacent;
}

export interface Adjacent {
  start: Int32Array;
  other: Int32Array;
  theirs: Float64Array;
  mine: Float64Array;
  weight: Float64Array;
}

const LANE = 8;
const STRAIGHT = 6; // how much more a lane holds to its line than a cell to its neighbours
const MOST_LANES = 60_000;
const LITTLE = 40;

export function arrange(cells: Cells, lines: Lines, spacing: Spacing): Sheet {
  const count = cells.w.length;
  const turned = orient(cells, lines);
  const rank = ranksOf(cells, lines);
  if (spacing.wrap) splitWide(cells, rank, spacing);
  if (spacing.wrap) splitEnds(cells, lines, rank, spacing);
  const chains = lanes(cells, lines, rank, turned);
  const work = assemble(cells, lines, rank, chains);
  const crossings = improve(work);
  place(work, spacing.gap);
  const bands = stack(cells, work, spacing);
  const columns = spacing.wrap ? wrapped(work, cells, bands, chains.rows, spacing.room ?? ROOM) : null;
  const sheet = draw(cells, lines, work, chains, bands, turned, columns);
  return { ...sheet, x: sheet.x.subarray(0, count), y: sheet.y.subarray(0, count), crossings };
}

/** Lines run with the order of execution; those against it are turned round while the frame is laid out. */
export function orient(cells: Cells, lines: Lines): Uint8Array {
  const turned = new Uint8Array(lines.src.length);
  for (let i = 0; i < turned.length; i++) {
    if (cells.order[lines.src[i]] <= cells.order[lines.dst[i]]) continue;
    turned[i] = 1;
    [lines.src[i], lines.dst[i]] = [lines.dst[i], lines.src[i]];
    [lines.exit[i], lines.entry[i]] = [lines.entry[i], lines.exit[i]];
  }
  return turned;
}

export function ranksOf(cells: Cells, lines: Lines): Int32Array {
  const count = cells.w.length;
  const rank = new Int32Array(count);
  const byOrder = Int32Array.from({ length: count }, (_, i) => i).sort(
    (a, b) => cells.order[a] - cells.order[b] || a - b,
  );
  const index = new Int32Array(count);
  byOrder.forEach((cell, at) => (index[cell] = at));
  const after = group(count, lines.src);
  const fed = new Uint8Array(count);
  const lowest = cells.edge.includes(TOP) ? 1 : 0;
  for (let i = 0; i < count; i++) if (cells.edge[i] !== TOP) rank[i] = lowest;
  for (const cell of byOrder) {
    for (let row = after.start[cell]; row < after.start[cell + 1]; row++) {
      const target = lines.dst[after.item[row]];
      if (index[target] <= index[cell]) continue;
      fed[target] = 1;
      rank[target] = Math.max(rank[target], rank[cell] + 1);
    }
  }
  for (let at = count - 1; at >= 0; at--) {
    const cell = byOrder[at];
    if (fed[cell] || cells.edge[cell] || after.start[cell] === after.start[cell + 1]) continue;
    let nearest = Infinity;
    for (let row = after.start[cell]; row < after.start[cell + 1]; row++) {
      nearest = Math.min(nearest, rank[lines.dst[after.item[row]]]);
    }
    rank[cell] = Math.max(lowest, nearest - 1);
  }
  let bottom = -1;
  for (let i = 0; i < count; i++) if (cells.edge[i] !== BOTTOM) bottom = Math.max(bottom, rank[i]);
  for (let i = 0; i < count; i++) if (cells.edge[i] === BOTTOM) rank[i] = bottom + 1;
  const used = new Int32Array(Math.max(0, ...rankBounds(rank)) + 2);
  for (let i = 0; i < count; i++) used[rank[i] + 1] = 1;
  for (let i = 1; i < used.length; i++) used[i] += used[i - 1];
  for (let i = 0; i < count; i++) rank[i] = used[rank[i]];
  return rank;
}

export function rankBounds(rank: Int32Array): [number] {
  let most = 0;
  for (const r of rank) most = Math.max(most, r);
  return [most];
}

export function group(count: number, of: Int32Array): { start: Int32Array; item: Int32Array } {
  const start = new Int32Array(count + 1);
  for (const owner of of) start[owner + 1] += 1;
  for (let i = 0; i < count; i++) start[i + 1] += start[i];
  const free = start.slice();
  const item = new Int32Array(of.length);
  for (let i = 0; i < of.length; i++) item[free[of[i]]++] = i;
  return { start, item };
}

interface Chains {
  first: Int32Array; // by line, its first lane; the lanes of a line follow on
  far: Uint8Array; // by line, whether it is too long to be drawn
  laneRank: number[];
  laneOrder: number[];
  laneLine: number[]; // a line that passes there
  rows: { upper: number[]; lower: number[]; out: number[]; into: number[]; weight: number[] };
}

function lanes(cells: Cells, lines: Lines, rank: Int32Array, turned: Uint8Array): Chains {
  const total = lines.src.length;
  const first = new Int32Array(total).fill(-1);
  const far = new Uint8Array(total);
  const spans = Int32Array.from(lines.src, (src, i) => rank[lines.dst[i]] - rank[src] - 1);
  let sum = 0;
  for (const span of spans) sum += Math.max(0, span);
  if (sum > MOST_LANES) {
    const longest = Int32Array.from({ length: total }, (_, i) => i).sort((a, b) => spans[b] - spans[a]);
    for (let at = 0; at < total && sum > MOST_LANES; at++) {
      if (spans[longest[at]] < 8) break;
      far[longest[at]] = 1;
      sum -= spans[longest[at]];
    }
  }
  const laneRank: number[] = [];
  const laneOrder: number[] = [];
  const laneLine: number[] = [];
  const shared = new Map<string, { base: number; length: number }>();
  const byLength = Int32Array.from({ length: total }, (_, i) => i).sort((a, b) => spans[b] - spans[a]);
  for (const i of byLength) {
    if (spans[i] <= 0 || far[i]) continue;
    const key = `${lines.src[i]},${lines.key[i]}${turned[i] ? `,${lines.dst[i]}` : ""}`;
    let lane = shared.get(key);
    if (!lane) {
      lane = { base: laneRank.length, length: spans[i] };
      shared.set(key, lane);
      for (let step = 1; step <= spans[i]; step++) {
        laneRank.push(rank[lines.src[i]] + step);
        laneOrder.push(cells.order[lines.src[i]]);
        laneLine.push(i);
      }
    }
    first[i] = cells.w.length + lane.base;
  }
  return { first, far, laneRank, laneOrder, laneLine, rows: { upper: [], lower: [], out: [], into: [], weight: [] } };
}

function assemble(cells: Cells, lines: Lines, rank: Int32Array, chains: Chains): Work {
  const real = cells.w.length;
  const count = real + chains.laneRank.length;
  const allRank = new Int32Array(count);
  allRank.set(rank);
  const w = new Float64Array(count).fill(LANE);
  w.set(cells.w);
  const order = new Int32Array(count);
  order.set(cells.order);
  let ranks = 0;
  for (let i = 0; i < real; i++) ranks = Math.max(ranks, rank[i] + 1);
  for (let i = real; i < count; i++) {
    allRank[i] = chains.laneRank[i - real];
    order[i] = chains.laneOrder[i - real];
  }
  const lists: number[][] = Array.from({ length: ranks }, () => []);
  for (let i = 0; i < count; i++) lists[allRank[i]].push(i);
  const slot = new Int32Array(count);
  const sorted = lists.map((list) => {
    const results = Int32Array.from(list).sort((a, b) => order[a] - order[b] || a - b);
    results.forEach((cell, at) => (slot[cell] = at));
    return results;
  });
  const { upper, lower, out, into, weight } = chains.rows;
  const joined = new Uint8Array(chains.laneRank.length); // lanes whose way from above is known
  for (let i = 0; i < lines.src.length; i++) {
    if (chains.far[i]) continue;
    const span = rank[lines.dst[i]] - rank[lines.src[i]] - 1;
    let from = lines.src[i];
    let exit = lines.exit[i];
    for (let step = 0; step < span; step++) {
      const lane = chains.first[i] + step;
      if (!joined[lane - real]) {
        joined[lane - real] = 1;
        upper.push(from);
        lower.push(lane);
        out.push(exit);
        into.push(0);
        weight.push(from >= real ? STRAIGHT : 1);
      }
      from = lane;
      exit = 0;
    }
    upper.push(from);
    lower.push(lines.dst[i]);
    out.push(exit);
    into.push(lines.entry[i]);
    weight.push(1);
  }
  const up = adjacent(count, lower, upper, out, into, weight);
  const down = adjacent(count, upper, lower, into, out, weight);
  return { real, count, ranks: sorted, rank: allRank, w, x: new Float64Array(count), slot, up, down };
}

function adjacent(
  count: number,
  owner: number[],
  other: number[],
  theirs: number[],
  mine: number[],
  weight: number[],
): Adjacent {
  const { start, item } = group(count, Int32Array.from(owner));
  return {
    start,
    other: Int32Array.from(item, (i) => other[i]),
    theirs: Float64Array.from(item, (i) => theirs[i]),
    mine: Float64Array.from(item, (i) => mine[i]),
    weight: Float64Array.from(item, (i) => weight[i]),
  };
}

/** Set the ranks below one another. */
function stack(cells: Cells, work: Work, { rankGap }: Spacing): Bands {
  const top = new Float64Array(work.ranks.length);
  const bottom = new Float64Array(work.ranks.length);
  let at = 0;
  work.ranks.forEach((rank, index) => {
    let height = 0;
    let ports = true;
    for (const cell of rank) {
      if (cell >= work.real) continue;
      height = Math.max(height, cells.h[cell]);
      ports &&= cells.edge[cell] !== 0;
    }
    top[index] = at;
    bottom[index] = at + height;
    const lines = work.ranks[index + 1] ? rank.length + work.ranks[index + 1].length : 0;
    const room = rankGap + Math.min(60, Math.max(0, lines - 6) * 1.5);
    const below = work.ranks[index + 1]?.every((cell) => cell >= work.real || cells.edge[cell] === BOTTOM);
    const straight = rank.length === 1 && work.ranks[index + 1]?.length === 1;
    at += height + (ports || below ? (straight ? 6 : Math.min(room, 16 + 2 * lines)) : room);
  });
  return { top, bottom };
}

function draw(
  cells: Cells,
  lines: Lines,
  work: Work,
  chains: Chains,
  bands: Bands,
  turned: Uint8Array,
  columns: ReturnType<typeof wrapped>,
): Omit<Sheet, "crossings"> {
  let left = Infinity;
  let right = -Infinity;
  let height = bands.bottom[bands.bottom.length - 1] ?? 0;
  const x = new Float64Array(work.count);
  const y = new Float64Array(work.count);
  if (columns) {
    for (let i = 0; i < work.count; i++) work.x[i] += columns.shiftX[columns.of[work.rank[i]]];
    for (let r = 0; r < work.ranks.length; r++) {
      bands.top[r] += columns.shiftY[columns.of[r]];
      bands.bottom[r] += columns.shiftY[columns.of[r]];
    }
    height = columns.height;
    left = 0;
    right = columns.width;
  } else {
    for (let i = 0; i < work.count; i++) {
      left = Math.min(left, work.x[i] - work.w[i] / 2);
      right = Math.max(right, work.x[i] + work.w[i] / 2);
    }
  }
  if (left === Infinity) left = right = 0;
  for (let i = 0; i < work.count; i++) {
    work.x[i] -= left;
    x[i] = work.x[i] - work.w[i] / 2;
    if (i >= work.real) continue;
    const spare = bands.bottom[work.rank[i]] - bands.top[work.rank[i]] - cells.h[i];
    y[i] = bands.top[work.rank[i]] + (spare < LITTLE ? spare / 2 : 0);
  }
  const pathStart = new Int32Array(lines.src.length + 1);
  const path: number[] = [];
  for (let i = 0; i < lines.src.length; i++) {
    const from = path.length;
    if (!chains.far[i]) trail(path, i, cells, lines, work, chains, bands, y, columns, left);
    if (turned[i]) {
      for (let a = from, b = path.length - 2; a < b; a += 2, b -= 2) {
        [path[a], path[b]] = [path[b], path[a]];
        [path[a + 1], path[b + 1]] = [path[b + 1], path[a + 1]];
      }
    }
    pathStart[i + 1] = path.length;
  }
  return {
    width: right - left,
    height,
    x,
    y,
    path: Float64Array.from(path),
    pathStart,
    columns: columns ? columns.shiftX.length : 1,
    top: Float64Array.from(cells.w, (_, i) => bands.top[work.rank[i]]),
    bottom: Float64Array.from(cells.w, (_, i) => bands.bottom[work.rank[i]]),
  };
}

/** The knots of a line: upright through each rank, sideways in the gaps, and round the corner where the chain wraps. */
function trail(
  path: number[],
  i: number,
  cells: Cells,
  lines: Lines,
  work: Work,
  chains: Chains,
  bands: Bands,
  y: Float64Array,
  columns: ReturnType<typeof wrapped>,
  left: number,
): void {
  const src = lines.src[i];
  const dst = lines.dst[i];
  let at = work.x[src] + lines.exit[i];
  path.push(at, y[src] + cells.h[src], at, bands.bottom[work.rank[src]]);
  let before = src;
  for (let rank = work.rank[src] + 1; rank <= work.rank[dst]; rank++) {
    const last = rank === work.rank[dst];
    const cell = last ? dst : chains.first[i] + (rank - work.rank[src] - 1);
    const to = last ? work.x[dst] + lines.entry[i] : work.x[cell];
    if (columns && columns.of[rank] !== columns.of[rank - 1]) {
      const turn = columns.turn(before, cell);
      path.push(at, turn.below, turn.x - left, turn.below, turn.x - left, turn.above, to, turn.above);
    }
    path.push(to, bands.top[rank]);
    if (last) path.push(to, y[dst]);
    else path.push(to, bands.bottom[rank]);
    at = to;
    before = cell;
  }
}
