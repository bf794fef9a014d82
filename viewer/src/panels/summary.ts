/** The run in a few figures, what could not be captured, and where a compiled graph broke; of two runs, both and the difference. */

import type { App } from "../app.ts";
import { isRecomputed, recomputedOperations } from "../data/recomputed.ts";
import { PHASES } from "../data/schema.gen.ts";
import type { Side } from "../data/tables.ts";
import { plural } from "../data/text.ts";
import { amount, count, duration, signed, size, type Show } from "../data/units.ts";
import { h, pause, replace } from "../dom.ts";
import { Answers, type Ask } from "./answers.ts";
import { breakList } from "./breaks.ts";
import { changeList, moduleChanges } from "./changes.ts";
import { comparedFacts, facts, section, type Fact, type Go } from "./rows.ts";

/** What of the run's facts has a row of its own, and what the others are called. */
const OWN = new Set([
  "model",
  "wall_ns",
  "overhead_ns",
  "overhead_error_ns",
  "parameters",
  "error",
  "backward",
  "plain_wall_ns",
  "plain_wall_high_ns",
  "steady_peak_bytes",
  "zeroed_at",
]);
/** Facts about the run itself; all others are about where it ran. */
const OF_RUN = new Set(["loss", "via", "fake", "repeat", "ranges", "compile_ns", "plain_wall_low_ns"]);
const NAMES: Record<string, string> = {
  torch: "torch",
  python: "Python",
  machine: "machine",
  threads: "threads",
  devices: "devices",
  fake: "by shapes alone",
  repeat: "runs timed",
  plain_wall_low_ns: "middle half of runs",
  compile_ns: "compilation",
  via: "captured via",
  ranges: "sizes",
};

const AT_ONCE = 20_000; // operations

interface Figure {
  name: string;
  show: Show;
  of: (side: Side) => number | null;
  unknown?: (side: Side) => number;
}

export class Summary {
  readonly element = h("div", { class: "panel summary" });
  private readonly answers: Answers;

  constructor(
    readonly app: App,
    readonly go: Go,
    readonly goScope: (scope: number) => void,
    readonly ask: Ask,
  ) {
    this.answers = new Answers(app, ask);
  }

  /** The panel, filled when it is first asked for; of a long run after the page has drawn, and piece by piece. */
  show(): Promise<void> {
    return (this.filled ??= this.fill(this.app.run.count > AT_ONCE ? pause : async () => {}));
  }

  private filled: Promise<void> | null = null;

  private async fill(wait: () => Promise<void>): Promise<void> {
    const { run } = this.app;
    replace(this.element, h("p", { class: "hint" }, "Adding up the run…"));
    await wait();
    if (!run.data.compare) await this.answers.fill(wait);
    const { limits, compare, meta } = run.data;
    const error = meta.error ? String(meta.error) : "";
    const missing = [
      ...(error ? [`The run stopped with ${error}; what would have come after is not here`] : []),
      ...limits,
    ];
    replace(
      this.element,
      error
        ? h(
            "div",
            { class: "alert", role: "alert" },
            h("b", {}, "The run did not finish"),
            h("div", {}, error),
            h("div", { class: "sub" }, "Everything up to there is shown."),
          )
        : null,
      run.count
        ? null
        : h(
            "p",
            { class: "hint" },
            "No operation ran: the model gave back what it was given, or did nothing with tensors.",
          ),
      ...(compare ? this.comparison(compare.sides) : [this.answers.element]),
      compare
        ? null
        : section(
            "Run",
            facts([
              ["model", String(meta.model ?? "run")],
              ...rows([this.own()]),
              ...circumstances([this.own()], true, OF_RUN),
            ]),
          ),
      section(
        `Not captured (${count(missing.length)})`,
        missing.length
          ? h("ul", { class: "limits" }, ...missing.map((text) => h("li", {}, text)))
          : h("p", { class: "sub" }, "Everything the run did was captured."),
      ),
      breakList(run, this.goScope),
      section("Machine", facts(circumstances(compare?.sides ?? [this.own()], true))),
    );
  }

