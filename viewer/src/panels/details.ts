/** Every fact of the selection. */

import type { App } from "../app.ts";
import { pathBefore } from "../data/renamed.ts";
import { callsOf, RECOMPUTED, SAID } from "../data/recomputed.ts";
import { DIFFERENCES, OUTSIDE, type Run } from "../data/run.ts";
import { KINDS, Phase, PHASES, Role, ROLES } from "../data/schema.gen.ts";
import type { SiteRow } from "../data/tables.ts";
import { plural } from "../data/text.ts";
import { count, size } from "../data/units.ts";
import { button, h, replace } from "../dom.ts";
import { edgeFacts, tensorBytes } from "../draw/edges.ts";
import type { EdgeHit } from "../draw/scene.ts";
import type { Box } from "../tree/box.ts";
import { breakFacts } from "./breaks.ts";
import { comparedRows, groupRows, singleRows } from "./figures.ts";
import { changeWords } from "./changes.ts";
import { differing, instanceName, standsFor } from "./repeats.ts";
import { brokenPath, comparedFacts, facts, more, nodeLink, section, sourceOf, type Fact, type Go } from "./rows.ts";

const MOST = 12;
const MOST_LOOKED_AT = 200;
const BUFFER = 3;
const FLAGS: Record<string, string> = {
  escape: "a value left for Python here",
  random: "draws random numbers",
  opaque: "stands for code that could not be looked into",
  recompute: "a forward operation run again during backward",
  view: "a view: it writes nothing",
};

export class Details {
  readonly element = h("div", { class: "panel details" });
  private subject: Box | null = null; // what the selection meant when it was shown
  private whole: Box | null = null; // a repeat of which all instances are asked for, though one is shown

  constructor(
    readonly app: App,
    readonly go: Go,
    readonly goScope: (scope: number) => void,
    readonly copy: () => void,
    private readonly moduleFacts: (scope: number) => Fact[] = () => [],
  ) {
    app.on("select", () => {
      if (this.whole !== app.selected) this.whole = null;
      this.show();
    });
    // A repeat that shows all of its instances since means them all.
    app.on("scene", () => {
      if (this.subject !== (app.selected?.subject ?? null)) this.show();
    });
    this.show();
  }

  show(): void {
    const { app } = this;
    this.subject = app.selected?.subject ?? null;
    if (app.node >= 0) replace(this.element, ...this.operation(app.node));
    else if (app.selected) replace(this.element, ...this.group(app.selected));
    else if (app.edges.length) replace(this.element, ...this.edge(app.edges));
    else
      replace(
        this.element,
        h(
          "p",
          { class: "hint" },
          app.run.count
            ? "Click a box to see everything about it. Double click opens it, / searches, ? shows all keys."
            : "Nothing ran, so there is nothing to look at.",
        ),
      );
    this.element.scrollTop = 0;
  }

  private heading(title: string, sub: string): HTMLElement {
    return h(
      "div",
      { class: "heading" },
      h("div", { class: "titles" }, h("h2", {}, title), h("div", { class: "sub" }, sub)),
      button("Copy", "Copy as Markdown (c)", () => this.copy(), { class: "icon copy" }),
    );
  }

  /** The tensor that passes along a line, who made it, and all who read it. */
  private edge(hits: EdgeHit[]): HTMLElement[] {
    const { run, scene } = this.app;
    const { picture } = scene!.columns[hits[0].column];
    const all = hits.map(({ edge }) => edgeFacts(picture, picture.edges[edge]));
    const [first] = all;
    const bytes = tensorBytes(run, first.value);
    const maker = run.producer[run.rootOf(first.value)];
    const views = new Set([first.value, ...all.map(({ read }) => read)].map((value) => run.rootOf(value)));
    const readers = new Set<number>();
    for (const hit of hits) {
      const { target } = picture.edges[hit.edge];
      for (const root of views)
        for (const reader of this.readersOf(root)) {
          const position = picture.forest.position[reader];
          if (position >= 0 && picture.leaf[position] === target) readers.add(reader);
        }
    }
    return [
      this.heading(run.typeText(first.value), "tensor on a line"),
      facts([
        ["from", first.from],
        ["to", [...new Set(all.map(({ to }) => to))].join(", ")],
        ["bytes", bytes === null ? "not known" : size(bytes)],
        ["is read as", first.read !== first.value ? `${run.typeText(first.read)}, a view of it` : ""],
        ["tensors", first.count > 1 ? `${count(first.count)}, of which this is the first` : ""],
        ["loop", first.isCarried ? "handed to the next turn" : ""],
        ["adds up", all.some(({ isSum }) => isSum) ? "gradients of one tensor are summed there" : ""],
      ]),
      section("Tensor", this.value(first.value)),
      maker >= 0 ? this.nodes("Made by", [maker]) : null,
      this.nodes(
        "Read by",
        [...readers].sort((a, b) => a - b),
      ),
    ].filter((part): part is HTMLElement => part !== null);
  }

