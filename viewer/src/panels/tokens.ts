/** Tokens as an axis: what each call of a model that writes a text takes, and how its cache grows. */

import type { App } from "../app.ts";
import { nice } from "../data/phases.ts";
import { USE_COLORS } from "../data/schema.gen.ts";
import { plural } from "../data/text.ts";
import { tokenSteps, tokenTotals, type TokenStep, type TokenTotals } from "../data/tokens.ts";
import { amountOf, count, duration, size, type Show } from "../data/units.ts";
import { fitCanvas, h, replace } from "../dom.ts";
import { FONT } from "../draw/text.ts";
import { LEFT } from "./flamechart.ts";

const TOP = 6;
const BASE = 18;
const GAP = 18; // between two rows: the name of the lower one
const CUT = 1.35; // of the most that a decode step takes: what is higher, such as the prefill, is cut there
const CACHE = 7; // its place among the uses of memory
const FADED = "70"; // alpha of what the program does outside of the model

/** One row of bars, or a line. */
interface Row {
  name: string;
  show: Show;
  parts: (step: TokenStep) => number[];
  color: string;
  isArea: boolean;
}

export class TokenChart {
  readonly canvas = h("canvas", {
    class: "chart",
    tabindex: "0",
    role: "img",
    "aria-label": "Time, FLOPs and cache by token",
  });
  private readonly note = h("div", { class: "chart-key" });
  readonly element = h("div", { class: "dock-body tokens" }, h("div", { class: "chart-side" }, this.canvas, this.note));
  readonly steps: TokenStep[];
  private readonly rows: Row[];
  private at = -1; // the step under the pointer

  constructor(
    readonly app: App,
    readonly go: (scope: number) => void,
  ) {
    this.steps = tokenSteps(app.run);
    this.rows = this.steps.length ? this.makeRows() : [];
    new ResizeObserver(() => this.draw()).observe(this.canvas);
    for (const event of ["look", "hover"] as const) app.on(event, () => this.draw());
    this.canvas.addEventListener("pointermove", (event) => this.hover(this.stepAt(event)));
    this.canvas.addEventListener("pointerleave", () => this.hover(-1));
    this.canvas.addEventListener("click", (event) => {
      const step = this.stepAt(event);
      if (step >= 0) this.go(this.steps[step].scope);
    });
  }

  /** Whether the run writes a text at all. */
  get isKnown(): boolean {
    return this.steps.length > 0;
  }

  show(): void {
    this.tell();
    this.draw();
  }

  private makeRows(): Row[] {
    const { steps } = this;
    const rows: Row[] = [
      {
        name: "time a token: in the model, and outside of it",
        show: duration,
        parts: (step) => [step.modelNs ?? 0, step.outsideNs ?? 0],
        color: "#2f86c8",
        isArea: false,
      },
      {
        name: "FLOPs a token",
        show: amountOf("FLOP"),
        parts: (step) => [step.flops ?? 0],
        color: "#7a6bd0",
        isArea: false,
      },
      { name: "KV cache", show: size, parts: (step) => [step.cacheBytes ?? 0], color: USE_COLORS[CACHE], isArea: true },
    ];
    return rows.filter((row) => steps.some((step) => row.parts(step).some((amount) => amount > 0)));
  }

  private hover(step: number): void {
    if (step === this.at) return;
    this.at = step;
    this.app.point(null, step < 0 ? -1 : this.steps[step].start);
    this.tell();
    this.draw();
  }

  private stepAt(event: MouseEvent): number {
    const { left, width } = this.canvas.getBoundingClientRect();
    const step = Math.floor(((event.clientX - left - LEFT) / Math.max(1, width - LEFT)) * this.steps.length);
    return step >= 0 && step < this.steps.length ? step : -1;
  }

  private tell(): void {
    const { steps, at } = this;
    if (!steps.length) return;
    replace(this.note, h("span", { class: "sub" }, at < 0 ? totalsText(tokenTotals(steps)) : stepText(steps[at], at)));
  }

  draw(): void {
    if (!this.rows.length || !this.canvas.clientWidth) return;
    const { theme } = this.app;
    const { width, height, ratio } = fitCanvas(this.canvas);
    const context = this.canvas.getContext("2d")!;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    context.font = `11px ${FONT}`;
    context.textBaseline = "middle";
    const wide = (width - LEFT) / this.steps.length;
    if (this.at >= 0) {
      context.fillStyle = `${theme.accent}22`;
      context.fillRect(LEFT + this.at * wide, 0, wide, height - BASE);
    }
    const high = (height - TOP - BASE - GAP * this.rows.length) / this.rows.length;
    this.rows.forEach((row, number) => {
      const top = TOP + GAP + number * (high + GAP);
      this.row(context, row, top, Math.max(8, high), wide, width);
    });
    this.axis(context, height, wide);
  }

