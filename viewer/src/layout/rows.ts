/** Ranks far wider than the window, set in several rows. */

import { group, rankBounds, ROOM, type Cells, type Spacing } from "./layered.ts";

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
