/** Time by module: the spans in which each was running, wheel to zoom, click to select. */

import type { App } from "../app.ts";
import { flame, type Bars, type Flame } from "../data/flame.ts";
import { AGAIN, isOutermost, isRecomputed, RECOMPUTED } from "../data/recomputed.ts";
import { PHASES } from "../data/schema.gen.ts";
import { nice, phaseStretches, type Stretch } from "../data/phases.ts";
import { plural } from "../data/text.ts";
import { count, duration } from "../data/units.ts";
import { fitCanvas, h, replace } from "../dom.ts";
import { FAMILIES, blend, inkOn } from "../draw/theme.ts";
import { FONT, Ruler } from "../draw/text.ts";

export const LEFT = 64; // as in the chart of memory, so that the two stand on one clock
const ROW = 19;
const TOP = 36; // the clock, and the phases below it
const PHASE = 18;
const CLASSES = 7;

/** A bar in sight: what it stands for (-1 for none of the two), its label, and its place in the window. */
export interface Bar {
  scope: number;
  node: number;
  label: string;
  row: number;
  x: number;
  y: number;
  w: number;
  h: number;
}

export class FlameChart {
  readonly canvas = h("canvas", { class: "chart", tabindex: "0", role: "img", "aria-label": "Time by module" });
  readonly note = h("div", { class: "flame-note", hidden: true });
  private readonly key = h("div", { class: "chart-key" });
  readonly element = h("div", { class: "dock-body" }, h("div", { class: "flame" }, this.canvas, this.note, this.key));
  chart: Flame | null = null;
  private phases: Stretch[] = [];
  private from = 0;
  private to = 1;
  private ruler: Ruler | null = null;
  private hues = new Map<string, string>();
  private drag: { x: number; from: number; to: number } | null = null;
  private moved = false;
  private scroll = 0;

  constructor(
    readonly app: App,
    readonly go: (node: number) => void,
    readonly goScope: (scope: number, phase: number) => void,
  ) {
    new ResizeObserver(() => this.draw()).observe(this.canvas);
    app.on("look", () => this.draw());
    app.on("select", () => this.draw());
    app.on("hover", () => this.draw());
    this.canvas.addEventListener("wheel", (event) => this.onWheel(event), { passive: false });
    this.canvas.addEventListener("pointerdown", (event) => {
      this.drag = { x: event.clientX, from: this.from, to: this.to };
      this.moved = false;
      this.canvas.setPointerCapture(event.pointerId);
    });
    this.canvas.addEventListener("pointermove", (event) => this.onMove(event));
    this.canvas.addEventListener("pointerup", () => (this.drag = null));
    this.canvas.addEventListener("pointerleave", () => {
      this.note.hidden = true;
      app.point(null);
    });
    this.canvas.addEventListener("click", (event) => {
      if (!this.moved) this.pick(event);
    });
    this.canvas.addEventListener("dblclick", () => this.reset());
  }

  show(): void {
    if (!this.chart) {
      this.chart = flame(this.app.run);
      this.phases = phaseStretches(this.app.run);
      this.fillKey();
      this.reset();
    }
    this.draw();
  }

  bars(): Bar[] {
    const bounds = this.canvas.getBoundingClientRect();
    const scale = (bounds.width - LEFT) / (this.to - this.from);
    return this.chart!.rows.flatMap(({ owner, start, end }, row) =>
      Array.from(owner, (scope, bar) => ({
        scope: scope >= 0 ? scope : -1,
        node: scope < 0 ? ~scope : -1,
        label: this.barLabel(scope),
        row,
        x: bounds.left + LEFT + (start[bar] - this.from) * scale,
        y: bounds.top + TOP + row * ROW - this.scroll,
        w: (end[bar] - start[bar]) * scale,
        h: ROW,
      })),
    );
  }

  private barLabel(owner: number): string {
    return owner >= 0 ? this.label(owner) : this.app.run.name(~owner);
  }

