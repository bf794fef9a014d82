/** Memory over the run, by use: brush it to see what is alive, click the peak to see what makes it. */

import type { App } from "../app.ts";
import { Memory } from "../data/memory.ts";
import { OUTSIDE } from "../data/run.ts";
import { nice, phaseStretches, type Stretch } from "../data/phases.ts";
import { plural } from "../data/text.ts";
import { count, duration, size, sizes } from "../data/units.ts";
import { button, fitCanvas, h, replace } from "../dom.ts";
import { USE_COLORS } from "../data/schema.gen.ts";
import { FONT } from "../draw/text.ts";
import { firstAfter, LEFT } from "./flamechart.ts";
import { pathText } from "./rows.ts";

const TOP = 26; // the names of phases, and of the peak
const BASE = 18; // the numbers of operations
const MOST = 60;
const REACH = 14; // pixels from the peak at which it is meant
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
  /** Whether it stands below the clock of the flame chart; alone, a person chooses between time and operations. */
  follows = false;
  private byTime = false;
  private hidden = new Set<number>(); // uses that are left out
  private heights: Float64Array | null = null; // by operation, the bytes of the uses that are drawn

  constructor(
    readonly app: App,
    readonly go: (node: number) => void,
  ) {
    new ResizeObserver(() => this.draw()).observe(this.canvas);
    app.on("look", () => this.draw());
    app.on("select", () => this.draw());
    app.on("hover", () => this.draw());
    app.on("clock", () => {
      if (this.isTime) this.draw();
    });
    this.canvas.addEventListener("pointerleave", () => app.point(null));
    this.canvas.addEventListener("pointerdown", (event) => {
      this.canvas.setPointerCapture(event.pointerId);
      this.from = this.nodeAt(event);
    });
    this.canvas.addEventListener("pointermove", (event) => {
      if (this.from === null) {
        this.hover(event);
        return;
      }
      const to = this.nodeAt(event);
      this.setBrush(Math.min(this.from, to), Math.max(this.from, to));
    });
    this.canvas.addEventListener("pointerup", (event) => {
      const at = this.nodeAt(event);
      const { memory } = this;
      if (memory && this.from === at) {
        const x = event.clientX - this.canvas.getBoundingClientRect().left;
        const near = Math.abs(x - this.middle(memory.peak)) <= REACH;
        this.setBrush(near ? memory.peak : at, near ? memory.peak : at);
      }
      this.from = null;
    });
  }

  show(): void {
    if (!this.memory) {
      this.memory = Memory.of(this.app.run);
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
      ...this.choices(),
      h("span", { class: "sub" }, `bytes alive ${when}:`),
      ...memory.words.flatMap((word, use) => {
        if (!isTold(use)) return [];
        const swatch = h("i", { class: "swatch" });
        swatch.style.background = USE_COLORS[use];
        return [h("span", { class: "key" }, swatch, word, h("b", { class: "amount" }, size(memory.live[use][at])))];
      }),
    );
  }

  /** Whether it is drawn over time; without times, over operations. */
  private get isTime(): boolean {
    return (this.follows || this.byTime) && this.starts !== null;
  }

  private get starts(): ArrayLike<number> | null {
    return this.app.run.metrics.get("start_ns")?.values ?? null;
  }

  /** The span that is shown: of time, or of operations. */
  private get span(): [from: number, to: number] {
    const { run, clock } = this.app;
    if (!this.isTime) return [0, Math.max(1, run.count)];
    if (this.follows && clock) return [clock.from, clock.to];
    const last = run.count - 1;
    return [this.starts![0], Math.max(this.starts![0] + 1, this.starts![last] + (run.metric("time_ns", last) ?? 0))];
  }

  /** Where an operation begins on the canvas; what comes after the last is the end. */
  private left(node: number): number {
    const [from, to] = this.span;
    const { count } = this.app.run;
    const at = this.isTime ? (node < count ? this.starts![node] : Math.max(to, this.starts![count - 1])) : node;
    return LEFT + ((at - from) * (this.canvas.clientWidth - LEFT)) / (to - from);
  }

  private middle(node: number): number {
    return this.isTime ? this.left(node) : (this.left(node) + this.left(node + 1)) / 2;
  }

  private nodeAt(event: PointerEvent): number {
    const bounds = this.canvas.getBoundingClientRect();
    const share = (event.clientX - bounds.left - LEFT) / Math.max(1, bounds.width - LEFT);
    const [from, to] = this.span;
    const at = from + share * (to - from);
    return Math.max(
      0,
      Math.min(this.app.run.count - 1, this.isTime ? firstAfter(this.starts!, at) - 1 : Math.floor(at)),
    );
  }

  /** What is alive at the pointer: in the title of the chart, and in graph and time as well. */
  private hover(event: PointerEvent): void {
    if (!this.memory?.isKnown || !this.app.run.count) return;
    const node = this.nodeAt(event);
    this.app.point(null, node);
    const { memory } = this;
    const parts = memory.words
      .map((word, use): [string, number] => [word, memory.live[use][node]])
      .filter(([, bytes]) => bytes > 0)
      .map(([word, bytes]) => `${word} ${size(bytes)}`);
    this.canvas.title = `${size(memory.total[node])} during ${this.app.run.name(node)} (${count(node)})\n${parts.join("\n")}`;
  }

  /** By operation, the bytes of the uses that are drawn. */
  private get shown(): Float64Array {
    const memory = this.memory!;
    if (this.heights) return this.heights;
    const heights = memory.total.slice();
    for (const use of this.hidden)
      for (let node = 0; node < heights.length; node++) heights[node] -= memory.live[use][node];
    return (this.heights = heights);
  }

  /** What can be chosen: over time or over operations, with parameters or without. */
  private choices(): HTMLElement[] {
    const choice = (label: string, title: string, isOn: boolean, act: () => void): HTMLElement =>
      button(
        label,
        title,
        () => {
          act();
          this.fill();
          this.draw();
        },
        { "aria-pressed": String(isOn) },
      );
    const results: HTMLElement[] = [];
    if (this.starts && !this.follows)
      results.push(
        choice("by time", "Over time instead of operations", this.byTime, () => (this.byTime = !this.byTime)),
      );
    const use = this.memory!.words.indexOf("parameter");
    if (use >= 0)
      results.push(
        choice("parameters", "Show or leave out parameters", !this.hidden.has(use), () => {
          if (!this.hidden.delete(use)) this.hidden.add(use);
          this.heights = null;
        }),
      );
    return results;
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
    const isPeak = !this.brush || (from === to && from === memory.peak);
    const title = isPeak
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
        this.brush && !isPeak
          ? button("show the peak", "Show what makes the peak", () => this.setBrush(memory.peak, memory.peak), {
              class: "framed",
            })
          : null,
        this.brush ? button("✕", "Let go of the brush (Esc)", () => this.clear(), { class: "icon" }) : null,
      ),
      h("div", { class: "row sub" }, ...this.place(most, "")),
      h("div", { class: "sub" }, `${among}, largest first`),
      ...alive.slice(0, MOST).map((storage) => this.row(storage)),
    );
  }

  /** An operation and the module that it is in, after some words. */
  private place(node: number, words: string): HTMLElement[] {
    const { run } = this.app;
    const path = run.where(run.nodeScope[node]);
    const what = `${words}${run.name(node)}${path === OUTSIDE ? `, ${OUTSIDE}` : " in"}`;
    return [h("span", { class: "what" }, what), ...(path === OUTSIDE ? [] : [pathText(path)])];
  }

  private row(storage: number): HTMLElement {
    const memory = this.memory!;
    const { run } = this.app;
    const value = memory.value[storage];
    const birth = memory.birth[storage];
    const name = value >= 0 ? run.valueLabel(value) : `block ${storage}`;
    const use = memory.words[memory.use[storage]];
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
      h("span", { class: "amount" }, size(memory.bytes[storage])),
      h(
        "span",
        { class: "second" },
        h("span", { class: "what" }, value >= 0 ? `${run.typeText(value)} ·` : ""),
        ...(birth >= 0 ? this.place(birth, `${use}, by `) : [h("span", { class: "what" }, `${use}, from outside`)]),
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
    const most = this.shown.reduce((a, b) => Math.max(a, b), 0) || 1;
    const columns = Math.max(1, this.isTime ? Math.floor(wide) : Math.min(Math.floor(wide), run.count));
    const stacked = new Float64Array(columns);
    const peaks = this.peaks(columns);
    memory.live.forEach((steps, use) => {
      if (this.hidden.has(use)) return;
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
    const { theme } = this.app;
    const wide = width - LEFT;
    const at = (node: number): number => this.left(node);
    const [from, to] = this.span;
    const zero = this.isTime ? this.starts![0] : 0;
    const least = this.isTime ? 0 : 1;
    const step = Math.max(least, nice((to - from) / Math.max(2, wide / 90)));
    context.fillStyle = theme.faint;
    for (let tick = Math.ceil((from - zero) / step) * step; tick < to - zero; tick += step) {
      const x = LEFT + ((tick + zero - from) * wide) / (to - from);
      context.fillRect(x, TOP + high, 1, 4);
      context.textAlign = x > LEFT + 1 ? (x > width - 24 ? "right" : "center") : "left";
      context.fillText(this.isTime ? duration(tick) : count(tick), x, TOP + high + 11);
    }
    context.textAlign = "left";
    let free = 0;
    for (const { from, to, name } of this.phases) {
      if (at(to) < LEFT) continue;
      if (this.phases.length > 1 && at(from) >= Math.max(free, LEFT)) context.fillRect(at(from), 0, 1, TOP + high);
      if (at(from) < free || at(to) - at(from) < context.measureText(name).width + 8) continue;
      context.fillText(name, at(from) + 4, 7);
      free = at(from) + context.measureText(name).width + 8;
    }
  }

  /** For each column of pixels the operation at which most is alive. */
  private peaks(columns: number): Int32Array {
    const { count } = this.app.run;
    const results = new Int32Array(columns);
    const { shown } = this;
    const [begin, end] = this.span;
    const first = (share: number): number =>
      this.isTime ? firstAfter(this.starts!, begin + share * (end - begin)) - 1 : Math.floor(share * count);
    for (let i = 0; i < columns; i++) {
      const from = Math.max(0, Math.min(count - 1, first(i / columns)));
      const to = Math.max(from + 1, Math.min(count, first((i + 1) / columns) + Number(this.isTime)));
      results[i] = from;
      for (let node = from; node < to; node++) if (shown[node] > shown[results[i]]) results[i] = node;
    }
    return results;
  }

  private axes(context: CanvasRenderingContext2D, width: number, high: number, most: number): void {
    const { theme, hoverSpan } = this.app;
    const at = (node: number): number => this.middle(node);
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
    context.save();
    context.beginPath();
    context.rect(LEFT - 2, 0, width - LEFT + 2, TOP + high);
    context.clip();
    if (hoverSpan) {
      const [x, end] = [this.left(hoverSpan[0]), this.left(hoverSpan[1] + 1)];
      context.fillStyle = `${theme.accent}30`;
      context.fillRect(x, TOP - 4, Math.max(2, end - x), high + 4);
    }
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
    context.restore();
  }
}
