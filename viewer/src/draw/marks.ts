/** What is put on a box besides its name: that it differs, and from where it reads without a line. */

import type { Box } from "../tree/box.ts";
import { READABLE } from "./fitting.ts";
import { SUB, subRuler } from "./measure.ts";
import type { Look } from "./painter.ts";
import type { Column, Rect } from "./scene.ts";
import { round } from "./shapes.ts";
import { FONT } from "./text.ts";

export const ODD = "#d1a10f";

/** Whether a box, or one of those that it stands for, is not like its siblings. */
export function isOdd(box: Box): boolean {
  return box.odd || (box.kind === "fold" && box.oddInstances.length > 0);
}

/** A mark on what differs from its siblings, at the corner of its box; it keeps its size on the screen. */
export function drawOdd(context: CanvasRenderingContext2D, x: number, y: number, scale: number): void {
  const grow = Math.min(1.7, Math.max(1, READABLE / scale));
  context.fillStyle = ODD;
  context.beginPath();
  context.arc(x - 2, y + 2, 8 * grow, 0, 7);
  context.fill();
  context.fillStyle = "#1b2330";
  context.font = `700 ${12 * grow}px ${FONT}`;
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.fillText("≠", x - 2, y + 2.5);
}

/** What a box hands to itself in the next turn of a loop: a line from its foot round to its head. */
export function drawLoop(context: CanvasRenderingContext2D, { x, y, w, h }: Rect, color: string, scale: number): void {
  const right = x + w;
  context.save();
  context.strokeStyle = context.fillStyle = color;
  context.lineWidth = Math.min(1.3, 0.8 / scale + 0.4);
  context.setLineDash([6, 4]);
  context.beginPath();
  context.moveTo(right, y + h * 0.75);
  context.bezierCurveTo(right + 22, y + h * 0.75, right + 22, y + h * 0.25, right + 6, y + h * 0.25);
  context.stroke();
  context.setLineDash([]);
  context.beginPath();
  context.moveTo(right, y + h * 0.25);
  context.lineTo(right + 6, y + h * 0.25 - 4);
  context.lineTo(right + 6, y + h * 0.25 + 4);
  context.fill();
  context.restore();
}

export function drawTags(
  context: CanvasRenderingContext2D,
  column: Column,
  tags: number[],
  x: number,
  y: number,
  w: number,
  look: Look,
): void {
  const shown = tags.slice(0, 2).map((item) => column.picture.items[item].box.label);
  const text = subRuler().fit(`↳ ${shown.join(", ")}${tags.length > 2 ? ` +${tags.length - 2}` : ""}`, w - 10);
  const width = subRuler().width(text) + 10;
  context.fillStyle = look.theme.plate;
  context.strokeStyle = look.theme.frameLine;
  context.lineWidth = 0.8;
  round(context, x + 6, y - 14, width, 14, 4);
  context.fill();
  context.stroke();
  context.fillStyle = look.theme.faint;
  context.font = SUB;
  context.textAlign = "left";
  context.textBaseline = "middle";
  context.fillText(text, x + 10, y - 6.5);
}