  private row(
    context: CanvasRenderingContext2D,
    row: Row,
    top: number,
    high: number,
    wide: number,
    width: number,
  ): void {
    const { theme } = this.app;
    const sums = this.steps.map((step) => row.parts(step).reduce((a, b) => a + b, 0));
    const most = row.isArea ? Math.max(...sums) : Math.min(Math.max(...sums), CUT * Math.max(...sums.slice(1)));
    const scale = high / (most || 1);
    context.strokeStyle = theme.frameLine;
    context.lineWidth = 1;
    context.beginPath();
    context.moveTo(LEFT, top + high + 0.5);
    context.lineTo(width, top + high + 0.5);
    context.stroke();
    context.fillStyle = theme.faint;
    context.textAlign = "left";
    context.fillText(row.name, LEFT + 2, top - GAP / 2 + 1);
    context.textAlign = "right";
    context.fillText(row.show(most).replace(/FLOP$/, ""), LEFT - 6, top + 4);
    if (row.isArea) this.area(context, row, sums, top, high, wide, scale);
    else
      this.steps.forEach((step, number) => {
        const x = LEFT + number * wide + Math.min(2, wide * 0.12);
        let from = top + high;
        row.parts(step).forEach((amount, part) => {
          const to = Math.max(top, from - amount * scale);
          context.fillStyle = part ? row.color + FADED : row.color;
          context.fillRect(x, to, Math.max(1, wide - Math.min(4, wide * 0.24)), from - to);
          from = to;
        });
        if (sums[number] > most * 1.001) this.cut(context, row.show(sums[number]), x, top, wide);
      });
  }

  /** A bar that is higher than its row says how high. */
  private cut(context: CanvasRenderingContext2D, text: string, x: number, top: number, wide: number): void {
    const { theme } = this.app;
    context.fillStyle = theme.ground;
    context.fillRect(x - 1, top + 5, wide, 3);
    context.fillStyle = theme.ink;
    context.textAlign = "left";
    context.fillText(`↑ ${text}`, x + wide + 3, top + 4);
  }

  private area(
    context: CanvasRenderingContext2D,
    row: Row,
    sums: number[],
    top: number,
    high: number,
    wide: number,
    scale: number,
  ): void {
    context.beginPath();
    context.moveTo(LEFT, top + high);
    sums.forEach((amount, number) => {
      context.lineTo(LEFT + number * wide, top + high - amount * scale);
      context.lineTo(LEFT + (number + 1) * wide, top + high - amount * scale);
    });
    context.lineTo(LEFT + sums.length * wide, top + high);
    context.closePath();
    context.fillStyle = `${row.color}55`;
    context.fill();
    context.beginPath();
    sums.forEach((amount, number) => {
      context.lineTo(LEFT + number * wide, top + high - amount * scale);
      context.lineTo(LEFT + (number + 1) * wide, top + high - amount * scale);
    });
    context.strokeStyle = row.color;
    context.lineWidth = 2;
    context.stroke();
  }

  /** Below, the tokens that are written, by number. */
  private axis(context: CanvasRenderingContext2D, height: number, wide: number): void {
    const { theme } = this.app;
    context.fillStyle = theme.faint;
    context.textAlign = "right";
    context.fillText("token", LEFT - 6, height - BASE / 2 + 1);
    const every = Math.max(1, Math.round(nice(26 / wide)));
    const first = "1 · prefill";
    const taken = context.measureText(first).width + 10;
    context.textAlign = "left";
    context.fillText(first, LEFT + 2, height - BASE / 2 + 1);
    context.textAlign = "center";
    for (let step = 1; step < this.steps.length; step++) {
      const x = LEFT + (step + 0.5) * wide;
      if ((step + 1) % every === 0 && x > LEFT + taken + 6) context.fillText(count(step + 1), x, height - BASE / 2 + 1);
    }
  }
}

/** What a whole run comes to, in a line. */
export function totalsText({ prompt, written, prefillNs, decodeNs, decodeFlops, cacheBytes }: TokenTotals): string {
  const each = decodeNs === null || written < 2 ? null : decodeNs / (written - 1);
  return [
    `prefill of ${plural(prompt, "token")}${prefillNs === null ? "" : ` in ${duration(prefillNs)}`}`,
    `${plural(written - 1, "decode step")}${each === null ? "" : ` of ${duration(each)}`}`,
    decodeFlops === null ? "" : `${amountOf("FLOP")(decodeFlops)} each`,
    cacheBytes ? `KV cache ${size(cacheBytes)} at the end` : "",
  ]
    .filter(Boolean)
    .join(" · ");
}

function stepText(step: TokenStep, number: number): string {
  const { modelNs, outsideNs, flops, cacheBytes } = step;
  return [
    number ? `token ${count(number + 1)}` : `prefill of ${plural(step.tokens, "token")}, which gives token 1`,
    modelNs === null ? "" : `${duration(modelNs)} in the model`,
    outsideNs === null ? "" : `${duration(outsideNs)} outside of it`,
    flops === null ? "" : amountOf("FLOP")(flops),
    cacheBytes ? `KV cache ${size(cacheBytes)}` : "",
  ]
    .filter(Boolean)
    .join(" · ");
}
