/** The module table: one row for each module, all its calls together; any column sorts. */

import type { App } from "../app.ts";
import { pathBefore } from "../data/renamed.ts";
import { AGAIN, isOutermost, isRecomputed, RECOMPUTED, SAID } from "../data/recomputed.ts";
import { COMPARED, DIFFERENCES, WHOLE_RUN } from "../data/run.ts";
import { amount, count, duration, showFor, signed, size, type Show } from "../data/units.ts";
import { button, h, replace } from "../dom.ts";
import { SIGNS } from "../draw/measure.ts";
import { Forest, isUnknown } from "../tree/forest.ts";

interface Row {
  module: number;
  scope: number; // its first call
  depth: number;
  label: string; // its path below the row that it is in
  again: boolean; // backward ran it again, by itself and not within another
  difference: number; // in a comparison: 0 the same, 1 added, 2 removed, 3 changed or some of each; -1 before it is known
  cells: (number | null)[];
  low: boolean[]; // sums that leave operations out; such a difference is none
}

interface Head {
  id: string;
  label: string;
  show: Show;
  about?: string;
}

const MOST = 1500;
const DELTAS = new Set(Object.values(COMPARED));
const LOW = "It is not known of all operations in this module";
const LABEL: Record<string, string> = {
  time_ns: "time",
  alloc_bytes: "memory",
  flops: "FLOPs",
  parameters: "params",
  moved_bytes: "bytes",
};
/** Figures of modules as Python's table has them, with what a person should know of each. */
const FIGURES: [id: string, label: string, show: Show, about: string][] = [
  ["calls", "calls", count, "how often it was called"],
  ["time_ns", "time", duration, "forward: how long its calls took, with all that they called"],
  ["backward_ns", "backward", duration, "time of the operations of its backward pass"],
  ["flops", "FLOPs", amount, "forward"],
  ["parameters", "params", amount, "parameters that it holds or reads, with those of all that it calls"],
  ["alloc_bytes", "allocated", size, "bytes that its operations allocated in forward"],
  ["backward_flops", "FLOPs backward", amount, "backward"],
  ["moved_bytes", "accessed", size, "bytes that its operations read and wrote in forward"],
  ["ops", "ops", count, "operations in forward"],
];
/** Titles of columns, in full. */
const WORDS: Record<string, string> = {
  params: "parameters",
  allocated: "memory allocated",
  accessed: "bytes accessed",
  ops: "operations",
};
/** Their order in the mask of sums that leave operations out. */
const MASKED = [
  "ops",
  "backward_ops",
  "time_ns",
  "backward_ns",
  "alloc_bytes",
  "backward_bytes",
  "flops",
  "backward_flops",
  "moved_bytes",
  "backward_moved_bytes",
];

export class ModuleTable {
  readonly element = h("div", { class: "panel modules" });
  private readonly columns: Head[];
  private rows: Row[] | null = null;
  private sorted = -1; // the column; -1: as they ran
  private down = true;
  private filter = "";

  /** `go` takes a call to go to, and whether this table stays in front. */
  constructor(
    readonly app: App,
    readonly go: (scope: number, stay: boolean) => void,
    readonly changed: () => void,
  ) {
    this.columns = headsOf(app);
    app.on("select", () => this.mark());
  }

  /** What it is sorted by, for the address: `time_ns`, `-time_ns` (greatest first), or nothing. */
  get order(): string {
    return this.sorted < 0 ? "" : (this.down ? "-" : "") + this.columns[this.sorted].id;
  }

  set order(text: string) {
    this.down = text.startsWith("-");
    this.sorted = this.columns.findIndex((column) => column.id === text.replace(/^-/, ""));
  }

  show(): void {
    this.rows ??= this.gather();
    const input = h("input", {
      type: "search",
      placeholder: "Filter modules",
      value: this.filter,
      "aria-label": "Filter modules",
    });
    const body = h("tbody");
    input.addEventListener("input", () => {
      this.filter = input.value;
      this.fill(body);
    });
    const scroll = h("div", { class: "scroll" }, h("table", { class: "grid" }, h("thead", {}, this.head()), body));
    const hint = (): void => {
      scroll.dataset.more = String(scroll.scrollLeft + scroll.clientWidth < scroll.scrollWidth - 4);
    };
    scroll.addEventListener("scroll", hint, { passive: true });
    new ResizeObserver(hint).observe(scroll);
    this.fill(body);
    replace(
      this.element,
      input,
      scroll,
      h("div", { class: "sub foot" }, "Click shows a module in the graph, double click all about it.", ...this.notes()),
    );
    this.mark();
    requestAnimationFrame(() => scroll.querySelector("tr.on")?.scrollIntoView({ block: "nearest" }));
  }

