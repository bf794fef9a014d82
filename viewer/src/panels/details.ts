/** Every fact of the selection. */

import type { App } from "../app.ts";
import { DIFFERENCES, KINDS, PHASES, ROLES, type Run } from "../data/run.ts";
import { count, showFor, size } from "../data/units.ts";
import { button, h, replace } from "../dom.ts";
import { plural } from "../draw/measure.ts";
import type { Box } from "../tree/box.ts";

export type Go = (node: number) => void;

const MOST = 12;

export class Details {
  readonly element = h("div", { class: "panel details" });

  constructor(readonly app: App, readonly go: Go, readonly goScope: (scope: number) => void, readonly copy: () => void) {
    app.on("select", () => this.show());
    this.show();
  }

  show(): void {
    const { app } = this;
    if (app.node >= 0) replace(this.element, ...this.operation(app.node));
    else if (app.selected) replace(this.element, ...this.group(app.selected));
    else replace(this.element, h("p", { class: "hint" }, "Click a box to see everything about it. Double click opens it, / searches, ? shows all keys."));
  }

  private heading(title: string, sub: string): HTMLElement {
    return h("div", { class: "heading" },
      h("div", { class: "titles" }, h("h2", {}, title), h("div", { class: "sub" }, sub)),
      button("Copy", "Copy as Markdown (c)", () => this.copy(), { class: "icon" }),
    );
  }

  private operation(node: number): HTMLElement[] {
    const { run } = this.app;
    const made = run.outputs(node);
    const site = run.nodeSite[node] >= 0 ? run.tables.sites[run.nodeSite[node]] : null;
    const facts = this.facts([
      ["number", count(node)],
      ["phase", PHASES[run.nodePhase[node]]],
      ["module", this.scopeLink(run.nodeScope[node])],
      ["marks", run.flags(node).join(", ")],
      ["comparison", run.difference ? DIFFERENCES[run.difference[node]] : ""],
      ...this.metricRows((name) => run.metric(name, node), "node"),
    ]);
    const used = run.arguments(node);
    return [
      this.heading(run.name(node), run.op(node)),
      facts,
      section("Arguments", h("table", { class: "rows" }, ...used.map((one) => h("tr", {},
        h("th", {}, one.name),
        h("td", {}, ...(one.values.length ? one.values.map((value) => this.value(value)) : [h("code", {}, one.text)])),
      )))),
      section("Makes", ...made.map((value) => this.value(value))),
      this.aliases(node),
      this.linksOf(node),
      this.nodes("Producers", run.producers(node)),
      this.nodes("Consumers", run.users(node)),
      ...(site ? [sourceOf(run, site)] : []),
    ].filter((part): part is HTMLElement => part !== null);
  }

  /** Values that are read through an alias, which no argument names. */
  private aliases(node: number): HTMLElement | null {
    const { run } = this.app;
    const found: HTMLElement[] = [];
    for (let row = run.inStart[node]; row < run.inStart[node + 1]; row++) {
      if (run.inSlot[row] >= 0) continue;
      found.push(h("div", {}, this.value(run.inValue[row]), h("span", { class: "sub" }, ` ${KINDS[run.inKind[row]]}, through an alias`)));
    }
    return found.length ? section("Also reads", ...found) : null;
  }

  private linksOf(node: number): HTMLElement | null {
    const { run } = this.app;
    if (run.nodeLink[node] >= 0) return this.nodes("Gradient of", [run.nodeLink[node]]);
    return this.nodes("Its gradient", run.linked(node));
  }

