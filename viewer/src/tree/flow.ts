/**
 * Which way the lines of each frame run.
 *
 * Boxes stand in the order in which they began to run, except that one stands after all that it takes bytes from: what
 * backward computes again begins in the midst of the module that reads it. Some lines run against the order all the same:
 * where bytes go round in a circle, and where phases are laid over one another, since backward then runs upwards.
 */

import type { Edge, Frame, Item } from "./picture.ts";

export const FIRST = -0x7fffffff;
export const LAST = 0x7fffffff;

export interface Flow {
  order: Int32Array[]; // by frame and cell
  against: Uint8Array; // by edge, whether it runs against the order where its two ends part
}

/** For each edge that is a line, the frame in which its two ends part, and the cells that they lie in there. */
interface Meetings {
  frame: Int32Array;
  from: Int32Array;
  to: Int32Array;
}

/** With `fixed`, the order is that of time alone. */
export function flowOf(items: Item[], frames: Frame[], edges: Edge[], fixed: boolean): Flow {
  const meetings = meetingsOf(items, frames, edges);
  const order: Int32Array[] = frames.map(({ items: cells }) => Int32Array.from(cells, (item) => began(items[item])));
  const against = new Uint8Array(edges.length);
  const wrong = new Set<number>();
  const isWrong = (edge: number): boolean => {
    const [frame, a, b] = [meetings.frame[edge], meetings.from[edge], meetings.to[edge]];
    return frame >= 0 && order[frame][a] > order[frame][b];
  };
  edges.forEach(({ carried }, edge) => {
    if (carried) against[edge] = isWrong(edge) ? 1 : 0;
    else if (isWrong(edge)) wrong.add(meetings.frame[edge]);
  });
  if (!wrong.size) return { order, against };
  const pairs = new Map<number, [number, number][]>([...(fixed ? [] : wrong)].map((frame) => [frame, []]));
  edges.forEach(({ carried }, edge) => {
    if (!carried) pairs.get(meetings.frame[edge])?.push([meetings.from[edge], meetings.to[edge]]);
  });
  for (const [frame, lines] of pairs) order[frame] = reordered(order[frame], lines);
  edges.forEach((_, edge) => (against[edge] = isWrong(edge) ? 1 : 0));
  return { order, against };
}

function began({ box }: Item): number {
  return box.kind === "input" ? FIRST : box.kind === "output" ? LAST : box.start;
}

function meetingsOf(items: Item[], frames: Frame[], edges: Edge[]): Meetings {
  const result = {
    frame: new Int32Array(edges.length).fill(-1),
    from: new Int32Array(edges.length),
    to: new Int32Array(edges.length),
  };
  edges.forEach(({ source, target, hub }, edge) => {
    if (hub) return;
    let [a, b] = [items[source], items[target]];
    while (a.frame !== b.frame) {
      if (frames[a.frame].depth >= frames[b.frame].depth) a = items[frames[a.frame].item];
      else b = items[frames[b.frame].item];
    }
    [result.frame[edge], result.from[edge], result.to[edge]] = [a.frame, a.cell, b.cell];
  });
  return result;
}

/** The order in which each cell comes after those that it takes from, and else as it was. */
function reordered(order: Int32Array, pairs: [number, number][]): Int32Array {
  const count = order.length;
  const circle = circlesOf(count, pairs);
  const before: number[][] = Array.from({ length: count }, () => []);
  for (const [a, b] of pairs) if (circle[a] !== circle[b] || order[a] < order[b]) before[b].push(a);
  const sorted = Array.from({ length: count }, (_, cell) => cell).sort((a, b) => order[a] - order[b] || a - b);
  const places = sorted.map((cell) => order[cell]); // the same numbers, given out anew
  const results = new Int32Array(count);
  const seen = new Uint8Array(count);
  let next = 0;
  for (const first of sorted) {
    const stack: [cell: number, at: number][] = seen[first] ? [] : [[first, 0]];
    seen[first] = 1;
    while (stack.length) {
      const top = stack[stack.length - 1];
      const [cell, at] = top;
      if (at === before[cell].length) {
        results[cell] = places[next++];
        stack.pop();
        continue;
      }
      top[1] += 1;
      const other = before[cell][at];
      if (seen[other]) continue;
      seen[other] = 1;
      stack.push([other, 0]);
    }
  }
  return results;
}

/** For each cell the circle that it is part of, by number: cells from each of which bytes reach the other (Tarjan's way). */
function circlesOf(count: number, pairs: [number, number][]): Int32Array {
  const after: number[][] = Array.from({ length: count }, () => []);
  for (const [a, b] of pairs) after[a].push(b);
  const circle = new Int32Array(count).fill(-1);
  const number = new Int32Array(count).fill(-1);
  const low = new Int32Array(count);
  const open: number[] = [];
  let [met, circles] = [0, 0];
  for (let root = 0; root < count; root++) {
    if (number[root] >= 0) continue;
    const stack: [cell: number, at: number][] = [[root, 0]];
    while (stack.length) {
      const top = stack[stack.length - 1];
      const [cell, at] = top;
      if (at === 0) {
        number[cell] = low[cell] = met++;
        open.push(cell);
      }
      if (at < after[cell].length) {
        top[1] += 1;
        const other = after[cell][at];
        if (number[other] < 0) stack.push([other, 0]);
        else if (circle[other] < 0) low[cell] = Math.min(low[cell], number[other]);
        continue;
      }
      stack.pop();
      if (stack.length) low[stack[stack.length - 1][0]] = Math.min(low[stack[stack.length - 1][0]], low[cell]);
      if (low[cell] < number[cell]) continue;
      for (let last = -1; last !== cell;) {
        last = open.pop()!;
        circle[last] = circles;
      }
      circles += 1;
    }
  }
  return circle;
}