  /** The classes of modules that take most of the chart, with their colours; operations have those of the graph. */
  private fillKey(): void {
    const spans = new Map<string, number>();
    for (const { owner, start, end } of this.chart!.rows) {
      owner.forEach((scope, bar) => {
        if (scope >= 0)
          spans.set(
            this.app.run.module(scope)[1],
            (spans.get(this.app.run.module(scope)[1]) ?? 0) + end[bar] - start[bar],
          );
      });
    }
    const sorted = [...spans].sort((a, b) => b[1] - a[1]).map(([name]) => name);
    this.hues = new Map(sorted.map((name, at) => [name, HUES[at % HUES.length]]));
    const classes = sorted.slice(0, CLASSES);
    replace(
      this.key,
      h("span", { class: "sub" }, "module classes:"),
      ...classes.map((name) => {
        const swatch = h("i", { class: "swatch" });
        swatch.style.background = blend("#ffffff", this.hues.get(name)!, 0.6);
        return h("span", { class: "key" }, swatch, name);
      }),
      this.app.run.columns.has("scope_recomputed") ? h("span", { class: "key" }, `${AGAIN}${RECOMPUTED}`) : null,
      h("span", { class: "sub" }, "operations have the colours of the graph"),
    );
  }

  private reset(): void {
    this.from = this.chart!.from;
    this.to = Math.max(this.chart!.to, this.from + 1);
    this.scroll = 0;
    this.draw();
  }

  private onWheel(event: WheelEvent): void {
    event.preventDefault();
    if (!this.chart) return;
    if (event.shiftKey) {
      const deepest = Math.max(0, this.chart.rows.length * ROW + TOP - this.canvas.clientHeight);
      this.scroll = Math.max(0, Math.min(deepest, this.scroll + event.deltaY));
      this.draw();
      return;
    }
    const share = this.share(event);
    const factor = Math.exp(event.deltaY * 0.002);
    const span = Math.min((this.to - this.from) * factor, this.chart.to - this.chart.from || 1);
    const at = this.from + share * (this.to - this.from);
    this.from = Math.max(this.chart.from, at - share * span);
    this.to = Math.min(this.chart.to, this.from + span);
    this.draw();
  }

  private share(event: MouseEvent): number {
    const bounds = this.canvas.getBoundingClientRect();
    return (event.clientX - bounds.left - LEFT) / Math.max(1, bounds.width - LEFT);
  }

  private onMove(event: PointerEvent): void {
    if (!this.chart) return;
    if (this.drag) {
      const by = ((event.clientX - this.drag.x) / (this.canvas.clientWidth - LEFT)) * (this.drag.to - this.drag.from);
      if (Math.abs(event.clientX - this.drag.x) > 3) this.moved = true;
      const shift = Math.max(this.chart.from - this.drag.from, Math.min(this.chart.to - this.drag.to, -by));
      this.from = this.drag.from + shift;
      this.to = this.drag.to + shift;
      this.draw();
      return;
    }
    const hit = this.at(event);
    this.canvas.style.cursor = hit ? "pointer" : "grab";
    this.note.hidden = !hit;
    this.app.point(null, hit ? this.nodeOf(hit.bars, hit.bar) : -1);
    if (!hit) return;
    this.note.textContent = this.describe(hit.bars, hit.bar);
    const [x, y] = [event.offsetX, event.offsetY];
    const wide = this.canvas.clientWidth;
    this.note.style.left = `${Math.max(0, Math.min(x + 14, wide - this.note.offsetWidth - 4))}px`;
    this.note.style.top = `${y + 20 + this.note.offsetHeight > this.canvas.clientHeight ? Math.max(0, y - this.note.offsetHeight - 8) : y + 20}px`;
  }

  private describe(bars: Bars, bar: number): string {
    const { run } = this.app;
    const owner = bars.owner[bar];
    const span = bars.end[bar] - bars.start[bar];
    if (owner < 0)
      return `${run.name(~owner)}: ${this.chart!.isTime ? duration(span) : plural(span, "operation")}\noperation ${count(~owner)} · ${PHASES[run.nodePhase[~owner]]}`;
    const [path, type] = run.module(owner);
    const inside = this.inside(bars.start[bar], bars.end[bar]);
    const name = `${path || type}${path ? ` (${type})` : ""}`;
    if (!this.chart!.isTime) return `${name}: ${plural(span, "operation")}`;
    return `${name}: ${duration(span)}, ${PHASES[inside.phase]}${isRecomputed(run, owner) ? `, ${RECOMPUTED}` : ""}\n${duration(inside.time)} in ${plural(inside.count, "operation")}; the rest between them, in Python and in recording`;
  }

