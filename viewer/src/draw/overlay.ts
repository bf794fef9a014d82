/** What is brought out above the rest: the lines of the selection, and its ties to the other phase. */

import { HEADER } from "./measure.ts";
import type { Camera, Look } from "./painter.ts";
import { arrow, curve } from "./paths.ts";
import type { Scene } from "./scene.ts";

export function drawOverlay(context: CanvasRenderingContext2D, scene: Scene, look: Look, camera: Camera): void {
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
  context.setLineDash([]);
}
