/** The search field and its results. */

import type { App } from "../app.ts";
import { FIELDS } from "../data/fields.ts";
import { metricNames, search, type Found } from "../data/query.ts";
import { isRecomputed, RECOMPUTED } from "../data/recomputed.ts";
import { plural } from "../data/text.ts";
import { h, replace } from "../dom.ts";
import { nodeLink, pathText, type Go } from "./rows.ts";

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
  private at = -1;

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

  run(): void {
    const text = this.input.value.trim();
    this.at = -1;
    this.results.hidden = false;
    if (!text) {
      this.found = null;
      this.app.mark(null);
      this.marked();
      replace(this.results, help(metricNames(this.app.run)));
      return;
    }
    this.found = search(this.app.run, text);
    const { nodes, scopes, total, error, mask } = this.found;
    this.app.mark(error || !total ? null : mask);
    this.marked();
    const summary =
      error || plural(total, "operation") + (scopes.length ? `, ${plural(scopes.length, "module call")}` : "");
    replace(
      this.results,
      h("div", { class: error ? "sub error" : "sub", role: "status" }, summary),
      ...scopes.slice(0, 40).map((scope) => this.scopeRow(scope)),
      ...nodes
        .slice(0, SHOWN)
        .map((node) => nodeLink(this.app.run, node, (n) => this.pick(() => this.go(n)), this.amount(node))),
    );
  }

  private amount(node: number): string {
    const measure = this.app.heat && this.app.run.metrics.has(this.app.heat.id) ? this.app.heat.id : "time_ns";
    const amount = this.app.run.metric(measure, node);
    const show = this.app.measures.find((one) => one.id === measure)?.show;
    return amount === null || !show ? "" : show(amount);
  }

  private scopeRow(scope: number): HTMLElement {
    const [path, type] = this.app.run.module(scope);
    const call = this.app.run.scopeCall[scope];
    return h(
      "button",
      { class: "row link", type: "button", on: { click: () => this.pick(() => this.goScope(scope)) } },
      path ? pathText(path) : h("b", {}, type),
      h(
        "span",
        { class: "kind" },
        `${path ? type : ""}${call ? ` · call ${call + 1}` : ""}${isRecomputed(this.app.run, scope) ? ` · ${RECOMPUTED}` : ""}`,
      ),
    );
  }

  private pick(act: () => void): void {
    this.results.hidden = true;
    act();
  }

  private onKey(event: KeyboardEvent): void {
    const rows = [...this.results.querySelectorAll<HTMLElement>(".row")];
    if (event.key === "Escape") {
      if (this.input.value) {
        this.input.value = "";
        this.run();
      }
      this.results.hidden = true;
      this.input.blur();
    } else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      this.at = Math.max(0, Math.min(rows.length - 1, this.at + (event.key === "ArrowDown" ? 1 : -1)));
      rows.forEach((row, index) => row.classList.toggle("on", index === this.at));
      rows[this.at]?.scrollIntoView({ block: "nearest" });
    } else if (event.key === "Enter") {
      this.run();
      const all = [...this.results.querySelectorAll<HTMLElement>(".row")];
      (rows[this.at]?.isConnected ? rows[this.at] : all[Math.max(0, this.at)])?.click();
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
