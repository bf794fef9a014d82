/** Where in the window the graph can be shown without anything lying on it. */

import type { Camera } from "./painter.ts";
import type { Rect } from "./scene.ts";

/** The scale from which on all that a box says is drawn: its smallest letters have eleven pixels then. */
export const READABLE = 11 / 12;

/** The scale that a layout aims at when it is fitted. */
export const AIM = 0.97;

/** The scale up to which a small graph is enlarged to fill a window of a height. */
export function largestScale(height: number): number {
  return Math.max(1.4, Math.min(2, height / 600));
}

/** The scale down to which names are at least told apart: small, but better than a part of the graph out of sight. */
export const SMALL = 0.55;

/** Rectangles of the window that are free of all that lies on it: each overlay is left out on one of its two nearest sides. */
export function freeAreas(w: number, h: number, overlays: Rect[]): Rect[] {
  let results: Rect[] = [{ x: 0, y: 0, w, h }];
  for (const over of overlays) {
    const right = over.x + over.w / 2 > w / 2;
    const low = over.y + over.h / 2 > h / 2;
    results = results.flatMap((area) => {
      const end = { x: area.x + area.w, y: area.y + area.h };
      const clear = over.x >= end.x || over.y >= end.y || over.x + over.w <= area.x || over.y + over.h <= area.y;
      if (clear) return [area];
      const beside = right
        ? { ...area, w: over.x - area.x }
        : { ...area, x: over.x + over.w, w: end.x - over.x - over.w };
      const above = low ? { ...area, h: over.y - area.y } : { ...area, y: over.y + over.h, h: end.y - over.y - over.h };
      return [beside, above];
    });
  }
  return results.filter((area) => area.w > 0 && area.h > 0);
}

/** The camera that shows a rectangle as large as one of the areas allows. */
export function fitted(rect: Rect, areas: Rect[], most: number, margin: number): Camera {
  let best: Camera = { scale: 0.002, x: 0, y: 0 };
  let greatest = -1;
  const widest = areas.reduce((result, area) => Math.max(result, area.w), 1);
  for (const area of areas) {
    const scale = Math.min(
      most,
      Math.max(0.002, Math.min((area.w - 2 * margin) / rect.w, (area.h - 2 * margin) / rect.h)),
    );
    const worth = scale * Math.sqrt(area.w / widest); // in the middle of the window, unless much larger beside
    if (worth <= greatest) continue;
    greatest = worth;
    best = {
      scale,
      x: area.x + area.w / 2 - (rect.x + rect.w / 2) * scale,
      y: area.y + area.h / 2 - (rect.y + rect.h / 2) * scale,
    };
  }
  return best;
}
