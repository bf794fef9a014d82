/** The state of the page: what is open, selected and coloured; every panel reads it and listens to its changes. */

import type { Run } from "./data/run.ts";
import { Phase, PHASES } from "./data/schema.gen.ts";
import { fillOf, measures, rangeOf, type Measure, type Range } from "./draw/heat.ts";
import { face, HEADER, headerWidth } from "./draw/measure.ts";
import type { Look, Paint } from "./draw/painter.ts";
import { laidOut, type Part } from "./draw/columns.ts";
import type { EdgeHit, Hit, Scene } from "./draw/scene.ts";
import { blend, DARK, FAMILIES, LIGHT, type Theme } from "./draw/theme.ts";
import { LayoutClient } from "./layout/client.ts";
import { ROOM, type Room } from "./layout/layered.ts";
import { rootBox, type Box } from "./tree/box.ts";
import { Forest } from "./tree/forest.ts";
import {
  closeAll,
  eachShown,
  openAll,
  openAtFirst,
  openingOf,
  openToDepth,
  wayTo,
  wayToCall,
} from "./tree/expansion.ts";
import { compose } from "./tree/picture.ts";

export type Mode = "side" | "over" | "forward" | "backward" | "optimizer";
export type PageEvent = "scene" | "select" | "look" | "camera" | "clock" | "hover";

const MOST_TO_OPEN = 60_000;

export class App {
  readonly client = new LayoutClient();
  readonly measures: Measure[];
  readonly phases: number[];
  mode: Mode = "side";
  views = false;
  labels = true;
  wholePath = false;
  heat: Measure | null = null;
  themeChoice: "auto" | "light" | "dark" = "auto";
  scene: Scene | null = null;
  roots: Box[] = [];
  selected: Box | null = null;
  node = -1; // the operation whose facts are shown, where it is not the selected box itself
  hover: Box | null = null;
  /** The edges that the pointer is on, and those that are selected instead of a box. */
  hoverEdges: EdgeHit[] = [];
  edges: EdgeHit[] = [];
  /** The first and the last operation of what the pointer is on, in the graph or in a chart. */
  hoverSpan: [first: number, last: number] | null = null;
  /** The span of time that charts show together; null: all of it. */
  clock: { from: number; to: number } | null = null;
  marked: Set<Box> | null = null;
  private markedNodes: Uint8Array | null = null;
  range: Range = { least: 0, most: 0 }; // of the heat map, over what is drawn
  layoutMs = 0;
  /** What the table of modules says of the module of a call. */
  moduleFacts: (scope: number) => [name: string, text: string][] = () => [];
  /** The room of a smaller window, where the picture is better laid out for that. */
  within: Room | null = null;
  lower = 1; // of the height of that room, what a layout is made for: less sets chains in more columns
  spread = 1; // of the gaps between boxes: a small graph is set more widely in a large window
  private readonly rootsByPhases = new Map<string, Box>();
  private readonly listeners = new Map<PageEvent, (() => void)[]>();
  private levels: number | undefined;
  private turn = 0;
  private parts: Part[] = [];
  private highlighted: Look["highlighted"] = [];
  private links: [Hit, Hit][] = [];

  constructor(readonly run: Run) {
    this.measures = measures(run);
    const seen = new Set<number>();
    for (let node = 0; node < run.count; node++) seen.add(run.nodePhase[node]);
    this.phases = [...seen].sort();
  }

  /** What the picture should fit in, to be read without zooming. */
  get room(): Room {
    return this.whole;
  }

  set room(room: Room) {
    this.whole = room;
    this.within = null;
  }

  private whole = ROOM;

  /** Make the trees of the first view, one at a time, so that the page stays alive meanwhile. */
  async prepare(pause: () => Promise<void>): Promise<void> {
    for (const phase of this.phases) {
      const { forest } = this.rootOf([phase]);
      await pause();
      forest.edges(!this.views);
      await pause();
    }
    this.roots = this.rootsFor(this.mode);
  }

  on(event: PageEvent, act: () => void): void {
    this.listeners.set(event, [...(this.listeners.get(event) ?? []), act]);
  }

  emit(event: PageEvent): void {
    for (const act of this.listeners.get(event) ?? []) act();
  }

  get theme(): Theme {
    const dark =
      this.themeChoice === "auto" ? matchMedia("(prefers-color-scheme: dark)").matches : this.themeChoice === "dark";
    return dark ? DARK : LIGHT;
  }

  private rootsFor(mode: Mode): Box[] {
    const sets =
      mode === "side"
        ? this.phases.map((phase) => [phase])
        : mode === "over"
          ? [this.phases]
          : [[PHASES.indexOf(mode)]];
    return sets.map((phases) => this.rootOf(phases));
  }

