/** The search field and its results. */

import type { App } from "../app.ts";
import { FIELDS } from "../data/fields.ts";
import { metricNames, search, type Found } from "../data/query.ts";
import { isRecomputed, RECOMPUTED } from "../data/recomputed.ts";
import { plural } from "../data/text.ts";
import { h, replace } from "../dom.ts";
import { markedText, nodeLink, pathText, type Go } from "./rows.ts";

const SHOWN = 200;

export class SearchBox {
  readonly input = h("input", {
    type: "search",
    placeholder: "Search  /   time>1ms op:conv* phase:backward",
    spellcheck: "false",
    "aria-label": "Search operations and modules",
  });
  readonly results = h("div", { class: "results", hidden: true, role: "listbox" });
  readonly element = h("div", { class: "search" }, this.input, this.results);
  found: Found | null = null;
  /** The row that Enter takes, and the text that the rows answer. */
  private at = 0;
  private asked = "";

  constructor(
    readonly app: App,
    readonly go: Go,
    readonly goScope: (scope: number) => void,
    readonly marked: () => void,
  ) {
    let waiting = 0;
    this.input.addEventListener("input", () => {
      clearTimeout(waiting);
      waiting = window.setTimeout(() => this.run(), app.run.count > 50_000 ? 180 : 40);
    });
    this.input.addEventListener("focus", () => this.run());
    this.input.addEventListener("keydown", (event) => this.onKey(event));
    document.addEventListener("pointerdown", (event) => {
      if (!this.element.contains(event.target as Node)) this.results.hidden = true;
    });
  }

  /** A search as an address brings it back: its hits brought out, its list shut. */
  show(text: string): void {
    if (!text && !this.input.value) return;
    this.input.value = text;
    this.run();
    this.results.hidden = true;
  }

  run(): void {
    const text = this.input.value.trim();
    this.at = 0;
    this.asked = text;
    this.results.hidden = false;
    if (!text) {
      this.found = null;
      this.app.mark(null);
      this.marked();
      replace(this.results, help(metricNames(this.app.run)));
      return;
    }
    this.found = search(this.app.run, text);
    const { scopes, total, error, mask } = this.found;
    this.app.mark(error || !total ? null : mask);
    this.marked();
    const summary =
      error || plural(total, "operation") + (scopes.length ? `, ${plural(scopes.length, "module call")}` : "");
    replace(
      this.results,
      h("div", { class: error ? "sub error" : "sub", role: "status" }, summary),
      ...this.rows(this.found.marks),
    );
    this.highlight(0);
  }

  /** Modules and operations in one list, best first; a module has no operation. */
  hits(): { node: number; scope: number }[] {
    if (!this.found) return [];
    const { nodes, nodeRank, scopes, scopeRank } = this.found;
    const hits: { node: number; scope: number }[] = [];
    let [node, scope] = [0, 0];
    while (hits.length < SHOWN && (node < nodes.length || scope < scopes.length)) {
      if (node >= nodes.length || scopeRank[scope] <= nodeRank[node]) hits.push({ node: -1, scope: scopes[scope++] });
      else hits.push({ node: nodes[node], scope: this.app.run.nodeScope[nodes[node++]] });
    }
    return hits;
  }

  private rows(marks: RegExp | null): HTMLElement[] {
    return this.hits().map(({ node, scope }) =>
      node < 0
        ? this.scopeRow(scope, marks)
        : nodeLink(this.app.run, node, () => this.pick(() => this.go(node)), this.amount(node), marks),
    );
  }

  /** The row that Enter takes. */
  private highlight(at: number): void {
    const rows = [...this.results.querySelectorAll<HTMLElement>(".row")];
    this.at = Math.max(0, Math.min(rows.length - 1, at));
    rows.forEach((row, index) => row.classList.toggle("on", index === this.at));
    rows[this.at]?.scrollIntoView({ block: "nearest" });
  }

  private amount(node: number): string {
    const measure = this.app.heat && this.app.run.metrics.has(this.app.heat.id) ? this.app.heat.id : "time_ns";
    const amount = this.app.run.metric(measure, node);
    const show = this.app.measures.find((one) => one.id === measure)?.show;
    return amount === null || !show ? "" : show(amount);
  }

  private scopeRow(scope: number, marks: RegExp | null): HTMLElement {
    const { run } = this.app;
    const [path, type] = run.module(scope);
    const facts = [path ? type : "", run.scopeCall[scope] ? `call ${run.scopeCall[scope] + 1}` : ""];
    if (isRecomputed(run, scope)) facts.push(RECOMPUTED);
    if (!run.ranAnything(scope)) facts.push("ran no operation");
    return h(
      "button",
      { class: "row link", type: "button", on: { click: () => this.pick(() => this.goScope(scope)) } },
      path ? pathText(path, "", marks) : h("b", {}, ...markedText(type, marks)),
      h("span", { class: "kind" }, ...markedText(facts.filter(Boolean).join(" · "), marks)),
    );
  }

  private pick(act: () => void): void {
    this.results.hidden = true;
    act();
  }

  private onKey(event: KeyboardEvent): void {
    if (event.key === "Escape") {
      if (this.input.value) {
        this.input.value = "";
        this.run();
      }
      this.results.hidden = true;
      this.input.blur();
    } else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      this.highlight(this.at + (event.key === "ArrowDown" ? 1 : -1));
    } else if (event.key === "Enter") {
      // What was typed last may still wait to be looked for.
      if (this.input.value.trim() !== this.asked) this.run();
      this.results.querySelectorAll<HTMLElement>(".row")[this.at]?.click();
      this.input.blur();
    }
    event.stopPropagation();
  }
}

function help(metrics: string[]): HTMLElement {
  return h(
    "div",
    { class: "sub" },
    "Words match operators, module paths and classes; /regex/ too. Filters:",
    h(
      "table",
      { class: "facts" },
      ...Object.entries(FIELDS).map(([name, text]) => h("tr", {}, h("th", {}, `${name}:`), h("td", {}, text))),
      h("tr", {}, h("th", {}, "time>1ms"), h("td", {}, `${metrics.join(", ")}; <, >, =; units ns…s, B…GiB, K…T`)),
      h("tr", {}, h("th", {}, "-op:view"), h("td", {}, "a minus turns a filter round")),
    ),
  );
}
