/** The graph as an SVG file: what is open now, all of it, in the colours of the moment. */

import type { App } from "../app.ts";
import { ADDED, REMOVED } from "../data/run.ts";
import { RECOMPUTED } from "../data/recomputed.ts";
import { keyOf, keyPieces } from "./key.ts";
import { LABEL_SIZE, labelsOf } from "./labels.ts";
import { face, signOf, titleRuler } from "./measure.ts";
import { arrow, curve, type Pen } from "./paths.ts";
import { behind, frameFill } from "./shapes.ts";
import { FONT } from "./text.ts";
import { isOdd, ODD } from "./marks.ts";
import { inkOn } from "./theme.ts";

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

export function toSvg(app: App): string {
  const scene = app.scene!;
  const { theme } = app;
  const key = keyPieces(keyOf(app), scene.width);
  const [wide, tall] = [Math.max(scene.width, key.width) + 40, scene.height + 30 + (key.height ? key.height + 20 : 0)];
  const out: string[] = [
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="-20 -10 ${r(wide)} ${r(tall)}" width="${r(wide)}" height="${r(tall)}" font-family="${escape(FONT)}">`,
    `<rect x="-20" y="-10" width="100%" height="100%" fill="${theme.ground}"/>`,
  ];
  const text = (x: number, y: number, words: string, size: number, fill: string, more = ""): void => {
    out.push(`<text x="${r(x)}" y="${r(y)}" font-size="${size}" fill="${fill}" ${more}>${escape(words)}</text>`);
  };
  const rect = (x: number, y: number, w: number, h: number, radius: number, fill: string, line: string): void => {
    out.push(
      `<rect x="${r(x)}" y="${r(y)}" width="${r(w)}" height="${r(h)}" rx="${r(radius)}" fill="${fill}" stroke="${line}"/>`,
    );
  };
  for (const column of scene.columns) {
    const { picture } = column;
    const heads: string[] = [];
    picture.frames.forEach((frame, number) => {
      const [fx, fy] = [column.frameX[number], column.frameY[number]];
      const result = column.results[number];
      rect(
        fx,
        fy,
        result.width,
        result.height,
        10,
        frameFill(theme, frame.depth, frame.item < 0 ? null : picture.items[frame.item].box),
        theme.frameLine,
      );
      if (frame.item < 0) text(fx + 4, fy - 10, column.title, 15, theme.faint, 'font-weight="600"');
      else {
        const { box } = picture.items[frame.item];
        const name = `${signOf(box)}${box.label || box.type}${box.kind === "fold" ? ` ×${box.count}` : ""}`;
        text(fx + 14, fy + 22, name, 13, theme.ink, 'font-weight="600"');
        if (box.isMarked) text(fx + 22 + titleRuler().width(name), fy + 22, RECOMPUTED, 11, theme.faint);
      }
      const at = `transform="translate(${r(fx)} ${r(fy)})"`;
      for (const side of [0, ADDED, REMOVED]) {
        const pen = new SvgPen();
        const tips = new SvgPen();
        frame.lines.forEach((line, i) => {
          if (line.side !== side) return;
          curve(pen, result, i, line.arrow);
          if (line.arrow) arrow(tips, result, i);
        });
        const color = side ? theme.differenceFar[side] : theme.wire;
        const dash = side === REMOVED ? ' stroke-dasharray="6 4"' : "";
        if (pen.text) out.push(`<path ${at} d="${pen.text}" fill="none" stroke="${color}" stroke-width="1.3"${dash}/>`);
        if (tips.text) heads.push(`<path ${at} d="${tips.text}" fill="${color}"/>`);
      }
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
      if (!isEnd)
        out.push(`<rect x="${r(x + 5)}" y="${r(y + 7)}" width="4" height="${r(h - 14)}" rx="2" fill="${accent}"/>`);
      const { title, sub, badge } = face(box);
      const ink = fill === theme.card ? theme.ink : inkOn(fill);
      const anchor = isEnd ? 'text-anchor="middle"' : "";
      const left = isEnd ? x + w / 2 : x + 15;
      text(
        left,
        y + (sub ? 20 : h / 2 + 4.5),
        title + (badge ? `  ${badge}` : ""),
        13,
        ink,
        `font-weight="600" ${anchor}`,
      );
      if (sub) text(left, y + 35.5, sub, 11, fill === theme.card ? theme.faint : ink, anchor);
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
