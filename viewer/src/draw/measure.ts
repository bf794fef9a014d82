/** How large a box is and what it says: its name, and below it what it makes. */

import { AGAIN, RECOMPUTED } from "../data/recomputed.ts";
import { plural } from "../data/text.ts";
import { BREAK, type Box } from "../tree/box.ts";
import { FONT, Ruler } from "./text.ts";

export interface Face {
  w: number;
  h: number;
  title: string;
  sub: string;
  badge: string;
}

export const TITLE = `600 13px ${FONT}`;
export const SUB = `12px ${FONT}`;
export const HEADER = 30;
const FIGURE = "88.8 MiB"; // what a heat map writes in place of a shape

/** The width that the name of a frame and its buttons take. */
export function headerWidth(box: Box): number {
  const { title, buttons } = headerParts(box);
  return title + buttons + 28;
}

/** Of the width of a frame, what its name takes from the left and its buttons from the right. */
export function headerParts(box: Box): { title: number; buttons: number } {
  const title =
    Math.min(330, titleRuler().width(signOf(box) + (box.label || box.type))) +
    34 +
    (box.isMarked ? subRuler().width(RECOMPUTED) + 8 : 0) +
    (box.type.startsWith(BREAK) ? Math.min(240, subRuler().width(box.type)) + 26 : 0);
  if (box.kind !== "fold") return { title, buttons: 38 };
  const badge = `×${box.count.toLocaleString("en-US")}`;
  return { title, buttons: 120 + titleRuler().width(badge) + subRuler().width(`${box.count} of ${box.count}`) };
}

let titles: Ruler | null = null;
let subs: Ruler | null = null;

export function titleRuler(): Ruler {
  return (titles ??= new Ruler(TITLE));
}

export function subRuler(): Ruler {
  return (subs ??= new Ruler(SUB));
}

/** In a comparison, added, removed and changed are said in signs as well as in colours. */
export const SIGNS = ["", "+ ", "− ", "≠ "];

/** The signs before a name: how the two runs of a comparison differ there, and that backward ran it again. */
export function signOf(box: Box): string {
  return SIGNS[box.difference] + (box.isMarked ? AGAIN : "");
}

const faces = new WeakMap<Box, Face>();

export function face(box: Box): Face {
  let result = faces.get(box);
  if (!result) faces.set(box, (result = makeFace(box)));
  return result;
}

function makeFace(box: Box): Face {
  const isEnd = box.kind === "input" || box.kind === "output";
  const label = signOf(box) + box.label;
  const badge = box.kind === "fold" ? `×${box.count.toLocaleString("en-US")}` : "";
  if (box.isAdded) return addedFace(box, label);
  const sub = subOf(box);
  const extra = (badge ? titleRuler().width(badge) + 24 : 0) + (box.canOpen ? 20 : 0);
  const wanted = Math.max(titleRuler().width(label) + extra, subRuler().width(sub)) + 28;
  const w = Math.round(Math.min(Math.max(wanted, isEnd ? 70 : 96), 400));
  const h = sub ? 44 : 32;
  return {
    w,
    h,
    badge,
    title: titleRuler().fit(label, w - 26 - extra),
    sub: subRuler().fit(sub, w - 24),
  };
}

/** What the recording added takes little room: one line, with its shape beside its name. */
function addedFace(box: Box, label: string): Face {
  const sub = shapeOf(box);
  const extra = box.canOpen ? 20 : 0;
  const beside = Math.max(subRuler().width(sub), subRuler().width(FIGURE));
  const w = Math.round(titleRuler().width(label) + beside + 30 + extra);
  return { w, h: 28, badge: "", title: label, sub };
}

function subOf(box: Box): string {
  return [plainSub(box), box.was, box.isMarked ? RECOMPUTED : ""].filter(Boolean).join(" · ");
}

/** The class, unless the name says it, and the shape of what it hands out. */
function plainSub(box: Box): string {
  const isEnd = box.kind === "input" || box.kind === "output";
  return isEnd ? box.type : [classOf(box), shapeOf(box)].filter(Boolean).join(" · ");
}

/** The class of a module where its name does not say it; of what is no module, what it consists of. */
export function classOf(box: Box): string {
  if (box.kind === "op") return "";
  const type = box.type || plural(box.operations, "operation");
  return box.label === type || box.label.startsWith(`${type} `) ? "" : type;
}

/** The type of what a box hands out. */
export function shapeOf(box: Box): string {
  const { output, run } = box;
  if (output < 0) return "";
  const outputs = box.kind === "op" ? run.outputs(box.node).length : 1;
  return run.typeText(output) + (outputs > 1 ? ` +${outputs - 1}` : "");
}
