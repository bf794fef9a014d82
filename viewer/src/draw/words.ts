/** What is written on a box: all that it says, or from farther away its name alone. */

import type { Box } from "../tree/box.ts";
import { face, signOf, SUB, subRuler, titleRuler } from "./measure.ts";
import type { Look } from "./painter.ts";
import type { Rect } from "./scene.ts";
import { round } from "./shapes.ts";
import { FONT } from "./text.ts";
import { inkOn } from "./theme.ts";

/** The place of its + button, and the size of its name; 0 where it has none. */
export interface Written {
  toggle: Rect | null;
  size: number;
}

export const TEXT_FROM = 0.42; // scale from which on a box has its button
export const NAME = 11; // pixels of every name, seen from farther away
const LEFT = 13;
const RIGHT = 7;
const BESIDE = 5; // between a name and what follows it
const FEWEST = 5; // letters of a name that is cut: fewer tell nothing

/** From farther away: the name alone, as large as is needed to read it and as the box allows, and under a heat map its figure. */
export function drawName(
  context: CanvasRenderingContext2D,
  box: Box,
  { x, y, w, h }: Rect,
  fill: string,
  scale: number,
  look: Look,
): Written {
  const { badge, title } = face(box);
  const sign = box.canOpen && scale >= TEXT_FROM && !look.still ? 14 : 0;
  const isEnd = box.kind === "input" || box.kind === "output";
  const room = isEnd ? w - 12 : w - LEFT - RIGHT - (sign && sign + BESIDE);
  const beside = badge ? titleRuler().width(badge) + 12 + BESIDE : 0;
  const result = fitted(title, signOf(box), room, beside, h, scale);
  if (!result) return { toggle: null, size: 0 };
  const { text, size } = result;
  const end = badge ? (titleRuler().width(badge) * size) / 13 + size * 0.7 : 0;
  context.fillStyle = fill === look.theme.card ? look.theme.ink : inkOn(fill);
  context.font = `600 ${size}px ${FONT}`;
  context.textBaseline = "middle";
  context.textAlign = isEnd ? "center" : "left";
  context.fillText(text, isEnd ? x + w / 2 : x + LEFT, y + h / 2 + size * 0.04);
  const figure = isEnd ? "" : look.heatText(box);
  const right = x + w - (sign ? sign + BESIDE + RIGHT : RIGHT) - (end && end + BESIDE);
  const begin = x + LEFT + ((titleRuler().width(text) + 2 * BESIDE) * size) / 13;
  if (figure && begin + (subRuler().width(figure) * size) / 12 <= right) {
    context.textAlign = "right";
    context.font = `${size}px ${FONT}`;
    context.fillText(figure, right, y + h / 2 + size * 0.04);
    context.font = `600 ${size}px ${FONT}`;
  }
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
  return { toggle: sign ? { x: x + w - 24, y, w: 24, h } : null, size };
}

/** The name at the one size that all have: whole, if need be without the signs that colours say as well, or cut in the middle. */
export function fitted(
  title: string,
  signs: string,
  room: number,
  beside: number,
  high: number,
  scale: number,
): { text: string; size: number } | null {
  const size = NAME / scale;
  if (size > high * 0.75) return null;
  const wide = (room * 13) / size - beside;
  const plain = signs && title.startsWith(signs) ? title.slice(signs.length) : title;
  const whole = [title, plain].find((text) => titleRuler().width(text) <= wide && !text.includes("…"));
  const text = whole ?? titleRuler().fit(title, wide);
  return whole === undefined && text.length < signs.length + FEWEST ? null : { text, size };
}

export function drawWords(
  context: CanvasRenderingContext2D,
  box: Box,
  { x, y, w, h }: Rect,
  fill: string,
  look: Look,
): Written {
  const { theme } = look;
  const { title, sub: plain, badge } = face(box);
  // Under a heat map a box says the figure that its colour stands for.
  const sub = look.heatText(box) || plain;
  const isEnd = box.kind === "input" || box.kind === "output";
  // What is no part of the model lies on the ground's own colour, and speaks as quietly as a plain card.
  const isBeside = box.isAdded || box.kind === "bundle";
  const plainFill = fill === theme.card || (isBeside && fill === theme.unknown);
  const ink = plainFill ? theme.ink : inkOn(fill);
  const toggle = box.canOpen && !look.still;
  context.textBaseline = "middle";
  context.textAlign = isEnd ? "center" : "left";
  const left = isEnd ? x + w / 2 : x + 15;
  const { isAdded } = box;
  context.fillStyle = isAdded && plainFill ? theme.faint : ink;
  context.font = `${isAdded ? 400 : box.kind === "op" ? 500 : 600} 13px ${FONT}`;
  context.fillText(title, left, sub && !isAdded ? y + 15.5 : y + h / 2 + 0.5);
  if (sub) {
    context.fillStyle = plainFill ? theme.faint : ink;
    context.font = SUB;
    const before = isAdded ? titleRuler().width(title) + 3 : 0;
    const room = x + w - (isAdded && toggle ? 22 : 5) - left - before;
    const text = isEnd ? sub : subRuler().fit(sub, room);
    if (isAdded) context.fillText(text, left + before, y + h / 2 + 0.5);
    else context.fillText(text, left, y + 31.5);
  }
  if (toggle) {
    context.fillStyle = plainFill ? theme.faint : ink;
    context.font = `600 15px ${FONT}`;
    context.textAlign = "center";
    context.fillText("+", x + w - 13, isAdded ? y + h / 2 : y + 15);
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
  return { toggle: toggle ? { x: x + w - 25, y: y + 2, w: 24, h: 26 } : null, size: 13 };
}
