/** Frames within frames: the innermost are arranged first, and stand in the next as cells with ports. */

import { BOTTOM, ROOM, TOP, type Room, type Sheet } from "./layered.ts";
import { set } from "./pack.ts";
import { Hash } from "./hash.ts";

export interface FrameSpec {
  w: Float64Array; // of its cells; of one that is a frame, at least so wide
  h: Float64Array;
  order: Int32Array;
  edge: Uint8Array;
  child: Int32Array; // the frame that a cell is, or -1
  src: Int32Array;
  dst: Int32Array;
  key: Int32Array; // of what a loop hands to its next turn below 0
  srcPort: Int32Array; // the port (a cell of the child frame) that a line leaves through, or -1
  dstPort: Int32Array;
  up: boolean; // read from bottom to top
  header: number;
  least: number; // the width that the header needs
  pad: number;
  title?: number; // of the header, what the name takes from the left and the buttons from the right
  buttons?: number;
  spread?: number; // of the gaps between what stands side by side, as a factor
  room?: Room; // of an outermost frame: what it should fit in
}

export interface FrameResult {
  width: number;
  height: number;
  header: number; // of its height, what is kept for its name
  x: Float64Array;
  y: Float64Array;
  path: Float64Array;
  pathStart: Int32Array;
  crossings: number;
  columns: number; // side by side, where its chain was cut
  flip?: Uint8Array; // by cell, whether the frame that it is was turned upside down
}

export const GAP = 26;
export const RANK_GAP = 26;
const NARROW = 8; // between lines that pass a border
const BESIDE_A_NAME = 6;
const ASIDE = 0.25; // of the width of a box, from its middle
const A_WINDOW = 900; // height up to which a frame is looked at from near
const SHARE_OF_A_NAME = 0.03; // of what a frame is taller than that, what its name has besides
const MANY_LEVELS = 6; // of frames in a frame; with more, names have less of its height, which would grow with each by the same factor
const LEAST: Room = { w: 280, h: 240 };
const SHARED = 1.5; // frames that stand one below the other as if they were one
const WIDEST = 5; // what is spread more than that is spread downwards instead: there is very little to show
const DOWNWARDS = 0.8;
const SPREAD_PAD = 80; // beside what is in a frame, for each time that gaps are spread
const BESIDE = 50; // height that what stands in a frame above or below another frame takes from it

export class Layout {
  private readonly cache = new Map<string, FrameResult>();

  /** All frames of a picture; a frame comes after the one that it is in. What has not changed is not worked out again. */
  all(specs: FrameSpec[]): FrameResult[] {
    const results: FrameResult[] = new Array<FrameResult>(specs.length);
    const used = new Map<string, FrameResult>();
    const rooms = roomsOf(specs);
    const levels = new Int32Array(specs.length); // of frames in each
    for (let i = specs.length - 1; i >= 0; i--) {
      const spec = specs[i];
      for (const child of spec.child) if (child >= 0) levels[i] = Math.max(levels[i], levels[child] + 1);
      sizeCells(spec, results);
      const signature = `${sign(spec, results, rooms[i])}:${levels[i]}`;
      const known = this.cache.get(signature) ?? used.get(signature);
      results[i] = known ?? frame(spec, results, rooms[i], levels[i]);
      used.set(signature, results[i]);
    }
    if (this.cache.size > 20_000) this.cache.clear();
    for (const [signature, result] of used) this.cache.set(signature, result);
    turn(specs, results);
    return results;
  }
}

/** Each frame may be about as large as the one that it is in, less what stands there besides; several share its height by what they hold. */
function roomsOf(specs: FrameSpec[]): Room[] {
  const rooms: Room[] = new Array<Room>(specs.length);
  const held = new Float64Array(specs.length); // boxes in each, at any depth
  for (let i = specs.length - 1; i >= 0; i--) {
    specs[i].child.forEach((frame, cell) => (held[i] += frame >= 0 ? held[frame] : specs[i].edge[cell] ? 0 : 1));
  }
  specs.forEach(({ child, room, header, pad }, i) => {
    const { w, h } = (rooms[i] ??= room ?? ROOM);
    let together = 0;
    for (const frame of child) if (frame >= 0) together += held[frame];
    const beside = BESIDE * Math.min(3, child.length - 1);
    const [wide, high] = [Math.max(LEAST.w, w - 2 * pad), Math.max(0.6 * h, h - header - 2 * pad - beside)];
    for (const frame of child) {
      if (frame >= 0)
        rooms[frame] = {
          w: wide,
          h: Math.max(LEAST.h, high * Math.min(1, (SHARED * held[frame]) / Math.max(1, together))),
        };
    }
  });
  return rooms;
}

