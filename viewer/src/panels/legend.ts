/** What the colours of the graph mean. */

import type { App } from "../app.ts";
import { plural } from "../data/text.ts";
import { h } from "../dom.ts";
import { amountAt, BAD, BOUNDS, categoryColor, SCALES, type Measure } from "../draw/heat.ts";
import { FAMILIES, mixed } from "../draw/theme.ts";
import type { Box } from "../tree/box.ts";

export function legendOf(app: App): HTMLElement[] {
  const { theme, heat } = app;
  if (heat) return heatLegend(app, heat);
  if (app.run.difference) return ["", "only in B (added)", "only in A (removed)", "changed"].flatMap((name, i) => (i ? [swatch(theme.difference[i], name)] : []));
  const used = new Set<string>();
  for (const box of drawnBoxes(app)) used.add(app.family(box));
  return Object.keys(FAMILIES).filter((name) => used.has(name) && name !== "module").map((name) => swatch(mixed([theme.card, FAMILIES[name]], 0.85), name));
}

function heatLegend(app: App, heat: Measure): HTMLElement[] {
  const { theme } = app;
  const boxes = drawnBoxes(app).filter((box) => !heat.applies || heat.applies(box));
  const amounts = boxes.map((box) => heat.of(box));
  const unknown = amounts.filter((one) => one === null).length;
  const isBad = amounts.some((one) => one !== null && !Number.isFinite(one));
  const notes = [heat.how, SCALES[heat.scale], unknown ? `${plural(unknown, "box")} not known` : ""].filter(Boolean).join(" · ");
  const found: HTMLElement[] = [h("div", { class: "legend-title" }, h("b", {}, heat.label), h("span", { class: "sub" }, ` ${notes}`))];
  if (heat.scale === "category") found.push(...BOUNDS.flatMap((name, code) => (name ? [swatch(categoryColor(code, theme), name)] : [])));
  else {
    const bar = h("div", { class: "ramp" });
    bar.style.background = `linear-gradient(to right, ${(heat.scale === "diverging" ? theme.diverging : theme.heat).join(", ")})`;
    found.push(bar, h("div", { class: "ticks" }, ...[0, 0.5, 1].map((share) => h("span", {}, heat.show(amountAt(heat.scale, app.range, share))))));
  }
  if (isBad) found.push(swatch(BAD, "NaN or infinite"));
  return found;
}

function drawnBoxes(app: App): Box[] {
  const found: Box[] = [];
  for (const { picture } of app.scene?.columns ?? []) for (const { box, own } of picture.items) if (own < 0 && box.start >= 0) found.push(box);
  return found;
}

function swatch(color: string, text: string): HTMLElement {
  const dot = h("i", { class: "swatch" });
  dot.style.background = color;
  return h("span", { class: "key" }, dot, text);
}
