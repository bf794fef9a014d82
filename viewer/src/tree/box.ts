/** What is drawn: boxes for operations, calls of modules and repeats; each makes its children when first asked. */

import { wasText } from "../data/renamed.ts";
import { isRecomputed, isRepeated } from "../data/recomputed.ts";
import type { Run, Stretch } from "../data/run.ts";
import type { Forest } from "./forest.ts";

export type Kind = "root" | "module" | "op" | "fold" | "step" | "bundle" | "input" | "output";

/** A repeat is closed, shows one instance for all (`one`), or all of them (`all`); everything else is closed or `all`. */
export type Opening = "closed" | "one" | "all";

const MOST_IN_A_FRAME = 2500;
const BUNDLE = 200;

export class Box {
  readonly key: string;
  opening: Opening = "closed";
  shown = 0; // of a repeat that shows one instance: which
  count = 1;
  odd = false; // an instance that differs from its siblings
  oddInstances: readonly number[] = []; // of a repeat: the numbers of those that differ from the others
  private offset = 0; // of what stands for a part of a call: its first element there
  private made: Box[] | null = null;

  constructor(
    readonly forest: Forest,
    readonly kind: Kind,
    readonly parent: Box | null,
    readonly elements: Int32Array, // operations and ~calls; of an input or output, the value
    readonly start: number,
    readonly end: number,
    readonly label: string,
    readonly type: string,
    readonly level: number,
    readonly period = 1,
  ) {
    const letter = kind[0] === "o" && kind !== "op" ? "u" : kind[0];
    const first = elements.length ? elements[0] : 0;
    this.key = `${forest.phases.join("")}${letter}${first < 0 ? `c${~first}` : first}${period > 1 || kind === "bundle" || kind === "fold" ? `.${elements.length}` : ""}`;
  }

  get run(): Run {
    return this.forest.run;
  }

  get scope(): number {
    return (this.kind === "module" || this.kind === "root") && this.elements.length ? ~this.elements[0] : -1;
  }

  get node(): number {
    return this.kind === "op" ? this.elements[0] : -1;
  }

  get operations(): number {
    return this.end - this.start;
  }

  get canOpen(): boolean {
    return this.kind !== "op" && this.kind !== "input" && this.kind !== "output";
  }

  get isView(): boolean {
    if (this.kind === "op") return this.run.isView(this.node);
    return (this.kind === "module" || this.kind === "fold") && (this.onlyViews ??= this.hasOnlyViews());
  }

  private onlyViews: boolean | null = null;

  private hasOnlyViews(): boolean {
    for (let position = this.start; position < this.end; position++)
      if (!this.run.isView(this.forest.order[position])) return false;
    return this.end > this.start;
  }

  /** Whether backward ran it again: all of it, and for the second time. */
  get recomputed(): boolean {
    return (this.again ??= this.isAgain());
  }

  private again: boolean | null = null;

  private isAgain(): boolean {
    if (this.kind === "input" || this.kind === "output" || this.kind === "root") return false;
    return (
      this.elements.length > 0 &&
      this.elements.every((element) => (element < 0 ? isRecomputed(this.run, ~element) : isRepeated(this.run, element)))
    );
  }

  /** What was checkpointed is marked, and not once more all that is in it. */
  get isMarked(): boolean {
    return this.recomputed && !this.parent?.recomputed;
  }

  get children(): Box[] {
    return (this.made ??= this.makeChildren());
  }

  /** What is to be seen inside: of a repeat that shows one instance, the inside of that instance. */
  get inside(): Box[] {
    if (this.opening === "one") {
      const instance = this.children[Math.min(this.shown, this.children.length - 1)];
      return instance.canOpen ? instance.children : [instance];
    }
    return this.children;
  }

  /** What a selection of this box means: of a repeat that shows one instance, that instance. */
  get subject(): Box {
    return this.kind === "fold" && this.opening === "one"
      ? this.children[Math.min(this.shown, this.children.length - 1)]
      : this;
  }

  private makeChildren(): Box[] {
    const { forest } = this;
    if (!this.canOpen) return [];
    if (this.kind === "fold") return this.instances();
    const elements = this.kind === "step" || this.kind === "bundle" ? this.elements : forest.elements(this.scope);
    const parts = this.kind === "step" ? filled([], elements.length) : this.parts(elements.length);
    const { above } = this;
    if (parts.length > MOST_IN_A_FRAME) return bundles(parts).map((part) => this.bundle(elements, part));
    const seen = new Map<string, number>();
    return parts.map((stretch) => this.child(elements, stretch, above, seen));
  }

  /** The repeats in a call or in a part of one, and the single elements between them. */
  private parts(length: number): Stretch[] {
    const { offset } = this;
    const inside = this.forest
      .repeats(this.module?.scope ?? 0)
      .filter(({ start }) => start >= offset && start < offset + length);
    return filled(offset ? inside.map((stretch) => ({ ...stretch, start: stretch.start - offset })) : inside, length);
  }

