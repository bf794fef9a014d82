/** What is brought out above the rest: the lines of the selection, and its ties to the other phase. */

import { meets } from "./labels.ts";
import { HEADER } from "./measure.ts";
import type { Camera, Look } from "./painter.ts";
import { arrow, curve } from "./paths.ts";
import type { Rect, Scene } from "./scene.ts";

export function drawOverlay(
  context: CanvasRenderingContext2D,
  scene: Scene,
  look: Look,
  camera: Camera,
  view: Rect,
  names: Rect[],
): void {
  context.lineWidth = Math.max(2, 1.6 / camera.scale);
  for (const { column, edge, as } of look.highlighted) {
    const { picture, results, frameX, frameY } = scene.columns[column];
    const { lines } = picture.edges[edge];
    context.strokeStyle = context.fillStyle =
      as === "edge" ? look.theme.accent : as === "producer" ? look.theme.producer : look.theme.consumer;
    for (let i = 0; i < lines.length; i += 2) {
      context.save();
      context.translate(frameX[lines[i]], frameY[lines[i]]);
      context.beginPath();
      const hasArrow = picture.frames[lines[i]].lines[lines[i + 1]].arrow;
      curve(context, results[lines[i]], lines[i + 1], hasArrow);
      context.stroke();
      if (hasArrow) {
        context.beginPath();
        arrow(context, results[lines[i]], lines[i + 1]);
        context.fill();
      }
      context.restore();
    }
  }
  if (!look.links.length) return;
  context.save();
  keepOff(context, scene, view, names);
  context.strokeStyle = look.theme.link;
  context.setLineDash([6 / camera.scale, 4 / camera.scale]);
  context.lineWidth = 1.8 / camera.scale;
  for (const [from, to] of look.links) {
    const [a, b] = [scene.rect(from), scene.rect(to)];
    const right = a.x < b.x;
    const [x0, x1] = [right ? a.x + a.w : a.x, right ? b.x : b.x + b.w];
    const [y0, y1] = [a.y + Math.min(a.h, HEADER) / 2, b.y + Math.min(b.h, HEADER) / 2];
    context.beginPath();
    context.moveTo(x0, y0);
    context.bezierCurveTo(x0 + (x1 - x0) / 2, y0, x0 + (x1 - x0) / 2, y1, x1, y1);
    context.stroke();
  }
  context.restore();
}

/** From here on nothing is drawn on closed boxes and on names: ties go straight to the other phase, behind what lies between. */
function keepOff(context: CanvasRenderingContext2D, scene: Scene, view: Rect, names: Rect[]): void {
  context.beginPath();
  context.rect(view.x, view.y, view.w, view.h);
  for (const { x, y, w, h } of names) hole(context, x, y, w, h);
  for (const { picture, x, y, w, h } of scene.columns)
    picture.items.forEach(({ own }, item) => {
      const rect = { x: x[item], y: y[item], w: w[item], h: h[item] };
      if (own < 0 && meets(rect, view)) hole(context, rect.x, rect.y, rect.w, rect.h);
    });
  context.clip();
}

/** A rectangle the other way round, which is not filled within another. */
function hole(context: CanvasRenderingContext2D, x: number, y: number, w: number, h: number): void {
  context.moveTo(x, y);
  context.lineTo(x, y + h);
  context.lineTo(x + w, y + h);
  context.lineTo(x + w, y);
  context.closePath();
}
