/** The run in a few figures, what could not be captured, and where a compiled graph broke. */

import type { App } from "../app.ts";
import { PHASES } from "../data/run.ts";
import { amount, count, duration, size } from "../data/units.ts";
import { h, replace } from "../dom.ts";
import { section } from "./details.ts";

export class Summary {
  readonly element = h("div", { class: "panel summary" });

  constructor(readonly app: App) {}

  show(): void {
    const { run } = this.app;
    const { meta, limits, compare } = run.data;
    const rows: [string, string][] = [
      ["model", String(meta.model ?? "run")],
      ["operations", count(run.count)],
      ...this.app.phases.map((phase): [string, string] => [PHASES[phase], count((run.nodePhase as Int8Array).reduce((n, p) => n + (p === phase ? 1 : 0), 0))]),
      ["tensors", count(run.values)],
      ["module calls", count(run.scopes - 1)],
      ["parameters", this.total("parameters", amount)],
      ["time of operations", this.total("time_ns", duration)],
      ["wall time", typeof meta.wall_ns === "number" ? duration(meta.wall_ns) : "not known"],
      ["FLOPs", this.total("flops", amount)],
      ["bytes moved", this.total("moved_bytes", size)],
      ["peak memory", this.peak()],
      ...Object.entries(meta).filter(([name]) => !["model", "wall_ns", "parameters"].includes(name)).map(([name, value]): [string, string] => [name.replaceAll("_", " "), String(Array.isArray(value) ? value.join(", ") : name.endsWith("_ns") ? duration(Number(value)) : value)]),
    ];
    const breaks = limits.filter((text) => /graph break/i.test(text));
    const others = limits.filter((text) => !/graph break/i.test(text));
    replace(this.element,
      compare ? section("Comparison", h("p", {}, `A: ${compare.a}   B: ${compare.b}`), h("table", { class: "facts" }, ...Object.entries(compare.counts).map(([name, n]) => h("tr", {}, h("th", {}, name), h("td", {}, count(n))))), ...compare.notes.map((note) => h("p", { class: "sub" }, note))) : null,
      section("Run", h("table", { class: "facts" }, ...rows.map(([name, text]) => h("tr", {}, h("th", {}, name), h("td", {}, text))))),
      section(`Not captured (${count(others.length)})`, others.length ? h("ul", { class: "limits" }, ...others.map((text) => h("li", {}, text))) : h("p", { class: "sub" }, "Everything the run did was captured.")),
      breaks.length ? section(`Graph breaks (${count(breaks.length)})`, h("ul", { class: "limits" }, ...breaks.map((text) => h("li", {}, text)))) : null,
    );
  }

  private total(name: string, show: (n: number) => string): string {
    const metric = this.app.run.metrics.get(name);
    if (!metric) return "not known";
    let sum = 0;
    let unknown = 0;
    for (let i = 0; i < metric.values.length; i++) {
      if (metric.known && !metric.known[i]) unknown += 1;
      else sum += metric.values[i];
    }
    return show(sum) + (unknown ? ` (${count(unknown)} operations not known)` : "");
  }

  private peak(): string {
    const live = this.app.run.metrics.get("live_bytes");
    if (!live || !live.values.length) return "not known";
    let most = 0;
    for (const bytes of live.values) most = Math.max(most, bytes);
    return size(most);
  }
}