  private group(box: Box): HTMLElement[] {
    const { run } = this.app;
    if (box.kind === "input" || box.kind === "output") {
      const value = box.elements[0];
      return [this.heading(box.label, box.kind), this.facts([["type", box.type]]), section("Value", this.value(value)), this.nodes("Read by", run.readers(value)) ?? h("div")];
    }
    const { scope } = box;
    const nodes = Array.from(box.forest.order.subarray(box.start, box.end));
    const odd = box.oddInstances;
    const stands = box.kind === "fold" ? `${count(box.count)} alike; figures are sums over all of them` : "";
    const site = scope >= 0 ? this.siteOf(nodes) : null;
    return [
      this.heading(box.label || box.type, box.type),
      this.facts([
        ["path", scope >= 0 ? run.path(scope) || "(root)" : ""],
        ["call", scope >= 0 && run.scopeCall[scope] > 0 ? `number ${run.scopeCall[scope] + 1}` : ""],
        ["stands for", stands],
        ["differ", odd.length ? odd.map((place) => box.children[place].label).join(", ") : ""],
        ["", box.odd ? "differs from its siblings in operators or shapes" : ""],
        ["operations", count(box.operations)],
        ...this.metricRows((name) => { const sum = box.forest.sum(name, box.start, box.end); return sum && sum.unknown < box.operations ? sum.total : null; }, "node", box),
        ...(scope >= 0 ? this.metricRows((name) => run.metric(name, scope), "scope") : []),
      ]),
      operators(run, nodes),
      this.takesAndMakes(box),
      this.parameters(box),
      ...(site ? [sourceOf(run, site)] : []),
    ].filter((part): part is HTMLElement => part !== null);
  }

  private siteOf(nodes: number[]): [string, number, string] | null {
    const { run } = this.app;
    const node = nodes.find((one) => run.nodeSite[one] >= 0);
    return node === undefined ? null : run.tables.sites[run.nodeSite[node]];
  }

  /** What crosses the border of a group. */
  private takesAndMakes(box: Box): HTMLElement | null {
    const { run } = this.app;
    const { forest } = box;
    const takes = new Set<number>();
    const makes = new Set<number>();
    const inside = (node: number): boolean => node >= 0 && forest.position[node] >= box.start && forest.position[node] < box.end;
    for (let place = box.start; place < box.end && takes.size < 200; place++) {
      const node = forest.order[place];
      for (let row = run.inStart[node]; row < run.inStart[node + 1]; row++) {
        const value = run.inValue[row];
        if (!inside(run.producer[value]) && run.valueRole[value] !== 2) takes.add(value);
      }
      for (const value of run.outputs(node)) {
        if (makes.size < 200 && run.readers(value).some((reader) => !inside(reader))) makes.add(value);
      }
    }
    return h("div", {}, this.values("Takes", [...takes]) ?? "", this.values("Hands out", [...makes]) ?? "");
  }

  private parameters(box: Box): HTMLElement | null {
    const { run } = this.app;
    const found = new Map<string, number>();
    for (let place = box.start; place < box.end && found.size < 400; place++) {
      const node = box.forest.order[place];
      for (let row = run.inStart[node]; row < run.inStart[node + 1]; row++) {
        const value = run.inValue[row];
        if ((run.valueRole[value] === 2 || run.valueRole[value] === 3) && run.valueName[value] >= 0) found.set(run.valueLabel(value), value);
      }
    }
    return this.values("Parameters and buffers", [...found.values()]);
  }

  private values(title: string, values: number[]): HTMLElement | null {
    if (!values.length) return null;
    const rows = values.slice(0, MOST).map((value) => this.value(value));
    return section(`${title} (${count(values.length)})`, ...rows, more(values.length - MOST));
  }

  private facts(rows: [string, string | HTMLElement][]): HTMLElement {
    return h("table", { class: "facts" }, ...rows.filter(([, text]) => text !== "").map(([name, text]) => h("tr", {}, h("th", {}, name), h("td", {}, text))));
  }

  private metricRows(read: (name: string) => number | null, along: string, box?: Box): [string, string][] {
    const rows: [string, string][] = [];
    for (const metric of this.app.run.metrics.values()) {
      if (metric.along !== along || metric.name === "difference") continue;
      if (box && ["start_ns", "live_bytes"].includes(metric.name)) continue;
      const amount = read(metric.name);
      const unknown = box ? (box.forest.sum(metric.name, box.start, box.end)?.unknown ?? 0) : 0;
      const missing = amount !== null && unknown ? ` (${plural(unknown, "operation")} not known)` : "";
      rows.push([metricLabel(metric.name), amount === null ? "not known" : showFor(metric.name)(amount) + missing]);
    }
    return rows;
  }

