/** Where the labels of lines go: beside their line, where nothing else is; one that finds no room is left out. */

import { typeText } from "../data/run.ts";
import type { FrameResult } from "../layout/frames.ts";
import { shapeOf, subRuler } from "./measure.ts";
import type { Picture } from "../tree/picture.ts";
import type { Column, Rect } from "./scene.ts";

export interface Label extends Rect {
  text: string;
}

export const LABEL_SIZE = 12;
const HIGH = 14;
const BUCKET = 64;
const LARGE = 1024; // what is larger lies in too many buckets
const MOST_LINES = 250; // of a frame, for its labels to be kept off its lines as well
const AT_ONCE = 100; // lines of a frame whose labels are worked out before it is drawn
const MOST_STRUCK = 0; // lines that a label may lie on

const known = new WeakMap<FrameResult, Label[]>();

/** Of one frame, from its corner. */
export function labelsOf(column: Column, frame: number): Label[] {
  const result = column.results[frame];
  let match = known.get(result);
  if (!match) known.set(result, (match = place(column, frame)));
  return match;
}

/** Whether a frame's labels can be drawn at once; those of a large one are worked out between two pictures. */
export function labelsReady(column: Column, frame: number): boolean {
  return known.has(column.results[frame]) || column.picture.frames[frame].lines.length <= AT_ONCE;
}

/** Rectangles that can be asked for those that meet another. */
class Taken {
  private readonly buckets = new Map<number, Rect[]>();
  private readonly large: Rect[] = [];

  add(rect: Rect): void {
    if (rect.w > LARGE || rect.h > LARGE) this.large.push(rect);
    else
      this.each(rect, (key) => {
        const list = this.buckets.get(key);
        if (list) list.push(rect);
        else this.buckets.set(key, [rect]);
      });
  }

  count(rect: Rect, most: number): number {
    let result = 0;
    for (const other of this.large) if (meets(rect, other)) result += 1;
    this.each(rect, (key) => {
      if (result <= most) for (const other of this.buckets.get(key) ?? []) if (meets(rect, other)) result += 1;
    });
    return result;
  }

  private each({ x, y, w, h }: Rect, act: (key: number) => void): void {
    for (let i = Math.floor(x / BUCKET); i <= Math.floor((x + w) / BUCKET); i++) {
      for (let j = Math.floor(y / BUCKET); j <= Math.floor((y + h) / BUCKET); j++) act(i * 1_048_576 + j);
    }
  }
}

export function meets(a: Rect, b: Rect): boolean {
  return a.x < b.x + b.w && a.x + a.w > b.x && a.y < b.y + b.h && a.y + a.h > b.y;
}

function place(column: Column, frame: number): Label[] {
  const { picture } = column;
  const result = column.results[frame];
  const spec = picture.specs[frame];
  const { run } = picture.forest;
  const { items, lines } = picture.frames[frame];
  const cells = new Taken();
  items.forEach((item, cell) => {
    if (item < 0) return;
    const named = picture.items[item].tags.length ? 15 : 0;
    cells.add({ x: result.x[cell] - 2, y: result.y[cell] - named, w: spec.w[cell] + 4, h: spec.h[cell] + named });
  });
  if (result.header) cells.add({ x: 0, y: 0, w: result.width, h: result.header });
  const strokes = new Taken();
  if (lines.length <= MOST_LINES) lines.forEach((_, line) => addStrokes(strokes, result, line));
  const results: Label[] = [];
  const seen = new Set<string>();
  lines.forEach((line, number) => {
    const [from, to] = [result.pathStart[number], result.pathStart[number + 1]];
    if (!line.label || to === from) return;
    const text = typeText(run.type(handedOver(picture, line, frame)));
    if (picture.items[line.source].own < 0 && shapeOf(picture.items[line.source].box) === text) return; // its box says so
    if (seen.has(`${line.from},${text}`)) return;
    const w = (subRuler().width(text) * LABEL_SIZE) / 12 + 4;
    let best: Label | null = null;
    let least = MOST_STRUCK + 1;
    for (const [x, y] of candidates(result, from, to, w)) {
      const label = { x, y, w, h: HIGH, text };
      if (x < 1 || y < 1 || x + w > result.width - 1 || y + HIGH > result.height - 1 || cells.count(label, 0)) continue;
      const struck = strokes.count(label, MOST_STRUCK);
      if (struck >= least) continue;
      [best, least] = [label, struck];
      if (!struck) break;
    }
    if (!best) return;
    seen.add(`${line.from},${text}`);
    cells.add(best);
    results.push(best);
  });
  return results;
}

