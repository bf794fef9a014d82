/** Shapes that the page and a picture of it share: rounded boxes, the ground of frames, what lies behind a repeat. */

import { ADDED, REMOVED } from "../data/run.ts";
import type { Box } from "../tree/box.ts";
import type { Look } from "./painter.ts";
import type { Column } from "./scene.ts";
import { blend, type Theme } from "./theme.ts";

/** Where the other instances of a repeat show: on the side that its lines leave through, away from their arrowheads. */
export function behind({ picture }: Column): number {
  return picture.specs[0]?.up ? -1 : 1;
}

export function round(
  context: CanvasRenderingContext2D,
  x: number,
  y: number,
  w: number,
  h: number,
  radius: number,
): void {
  context.beginPath();
  context.roundRect(x, y, w, h, Math.min(radius, w / 2, h / 2));
}

/** The ground of a frame; in a comparison, tinted where all in it was added or removed. */
export function frameFill(theme: Theme, depth: number, box: Box | null): string {
  const ground = theme.frames[depth % 2];
  const difference = box?.run.difference ? box.difference : 0;
  return difference === ADDED || difference === REMOVED ? blend(ground, theme.difference[difference], 0.5) : ground;
}

/** How much of a frame is to be seen: one that has nothing of what is brought out steps back. */
export function fadedFrame(box: Box, look: Look): number {
  return look.marked !== null && !look.marked.has(box) ? 0.75 : 1;
}