  /** The path of the module that this is in, which labels leave out. */
  get above(): string {
    const { module } = this;
    return module ? this.run.path(module.scope) : "";
  }

  /** The box of the module that this is, or is in. */
  private get module(): Box | null {
    if (this.kind === "module" || this.kind === "root") return this;
    let box = this.parent;
    while (box && box.kind !== "module" && box.kind !== "root") box = box.parent;
    return box;
  }

  private bundle(elements: Int32Array, part: Stretch): Box {
    const inside = elements.subarray(part.start, part.start + part.period);
    const [from, to] = span(this.forest, inside);
    const label = names(this.run, inside);
    const type = `${(to - from).toLocaleString("en-US")} operations`;
    const box = new Box(this.forest, "bundle", this, inside, from, to, label, type, this.level + 1);
    box.offset = this.offset + part.start;
    return box;
  }

  private child(
    elements: Int32Array,
    { start, period, times, odd }: Stretch,
    above: string,
    seen: Map<string, number>,
  ): Box {
    const { forest, run } = this;
    const inside = elements.subarray(start, start + period * times);
    const [from, to] = span(forest, inside);
    const level = this.level + 1;
    if (times > 1) {
      const first = inside[0];
      const label =
        period > 1
          ? names(run, inside.subarray(0, period))
          : first < 0
            ? spanLabel(run, inside, above)
            : run.name(first);
      const type = period > 1 ? `${period} steps` : first < 0 ? typeLabel(run, ~first) : "";
      const box = new Box(forest, "fold", this, inside, from, to, label, type, level, period);
      box.count = times;
      box.oddInstances = odd;
      return box;
    }
    const element = inside[0];
    if (element >= 0) return new Box(forest, "op", this, inside, from, to, run.name(element), "", level);
    let label = shortLabel(run, ~element, above);
    const lone = loneOperation(forest, ~element, label);
    if (lone >= 0) return new Box(forest, "op", this, Int32Array.of(lone), from, to, label, "", level);
    const type = typeLabel(run, ~element);
    const plain = new Box(forest, "module", this, inside, from, to, label, type, level);
    // What ran again is told apart by its mark, and what is in one run of a comparison only by its sign.
    const name = `${isRecomputed(run, ~element) ? "\u0000" : ""}${plain.difference % 3}${label}`;
    const again = (seen.get(name) ?? 0) + 1;
    seen.set(name, again);
    if (again === 1) return plain;
    label += ` #${again}`;
    return new Box(forest, "module", this, inside, from, to, label, type, level);
  }

  private instances(): Box[] {
    const { forest, period, run } = this;
    const above = this.above;
    const boxes: Box[] = [];
    const isOnce =
      period === 1 &&
      this.recomputed &&
      new Set(this.elements.map((element) => run.scopeModule[~element])).size === this.count;
    for (let index = 0; index < this.elements.length; index += period) {
      const inside = this.elements.subarray(index, index + period);
      const [from, to] = span(forest, inside);
      if (period === 1 && inside[0] < 0) {
        const call = run.scopeCall[~inside[0]];
        const label = shortLabel(run, ~inside[0], above) + (call > 0 && !isOnce ? ` #${call + 1}` : ""); // what ran again is told apart by its mark
        boxes.push(new Box(forest, "module", this, inside, from, to, label, typeLabel(run, ~inside[0]), this.level));
      } else if (period === 1) {
        boxes.push(new Box(forest, "op", this, inside, from, to, run.name(inside[0]), "", this.level));
      } else {
        const label = `${boxes.length + 1} of ${this.count}`;
        boxes.push(new Box(forest, "step", this, inside, from, to, label, names(run, inside), this.level, period));
      }
    }
    for (const index of this.oddInstances) boxes[index].odd = true;
    return boxes;
  }

  /** In a comparison, what the module or all of the modules were called before; empty where that is what they are called now. */
  get was(): string {
    if (
      !this.run.data.compare ||
      (this.kind !== "module" && this.kind !== "fold") ||
      this.period > 1 ||
      this.elements[0] >= 0
    )
      return "";
    return wasText(
      this.run,
      Array.from(this.elements, (element) => ~element),
      this.parent?.above ?? "",
      joinedLabels,
    );
  }

  /** In a comparison: 0 the same, 1 added, 2 removed, 3 changed or some of each. */
  get difference(): number {
    return this.run.difference && this.start >= 0 ? (this.found ??= this.findDifference(this.run.difference)) : 0;
  }

  private found: number | null = null;

  private findDifference(difference: ArrayLike<number>): number {
    let result = -1;
    for (let position = this.start; position < this.end; position++) {
      const amount = difference[this.forest.order[position]];
      if (result >= 0 && result !== amount) return 3;
      result = amount;
    }
    return Math.max(0, result);
  }
}