/**
 * The value that a line stands for: as the box at its beginning gave it, before any view that was taken of it on the way.
 *
 * A line in the frame `inside` has left every module up to there, and what the outermost of them returned is what passes.
 */
export function handedOver(
  { leaf, forest, items, frames }: Picture,
  { source, value }: { source: number; value: number },
  inside: number,
): number {
  const { run } = forest;
  const root = run.rootOf(value);
  const returned = new Set<number>();
  for (let item = source; item >= 0;) {
    const { box, frame } = items[item];
    if (box.subject.scope >= 0) returned.add(run.handedOut(box.subject.scope));
    item = frame === inside ? -1 : frames[frame].item;
  }
  let result = value;
  while (result !== root && !returned.has(result)) {
    const view = run.producer[result];
    const position = forest.position[view];
    if (position >= 0 && leaf[position] === source) break; // taken inside of the box
    const before = run.viewed(view, root);
    if (before < 0) break;
    result = before;
  }
  return result;
}

/** The same of a whole edge, which is outside of all that is around its source and not around its target. */
export function handedAlong(picture: Picture, edge: { source: number; target: number; value: number }): number {
  const { items, frames } = picture;
  const around = new Set<number>();
  for (let frame = items[edge.target].frame; frame >= 0; frame = frames[frame].parent) around.add(frame);
  let inside = items[edge.source].frame;
  while (!around.has(inside) && frames[inside].parent >= 0) inside = frames[inside].parent;
  return handedOver(picture, edge, inside);
}

/** Beside the line's beginning, beside its end, and beside every upright stretch on its way. */
function candidates({ path }: FrameResult, from: number, to: number, w: number): [number, number][] {
  const results: [number, number][] = [];
  const beside = (x: number, y: number): void => void results.push([x + 3, y], [x - 3 - w, y]);
  const down = (i: number): number => Math.sign(path[i + 3] - path[i + 1]) || 1;
  const first = down(from) > 0 ? 6 : -6 - HIGH;
  const last = down(to - 4) > 0 ? -9 - HIGH : 9;
  beside(path[from], path[from + 1] + first);
  beside(path[to - 2], path[to - 1] + last);
  beside(path[from], path[from + 1] + first + Math.sign(first) * 9);
  for (let i = from; i + 2 < to && results.length < 24; i += 2) {
    const high = Math.abs(path[i + 3] - path[i + 1]);
    if (path[i] === path[i + 2] && high > HIGH + 6) beside(path[i], (path[i + 1] + path[i + 3] - HIGH) / 2);
    else if (path[i + 1] === path[i + 3] && Math.abs(path[i + 2] - path[i]) > w + 8) {
      const x = (path[i] + path[i + 2] - w) / 2;
      results.push([x, path[i + 1] - HIGH - 2], [x, path[i + 1] + 2]);
    }
  }
  return results;
}

function addStrokes(strokes: Taken, { path, pathStart }: FrameResult, line: number): void {
  for (let i = pathStart[line]; i + 2 < pathStart[line + 1]; i += 2) {
    const [x0, y0, x1, y1] = [path[i], path[i + 1], path[i + 2], path[i + 3]];
    const steps = x0 === x1 || y0 === y1 ? 1 : 6;
    for (let step = 0; step < steps; step++) {
      // Along a curve that leaves and arrives upright.
      const bend = (t: number): number => t * t * (3 - 2 * t);
      const [a, b] = [step / steps, (step + 1) / steps];
      const [ax, bx] = steps > 1 ? [x0 + (x1 - x0) * bend(a), x0 + (x1 - x0) * bend(b)] : [x0, x1];
      const [ay, by] = [y0 + (y1 - y0) * a, y0 + (y1 - y0) * b];
      strokes.add({
        x: Math.min(ax, bx) - 0.5,
        y: Math.min(ay, by) - 0.5,
        w: Math.abs(bx - ax) + 1,
        h: Math.abs(by - ay) + 1,
      });
    }
  }
}