  /** The operations that began in a span of time, and how long they took themselves. */
  private inside(from: number, to: number): { time: number; count: number; phase: number } {
    const { run } = this.app;
    const starts = run.metrics.get("start_ns");
    const result = { time: 0, count: 0, phase: 0 };
    if (!starts) return { ...result, phase: run.nodePhase[from] ?? 0 };
    for (let node = firstAfter(starts.values, from - 1); node < run.count && starts.values[node] < to; node++) {
      if (!result.count) result.phase = run.nodePhase[node];
      result.time += run.metric("time_ns", node) ?? 0;
      result.count += 1;
    }
    return result;
  }

  private at(event: MouseEvent): { bars: Bars; bar: number } | null {
    const bounds = this.canvas.getBoundingClientRect();
    const row = Math.floor((event.clientY - bounds.top - TOP + this.scroll) / ROW);
    const bars = this.chart?.rows[row];
    if (!bars || event.clientY - bounds.top < TOP) return null;
    const time = this.from + this.share(event) * (this.to - this.from);
    const slack = ((this.to - this.from) / Math.max(1, bounds.width)) * 1.5;
    for (
      let bar = Math.min(bars.start.length - 1, firstAfter(bars.start, time + slack));
      bar >= 0 && bar > firstAfter(bars.start, time + slack) - 4;
      bar--
    ) {
      if (bars.start[bar] <= time + slack && bars.end[bar] >= time - slack) return { bars, bar };
    }
    return null;
  }

  private pick(event: MouseEvent): void {
    const hit = this.at(event);
    if (!hit) return;
    const owner = hit.bars.owner[hit.bar];
    if (owner >= 0) this.goScope(owner, this.inside(hit.bars.start[hit.bar], hit.bars.end[hit.bar]).phase);
    else this.go(~owner);
  }

  /** The operation that a bar is, or the first in it. */
  private nodeOf(bars: Bars, bar: number): number {
    const owner = bars.owner[bar];
    if (owner < 0) return ~owner;
    const starts = this.app.run.metrics.get("start_ns");
    const first = this.chart!.isTime && starts ? firstAfter(starts.values, bars.start[bar] - 1) : bars.start[bar];
    return Math.min(this.app.run.count - 1, first);
  }

  draw(): void {
    if (!this.chart || !this.canvas.clientWidth) return;
    const { theme } = this.app;
    const { width, height, ratio } = fitCanvas(this.canvas);
    const context = this.canvas.getContext("2d")!;
    this.ruler ??= new Ruler(`11px ${FONT}`);
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    const scale = (width - LEFT) / (this.to - this.from);
    context.font = `11px ${FONT}`;
    context.textBaseline = "middle";
    context.textAlign = "left";
    context.save();
    context.beginPath();
    context.rect(LEFT, 0, width - LEFT, height);
    context.clip();
    context.translate(LEFT, 0);
    this.chart.rows.forEach((bars, row) => {
      const y = TOP + row * ROW - this.scroll;
      if (y > height || y < TOP - ROW) return;
      let painted = -1;
      for (
        let bar = Math.max(0, firstAfter(bars.start, this.from) - 1);
        bar < bars.start.length && bars.start[bar] <= this.to;
        bar++
      ) {
        const x = (bars.start[bar] - this.from) * scale;
        const end = Math.max(x + 1, (bars.end[bar] - this.from) * scale);
        if (end < 0 || end - painted < 0.8) continue;
        this.bar(context, bars.owner[bar], Math.max(x, painted), y, end);
        painted = end;
      }
    });
    context.fillStyle = theme.card;
    context.fillRect(0, 0, width, TOP - 1);
    context.fillStyle = theme.faint;
    const step = nice((this.to - this.from) / Math.max(2, width / 130));
    const zero = this.chart.isTime ? this.chart.from : 0;
    for (let tick = Math.ceil((this.from - zero) / step) * step; tick <= this.to - zero; tick += step) {
      const x = (tick + zero - this.from) * scale;
      context.fillText(this.chart.isTime ? duration(tick) : count(tick), x + 3, 9);
      context.fillRect(x, 3, 1, 12);
    }
    this.strip(context, width - LEFT, scale);
    this.cursor(context, scale, height);
    context.restore();
    if (this.chart.isTime) this.app.setClock(this.from, this.to);
  }

