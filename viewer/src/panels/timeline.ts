/** Memory over the run, by use: brush it to see what is alive, click the peak to see what makes it. */

import type { App } from "../app.ts";
import { Memory } from "../data/memory.ts";
import { nice, phaseStretches, type Stretch } from "../data/phases.ts";
import { plural } from "../data/text.ts";
import { count, size, sizes } from "../data/units.ts";
import { button, fitCanvas, h, replace } from "../dom.ts";
import { USE_COLORS } from "../draw/theme.ts";
import { FONT } from "../draw/text.ts";
import { pathText } from "./rows.ts";

const LEFT = 64;
const TOP = 26; // the names of phases, and of the peak
const BASE = 18; // the numbers of operations
const MOST = 60;
const SEEN = 0.004; // share of the peak below which a use has no area to be seen

export class Timeline {
  readonly canvas = h("canvas", {
    class: "chart",
    tabindex: "0",
    role: "img",
    "aria-label": "Memory alive over the run",
  });
  readonly list = h("div", { class: "list" });
  private readonly key = h("div", { class: "chart-key" });
  readonly element = h(
    "div",
    { class: "dock-body" },
    h("div", { class: "chart-side" }, this.canvas, this.key),
    this.list,
  );
  private phases: Stretch[] = [];
  memory: Memory | null = null;
  brush: [number, number] | null = null;
  private from: number | null = null;

  constructor(
    readonly app: App,
    readonly go: (node: number) => void,
  ) {
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
    if (!this.memory) {
      this.memory = new Memory(this.app.run);
      this.phases = phaseStretches(this.app.run);
    }
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
    this.app.emit("look");
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
    this.app.emit("look");
    this.fill();
  }

  /** What the colours mean, and how much there is of each at an operation: of the uses that can be seen, or are there. */
  private fillKey(at: number, when: string): void {
    const memory = this.memory!;
    const least = (memory.total[memory.peak] ?? 0) * SEEN;
    const isTold = (use: number): boolean =>
      memory.live[use][at] > 0 || Array.prototype.some.call(memory.live[use], (bytes: number) => bytes > least);
    replace(
      this.key,
      h("span", { class: "sub" }, `bytes alive ${when}:`),
      ...memory.words.flatMap((word, use) => {
        if (!isTold(use)) return [];
        const swatch = h("i", { class: "swatch" });
        swatch.style.background = USE_COLORS[use];
        return [h("span", { class: "key" }, swatch, word, h("b", { class: "amount" }, size(memory.live[use][at])))];
      }),
    );
  }

  private nodeAt(event: PointerEvent): number {
    const bounds = this.canvas.getBoundingClientRect();
    const share = (event.clientX - bounds.left - LEFT) / Math.max(1, bounds.width - LEFT);
    return Math.max(0, Math.min(this.app.run.count - 1, Math.floor(share * this.app.run.count)));
  }

  private fill(): void {
    const memory = this.memory!;
    const { run } = this.app;
    if (!run.count || !memory.isKnown) {
      replace(
        this.list,
        h("p", { class: "sub" }, run.count ? "No memory was recorded with this run." : "Nothing ran."),
      );
      return;
    }
    const [from, to] = this.brush ?? [memory.peak, memory.peak];
    const alive = memory.alive(from, to);
    const bytes = alive.reduce((sum, storage) => sum + memory.bytes[storage], 0);
    const most = memory.highest(from, to);
    const title =
      !this.brush || (from === to && from === memory.peak)
        ? `Peak: ${size(memory.total[memory.peak])} at operation ${count(memory.peak)}`
        : from === to
          ? `${size(bytes)} alive at operation ${count(from)}`
          : `At most ${size(memory.total[most])} at once from operation ${count(from)} to ${count(to)}`;
    const among =
      from === to
        ? plural(alive.length, "memory block")
        : `at operation ${count(most)}; in all ${plural(alive.length, "memory block")} of ${size(bytes)} were alive at some time in between`;
    this.fillKey(most, most === memory.peak ? "at the peak" : `at operation ${count(most)}`);
    replace(
      this.list,
      h(
        "div",
        { class: "heading" },
        h("h3", {}, title),
        button("peak", "Show what makes the peak", () => this.setBrush(memory.peak, memory.peak)),
        this.brush ? button("✕", "Let go of the brush (Esc)", () => this.clear(), { class: "icon" }) : null,
      ),
      h("div", { class: "row sub" }, `${run.name(most)} in`, pathText(run.where(run.nodeScope[most]))),
      h("div", { class: "sub" }, `${among}, largest first`),
      ...alive.slice(0, MOST).map((storage) => this.row(storage)),
    );
  }

