/** Ranks far wider than the window, set in several rows. */

import { group, rankBounds, ROOM, type Cells, type Lines, type Spacing } from "./layered.ts";

const CROWD = 20; // cells of a rank up to which it stays one

/** In the order of execution; what comes after such a rank moves down. */
export function splitWide(cells: Cells, rank: Int32Array, { gap, rankGap, room = ROOM }: Spacing): void {
  const { start, item } = group(rankBounds(rank)[0] + 1, rank);
  let down = 0;
  for (let r = 0; r + 1 < start.length; r++) {
    const own = item.subarray(start[r], start[r + 1]);
    let [wide, high] = [0, 0];
    for (const cell of own) {
      wide += cells.w[cell] + gap;
      high = Math.max(high, cells.h[cell]);
    }
    const ports = own.some((cell) => cells.edge[cell] !== 0);
    const rows =
      ports || own.length <= CROWD || wide < 3 * room.w
        ? 1
        : Math.max(1, Math.round(Math.sqrt((wide * room.h) / (room.w * (high + rankGap)))));
    const sorted = rows > 1 ? own.slice().sort((a, b) => cells.order[a] - cells.order[b] || a - b) : own;
    sorted.forEach((cell, at) => (rank[cell] = r + down + Math.floor((at * rows) / sorted.length)));
    down += rows - 1;
  }
}

/** What nothing reads, where it is wider side by side than the room and all that is above it: set in rows. */
export function splitEnds(cells: Cells, lines: Lines, rank: Int32Array, { gap, room = ROOM }: Spacing): void {
  const [last] = rankBounds(rank);
  const width = new Float64Array(last + 1);
  const isRead = new Uint8Array(rank.length);
  for (const cell of lines.src) isRead[cell] = 1;
  rank.forEach((r, cell) => (width[r] += cells.w[cell] + gap));
  const most = Math.max(room.w, ...width.subarray(0, last));
  const ends = [...rank.keys()].filter((cell) => rank[cell] === last);
  const isFixed = ends.some((cell) => isRead[cell] || cells.edge[cell]);
  if (width[last] <= most || isFixed || last < 1 || ends.length > CROWD) return;
  const each = width[last] / Math.ceil(width[last] / most);
  let [row, taken] = [0, 0];
  for (const cell of ends.sort((a, b) => cells.order[a] - cells.order[b] || a - b)) {
    if (taken && taken + cells.w[cell] > each + gap) [row, taken] = [row + 1, 0];
    rank[cell] = last + row;
    taken += cells.w[cell] + gap;
  }
}