  private rootOf(phases: number[]): Box {
    const key = phases.join("");
    let root = this.rootsByPhases.get(key);
    if (!root) {
      root = rootBox(new Forest(this.run, phases));
      const levels = openAtFirst(root, phases.length === 1 ? this.levels : undefined);
      if (phases.length === 1) this.levels ??= levels; // the phases that come later follow the first
      this.rootsByPhases.set(key, root);
    }
    return root;
  }

  setMode(mode: Mode): void {
    this.mode = mode;
    this.roots = this.rootsFor(mode);
    const { node } = this;
    const shown = this.selected;
    this.selected = null;
    if (node >= 0) this.pickNode(node, false);
    else if (shown) this.selected = this.closest(shown);
  }

  /** The box of the present trees that stands for what another one stood for. */
  private closest(box: Box): Box | null {
    for (const root of this.roots) {
      let result: Box | null = null;
      eachShown(root, (other) => {
        if (other.elements[0] === box.elements[0] && other.kind === box.kind) result ??= other;
      });
      if (result) return result;
    }
    return null;
  }

  /** Lay everything out again; a later call overtakes an earlier one. */
  relayout(): Promise<boolean> {
    this.parts = this.roots.map((root) => {
      const up = this.mode === "side" && root.forest.phases[0] === Phase.BACKWARD;
      return {
        picture: compose(root, { views: this.views, up, measure: face, header: HEADER, headerWidth }),
        up,
        title: titleOf(root),
      };
    });
    return this.reshape();
  }

  /** Lay the same boxes out for another room. */
  async reshape(): Promise<boolean> {
    const turn = ++this.turn;
    const started = performance.now();
    const { w, h } = this.within ?? this.room;
    const room = { w, h: h * this.lower };
    const scene = await laidOut(this.client, this.parts, room, this.spread);
    if (turn !== this.turn) return false;
    this.scene = scene;
    this.hoverEdges = this.edges = [];
    this.layoutMs = performance.now() - started;
    this.computeHeatRange();
    this.mark(this.markedNodes);
    this.highlight();
    this.emit("scene");
    return true;
  }

  toggle(box: Box): void {
    if (!box.canOpen) return;
    this.spread = 1;
    box.opening = box.opening === "closed" ? openingOf(box) : "closed";
  }

  /** Open all that there is, up to a number that can still be drawn; returns whether that was all. */
  openEverything(): boolean {
    let whole = true;
    for (const root of this.roots) {
      openAll(root, MOST_TO_OPEN);
      eachShown(root, (box) => (whole &&= !box.canOpen || box.opening !== "closed"));
    }
    return whole;
  }

  closeEverything(): void {
    for (const root of this.roots) closeAll(root);
  }

  setDepth(depth: number): void {
    for (const root of this.roots) openToDepth(root, depth);
  }

  select(box: Box | null, node = box ? box.node : -1): void {
    this.selected = box;
    this.node = node;
    this.edges = [];
    this.highlight();
    this.emit("select");
  }

  /** What the pointer is on: a box of the graph, or an operation in a chart, whose box is brought out then. */
  point(box: Box | null, node = -1): void {
    let span: App["hoverSpan"] = node >= 0 ? [node, node] : null;
    if (box && box.start >= 0 && box.end > box.start) {
      const nodes = box.forest.order.subarray(box.start, box.end);
      span = [nodes.reduce((a, b) => Math.min(a, b)), nodes.reduce((a, b) => Math.max(a, b))];
    }
    const isSame = span?.[0] === this.hoverSpan?.[0] && span?.[1] === this.hoverSpan?.[1];
    this.hover = node >= 0 ? this.leafOf(node) : box;
    this.hoverSpan = span;
    if (!isSame) this.emit("hover");
  }

  /** The box that stands for an operation in what is drawn. */
  private leafOf(node: number): Box | null {
    for (const { picture } of this.scene?.columns ?? []) {
      const item = picture.forest.position[node] >= 0 ? picture.leaf[picture.forest.position[node]] : -1;
      if (item >= 0) return picture.items[item].box;
    }
    return null;
  }

  setClock(from: number, to: number): void {
    if (this.clock?.from === from && this.clock.to === to) return;
    this.clock = { from, to };
    this.emit("clock");
  }

  /** Select the edges that share a line, instead of a box. */
  selectEdges(edges: EdgeHit[]): void {
    this.selected = null;
    this.node = -1;
    this.edges = edges;
    this.highlight();
    this.emit("select");
  }