  private scopeLink(scope: number): HTMLElement | string {
    const { run } = this.app;
    const [path, type] = run.module(scope);
    return h("button", { class: "link", type: "button", on: { click: () => this.goScope(scope) } }, path ? `${path} (${type})` : type || "(the run)");
  }

  private nodes(title: string, nodes: number[]): HTMLElement | null {
    if (!nodes.length) return null;
    const rows = nodes.slice(0, MOST).map((node) => nodeLink(this.app.run, node, this.go));
    return section(`${title} (${count(nodes.length)})`, ...rows, more(nodes.length - MOST));
  }

  private value(value: number): HTMLElement {
    const { run } = this.app;
    const [dtype, , stride, layout] = run.type(value);
    const bytes = run.columns.get("storage_bytes")?.[run.valueStorage[value]];
    const device = run.tables.devices[run.columns.get("storage_device")?.[run.valueStorage[value]] ?? -1] ?? "";
    const title = [`${dtype}, strides [${stride.join(", ")}], ${layout}`, device, bytes === undefined ? "" : `memory block ${run.valueStorage[value]} of ${size(bytes)}`].filter(Boolean).join("\n");
    const from = run.producer[value];
    const act = (): void => { if (from >= 0) this.go(from); else if (run.readers(value).length) this.go(run.readers(value)[0]); };
    return h("button", { class: "value link", type: "button", title, on: { click: act } },
      h("b", {}, run.valueLabel(value)), ` ${run.typeText(value)} `, h("i", { class: `role r${run.valueRole[value]}` }, ROLES[run.valueRole[value]]));
  }
}

export function nodeLink(run: Run, node: number, go: Go, extra = ""): HTMLElement {
  const path = run.path(run.nodeScope[node]);
  return h("button", { class: "row link", type: "button", on: { click: () => go(node) } },
    h("b", {}, run.name(node)), h("span", { class: "sub" }, ` ${path || "(the run)"} · ${PHASES[run.nodePhase[node]]} · ${count(node)}`), extra ? h("span", { class: "amount" }, extra) : "");
}

export function metricLabel(name: string): string {
  return name.replace(/_(ns|bytes)$/, "").replaceAll("_", " ");
}

export function section(title: string, ...children: (Node | string | null)[]): HTMLElement {
  return h("section", {}, h("h3", {}, title), ...children);
}

function more(count_: number): HTMLElement | null {
  return count_ > 0 ? h("div", { class: "sub" }, `and ${count(count_)} more`) : null;
}

function operators(run: Run, nodes: number[]): HTMLElement | null {
  const counts = new Map<string, number>();
  for (const node of nodes) counts.set(run.name(node), (counts.get(run.name(node)) ?? 0) + 1);
  const sorted = [...counts].sort((a, b) => b[1] - a[1]);
  if (!sorted.length) return null;
  const text = sorted.slice(0, 14).map(([name, n]) => (n > 1 ? `${name} ×${count(n)}` : name)).join(", ");
  return section("Operators", h("div", { class: "ops" }, text + (sorted.length > 14 ? ` and ${sorted.length - 14} more` : "")));
}

export function sourceOf(run: Run, [file, line, fn]: [string, number, string]): HTMLElement {
  const lines = run.tables.sources[file] ?? {};
  const near = Object.keys(lines).map(Number).filter((n) => Math.abs(n - line) <= 4).sort((a, b) => a - b);
  const code = h("pre", { class: "source" }, ...near.map((n) => h("div", { class: n === line ? "here" : "" }, h("span", { class: "no" }, String(n).padStart(5)), ` ${lines[n]}`)));
  const place = `${file.split(/[\\/]/).slice(-2).join("/")}:${line}`;
  return section("Source", h("div", { class: "sub", title: `${file}:${line}` }, `${place} in ${fn}`), near.length ? code : h("div", { class: "sub" }, "the file was not there when this page was written"));
}
