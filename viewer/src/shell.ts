/** The page around the graph: bar, panels, dock; it puts the parts together and carries out what they ask for. */

import type { App, Mode } from "./app.ts";
import { Phase, PHASES } from "./data/schema.gen.ts";
import { button, h, replace } from "./dom.ts";
import { plural } from "./data/text.ts";
import { absentMeasures } from "./draw/heat.ts";
import { View } from "./draw/view.ts";
import { actionsOf } from "./input/actions.ts";
import { applyOpen, decode, encode } from "./input/hash.ts";
import { ViewHistory } from "./input/history.ts";
import { openFirstView } from "./input/first_view.ts";
import { listen } from "./input/keyboard.ts";
import { ResizeDebounce } from "./input/resize_debounce.ts";
import { dockGrip, sideGrip } from "./input/sidebar.ts";
import { Details } from "./panels/details.ts";
import { copyMarkdown, saveJson, savePng, saveSvg } from "./panels/exports.ts";
import { FlameChart } from "./panels/flamechart.ts";
import { helpSheet } from "./panels/help.ts";
import { legendOf } from "./panels/legend.ts";
import { ModuleTable } from "./panels/modules.ts";
import { SearchBox } from "./panels/searchbox.ts";
import { Summary } from "./panels/summary.ts";
import { Timeline } from "./panels/timeline.ts";
import { TokenChart } from "./panels/tokens.ts";
import type { Box } from "./tree/box.ts";
import { depthOf, eachShown, openingOf, restore, snapshot, type Openings } from "./tree/expansion.ts";

const DOCKS = ["tokens", "memory", "time"];
const HIGH = 800; // pixels of a window that has room for a chart below the graph from the start
const NARROW = 820; // pixels: below, the side panel lies on the graph

export class Shell {
  readonly view: View;
  readonly details: Details;
  readonly modules: ModuleTable;
  readonly summary: Summary;
  readonly search: SearchBox;
  readonly timeline: Timeline;
  readonly flame: FlameChart;
  readonly tokens: TokenChart;
  readonly help = helpSheet();
  readonly legend = h("div", { class: "legend" });
  readonly toast = h("div", { class: "toast", hidden: true, role: "status" });
  private readonly side = h("div", { class: "side-body" });
  private readonly tabs = new Map<string, HTMLButtonElement>();
  private readonly dockTabs = new Map<string, HTMLButtonElement>();
  private readonly dock = h("div", { class: "dock", hidden: true });
  private readonly dockGrip = dockGrip(this.dock);
  readonly heat = h("select", { title: "Colour boxes by a measure (h)", "aria-label": "Heat map" });
  readonly mode = h("select", { title: "Phases (g)", "aria-label": "Phases" });
  private readonly depth = h("span", { class: "depth" });
  docked = "";
  tab = "summary";
  private resizeDebounce!: ResizeDebounce;
  private hashWait = 0;
  private hashReady = false;
  private readonly history = new ViewHistory<Openings[]>((hash, openings) => void this.show(hash, openings));