  /** Select an operation: its own box, or what stands for it. */
  pickNode(node: number, open: boolean): Box | null {
    for (const root of this.roots) {
      const position = root.forest.position[node];
      if (position < 0) continue;
      const way = wayTo(root, position, open);
      while (way.length > 1 && way[way.length - 1].isView && !this.views) way.pop();
      const box = way[way.length - 1];
      this.selected = box === root ? null : box;
      this.node = node;
      return this.selected;
    }
    return null;
  }

  /** Select the call of a module, opening what is around it; in a phase where it has operations there. */
  pickScope(scope: number, phase: number = Phase.FORWARD): Box | null {
    const ordered = [...this.roots].sort(
      (a, b) => Number(b.forest.phases.includes(phase)) - Number(a.forest.phases.includes(phase)),
    );
    for (const root of ordered) {
      const { forest } = root;
      if (forest.start[scope] === forest.end[scope]) continue;
      const box = wayToCall(root, scope);
      if (!box) continue;
      this.selected = box;
      this.node = -1;
      return box;
    }
    return null;
  }

  /** Bring out some operations and let the rest step back; null: all alike. */
  mark(nodes: Uint8Array | null): void {
    this.markedNodes = nodes;
    if (!nodes || !this.scene) {
      this.marked = null;
      return;
    }
    const results = new Set<Box>();
    for (const { picture } of this.scene.columns) {
      const { forest, leaf, items, frames } = picture;
      for (let position = 0; position < forest.total; position++) {
        if (nodes[forest.order[position]] && leaf[position] >= 0) results.add(items[leaf[position]].box);
      }
      for (let frame = frames.length - 1; frame > 0; frame--) {
        if (frames[frame].items.some((item) => item >= 0 && results.has(items[item].box)))
          results.add(items[frames[frame].item].box);
      }
    }
    this.marked = results;
  }

  setHeat(id: string): void {
    this.heat = this.measures.find((measure) => measure.id === id) ?? null;
    this.computeHeatRange();
    this.emit("look");
  }

  private computeHeatRange(): void {
    if (!this.heat || !this.scene) return;
    const drawn = this.scene.columns.flatMap(({ picture }) =>
      picture.items.flatMap(({ box, own }) => (own < 0 ? [box] : [])),
    );
    this.range = rangeOf(this.heat, drawn);
  }

  /** The selection as it is drawn: what lies in a box that was closed since is outlined by that box. */
  private get outlined(): Box | null {
    let box = this.selected;
    while (box && this.scene && !this.scene.find(box)) box = box.parent;
    return box;
  }

  private highlight(): void {
    this.highlighted = [];
    this.links = [];
    for (const { column, edge } of this.edges) this.highlighted.push({ column, edge, as: "edge" });
    if (!this.scene || !this.selected) return;
    const outlined = this.outlined;
    const hit = outlined && this.scene.find(outlined);
    if (!hit) return;
    const { picture } = this.scene.columns[hit.column];
    const inside = withinOf(picture, hit.item);
    this.follow(hit.column, inside, "producer");
    this.follow(hit.column, inside, "consumer");
    this.links = this.linksOf(this.selected, hit);
  }

  private follow(column: number, inside: Set<number>, as: "producer" | "consumer"): void {
    const { edges } = this.scene!.columns[column].picture;
    const byEnd = new Map<number, number[]>();
    edges.forEach((edge, number) => {
      const end = as === "producer" ? edge.target : edge.source;
      const list = byEnd.get(end);
      if (list) list.push(number);
      else byEnd.set(end, [number]);
    });
    const seen = new Set(inside);
    let front = [...inside];
    while (front.length) {
      const next: number[] = [];
      for (const item of front) {
        for (const number of byEnd.get(item) ?? []) {
          const other = as === "producer" ? edges[number].source : edges[number].target;
          if (inside.has(other)) continue;
          this.highlighted.push({ column, edge: number, as });
          if (!seen.has(other)) next.push(other);
          seen.add(other);
        }
      }
      front = this.wholePath ? next : [];
    }
  }

  /** Forward to backward and back: the boxes of the other phase that hold operations which belong to this one's. */
  private linksOf(box: Box, hit: Hit): [Hit, Hit][] {
    const results = new Map<string, [Hit, Hit]>();
    const { run, scene } = this;
    if (!scene || scene.columns.length < 2 || box.start < 0) return [];
    for (let position = box.start; position < box.end && results.size < 40; position++) {
      const node = box.forest.order[position];
      const others = run.nodeLink[node] >= 0 ? [run.nodeLink[node]] : run.linked(node);
      for (const other of [...others, ...this.updates(node)]) {
        const column = scene.columns.findIndex(({ picture }) => picture.forest.position[other] >= 0);
        if (column < 0 || column === hit.column) continue;
        const { picture } = scene.columns[column];
        let item = picture.leaf[picture.forest.position[other]];
        if (item < 0) continue;
        while (box.level >= 0 && picture.items[item].box.level > box.level && picture.items[item].frame > 0) {
          item = picture.frames[picture.items[item].frame].item;
        }
        results.set(`${column},${item}`, [hit, { column, item }]);
      }
    }
    return [...results.values()];
  }