  private row(storage: number): HTMLElement {
    const memory = this.memory!;
    const { run } = this.app;
    const value = memory.value[storage];
    const birth = memory.birth[storage];
    const name = value >= 0 ? run.valueLabel(value) : `block ${storage}`;
    const what = `${memory.words[memory.use[storage]]}${birth >= 0 ? `, by ${run.name(birth)} in` : ", from outside"}`;
    const swatch = h("i", { class: "swatch" });
    swatch.style.background = USE_COLORS[memory.use[storage]];
    const first = birth >= 0 ? birth : value >= 0 ? (run.readers(value)[0] ?? -1) : -1;
    return h(
      "button",
      {
        class: "row link",
        type: "button",
        on: {
          click: () => {
            if (first >= 0) this.go(first);
          },
        },
      },
      swatch,
      h("b", {}, pathText(name)),
      h("span", { class: "kind" }, value >= 0 ? run.typeText(value) : ""),
      h("span", { class: "amount" }, size(memory.bytes[storage])),
      h(
        "span",
        { class: "second" },
        h("span", { class: "what" }, what),
        birth >= 0 ? pathText(run.where(run.nodeScope[birth])) : null,
      ),
    );
  }

  draw(): void {
    const { memory } = this;
    if (!memory?.isKnown || !this.canvas.clientWidth) return;
    const { theme, run } = this.app;
    const { width, height, ratio } = fitCanvas(this.canvas);
    const context = this.canvas.getContext("2d")!;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    const wide = width - LEFT;
    const high = height - BASE - TOP;
    const most = memory.total[memory.peak] || 1;
    const columns = Math.max(1, Math.min(Math.floor(wide), run.count));
    const stacked = new Float64Array(columns);
    const peaks = this.peaks(columns);
    memory.live.forEach((steps, use) => {
      const [left, top] = [
        (i: number): number => LEFT + (i * wide) / columns,
        (i: number): number => TOP + high - (stacked[i] / most) * high,
      ];
      context.beginPath();
      for (let i = 0; i < columns; i++) {
        context.lineTo(left(i), top(i));
        context.lineTo(left(i + 1), top(i));
      }
      for (let i = columns - 1; i >= 0; i--) {
        stacked[i] += steps[peaks[i]];
        context.lineTo(left(i + 1), top(i));
        context.lineTo(left(i), top(i));
      }
      context.fillStyle = USE_COLORS[use];
      context.globalAlpha = theme.dark ? 0.8 : 0.75;
      context.fill();
      context.globalAlpha = 1;
    });
    this.axes(context, width, high, most);
  }

  /** The numbers of operations below, and above the phases that they belong to. */
  private across(context: CanvasRenderingContext2D, width: number, high: number): void {
    const { theme, run } = this.app;
    const wide = width - LEFT;
    const at = (node: number): number => LEFT + (node * wide) / Math.max(1, run.count);
    const step = Math.max(1, nice(run.count / Math.max(2, wide / 90)));
    context.fillStyle = theme.faint;
    context.textAlign = "center";
    for (let node = 0; node < run.count; node += step) {
      context.fillRect(at(node), TOP + high, 1, 4);
      context.textAlign = node ? (at(node) > width - 24 ? "right" : "center") : "left";
      context.fillText(count(node), at(node), TOP + high + 11);
    }
    context.textAlign = "left";
    let free = 0;
    for (const { from, to, name } of this.phases) {
      if (this.phases.length > 1 && at(from) >= free) context.fillRect(at(from), 0, 1, TOP + high);
      if (at(from) < free || at(to) - at(from) < context.measureText(name).width + 8) continue;
      context.fillText(name, at(from) + 4, 7);
      free = at(from) + context.measureText(name).width + 8;
    }
  }

  /** For each column of pixels the operation at which most is alive. */
  private peaks(columns: number): Int32Array {
    const { count } = this.app.run;
    const results = new Int32Array(columns);
    for (let i = 0; i < columns; i++) {
      const from = Math.floor((i * count) / columns);
      const to = Math.max(from + 1, Math.floor(((i + 1) * count) / columns));
      results[i] = from;
      for (let node = from; node < to; node++)
        if (this.memory!.total[node] > this.memory!.total[results[i]]) results[i] = node;
    }
    return results;
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
    const ticks = [0, 0.5, 1];
    sizes(ticks.map((share) => most * share)).forEach((text, i) => {
      const y = TOP + high - ticks[i] * high;
      context.fillText(text, LEFT - 6, y);
      context.beginPath();
      context.moveTo(LEFT, y);
      context.lineTo(width, y);
      context.stroke();
    });
    this.across(context, width, high);
    const peak = at(this.memory!.peak);
    context.strokeStyle = theme.consumer;
    context.setLineDash([3, 3]);
    context.beginPath();
    context.moveTo(peak, TOP - 4);
    context.lineTo(peak, TOP + high);
    context.stroke();
    context.setLineDash([]);
    context.fillStyle = theme.consumer;
    context.textAlign = peak > width - 70 ? "right" : "left";
    context.fillText("peak", peak + (peak > width - 70 ? -4 : 4), TOP - 7);
    if (this.app.node >= 0) {
      context.fillStyle = theme.accent;
      context.fillRect(at(this.app.node) - 1, TOP - 2, 2, high + 2);
    }
    if (this.brush) {
      const [from, to] = this.brush.map(at);
      context.fillStyle = `${theme.accent}33`;
      context.strokeStyle = theme.accent;
      context.fillRect(from - 1.5, TOP, to - from + 3, high);
      context.strokeRect(from - 1.5, TOP, to - from + 3, high);
    }
  }
}
