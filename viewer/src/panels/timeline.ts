/** Memory over the run, by role: brush it to see what is alive, click the peak to see what makes it. */

import type { App } from "../app.ts";
import { Memory } from "../data/memory.ts";
import { ROLES } from "../data/run.ts";
import { count, size } from "../data/units.ts";
import { button, fitCanvas, h, replace } from "../dom.ts";
import { ROLE_COLORS } from "../draw/theme.ts";
import { FONT } from "../draw/text.ts";

/** Bottom to top: what is always there first. */
const ORDER = [2, 3, 4, 1, 6, 5, 0, 7];
const LEFT = 64;
const BASE = 16;
const MOST = 60;

export class Timeline {
  readonly canvas = h("canvas", { class: "chart", tabindex: "0", role: "img", "aria-label": "Memory alive over the run" });
  readonly list = h("div", { class: "list" });
  readonly element = h("div", { class: "dock-body" }, this.canvas, this.list);
  memory: Memory | null = null;
  brush: [number, number] | null = null;
  private from: number | null = null;

  constructor(readonly app: App, readonly go: (node: number) => void) {
    new ResizeObserver(() => this.draw()).observe(this.canvas);
    app.on("look", () => this.draw());
    app.on("select", () => this.draw());
    this.canvas.addEventListener("pointerdown", (event) => {
      this.canvas.setPointerCapture(event.pointerId);
      this.from = this.nodeAt(event);
    });
    this.canvas.addEventListener("pointermove", (event) => {
      if (this.from === null) return;
      const to = this.nodeAt(event);
      this.setBrush(Math.min(this.from, to), Math.max(this.from, to));
    });
    this.canvas.addEventListener("pointerup", (event) => {
      const at = this.nodeAt(event);
      const { memory } = this;
      if (memory && this.from === at) {
        const reach = Math.max(1, (14 * this.app.run.count) / Math.max(1, this.canvas.clientWidth - LEFT));
        const near = Math.abs(at - memory.peak) <= reach;
        this.setBrush(near ? memory.peak : at, near ? memory.peak : at);
      }
      this.from = null;
    });
  }

  show(): void {
    this.memory ??= new Memory(this.app.run);
    this.fill();
    this.draw();
  }

  showPeak(): void {
    this.show();
    this.setBrush(this.memory!.peak, this.memory!.peak);
  }

  clear(): void {
    if (!this.brush) return;
    this.brush = null;
    this.app.mark(null);
    this.app.tell("look");
    this.fill();
  }

  setBrush(from: number, to: number): void {
    this.brush = [from, to];
    const mask = new Uint8Array(this.app.run.count);
    for (const storage of this.memory!.alive(from, to)) {
      const birth = this.memory!.birth[storage];
      if (birth >= 0 && birth < mask.length) mask[birth] = 1;
    }
    this.app.mark(mask);
    this.app.tell("look");
    this.fill();
  }

  private nodeAt(event: PointerEvent): number {
    const bounds = this.canvas.getBoundingClientRect();
    const share = (event.clientX - bounds.left - LEFT) / Math.max(1, bounds.width - LEFT);
    return Math.max(0, Math.min(this.app.run.count - 1, Math.floor(share * this.app.run.count)));
  }

  private fill(): void {
    const memory = this.memory!;
    const { run } = this.app;
    if (!run.count) {
      replace(this.list, h("p", { class: "sub" }, "Nothing ran."));
      return;
    }
    const [from, to] = this.brush ?? [memory.peak, memory.peak];
    const alive = memory.alive(from, to);
    const bytes = alive.reduce((sum, storage) => sum + memory.bytes[storage], 0);
    const title = !this.brush || (from === to && from === memory.peak) ? `Peak: ${size(memory.total[memory.peak])} at operation ${count(memory.peak)}` : from === to ? `${size(bytes)} alive at operation ${count(from)}` : `${size(bytes)} alive from operation ${count(from)} to ${count(to)}`;
    replace(this.list,
      h("div", { class: "heading" }, h("h3", {}, title), button("peak", "Show what makes the peak", () => this.setBrush(memory.peak, memory.peak)), this.brush ? button("✕", "Let go of the brush (Esc)", () => this.clear(), { class: "icon" }) : null),
      h("div", { class: "sub" }, `${count(alive.length)} memory blocks, largest first`),
      ...alive.slice(0, MOST).map((storage) => this.row(storage)),
    );
  }

