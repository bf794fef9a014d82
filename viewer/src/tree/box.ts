/** What is drawn: boxes for operations, calls of modules and repeats; each makes its children when first asked. */

import { wasText } from "../data/renamed.ts";
import { isRecomputed, isRepeated } from "../data/recomputed.ts";
import { OUTSIDE, type Run, type Stretch } from "../data/run.ts";
import { Phase, Role } from "../data/schema.gen.ts";
import type { Forest } from "./forest.ts";

export type Kind = "root" | "module" | "op" | "fold" | "step" | "bundle" | "input" | "output";

/** A repeat is closed, shows one instance for all (`one`), or all of them (`all`); everything else is closed or `all`. */
export type Opening = "closed" | "one" | "all";

const MOST_IN_A_FRAME = 2500;
/** So many operations between the calls of models are drawn as one. */
const FEWEST_OUTSIDE = 2;
/** The same between the calls that a model makes, unless they are most of it. */
const FEWEST_OWN = 6;
const FEW_NAMES = 3;
const LONGEST_NAMES = 46; // letters of them that have room on a box
const OWN = "own operations";
const MOST_OWN = 0.5;
const MOST_OF_A_RUN = 0.5;
/** Before the reason of a graph break, as the second line of what it ends. */
export const BREAK = "⚡ ended by ";
const LONGEST_REASON = 32; // letters of it that have room on a box, with a shape beside them
const SUMMED = "summed outputs";
const SEED = "gradient of 1";
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
    if (parts.length > MOST_IN_A_FRAME) return bundles(parts).map((part) => this.bundle(elements, part));
    if (this.isGathered(parts)) return this.gathered(elements, parts);
    return parts.map((stretch) => this.child(elements, stretch));
  }

  /** Whether modules are what one looks for in it: outside of any, in what a model consists of, and around its layers. */
  private isGathered(parts: Stretch[]): boolean {
    if (this.kind === "bundle") return false;
    if (!this.above) return true;
    if (this.kind !== "module") return false;
    const { element, elementStart, total } = this.forest;
    const isLayers = ({ start, times }: Stretch): boolean => {
      const first = element[elementStart[this.scope] + start];
      return times > 1 && first < 0 && !this.run.isFunction(~first);
    };
    return this.operations > MOST_OF_A_RUN * total || parts.some(isLayers);
  }

  /** What the program does between the calls of its models stands together: the models are what one looks for. */
  private gathered(elements: Int32Array, parts: Stretch[]): Box[] {
    const { run } = this;
    const hasModules = elements.some((element) => element < 0 && !run.isFunction(~element));
    const boxes: Box[] = [];
    for (let at = 0; at < parts.length; at++) {
      const { start } = parts[at];
      const isAdded = this.isAddedElement(elements[start]);
      let [end, next, shown] = [start, at, 0];
      while (next < parts.length) {
        const length = parts[next].period * parts[next].times;
        const inside = elements.subarray(parts[next].start, parts[next].start + length);
        const isOther = (element: number): boolean =>
          (element < 0 && !run.isFunction(~element)) || this.isAddedElement(element) !== isAdded;
        if (inside.some(isOther)) break;
        shown += inside.filter((element) => element < 0 || !run.isView(element)).length;
        end += length;
        next += 1;
      }
      const label = isAdded
        ? shown > 1
          ? this.addedLabel(elements[start])
          : ""
        : hasModules
          ? this.gatheredLabel(elements, start, end, shown)
          : "";
      if (!label) boxes.push(this.child(elements, parts[at]));
      else {
        boxes.push(this.bundle(elements, { start, period: end - start, times: 1, odd: [], label }));
        at = next - 1;
      }
    }
    return boxes;
  }

  /** Whether the recording added an operation, or all that the call of a function ran. */
  private isAddedElement(element: number): boolean {
    const { forest, run } = this;
    if (element >= 0) return run.isAdded(element);
    const nodes = forest.order.subarray(forest.start[~element], forest.end[~element]);
    return nodes.length > 0 && nodes.every((node) => run.isAdded(node));
  }

  /** What the recording added, by the phase that it stands in. */
  private addedLabel(element: number): string {
    const { forest, run } = this;
    const node = element >= 0 ? element : forest.order[forest.start[~element]];
    return run.nodePhase[node] === Phase.FORWARD ? SUMMED : SEED;
  }

  /** What a stretch of operations is called that is drawn as one; "" where each stands for itself. */
  private gatheredLabel(elements: Int32Array, start: number, end: number, shown: number): string {
    if (this.kind === "root")
      return shown < FEWEST_OUTSIDE ? "" : this.shortNames(elements.subarray(start, end)) || OUTSIDE;
    if (shown < FEWEST_OWN) return "";
    const [from, to] = span(this.forest, elements.subarray(start, end));
    return to - from < MOST_OWN * this.operations ? OWN : "";
  }

  /** The names of a few operations, if they are short together; "" otherwise. */
  private shortNames(elements: Int32Array): string {
    const { run } = this;
    const shown = elements.filter((element) => element < 0 || !run.isView(element));
    const all = [...new Set(Array.from(shown, (element) => (element < 0 ? run.label(~element) : run.name(element))))];
    const text = all.join(", ");
    return all.length <= FEW_NAMES && text.length <= LONGEST_NAMES ? text : "";
  }

  /** Whether it stands for the turns of a loop: each calls the same modules once more. */
  get isLoop(): boolean {
    if (this.kind !== "fold") return false;
    const { elements, period, run } = this;
    const module = (at: number): number => (elements[at] < 0 ? run.scopeModule[~elements[at]] : -1);
    for (let at = 0; at < period && at + period < elements.length; at++)
      if (module(at) !== module(at + period)) return false;
    return true;
  }

  /** What it is called from outside: the path of a module, and of an operation the module that it is in as well. */
  get whole(): string {
    const { run } = this;
    if (this.kind === "input" || this.kind === "output") return `${this.kind} ${this.label}`;
    const above = this.above;
    if (this.kind === "module") return run.path(this.scope) || this.label;
    if (this.kind === "op")
      return this.isAdded ? this.label : `${this.label} ${run.placeText(run.nodeScope[this.node])}`;
    return above ? `${above}.${this.label}` : this.label;
  }

  /** Whether the recording added all of it to what the program did. */
  get isAdded(): boolean {
    return (
      this.start >= 0 && this.elements.length > 0 && this.elements.every((element) => this.isAddedElement(element))
    );
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
    const label = part.label || names(this.run, inside);
    const type = `${(to - from).toLocaleString("en-US")} operations`;
    const box = new Box(this.forest, "bundle", this, inside, from, to, label, type, this.level + 1);
    box.offset = this.offset + part.start;
    return box;
  }

  private child(elements: Int32Array, { start, period, times, odd, label: stepLabel }: Stretch): Box {
    const { forest, run } = this;
    const inside = elements.subarray(start, start + period * times);
    const [from, to] = span(forest, inside);
    const level = this.level + 1;
    const first = inside[0];
    if (times > 1) {
      const label =
        period > 1
          ? stepLabel || names(run, inside.subarray(0, period))
          : first < 0
            ? joinedLabels(Array.from(inside, (element) => run.label(~element)))
            : run.name(first);
      const type = period > 1 ? `${period} steps` : first < 0 ? typeLabel(run, ~first) : "";
      const box = new Box(forest, "fold", this, inside, from, to, label, type, level, period);
      box.count = times;
      box.oddInstances = odd;
      return box;
    }
    if (first >= 0) {
      const label = run.isAdded(first) ? this.addedLabel(first) : run.name(first);
      return new Box(forest, "op", this, inside, from, to, label, "", level);
    }
    const lone = loneOperation(forest, ~first, run.label(~first));
    if (lone >= 0) return new Box(forest, "op", this, Int32Array.of(lone), from, to, run.label(~first), "", level);
    const label = callLabel(run, ~first, this.loop);
    return new Box(forest, "module", this, inside, from, to, label, typeLabel(run, ~first), level);
  }

  /** What the loop is called that this is a turn of; "" outside of any. */
  private get loop(): string {
    return this.kind === "step" ? (this.parent?.label ?? "") : "";
  }

  private instances(): Box[] {
    const { forest, period, run } = this;
    const boxes: Box[] = [];
    for (let index = 0; index < this.elements.length; index += period) {
      const inside = this.elements.subarray(index, index + period);
      const [from, to] = span(forest, inside);
      if (period === 1 && inside[0] < 0) {
        const [label, type] = [callLabel(run, ~inside[0], ""), typeLabel(run, ~inside[0])];
        boxes.push(new Box(forest, "module", this, inside, from, to, label, type, this.level));
      } else if (period === 1) {
        boxes.push(new Box(forest, "op", this, inside, from, to, run.name(inside[0]), "", this.level));
      } else {
        const label = updated(run, inside) || `${boxes.length + 1} of ${this.count}`;
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

  /** The value that what it stands for hands out; -1 for none. Outside forward, what others take of what it computes. */
  get output(): number {
    if (this.kind === "input" || this.kind === "output") return this.elements[0];
    const count = this.kind === "fold" ? this.period : this.elements.length;
    for (let at = count - 1; at >= 0; at--) {
      const value = this.outputOf(this.elements[at]);
      if (value >= 0) return value;
    }
    return -1;
  }

  private outputOf(element: number): number {
    const { run, forest } = this;
    if (element >= 0) return run.outputs(element)[0] ?? -1;
    if (forest.phases.includes(Phase.FORWARD)) {
      const value = run.handedOut(~element);
      if (value >= 0) return value;
    }
    const [from, to] = [forest.start[~element], forest.end[~element]];
    const handed = forest.handedOn(from, to);
    return handed >= 0 ? handed : this.largestOfLast(from, to);
  }

  /** Of the last call in a range, the largest value that is no view: the gradient of a weight rather than that of its bias. */
  private largestOfLast(from: number, to: number): number {
    const { run, forest } = this;
    let [result, scope] = [-1, -1];
    for (let position = to - 1; position >= from; position--) {
      const node = forest.order[position];
      if (run.isView(node) || !run.outputs(node).length) continue;
      if (scope >= 0 && run.nodeScope[node] !== scope) break;
      scope = run.nodeScope[node];
      for (const value of run.outputs(node))
        if (result < 0 || run.elements(value) > run.elements(result)) result = value;
    }
    return result;
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
    for (; start < to; start++) results.push({ start, period: 1, times: 1, odd: [], label: "" });
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
    results.push({ start, period: last.start + last.period * last.times - start, times: 1, odd: [], label: "" });
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

/** The label of a call; of a module that is called several times, with the number of the call where that of its caller does not say it. */
function callLabel(run: Run, scope: number, loop: string): string {
  const label = run.label(scope);
  if (label === loop) return run.module(scope)[1]; // the loop is called after it
  const call = run.scopeCall[scope];
  const isSaid = call === run.scopeCall[run.scopeParent[scope]];
  // What ran again is told apart by its mark.
  const isNumbered = call > 0 && !isSaid && !isRecomputed(run, scope) && !run.isFunction(scope);
  return isNumbered ? `${label} #${call + 1}` : label;
}

/** The parameter that a step of an optimizer updates; "" for any other step. */
function updated(run: Run, elements: Int32Array): string {
  for (const node of elements) {
    if (node < 0 || run.nodePhase[node] !== Phase.OPTIMIZER) return "";
    for (let row = run.inStart[node]; row < run.inStart[node + 1]; row++) {
      const value = run.inValue[row];
      if (run.roleOf(value) === Role.PARAMETER) return run.valueLabel(value);
    }
  }
  return "";
}

/** The operation that a call of a function consists of, where both have one name: a frame around it would say nothing. */
function loneOperation(forest: Forest, scope: number, label: string): number {
  const inside = forest.elements(scope);
  if (inside.length !== 1 || inside[0] < 0 || !forest.run.isFunction(scope)) return -1;
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
  if (broken)
    return (
      BREAK + (broken.reason.length > LONGEST_REASON ? `${broken.reason.slice(0, LONGEST_REASON)}…` : broken.reason)
    );
  return run.isFunction(scope) ? functionName(run, scope) : run.module(scope)[1];
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
