/** The graph as an SVG file: what is open now, all of it, in the colours of the moment. */

import type { App } from "../app.ts";
import { ADDED, REMOVED } from "../data/run.ts";
import { RECOMPUTED } from "../data/recomputed.ts";
import { nameOf } from "./header.ts";
import { keyOf, keyPieces, pictureTitle, TITLE_BASE, TITLE_HEIGHT, TITLE_SIZE } from "./key.ts";
import { LABEL_SIZE, labelsOf } from "./labels.ts";
import { face, subRuler, titleRuler } from "./measure.ts";
import { arrow, curve, type Pen } from "./paths.ts";
import type { Column, Rect } from "./scene.ts";
import { behind, frameFill } from "./shapes.ts";
import { FONT } from "./text.ts";
import { isOdd, ODD } from "./marks.ts";
import type { Box } from "../tree/box.ts";
import { inkOn, type Theme } from "./theme.ts";

class SvgPen implements Pen {
  text = "";
  moveTo(x: number, y: number): void {
    this.text += `M${r(x)} ${r(y)}`;
  }
  lineTo(x: number, y: number): void {
    this.text += `L${r(x)} ${r(y)}`;
  }
  bezierCurveTo(a: number, b: number, c: number, d: number, x: number, y: number): void {
    this.text += `C${r(a)} ${r(b)} ${r(c)} ${r(d)} ${r(x)} ${r(y)}`;
  }
  closePath(): void {
    this.text += "Z";
  }
}

const r = (n: number): string => String(Math.round(n * 10) / 10);

// Names of the traced program are text here as well; characters that XML cannot hold are left out.
const escape = (text: string): string =>
  text
    // eslint-disable-next-line no-control-regex -- they are what is left out
    .replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]/g, "")
    .replaceAll("&", "&amp;")
    .replaceAll("<", "&lt;")
    .replaceAll(">", "&gt;")
    .replaceAll('"', "&quot;");

const BOLD = 'font-weight="600"';
const DASHED = ' stroke-dasharray="6 4"';

type Line = { side: number; carried: boolean; source: number };

/** How lines are drawn: those of both runs, of one alone, what a loop hands to its next turn, and backward laid over forward. */
function kindsOf(
  theme: Theme,
  { picture: { forest, items } }: Column,
): [isOne: (line: Line) => boolean, color: string, isDashed: boolean][] {
  const ofSide =
    (side: number) =>
    (line: Line): boolean =>
      !line.carried && line.side === side;
  const isLater = (line: Line): boolean => {
    const { start } = items[line.source].box;
    return forest.phases.length > 1 && start >= 0 && forest.run.nodePhase[forest.order[start]] > 0;
  };
  return [
    [(line) => ofSide(0)(line) && !isLater(line), theme.wire, false],
    [(line) => ofSide(0)(line) && isLater(line), theme.wireLater, false],
    [ofSide(ADDED), theme.differenceFar[ADDED], false],
    [ofSide(REMOVED), theme.differenceFar[REMOVED], true],
    [(line) => line.carried, theme.link, true],
  ];
}