/** Turn round what stands in a half that runs the other way. */
function turn(specs: FrameSpec[], results: FrameResult[]): void {
  const turned = new Uint8Array(specs.length);
  specs.forEach((spec, i) => {
    const { flip } = results[i];
    spec.child.forEach((frame, cell) => {
      if (frame >= 0) turned[frame] = turned[i] ^ (flip ? flip[cell] : 0);
    });
    if (turned[i]) results[i] = upended(spec, results[i]);
  });
}

const upendings = new WeakMap<FrameResult, FrameResult>();

function upended(spec: FrameSpec, result: FrameResult): FrameResult {
  let frameResult = upendings.get(result);
  if (frameResult) return frameResult;
  const { height, header } = result;
  const path = result.path.slice();
  for (let i = 1; i < path.length; i += 2)
    path[i] = path[i] <= 0 ? height : path[i] >= height ? 0 : header + height - path[i];
  frameResult = { ...result, path, y: Float64Array.from(result.y, (y, cell) => header + height - y - spec.h[cell]) };
  upendings.set(result, frameResult);
  return frameResult;
}

function sizeCells(spec: FrameSpec, results: FrameResult[]): void {
  for (let cell = 0; cell < spec.child.length; cell++) {
    const child = spec.child[cell];
    if (child < 0) continue;
    spec.w[cell] = results[child].width;
    spec.h[cell] = results[child].height;
  }
}

function sign(spec: FrameSpec, results: FrameResult[], room: Room): string {
  const hash = new Hash();
  hash.begin(spec.up ? 2 : 1);
  for (const column of [spec.w, spec.h]) for (const n of column) hash.add(n * 8);
  for (const column of [spec.edge, spec.src, spec.dst]) for (const n of column) hash.add(n);
  const base = spec.order.length ? spec.order.reduce((a, b) => (b >= 0 && b < a ? b : a), 0x7ffffffe) : 0;
  for (const n of spec.order) hash.add(n < 0 || n === 0x7fffffff ? n : n - base);
  const keys = new Map<number, number>();
  for (let i = 0; i < spec.src.length; i++) {
    let key = keys.get(spec.key[i]);
    if (key === undefined) keys.set(spec.key[i], (key = keys.size));
    hash.add(spec.key[i] < 0 ? -1 - key : key);
    hash.add(offset(spec, results, spec.src[i], spec.srcPort[i]) * 8);
    hash.add(offset(spec, results, spec.dst[i], spec.dstPort[i]) * 8);
  }
  return `${hash.end()}:${spec.w.length}:${spec.src.length}:${spec.header}:${spec.least}:${spec.title}:${spec.buttons}:${spec.spread}:${room.w | 0}:${room.h | 0}`;
}

/** Where a port of a child frame lies, from the middle of that frame. */
function offset(spec: FrameSpec, results: FrameResult[], cell: number, port: number): number {
  const child = spec.child[cell];
  return child >= 0 && port >= 0 ? results[child].x[port] + 4 - results[child].width / 2 : 0;
}

/** Where what a loop hands to its next turn touches a box: beside the lines that run the other way through the same side. */
function aside(spec: FrameSpec, cell: number, line: number): number {
  return spec.key[line] < 0 && spec.child[cell] < 0 && !spec.edge[cell] ? ASIDE * spec.w[cell] : 0;
}

function frame(spec: FrameSpec, results: FrameResult[], room: Room, levels: number): FrameResult {
  const { spread = 1 } = spec;
  const lines = {
    src: spec.src.slice(),
    dst: spec.dst.slice(),
    key: spec.key,
    exit: Float64Array.from(spec.src, (cell, i) => offset(spec, results, cell, spec.srcPort[i]) + aside(spec, cell, i)),
    entry: Float64Array.from(
      spec.dst,
      (cell, i) => offset(spec, results, cell, spec.dstPort[i]) + aside(spec, cell, i),
    ),
  };
  const rankGap = RANK_GAP * (1 + DOWNWARDS * Math.max(0, spread - WIDEST));
  const sheet = set(spec, lines, { gap: GAP * Math.min(spread, WIDEST), rankGap, wrap: true, room });
  return dressed(spec, sheet, levels);
}