  private comparison(sides: Side[]): HTMLElement[] {
    const compare = this.app.run.data.compare!;
    return [
      moduleChanges(this.app.run, this.go),
      section(
        "Comparison",
        facts(sides.map((side, i): Fact => [this.app.run.sides[i], titleOf(side)])),
        ...comparedFacts(this.app.run, [
          ...rows(sides),
          ...circumstances(sides, false, OF_RUN),
          ...circumstances(sides, false),
        ]),
        facts(circumstances(sides, true, OF_RUN)),
      ),
      section(
        "Operations",
        facts(Object.entries(compare.counts).map(([name, n]): Fact => [name, count(n)])),
        ...compare.notes.map((note) => h("p", { class: "sub" }, note)),
      ),
      ...changeList(this.app.run, this.go),
    ];
  }

  /** This run's own figures. */
  private own(): Side {
    const { run } = this.app;
    const phases: Record<string, number> = {};
    const counts = [0, 0, 0];
    for (let node = 0; node < run.count; node++) counts[run.nodePhase[node]] += 1;
    counts.forEach((n, phase) => {
      if (n) phases[PHASES[phase]] = n;
    });
    return {
      name: "",
      phases,
      operations: run.count,
      tensors: run.values,
      calls: this.calls(),
      recomputed: recomputedOperations(run),
      peak_bytes: this.peak(),
      totals: Object.fromEntries(
        ["time_ns", "alloc_bytes", "flops", "moved_bytes"].flatMap((name) => this.total(name)),
      ),
      meta: run.data.meta,
    };
  }

  private calls(): number {
    const { run } = this.app;
    let result = 0;
    for (let scope = 1; scope < run.scopes; scope++)
      if (run.module(scope)[2] === "module" && !isRecomputed(run, scope)) result += 1;
    return result;
  }

  private total(name: string): [string, [number | null, number]][] {
    const metric = this.app.run.metrics.get(name);
    if (!metric) return [];
    let sum = 0;
    let unknown = 0;
    for (let i = 0; i < metric.values.length; i++) {
      if (metric.known && !metric.known[i]) unknown += 1;
      else sum += metric.values[i];
    }
    return [[name, [unknown && unknown === metric.values.length ? null : sum, unknown]]];
  }

  /** The most that was alive at once: what an operation frees is there until it has run. */
  private peak(): number | null {
    const { run } = this.app;
    const live = run.metrics.get("live_bytes");
    const freed = run.metrics.get("free_bytes");
    if (!live || !live.values.length) return null;
    let most = -1;
    for (let node = 0; node < run.count; node++) {
      if (!live.known || live.known[node]) most = Math.max(most, live.values[node] + (freed ? freed.values[node] : 0));
    }
    return most < 0 ? null : most;
  }
}

/** A run in one line: two of the same model are told apart by their size. */
function titleOf({ name, operations, meta }: Side): string {
  return [
    name,
    plural(operations, "operation"),
    typeof meta.parameters === "number" ? `${amount(meta.parameters)} parameters` : "",
  ]
    .filter(Boolean)
    .join(" · ");
}