  /** What the marks mean that are in the table. */
  private notes(): HTMLElement[] {
    const again = this.rows!.some((row) => row.again) ? `${AGAIN}${RECOMPUTED}: ${SAID}.` : "";
    const isLow = this.rows!.some((row) => row.low.includes(true));
    const signs = [1, 2, 3]
      .filter((amount) => this.rows!.some((row) => row.difference === amount))
      .map((number) => `${SIGNS[number]}${DIFFERENCES[number]}`)
      .join(", ");
    const low = isLow
      ? `≥: operations not known are left out${this.app.run.difference ? "; – under Δ: not to be compared" : ""}.`
      : "";
    return [signs && `${signs}.`, again, low].filter(Boolean).map((text) => h("div", {}, text));
  }

  private head(): HTMLElement {
    const cell = (label: string, at: number, about = ""): HTMLElement => {
      const isOn = this.sorted === at;
      const order = !isOn ? "none" : at < 0 ? "other" : this.down ? "descending" : "ascending";
      return h(
        "th",
        { "aria-sort": order },
        button(
          label + (isOn && at >= 0 ? (this.down ? " ↓" : " ↑") : ""),
          at < 0 ? "In the order in which they ran" : `Sort by ${label}${about ? `: ${about}` : ""}`,
          () => this.sortBy(at),
        ),
      );
    };
    return h("tr", {}, cell("module", -1), ...this.columns.map((column, at) => cell(column.label, at, column.about)));
  }

  private sortBy(column: number): void {
    this.down = this.sorted === column ? !this.down : true;
    this.sorted = column;
    this.show();
    this.changed();
  }

  private fill(body: HTMLElement): void {
    const { run } = this.app;
    const low = this.filter.toLowerCase();
    let rows = this.rows!.filter(({ module, again }) => {
      const [path, type] = run.tables.modules[module];
      return (
        !low || [path.toLowerCase(), type.toLowerCase(), again ? RECOMPUTED : ""].some((text) => text.includes(low))
      );
    });
    if (this.sorted >= 0) {
      const at = this.sorted;
      const sign = this.down ? -1 : 1;
      rows = rows
        .slice()
        .sort((a, b) => sign * ((this.amount(a, at) ?? -Infinity) - (this.amount(b, at) ?? -Infinity)));
    }
    const most = this.columns.map((_, at) =>
      this.rows!.reduce((top, row) => Math.max(top, Math.abs(this.amount(row, at) ?? 0)), 0),
    );
    replace(
      body,
      ...rows.slice(0, MOST).map((row) => this.line(row, most)),
      rows.length > MOST
        ? h("tr", {}, h("td", { class: "sub" }, `and ${count(rows.length - MOST)} more: filter them`))
        : null,
    );
    this.mark();
  }

  private line(row: Row, most: number[]): HTMLElement {
    const [path, type] = this.app.run.tables.modules[row.module];
    const isTree = this.sorted < 0 && !this.filter;
    const sign = SIGNS[row.difference] ?? "";
    const before = pathBefore(this.app.run, row.scope);
    const all = [
      path,
      type,
      sign ? DIFFERENCES[row.difference] : "",
      before ? `in A: ${before}` : "",
      row.again ? `${RECOMPUTED}: ${SAID}` : "",
    ];
    const name = h(
      "td",
      { class: "name", title: all.filter(Boolean).join("\n") },
      h("b", {}, sign + (isTree ? row.label : path || (row.scope === 0 ? WHOLE_RUN : type))),
      h("span", { class: "sub" }, ` ${row.again ? AGAIN : ""}${path ? type : ""}${before ? ` · was ${before}` : ""}`),
    );
    if (isTree) name.style.paddingLeft = `${6 + Math.min(row.depth, 12) * 11}px`;
    return h(
      "tr",
      {
        tabindex: "0",
        "data-scope": row.scope,
        on: {
          click: () => this.go(row.scope, true),
          dblclick: () => this.go(row.scope, false),
          keydown: (event) => {
            if ((event as KeyboardEvent).key === "Enter") this.go(row.scope, !(event as KeyboardEvent).shiftKey);
          },
        },
      },
      name,
      ...row.cells.map((_, at) => {
        const cell = this.amount(row, at);
        const kind = DELTAS.has(this.columns[at].id) && cell ? (cell < 0 ? "num less" : "num more") : "num";
        const td = h(
          "td",
          { class: kind, title: row.low[at] ? LOW : undefined },
          cell === null ? "–" : (row.low[at] ? "≥ " : "") + (cell === 0 ? "0" : this.columns[at].show(cell)),
        );
        const share = cell && most[at] ? Math.abs(cell) / most[at] : 0;
        if (share > 0.03 && this.columns[at].id !== "calls") td.style.backgroundSize = `${100 * share}% 100%`;
        return td;
      }),
    );
  }

