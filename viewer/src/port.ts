/**
 * `window.torchVis`: what is on the page, and what can be done to it, for tests and for scripts of the person who opened it.
 *
 *     await torchVis.ready;
 *     torchVis.boxes().filter((box) => box.kind === "op");
 *     await torchVis.open("encoder.layer.0–11");
 *     torchVis.heat("time_ns");
 *
 * Everything that is returned is plain data, as it is at that moment. Places are in pixels of the window, from its upper left
 * corner, unless they say otherwise. A box is named by its `id`, its label or, of a module, its path; the first that fits counts.
 */

import type { App, Mode } from "./app.ts";
import { isRecomputed } from "./data/recomputed.ts";
import { DIFFERENCES, REMOVED } from "./data/run.ts";
import { PHASES } from "./data/schema.gen.ts";
import type { TokenStep } from "./data/tokens.ts";
import { tensorBytes } from "./draw/edges.ts";
import { handedAlong } from "./draw/labels.ts";
import { shapeOf } from "./draw/measure.ts";
import type { Camera } from "./draw/painter.ts";
import type { Hit, Rect } from "./draw/scene.ts";
import { toSvg } from "./draw/svg.ts";
import { pngOf, selectionJson, selectionMarkdown } from "./panels/exports.ts";
import type { Bar } from "./panels/flamechart.ts";
import { hasClosed, isRepeat, MOST_REPEATS, repeatsIn } from "./input/first_view.ts";
import type { Shell } from "./shell.ts";
import type { Box, Kind, Opening } from "./tree/box.ts";
import { openingOf } from "./tree/expansion.ts";

/** A box or, if it is open, a frame. */
export interface DrawnBox {
  id: string;
  /** The number of the column that it stands in: one for each phase, or one for all. */
  column: number;
  /** The frame around it, by its id; "" for none. */
  parent: string;
  kind: Kind;
  /** What it is called, its class or operator, and the type of what it hands out; "" where there is none. */
  name: string;
  cls: string;
  shape: string;
  /** The same as `name`, and the second line of a box as far as it is no shape. */
  label: string;
  type: string;
  /** The path of a module, of a repeat that of the instance that it shows; the module around anything else. */
  path: string;
  /** Of a call, or a repeat of calls, what was called: a module, function, optimizer …; "" for none. */
  call: string;
  /** The phase that it is drawn in, several joined by "+"; and each of them. */
  phase: string;
  phases: string[];
  /** The operation that it is, and the call of a module that a selection of it means; -1 for none. */
  node: number;
  scope: number;
  operations: number;
  opening: Opening;
  /** Of a repeat: how many instances there are, which one is shown for all, and which are not like most. */
  count: number;
  shown: number;
  odd: readonly number[];
  isRecomputed: boolean;
  /** Whether the recording added it to what the program did, and whether it stands for several calls of modules. */
  isAdded: boolean;
  isRepeat: boolean;
  /** Whether it makes a tensor at all. */
  hasOutput: boolean;
  /** In a comparison: same, added, removed or changed, and what a module was called before. */
  status: string;
  was: string;
  /** Its amount on the heat map that is chosen, as a number and in words; null where it is not known, or there is none. */
  heat: number | null;
  heatText: string;
  /** Whether that leaves out operations of which it is not known. */
  isLow: boolean;
  /** Its colour, and the one that it has from afar. */
  fill: string;
  farFill: string;
  /** The size of the letters of its name on the screen; 0 while it is not drawn. */
  fontPx: number;
  rect: [x: number, y: number, w: number, h: number];
  /** Whether any of it is in the window. */
  inView: boolean;
  /** Where it is on the sheet that the camera looks at. */
  sheet: Rect;
}

export interface DrawnEdge {
  column: number;
  /** The boxes that bytes pass between, by id and by label. */
  source: string;
  target: string;
  from: string;
  to: string;
  /** The type of the tensor that it stands for, its bytes, and whether a loop hands it to its next turn. */
  shape: string;
  bytes: number | null;
  isCarried: boolean;
  /** In a comparison, the run that alone has it; "" for both. */
  side: string;
  /** The corners of the line in the window; none for what very many read, which is named at its readers. */
  points: [x: number, y: number][];
  /** Where it is a line, the two ends of each piece of it, on the sheet; what very many read is named at its readers instead. */
  pieces: [[x: number, y: number], [x: number, y: number]][];
}

