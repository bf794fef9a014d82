/**
 * The module tree of some phases of a run, in order of execution.
 *
 * Every call of a module covers an unbroken range of positions, so that a sum over it is a difference of two numbers, and
 * a position in one of several equal calls has its counterpart in each of the others at the same distance.
 */

import { ADDED, REMOVED, type Run, type Stretch } from "../data/run.ts";
import { Kind } from "../data/schema.gen.ts";

export class Forest {
  /** By position, the operation; by operation, the position or -1. */
  readonly order: Int32Array;
  readonly position: Int32Array;
  /** By call of a module, its range of positions. */
  readonly start: Int32Array;
  readonly end: Int32Array;
  /** What each call holds: operations, and ~call for calls. */
  readonly elementStart: Int32Array;
  readonly element: Int32Array;
  readonly total: number;
  private readonly sums = new Map<
    string,
    { sum: Float64Array; unknown: Int32Array | null; known: Int32Array | null }
  >();
  private readonly edgeLists = new Map<boolean, Edges>();

  constructor(
    readonly run: Run,
    readonly phases: readonly number[],
  ) {
    const inside = (node: number): boolean => phases.includes(run.nodePhase[node]);
    const scopes = run.scopes;
    const seen = new Uint8Array(scopes);
    const counts = new Int32Array(scopes + 1);
    if (scopes) seen[0] = 1;
    const visit = (node: number, result: (owner: number, element: number) => void): void => {
      const chain: number[] = [];
      for (let scope = run.nodeScope[node]; scope >= 0 && !seen[scope]; scope = run.scopeParent[scope]) {
        seen[scope] = 1;
        chain.push(scope);
      }
      for (let i = chain.length - 1; i >= 0; i--) result(Math.max(0, run.scopeParent[chain[i]]), ~chain[i]);
      result(run.nodeScope[node], node);
    };
    let total = 0;
    for (let node = 0; node < run.count; node++) {
      if (!inside(node)) continue;
      total += 1;
      visit(node, (owner) => counts[owner + 1]++);
    }
    for (let i = 0; i < scopes; i++) counts[i + 1] += counts[i];
    this.total = total;
    this.elementStart = counts;
    this.element = new Int32Array(counts[scopes]);
    const free = counts.slice();
    seen.fill(0);
    if (scopes) seen[0] = 1;
    for (let node = 0; node < run.count; node++) {
      if (inside(node)) visit(node, (owner, element) => (this.element[free[owner]++] = element));
    }
    if (scopes) this.bringTogether();
    this.order = new Int32Array(total);
    this.position = new Int32Array(run.count).fill(-1);
    this.start = new Int32Array(scopes);
    this.end = new Int32Array(scopes);
    this.walk();
  }

  elements(scope: number): Int32Array {
    return this.element.subarray(this.elementStart[scope], this.elementStart[scope + 1]);
  }

  /** The repeated stretches among the elements of a call, from left to right. */
  repeats(scope: number): readonly Stretch[] {
    this.stretches ??= this.run.stretches(this.phases);
    return this.stretches.get(scope) ?? [];
  }

  private stretches: Map<number, Stretch[]> | null = null;

  /**
   * Move what a program makes of nothing between the calls of its models, `ones` for a loss, to the beginning.
   *
   * It needs nothing of what ran before, and stands there as one. What is in a repeat, or beside other operations, stays.
   */
  private bringTogether(): void {
    const { run } = this;
    const part = this.elements(0);
    const isPlain = (element: number | undefined): boolean =>
      element !== undefined && (element >= 0 || run.isFunction(~element));
    if (part.every(isPlain)) return;
    const stretches = this.repeats(0);
    const repeated = new Uint8Array(part.length);
    for (const { start, period, times } of stretches) repeated.fill(1, start, start + period * times);
    const lone = (at: number): boolean =>
      !repeated[at] && this.isMadeOfNothing(part[at]) && !isPlain(part[at - 1]) && !isPlain(part[at + 1]);
    const moved = [...part.keys()].filter(lone);
    if (moved.length < 2) return;
    const isMoved = new Set(moved);
    part.set([...moved.map((at) => part[at]), ...part.filter((_, at) => !isMoved.has(at))]);
    const later = (start: number): number => moved.reduce((count, at) => count + Number(at > start), 0);
    const shifted = stretches.map((stretch) => ({ ...stretch, start: stretch.start + later(stretch.start) }));
    this.stretches = new Map(this.stretches).set(0, shifted);
  }

