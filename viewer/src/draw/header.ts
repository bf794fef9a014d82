/** The line at the top of a frame: its name and class on the left, its buttons on the right. */

import { RECOMPUTED } from "../data/recomputed.ts";
import type { Box } from "../tree/box.ts";
import type { NamePlace } from "./names.ts";
import { signOf, SUB, subRuler, titleRuler } from "./measure.ts";
import type { Look, Zone } from "./painter.ts";
import type { Rect } from "./scene.ts";
import { round } from "./shapes.ts";
import { FONT } from "./text.ts";

const HIGH = 22;
const SIDE = 8;
const CUT = 0.75; // of a class, what has to be left for it to be worth reading
const FEWEST = 9; // letters of one that is cut

interface Button {
  action: Zone["action"];
  text: string;
  w: number;
  strong: boolean;
}

/** From the right; where room is short, the instance that is shown says how many there are as well. */
function buttonsOf(box: Box, room: number, title: number): Button[] {
  const close: Button = { action: "toggle", text: "–", w: HIGH, strong: false };
  if (box.kind !== "fold") return [close];
  const pager = (text: string, strong: boolean): Button[] => [
    { action: "next", text: "›", w: 20, strong: false },
    { action: "all", text, w: subRuler().width(text) * 1.1 + 12, strong },
    { action: "previous", text: "‹", w: 20, strong: false },
  ];
  const short = [close, badgeOf(box)];
  if (box.opening !== "one") return short;
  const all = [...short, ...pager(`${box.shown + 1} of ${box.count}`, false)];
  const brief = [close, ...pager(`${box.shown + 1}/${box.count}`, true)];
  return [all, brief].find((buttons) => widthOf(buttons) + Math.min(title, 60) + 40 <= room) ?? short;
}

function badgeOf(box: Box): Button {
  const text = `×${box.count.toLocaleString("en-US")}`;
  return { action: "all", text, w: titleRuler().width(text) + 14, strong: true };
}

/** What a frame is called: with its signs, and that of a graph break that ends it. */
export function nameOf(box: Box): string {
  return `${signOf(box)}${box.type.startsWith("⚡") ? "⚡ " : ""}${box.label || box.type}`;
}

/** The same where it has no buttons. */
export function farName(box: Box): string {
  return `${nameOf(box)}${box.kind === "fold" ? ` ×${box.count.toLocaleString("en-US")}` : ""}`;
}

/** What stands beside the name: the class, its name in A, and whether backward ran it again; where there is no room for all, the last. */
function subOf(box: Box, room: number): string {
  const isSaid = box.type === box.label || box.label.startsWith(`${box.type} `);
  const type = isSaid ? "" : box.type.replace(/^⚡ /, ""); // the sign is before the name
  const all = [type, box.was, box.isMarked ? RECOMPUTED : ""].filter(Boolean).join(" · ");
  if (subRuler().width(all) <= room) return all;
  const text = box.isMarked ? RECOMPUTED : box.was || type;
  const short = subRuler().fit(text, room);
  return short.length < Math.min(FEWEST, text.length) || room <= subRuler().width(text) * CUT ? "" : short;
}

function widthOf(buttons: Button[]): number {
  return buttons.reduce((sum, button) => sum + button.w + 4, 0);
}

export type Buttons = "all" | "badge" | "none";

export interface HeaderPlace {
  rect: Rect; // of the frame
  place: NamePlace;
  which: Buttons;
  lines: number[]; // where lines enter or leave through the top
  plates: Rect[]; // under names: this one's is added
}

/** Draws it and gives the rectangles of its buttons. */
export function drawHeader(
  context: CanvasRenderingContext2D,
  box: Box,
  accent: string,
  look: Look,
  { rect, place: { grow, buttons: small, room: reach }, which, lines, plates }: HeaderPlace,
): (Rect & { action: Zone["action"] })[] {
  const { theme } = look;
  const name = which === "none" ? farName(box) : nameOf(box);
  const wanted = (titleRuler().width(name) * grow) / small;
  const buttons =
    which === "all"
      ? buttonsOf(box, rect.w / small - 2 * SIDE, wanted)
      : which === "badge" && box.kind === "fold"
        ? [badgeOf(box)]
        : [];
  const room = Math.min(reach, rect.w - SIDE * small - widthOf(buttons) * small) / grow - SIDE; // for the name and what is beside it
  const title = titleRuler().fit(name, Math.max(24, room - 24));
  const wide = titleRuler().width(title);
  const begin = rect.x + SIDE * grow;
  const next = lines.filter((x) => x > begin + (wide + 26) * grow).reduce((a, b) => Math.min(a, b), Infinity);
  const rest = Math.min(room - wide - 34, (next - begin) / grow - wide - 36);
  const sub = which === "none" ? "" : subOf(box, rest);
  context.save();
  context.translate(begin, rect.y + 6);
  context.scale(grow, grow);
  const long = wide + 22 + (sub ? subRuler().width(sub) + 8 : 0);
  plates.push({ x: begin, y: rect.y + 6, w: long * grow, h: HIGH * grow });
  context.fillStyle = theme.plate;
  round(context, 0, 0, long, HIGH, 6);
  context.fill();
  context.fillStyle = accent;
  round(context, 6, 6, 4, 10, 2);
  context.fill();
  context.textAlign = "left";
  context.textBaseline = "middle";
  context.fillStyle = theme.ink;
  context.font = `600 13px ${FONT}`;
  context.fillText(title, 15, 11.5);
  if (sub) {
    context.fillStyle = theme.faint;
    context.font = SUB;
    context.fillText(sub, 22 + wide, 11.5);
  }
  context.restore();
  let right = rect.x + rect.w - SIDE * small;
  return buttons.map(({ action, text, w, strong }) => {
    const at = { x: right - w * small, y: rect.y + 6, w: w * small, h: HIGH * small, action };
    right = at.x - 4 * small;
    context.fillStyle = strong ? theme.accent : theme.plate;
    round(context, at.x, at.y, at.w, at.h, 6 * small);
    context.fill();
    context.fillStyle = strong ? (theme.dark ? "#10131a" : "#ffffff") : theme.ink;
    context.font = `600 ${12 * small}px ${FONT}`;
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.fillText(text, at.x + at.w / 2, at.y + at.h / 2 + small * 0.5);
    return at;
  });
}