  constructor(readonly app: App) {
    this.view = new View(app);
    const go = (node: number): void => void this.goNode(node);
    const goScope = (scope: number): void => void this.goScope(scope);
    this.details = new Details(
      app,
      go,
      goScope,
      () => void this.copy(),
      (scope) => app.moduleFacts(scope),
    );
    this.modules = new ModuleTable(
      app,
      (scope, stay) => void this.goScope(scope, stay),
      () => this.later(),
    );
    app.moduleFacts = (scope) => this.modules.facts(scope);
    this.summary = new Summary(app, go, goScope, (query, heat) => this.ask(query, heat));
    this.search = new SearchBox(app, go, goScope, () => this.view.redraw());
    this.timeline = new Timeline(app, go);
    this.tokens = new TokenChart(app, goScope);
    this.flame = new FlameChart(app, go, (scope, phase) => void this.goScope(scope, false, phase));
    new ResizeObserver(() => this.dock.style.setProperty("--list", `${this.timeline.list.offsetWidth}px`)).observe(
      this.timeline.list,
    );
    this.view.act = (action, box) => void this.onZone(action, box);
    app.on("select", () => {
      if ((app.selected || app.node >= 0 || app.edges.length) && !this.staying) this.showTab("details");
      this.drawLegend();
      this.later();
    });
    app.on("scene", () => {
      this.depth.textContent = String(Math.max(...app.roots.map(depthOf), 0));
      this.drawLegend();
    });
    app.on("look", () => {
      this.heat.value = app.heat?.id ?? "";
      this.drawLegend();
      this.later();
    });
    app.on("camera", () => this.later());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.applyTheme());
    this.build();
    listen(app, actionsOf(this));
  }

  private build(): void {
    const { app } = this;
    const { meta } = app.run.data;
    const title = String(meta.model ?? "run");
    this.fillSelects();
    const save = h(
      "details",
      { class: "menu" },
      h("summary", { title: "Save or copy" }, "Save"),
      h(
        "div",
        { class: "menu-body" },
        button("Picture as SVG", "All that is open, as SVG (s)", () => saveSvg(app)),
        button("Picture as PNG", "All that is open, as PNG", () => void savePng(app)),
        button("Selection as JSON", "Every fact of the selected operations", () => {
          if (this.isSelected()) saveJson(app);
        }),
        button("Copy as Markdown", "The selection as a table to paste (c)", () => void this.copy()),
        button("Copy link", "An address that brings back this view", () => void this.copyLink()),
      ),
    );
    save.addEventListener("click", (event) => {
      if ((event.target as HTMLElement).tagName === "BUTTON") save.open = false;
    });
    document.addEventListener("pointerdown", (event) => {
      if (!save.contains(event.target as Node)) save.open = false;
    });
    document.addEventListener(
      "keydown",
      (event) => {
        if (event.key !== "Escape" || !save.open) return;
        save.open = false;
        event.stopImmediatePropagation();
      },
      { capture: true },
    );
    const bar = h(
      "header",
      { class: "bar" },
      h(
        "div",
        { class: "brand", title },
        h("b", {}, title),
        h("span", { class: "sub" }, plural(app.run.count, "operation")),
      ),
      this.search.element,
      h(
        "div",
        { class: "tools" },
        this.mode,
        h(
          "span",
          { class: "group", title: "Depth: how many levels are open" },
          button("−", "One level less", () => void this.changeDepth(-1)),
          this.depth,
          button("+", "One level more", () => void this.changeDepth(1)),
          button("all", "Open everything (e)", () => void this.openEverything()),
        ),
        this.heat,
        h(
          "span",
          { class: "group" },
          button("Fit", "Fit all in the window (f)", () => void this.fit()),
        ),
        save,
        button("◐", "Dark or light (d)", () => this.switchTheme(), { class: "icon" }),
        button("?", "Keys (?)", () => this.help.showModal(), { class: "icon" }),
      ),
    );
    const tabs = h("div", { class: "tabs", role: "tablist" });
    for (const name of ["summary", "details", "modules"]) {
      const tab = button(name[0].toUpperCase() + name.slice(1), name, () => this.showTab(name), { role: "tab" });
      this.tabs.set(name, tab);
      tabs.append(tab);
    }
    tabs.append(button("»", "Hide this panel", () => this.showSide(false), { class: "icon hide" }));
    const dockTabs = h("div", { class: "dock-tabs" });
    for (const [name, label, key] of [
      ...(this.tokens.isKnown ? [["tokens", "Tokens", "k"]] : []),
      ["memory", "Memory timeline", "m"],
      ["time", "Time flame chart", "t"],
    ]) {
      const tab = button(label, `${label} (${key})`, () => this.toggleDock(name));
      this.dockTabs.set(name, tab);
      dockTabs.append(tab);
    }
    const zoom = h(
      "div",
      { class: "zoom" },
      button("+", "Zoom in (+)", () => this.view.zoom(1.3)),
      button("−", "Zoom out (−)", () => this.view.zoom(1 / 1.3)),
    );
    const corner = button("«", "Show the panel", () => this.showSide(true), { class: "icon show-side" });
    const aside = h("aside", { "aria-label": "Facts" });
    aside.append(
      sideGrip(aside, () => this.view.redraw()),
      tabs,
      this.side,
    );
    document.body.append(
      bar,
      h(
        "main",
        {},
        h(
          "div",
          { class: "stage" },
          this.view.canvas,
          this.view.tip,
          this.view.mini.canvas,
          zoom,
          corner,
          this.toast,
          app.run.count ? null : h("p", { class: "nothing" }, "No operation ran, so there is no graph to draw."),
        ),
        h("footer", {}, dockTabs, this.legend),
        this.dock,
      ),
      aside,
      this.help,
    );
    this.view.overlays = [zoom, corner, aside]; // the last lies on the graph where the window is narrow
    this.resizeDebounce = new ResizeDebounce(app, this.view);
    new ResizeObserver(() => document.body.style.setProperty("--bar", `${bar.offsetHeight}px`)).observe(bar);
    // In a notebook the page is a part of another one: the graph gets all of it.
    const isShut = innerWidth <= NARROW || document.body.dataset.panel === "shut";
    document.body.classList.toggle("no-side", isShut);
    this.showTab("summary");
  }

  private fillSelects(): void {
    const { app } = this;
    replace(
      this.heat,
      h("option", { value: "" }, "Heat: off"),
      ...app.measures.map((measure) => h("option", { value: measure.id }, `Heat: ${measure.label}`)),
      ...absentMeasures(app.run).map(([label, call]) =>
        h("option", { disabled: true, title: call }, `Heat: ${label} (${call})`),
      ),
    );
    this.heat.addEventListener("change", () => app.setHeat(this.heat.value));
    // Keys belong to the graph again as soon as something was chosen.
    for (const select of [this.heat, this.mode]) {
      select.addEventListener("change", () => select.blur());
      // An Escape that shuts the open list is heard when the key comes up alone.
      for (const kind of ["keydown", "keyup"] as const)
        select.addEventListener(kind, (event) => {
          if (event.key === "Escape") select.blur();
        });
    }
    const modes: [Mode, string][] =
      app.phases.length > 1
        ? [
            ["side", "Side by side"],
            ["over", "Overlaid"],
            ...app.phases.map((phase): [Mode, string] => [PHASES[phase] as Mode, `Only ${PHASES[phase]}`]),
          ]
        : [["side", app.phases.length ? `Only ${PHASES[app.phases[0]]}` : "Nothing ran"]];
    this.mode.hidden = !app.phases.length;
    replace(this.mode, ...modes.map(([mode, label]) => h("option", { value: mode }, label)));
    this.mode.addEventListener("change", () => void this.setMode(this.mode.value as Mode));
  }

  async setMode(mode: Mode): Promise<void> {
    this.mode.value = mode;
    this.resetRoom();
    this.app.setMode(mode);
    if (await this.app.relayout()) this.view.begin();
    this.app.select(this.app.selected, this.app.node);
  }

  /** Lay out for the window as it is now. */
  private resetRoom(): void {
    this.app.room = this.view.room;
    this.app.lower = this.app.spread = 1;
  }

  async setDepth(depth: number): Promise<void> {
    this.resetRoom();
    this.app.setDepth(depth);
    await this.relayoutInPlace();
  }

  /** After much was opened or closed: all of it where names can still be read, else what stood in the middle of the window. */
  private async relayoutInPlace(): Promise<void> {
    const { app, view } = this;
    const anchor = view.middle();
    const old = anchor && view.onScreen(anchor);
    if (await app.relayout()) view.stay(anchor, old);
  }

  /** All of it in the window; where that has changed much since, laid out anew for it. */
  async fit(): Promise<void> {
    const { app, view } = this;
    const changed = this.resizeDebounce.isOtherRoom();
    if (changed) {
      app.room = view.room;
      await app.relayout();
    }
    view.fit(!changed);
  }

  private changeDepth(by: number): Promise<void> {
    const now = Math.max(...this.app.roots.map(depthOf), 0);
    return this.setDepth(Math.max(0, now + by));
  }

  async openEverything(): Promise<void> {
    this.resetRoom();
    const whole = this.app.openEverything();
    await this.relayoutInPlace();
    if (!whole) this.say("as much as can be drawn is open; the last parts stay closed");
  }

  /** Bring out what a search finds, coloured by a measure. */
  private ask(query: string, heat: string): void {
    this.search.show(query);
    if (heat) this.app.setHeat(heat);
  }

  /** Lay out again and keep a box where it was on the screen. */
  async refresh(anchor: Box | null): Promise<void> {
    const { app, view } = this;
    const before = anchor && app.scene?.find(anchor);
    const old = before ? app.scene!.rect(before) : null;
    if (!(await app.relayout())) return;
    const after = anchor && app.scene!.find(anchor);
    if (!old || !after) {
      view.redraw();
      return;
    }
    const now = app.scene!.rect(after);
    const { scale } = view.camera;
    view.camera.x += (old.x + old.w / 2 - now.x - now.w / 2) * scale;
    view.camera.y += (old.y - now.y) * scale;
    view.settle(now);
  }

  async onZone(action: "toggle" | "previous" | "next" | "all", box: Box): Promise<void> {
    if (!box.canOpen) return;
    if (action === "toggle") this.app.toggle(box);
    else if (box.kind !== "fold") return;
    else if (action === "all") box.opening = box.opening === "all" ? openingOf(box) : "all";
    else {
      const count = box.children.length;
      box.shown = (box.shown + (action === "next" ? 1 : count - 1)) % count;
      box.opening = "one";
      this.say(box.children[box.shown].label);
    }
    await this.refresh(box);
    this.app.select(box);
  }

  async goNode(node: number): Promise<void> {
    const { app } = this;
    if (!app.roots.some((root) => root.forest.position[node] >= 0)) {
      this.mode.value = "side";
      app.setMode("side");
    }
    if (app.run.isView(node) && !app.views) {
      app.views = true;
      this.say(`${app.run.name(node)} is a view: views are shown now (v hides them)`);
    }
    const box = app.pickNode(node, true);
    if (box && !app.scene?.find(box)) app.spread = 1;
    await this.refresh(null);
    app.select(box, node);
    if (box) this.view.flyToBox(box, true);
  }

  /** Go to the call of a module; with `stay`, the panel that asked for it stays in front. */
  async goScope(scope: number, stay = false, phase: number = Phase.FORWARD): Promise<void> {
    const box = this.app.pickScope(scope, phase);
    if (!box) {
      this.say(`${this.app.run.where(scope)} ran no operation: there is nothing to show`);
      return;
    }
    if (box.isView) this.app.views = true;
    if (!this.app.scene?.find(box)) this.app.spread = 1;
    await this.refresh(null);
    this.staying = stay;
    this.app.select(box);
    this.staying = false;
    this.view.flyToBox(box, true);
  }

  private staying = false;

  private showSide(shown: boolean): void {
    document.body.classList.toggle("no-side", !shown);
    this.view.redraw();
    this.resizeDebounce.soon();
  }

  showTab(name: string): void {
    this.tab = name;
    for (const [other, tab] of this.tabs) tab.setAttribute("aria-selected", String(other === name));
    if (name === "modules") this.modules.show();
    if (name === "summary" && this.app.scene) void this.summary.show();
    replace(
      this.side,
      { summary: this.summary.element, details: this.details.element, modules: this.modules.element }[name],
    );
    document.body.classList.toggle("wide-side", name === "modules");
    this.later();
  }

  /** Show the charts below: "tokens", "memory", "time", several as "memory+time", or none. */
  showDock(names: string): void {
    const wanted = DOCKS.filter(
      (name) => names.split("+").includes(name) && (name !== "tokens" || this.tokens.isKnown),
    );
    if (this.docked.includes("memory") && !wanted.includes("memory")) this.timeline.clear();
    this.docked = wanted.join("+");
    this.dock.hidden = !wanted.length;
    this.dock.classList.toggle("both", wanted.length > 1);
    this.dock.classList.toggle("tokens", this.docked === "tokens");
    for (const [other, tab] of this.dockTabs) tab.setAttribute("aria-pressed", String(wanted.includes(other)));
    const panels = wanted.map((name) => ({ tokens: this.tokens, memory: this.timeline, time: this.flame })[name]!);
    replace(this.dock, this.dockGrip, ...panels.map((panel) => panel.element));
    this.timeline.follows = wanted.includes("memory") && wanted.includes("time");
    for (const panel of panels) panel.show();
    this.view.redraw();
    this.later();
  }

  toggleDock(name: string): void {
    const shown = this.docked.split("+");
    this.showDock((shown.includes(name) ? shown.filter((other) => other !== name) : [...shown, name]).join("+"));
  }

  switchTheme(): void {
    this.app.themeChoice = this.app.theme.dark ? "light" : "dark";
    this.applyTheme();
  }

  applyTheme(): void {
    document.documentElement.dataset.theme = this.app.theme.dark ? "dark" : "light";
    this.app.emit("look");
  }

  private drawLegend(): void {
    replace(this.legend, ...legendOf(this.app));
  }

  say(text: string): void {
    this.toast.textContent = text;
    this.toast.hidden = false;
    clearTimeout(this.toastWait);
    this.toastWait = window.setTimeout(() => (this.toast.hidden = true), 1600);
  }

  private toastWait = 0;

  private isSelected(): boolean {
    const result = this.app.selected !== null || this.app.node >= 0;
    if (!result) this.say("nothing is selected: click a box first");
    return result;
  }

  async copy(): Promise<void> {
    if (!this.isSelected()) return;
    await copyMarkdown(this.app);
    this.say("copied as Markdown");
  }

  private async copyLink(): Promise<void> {
    if (location.protocol === "about:") {
      this.say('inside a notebook there are no links: save the page with t.save("model.html") to have them');
      return;
    }
    this.writeHash();
    try {
      await navigator.clipboard.writeText(location.href);
      this.say("link copied");
    } catch {
      this.say("the address bar has the link");
    }
  }

  private later(): void {
    if (!this.hashReady) return;
    clearTimeout(this.hashWait);
    this.hashWait = window.setTimeout(() => this.writeHash(), 250);
  }

  writeHash(): void {
    const { app, view } = this;
    const panels = { tab: this.tab, sort: this.modules.order, brush: this.timeline.brush?.join("-") ?? "" };
    const hash = encode(app, view.camera, view.size, this.docked, this.search.input.value, panels);
    this.history.record(hash, app.roots.map(snapshot));
  }

  /** One step back or forward in what was shown. */
  undo(by: -1 | 1): void {
    // A change that still waits to be written down is the step that is undone.
    if (by < 0) this.writeHash();
    if (!this.history.go(by)) this.say(by < 0 ? "nothing to undo" : "nothing to redo");
  }

  /** Show a view that was there before. */
  private async show(hash: string, openings: Openings[] | null): Promise<void> {
    clearTimeout(this.hashWait);
    this.hashReady = false;
    this.app.selected = null;
    this.app.node = -1;
    await this.begin(hash, openings);
  }

  /** Show what the address asks for, or the first view; `openings`: which boxes were open, where an address cannot say all. */
  async begin(hash: string, openings: Openings[] | null = null): Promise<void> {
    const { app, view } = this;
    const wanted = decode(hash);
    app.themeChoice = wanted.theme;
    document.documentElement.dataset.theme = app.theme.dark ? "dark" : "light";
    app.views = wanted.views;
    app.wholePath = wanted.path;
    const mode = [...this.mode.options].find((option) => option.value === wanted.mode)?.value ?? "side";
    this.mode.value = mode;
    app.setMode(mode as Mode);
    if (openings) openings.forEach(restore);
    else if (wanted.open === "all") app.openEverything();
    else if (wanted.open) for (const root of app.roots) applyOpen(root, wanted.open);
    if (wanted.node >= 0 && wanted.node < app.run.count) app.pickNode(wanted.node, true);
    else if (wanted.selected)
      for (const root of app.roots)
        eachShown(root, (box) => {
          if (box.key === wanted.selected) app.selected = box;
        });
    app.setHeat(wanted.heat);
    this.drawLegend();
    // A run that writes a text is about its tokens.
    const dock = hash.length > 1 ? wanted.dock : innerHeight >= HIGH ? "tokens" : "";
    if (dock === "tokens") this.showDock(dock);
    app.room = wanted.room ?? view.room;
    app.lower = wanted.lower;
    app.spread = wanted.spread;
    let seen: Box[] = [];
    if (wanted.open || wanted.node >= 0 || wanted.selected) await app.relayout();
    else seen = await openFirstView(app, view);
    if (wanted.heat) app.setHeat(wanted.heat);
    this.showDock(dock);
    if (wanted.brush && wanted.dock.includes("memory")) this.timeline.setBrush(...wanted.brush);
    this.modules.order = wanted.sort;
    this.search.show(wanted.query);
    app.select(app.selected, app.node);
    this.showTab(wanted.tab || "summary");
    if (wanted.at) {
      const [x, y, scale] = wanted.at;
      view.camera = { scale, x: view.size.w / 2 - x * scale, y: view.size.h / 2 - y * scale };
    } else view.begin(false, seen);
    view.drawNow();
    this.hashReady = true;
  }
}
