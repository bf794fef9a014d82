/**
 * Frames whose long lines are nested in one another, as the skips of a U-Net are: drawn as a U.
 *
 * The first half runs down on the left and the second up on the right, so that what a skip joins stands side by side and
 * the skip is a short line through the gutter between the two.
 */

import { arrange, BOTTOM, orient, ranksOf, TOP, type Cells, type Lines, type Sheet, type Spacing } from "./layered.ts";
import { numbers, takeCells, takeLines, type Part } from "./pack.ts";

const MOST_CELLS = 600;
const MOST_LINES = 1.7; // for each cell: where there are more, it is a tangle and no U
const LONG = 3; // ranks that a line spans to count
const ENOUGH = 3; // nested lines that make a U
const SHARE = 0.75; // of the pairs of long lines that must be nested
const GUTTER = 40;
const CHANNEL = 9;
const STEP = 5;
const FOOT = 30;

export function bent(cells: Cells, lines: Lines, spacing: Spacing): Sheet | null {
  const count = cells.w.length;
  if (!spacing.wrap || count < 2 * ENOUGH || count > MOST_CELLS || lines.src.length > MOST_LINES * count) return null;
  const own: Lines = {
    ...lines,
    src: lines.src.slice(),
    dst: lines.dst.slice(),
    exit: lines.exit.slice(),
    entry: lines.entry.slice(),
  };
  const turned = orient(cells, own);
  const rank = ranksOf(cells, own);
  const bend = bendOf(cells, own, rank);
  if (bend < 0) return null;
  const side = Uint8Array.from(rank, (r, cell) =>
    cells.edge[cell] === BOTTOM ? 2 : r >= bend && !cells.edge[cell] ? 1 : 0,
  );
  const [left, right] = [0, 1].map((which): Part => {
    const all = Array.from({ length: count }, (_, i) => i).filter((cell) => side[cell] === which);
    const within = Array.from({ length: own.src.length }, (_, i) => i).filter(
      (i) => side[own.src[i]] === which && side[own.dst[i]] === which,
    );
    return { cells: all, lines: within };
  });
  const sheets = [left, right].map((part) =>
    arrange(takeCells(cells, part), takeLines(lines, part, numbers(cells, part)), { ...spacing, wrap: false }),
  );
  const height = Math.max(...sheets.map((sheet) => sheet.height));
  for (const sheet of sheets) stretch(sheet, height);
  return new Bend(cells, own, turned, side, [left, right], sheets).sheet();
}

/** Set the ranks of the shorter half farther apart, so that what belongs together stands at about one height. */
function stretch(sheet: Sheet, height: number): void {
  const tops = [...new Set(sheet.top)].sort((a, b) => a - b);
  const extra = height - sheet.height;
  if (extra < 1 || tops.length < 2) return;
  const knots = tops.flatMap((top, i): [number, number][] => {
    const shift = (extra * i) / (tops.length - 1);
    return [
      [top, shift],
      [sheet.bottom[sheet.top.indexOf(top)], shift],
    ];
  });
  const moved = (y: number): number => {
    const after = knots.findIndex(([at]) => at > y);
    if (after <= 0) return y + (after < 0 ? extra : 0);
    const [[a, from], [b, to]] = [knots[after - 1], knots[after]];
    return y + from + ((to - from) * (y - a)) / (b - a);
  };
  for (const column of [sheet.y, sheet.top, sheet.bottom])
    for (let i = 0; i < column.length; i++) column[i] = moved(column[i]);
  for (let i = 1; i < sheet.path.length; i += 2) sheet.path[i] = moved(sheet.path[i]);
  sheet.height = height;
}

