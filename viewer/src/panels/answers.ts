/** What a person opens the page for: where time, FLOPs and memory went, and what is odd. Each row is a search that colours the graph. */

import type { App } from "../app.ts";
import { Memory } from "../data/memory.ts";
import { oddities, type Oddity } from "../data/oddities.ts";
import type { Run } from "../data/run.ts";
import { PHASES, Role } from "../data/schema.gen.ts";
import { shortened } from "../data/text.ts";
import { amount, duration, percent, size, type Show } from "../data/units.ts";
import { h, replace } from "../dom.ts";
import { tokenSteps, tokenTotals } from "../data/tokens.ts";
import { pathText, section } from "./rows.ts";
import { totalsText } from "./tokens.ts";

/** Searches, and colours by a measure. */
export type Ask = (query: string, heat: string) => void;

/** A part of the run, what it takes, and the search that brings it out. */
interface Share {
  name: string;
  amount: number;
  query: string;
}

/** What a share is of: a name that several may have, and the search for all of them. */
type Named = [name: string, query: string] | null;

/** One of time, FLOPs and memory: what there is to be shared out, and among whom. */
interface Cost {
  label: string;
  show: Show;
  /** The measure that colours the graph. */
  heat: string;
  total: number;
  lists: [title: string, shares: Share[]][];
}

const SHOWN = 5;

export class Answers {
  readonly element = h("div", { class: "answers" });
  /** Which of time, FLOPs and memory is shared out. */
  private chosen = "";
  private readonly costs: Cost[] = [];
  private odd: Oddity[] = [];

  constructor(
    readonly app: App,
    readonly ask: Ask,
  ) {}

  /** Add all of it up; `pause` is waited for between one part and the next. */
  async fill(pause: () => Promise<void>): Promise<void> {
    const { run } = this.app;
    for (const make of run.count ? COSTS : []) {
      const cost = make(run);
      if (cost) this.costs.push(cost);
      await pause();
    }
    this.odd = await oddities(run, pause);
    this.show();
  }

  private show(): void {
    const { run } = this.app;
    const { costs } = this;
    const cost = costs.find(({ label }) => label === this.chosen) ?? costs[0];
    replace(
      this.element,
      ...written(run),
      costs.length > 1 ? this.choice(costs, cost) : null,
      ...(cost ? this.lists(cost) : []),
      ...odd(this.odd, this.ask),
    );
  }

  private choice(costs: Cost[], chosen: Cost): HTMLElement {
    return h(
      "div",
      { class: "costs" },
      ...costs.map((cost) =>
        h(
          "button",
          {
            class: "cost",
            type: "button",
            "aria-pressed": String(cost === chosen),
            title: `Where the ${cost.label} went`,
            on: {
              click: () => {
                this.chosen = cost.label;
                this.show();
              },
            },
          },
          h("span", { class: "sub" }, cost.label),
          h("b", {}, cost.show(cost.total)),
        ),
      ),
    );
  }

  private lists(cost: Cost): HTMLElement[] {
    const { run } = this.app;
    const lists = cost.lists
      .filter(([, shares]) => shares.length)
      .map(([title, shares]) =>
        section(title, ...shares.slice(0, SHOWN + 1).map((share) => row(share, cost, this.ask))),
      );
    return cost.heat === "alloc_bytes" ? [...lists.slice(0, 1), ...peakWords(run), ...lists.slice(1)] : lists;
  }
}

/** Of a run that writes a text: what a token takes. */
function written(run: Run): HTMLElement[] {
  const steps = tokenSteps(run);
  return steps.length ? [section("Tokens", h("p", { class: "sub" }, totalsText(tokenTotals(steps))))] : [];
}

const COSTS: ((run: Run) => Cost | null)[] = [
  (run) => costOf(run, "time", "time_ns", duration),
  (run) => costOf(run, "FLOPs", "flops", amount),
  memoryOf,
];