export interface DrawnColumn {
  title: string;
  phases: string[];
  operations: number;
  /** The amount of all of it on the heat map that is chosen. */
  heat: number | null;
  width: number;
  height: number;
}

/** What is painted on the canvas, in that order: a text with its size, the plate of a name or a button, the tips of lines. */
export type Painted =
  { kind: "text"; text: string; x: number; y: number; size: number } | ({ kind: "plate" } & Rect) | { kind: "tips" };

export interface Operation {
  node: number;
  name: string;
  op: string;
  path: string;
  phase: string;
  isView: boolean;
  status: string;
}

export interface State {
  mode: Mode;
  heat: string | null;
  theme: "dark" | "light";
  /** The panel at the side, and the one below. */
  tab: string;
  dock: string;
  /** What the table of modules is sorted by, and the operations that the memory line is brushed over. */
  sort: string;
  brush: [from: number, to: number] | null;
  /** How many boxes a search or a brush brings out; null where all are alike. */
  marked: number | null;
  /** Where the graph is in the window, and whether a box is closed that has modules in it. */
  canvas: [x: number, y: number, w: number, h: number];
  canOpen: boolean;
  /** The size of the sheet. */
  width: number;
  height: number;
}

export class Port {
  /** Resolves when the graph is drawn for the first time. */
  readonly ready: Promise<void>;
  isReady = false;
  private parts: { app: App; shell: Shell; readMs: number; drawnMs: number } | null = null;
  private resolve!: () => void;

  constructor() {
    this.ready = new Promise((resolve) => (this.resolve = resolve));
  }

  /** The graph is drawn; the page is ready when the panel beside it is filled too. */
  async connect(app: App, shell: Shell, readMs: number): Promise<void> {
    this.parts = { app, shell, readMs, drawnMs: performance.now() };
    if (shell.tab === "summary") await shell.summary.show();
    this.isReady = true;
    this.resolve();
  }

  private get page(): NonNullable<Port["parts"]> {
    if (!this.parts) throw new Error("the page is not drawn yet: await torchVis.ready");
    return this.parts;
  }

  // What is there

  boxes(): DrawnBox[] {
    const { app } = this.page;
    return (app.scene?.columns ?? []).flatMap(({ picture }, column) =>
      picture.items.map((_, item) => this.describe({ column, item })),
    );
  }

  edges(): DrawnEdge[] {
    const { camera, canvas } = this.page.shell.view;
    const origin = canvas.getBoundingClientRect();
    return (this.page.app.scene?.columns ?? []).flatMap(({ picture, results, frameX, frameY }, column) =>
      picture.edges.map((edge) => {
        const [source, target] = [edge.source, edge.target].map((item) => picture.items[item].box);
        const pieces: DrawnEdge["pieces"] = [];
        const points: DrawnEdge["points"] = [];
        for (let i = 0; i < edge.lines.length; i += 2) {
          const [frame, line] = [edge.lines[i], edge.lines[i + 1]];
          const { path, pathStart } = results[frame];
          const at = (row: number): [number, number] => [frameX[frame] + path[row], frameY[frame] + path[row + 1]];
          pieces.push([at(pathStart[line]), at(pathStart[line + 1] - 2)]);
          for (let row = pathStart[line]; row < pathStart[line + 1]; row += 2) {
            const [x, y] = at(row);
            points.push([origin.left + x * camera.scale + camera.x, origin.top + y * camera.scale + camera.y]);
          }
        }
        const value = handedAlong(picture, edge);
        const facts = {
          side: edge.side ? source.run.sides[edge.side === REMOVED ? 0 : 1] : "",
          shape: source.run.typeText(value),
          bytes: tensorBytes(source.run, value),
          isCarried: edge.carried,
        };
        const names = { source: source.key, target: target.key, from: source.label, to: target.label };
        return { column, ...names, ...facts, points, pieces };
      }),
    );
  }

