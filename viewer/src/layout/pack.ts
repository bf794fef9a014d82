/** Parts of a frame that nothing joins: each is laid out on its own, and they are set in rows to suit the window. */

import { bent } from "./bend.ts";
import { arrange, ROOM, type Cells, type Lines, type Room, type Sheet, type Spacing } from "./layered.ts";
import { oversize } from "./wrap.ts";

export interface Part {
  cells: number[];
  lines: number[];
}

interface Placed {
  x: number[];
  y: number[];
  w: number;
  h: number;
}

const BETWEEN = 26;
const SMALL = 0.5; // of the tallest part: one that is no taller is set beside or below the tall ones

/** A frame's cells and lines, laid out. */
export function set(cells: Cells, lines: Lines, spacing: Spacing): Sheet {
  const parts = partsOf(cells, lines);
  if (parts.length < 2) return one(cells, lines, spacing);
  const sheets = parts.map((part) =>
    part.cells.length === 1
      ? single(cells, part.cells[0])
      : one(takeCells(cells, part), takeLines(lines, part, numbers(cells, part)), spacing),
  );
  return joined(cells, lines, parts, sheets, together(parts, sheets, cells, spacing.room ?? ROOM));
}

function one(cells: Cells, lines: Lines, spacing: Spacing): Sheet {
  return bent(cells, lines, spacing) ?? arrange(cells, lines, spacing);
}

function single(cells: Cells, cell: number): Sheet {
  const [w, h] = [cells.w[cell], cells.h[cell]];
  return {
    width: w,
    height: h,
    x: Float64Array.of(0),
    y: Float64Array.of(0),
    path: new Float64Array(0),
    pathStart: Int32Array.of(0),
    crossings: 0,
    columns: 1,
    top: Float64Array.of(0),
    bottom: Float64Array.of(h),
  };
}

/** Cells that lines join, in the order of execution; whatever touches the frame's ports is one part, the first. */
export function partsOf(cells: Cells, lines: Lines): Part[] {
  const count = cells.w.length;
  const above = Int32Array.from({ length: count }, (_, i) => i);
  const top = (cell: number): number => {
    while (above[cell] !== cell) cell = above[cell] = above[above[cell]];
    return cell;
  };
  const port = cells.edge.findIndex((edge) => edge !== 0);
  for (let cell = 0; cell < count; cell++) if (cells.edge[cell]) above[top(cell)] = top(port);
  for (let i = 0; i < lines.src.length; i++) above[top(lines.src[i])] = top(lines.dst[i]);
  const parts = new Map<number, Part>();
  const sorted = Int32Array.from({ length: count }, (_, i) => i).sort(
    (a, b) => cells.order[a] - cells.order[b] || a - b,
  );
  if (port >= 0) parts.set(top(port), { cells: [], lines: [] });
  for (const cell of sorted) {
    const part = parts.get(top(cell));
    if (part) part.cells.push(cell);
    else parts.set(top(cell), { cells: [cell], lines: [] });
  }
  for (let i = 0; i < lines.src.length; i++) parts.get(top(lines.src[i]))!.lines.push(i);
  return [...parts.values()];
}

export function numbers(cells: Cells, part: Part): Int32Array {
  const results = new Int32Array(cells.w.length).fill(-1);
  part.cells.forEach((cell, at) => (results[cell] = at));
  return results;
}

export function takeCells(cells: Cells, part: Part): Cells {
  const { cells: own } = part;
  return {
    w: Float64Array.from(own, (cell) => cells.w[cell]),
    h: Float64Array.from(own, (cell) => cells.h[cell]),
    order: Int32Array.from(own, (cell) => cells.order[cell]),
    edge: Uint8Array.from(own, (cell) => cells.edge[cell]),
  };
}

export function takeLines(lines: Lines, { lines: own }: Part, number: Int32Array): Lines {
  return {
    src: Int32Array.from(own, (line) => number[lines.src[line]]),
    dst: Int32Array.from(own, (line) => number[lines.dst[line]]),
    key: Int32Array.from(own, (line) => lines.key[line]),
    exit: Float64Array.from(own, (line) => lines.exit[line]),
    entry: Float64Array.from(own, (line) => lines.entry[line]),
  };
}