  private row(storage: number): HTMLElement {
    const memory = this.memory!;
    const { run } = this.app;
    const value = memory.value[storage];
    const birth = memory.birth[storage];
    const name = value >= 0 ? run.valueLabel(value) : `block ${storage}`;
    const by = birth >= 0 ? ` by ${run.name(birth)} in ${run.path(run.nodeScope[birth]) || "the run"}` : " from outside";
    const swatch = h("i", { class: "swatch" });
    swatch.style.background = ROLE_COLORS[Math.max(0, memory.role[storage])];
    const first = birth >= 0 ? birth : value >= 0 ? (run.readers(value)[0] ?? -1) : -1;
    return h("button", { class: "row link", type: "button", on: { click: () => { if (first >= 0) this.go(first); } } },
      swatch, h("b", {}, name), h("span", { class: "sub" }, ` ${value >= 0 ? run.typeText(value) : ""} ${ROLES[Math.max(0, memory.role[storage])]}${by}`), h("span", { class: "amount" }, size(memory.bytes[storage])));
  }

  draw(): void {
    const { memory } = this;
    if (!memory || !this.canvas.clientWidth) return;
    const { theme, run } = this.app;
    const { width, height, ratio } = fitCanvas(this.canvas);
    const context = this.canvas.getContext("2d")!;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    const wide = width - LEFT;
    const high = height - BASE - 14;
    const most = memory.total[memory.peak] || 1;
    const columns = Math.max(1, Math.min(Math.floor(wide), run.count));
    const stacked = new Float64Array(columns);
    const peaks = this.peaks(columns);
    for (const role of ORDER) {
      const steps = memory.live[role];
      context.beginPath();
      for (let i = 0; i < columns; i++) {
        const x = LEFT + (i * wide) / columns;
        context.lineTo(x, 14 + high - (stacked[i] / most) * high);
        if (i === columns - 1) context.lineTo(LEFT + wide, 14 + high - (stacked[i] / most) * high);
      }
      for (let i = columns - 1; i >= 0; i--) {
        stacked[i] += steps[peaks[i]];
        const y = 14 + high - (stacked[i] / most) * high;
        context.lineTo(LEFT + ((i + 1) * wide) / columns, y);
        context.lineTo(LEFT + (i * wide) / columns, y);
      }
      context.fillStyle = ROLE_COLORS[role];
      context.globalAlpha = theme.dark ? 0.8 : 0.75;
      context.fill();
      context.globalAlpha = 1;
    }
    this.axes(context, width, high, most);
  }

  /** For each column of pixels the operation at which most is alive. */
  private peaks(columns: number): Int32Array {
    const { count } = this.app.run;
    const found = new Int32Array(columns);
    for (let i = 0; i < columns; i++) {
      const from = Math.floor((i * count) / columns);
      const to = Math.max(from + 1, Math.floor(((i + 1) * count) / columns));
      found[i] = from;
      for (let node = from; node < to; node++) if (this.memory!.total[node] > this.memory!.total[found[i]]) found[i] = node;
    }
    return found;
  }

  private axes(context: CanvasRenderingContext2D, width: number, high: number, most: number): void {
    const { theme, run } = this.app;
    const wide = width - LEFT;
    const at = (node: number): number => LEFT + ((node + 0.5) * wide) / Math.max(1, run.count);
    context.font = `11px ${FONT}`;
    context.fillStyle = theme.faint;
    context.strokeStyle = theme.frameLine;
    context.lineWidth = 1;
    context.textAlign = "right";
    context.textBaseline = "middle";
    for (const share of [0, 0.5, 1]) {
      const y = 14 + high - share * high;
      context.fillText(size(most * share), LEFT - 6, y);
      context.beginPath();
      context.moveTo(LEFT, y);
      context.lineTo(width, y);
      context.stroke();
    }
    let x = LEFT;
    context.textAlign = "left";
    for (const role of ORDER) {
      if (!this.memory!.live[role].some((bytes) => bytes > 0)) continue;
      context.fillStyle = ROLE_COLORS[role];
      context.fillRect(x, 14 + high + 5, 9, 9);
      context.fillStyle = theme.faint;
      context.fillText(ROLES[role], x + 13, 14 + high + 10);
      x += 26 + context.measureText(ROLES[role]).width;
    }
    const peak = at(this.memory!.peak);
    context.strokeStyle = theme.consumer;
    context.setLineDash([3, 3]);
    context.beginPath();
    context.moveTo(peak, 10);
    context.lineTo(peak, 14 + high);
    context.stroke();
    context.setLineDash([]);
    context.fillStyle = theme.consumer;
    context.textAlign = peak > width - 70 ? "right" : "left";
    context.fillText("peak", peak + (peak > width - 70 ? -4 : 4), 7);
    if (this.app.node >= 0) {
      context.fillStyle = theme.accent;
      context.fillRect(at(this.app.node) - 1, 12, 2, high + 2);
    }
    if (this.brush) {
      const [from, to] = this.brush.map(at);
      context.fillStyle = `${theme.accent}33`;
      context.strokeStyle = theme.accent;
      context.fillRect(from - 1.5, 14, to - from + 3, high);
      context.strokeRect(from - 1.5, 14, to - from + 3, high);
    }
  }
}
