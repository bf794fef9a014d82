/** The phases of a run laid out side by side, each in its share of the window. */

import type { FrameResult } from "../layout/frames.ts";
import type { LayoutClient } from "../layout/client.ts";
import type { Room } from "../layout/layered.ts";
import type { Picture } from "../tree/picture.ts";
import { READABLE } from "./fitting.ts";
import { headerParts } from "./measure.ts";
import { COLUMN_GAP, ROW_GAP, rowSize, Scene, TITLE_ROOM, type Placed } from "./scene.ts";

export interface Part {
  picture: Picture;
  title: string;
  up: boolean;
}

const FEW = 1500; // cells up to which a second try costs nothing that anyone would notice
const MANY_FRAMES = 400;
const MOST_IN_ROWS = 5;
const MUCH_BETTER = 1.15;

/** Share the window out evenly; where one phase leaves room that another could use, share it out again. */
export async function laidOut(client: LayoutClient, parts: Part[], room: Room, spread = 1): Promise<Scene> {
  const high = room.h - TITLE_ROOM;
  const wide = room.w - COLUMN_GAP * (parts.length - 1);
  const even = parts.map(() => wide / Math.max(1, parts.length));
  let results = await arranged(client, parts, even, high, spread);
  const sizes = results.map(([{ width, height }]) => ({ width, height }));
  const needy = sizes.flatMap(({ width, height }, i) => (height > high || width > even[i] ? [i] : []));
  const spare = wide - sizes.reduce((sum, { width }, i) => sum + (needy.includes(i) ? even[i] : width), 0);
  const cells = parts.reduce((sum, { picture }) => sum + picture.items.length, 0);
  if (needy.length && needy.length < parts.length && spare > 60 && cells <= FEW) {
    const shares = even.map((share, i) => (needy.includes(i) ? share + spare / needy.length : share));
    results = await arranged(client, parts, shares, high, spread);
  }
  const placed = parts.map((part, i) => ({ ...part, results: results[i] }));
  return new Scene(placed, shelvesOf(placed, room));
}

/** Side by side, unless that is too wide to be read, and rows can be read or are much better. */
function shelvesOf(parts: Placed[], room: Room): number[] {
  const scaleOf = (shelves: number[]): number => {
    let [first, w, h] = [0, 0, -ROW_GAP];
    for (const count of shelves) {
      const size = rowSize(parts.slice(first, first + count));
      w = Math.max(w, size.w);
      h += size.h + ROW_GAP;
      first += count;
    }
    return Math.min(room.w / w, room.h / h);
  };
  let best = [parts.length];
  if (parts.length < 2 || parts.length > MOST_IN_ROWS) return best;
  const beside = scaleOf(best);
  if (beside >= READABLE) return best;
  let most = Math.min(READABLE, beside * MUCH_BETTER);
  for (const shelves of splits(parts.length)) {
    const scale = scaleOf(shelves);
    if (scale >= most) [best, most] = [shelves, scale];
  }
  return best;
}

/** All ways to cut a row of so many into rows. */
function splits(count: number): number[][] {
  if (!count) return [[]];
  return Array.from({ length: count }, (_, i) => splits(count - i - 1).map((rest) => [i + 1, ...rest])).flat();
}

async function arranged(
  client: LayoutClient,
  parts: Part[],
  widths: number[],
  h: number,
  spread: number,
): Promise<FrameResult[][]> {
  let base = 0;
  const specs = parts.flatMap(({ picture }, number) => {
    const first = base;
    base += picture.specs.length;
    // What is large anyway is laid out in the window's own shape, whatever stands beside it.
    const w = picture.frames.length > MANY_FRAMES ? widths.reduce((a, b) => a + b, 0) : widths[number];
    return picture.specs.map((spec, i) => ({
      ...spec,
      ...(i ? headerParts(picture.items[picture.frames[i].item].box) : {}),
      w: spec.w.slice(),
      h: spec.h.slice(),
      child: spec.child.map((child) => (child >= 0 ? child + first : -1)),
      room: i ? undefined : { w, h },
      spread,
    }));
  });
  const results = await client.arrange(specs);
  let at = 0;
  return parts.map(({ picture }) => {
    const own = results.slice(at, at + picture.specs.length);
    at += picture.specs.length;
    for (const spec of picture.specs) resize(spec, own);
    return own;
  });
}

/** The layout has copies: the sizes of frames as cells are filled in here once more. */
function resize(spec: { w: Float64Array; h: Float64Array; child: Int32Array }, results: FrameResult[]): void {
  for (let cell = 0; cell < spec.child.length; cell++) {
    if (spec.child[cell] < 0) continue;
    spec.w[cell] = results[spec.child[cell]].width;
    spec.h[cell] = results[spec.child[cell]].height;
  }
}