/** The rank at which the second half begins; -1 where long lines are not nested. */
function bendOf(cells: Cells, lines: Lines, rank: Int32Array): number {
  const long = new Map<string, [number, number]>();
  let last = 0;
  for (const r of rank) last = Math.max(last, r);
  for (let i = 0; i < lines.src.length; i++) {
    const [a, b] = [lines.src[i], lines.dst[i]];
    if (cells.edge[a] || cells.edge[b] || rank[b] - rank[a] < LONG) continue;
    long.set(`${rank[a]},${rank[b]}`, [rank[a], rank[b]]);
  }
  const results = [...long.values()];
  if (results.length < ENOUGH || results.length > 60) return -1;
  let [pairs, nested] = [0, 0];
  for (let i = 0; i < results.length; i++) {
    for (let j = i + 1; j < results.length; j++) {
      pairs += 1;
      if ((results[i][0] - results[j][0]) * (results[i][1] - results[j][1]) < 0) nested += 1;
    }
  }
  if (nested < pairs * SHARE) return -1;
  const height = new Float64Array(last + 1);
  for (let cell = 0; cell < rank.length; cell++) height[rank[cell]] = Math.max(height[rank[cell]], cells.h[cell] + 30);
  const total = height.reduce((a, b) => a + b, 0);
  let [best, most, least, reached] = [-1, 0, Infinity, 0];
  for (let r = 1; r <= last; r++) {
    reached += height[r - 1];
    const passing = results.filter(([a, b]) => a < r && b >= r).length;
    const uneven = Math.abs(total - 2 * reached);
    if (passing < most || (passing === most && uneven >= least)) continue;
    [best, most, least] = [r, passing, uneven];
  }
  return most >= ENOUGH ? best : -1;
}

interface Way {
  line: number;
  from: number; // heights at which it leaves its source's gap and enters its target's
  to: number;
}

class Bend {
  private readonly x: Float64Array;
  private readonly y: Float64Array;
  private readonly top: Float64Array;
  private readonly bottom: Float64Array;
  private height: number;

  constructor(
    readonly cells: Cells,
    readonly lines: Lines,
    readonly turned: Uint8Array,
    readonly side: Uint8Array,
    readonly parts: Part[],
    readonly sheets: Sheet[],
  ) {
    const count = cells.w.length;
    [this.x, this.y, this.top, this.bottom] = [0, 0, 0, 0].map(() => new Float64Array(count));
    this.height = Math.max(sheets[0].height, sheets[1].height + FOOT) + FOOT;
  }

  sheet(): Sheet {
    const { cells, lines, side, parts, sheets, height } = this;
    const floor = height - FOOT;
    const across = this.keyed((i) => side[lines.src[i]] === 0 && side[lines.dst[i]] !== 0);
    const out = this.keyed((i) => side[lines.src[i]] === 1 && side[lines.dst[i]] === 2);
    const between = GUTTER + across.size * CHANNEL;
    const start = sheets[0].width + between;
    parts.forEach((part, which) =>
      part.cells.forEach((cell, at) => {
        const sheet = sheets[which];
        this.x[cell] = sheet.x[at] + (which ? start : 0);
        this.y[cell] = floor - (which ? sheet.y[at] + cells.h[cell] : sheet.height - sheet.y[at]);
        [this.top[cell], this.bottom[cell]] = which
          ? [floor - sheet.bottom[at], floor - sheet.top[at]]
          : [floor - sheet.height + sheet.top[at], floor - sheet.height + sheet.bottom[at]];
      }),
    );
    const ways = this.ways(across, out);
    const gutter = this.channels(
      ways.filter((way) => side[lines.src[way.line]] === 0),
      sheets[0].width + GUTTER / 2,
    );
    const outer = this.channels(
      ways.filter((way) => side[lines.src[way.line]] === 1),
      start + sheets[1].width + GUTTER / 2,
    );
    for (let i = 0; i < lines.dst.length; i++) {
      const port = lines.dst[i];
      if (side[port] !== 2) continue;
      this.x[port] = (gutter.get(this.key(i)) ?? outer.get(this.key(i))!).at - 4;
      this.y[port] = this.top[port] = this.bottom[port] = height;
    }
    const pathStart = new Int32Array(lines.src.length + 1);
    const path: number[] = [];
    const index = new Int32Array(lines.src.length);
    parts.forEach((part) => part.lines.forEach((line, at) => (index[line] = at)));
    for (let i = 0; i < lines.src.length; i++) {
      const [a, b] = [side[lines.src[i]], side[lines.dst[i]]];
      if (a === b) this.within(path, sheets[a], index[i], a ? start : 0, a === 1, floor);
      else this.round(path, i, (gutter.get(this.key(i)) ?? outer.get(this.key(i)))!);
      pathStart[i + 1] = path.length;
    }
    const width = start + sheets[1].width + (out.size ? GUTTER / 2 + out.size * CHANNEL : 0);
    return {
      width,
      height,
      x: this.x,
      y: this.y,
      path: Float64Array.from(path),
      pathStart,
      top: this.top,
      bottom: this.bottom,
      crossings: sheets[0].crossings + sheets[1].crossings,
      columns: 2,
      flip: Uint8Array.from(side, (which) => (which === 1 ? 1 : 0)),
    };
  }

