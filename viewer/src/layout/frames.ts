/** Frames within frames: the innermost are arranged first, and stand in the next as cells with ports. */

import { arrange, TOP, type Sheet } from "./layered.ts";
import { Hash } from "../tree/forest.ts";

export interface FrameSpec {
  w: Float64Array; // of its cells; of one that is a frame, at least so wide
  h: Float64Array;
  order: Int32Array;
  edge: Uint8Array;
  child: Int32Array; // the frame that a cell is, or -1
  src: Int32Array;
  dst: Int32Array;
  key: Int32Array;
  srcPort: Int32Array; // the port (a cell of the child frame) that a line leaves through, or -1
  dstPort: Int32Array;
  up: boolean; // read from bottom to top
  header: number;
  least: number; // the width that the header needs
  pad: number;
}

export interface FrameResult {
  width: number;
  height: number;
  x: Float64Array;
  y: Float64Array;
  path: Float64Array;
  pathStart: Int32Array;
  crossings: number;
}

export const GAP = 26;
export const RANK_GAP = 40;

export class Layout {
  private readonly cache = new Map<string, FrameResult>();

  /** All frames of a picture; a frame comes after the one that it is in. What has not changed is not worked out again. */
  all(specs: FrameSpec[]): FrameResult[] {
    const results: FrameResult[] = new Array(specs.length);
    const used = new Map<string, FrameResult>();
    for (let i = specs.length - 1; i >= 0; i--) {
      const spec = specs[i];
      sizeCells(spec, results);
      const signature = sign(spec, results);
      const known = this.cache.get(signature) ?? used.get(signature);
      results[i] = known ?? frame(spec, results);
      used.set(signature, results[i]);
    }
    if (this.cache.size > 20_000) this.cache.clear();
    for (const [signature, result] of used) this.cache.set(signature, result);
    return results;
  }
}

function sizeCells(spec: FrameSpec, results: FrameResult[]): void {
  for (let cell = 0; cell < spec.child.length; cell++) {
    const child = spec.child[cell];
    if (child < 0) continue;
    spec.w[cell] = results[child].width;
    spec.h[cell] = results[child].height;
  }
}

function sign(spec: FrameSpec, results: FrameResult[]): string {
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
    hash.add(key);
    hash.add(offset(spec, results, spec.src[i], spec.srcPort[i]) * 8);
    hash.add(offset(spec, results, spec.dst[i], spec.dstPort[i]) * 8);
  }
  return `${hash.end()}:${spec.w.length}:${spec.src.length}:${spec.header}:${spec.least}`;
}

/** Where a port of a child frame lies, from the middle of that frame. */
function offset(spec: FrameSpec, results: FrameResult[], cell: number, port: number): number {
  const child = spec.child[cell];
  return child >= 0 && port >= 0 ? results[child].x[port] + 4 - results[child].width / 2 : 0;
}

function frame(spec: FrameSpec, results: FrameResult[]): FrameResult {
  const lines = {
    src: spec.src.slice(),
    dst: spec.dst.slice(),
    key: spec.key,
    exit: Float64Array.from(spec.src, (cell, i) => offset(spec, results, cell, spec.srcPort[i])),
    entry: Float64Array.from(spec.dst, (cell, i) => offset(spec, results, cell, spec.dstPort[i])),
  };
  const sheet = arrange(spec, lines, { gap: GAP, rankGap: RANK_GAP, wrap: true });
  return dressed(spec, sheet);
}

/** The sheet with its margins and header, the right way up, its lines drawn out to the frame's border. */
function dressed(spec: FrameSpec, sheet: Sheet): FrameResult {
  const { pad, header } = spec;
  const width = Math.max(sheet.width + 2 * pad, spec.least);
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
  return { width, height, x: sheet.x, y: sheet.y, path, pathStart: sheet.pathStart, crossings: sheet.crossings };
}
