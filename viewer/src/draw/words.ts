/** What is written on a box: all that it says, or from farther away its name alone. Each gives the place of its + button. */

import type { Box } from "../tree/box.ts";
import { face, signOf, titleRuler } from "./measure.ts";
import type { Look } from "./painter.ts";
import type { Rect } from "./scene.ts";
import { round } from "./shapes.ts";
import { FONT } from "./text.ts";
import { inkOn } from "./theme.ts";

export const TEXT_FROM = 0.42; // scale from which on a box has its button
const NAME = 11; // pixels that a name should have
const SMALL = 8; // and that it may have
const SMALLEST = 6.5; // for a name to be whole
const WIDER = 1.04; // small letters are drawn a little wider than large ones
const LEFT = 13;
const RIGHT = 7;
const BESIDE = 5; // between a name and what follows it
const FEWEST = 6; // letters of a name that is cut: fewer tell nothing

/** From farther away: the name alone, as large as is needed to read it and as the box allows. */
export function drawName(
  context: CanvasRenderingContext2D,
  box: Box,
  { x, y, w, h }: Rect,
  fill: string,
  scale: number,
  look: Look,
): Rect | null {
  const { badge, title } = face(box);
  const sign = box.canOpen && scale >= TEXT_FROM && !look.still ? 14 : 0;
  const isEnd = box.kind === "input" || box.kind === "output";
  const room = isEnd ? w - 12 : w - LEFT - RIGHT - (sign && sign + BESIDE);
  const beside = badge ? titleRuler().width(badge) + 12 + BESIDE : 0;
  const result = fitted(title, signOf(box), room, beside, h, scale);
  if (!result) return null;
  const { text, size } = result;
  const end = badge ? (titleRuler().width(badge) * size) / 13 + size * 0.7 : 0;
  context.fillStyle = fill === look.theme.card ? look.theme.ink : inkOn(fill);
  context.font = `600 ${size}px ${FONT}`;
  context.textBaseline = "middle";
  context.textAlign = isEnd ? "center" : "left";
  context.fillText(text, isEnd ? x + w / 2 : x + LEFT, y + h / 2 + size * 0.04);
  if (sign) {
    context.textAlign = "center";
    context.fillText("+", x + w - 11, y + h / 2);
  }
  if (badge) {
    context.fillStyle = look.theme.accent;
    round(context, x + w - sign - 6 - end, y + h / 2 - size * 0.7, end, size * 1.4, size * 0.35);
    context.fill();
    context.fillStyle = look.theme.dark ? "#10131a" : "#ffffff";
    context.textAlign = "center";
    context.fillText(badge, x + w - sign - 6 - end / 2, y + h / 2 + size * 0.04);
  }
  return sign ? { x: x + w - 24, y, w: 24, h } : null;
}

/** The name and its size: whole, if need be without the signs that colours say as well, and else with its middle left out. */
export function fitted(
  title: string,
  signs: string,
  room: number,
  beside: number,
  high: number,
  scale: number,
): { text: string; size: number } | null {
  const most = Math.min(NAME / scale, high * 0.75);
  const sizeOf = (text: string): number => Math.min(most, (room * 13) / (titleRuler().width(text) * WIDER + beside));
  const plain = signs && title.startsWith(signs) ? title.slice(signs.length) : title;
  const whole = [title, plain].find((text) => sizeOf(text) * scale >= SMALLEST && !text.includes("…"));
  if (whole) return { text: whole, size: sizeOf(whole) };
  const size = Math.min(most, SMALL / scale);
  if (size * scale < SMALLEST) return null;
  const text = titleRuler().fit(plain, (room * 13) / size - beside);
  return text.length < FEWEST + 1 ? null : { text, size };
}

export function drawWords(
  context: CanvasRenderingContext2D,
  box: Box,
  { x, y, w, h }: Rect,
  fill: string,
  look: Look,
): Rect | null {
  const { theme } = look;
  const { title, sub, badge } = face(box);
  const isEnd = box.kind === "input" || box.kind === "output";
  const plainFill = fill === theme.card;
  const ink = plainFill ? theme.ink : inkOn(fill);
  const toggle = box.canOpen && !look.still;
  context.textBaseline = "middle";
  context.textAlign = isEnd ? "center" : "left";
  const left = isEnd ? x + w / 2 : x + 15;
  context.fillStyle = ink;
  context.font = `${box.kind === "op" ? 500 : 600} 13px ${FONT}`;
  context.fillText(title, left, sub ? y + 15.5 : y + h / 2 + 0.5);
  if (sub) {
    context.fillStyle = plainFill ? theme.faint : ink;
    context.font = `11px ${FONT}`;
    context.fillText(sub, left, y + 31.5);
  }
  if (toggle) {
    context.fillStyle = plainFill ? theme.faint : ink;
    context.font = `600 15px ${FONT}`;
    context.textAlign = "center";
    context.fillText("+", x + w - 13, y + 15);
  }
  if (badge) {
    const width = titleRuler().width(badge) + 8;
    context.fillStyle = theme.accent;
    round(context, x + w - 26 - width, y + 6, width, 18, 5);
    context.fill();
    context.fillStyle = theme.dark ? "#10131a" : "#ffffff";
    context.font = `600 12px ${FONT}`;
    context.textAlign = "center";
    context.fillText(badge, x + w - 26 - width / 2, y + 15.5);
  }
  return toggle ? { x: x + w - 25, y: y + 2, w: 24, h: 26 } : null;
}