  /** Lines of one source and value share their way as far as they go together. */
  private key(line: number): string {
    return `${this.lines.src[line]},${this.lines.key[line]},${this.lines.dst[line]}`;
  }

  private keyed(wanted: (line: number) => boolean): Map<string, number> {
    const results = new Map<string, number>();
    for (let i = 0; i < this.lines.src.length; i++) if (wanted(i)) results.set(this.key(i), i);
    return results;
  }

  /** Heights in the gaps: those that leave or enter the same rank are set a little apart. */
  private ways(...groups: Map<string, number>[]): Way[] {
    const { lines, side, cells } = this;
    const used = new Map<string, number>();
    const next = (key: string): number => {
      const many = used.get(key) ?? 0;
      used.set(key, many + 1);
      return 8 + STEP * (many % 5);
    };
    return groups.flatMap((group) =>
      [...group.values()].map((line): Way => {
        const [a, b] = [lines.src[line], lines.dst[line]];
        const up = side[a] === 1;
        const leave = cells.edge[a] === TOP ? 3 : next(`${up}${up ? this.top[a] : this.bottom[a]}`);
        const from = up ? this.top[a] - leave : this.bottom[a] + leave;
        return { line, from, to: side[b] === 2 ? this.height : this.bottom[b] + next(`true${this.bottom[b]}`) };
      }),
    );
  }

  /** A channel for each, so that those that are nested do not cross. */
  private channels(ways: Way[], left: number): Map<string, Way & { at: number }> {
    const down = ways.filter((way) => way.to >= way.from).sort((a, b) => b.from - a.from);
    const up = ways.filter((way) => way.to < way.from).sort((a, b) => a.from - b.from);
    return new Map([...up, ...down].map((way, i) => [this.key(way.line), { ...way, at: left + i * CHANNEL }]));
  }

  private within(path: number[], sheet: Sheet, line: number, dx: number, mirrored: boolean, floor: number): void {
    for (let i = sheet.pathStart[line]; i < sheet.pathStart[line + 1]; i += 2) {
      path.push(sheet.path[i] + dx, mirrored ? floor - sheet.path[i + 1] : floor - sheet.height + sheet.path[i + 1]);
    }
  }

  private round(path: number[], line: number, way: Way & { at: number }): void {
    const { lines, cells, side } = this;
    const [a, b] = [lines.src[line], lines.dst[line]];
    const sx = this.x[a] + cells.w[a] / 2 + lines.exit[line];
    const up = side[a] === 1;
    const knots = [
      sx,
      up ? this.y[a] : this.y[a] + cells.h[a],
      sx,
      up ? this.top[a] : this.bottom[a],
      sx,
      way.from,
      way.at,
      way.from,
    ];
    if (side[b] === 2) knots.push(way.at, this.height);
    else {
      const tx = this.x[b] + cells.w[b] / 2 + lines.entry[line];
      knots.push(way.at, way.to, tx, way.to, tx, this.bottom[b], tx, this.y[b] + cells.h[b]);
    }
    if (this.turned[line]) for (let i = knots.length - 2; i >= 0; i -= 2) path.push(knots[i], knots[i + 1]);
    else path.push(...knots);
  }
}