export function rootBox(forest: Forest): Box {
  const box = new Box(forest, "root", null, Int32Array.of(~0), 0, forest.total, "", "", -1);
  box.opening = "all";
  return box;
}

/** Repeats, and each element that is in none of them by itself. */
function filled(repeats: readonly Stretch[], length: number): Stretch[] {
  const results: Stretch[] = [];
  let start = 0;
  const singles = (to: number): void => {
    for (; start < to; start++) results.push({ start, period: 1, times: 1, odd: [] });
  };
  for (const stretch of repeats) {
    singles(stretch.start);
    results.push(stretch);
    start += stretch.period * stretch.times;
  }
  singles(length);
  return results;
}

function bundles(parts: Stretch[]): Stretch[] {
  const size = Math.max(BUNDLE, Math.ceil(parts.length / BUNDLE));
  const results: Stretch[] = [];
  for (let at = 0; at < parts.length; at += size) {
    const last = parts[Math.min(at + size, parts.length) - 1];
    const { start } = parts[at];
    results.push({ start, period: last.start + last.period * last.times - start, times: 1, odd: [] });
  }
  return results;
}

function span(forest: Forest, elements: Int32Array): [number, number] {
  let from = Infinity;
  let to = 0;
  for (const element of elements) {
    from = Math.min(from, element < 0 ? forest.start[~element] : forest.position[element]);
    to = Math.max(to, element < 0 ? forest.end[~element] : forest.position[element] + 1);
  }
  return elements.length ? [from, to] : [0, 0];
}

function names(run: Run, elements: Int32Array): string {
  const counts = new Map<string, number>();
  for (const element of elements) {
    const name = element >= 0 ? run.name(element) : run.module(~element)[1];
    counts.set(name, (counts.get(name) ?? 0) + 1);
  }
  const sorted = [...counts].sort((a, b) => b[1] - a[1]).map(([name]) => name);
  return sorted.slice(0, 3).join(", ") + (sorted.length > 3 ? " …" : "");
}

/** A module by its path below what it is in; a call of a function by the function's name. */
function shortLabel(run: Run, scope: number, above: string): string {
  const [path, type, kind] = run.module(scope);
  if (kind === "function")
    return functionName(run, scope)
      .replace(/^aten\.(\w+)\.\w+$/, "$1")
      .split(".")
      .pop()!;
  if (!path) return type;
  return above && path.startsWith(`${above}.`) ? path.slice(above.length + 1) : path;
}

/** The operation that a call of a function consists of, where both have one name: a frame around it would say nothing. */
function loneOperation(forest: Forest, scope: number, label: string): number {
  const inside = forest.elements(scope);
  if (inside.length !== 1 || inside[0] < 0 || forest.run.module(scope)[2] !== "function") return -1;
  return forest.run.name(inside[0]).replace(/_$/, "") === label.replace(/_$/, "") ? inside[0] : -1;
}

/** A captured program calls a node by its variable and has the function as class; a recorded call has its full name as path. */
function functionName(run: Run, scope: number): string {
  const [path, type] = run.module(scope);
  return type.includes(".") ? type : path;
}

/** The second line of a box: the class, the function's full name, or that a graph break ends it. */
function typeLabel(run: Run, scope: number): string {
  const broken = run.breakOf(scope);
  if (broken) return `⚡ graph break: ${broken.reason}`;
  return run.module(scope)[2] === "function" ? functionName(run, scope) : run.module(scope)[1];
}

function spanLabel(run: Run, elements: Int32Array, above: string): string {
  return joinedLabels(Array.from(elements, (element) => shortLabel(run, ~element, above)));
}

/** Names that end in a number as one: `blocks.0–2`. */
function joinedLabels(all: string[]): string {
  const labels = new Set(all);
  const results = [...labels].map((label) => /^(.*?)(\d+)$/.exec(label)).filter((match) => match !== null);
  if (labels.size === 1 || !results.length) return [...labels][0];
  return results[results.length - 1][1] + numbersText(results.map((match) => Number(match[2])));
}

const MOST_RUNS = 4;

/** Numbers in words as few as they can be: `0–3`, `0, 2`, `0–2, 5`, and where they are many `0, 2 … 22`. */
export function numbersText(numbers: number[]): string {
  const runs: [number, number][] = [];
  for (const number of [...new Set(numbers)].sort((a, b) => a - b)) {
    const last = runs[runs.length - 1];
    if (last && last[1] === number - 1) last[1] = number;
    else runs.push([number, number]);
  }
  const texts = runs.map(([from, to]) => (from === to ? `${from}` : `${from}–${to}`));
  return texts.length <= MOST_RUNS ? texts.join(", ") : `${texts[0]}, ${texts[1]} … ${texts[texts.length - 1]}`;
}