  /** What a row shows in a column; null where it is not known. */
  private amount(row: Row, at: number): number | null {
    return row.low[at] && DELTAS.has(this.columns[at].id) ? null : row.cells[at];
  }

  /** Bring out the row of what is selected. */
  private mark(): void {
    const { app } = this;
    const scope = app.selected ? app.selected.subject.scope : -1;
    const module = scope >= 0 ? app.run.scopeModule[scope] : -1;
    for (const line of this.element.querySelectorAll<HTMLElement>("tbody tr[data-scope]")) {
      line.classList.toggle("on", module >= 0 && app.run.scopeModule[Number(line.dataset.scope)] === module);
    }
  }

  /** The rows of Python's table: the same figures as in print, in reports and in the explorer. */
  private listed(): Row[] {
    const { run } = this.app;
    const column = (id: string): ArrayLike<number> => run.columns.get(`row_${id}`) ?? [];
    const [scopes, parents, low] = [column("scope"), column("parent"), column("low")];
    const depths: number[] = [];
    const rows: Row[] = [];
    const again = new Set<number>();
    for (let scope = 0; scope < run.scopes; scope++) if (isOutermost(run, scope)) again.add(run.scopeModule[scope]);
    for (let row = 0; row < scopes.length; row++) {
      const scope = scopes[row];
      depths.push(parents[row] < 0 ? 0 : depths[parents[row]] + 1);
      if (!run.ranAnything(scope) && scope > 0) continue;
      rows.push({
        module: run.scopeModule[scope],
        scope,
        depth: depths[row],
        label: this.label(scope),
        again: again.has(run.scopeModule[scope]),
        difference: -1,
        cells: this.columns.map(({ id }) => (column(id)[row] < 0 ? null : column(id)[row])),
        low: this.columns.map(({ id }) => MASKED.includes(id) && (low[row] & (1 << MASKED.indexOf(id))) !== 0),
      });
    }
    return rows;
  }

  /** What a module comes to in all its calls, in words: each figure that is known. */
  facts(scope: number): [name: string, text: string][] {
    if (this.app.run.difference) return [];
    this.rows ??= this.gather();
    const module = this.app.run.scopeModule[scope];
    const row = this.rows.find((other) => other.module === module);
    return this.columns.flatMap(({ label, show }, at): [string, string][] => {
      const cell = row?.cells[at] ?? null;
      const name = WORDS[label] ?? label; // there is room for the words
      return row && cell !== null ? [[name, (row.low[at] ? "≥ " : "") + show(cell)]] : [];
    });
  }

  /** The rows as data. */
  data(): { path: string; cls: string; scope: number; figures: Record<string, number | null> }[] {
    this.rows ??= this.gather();
    return this.rows.map(({ module, scope, cells }) => {
      const [path, cls] = this.app.run.tables.modules[module];
      return { path, cls, scope, figures: Object.fromEntries(this.columns.map(({ id }, at) => [id, cells[at]])) };
    });
  }

