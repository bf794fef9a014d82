/** A frame's lines as paths of the canvas, made once for each layout; arrows and thin lines for small scales. */

import type { FrameResult } from "../layout/frames.ts";

export interface Paths {
  curves: Path2D;
  straight: Path2D;
  arrows: Path2D;
}

export interface Pen {
  moveTo: (x: number, y: number) => void;
  lineTo: (x: number, y: number) => void;
  bezierCurveTo: (a: number, b: number, c: number, d: number, x: number, y: number) => void;
  closePath: () => void;
}

const known = new WeakMap<FrameResult, Paths>();

export function pathsOf(result: FrameResult, arrows: boolean[], isApart: (line: number) => boolean): Paths {
  let paths = known.get(result);
  if (paths) return paths;
  paths = { curves: new Path2D(), straight: new Path2D(), arrows: new Path2D() };
  for (let line = 0; line + 1 < result.pathStart.length; line++) {
    if (isApart(line)) continue;
    curve(paths.curves, result, line, arrows[line]);
    rough(paths.straight, result, line);
    if (arrows[line]) arrow(paths.arrows, result, line);
  }
  known.set(result, paths);
  return paths;
}

/** The lines of a frame that begin in a later phase than the first, where several are laid over one another. */
export function laterPaths(
  frame: object,
  result: FrameResult,
  arrows: boolean[],
  isLater: (line: number) => boolean,
): Paths {
  let paths = later.get(frame);
  if (paths) return paths;
  paths = { curves: new Path2D(), straight: new Path2D(), arrows: new Path2D() };
  for (let line = 0; line + 1 < result.pathStart.length; line++) {
    if (!isLater(line)) continue;
    curve(paths.curves, result, line, arrows[line]);
    rough(paths.straight, result, line);
    if (arrows[line]) arrow(paths.arrows, result, line);
  }
  later.set(frame, paths);
  return paths;
}

/** The lines of a frame that one run of a comparison has alone. */
export function sidePaths(
  result: FrameResult,
  side: number,
  arrows: boolean[],
  isSide: (line: number) => boolean,
): Paths {
  let keys = sides.get(result);
  if (!keys) sides.set(result, (keys = []));
  return laterPaths((keys[side] ??= {}), result, arrows, isSide);
}

const sides = new WeakMap<FrameResult, object[]>();
const later = new WeakMap<object, Paths>();
const TIP = 6;
const CORNER = 6;

const tops = new WeakMap<FrameResult, number[]>();

/** Where lines pass a frame's upper border. */
export function atTop(result: FrameResult): number[] {
  let match = tops.get(result);
  if (match) return match;
  const { path, pathStart } = result;
  const places = new Set<number>();
  for (let line = 0; line + 1 < pathStart.length; line++) {
    if (pathStart[line] === pathStart[line + 1]) continue;
    for (const at of [pathStart[line], pathStart[line + 1] - 2]) if (path[at + 1] === 0) places.add(path[at]);
  }
  tops.set(result, (match = [...places]));
  return match;
}

/** A line through its knots: curves where it moves sideways, rounded corners where it turns. */
export function curve(pen: Pen, { path, pathStart }: FrameResult, line: number, short = false): void {
  const from = pathStart[line];
  const to = pathStart[line + 1];
  if (to - from < 4) return;
  pen.moveTo(path[from], path[from + 1]);
  for (let i = from + 2; i < to; i += 2) {
    const [x0, y0, x1] = [path[i - 2], path[i - 1], path[i]];
    let y1 = path[i + 1];
    if (short && i === to - 2) y1 -= Math.sign(y1 - path[i - 1] || path[i - 1] - path[i - 3]) * TIP * 0.7;
    if (x0 === x1 || y0 === y1) straight(pen, path, i, to, x0, y0, x1, y1);
    else {
      const middle = (y0 + y1) / 2;
      pen.bezierCurveTo(x0, middle, x1, middle, x1, y1);
    }
  }
}

/** A straight stretch; where the next one stands at right angles to it, round the corner. */
function straight(
  pen: Pen,
  path: Float64Array,
  i: number,
  to: number,
  x0: number,
  y0: number,
  x1: number,
  y1: number,
): void {
  const [nx, ny] = i + 2 < to ? [path[i + 2], path[i + 3]] : [x1, y1];
  const turns = (x0 === x1 && ny === y1 && nx !== x1) || (y0 === y1 && nx === x1 && ny !== y1);
  const radius = Math.min(
    CORNER,
    (Math.abs(x1 - x0) + Math.abs(y1 - y0)) / 2,
    (Math.abs(nx - x1) + Math.abs(ny - y1)) / 2,
  );
  if (!turns || radius < 1) return pen.lineTo(x1, y1);
  const [dx, dy] = [Math.sign(x1 - x0) * radius, Math.sign(y1 - y0) * radius];
  const [ex, ey] = [x1 + Math.sign(nx - x1) * radius, y1 + Math.sign(ny - y1) * radius];
  pen.lineTo(x1 - dx, y1 - dy);
  pen.bezierCurveTo(x1, y1, x1, y1, ex, ey);
}

function rough(pen: Pen, { path, pathStart }: FrameResult, line: number): void {
  const from = pathStart[line];
  const to = pathStart[line + 1];
  if (to - from < 4) return;
  pen.moveTo(path[from], path[from + 1]);
  for (let i = from + 2; i < to; i += 2) {
    if (i < to - 2 && path[i] === path[i - 2] && path[i] === path[i + 2]) continue;
    pen.lineTo(path[i], path[i + 1]);
  }
}

export function arrow(pen: Pen, { path, pathStart }: FrameResult, line: number): void {
  const to = pathStart[line + 1];
  if (to - pathStart[line] < 4) return;
  const x = path[to - 2];
  const y = path[to - 1];
  let before = to - 4;
  while (before > pathStart[line] && path[before + 1] === y) before -= 2;
  const direction = y >= path[before + 1] ? 1 : -1;
  pen.moveTo(x, y);
  pen.lineTo(x - TIP * 0.62, y - direction * TIP);
  pen.lineTo(x + TIP * 0.62, y - direction * TIP);
  pen.closePath();
}