export function toSvg(app: App): string {
  const scene = app.scene!;
  const { theme } = app;
  const title = pictureTitle(app);
  const key = keyPieces(keyOf(app), scene.width);
  const wide = Math.max(scene.width, key.width, title.width) + 40;
  const tall = TITLE_HEIGHT + scene.height + 30 + (key.height ? key.height + 20 : 0);
  const head = -10 - TITLE_HEIGHT;
  const out: string[] = [
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="-20 ${head} ${r(wide)} ${r(tall)}" width="${r(wide)}" height="${r(tall)}" font-family="${escape(FONT)}">`,
    `<title>${escape(title.text)}</title>`,
    `<rect x="-20" y="${head}" width="100%" height="100%" fill="${theme.ground}"/>`,
  ];
  const text = (x: number, y: number, words: string, size: number, fill: string, more = ""): void => {
    out.push(`<text x="${r(x)}" y="${r(y)}" font-size="${size}" fill="${fill}" ${more}>${escape(words)}</text>`);
  };
  const rect = (x: number, y: number, w: number, h: number, radius: number, fill: string, line: string): void => {
    out.push(
      `<rect x="${r(x)}" y="${r(y)}" width="${r(w)}" height="${r(h)}" rx="${r(radius)}" fill="${fill}" stroke="${line}"/>`,
    );
  };
  const fillRect = (x: number, y: number, w: number, h: number, radius: number, fill: string): void => {
    out.push(`<rect x="${r(x)}" y="${r(y)}" width="${r(w)}" height="${r(h)}" rx="${radius}" fill="${fill}"/>`);
  };
  const bar = (x: number, y: number, h: number, fill: string): void => fillRect(x, y, 4, h, 2, fill);
  /** How often, at the right of a box or frame. */
  const times = (words: string, right: number, y: number, w: number, h: number): void => {
    fillRect(right - w, y, w, h, 5, theme.accent);
    text(right - w / 2, y + h / 2 + 4, words, 12, theme.dark ? "#10131a" : "#ffffff", `${BOLD} text-anchor="middle"`);
  };
  const others = (column: Column, number: number): void => {
    const { frames, items } = column.picture;
    const { item, depth } = frames[number];
    const { box } = items[item];
    if (box.kind !== "fold" || box.opening !== "one") return;
    const { width, height } = column.results[number];
    for (const step of [8, 4])
      rect(
        column.frameX[number] + step,
        column.frameY[number] + step * behind(column),
        width,
        height,
        10,
        frameFill(theme, depth + 1, null),
        theme.frameLine,
      );
  };
  /** The name of a frame on its plate, and how often a repeat ran. */
  const header = (box: Box, x: number, y: number, w: number): void => {
    const count = box.kind === "fold" ? `×${box.count.toLocaleString("en-US")}` : "";
    const badge = count ? titleRuler().width(count) + 14 : 0;
    const name = titleRuler().fit(nameOf(box), Math.max(24, w - badge - 48));
    const wide = titleRuler().width(name);
    const mark = box.isMarked ? RECOMPUTED : "";
    fillRect(x + 8, y + 6, wide + 22 + (mark ? subRuler().width(mark) + 8 : 0), 22, 6, theme.plate);
    bar(x + 14, y + 12, 10, app.paint(box, theme).accent);
    text(x + 23, y + 22, name, 13, theme.ink, BOLD);
    if (mark) text(x + 30 + wide, y + 22, mark, 12, theme.faint);
    if (count) times(count, x + w - 8, y + 6, badge, 22);
  };
  /** What a box says, in the places that it has on the page. */
  const words = (box: Box, { x, y, w, h }: Rect, fill: string): void => {
    const { title: name, sub: plain, badge } = face(box);
    const sub = app.heatText(box) || plain;
    const { isAdded } = box;
    const isEnd = box.kind === "input" || box.kind === "output";
    const isPlain = fill === theme.card || ((isAdded || box.kind === "bundle") && fill === theme.unknown);
    const [ink, quiet] = isPlain ? [theme.ink, theme.faint] : [inkOn(fill), inkOn(fill)];
    const anchor = isEnd ? 'text-anchor="middle"' : "";
    const left = isEnd ? x + w / 2 : x + 15;
    const weight = isAdded ? "" : `font-weight="${box.kind === "op" ? 500 : 600}"`;
    const base = sub && !isAdded ? y + 20 : y + h / 2 + 4.5;
    text(left, base, name, 13, isAdded ? quiet : ink, `${weight} ${anchor}`);
    if (sub && isAdded) text(left + titleRuler().width(name) + 3, base, sub, 12, quiet);
    else if (sub) text(left, y + 35.5, isEnd ? sub : subRuler().fit(sub, x + w - 5 - left), 12, quiet, anchor);
    if (badge) times(badge, x + w - 8, y + 6, titleRuler().width(badge) + 8, 18);
  };
  text(0, head + TITLE_BASE, title.text, TITLE_SIZE, theme.ink, BOLD);
  for (const column of scene.columns) {
    const { picture } = column;
    const heads: string[] = [];
    picture.frames.forEach((frame, number) => {
      const [fx, fy] = [column.frameX[number], column.frameY[number]];
      const result = column.results[number];
      const box = frame.item < 0 ? null : picture.items[frame.item].box;
      rect(fx, fy, result.width, result.height, 10, frameFill(theme, frame.depth, box), theme.frameLine);
      if (!box) text(fx + 4, fy - 10, column.title, 15, theme.faint, BOLD);
      // The other instances of a repeat lie under the lines that reach the one that is shown.
      for (const item of frame.items)
        if (item >= 0 && picture.items[item].own >= 0) others(column, picture.items[item].own);
      const at = `transform="translate(${r(fx)} ${r(fy)})"`;
      for (const [isOne, color, isDashed] of kindsOf(theme, column)) {
        const pen = new SvgPen();
        const tips = new SvgPen();
        frame.lines.forEach((line, i) => {
          if (!isOne(line)) return;
          curve(pen, result, i, line.arrow);
          if (line.arrow) arrow(tips, result, i);
        });
        const dash = isDashed ? DASHED : "";
        if (pen.text) out.push(`<path ${at} d="${pen.text}" fill="none" stroke="${color}" stroke-width="1.3"${dash}/>`);
        if (tips.text) heads.push(`<path ${at} d="${tips.text}" fill="${color}"/>`);
      }
      if (box) header(box, fx, fy, result.width); // after the lines, which pass behind it
      if (app.labels)
        for (const label of labelsOf(column, number))
          text(fx + label.x + 2, fy + label.y + 9, label.text, LABEL_SIZE, theme.faint);
    });
    picture.items.forEach(({ box, own }, item) => {
      if (own >= 0) return;
      const [x, y, w, h] = [column.x[item], column.y[item], column.w[item], column.h[item]];
      const { fill, accent } = app.paint(box, theme);
      const isEnd = box.kind === "input" || box.kind === "output";
      if (box.kind === "fold") rect(x + 4, y + 4 * behind(column), w, h, 7, theme.card, theme.cardLine);
      rect(x, y, w, h, isEnd ? h / 2 : 7, fill, theme.cardLine);
      if (!isEnd) bar(x + 5, y + 7, h - 14, accent);
      words(box, { x, y, w, h }, fill);
      if (column.loops.has(item)) {
        // What it hands to itself in the next turn of a loop.
        const [right, foot, top] = [x + w, r(y + h * 0.75), y + h * 0.25];
        out.push(
          `<path d="M${r(right)} ${foot}C${r(right + 22)} ${foot} ${r(right + 22)} ${r(top)} ${r(right + 6)} ${r(top)}" fill="none" stroke="${theme.link}" stroke-width="1.3"${DASHED}/>`,
        );
        heads.push(
          `<path d="M${r(right)} ${r(top)}L${r(right + 6)} ${r(top - 4)}L${r(right + 6)} ${r(top + 4)}Z" fill="${theme.link}"/>`,
        );
      }
      if (isOdd(box)) {
        out.push(`<circle cx="${r(x + w - 2)}" cy="${r(y + 2)}" r="8" fill="${ODD}"/>`);
        text(x + w - 2, y + 6, "≠", 11, "#1b2330", 'font-weight="700" text-anchor="middle"');
      }
    });
    out.push(...heads);
  }
  const top = scene.height + 20;
  for (const piece of key.pieces) {
    if ("fill" in piece)
      out.push(
        `<rect x="${r(piece.x)}" y="${r(top + piece.y)}" width="${r(piece.w)}" height="${r(piece.h)}" fill="${piece.fill}"/>`,
      );
    else
      text(
        piece.x,
        top + piece.y,
        piece.text,
        12,
        piece.bold ? theme.ink : theme.faint,
        `text-anchor="${piece.anchor}"${piece.bold ? ' font-weight="600"' : ""}`,
      );
  }
  out.push("</svg>");
  return out.join("\n");
}