  /** Whether it is an operation of the program's own that reads no bytes. */
  private isMadeOfNothing(element: number): boolean {
    const { run } = this;
    const inside = element >= 0 ? [element] : run.isFunction(~element) ? [...this.elements(~element)] : [];
    if (inside.length !== 1 || inside[0] < 0 || run.isAdded(inside[0])) return false;
    const [node] = inside;
    for (let row = run.inStart[node]; row < run.inStart[node + 1]; row++)
      if (run.inKind[row] !== Kind.SHAPE) return false;
    return true;
  }

  private walk(): void {
    if (!this.run.scopes) return;
    const stack = [0];
    const at = [this.elementStart[0]];
    let position = 0;
    while (stack.length) {
      const scope = stack[stack.length - 1];
      const next = at[at.length - 1]++;
      if (next === this.elementStart[scope + 1]) {
        this.end[scope] = position;
        stack.pop();
        at.pop();
      } else if (this.element[next] >= 0) {
        this.position[this.element[next]] = position;
        this.order[position++] = this.element[next];
      } else {
        const inner = ~this.element[next];
        this.start[inner] = position;
        stack.push(inner);
        at.push(this.elementStart[inner]);
      }
    }
  }

  /** The sum of a metric over a range of positions; in a comparison, what is not in the run that it is of counts for nothing. */
  sum(metric: string, from: number, to: number): Sum | null {
    let result = this.sums.get(metric);
    if (!result) {
      const column = this.run.metrics.get(metric);
      if (!column || (column.along !== "node" && column.along !== "before")) return null;
      const sum = new Float64Array(this.total + 1);
      const unknown = column.known ? new Int32Array(this.total + 1) : null;
      const counted = column.known ? new Int32Array(this.total + 1) : null;
      for (let position = 0; position < this.total; position++) {
        const node = this.order[position];
        const known = !column.known || column.known[node] === 1;
        sum[position + 1] = sum[position] + (known ? column.values[node] : 0);
        if (unknown) unknown[position + 1] = unknown[position] + (known || this.run.isAbsent(column, node) ? 0 : 1);
        if (counted) counted[position + 1] = counted[position] + (known ? 1 : 0);
      }
      result = { sum, unknown, known: counted };
      this.sums.set(metric, result);
    }
    const { sum, unknown, known } = result;
    return {
      total: sum[to] - sum[from],
      unknown: unknown ? unknown[to] - unknown[from] : 0,
      known: known ? known[to] - known[from] : to - from,
    };
  }

  /** What a range of positions takes of the run: its time, or where none was taken the number of operations. */
  weight(from: number, to: number): number {
    return this.sum("time_ns", from, to)?.total ?? to - from;
  }

  /** Every passing of bytes from position to position; with `through`, views are looked through. */
  edges(through: boolean): Edges {
    let result = this.edgeLists.get(through);
    if (!result) this.edgeLists.set(through, (result = this.listEdges(through)));
    return result;
  }

  /**
   * What others take last of all that is computed in a range of positions, as it leaves the range; -1 for nothing.
   *
   * What is only added up may be the gradient of a weight that others use as well: it counts where there is nothing else, and
   * of the last call's the largest.
   */
  handedOn(from: number, to: number): number {
    const { run } = this;
    const { value, target } = this.edges(true);
    const [start, bySource] = (this.sources ??= this.indexSources());
    let [summand, most, scope] = [-1, -1, -1];
    for (let position = to - 1; position >= from; position--) {
      const own = run.nodeScope[this.order[position]];
      for (let at = start[position]; at < start[position + 1]; at++) {
        const edge = bySource[at];
        if (target[edge] >= from && target[edge] < to) continue;
        const left = this.asItLeft(value[edge], from, to);
        if (!run.addsGradients(this.order[target[edge]])) return left;
        if (scope < 0) scope = own;
        if (own === scope && run.elements(left) > most) [summand, most] = [left, run.elements(left)];
      }
    }
    return summand;
  }