  /** The operations that read a value or a view of it; views are looked through. */
  private readersOf(root: number): number[] {
    const { run } = this.app;
    const results: number[] = [];
    const waiting = [root];
    for (const value of waiting) {
      for (const reader of run.readers(value)) {
        if (!run.isView(reader)) results.push(reader);
        else waiting.push(...run.outputs(reader));
      }
      if (waiting.length > MOST_LOOKED_AT) break;
    }
    return results;
  }

  private operation(node: number): HTMLElement[] {
    const { run } = this.app;
    const due = run.dueTo(node);
    const site = run.nodeSite[due] >= 0 ? run.tables.sites[run.nodeSite[due]] : null;
    const compared = comparedRows(this.app, null, node);
    return [
      this.heading(run.name(node), run.op(node)),
      facts([
        ["number", count(node)],
        ["phase", PHASES[run.nodePhase[node]]],
        ["module", this.scopeLink(run.nodeScope[node])],
        [
          "note",
          run
            .flags(node)
            .map((flag) => FLAGS[flag] ?? flag)
            .join("; "),
        ],
        ["comparison", run.difference ? DIFFERENCES[run.difference[node]] : ""],
        ...singleRows(this.app, "node", node),
      ]),
      changeWords(run, node),
      ...(compared.length ? comparedFacts(this.app.run, compared) : []),
      section(
        "Arguments",
        h(
          "table",
          { class: "rows" },
          ...run
            .arguments(node)
            .map((entry) =>
              h(
                "tr",
                {},
                h("th", {}, entry.name),
                h(
                  "td",
                  {},
                  ...(entry.values.length
                    ? entry.values.map((value) => this.value(value))
                    : [h("code", {}, entry.text)]),
                ),
              ),
            ),
        ),
      ),
      section("Makes", ...run.outputs(node).map((value) => this.value(value))),
      this.aliases(node),
      this.linksOf(node),
      this.nodes("Producers", run.producers(node)),
      this.nodes("Consumers", run.users(node)),
      ...(site
        ? [sourceOf(run, site, due === node ? "Source" : `Source of ${run.name(due)}, whose gradient this is`)]
        : []),
    ].filter((part): part is HTMLElement => part !== null);
  }