/** What is known of operations one by one, shared out among phases, modules, functions and lines of the program. */
function costOf(run: Run, label: string, metric: string, show: Show): Cost | null {
  let total = 0;
  const amounts = new Float64Array(run.count);
  for (let node = 0; node < run.count; node++) total += amounts[node] = run.metric(metric, node) ?? 0;
  if (!total) return null;
  const group = ({ size, of, name }: Grouping): Share[] => {
    const sums = new Float64Array(size);
    for (let node = 0; node < run.count; node++) {
      const number = of(node);
      if (number >= 0) sums[number] += amounts[node];
    }
    return sharesOf(sums, name);
  };
  const title = label[0].toUpperCase() + label.slice(1);
  return {
    label,
    show,
    heat: metric,
    total,
    lists: [
      [`${title} by phase`, group(byPhase(run))],
      [`${title} by module`, group(byModule(run)).slice(0, SHOWN)],
      [`${title} by function`, group(byFunction(run)).slice(0, SHOWN)],
      [`${title} by line`, group(byLine(run)).slice(0, SHOWN)],
    ],
  };
}

/** What is alive at the peak, shared out among uses, and by the modules, functions and lines that made it. */
function memoryOf(run: Run): Cost | null {
  const memory = Memory.of(run);
  if (!memory.isKnown || !run.count) return null;
  const { peak, total } = memory;
  const uses = memory.words
    .map((name, use): Share => ({ name, amount: memory.live[use][peak], query: "" }))
    .filter((share) => share.amount > 0)
    .sort((a, b) => b.amount - a.amount);
  const blocks = memory.alive(peak, peak);
  const maker = (block: number): number =>
    memory.value[block] < 0 ? -1 : run.producer[run.rootOf(memory.value[block])];
  const modules = byModule(run);
  const group = ({ size, of, name }: Grouping): Share[] => {
    const sums = new Float64Array(size);
    for (const block of blocks) {
      const number = maker(block) < 0 ? -1 : of(maker(block));
      if (number >= 0) sums[number] += memory.bytes[block];
    }
    return sharesOf(sums, name);
  };
  return {
    label: "memory",
    show: size,
    heat: "alloc_bytes",
    total: total[peak],
    lists: [
      [`Memory at the peak, by use`, uses],
      [
        `Memory at the peak, by module`,
        joined(
          blocks.map((block): [Named, number] => {
            const number = maker(block) < 0 ? -1 : modules.of(maker(block));
            return [
              holderOf(run, memory.value[block]) ?? (number < 0 ? null : modules.name(number)),
              memory.bytes[block],
            ];
          }),
        ).slice(0, SHOWN),
      ],
      [`Made by function`, group(byFunction(run)).slice(0, SHOWN)],
      [`Made by line`, group(byLine(run)).slice(0, SHOWN)],
    ],
  };
}

/** Of a parameter and its gradient, the module that holds it. */
function holderOf(run: Run, value: number): Named {
  if (value < 0 || run.valueName[value] < 0) return null;
  const isHeld = run.valueRole[value] === Role.PARAMETER || run.valueLabel(value).endsWith(".grad");
  const path = run
    .valueLabel(value)
    .replace(/\.grad$/, "")
    .split(".")
    .slice(0, -1)
    .join(".");
  if (!isHeld || !path) return null;
  const type = run.tables.modules.find(([name]) => name === path)?.[1] ?? "";
  return patternOf(path, type);
}

/** What operations are shared out among: numbers below a size, -1 for none, and what each is called. */
interface Grouping {
  size: number;
  of: (node: number) => number;
  name: (number: number) => Named;
}

function sharesOf(sums: Float64Array, name: (number: number) => Named): Share[] {
  const parts: [Named, number][] = [];
  sums.forEach((amount, number) => {
    if (amount > 0) parts.push([name(number), amount]);
  });
  return joined(parts);
}

/** What goes by one name together, the most first. */
function joined(parts: [name: Named, amount: number][]): Share[] {
  const shares = new Map<string, Share>();
  for (const [named, amount] of parts) {
    if (!named) continue;
    const [name, query] = named;
    const share = shares.get(name);
    if (share) share.amount += amount;
    else shares.set(name, { name, query, amount });
  }
  return [...shares.values()].filter((share) => share.amount > 0).sort((a, b) => b.amount - a.amount);
}