  columns(): DrawnColumn[] {
    const { app } = this.page;
    return (app.scene?.columns ?? []).map(({ picture, results, title }, number) => ({
      title,
      phases: picture.forest.phases.map((phase) => PHASES[phase]),
      operations: picture.forest.total,
      heat: app.heat?.of(app.roots[number]) ?? null,
      width: results[0].width,
      height: results[0].height,
    }));
  }

  /** The repeats of calls of modules in the first column, drawn or not, and their shares of the time of all phases, heaviest first. */
  repeats(): { id: string; name: string; count: number; share: number; isDrawn: boolean; opening: Opening }[] {
    const { app } = this.page;
    if (!app.scene) return [];
    return repeatsIn(app.roots, MOST_REPEATS).map(({ box, share }) => {
      const isDrawn = app.scene!.find(box) !== null;
      return { id: box.key, name: box.label, count: box.count, share, isDrawn, opening: box.opening };
    });
  }

  /** Draws once more, and tells what is painted. */
  painted(): Painted[] {
    const { app, shell } = this.page;
    const { context } = shell.view.painter;
    const origin = shell.view.canvas.getBoundingClientRect();
    const seen: Painted[] = [];
    const place = (x: number, y: number, w = 0, h = 0): Rect & { scale: number } => {
      const { a, d, e, f } = context.getTransform();
      const ratio = devicePixelRatio;
      return {
        x: origin.left + (a * x + e) / ratio,
        y: origin.top + (d * y + f) / ratio,
        w: (a * w) / ratio,
        h: (d * h) / ratio,
        scale: a / ratio,
      };
    };
    const own = CanvasRenderingContext2D.prototype;
    // Only this canvas, and only while it is drawn: its own methods hide those of all canvases.
    context.fillText = (text, x, y, most): void => {
      const at = place(x, y);
      const size = parseFloat(/([\d.]+)px/.exec(context.font)![1]) * at.scale;
      seen.push({ kind: "text", text, x: at.x, y: at.y, size });
      own.fillText.call(context, text, x, y, most);
    };
    context.roundRect = (x, y, w, h, radii): void => {
      const isPlate = context.fillStyle === app.theme.plate || context.fillStyle === app.theme.accent;
      const at = place(x, y, w, h);
      if (isPlate) seen.push({ kind: "plate", x: at.x, y: at.y, w: at.w, h: at.h });
      own.roundRect.call(context, x, y, w, h, radii);
    };
    context.fill = (...args: unknown[]): void => {
      if (args[0] instanceof Path2D) seen.push({ kind: "tips" });
      own.fill.apply(context, args as Parameters<CanvasRenderingContext2D["fill"]>);
    };
    try {
      shell.view.drawNow();
    } finally {
      for (const name of ["fillText", "roundRect", "fill"]) Reflect.deleteProperty(context, name);
    }
    return seen;
  }

  /** What answers a click on the canvas besides the boxes themselves. */
  buttons(): { id: string; action: string; isOpen: boolean; rect: Rect }[] {
    const { view } = this.page.shell;
    const origin = view.canvas.getBoundingClientRect();
    return view.painter.zones.map(({ action, box, x, y, w, h }) => ({
      id: box.key,
      action,
      isOpen: box.opening !== "closed",
      rect: { x: origin.left + x, y: origin.top + y, w, h },
    }));
  }

  /** The box that is selected, drawn or not. */
  selection(): (Omit<DrawnBox, "rect" | "sheet"> & { rect: DrawnBox["rect"] | null }) | null {
    const { app } = this.page;
    if (!app.selected) return null;
    const hit = app.scene?.find(app.selected);
    if (hit) return this.describe(hit);
    return { ...this.facts(app.selected), column: -1, parent: "", fontPx: 0, inView: false, rect: null };
  }

  /** The lines that are selected, by the labels of the boxes at their ends. */
  selectedEdges(): { from: string; to: string }[] {
    const { app } = this.page;
    return app.edges.map(({ column, edge }) => {
      const { items, edges } = app.scene!.columns[column].picture;
      return { from: items[edges[edge].source].box.label, to: items[edges[edge].target].box.label };
    });
  }