  /** Between the backward pass and the optimizer: who reads what an operation made, or made what it reads. */
  private updates(node: number): number[] {
    const { run } = this;
    if (!this.phases.includes(Phase.OPTIMIZER)) return [];
    const other =
      run.nodePhase[node] === Phase.OPTIMIZER
        ? run.producers(node)
        : run.nodePhase[node] === Phase.BACKWARD
          ? run.users(node)
          : [];
    return other.filter((amount) => run.nodePhase[amount] + run.nodePhase[node] === Phase.OPTIMIZER + Phase.BACKWARD);
  }

  get look(): Look {
    const { theme } = this;
    return {
      theme,
      paint: (box) => this.paint(box, theme),
      selected: this.outlined,
      hover: this.hover,
      highlighted: this.hoverEdges.length
        ? [...this.highlighted, ...this.hoverEdges.map((hit) => ({ ...hit, as: "edge" as const }))]
        : this.highlighted,
      marked: this.marked,
      links: this.links,
      labels: this.labels,
      isHeat: this.heat !== null,
      heatText: (box) => this.heatText(box),
    };
  }

  /** What a box has of the measure that is chosen, as boxes and tips say it. */
  heatText(box: Box): string {
    if (!this.heat || box.start < 0) return "";
    const amount = this.heat.of(box);
    return amount === null ? "" : (this.heat.isLow?.(box) ? "≥ " : "") + this.heat.show(amount);
  }

  paint(box: Box, theme: Theme): Paint {
    const accent = theme.dark
      ? blend(FAMILIES[this.family(box)] ?? FAMILIES.module, "#ffffff", 0.12)
      : (FAMILIES[this.family(box)] ?? FAMILIES.module);
    if (box.kind === "input" || box.kind === "output")
      return { fill: theme.card, accent: FAMILIES.module, far: FAMILIES.module };
    if (this.heat) {
      const fill = fillOf(this.heat, this.range, box, theme);
      return { fill, accent, far: fill };
    }
    if (this.run.difference)
      return { fill: theme.difference[box.difference], accent, far: theme.differenceFar[box.difference] };
    if (box.kind === "bundle" || box.isAdded) return { fill: theme.unknown, accent: theme.faint, far: theme.faint };
    const isPlain = box.kind !== "op" && this.family(box) === "module";
    return { fill: isPlain ? theme.card : blend(theme.card, accent, theme.dark ? 0.22 : 0.13), accent, far: accent };
  }

  private readonly families = new Map<Box, string>();

  family(box: Box): string {
    let result = this.families.get(box);
    if (result === undefined) this.families.set(box, (result = this.findFamily(box)));
    return result;
  }

  private findFamily(box: Box): string {
    const { run } = this;
    if (box.kind === "op") return run.data.families[run.name(box.node)] ?? "elementwise";
    const element = box.elements[0];
    if (box.kind === "bundle" || box.kind === "step" || box.kind === "root" || element === undefined) return "module";
    if (element >= 0) return run.data.families[run.name(element)] ?? "elementwise";
    const { forest } = box;
    // In a captured program every operation is inside the call of a function: what counts is what that runs.
    const inner = Array.from(forest.elements(~element)).flatMap((other) =>
      other < 0 && run.module(~other)[2] === "function" ? Array.from(forest.elements(~other)) : [other],
    );
    if (inner.some((other) => other < 0)) return "module";
    const named = run.data.class_families[run.module(~element)[1]];
    if (named && !["elementwise", "memory", "reduction"].includes(named)) return named;
    const order = Object.keys(FAMILIES);
    let best = order.length;
    for (const node of inner) best = Math.min(best, order.indexOf(run.data.families[run.name(node)] ?? "elementwise"));
    return order[best] ?? "module";
  }
}

function titleOf(root: Box): string {
  const { phases } = root.forest;
  const count = root.forest.total.toLocaleString("en-US");
  return `${phases.map((phase) => PHASES[phase]).join(" + ")} · ${count} operations`;
}

/** An item and, if it is a frame, all that lies in it. */
function withinOf(picture: { items: { own: number }[]; frames: { items: number[] }[] }, item: number): Set<number> {
  const results = new Set([item]);
  const stack = [item];
  while (stack.length) {
    const { own } = picture.items[stack.pop()!];
    if (own < 0) continue;
    for (const inner of picture.frames[own].items) {
      if (inner < 0) continue;
      results.add(inner);
      stack.push(inner);
    }
  }
  return results;
}