  /** A value before the views that were taken of it outside of a range. */
  private asItLeft(value: number, from: number, to: number): number {
    const { run } = this;
    const root = run.rootOf(value);
    let result = value;
    while (result !== root) {
      const view = run.producer[result];
      if (this.position[view] >= from && this.position[view] < to) break;
      const before = run.viewed(view, root);
      if (before < 0) break;
      result = before;
    }
    return result;
  }

  private sources: [start: Int32Array, edges: Int32Array] | null = null;

  /** The edges by the position that they come from. */
  private indexSources(): [start: Int32Array, edges: Int32Array] {
    const { source } = this.edges(true);
    const start = new Int32Array(this.total + 1);
    for (const position of source) if (position >= 0) start[position + 1] += 1;
    for (let i = 0; i < this.total; i++) start[i + 1] += start[i];
    const [free, edges] = [start.slice(), new Int32Array(start[this.total])];
    source.forEach((position, edge) => {
      if (position >= 0) edges[free[position]++] = edge;
    });
    return [start, edges];
  }

  private listEdges(through: boolean): Edges {
    const run = this.run;
    const root = through ? run.roots : null;
    const isCompared = run.difference !== null;
    const compared = run.data.read_before?.length ?? 0;
    const most = run.inValue.length + run.outValue.length + compared;
    const [source, target, value] = [new Int32Array(most), new Int32Array(most), new Int32Array(most)];
    const side = new Uint8Array(most);
    let count = 0;
    const add = (from: number, node: number, runs = 0): void => {
      const origin = root ? root[from] : from;
      const producer = run.producer[origin];
      const position = producer >= 0 ? this.position[producer] : -1;
      if (producer >= 0 && position < 0) return; // from another phase
      if (position === this.position[node]) return;
      source[count] = producer >= 0 ? position : ~origin;
      target[count] = this.position[node];
      value[count] = from;
      if (isCompared) side[count] = runs || run.sideOf(node) || (producer >= 0 ? run.sideOf(producer) : 0);
      count += 1;
    };
    for (let index = 0; index < this.total; index++) {
      const node = this.order[index];
      if (through && run.isView(node)) continue;
      const after = isCompared ? run.readAfter(node) : [];
      for (let row = run.inStart[node]; row < run.inStart[node + 1]; row++) {
        if (run.inKind[row] === Kind.SHAPE) continue;
        add(run.inValue[row], node, after.includes(run.rootOf(run.inValue[row])) ? ADDED : 0);
      }
      if (isCompared) for (const before of run.readBefore(node)) add(before, node, REMOVED);
      for (let row = run.outStart[node]; row < run.outStart[node + 1]; row++) {
        const below = run.valueCarries[run.outValue[row]];
        if (below >= 0) add(below, node);
      }
    }
    return {
      source: source.slice(0, count),
      target: target.slice(0, count),
      value: value.slice(0, count),
      side: side.slice(0, count),
    };
  }
}

/** A sum, how many operations are in it, and how many it leaves out because it is not known of them. */
export interface Sum {
  total: number;
  known: number;
  unknown: number;
}

/** Whether operations ran, but it is known of none of them. */
export function isUnknown({ known, unknown }: Sum): boolean {
  return unknown > 0 && !known;
}

/** Columns: where bytes come from (a position, or ~value from outside), where they go, the value read, and the run that has it. */
export interface Edges {
  source: Int32Array;
  target: Int32Array;
  value: Int32Array;
  side: Uint8Array; // of a comparison: 0 both, else that of the status ADDED or REMOVED
}