  /** The operation whose facts are shown; -1 for none. */
  node(): number {
    return this.page.app.node;
  }

  /** What the search finds: how many operations, the first of them, and modules by their paths. Null without a search. */
  searchResults(): { total: number; nodes: number[]; modules: string[]; error: string } | null {
    const { app, shell } = this.page;
    const { found } = shell.search;
    if (!found) return null;
    const { total, nodes, scopes, error } = found;
    return { total, nodes, modules: scopes.map((scope) => app.run.path(scope)), error };
  }

  state(): State {
    const { app, shell } = this.page;
    const { left, top, width, height } = shell.view.canvas.getBoundingClientRect();
    return {
      canvas: [left, top, width, height],
      canOpen: app.roots.some(hasClosed),
      mode: app.mode,
      heat: app.heat?.id ?? null,
      theme: app.theme.dark ? "dark" : "light",
      tab: shell.tab,
      dock: shell.docked,
      sort: shell.modules.order,
      brush: shell.timeline.brush,
      marked: app.marked?.size ?? null,
      width: app.scene?.width ?? 0,
      height: app.scene?.height ?? 0,
    };
  }

  operations(): Operation[] {
    const { run } = this.page.app;
    return Array.from({ length: run.count }, (_, node) => ({
      node,
      name: run.name(node),
      op: run.op(node),
      path: run.path(run.nodeScope[node]),
      phase: PHASES[run.nodePhase[node]],
      isView: run.isView(node),
      status: DIFFERENCES[run.difference?.[node] ?? 0],
    }));
  }

  /** Every call of a module or function; the first is the run itself. */
  calls(): { scope: number; path: string; type: string; isRecomputed: boolean }[] {
    const { run } = this.page.app;
    return Array.from({ length: run.scopes }, (_, scope) => {
      const [path, type] = run.module(scope);
      return { scope, path, type, isRecomputed: isRecomputed(run, scope) };
    });
  }

  /** The sum of a metric over a column, and of how many operations it is not known. */
  total(metric: string, column = 0): { total: number; unknown: number } | null {
    const { forest } = this.page.app.roots[column];
    const sum = forest.sum(metric, 0, forest.total);
    return sum && { total: sum.total, unknown: sum.unknown };
  }

  /** The table of modules: what each comes to in all its calls, by the id of a column; null where it is not known. */
  modules(): { path: string; cls: string; scope: number; figures: Record<string, number | null> }[] {
    return this.page.shell.modules.data();
  }

  /** Of a run that writes a text: what each call of the model takes, the prefill first. */
  tokens(): TokenStep[] {
    return this.page.shell.tokens.steps;
  }

  /** The heat maps there are, by id. */
  heatMaps(): { id: string; label: string }[] {
    return this.page.app.measures.map(({ id, label }) => ({ id, label }));
  }

  /** The bytes of each use while each operation runs, and the operation of the peak. Null while the memory line is not shown. */
  memory(): { uses: Record<string, number[]>; total: number[]; peak: number } | null {
    const { memory } = this.page.shell.timeline;
    if (!memory) return null;
    const uses = Object.fromEntries(memory.words.map((word, use) => [word, Array.from(memory.live[use])]));
    return { uses, total: Array.from(memory.total), peak: memory.peak };
  }

  /** The blocks of memory that are alive at some time from one operation to another, largest first. */
  alive(from: number, to: number): { name: string; use: string; bytes: number }[] {
    const { app, shell } = this.page;
    const { memory } = shell.timeline;
    if (!memory) return [];
    return memory.alive(from, to).map((block) => ({
      name: memory.value[block] >= 0 ? app.run.valueLabel(memory.value[block]) : "",
      use: memory.words[memory.use[block]],
      bytes: memory.bytes[block],
    }));
  }

  /** The bars of the flame chart that are in sight. Null while it is not shown. */
  flame(): Bar[] | null {
    const { flame } = this.page.shell;
    return flame.chart ? flame.bars() : null;
  }

