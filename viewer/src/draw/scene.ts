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

export const COLUMN_GAP = 64;
export const TITLE_ROOM = 40;
export const TITLE_SIZE = 15;

/** The width of a phase's title at its usual size. */
export function titleWidth(title: string): number {
  return (titleRuler().width(title) * TITLE_SIZE) / 13 + 8;
}

export class Scene {
  readonly columns: Column[] = [];
  readonly width: number;
  readonly height: number;
  private readonly byBox = new Map<Box, Hit>();

  constructor(parts: { picture: Picture; results: FrameResult[]; title: string; up: boolean }[]) {
    const tallest = parts.reduce((most, part) => Math.max(most, part.results[0].height), 0);
    let left = 0;
    for (const { picture, results, title, up } of parts) {
      const top = TITLE_ROOM + (up ? tallest - results[0].height : 0);
      const slot = Math.max(results[0].width, titleWidth(title));
      this.columns.push({ ...placed(picture, results, title, left, up && parts.length > 1 ? top : TITLE_ROOM), slot });
      left += slot + COLUMN_GAP;
    }
    this.width = Math.max(1, left - COLUMN_GAP);
    this.height = tallest + TITLE_ROOM;
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
  return { picture, results, title, x, y, w, h, frameX, frameY };
}