  /** What the pointer is on, here or elsewhere, as a band over all rows. */
  private cursor(context: CanvasRenderingContext2D, scale: number, height: number): void {
    const span = this.app.hoverSpan;
    const starts = this.app.run.metrics.get("start_ns");
    if (!span) return;
    const begin = (node: number): number => (this.chart!.isTime ? starts!.values[node] : node);
    const end = this.chart!.isTime ? begin(span[1]) + (this.app.run.metric("time_ns", span[1]) ?? 0) : span[1] + 1;
    const x = (begin(span[0]) - this.from) * scale;
    context.fillStyle = `${this.app.theme.accent}30`;
    context.fillRect(x, 0, Math.max(2, (end - this.from) * scale - x), height);
  }

  /** The phases, as a strip above the bars. */
  private strip(context: CanvasRenderingContext2D, width: number, scale: number): void {
    const { theme, run } = this.app;
    const starts = run.metrics.get("start_ns");
    const at = (node: number): number =>
      ((this.chart!.isTime ? (node < run.count ? starts!.values[node] : this.chart!.to) : node) - this.from) * scale;
    for (const { from, to, name } of this.phases) {
      const [x, end] = [Math.max(0, at(from)), Math.min(width, at(to))];
      if (end - x < 2) continue;
      context.fillStyle = blend(theme.card, PHASE_COLORS[name] ?? theme.faint, theme.dark ? 0.45 : 0.3);
      context.fillRect(x, PHASE, end - x - 1, 14);
      context.fillStyle = theme.ink;
      if (end - x > context.measureText(name).width + 8) context.fillText(name, x + 4, PHASE + 7.5);
    }
  }

  /** The end of a path, the part that tells modules apart; a number says nothing without what it counts. */
  private label(scope: number): string {
    const [path, type] = this.app.run.module(scope);
    const parts = path.split(".");
    const mark = isOutermost(this.app.run, scope) ? AGAIN : "";
    return mark + (path ? parts.slice(/^\d+$/.test(parts[parts.length - 1]) ? -2 : -1).join(".") : type);
  }

  private bar(context: CanvasRenderingContext2D, owner: number, x: number, y: number, end: number): void {
    const { app } = this;
    const { run, theme } = app;
    const wide = end - x;
    const label = this.barLabel(owner);
    const family = owner >= 0 ? "module" : (run.data.families[run.name(~owner)] ?? "elementwise");
    const base = owner >= 0 ? (this.hues.get(run.module(owner)[1]) ?? HUES[0]) : FAMILIES[family];
    const isOn = owner < 0 ? ~owner === app.node : app.selected?.scope === owner;
    const fill = blend(theme.card, base, owner >= 0 ? 0.38 : 0.72);
    context.fillStyle = isOn ? theme.accent : fill;
    context.fillRect(x, y, wide > 3 ? wide - 1 : wide, ROW - 1);
    if (wide < 16) return;
    context.fillStyle = isOn ? theme.ground : theme.dark && owner >= 0 ? theme.ink : inkOn(fill);
    const text = this.ruler!.fit(label, wide - 8);
    if (text === label || text.length > 6) context.fillText(text, x + 4, y + ROW / 2); // crumbs of a name tell nothing
  }
}

const PHASE_COLORS: Record<string, string> = { forward: "#2f86c8", backward: "#dd8a2c", optimizer: "#84973a" };
/** Given to classes of modules in the order of the time that they take. */
const HUES = [
  "#2f86c8",
  "#dd8a2c",
  "#1fa08c",
  "#9b6cc9",
  "#d1a10f",
  "#cf5f6b",
  "#5f9e35",
  "#7a6bd1",
  "#8c6d4f",
  "#4fb0d0",
  "#b45fb0",
  "#7d93ab",
];

/** The first place whose number is larger. */
export function firstAfter(numbers: ArrayLike<number>, limit: number): number {
  let low = 0;
  let high = numbers.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (numbers[middle] <= limit) low = middle + 1;
    else high = middle;
  }
  return low;
}