  /** Milliseconds: from the opening of the page until it was drawn, reading and drawing alone, the last layout, the last frame. */
  timings(): { drawnMs: number; readMs: number; layoutMs: number; frameMs: number; paintedBoxes: number } {
    const { app, shell, drawnMs, readMs } = this.page;
    const { frameMs, painter } = shell.view;
    return { drawnMs, readMs, layoutMs: app.layoutMs, frameMs, paintedBoxes: painter.drawn };
  }

  // What can be done

  /** Select a box, or the module of a path, which is opened up to if it is not drawn; null for none. */
  async select(name: string | null): Promise<void> {
    const { app } = this.page;
    if (name === null) app.select(null);
    else app.select(await this.reached(name));
  }

  /** Open a box, or the module of a path: all of it or, of a repeat, one instance for all. */
  async open(name: string, how?: Opening): Promise<void> {
    const box = await this.reached(name);
    this.page.app.spread = 1;
    box.opening = how ?? openingOf(box);
    await this.page.shell.refresh(box);
  }

  close(name: string): Promise<void> {
    return this.open(name, "closed");
  }

  openAll(): Promise<void> {
    return this.page.shell.openEverything();
  }

  async closeAll(): Promise<void> {
    const { app, shell } = this.page;
    app.closeEverything();
    await shell.refresh(null);
  }

  /** Open everything up to a depth, and close what is deeper. */
  depth(levels: number): Promise<void> {
    return this.page.shell.setDepth(levels);
  }

  /** Go to an operation, or to the call of a module, by its number, and select it. */
  goToNode(node: number): Promise<void> {
    return this.page.shell.goNode(node);
  }

  goToCall(scope: number): Promise<void> {
    return this.page.shell.goScope(scope);
  }

  /** Search as if it were typed: what is hit is brought out; returns the modules and operations that are listed, best first. */
  search(text: string): { path: string; name: string; cls: string; node: number; scope: number }[] {
    const { app, shell } = this.page;
    shell.search.show(text);
    return shell.search.hits().map(({ node, scope }) => ({
      path: app.run.path(app.run.moduleAround(scope)),
      name: node >= 0 ? app.run.name(node) : app.run.label(scope),
      cls: node >= 0 ? app.run.op(node) : app.run.module(scope)[1],
      node,
      scope: node >= 0 ? -1 : scope,
    }));
  }

  /** Colour boxes by a metric; "" for none. */
  heat(metric: string): void {
    this.page.app.setHeat(metric);
  }

  /** Show phases side by side, laid over one another, or one alone. */
  phases(mode: Mode): Promise<void> {
    const { shell } = this.page;
    const modes = [...shell.mode.options].map((option) => option.value);
    if (!modes.includes(mode)) throw new Error(`no phases "${mode}"; there are ${modes.join(", ")}`);
    return shell.setMode(mode);
  }

  theme(name: "dark" | "light"): void {
    const { app, shell } = this.page;
    app.themeChoice = name;
    shell.applyTheme();
  }

  /** Show a panel at the side: summary, details or modules. */
  tab(name: string): void {
    this.page.shell.showTab(name);
  }

  /** Show the panel below: memory, time, or "" for none. */
  dock(name: string): void {
    this.page.shell.showDock(name);
  }

  /** Bring out what is alive from one operation to another; the memory line has to be shown. */
  brush(from: number, to: number): void {
    this.page.shell.timeline.setBrush(from, to);
  }

  /** Where the camera is, or where it is put: the sheet's origin on the canvas, and the scale. */
  camera(to?: Camera): Camera {
    const { view } = this.page.shell;
    if (to) {
      view.fly(to, false);
      view.drawNow();
    }
    return { ...view.camera };
  }

  /** All of it in the window, at once. */
  fit(): void {
    const { view } = this.page.shell;
    view.fit(false);
    view.drawNow();
  }

  /** The address that brings back what is shown, from its #. */
  link(): string {
    this.page.shell.writeHash();
    return location.hash;
  }

  /** All that is open, as a picture. */
  svg(): string {
    return toSvg(this.page.app);
  }

  png(): Promise<Blob> {
    return pngOf(this.page.app);
  }

