/** The whole graph, small, with the part of it that the window shows; a click or drag there moves the window. */

import type { App } from "../app.ts";
import { fitCanvas, h } from "../dom.ts";
import { Painter, type Camera } from "./painter.ts";

const CRAMPED = { w: 560, h: 300 };
const EDGE = 4;

export class Minimap {
  readonly canvas = h("canvas", { class: "mini", "aria-hidden": "true" });
  private image: { scene: unknown; look: string; bitmap: HTMLCanvasElement } | null = null;

  /** `go` takes the place of the sheet that is to be in the middle. */
  constructor(
    readonly app: App,
    readonly go: (x: number, y: number) => void,
  ) {
    const move = (event: PointerEvent): void => this.onPointer(event);
    this.canvas.addEventListener("pointerdown", move);
    this.canvas.addEventListener("pointermove", (event) => {
      if (event.buttons) move(event);
    });
  }

  draw(camera: Camera, width: number, height: number): void {
    const scene = this.app.scene!;
    const { canvas } = this;
    const isWhole =
      camera.scale * scene.width < width * 1.05 &&
      camera.scale * scene.height < height * 1.05 &&
      camera.x > -10 &&
      camera.y > -10;
    const cramped = width < CRAMPED.w || height < CRAMPED.h; // it would lie on most of what it is the map of
    canvas.style.visibility = isWhole || cramped ? "hidden" : "visible";
    if (isWhole || cramped) return;
    const size = fitCanvas(canvas);
    const { scale, x, y } = this.place(size.width, size.height);
    const look = `${this.app.theme.dark}${this.app.heat?.id}${size.width}${size.ratio}`;
    if (this.image?.scene !== scene || this.image.look !== look) {
      const bitmap = h("canvas", { width: canvas.width, height: canvas.height });
      const painter = new Painter(bitmap.getContext("2d")!);
      painter.draw(
        scene,
        { scale, x, y },
        {
          ...this.app.look,
          selected: null,
          hover: null,
          highlighted: [],
          links: [],
          labels: false,
          marked: null,
          plain: true,
        },
        size.width,
        size.height,
        size.ratio,
      );
      this.image = { scene, look, bitmap };
    }
    const context = canvas.getContext("2d")!;
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.drawImage(this.image.bitmap, 0, 0);
    context.setTransform(size.ratio, 0, 0, size.ratio, 0, 0);
    context.strokeStyle = this.app.theme.accent;
    context.fillStyle = `${this.app.theme.accent}22`;
    context.lineWidth = 1.5;
    const view = {
      x: x + (-camera.x / camera.scale) * scale,
      y: y + (-camera.y / camera.scale) * scale,
      w: (width / camera.scale) * scale,
      h: (height / camera.scale) * scale,
    };
    context.fillRect(view.x, view.y, view.w, view.h);
    context.strokeRect(view.x, view.y, view.w, view.h);
  }

  private place(width: number, height: number): Camera {
    const scene = this.app.scene!;
    const scale = Math.min((width - 2 * EDGE) / scene.width, (height - 2 * EDGE) / scene.height);
    return { scale, x: (width - scene.width * scale) / 2, y: (height - scene.height * scale) / 2 };
  }

  private onPointer(event: PointerEvent): void {
    if (!this.app.scene) return;
    const bounds = this.canvas.getBoundingClientRect();
    const { scale, x, y } = this.place(bounds.width, bounds.height);
    this.go((event.clientX - bounds.left - x) / scale, (event.clientY - bounds.top - y) / scale);
  }
}