  /** Values that are read through an alias, which no argument names. */
  private aliases(node: number): HTMLElement | null {
    const { run } = this.app;
    const results: HTMLElement[] = [];
    for (let row = run.inStart[node]; row < run.inStart[node + 1]; row++) {
      if (run.inSlot[row] >= 0) continue;
      results.push(
        h(
          "div",
          {},
          this.value(run.inValue[row]),
          h("span", { class: "sub" }, ` ${KINDS[run.inKind[row]]}, through an alias`),
        ),
      );
    }
    return results.length ? section("Also reads", ...results) : null;
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
      return [
        this.heading(box.label, box.kind),
        facts([["type", box.type]]),
        section("Value", this.value(value)),
        this.nodes("Read by", run.readers(value)) ?? h("div"),
      ];
    }
    if (box.subject !== box && this.whole !== box) return this.body(box.subject, box);
    return this.body(box, null);
  }

  /** A group; `fold`: the repeat that it is the shown instance of. */
  private body(box: Box, fold: Box | null): HTMLElement[] {
    const { run } = this.app;
    const scope = box.scope;
    const node = box.node;
    const nodes = Array.from(box.forest.order.subarray(box.start, box.end));
    const compared = comparedRows(this.app, box, -1);
    const title = fold ? instanceName(box) : box.label || box.type;
    return [
      this.heading(title, box.type),
      breakFacts(run, scope),
      facts([
        ["one of", fold ? this.allOf(fold) : ""],
        ["path", scope >= 0 ? brokenPath(run.where(scope)) : ""],
        ["path in A", pathBefore(run, scope)],
        ["call", scope >= 0 && run.scopeCall[scope] > 0 ? `number ${run.scopeCall[scope] + 1}` : ""],
        this.again(box),
        ["stands for", box.kind === "fold" ? standsFor(box) : ""],
        ["", box.odd ? "differs from its siblings in operators or shapes" : ""],
        ["operation", fold && node >= 0 ? this.nodeButton(node) : ""],
        ["operations", count(box.operations)],
        ["comparison", run.difference ? (box.difference ? DIFFERENCES[box.difference] : "the same operations") : ""],
        ...groupRows(this.app, box),
        ["phase", box.forest.phases.map((phase) => PHASES[phase]).join(" and ")],
        // What was measured of the call itself is of its forward.
        ...(scope >= 0 && !run.difference && box.forest.phases.includes(Phase.FORWARD)
          ? singleRows(this.app, "scope", scope)
          : []),
      ]),
      ...(compared.length ? comparedFacts(this.app.run, compared) : []),
      this.ofModule(box),
      box.kind === "fold" ? differing(box, this.go) : null,
      operators(run, nodes),
      ...this.border(box),
      this.parameters(box),
      this.source(box, nodes),
    ].filter((part): part is HTMLElement => part !== null);
  }

  /** What the module comes to in all its calls and phases: as the table of modules has it. */
  private ofModule(box: Box): HTMLElement | null {
    const rows = box.kind === "module" && !this.app.run.isFunction(box.scope) ? this.moduleFacts(box.scope) : [];
    return rows.length ? section("The module, in all its calls", facts(rows)) : null;
  }

  /** The way from the instance that is shown to the figures of all of them. */
  private allOf(fold: Box): HTMLElement {
    return h(
      "button",
      {
        class: "link",
        type: "button",
        title: "Show the sums over all of them",
        on: {
          click: () => {
            this.whole = fold;
            this.show();
          },
        },
      },
      `${fold.label} ×${count(fold.count)} (number ${fold.shown + 1}); show all together`,
    );
  }

  /** That backward ran it again, and the way to the other computation. */
  private again(box: Box): Fact {
    const { run } = this.app;
    const scopes = Array.from(box.elements)
      .filter((element) => element < 0)
      .map((element) => ~element);
    const others = box.kind === "root" ? [] : callsOf(run, scopes, !box.recomputed);
    const link = (text: string): HTMLElement =>
      h("button", { class: "link", type: "button", on: { click: () => this.goScope(others[0]) } }, text);
    if (!box.recomputed) return ["computed again", others.length ? link("during backward") : ""];
    return [
      RECOMPUTED,
      others.length
        ? h("span", {}, `${SAID}; `, link(others.length > scopes.length ? "see its first call" : "see it in forward"))
        : SAID,
    ];
  }

  private nodeButton(node: number): HTMLElement {
    return h(
      "button",
      { class: "link", type: "button", on: { click: () => this.go(node) } },
      `${this.app.run.name(node)} · ${count(node)}`,
    );
  }

  /** The line of an operation that a module runs itself lies in its forward; of one that runs none, say whose it is. */
  private source(box: Box, nodes: number[]): HTMLElement | null {
    const { run } = this.app;
    const siteOf = (node: number): SiteRow | null => run.tables.sites[run.nodeSite[run.dueTo(node)]] ?? null;
    const isForward = (node: number): boolean => run.nodePhase[node] === Phase.FORWARD;
    const own = box.scope >= 0 ? Array.from(box.forest.elements(box.scope)).filter((element) => element >= 0) : [];
    for (const node of [...own.filter(isForward), ...own]) {
      const site = siteOf(node);
      if (site) return sourceOf(run, site);
    }
    const first = nodes.find((node) => siteOf(node));
    if (first === undefined) return null;
    return sourceOf(
      run,
      siteOf(first)!,
      `Source of its first operation, ${run.name(first)} in ${run.where(run.nodeScope[first])}`,
    );
  }

  /** What crosses the border of a group. */
  private border(box: Box): (HTMLElement | null)[] {
    const { run } = this.app;
    const { forest } = box;
    const takes = new Set<number>();
    const makes = new Set<number>();
    const kept = new Set<number>(); // that only another phase reads
    const inside = (node: number): boolean =>
      node >= 0 && forest.position[node] >= box.start && forest.position[node] < box.end;
    for (let position = box.start; position < box.end && takes.size < MOST_LOOKED_AT; position++) {
      const node = forest.order[position];
      for (let row = run.inStart[node]; row < run.inStart[node + 1]; row++) {
        const value = run.inValue[row];
        if (!inside(run.producer[value]) && run.roleOf(value) !== Role.PARAMETER) takes.add(value);
      }
      for (const value of run.outputs(node)) {
        if (run.roleOf(value) === Role.PARAMETER) continue;
        const readers = run.readers(value).filter((reader) => !inside(reader));
        const into = readers.some((reader) => run.nodePhase[reader] === run.nodePhase[node]) ? makes : kept;
        if (readers.length && into.size < MOST_LOOKED_AT) into.add(value);
      }
    }
    return [
      this.values("Inputs", [...takes], MOST_LOOKED_AT),
      this.values("Outputs", [...makes], MOST_LOOKED_AT),
      this.values(
        box.forest.phases.includes(Phase.FORWARD) ? "Saved for backward" : "Read in a later phase",
        [...kept],
        MOST_LOOKED_AT,
      ),
    ];
  }

  private parameters(box: Box): HTMLElement | null {
    const { run } = this.app;
    const results = new Map<string, number>();
    for (let position = box.start; position < box.end && results.size < 2 * MOST_LOOKED_AT; position++) {
      const node = box.forest.order[position];
      for (let row = run.inStart[node]; row < run.inStart[node + 1]; row++) {
        const value = run.rootOf(run.inValue[row]);
        if ((run.valueRole[value] === Role.PARAMETER || run.valueRole[value] === BUFFER) && run.valueName[value] >= 0)
          results.set(run.valueLabel(value), value);
      }
    }
    return this.values("Parameters and buffers", [...results.values()], 2 * MOST_LOOKED_AT);
  }

  private values(title: string, values: number[], looked = Infinity): HTMLElement | null {
    if (!values.length) return null;
    const rows = values.slice(0, MOST).map((value) => this.value(value));
    return section(
      `${title} (${count(values.length)}${values.length >= looked ? " or more" : ""})`,
      ...rows,
      more(values.length - MOST),
    );
  }

  private scopeLink(scope: number): HTMLElement | string {
    const { run } = this.app;
    const [path, type, kind] = run.module(scope);
    const text =
      kind === "function"
        ? `${type.includes(".") ? type : path} in ${run.where(scope)}`
        : path
          ? `${path} (${type})`
          : type || OUTSIDE;
    return h("button", { class: "link", type: "button", on: { click: () => this.goScope(scope) } }, text);
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
    const root = run.rootOf(value);
    const isView = root !== value;
    const title = [
      `${dtype}, strides [${stride.join(", ")}], ${layout}`,
      device,
      bytes === undefined ? "" : `memory block ${run.valueStorage[value]} of ${size(bytes)}`,
      isView ? `a view of ${run.valueLabel(root)} ${run.typeText(root)}` : "",
    ]
      .filter(Boolean)
      .join("\n");
    const label = run.originText(value);
    const role = run.roleOf(value);
    return h(
      "button",
      { class: "value link", type: "button", title, on: { click: () => this.follow(value) } },
      h("b", {}, label),
      ` ${run.typeText(value)} `,
      h("i", { class: `role r${role}` }, ROLES[role]),
    );
  }

  /** Go to what made a value, or else to who reads it first; a view that is not drawn is looked through. */
  private follow(value: number): void {
    const { run, views } = this.app;
    const from = run.producer[views ? value : run.rootOf(value)];
    const readers = run.readers(value).filter((reader) => views || !run.isView(reader));
    if (from >= 0) this.go(from);
    else if (readers.length) this.go(readers[0]);
  }
}

function operators(run: Run, nodes: number[]): HTMLElement | null {
  const counts = new Map<string, number>();
  for (const node of nodes) counts.set(run.name(node), (counts.get(run.name(node)) ?? 0) + 1);
  const sorted = [...counts].sort((a, b) => b[1] - a[1]);
  if (!sorted.length) return null;
  const text = sorted
    .slice(0, 14)
    .map(([name, n]) => (n > 1 ? `${name} ×${count(n)}` : name))
    .join(", ");
  return section(
    plural(sorted.length, "operator"),
    h("div", { class: "ops" }, text + (sorted.length > 14 ? ` and ${sorted.length - 14} more` : "")),
  );
}
