/** Everything that is drawn, with its place on the sheet. */

import type { FrameResult } from "../layout/frames.ts";
import type { Box } from "../tree/box.ts";
import type { Picture } from "../tree/picture.ts";
import { titleRuler } from "./measure.ts";

export interface Column {
  picture: Picture;
  results: FrameResult[];
  title: string;
  slot: number; // the width that it has to itself, for its title
  x: Float64Array; // by item, on the sheet
  y: Float64Array;
  w: Float64Array;
  h: Float64Array;
  frameX: Float64Array; // by frame
  frameY: Float64Array;
  loops: Set<number>; // items that hand something to themselves in the next turn of a loop
}

export interface Rect {
  x: number;
  y: number;
  w: number;
  h: number;
}

export interface Hit {
  column: number;
  item: number;
}

export interface EdgeHit {
  column: number;
  edge: number;
}

const MOST_LINES = 4_194_304; // of a frame
const STEPS = 8; // of a bend, to measure how far a point is from it

const lineEdges = new WeakMap<Picture, Map<number, number[]>>();

/** By frame and line, the edges that take it. */
function linesOf(picture: Picture): Map<number, number[]> {
  let known = lineEdges.get(picture);
  if (known) return known;
  known = new Map();
  picture.edges.forEach(({ lines }, edge) => {
    for (let i = 0; i < lines.length; i += 2) {
      const key = lines[i] * MOST_LINES + lines[i + 1];
      const list = known.get(key);
      if (list) list.push(edge);
      else known.set(key, [edge]);
    }
  });
  lineEdges.set(picture, known);
  return known;
}

/** From a point to the piece of a line that begins at a knot: straight, or bent where it moves sideways. */
function distanceTo(path: Float64Array, i: number, x: number, y: number): number {
  const [x0, y0, x1, y1] = [path[i], path[i + 1], path[i + 2], path[i + 3]];
  if (x0 === x1 || y0 === y1) {
    const nearX = Math.max(Math.min(x0, x1), Math.min(x, Math.max(x0, x1)));
    const nearY = Math.max(Math.min(y0, y1), Math.min(y, Math.max(y0, y1)));
    return Math.hypot(x - nearX, y - nearY);
  }
  let least = Infinity;
  for (let step = 0; step <= STEPS * 2; step++) {
    const t = step / (STEPS * 2);
    const bend = 3 * t * t - 2 * t * t * t;
    const along = 1.5 * t * (1 - t) * (1 - t) + 1.5 * t * t * (1 - t) + t * t * t;
    least = Math.min(least, Math.hypot(x - x0 - (x1 - x0) * bend, y - y0 - (y1 - y0) * along));
  }
  return least;
}

export const COLUMN_GAP = 44;
export const ROW_GAP = 24;
export const TITLE_ROOM = 40;
export const TITLE_SIZE = 15;

/** The width of a phase's title at its usual size. */
export function titleWidth(title: string): number {
  return (titleRuler().width(title) * TITLE_SIZE) / 13 + 8;
}

/** A phase that is laid out. */
export interface Placed {
  picture: Picture;
  results: FrameResult[];
  title: string;
  up: boolean;
}

/** What parts side by side take. */
export function rowSize(row: Placed[]): { w: number; h: number } {
  let [w, h] = [0, 0];
  for (const { results, title } of row) {
    w += Math.max(results[0].width, titleWidth(title)) + COLUMN_GAP;
    h = Math.max(h, results[0].height);
  }
  return { w: Math.max(1, w - COLUMN_GAP), h: h + TITLE_ROOM };
}

export class Scene {
  readonly columns: Column[] = [];
  readonly width: number;
  readonly height: number;
  private readonly byBox = new Map<Box, Hit>();

