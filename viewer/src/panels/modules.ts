/** The module table: one row for each module, all its calls together; any column sorts. */

import type { App } from "../app.ts";
import { count, showFor } from "../data/units.ts";
import { h, replace } from "../dom.ts";
import { Forest } from "../tree/forest.ts";

interface Row {
  module: number;
  scope: number; // its first call
  depth: number;
  cells: (number | null)[];
}

const MOST = 1500;

export class ModuleTable {
  readonly element = h("div", { class: "panel modules" });
  private readonly columns: { id: string; label: string; show: (n: number) => string }[];
  private rows: Row[] | null = null;
  private sorted = -1; // the column; -1: as they ran
  private down = true;
  private filter = "";

  constructor(readonly app: App, readonly goScope: (scope: number) => void) {
    const metrics = ["time_ns", "alloc_bytes", "flops", "moved_bytes", "parameters", "difference_ns", "difference_bytes"].filter((name) => app.run.metrics.has(name));
    this.columns = [
      { id: "calls", label: "calls", show: count },
      { id: "ops", label: "ops", show: count },
      ...metrics.map((name) => ({ id: name, label: LABEL[name], show: showFor(name) })),
    ];
  }

  show(): void {
    this.rows ??= this.gather();
    const input = h("input", { type: "search", placeholder: "Filter modules", value: this.filter, "aria-label": "Filter modules" });
    const body = h("tbody");
    input.addEventListener("input", () => {
      this.filter = input.value;
      this.fill(body);
    });
    const heads = ["module", ...this.columns.map((column) => column.label)];
    const head = h("tr", {}, ...heads.map((label, place) => h("th", { tabindex: "0", "aria-sort": this.sorted === place - 1 ? (this.down ? "descending" : "ascending") : "none", on: {
      click: () => this.sortBy(place - 1),
      keydown: (event) => { if ((event as KeyboardEvent).key === "Enter") this.sortBy(place - 1); },
    } }, label + (this.sorted === place - 1 && place ? (this.down ? " ↓" : " ↑") : ""))));
    this.fill(body);
    replace(this.element, input, h("div", { class: "scroll" }, h("table", { class: "grid" }, h("thead", {}, head), body)));
  }

  private sortBy(column: number): void {
    this.down = this.sorted === column ? !this.down : true;
    this.sorted = column;
    this.show();
  }

  private fill(body: HTMLElement): void {
    const { run } = this.app;
    const low = this.filter.toLowerCase();
    let rows = this.rows!.filter(({ module }) => {
      const [path, type] = run.tables.modules[module];
      return !low || path.toLowerCase().includes(low) || type.toLowerCase().includes(low);
    });
    if (this.sorted >= 0) {
      const at = this.sorted;
      const sign = this.down ? -1 : 1;
      rows = rows.slice().sort((a, b) => sign * ((a.cells[at] ?? -Infinity) - (b.cells[at] ?? -Infinity)));
    }
    const most = this.columns.map((_, at) => this.rows!.reduce((top, row) => Math.max(top, Math.abs(row.cells[at] ?? 0)), 0));
    replace(body, ...rows.slice(0, MOST).map((row) => this.line(row, most)), rows.length > MOST ? h("tr", {}, h("td", { class: "sub" }, `and ${count(rows.length - MOST)} more: filter them`)) : null);
  }

  private line({ module, scope, depth, cells }: Row, most: number[]): HTMLElement {
    const [path, type] = this.app.run.tables.modules[module];
    const name = h("td", { class: "name", title: `${path}\n${type}` }, h("b", {}, path.split(".").pop() || type), h("span", { class: "sub" }, ` ${path ? type : ""}`));
    if (this.sorted < 0 && !this.filter) name.style.paddingLeft = `${6 + Math.min(depth, 12) * 11}px`;
    else replace(name, h("b", {}, path || type), h("span", { class: "sub" }, ` ${path ? type : ""}`));
    return h("tr", { tabindex: "0", on: {
      click: () => this.goScope(scope),
      keydown: (event) => { if ((event as KeyboardEvent).key === "Enter") this.goScope(scope); },
    } }, name, ...cells.map((cell, at) => {
      const td = h("td", { class: "num" }, cell === null ? "–" : this.columns[at].show(cell));
      if (cell && most[at] && at > 0) td.style.backgroundSize = `${Math.max(1, (100 * Math.abs(cell)) / most[at])}% 100%`;
      return td;
    }));
  }

  private gather(): Row[] {
    const { run } = this.app;
    const forest = new Forest(run, this.app.phases);
    const byModule = new Map<number, Row>();
    const rows: Row[] = [];
    const depths = new Int32Array(run.scopes);
    const open = new Map<number, number>(); // a module that calls itself is not counted twice
    for (let scope = 0; scope < run.scopes; scope++) {
      const parent = run.scopeParent[scope];
      depths[scope] = parent >= 0 ? depths[parent] + 1 : 0;
      if (forest.start[scope] === forest.end[scope] && scope > 0) continue;
      const module = run.scopeModule[scope];
      let row = byModule.get(module);
      if (!row) {
        row = { module, scope, depth: depths[scope], cells: this.columns.map(() => null) };
        byModule.set(module, row);
        rows.push(row);
      }
      row.cells[0] = (row.cells[0] ?? 0) + 1;
      if ((open.get(module) ?? -1) > forest.start[scope]) continue;
      open.set(module, forest.end[scope]);
      row.cells[1] = (row.cells[1] ?? 0) + forest.end[scope] - forest.start[scope];
      for (let at = 2; at < this.columns.length; at++) {
        const sum = forest.sum(this.columns[at].id, forest.start[scope], forest.end[scope]);
        if (sum && sum.unknown < forest.end[scope] - forest.start[scope]) row.cells[at] = (row.cells[at] ?? 0) + sum.total;
      }
    }
    return rows;
  }
}

const LABEL: Record<string, string> = {
  time_ns: "time", alloc_bytes: "memory", flops: "FLOPs", moved_bytes: "bytes", parameters: "params", difference_ns: "Δ time", difference_bytes: "Δ memory",
};
