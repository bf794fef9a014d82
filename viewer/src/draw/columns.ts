/** The phases of a run laid out side by side, each in its share of the window. */

import type { FrameResult } from "../layout/frames.ts";
import type { LayoutClient } from "../layout/client.ts";
import type { Room } from "../layout/layered.ts";
import type { Picture } from "../tree/picture.ts";
import { READABLE } from "./fitting.ts";
import { headerParts } from "./measure.ts";
import { COLUMN_GAP, Scene, shelvesSize, TITLE_ROOM, type Placed, type Shelf } from "./scene.ts";

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
  const even = parts.map(() => ({ w: wide / Math.max(1, parts.length), h: high }));
  let results = await arranged(client, parts, even, spread);
  const sizes = results.map(([{ width, height }]) => ({ width, height }));
  const needy = sizes.flatMap(({ width, height }, i) => (height > high || width > even[i].w ? [i] : []));
  const spare = wide - sizes.reduce((sum, { width }, i) => sum + (needy.includes(i) ? even[i].w : width), 0);
  const cells = parts.reduce((sum, { picture }) => sum + picture.items.length, 0);
  if (needy.length && needy.length < parts.length && spare > 60 && cells <= FEW) {
    const shares = even.map(({ w, h }, i) => ({ w: needy.includes(i) ? w + spare / needy.length : w, h }));
    results = await arranged(client, parts, shares, spread);
  }
  let best = shelved(parts, results, room);
  if (best.scale < READABLE && parts.length > 2 && cells <= FEW) {
    const other = await stacked(client, parts, best.results, room, spread);
    if (other.scale >= Math.min(READABLE, best.scale * MUCH_BETTER)) best = other;
  }
  parts.forEach(({ picture }, i) => {
    for (const spec of picture.specs) resize(spec, best.results[i]);
  });
  return new Scene(placedOf(parts, best.results), best.shelves);
}

/** Parts that are laid out, where they stand, and how large they can be drawn. */
interface Arrangement {
  results: FrameResult[][];
  shelves: Shelf[];
  scale: number;
}

function placedOf(parts: Part[], results: FrameResult[][]): Placed[] {
  return parts.map((part, i) => ({ ...part, results: results[i] }));
}

function scaleOf(parts: Placed[], shelves: Shelf[], room: Room): number {
  const { w, h } = shelvesSize(parts, shelves);
  return Math.min(room.w / w, room.h / h);
}

/** Side by side, unless that is too wide to be read, and rows can be read or are much better. */
function shelved(parts: Part[], results: FrameResult[][], room: Room): Arrangement {
  const placed = placedOf(parts, results);
  let shelves = [parts.map(() => 1)];
  const beside = scaleOf(placed, shelves, room);
  let scale = beside;
  if (beside < READABLE && parts.length > 1 && parts.length <= MOST_IN_ROWS) {
    let most = Math.min(READABLE, beside * MUCH_BETTER);
    for (const counts of splits(parts.length)) {
      const rows = counts.map((count) => new Array<number>(count).fill(1));
      const reached = scaleOf(placed, rows, room);
      if (reached >= most) [shelves, most, scale] = [rows, reached, reached];
    }
  }
  return { results, shelves, scale };
}

/** The first with the height of the window to itself, and the others one above another beside it. */
async function stacked(
  client: LayoutClient,
  parts: Part[],
  results: FrameResult[][],
  room: Room,
  spread: number,
): Promise<Arrangement> {
  const others = placedOf(parts, results).slice(1);
  const beside = shelvesSize(others, [[others.length]]).w;
  const rest = Math.max(room.w / 3, room.w - COLUMN_GAP - beside);
  const [first] = await arranged(client, parts.slice(0, 1), [{ w: rest, h: room.h - TITLE_ROOM }], spread);
  const all = [first, ...results.slice(1)];
  const shelves = [[1, others.length]];
  return { results: all, shelves, scale: scaleOf(placedOf(parts, all), shelves, room) };
}

/** All ways to cut a row of so many into rows. */
function splits(count: number): number[][] {
  if (!count) return [[]];
  return Array.from({ length: count }, (_, i) => splits(count - i - 1).map((rest) => [i + 1, ...rest])).flat();
}

async function arranged(client: LayoutClient, parts: Part[], rooms: Room[], spread: number): Promise<FrameResult[][]> {
  let base = 0;
  const specs = parts.flatMap(({ picture }, number) => {
    const first = base;
    base += picture.specs.length;
    // What is large anyway is laid out in the window's own shape, whatever stands beside it.
    const { w: share, h } = rooms[number];
    const w = picture.frames.length > MANY_FRAMES ? rooms.reduce((sum, room) => sum + room.w, 0) : share;
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
