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

/** A row of stacks, by how many parts stand one above another in each. */
export type Shelf = number[];

function stackSize(stack: Placed[]): { w: number; h: number } {
  let [w, h] = [0, -ROW_GAP];
  for (const { results, title } of stack) {
    w = Math.max(w, results[0].width, titleWidth(title));
    h += TITLE_ROOM + results[0].height + ROW_GAP;
  }
  return { w, h };
}

/** A row's stacks, each with its parts, and what the row takes. */
function rowOf(parts: Placed[], first: number, shelf: Shelf): { stacks: Placed[][]; w: number; h: number } {
  let [at, w, h] = [first, -COLUMN_GAP, 0];
  const stacks = shelf.map((count) => {
    const stack = parts.slice(at, at + count);
    const size = stackSize(stack);
    at += count;
    w += size.w + COLUMN_GAP;
    h = Math.max(h, size.h);
    return stack;
  });
  return { stacks, w: Math.max(1, w), h };
}

/** What parts take that stand in rows of stacks. */
export function shelvesSize(parts: Placed[], shelves: Shelf[]): { w: number; h: number } {
  let [first, w, h] = [0, 1, -ROW_GAP];
  for (const shelf of shelves) {
    const row = rowOf(parts, first, shelf);
    w = Math.max(w, row.w);
    h += row.h + ROW_GAP;
    first += shelf.reduce((sum, count) => sum + count, 0);
  }
  return { w, h: Math.max(TITLE_ROOM, h) };
}

export class Scene {
  readonly columns: Column[] = [];
  readonly width: number;
  readonly height: number;
  private readonly byBox = new Map<Box, Hit>();

  constructor(parts: Placed[], shelves: Shelf[] = [parts.map(() => 1)]) {
    let [first, above] = [0, 0];
    for (const shelf of shelves) {
      const row = rowOf(parts, first, shelf);
      let left = 0;
      for (const stack of row.stacks) {
        // what is read upwards begins at the foot, where what is read downwards has ended
        let [top, bottom] = [above, above + row.h];
        const slot = stackSize(stack).w;
        for (const { picture, results, title, up } of stack) {
          const { height } = results[0];
          const y = up && row.stacks.length > 1 ? bottom - height : top + TITLE_ROOM;
          if (y > top + TITLE_ROOM) bottom = y - TITLE_ROOM - ROW_GAP;
          else top = y + height + ROW_GAP;
          this.columns.push({ ...placed(picture, results, title, left, y), slot });
        }
        left += slot + COLUMN_GAP;
      }
      above += row.h + ROW_GAP;
      first += shelf.reduce((sum, count) => sum + count, 0);
    }
    const size = shelvesSize(parts, shelves);
    this.width = size.w;
    this.height = size.h;
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