function figures(sides: Side[]): Figure[] {
  const number = (value: unknown): number | null => (typeof value === "number" ? value : null);
  const total = (name: string, metric: string, show: Show): Figure[] =>
    sides.some((side) => side.totals[metric])
      ? [
          {
            name,
            show,
            of: (side) => side.totals[metric]?.[0] ?? null,
            unknown: (side) => side.totals[metric]?.[1] ?? 0,
          },
        ]
      : [];
  const phases = PHASES.filter((phase) => sides.some((side) => side.phases[phase]));
  return [
    { name: "operations", show: count, of: (side) => side.operations },
    ...(phases.length > 1
      ? phases.map((phase): Figure => ({ name: phase, show: count, of: (side) => side.phases[phase] ?? 0 }))
      : []),
    ...(sides.some((side) => side.recomputed)
      ? [{ name: "computed again", show: count, of: (side: Side) => side.recomputed ?? 0 }]
      : []),
    { name: "tensors", show: count, of: (side) => side.tensors },
    { name: "module calls", show: count, of: (side) => side.calls },
    ...(sides.some((side) => number(side.meta.parameters) !== null)
      ? [{ name: "parameters", show: amount, of: (side: Side) => number(side.meta.parameters) }]
      : []),
    ...total("time of operations", "time_ns", duration),
    ...total("memory allocated", "alloc_bytes", size),
    ...total("FLOPs", "flops", amount),
    ...total("bytes accessed", "moved_bytes", size),
    { name: "peak memory", show: size, of: (side) => side.peak_bytes },
    ...(sides.some((side) => number(side.meta.steady_peak_bytes) !== null)
      ? [{ name: "peak from the second step on", show: size, of: (side: Side) => number(side.meta.steady_peak_bytes) }]
      : []),
    { name: "wall time", show: duration, of: (side) => number(side.meta.wall_ns) },
    ...(sides.some((side) => number(side.meta.overhead_ns) !== null)
      ? [{ name: "recording overhead", show: duration, of: (side: Side) => number(side.meta.overhead_ns) }]
      : []),
    ...(sides.some((side) => number(side.meta.overhead_error_ns))
      ? [{ name: "± of the overhead", show: duration, of: (side: Side) => number(side.meta.overhead_error_ns) }]
      : []),
    ...(sides.some((side) => number(side.meta.plain_wall_ns) !== null)
      ? [{ name: "without recording", show: duration, of: (side: Side) => number(side.meta.plain_wall_ns) }]
      : []),
  ];
}

/** One column for each run; of two the difference as well. */
function rows(sides: Side[]): Fact[] {
  const isEmpty = sides.every((side) => !side.operations);
  return figures(sides)
    .filter(({ of }) => !isEmpty || sides.some((side) => of(side) !== null))
    .map(({ name, show, of, unknown }): Fact => {
      const cells = sides.map((side) => {
        const amount = of(side);
        const left = unknown?.(side) ?? 0;
        if (amount === null) return "not known";
        return left && sides.length > 1
          ? `≥ ${show(amount)}`
          : show(amount) + (left ? ` (${plural(left, "operation")} not known)` : "");
      });
      const [a, b] = sides.map(of);
      const isLow = sides.some((side) => unknown?.(side)); // sums that leave something out cannot be compared
      return [
        name,
        ...cells,
        ...(sides.length > 1 ? [a === null || b === null || isLow ? "" : b === a ? "0" : signed(show)(b - a)] : []),
      ];
    });
}

/** Where it ran, or certain facts instead: what all runs share in one cell, or what they do not in one for each. */
function circumstances(sides: Side[], shared: boolean, names?: Set<string>): Fact[] {
  const results: Fact[] = [];
  for (const name of new Set(sides.flatMap((side) => Object.keys(side.meta)))) {
    if (
      OWN.has(name) ||
      (names ? !names.has(name) : OF_RUN.has(name)) ||
      sides.every((side) => side.meta[name] === false)
    )
      continue;
    const texts = sides.map((side) => metaText(name, side.meta));
    if ((new Set(texts).size === 1) !== shared) continue;
    results.push([
      NAMES[name] ?? name.replace(/_(ns|bytes)$/, "").replaceAll("_", " "),
      ...(shared ? [texts[0]] : [...texts, "≠"]),
    ]);
  }
  return results;
}

function metaText(name: string, meta: Side["meta"]): string {
  const value = meta[name];
  if (name === "plain_wall_low_ns" && typeof value === "number")
    return `${duration(value)} to ${duration(Number(meta.plain_wall_high_ns))}`;
  if (value === undefined || value === null) return "";
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value === "number")
    return name.endsWith("_ns") ? duration(value) : name.endsWith("_bytes") ? size(value) : String(value);
  return Array.isArray(value) ? value.join(", ") : value;
}
