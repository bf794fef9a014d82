/** What the colours of the graph mean, as data: for the legend on the page and for the one in a picture that leaves it. */

import type { App } from "../app.ts";
import { AGAIN, RECOMPUTED } from "../data/recomputed.ts";
import { plural } from "../data/text.ts";
import { BREAK, type Box } from "../tree/box.ts";
import { amountAt, BAD, BOUNDS, categoryColor, evenColor, isEven, SCALES, type Measure } from "./heat.ts";
import { subRuler, titleRuler } from "./measure.ts";
import { FAMILIES, mixed } from "./theme.ts";

export interface Key {
  title: string;
  notes: string;
  ramp: string[]; // colours from the least to the most; empty: none
  ticks: string[];
  swatches: [color: string, text: string][]; // without a colour: a sign, and what it means
}

/** What a picture that leaves the page is called, at its head. */
export function pictureTitle(app: App): { text: string; width: number } {
  const { run } = app;
  const text = `${String(run.data.meta.model ?? "run")} · ${plural(run.count, "operation")}`;
  return { text, width: (titleRuler().width(text) * TITLE_SIZE) / 13 };
}

export const TITLE_SIZE = 17;
export const TITLE_BASE = 28; // from the upper edge of a picture to the line that its title stands on
export const TITLE_HEIGHT = 32;

/** What the lines mean that are drawn apart: those of the selection, where it is in the picture, come first. */
function lineKeys({ theme, look, scene }: App, hasSelection: boolean): [color: string, text: string][] {
  const results: [string, string][] = [];
  if (hasSelection) {
    const has = (as: string): boolean => look.highlighted.some((line) => line.as === as);
    if (has("producer")) results.push([theme.producer, "from producers"]);
    if (has("consumer")) results.push([theme.consumer, "to consumers"]);
    if (look.links.length) results.push([theme.link, "the same in another phase"]);
  }
  const columns = scene?.columns ?? [];
  if (columns.some(({ loops, picture }) => loops.size || picture.edges.some((edge) => edge.carried)))
    results.push([theme.link, "handed to the next turn"]);
  return results;
}

/** The key of the colours of boxes and lines; of the lines of the selection too, where it is shown. */
export function keyOf(app: App, hasSelection = false): Key {
  const key = boxKey(app);
  key.swatches.unshift(...lineKeys(app, hasSelection));
  return key;
}

function boxKey(app: App): Key {
  const { theme, heat } = app;
  const marks: [string, string][] = hasMarks(app) ? [["", `${AGAIN}${RECOMPUTED}`]] : [];
  if (heat) return heatKey(app, heat, marks);
  const key: Key = { title: "", notes: "", ramp: [], ticks: [], swatches: [] };
  const boxes = drawnBoxes(app);
  if (app.run.difference) {
    const [a, b] = app.run.sides;
    const words = ["", `+ only in ${b} (added)`, `− only in ${a} (removed)`, "≠ changed, or some of each"];
    const seen = new Set<number>(app.run.difference);
    key.swatches = [1, 2, 3]
      .filter((status) => seen.has(status) || boxes.some((box) => box.difference === status))
      .map((status) => [theme.difference[status], words[status]]);
    if (!key.swatches.length) key.notes = "both ran the same operations";
    key.swatches.push(...marks);
    return key;
  }
  if (app.mode === "over") key.swatches.push([theme.wireLater, "lines of the backward pass"]);
  const used = new Set(boxes.map((box) => app.family(box)));
  key.swatches.push(
    ...Object.keys(FAMILIES)
      .filter((name) => used.has(name) && name !== "module")
      .map((name): [string, string] => [mixed([theme.card, FAMILIES[name]], 0.85), name]),
    ...(boxes.some((box) => isBroken(box)) ? [[theme.broken, "⚡ graph break"] as [string, string]] : []),
    ...marks,
  );
  return key;
}