  /** `shelves`: how many parts stand side by side in each row. */
  constructor(parts: Placed[], shelves: number[] = [parts.length]) {
    let [first, above, widest] = [0, 0, 1];
    for (const count of shelves) {
      const row = parts.slice(first, first + count);
      const size = rowSize(row);
      let left = 0;
      for (const { picture, results, title, up } of row) {
        const top = above + TITLE_ROOM + (up && count > 1 ? size.h - TITLE_ROOM - results[0].height : 0);
        const slot = Math.max(results[0].width, titleWidth(title));
        this.columns.push({ ...placed(picture, results, title, left, top), slot });
        left += slot + COLUMN_GAP;
      }
      widest = Math.max(widest, size.w);
      above += size.h + ROW_GAP;
      first += count;
    }
    this.width = widest;
    this.height = Math.max(TITLE_ROOM, above - ROW_GAP);
    this.columns.forEach((column, number) => {
      column.picture.items.forEach((item, index) => this.byBox.set(item.box, { column: number, item: index }));
    });
  }

  find(box: Box): Hit | null {
    return this.byBox.get(box) ?? null;
  }

  rect({ column, item }: Hit): Rect {
    const { x, y, w, h } = this.columns[column];
    return { x: x[item], y: y[item], w: w[item], h: h[item] };
  }

  box({ column, item }: Hit): Box {
    return this.columns[column].picture.items[item].box;
  }

  /** The edges of the line nearest to a point, no farther than so far; lines of one source run together. */
  edgesAt(px: number, py: number, far: number): EdgeHit[] {
    let [best, least]: [EdgeHit[], number] = [[], far];
    this.columns.forEach((column, number) => {
      const { picture, results, frameX, frameY } = column;
      const stack = [0];
      while (stack.length) {
        const frame = stack.pop()!;
        const [x, y] = [px - frameX[frame], py - frameY[frame]];
        const { width, height, path, pathStart } = results[frame];
        if (x < -far || y < -far || x > width + far || y > height + far) continue;
        for (let line = 0; line + 1 < pathStart.length; line++) {
          for (let i = pathStart[line]; i + 2 < pathStart[line + 1]; i += 2) {
            const distance = distanceTo(path, i, x, y);
            if (distance >= least) continue;
            least = distance;
            best = (linesOf(picture).get(frame * MOST_LINES + line) ?? []).map((edge) => ({ column: number, edge }));
          }
        }
        for (const item of picture.frames[frame].items)
          if (item >= 0 && picture.items[item].own >= 0) stack.push(picture.items[item].own);
      }
    });
    return best;
  }

  /** The innermost box at a point. */
  at(px: number, py: number): Hit | null {
    for (let number = 0; number < this.columns.length; number++) {
      const { picture, x, y, w, h } = this.columns[number];
      let frame = 0;
      let hit: Hit | null = null;
      while (frame >= 0) {
        let next = -1;
        for (const item of picture.frames[frame].items) {
          if (item < 0 || px < x[item] || py < y[item] || px > x[item] + w[item] || py > y[item] + h[item]) continue;
          hit = { column: number, item };
          next = picture.items[item].own;
        }
        frame = next;
      }
      if (hit) return hit;
    }
    return null;
  }
}

function placed(
  picture: Picture,
  results: FrameResult[],
  title: string,
  left: number,
  top: number,
): Omit<Column, "slot"> {
  const count = picture.items.length;
  const [x, y, w, h] = [0, 0, 0, 0].map(() => new Float64Array(count));
  const frameX = new Float64Array(picture.frames.length);
  const frameY = new Float64Array(picture.frames.length);
  frameX[0] = left;
  frameY[0] = top;
  picture.frames.forEach((frame, number) => {
    const result = results[number];
    const spec = picture.specs[number];
    frame.items.forEach((item, cell) => {
      if (item < 0) return;
      x[item] = frameX[number] + result.x[cell];
      y[item] = frameY[number] + result.y[cell];
      const { own } = picture.items[item];
      w[item] = own >= 0 ? results[own].width : spec.w[cell];
      h[item] = own >= 0 ? results[own].height : spec.h[cell];
      if (own >= 0) {
        frameX[own] = x[item];
        frameY[own] = y[item];
      }
    });
  });
  const loops = new Set(picture.edges.flatMap(({ source, target }) => (source === target ? [source] : [])));
  return { picture, results, title, x, y, w, h, frameX, frameY, loops };
}