/** Where each part goes: tall ones in rows, small ones beside or below them, whatever is drawn larger in the window. */
function together(parts: Part[], sheets: Sheet[], cells: Cells, room: Room): Placed {
  const tallest = sheets.reduce((most, sheet) => Math.max(most, sheet.height), 0);
  const hasPorts = parts[0].cells.some((cell) => cells.edge[cell] !== 0);
  const tall: number[] = [];
  const small: number[] = [];
  sheets.forEach((sheet, i) => ((hasPorts ? i === 0 : sheet.height > tallest * SMALL) ? tall : small).push(i));
  let best: Placed | null = null;
  let least = Infinity;
  const see = (placed: Placed): void => {
    const cost = oversize(placed, { w: room.w / 4, h: room.h / 4 }); // what fits may still be smaller
    if (cost >= least - 1e-9) return;
    least = cost;
    best = placed;
  };
  for (const outer of shelves(sheets, tall, room)) {
    if (!small.length) see(outer);
    else {
      for (const inner of shelves(sheets, small, room)) {
        see(beside(outer, inner, sheets.length, tall, small, true));
        if (!hasPorts) see(beside(outer, inner, sheets.length, tall, small, false));
      }
    }
  }
  return best!;
}

/** Rows of several widths to choose from; the places are by number among `which`. */
function shelves(sheets: Sheet[], which: number[], room: Room): Placed[] {
  let [widest, area] = [0, 0];
  for (const i of which) {
    widest = Math.max(widest, sheets[i].width);
    area += (sheets[i].width + BETWEEN) * (sheets[i].height + BETWEEN);
  }
  const wanted = Math.sqrt((area * room.w) / room.h);
  const limits =
    which.length === 1
      ? [widest]
      : [widest, room.w, ...[0.5, 0.7, 0.85, 1, 1.2, 1.5, 2].map((share) => Math.max(widest, wanted * share))];
  return [...new Set(limits)].map((limit) => shelf(sheets, which, limit));
}

function shelf(sheets: Sheet[], which: number[], limit: number): Placed {
  const placed: Placed = { x: [], y: [], w: 0, h: 0 };
  let [x, y, high] = [0, 0, 0];
  for (const i of which) {
    if (x && x + sheets[i].width > limit + 0.5) [x, y, high] = [0, y + high + BETWEEN, 0];
    placed.x.push(x);
    placed.y.push(y);
    placed.w = Math.max(placed.w, x + sheets[i].width);
    high = Math.max(high, sheets[i].height);
    placed.h = Math.max(placed.h, y + high);
    x += sheets[i].width + BETWEEN;
  }
  return placed;
}

function beside(outer: Placed, inner: Placed, count: number, tall: number[], small: number[], right: boolean): Placed {
  const [dx, dy] = right ? [outer.w + BETWEEN, 0] : [0, outer.h + BETWEEN];
  const x = new Array<number>(count);
  const y = new Array<number>(count);
  tall.forEach((i, at) => ([x[i], y[i]] = [outer.x[at], outer.y[at]]));
  small.forEach((i, at) => ([x[i], y[i]] = [inner.x[at] + dx, inner.y[at] + dy]));
  return { x, y, w: Math.max(outer.w, inner.w + dx), h: Math.max(outer.h, inner.h + dy) };
}

function joined(cells: Cells, lines: Lines, parts: Part[], sheets: Sheet[], places: Placed): Sheet {
  const count = cells.w.length;
  const [x, y, top, bottom] = [0, 0, 0, 0].map(() => new Float64Array(count));
  const flip = new Uint8Array(count);
  const owner = new Int32Array(lines.src.length);
  const index = new Int32Array(lines.src.length);
  let [crossings, columns] = [0, 1];
  parts.forEach((part, number) => {
    const sheet = sheets[number];
    const [dx, dy] = [places.x[number], places.y[number]];
    part.cells.forEach((cell, at) => {
      x[cell] = sheet.x[at] + dx;
      y[cell] = sheet.y[at] + dy;
      top[cell] = sheet.top[at] + dy;
      bottom[cell] = sheet.bottom[at] + dy;
      flip[cell] = sheet.flip ? sheet.flip[at] : 0;
    });
    for (let i = 0; i < sheet.path.length; i += 2) {
      sheet.path[i] += dx;
      sheet.path[i + 1] += dy;
    }
    part.lines.forEach((line, at) => {
      owner[line] = number;
      index[line] = at;
    });
    crossings += sheet.crossings;
    columns = Math.max(columns, sheet.columns);
  });
  const pathStart = new Int32Array(lines.src.length + 1);
  const path = new Float64Array(sheets.reduce((sum, sheet) => sum + sheet.path.length, 0));
  for (let line = 0; line < owner.length; line++) {
    const { path: own, pathStart: start } = sheets[owner[line]];
    const knots = own.subarray(start[index[line]], start[index[line] + 1]);
    path.set(knots, pathStart[line]);
    pathStart[line + 1] = pathStart[line] + knots.length;
  }
  return { width: places.w, height: places.h, x, y, path, pathStart, crossings, columns, top, bottom, flip };
}