function heatKey(app: App, heat: Measure, marks: [string, string][]): Key {
  const { theme, range } = app;
  const boxes = drawnBoxes(app).filter((box) => !heat.applies || heat.applies(box));
  const amounts = boxes.map((box) => heat.of(box));
  const unknown = amounts.filter((amount) => amount === null).length;
  const isNone = !range.most && heat.scale !== "category";
  const even = isEven(heat, range);
  const notes = [
    isNone ? (unknown === boxes.length ? "not known of any box" : "none: zero in every box") : heat.how,
    isNone || even ? "" : SCALES[heat.scale],
    even ? heat.even : "",
    unknown ? `${plural(unknown, "box")} not known` : "",
  ];
  const key: Key = { title: heat.label, notes: notes.filter(Boolean).join(" · "), ramp: [], ticks: [], swatches: [] };
  if (heat.scale === "category")
    key.swatches = BOUNDS.flatMap((name, code): [string, string][] =>
      name ? [[categoryColor(code, theme), name]] : [],
    );
  else if (even) key.swatches.push([evenColor(theme), heat.show(range.most)]);
  else if (!isNone) {
    key.ramp = heat.scale === "diverging" ? theme.diverging : theme.heat;
    key.ticks = [0, 0.5, 1].map((share) => heat.show(amountAt(heat.scale, range, share)));
  }
  if (amounts.some((amount) => amount !== null && !Number.isFinite(amount)))
    key.swatches.push([BAD, "NaN or infinite"]);
  key.swatches.push(...marks);
  return key;
}

/** Whether a box, or a frame around it, ends in a graph break. */
function isBroken(box: Box): boolean {
  for (let around: Box | null = box; around; around = around.parent) if (around.type.startsWith(BREAK)) return true;
  return false;
}

/** Whether a name that is to be seen says that backward ran it again, of a box or of an open frame. */
function hasMarks(app: App): boolean {
  return (app.scene?.columns ?? []).some(({ picture }) => picture.items.some(({ box }) => box.isMarked));
}

function drawnBoxes(app: App): Box[] {
  const results: Box[] = [];
  for (const { picture } of app.scene?.columns ?? [])
    for (const { box, own } of picture.items) if (own < 0 && box.start >= 0) results.push(box);
  return results;
}

/** A piece of a legend in a picture: a patch of colour, or a word. */
export type Piece =
  | { x: number; y: number; w: number; h: number; fill: string }
  | { x: number; y: number; text: string; bold: boolean; anchor: "start" | "middle" | "end" };

const RAMP = { w: 320, h: 10, steps: 64 };
const LINE = 20;

/** A legend laid out below a picture that is so wide; y counts from its top. */
export function keyPieces(key: Key, width: number): { pieces: Piece[]; width: number; height: number } {
  const pieces: Piece[] = [];
  const wide = Math.max(RAMP.w, width);
  let y = 0;
  if (key.title) {
    pieces.push({ x: 0, y: y + 14, text: key.title, bold: true, anchor: "start" });
    y += LINE;
  }
  for (const line of wrapped(key.notes, wide)) {
    pieces.push({ x: 0, y: y + 13, text: line, bold: false, anchor: "start" });
    y += 16;
  }
  if (key.ramp.length) {
    y += 4;
    for (let i = 0; i < RAMP.steps; i++)
      pieces.push({
        x: (i * RAMP.w) / RAMP.steps,
        y,
        w: RAMP.w / RAMP.steps + 0.5,
        h: RAMP.h,
        fill: mixed(key.ramp, i / (RAMP.steps - 1)),
      });
    key.ticks.forEach((text, i) =>
      pieces.push({
        x: (i * RAMP.w) / 2,
        y: y + RAMP.h + 14,
        text,
        bold: false,
        anchor: (["start", "middle", "end"] as const)[i],
      }),
    );
    y += RAMP.h + LINE;
  }
  let x = 0;
  for (const [fill, text] of key.swatches) {
    const patch = fill ? 16 : 0;
    const room = subRuler().width(text) + 20 + patch;
    if (x && x + room > wide) [x, y] = [0, y + LINE];
    if (fill) pieces.push({ x, y: y + 4, w: 11, h: 11, fill });
    pieces.push({ x: x + patch, y: y + 14, text, bold: false, anchor: "start" });
    x += room;
  }
  return { pieces, width: key.title || key.swatches.length ? RAMP.w : 0, height: key.swatches.length ? y + LINE : y };
}

function wrapped(text: string, width: number): string[] {
  const lines: string[] = [];
  for (const word of text.split(" ").filter(Boolean)) {
    const longer = lines.length ? `${lines[lines.length - 1]} ${word}` : word;
    if (lines.length && titleRuler().width(longer) <= width) lines[lines.length - 1] = longer;
    else lines.push(word);
  }
  return lines;
}