  /** The selection, as data and as text. */
  json(): string {
    return selectionJson(this.page.app);
  }

  markdown(): string {
    return selectionMarkdown(this.page.app);
  }

  /** The box of a name; of the path of a module that is not drawn, the one that is drawn once all around it is open. */
  private async reached(name: string): Promise<Box> {
    const { app, shell } = this.page;
    const drawn = this.drawn(name);
    if (drawn) return drawn;
    const { run } = app;
    for (let scope = 0; scope < run.scopes; scope++) {
      if (run.path(scope) !== name || run.isFunction(scope) || !run.ranAnything(scope)) continue;
      await shell.goScope(scope);
      if (app.selected) return app.selected;
    }
    throw new Error(`no box and no module that ran is called "${name}"`);
  }

  private drawn(name: string): Box | undefined {
    const boxes = (this.page.app.scene?.columns ?? []).flatMap(({ picture }) => picture.items.map(({ box }) => box));
    return (
      boxes.find(({ key }) => key === name) ??
      boxes.find(({ label }) => label === name) ??
      boxes.find((other) => other.kind === "module" && other.run.path(other.scope) === name)
    );
  }

  private describe(hit: Hit): DrawnBox {
    const { app, shell } = this.page;
    const scene = app.scene!;
    const { picture } = scene.columns[hit.column];
    const item = picture.items[hit.item];
    const around = picture.frames[item.frame].item;
    const sheet = scene.rect(hit);
    const { scale, x, y } = shell.view.camera;
    const origin = shell.view.canvas.getBoundingClientRect();
    const rect: DrawnBox["rect"] = [
      origin.left + sheet.x * scale + x,
      origin.top + sheet.y * scale + y,
      sheet.w * scale,
      sheet.h * scale,
    ];
    const [left, top, w, h] = rect;
    return {
      ...this.facts(item.box),
      column: hit.column,
      parent: around < 0 ? "" : picture.items[around].box.key,
      fontPx: shell.view.painter.nameSizes.get(item.box) ?? 0,
      rect,
      inView: left < origin.right && left + w > origin.left && top < origin.bottom && top + h > origin.top,
      sheet,
    };
  }

  private facts(box: Box): Omit<DrawnBox, "column" | "parent" | "fontPx" | "rect" | "inView" | "sheet"> {
    const { app } = this.page;
    const { run, forest, subject } = box;
    const heat = box.start >= 0 ? (app.heat?.of(box) ?? null) : null;
    const paint = app.paint(box, app.theme);
    const first = subject.elements[0];
    const isEnd = box.kind === "input" || box.kind === "output" || first === undefined;
    const isOp = first >= 0 && (box.kind === "op" || (box.kind === "fold" && box.period === 1));
    const call = isEnd || first >= 0 || box.kind === "bundle" || box.kind === "step" ? "" : run.module(~first)[2];
    return {
      id: box.key,
      kind: box.kind,
      name: box.label,
      cls: isEnd ? box.kind : isOp ? run.op(first) : box.type,
      shape: shapeOf(box),
      label: box.label,
      type: box.type,
      path: isEnd ? "" : run.path(run.moduleAround(first < 0 ? ~first : run.nodeScope[first])),
      call,
      phase: forest.phases.map((phase) => PHASES[phase]).join("+"),
      phases: forest.phases.map((phase) => PHASES[phase]),
      node: box.node,
      scope: subject.scope,
      operations: box.operations,
      opening: box.opening,
      count: box.count,
      shown: box.shown,
      odd: box.oddInstances,
      isRecomputed: box.recomputed,
      isAdded: box.isAdded,
      isRepeat: isRepeat(box),
      hasOutput: isEnd || box.forest.order.subarray(box.start, box.end).some((node) => run.outputs(node).length > 0),
      status: DIFFERENCES[box.difference],
      was: box.was,
      heat,
      heatText: app.heatText(box),
      isLow: box.start >= 0 && (app.heat?.isLow?.(box) ?? false),
      fill: paint.fill,
      farFill: paint.far,
    };
  }
}

declare global {
  interface Window {
    torchVis: Port;
  }
}