  private gather(): Row[] {
    const { run } = this.app;
    if (run.columns.has("row_scope")) return this.listed();
    const forest = new Forest(run, this.app.phases);
    const byModule = new Map<number, Row>();
    const rows: Row[] = [];
    const depths = new Int32Array(run.scopes);
    const open = new Map<number, number>(); // a module that calls itself is not counted twice
    for (const scope of asTheyRan(forest)) {
      const parent = run.scopeParent[scope];
      depths[scope] = parent >= 0 ? depths[parent] + 1 : 0;
      if (forest.start[scope] === forest.end[scope] && scope > 0) continue;
      const module = run.scopeModule[scope];
      let row = byModule.get(module);
      if (!row) {
        row = {
          module,
          scope,
          depth: depths[scope],
          label: this.label(scope),
          again: false,
          difference: -1,
          cells: this.columns.map(() => null),
          low: this.columns.map(() => false),
        };
        byModule.set(module, row);
        rows.push(row);
      }
      this.add(row, forest, scope, open);
    }
    return rows;
  }

  private add(row: Row, forest: Forest, scope: number, open: Map<number, number>): void {
    const at = (id: string): number => this.columns.findIndex((column) => column.id === id);
    const [from, to] = [forest.start[scope], forest.end[scope]];
    row.cells[at("calls")] = (row.cells[at("calls")] ?? 0) + (isRecomputed(this.app.run, scope) ? 0 : 1); // as in the printed table
    row.again ||= isOutermost(this.app.run, scope);
    const { difference } = this.app.run;
    for (let position = from; difference && position < to && row.difference < 3; position++) {
      const amount = difference[forest.order[position]];
      row.difference = row.difference < 0 || row.difference === amount ? amount : 3;
    }
    if ((open.get(row.module) ?? -1) > from) return;
    open.set(row.module, to);
    row.cells[at("ops")] = (row.cells[at("ops")] ?? 0) + to - from;
    this.columns.forEach(({ id }, index) => {
      const sum = forest.sum(id, from, to);
      if (sum && !isUnknown(sum)) row.cells[index] = (row.cells[index] ?? 0) + sum.total;
      if (sum?.unknown) row.low[index] = true;
    });
  }

  /** The path below that of the module around it: with the container that both names leave out. */
  private label(scope: number): string {
    const { run } = this.app;
    const [path, type] = run.module(scope);
    for (let around = run.scopeParent[scope]; around >= 0; around = run.scopeParent[around]) {
      const above = run.path(around);
      if (above && path.startsWith(`${above}.`)) return path.slice(above.length + 1);
    }
    return path || (scope === 0 ? WHOLE_RUN : type);
  }
}

/** All calls, outer ones first; what only A had is numbered last in a comparison, and stands where it was all the same. */
function asTheyRan({ run, start, end }: Forest): Int32Array {
  const scopes = Int32Array.from({ length: run.scopes }, (_, scope) => scope);
  if (!run.difference) return scopes;
  const at = (scope: number): number => (scope && start[scope] === end[scope] ? Infinity : start[scope]);
  return scopes.sort((a, b) =>
    a === 0 ? -1 : b === 0 ? 1 : (at(a) === at(b) ? 0 : at(a) - at(b)) || end[b] - end[a] || a - b,
  );
}

/** In a comparison what changed comes first, with both figures beside it. */
function headsOf(app: App): Head[] {
  const { metrics, difference } = app.run;
  const calls: Head[] = [
    { id: "ops", label: "ops", show: count },
    { id: "calls", label: "calls", show: count },
  ];
  const names = Object.keys(LABEL).filter((name) => metrics.has(name));
  if (!difference) {
    const column = (id: string): ArrayLike<number> => app.run.columns.get(`row_${id}`) ?? [];
    return FIGURES.filter(([id]) => Array.prototype.some.call(column(id), (figure: number) => figure > 0)).map(
      ([id, label, show, about]) => ({ id, label, show, about }),
    );
  }
  const deltas = names
    .filter((name) => metrics.has(COMPARED[name]))
    .map((name): Head => ({
      id: COMPARED[name],
      label: `Δ ${LABEL[name]}`,
      show: (n) => (n ? signed(showFor(name))(n) : "0"),
    }));
  const both = names.flatMap((name): Head[] =>
    [
      ["@a", "A"],
      ["", "B"],
    ]
      .filter(([suffix]) => metrics.has(name + suffix))
      .map(([suffix, side]) => ({ id: name + suffix, label: `${LABEL[name]} ${side}`, show: showFor(name) })),
  );
  return [...deltas, ...both, ...calls];
}