/** The sheet with its margins and header, the right way up, its lines drawn out to the frame's border. */
function dressed(spec: FrameSpec, sheet: Sheet, levels: number): FrameResult {
  const { pad } = spec;
  const header = headerOf(spec.header, sheet.height, levels);
  const upper = spec.up ? BOTTOM : TOP;
  const ports = spec.edge.reduce((sum, edge) => sum + Number(edge === upper), 0);
  const passing = spec.header ? (spec.title ?? 0) + (spec.buttons ?? 0) + 2 * BESIDE_A_NAME + ports * NARROW : 0;
  const beside = spec.header ? pad + (Math.min(spec.spread ?? 1, WIDEST) - 1) * SPREAD_PAD : pad;
  const width = Math.max(sheet.width + 2 * beside, spec.least, passing);
  const left = (width - sheet.width) / 2;
  const height = sheet.height + header + 2 * pad;
  const path = sheet.path;
  for (let cell = 0; cell < sheet.x.length; cell++) {
    sheet.x[cell] += left;
    if (spec.up) sheet.y[cell] = sheet.height - sheet.y[cell] - spec.h[cell];
    sheet.y[cell] += header + pad;
  }
  for (let i = 0; i < path.length; i += 2) {
    path[i] += left;
    if (spec.up) path[i + 1] = sheet.height - path[i + 1];
    path[i + 1] += header + pad;
  }
  for (let line = 0; line < spec.src.length; line++) {
    const from = sheet.pathStart[line];
    const to = sheet.pathStart[line + 1];
    if (from === to) continue;
    const border = (edge: number): number => ((edge === TOP) !== spec.up ? 0 : height);
    if (spec.edge[spec.src[line]]) path[from + 1] = border(spec.edge[spec.src[line]]);
    if (spec.edge[spec.dst[line]]) path[to - 1] = border(spec.edge[spec.dst[line]]);
  }
  keepOff(spec, sheet, width, header);
  return {
    width,
    height,
    header,
    x: sheet.x,
    y: sheet.y,
    path,
    pathStart: sheet.pathStart,
    crossings: sheet.crossings,
    columns: sheet.columns,
    flip: sheet.flip,
  };
}

/** What frames are in is looked at from farther away, and its name has to be larger then. */
function headerOf(header: number, inside: number, levels: number): number {
  if (!header || !levels) return header;
  const height = Math.max(0, inside - A_WINDOW) * Math.min(1, MANY_LEVELS / levels);
  return header + height * SHARE_OF_A_NAME;
}

/** Lines through the upper border pass between the name and the buttons, where there is room. */
function keepOff(spec: FrameSpec, sheet: Sheet, width: number, header: number): void {
  const [low, high] = [(spec.title ?? 0) + BESIDE_A_NAME, width - (spec.buttons ?? 0) - BESIDE_A_NAME];
  const upper = spec.up ? BOTTOM : TOP;
  const ports = Array.from(sheet.x.keys())
    .filter((cell) => spec.edge[cell] === upper)
    .sort((a, b) => sheet.x[a] - sheet.x[b]);
  if (!header || !ports.length || high - low < (ports.length - 1) * NARROW) return;
  const index = ports.map((cell) => sheet.x[cell] + 4);
  for (let i = 0; i < index.length; i++) index[i] = Math.max(index[i], i ? index[i - 1] + NARROW : low);
  for (let i = index.length - 1; i >= 0; i--)
    index[i] = Math.min(index[i], i < index.length - 1 ? index[i + 1] - NARROW : high);
  ports.forEach((cell, i) => (sheet.x[cell] = index[i] - 4));
  for (let line = 0; line < spec.src.length; line++) {
    const [from, to] = [sheet.pathStart[line], sheet.pathStart[line + 1]];
    if (to - from < 6) continue;
    for (const [cell, end, next] of [
      [spec.src[line], from, from + 2],
      [spec.dst[line], to - 2, to - 4],
    ]) {
      if (spec.edge[cell] !== upper || sheet.path[end + 1] !== 0) continue;
      sheet.path[end] = sheet.path[next] = sheet.x[cell] + 4;
      sheet.path[next + 1] = header;
    }
  }
}