function byPhase(run: Run): Grouping {
  const name = (phase: number): Named => [PHASES[phase], `phase:${PHASES[phase]}`];
  return { size: PHASES.length, of: (node) => run.nodePhase[node], name };
}

/** The module that ran an operation; modules that differ in their numbers alone stand together. */
function byModule(run: Run): Grouping {
  const { modules } = run.tables;
  const around = new Int32Array(run.scopes); // by call, the module around it; calls stand after what they are in
  for (let scope = 0; scope < run.scopes; scope++) {
    const isOwn = scope === 0 || run.module(scope)[2] === "module" || run.scopeParent[scope] < 0;
    around[scope] = isOwn ? run.scopeModule[scope] : around[run.scopeParent[scope]];
  }
  const name = (module: number): Named => {
    const [path, type] = modules[module];
    return path ? patternOf(path, type) : null;
  };
  return { size: modules.length, of: (node) => around[run.nodeScope[node]], name };
}

/** The function that a program called for an operation, or where that is not known the operator. */
function byFunction(run: Run): Grouping {
  const name = (number: number): Named => [run.functionNames[number], `op:${run.functionNames[number]}`];
  return { size: run.functionNames.length, of: (node) => run.functionOf(node), name };
}

/** The line of the program that an operation belongs to: of a gradient, that of the operation whose gradient it is. */
function byLine(run: Run): Grouping {
  const name = (site: number): Named => [run.lines[site], `file:${run.lines[site]}`];
  return { size: run.lines.length, of: (node) => run.nodeSite[run.dueTo(node)], name };
}

function patternOf(path: string, type: string): [name: string, query: string] {
  const pattern = path.replace(/(^|\.)\d+(?=\.|$)/g, "$1*");
  // Numbers alone say nothing: layers of a Sequential stand together by their class.
  const isNumber = type !== "" && /(^|\.)\d+$/.test(path);
  return [isNumber ? `${pattern} ${type}` : pattern, `path:${pattern}${isNumber ? ` class:${type}` : ""}`];
}

/** What runs at the peak, and the largest tensor there. */
function peakWords(run: Run): HTMLElement[] {
  const memory = Memory.of(run);
  const { peak } = memory;
  const largest = memory.alive(peak, peak)[0];
  const value = largest === undefined ? -1 : memory.value[largest];
  const steady = run.data.meta.steady_peak_bytes;
  const words =
    `during ${run.name(peak)} ${shortened(run.placeText(run.nodeScope[peak]))}` +
    (value >= 0 ? `; the largest is ${shortened(run.originText(value))}, ${size(memory.bytes[largest])}` : "");
  return [
    h("p", { class: "sub" }, words),
    ...(typeof steady === "number"
      ? [h("p", { class: "sub" }, `${size(steady)} from the second step on: this one made the optimizer's state`)]
      : []),
  ];
}

/** What a person would want to know of without asking. */
function odd(all: Oddity[], ask: Ask): HTMLElement[] {
  if (!all.length) return [];
  return [
    section(
      "Worth a look",
      ...all.map(({ text, query }) =>
        query
          ? h("button", { class: "row link odd", type: "button", on: { click: () => ask(query, "") } }, text)
          : h("p", { class: "sub" }, text),
      ),
    ),
  ];
}

function row({ name, amount: part, query }: Share, { total, show, heat }: Cost, ask: Ask): HTMLElement {
  const share = part / total;
  const bar = h("span", { class: "meter" });
  bar.style.width = `${(100 * share).toFixed(1)}%`;
  const cells = [
    bar,
    h("span", { class: "name" }, pathText(name)),
    h("span", { class: "amount" }, `${show(part)} · ${percent(share)}`),
  ];
  if (!query) return h("div", { class: "share" }, ...cells);
  return h("button", { class: "share link", type: "button", on: { click: () => ask(query, heat) } }, ...cells);
}
