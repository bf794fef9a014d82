/** What the colours of the graph mean. */

import type { App } from "../app.ts";
import { h } from "../dom.ts";
import { keyOf } from "../draw/key.ts";

export function legendOf(app: App): HTMLElement[] {
  const { title, notes, ramp, ticks, swatches } = keyOf(app, true);
  const results: HTMLElement[] = [];
  if (title || notes)
    results.push(h("div", { class: "legend-title" }, h("b", {}, title), h("span", { class: "sub" }, ` ${notes}`)));
  if (ramp.length) {
    const bar = h("div", { class: "ramp" });
    bar.style.background = `linear-gradient(to right, ${ramp.join(", ")})`;
    results.push(h("div", {}, bar, h("div", { class: "ticks" }, ...ticks.map((text) => h("span", {}, text)))));
  }
  return [...results, ...swatches.map(([color, text]) => swatch(color, text))];
}

function swatch(color: string, text: string): HTMLElement {
  if (!color) return h("span", { class: "key" }, text);
  const dot = h("i", { class: "swatch" });
  dot.style.background = color;
  return h("span", { class: "key" }, dot, text);
}
