/** The page of several ranks: lanes, panel and keys around them, and the page of one rank in a frame. */

import { plural } from "../data/text.ts";
import { count, duration } from "../data/units.ts";
import { button, h, replace } from "../dom.ts";
import { DARK, LIGHT } from "../draw/theme.ts";
import { LaneChart, type ChartState, type ViewName } from "./chart.ts";
import { PHASE_COLORS, pick, WAIT_COLOR } from "./colors.ts";
import { WorldData, waitOf, type Lane } from "./data.ts";
import { rankFrame } from "./frame.ts";
import { firstRank, laneOf, meetingOf, summaryOf, type PanelActions } from "./panel.ts";
import { WorldPort } from "./port.ts";

const VIEWS: [ViewName, string, string][] = [
  ["timeline", "Timeline", "Ranks on one clock (1)"],
  ["waited", "Waited", "How long each rank waited at each collective (2)"],
  ["pipeline", "Pipeline", "The schedule of micro-batches (3)"],
];

const KEYS: [string, string][] = [
  ["↑  ↓", "the lane above, the lane below"],
  ["←  →", "the collective before, the one after (of the selected lane)"],
  ["Enter", "open the graph of the selected rank"],
  ["r", "back to all ranks, from a graph too"],
  [",  .", "in a graph: the rank before, the one after"],
  ["1  2  3", "time line, waited, pipeline"],
  ["w", "the longest wait"],
  ["m", "show or hide memory lines"],
  ["p", "show or hide the critical path"],
  ["+  −  f", "zoom in, zoom out, fit all"],
  ["d", "dark or light"],
  ["Esc", "let go of the selection"],
  ["?", "this sheet"],
];

export class WorldPage {
  readonly state: ChartState;
  readonly chart: LaneChart;
  /** The rank whose graph is shown, -1 for none; and its frame. */
  rank = -1;
  frame: HTMLIFrameElement | null = null;
  private theme: "auto" | "light" | "dark" = "auto";
  private readonly side = h("div", { class: "world-side" });
  private readonly views = new Map<ViewName, HTMLButtonElement>();
  private readonly legend = h("div", { class: "legend world-legend" });
  private readonly strip = h("div", { class: "rank-strip", hidden: true });
  private readonly lanesPart = h("main", {});
  private readonly aside = h("aside", { "aria-label": "Facts" });
  private readonly framePart = h("div", { class: "rank-frame", hidden: true });
  private readonly ranks = h("select", { title: "Open the graph of a rank", "aria-label": "Rank" });
  private readonly help = h("dialog", { class: "help", "aria-label": "Keys" });
  private readonly actions: PanelActions = {
    open: (rank, node) => this.open(rank, node),
    selectLane: (lane) => this.selectLane(lane),
    selectMeeting: (meeting) => this.selectMeeting(meeting),
  };

  constructor(readonly data: WorldData) {
    const dark = matchMedia("(prefers-color-scheme: dark)");
    this.state = {
      view: "timeline",
      theme: dark.matches ? DARK : LIGHT,
      lane: -1,
      meeting: -1,
      hiddenAxes: new Set(),
      memory: true,
      path: false,
    };
    this.chart = new LaneChart(data, this.state);
    this.chart.onSelect = (hit) => {
      if (hit.meeting >= 0) this.selectMeeting(hit.meeting);
      else this.selectLane(hit.lane);
    };
    this.chart.onOpen = (hit) => {
      if (hit.lane >= 0) this.open(firstRank(data.lanes[hit.lane]), hit.node >= 0 ? hit.node : undefined);
    };
    this.build();
    this.applyTheme();
    dark.addEventListener("change", () => this.applyTheme());
    document.addEventListener("keydown", (event) => this.onKey(event));
    window.addEventListener("popstate", () => this.readAddress());
    this.readAddress();
  }

  private build(): void {
    const { data } = this;
    const { about } = data;
    const mesh = Object.entries(about.mesh).map(([axis, ranks]) => `${axis} ${count(ranks)}`);
    const problems = about.problems.length + about.more_problems;
    const said = [
      mesh.join(" × "),
      plural(data.meetings.length, "collective"),
      problems ? plural(problems, "problem") : "all agree",
    ];
    const views = h("span", { class: "group views", role: "tablist" });
    for (const [name, label, title] of VIEWS) {
      const tab = button(label, title, () => this.show(name), { role: "tab", "aria-label": label });
      tab.hidden = name === "pipeline" ? !about.chunks.length : name === "waited" && !data.isTimed;
      this.views.set(name, tab);
      views.append(tab);
    }
    replace(
      this.ranks,
      h("option", { value: "" }, "Graph of…"),
      ...data.lanes.map((lane) =>
        h(
          "option",
          { value: String(firstRank(lane)) },
          lane.count > 1 ? `${lane.name} × ${count(lane.count)}` : lane.name,
        ),
      ),
    );
    this.ranks.addEventListener("change", () => {
      const rank = this.ranks.value;
      this.ranks.value = "";
      this.ranks.blur();
      if (rank) this.open(Number(rank));
    });
    const bar = h(
      "header",
      { class: "bar" },
      h(
        "div",
        { class: "brand world-brand", title: data.title },
        h("b", {}, data.title),
        h("span", { class: problems ? "sub error" : "sub" }, said.filter(Boolean).join(" · ")),
      ),
      views,
      h(
        "div",
        { class: "tools" },
        this.ranks,
        h(
          "span",
          { class: "group" },
          button("−", "Zoom out (−)", () => this.chart.zoom(1 / 1.4)),
          button("+", "Zoom in (+)", () => this.chart.zoom(1.4)),
          button("Fit", "Fit all in the window (f)", () => this.chart.fit()),
        ),
        button("◐", "Dark or light (d)", () => this.switchTheme(), { class: "icon" }),
        button("?", "Keys (?)", () => this.help.showModal(), { class: "icon" }),
      ),
    );
    this.lanesPart.append(
      h("div", { class: "stage" }, this.chart.canvas, this.chart.tip),
      h("footer", {}, this.legend),
    );
    this.aside.append(this.side);
    this.help.append(
      h(
        "div",
        { class: "heading" },
        h("h2", {}, "Keys"),
        button("✕", "Close", () => this.help.close(), { class: "icon" }),
      ),
      h(
        "table",
        { class: "facts" },
        ...KEYS.map(([key, text]) => h("tr", {}, h("th", {}, h("kbd", {}, key)), h("td", {}, text))),
      ),
      h(
        "p",
        { class: "sub" },
        "Mouse: drag to move, wheel to zoom (over the names: to scroll), click a lane or a line, double click for the graph.",
      ),
    );
    document.body.classList.add("world");
    document.body.append(bar, this.lanesPart, this.aside, this.strip, this.framePart, this.help);
    this.show("timeline");
  }

  // ------------------------------------------------------------------ what is shown

  show(view: ViewName): void {
    this.state.view = view;
    for (const [name, tab] of this.views) tab.setAttribute("aria-selected", String(name === view));
    this.chart.scroll = 0;
    this.drawLegend();
    this.drawSide();
    this.chart.redraw();
  }

  selectLane(lane: number): void {
    this.state.lane = lane;
    this.state.meeting = -1;
    if (lane >= 0) this.chart.reveal(lane);
    this.drawSide();
    this.chart.redraw();
  }

  selectMeeting(meeting: number): void {
    this.state.meeting = meeting;
    if (meeting >= 0) {
      this.state.hiddenAxes.delete(this.data.meetings[meeting].axis);
      this.chart.revealMeeting(this.data.meetings[meeting]);
      this.drawLegend();
    }
    this.drawSide();
    this.chart.redraw();
  }

  private drawSide(): void {
    const { data, state } = this;
    const meeting = data.meetings[state.meeting];
    const lane = data.lanes[state.lane];
    const head =
      meeting || lane
        ? [button("‹ Summary", "What all ranks come to (Esc)", () => this.letGo(), { class: "back" })]
        : [];
    const body = meeting
      ? meetingOf(data, meeting, this.chart, this.actions)
      : lane
        ? laneOf(data, lane, this.actions)
        : summaryOf(data, this.chart, this.actions);
    replace(this.side, ...head, ...body);
    this.side.scrollTop = 0;
  }

  private letGo(): void {
    this.state.lane = this.state.meeting = -1;
    this.drawSide();
    this.chart.redraw();
  }

  private drawLegend(): void {
    const { data, state } = this;
    const key = (color: string, text: string, cls = ""): HTMLElement => {
      const swatch = h("i", { class: `swatch ${cls}` });
      swatch.style.setProperty("--color", color);
      return h("span", { class: "key" }, swatch, text);
    };
    const { dark } = state.theme;
    const phases = ["forward", "backward", "optimizer"].map((name, i) => key(pick(PHASE_COLORS[i], dark), name));
    const parts: HTMLElement[] = [];
    if (state.view === "pipeline") {
      parts.push(phases[0], phases[1]);
      if (data.about.chunks.some((row) => row[3] === "weights"))
        parts.push(key(pick(PHASE_COLORS[2], dark), "backward, weights"));
      parts.push(h("span", { class: "sub" }, "numbers are micro-batches"));
    } else {
      if (state.view === "timeline") parts.push(...phases);
      else {
        const scale = h("i", { class: "scale" });
        scale.style.background = `linear-gradient(to right, ${state.theme.heat.join(", ")})`;
        parts.push(h("span", { class: "key" }, "waited 0", scale, duration(this.chart.longestWait)));
      }
      if (data.isTimed && state.view === "timeline")
        parts.push(key(pick(WAIT_COLOR, dark), "waiting in a collective", "striped"));
      data.about.axes.forEach((axis, i) => {
        const toggle = button(
          axis,
          `Show or hide collectives on ${axis}`,
          () => {
            if (!state.hiddenAxes.delete(i)) state.hiddenAxes.add(i);
            this.drawLegend();
            this.chart.redraw();
          },
          { class: "axis", "aria-pressed": String(!state.hiddenAxes.has(i)) },
        );
        const swatch = h("i", { class: "swatch line" });
        swatch.style.setProperty("--color", this.chart.axisColor(i));
        toggle.prepend(swatch);
        parts.push(toggle);
      });
      if (data.isTimed) parts.push(h("span", { class: "sub" }, "● the last to come"));
      if (state.view === "timeline") {
        if (data.about.path?.length)
          parts.push(
            this.choice("critical path", "Show or hide the critical path (p)", state.path, () => this.togglePath()),
          );
        parts.push(this.choice("memory", "Show or hide memory lines (m)", state.memory, () => this.toggleMemory()));
      }
    }
    replace(this.legend, ...parts);
  }

  private choice(label: string, title: string, isOn: boolean, act: () => void): HTMLElement {
    return button(label, title, act, { class: "axis", "aria-pressed": String(isOn) });
  }

  toggleMemory(): void {
    this.state.memory = !this.state.memory;
    this.drawLegend();
    this.chart.redraw();
  }

  togglePath(): void {
    this.state.path = !this.state.path;
    this.drawLegend();
    this.chart.redraw();
  }

  // ------------------------------------------------------------------ one rank

  /** Open the graph of a rank, at an operation of it if one is named. */
  open(rank: number, node?: number): void {
    this.writeAddress(`#rank=${rank}${node === undefined ? "" : `&node=${node}`}`);
    this.showRank(rank, node);
  }

  private showRank(rank: number, node?: number): void {
    const lane = this.data.laneOf(rank);
    if (!lane) return;
    this.rank = rank;
    this.state.lane = lane.index;
    const view = new URLSearchParams({ theme: this.state.theme.dark ? "dark" : "light" });
    if (node !== undefined) view.set("node", String(node));
    this.frame = rankFrame(this.data, rank, `#${view.toString()}`);
    this.frame.addEventListener("load", () => this.listenInside());
    replace(this.framePart, this.frame);
    const { lanes } = this.data;
    const place = lane.coordinates.map(([axis, at]) => `${axis} ${at}`).join(" · ");
    const same = lane.count > 1 ? `the same as ${lane.name}` : place;
    replace(
      this.strip,
      button("‹ All ranks", "Back to all ranks (r)", () => this.back(), { class: "back" }),
      h("b", {}, `rank ${rank}`),
      h("span", { class: "sub" }, [same, lane.stage === null ? "" : `stage ${lane.stage}`].filter(Boolean).join(" · ")),
      h(
        "span",
        { class: "group" },
        button("‹", "The rank before (,)", () => this.step(-1), { disabled: lane.index === 0 }),
        button("›", "The rank after (.)", () => this.step(1), { disabled: lane.index === lanes.length - 1 }),
      ),
    );
    this.arrange();
  }

  /** Keys of ours, while the frame has the keyboard; it is out of reach inside a notebook. */
  private listenInside(): void {
    try {
      this.frame?.contentWindow?.addEventListener("keydown", (event) => {
        const target = event.target as HTMLElement;
        if (/^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName) || event.ctrlKey || event.metaKey || event.altKey) return;
        if (event.key === "r") this.back();
        else if (event.key === ",") this.step(-1);
        else if (event.key === ".") this.step(1);
      });
      this.frame?.contentWindow?.focus();
    } catch {
      // the strip above has the same as buttons
    }
  }

  /** The graph of the lane before or after. */
  step(by: number): void {
    const lane = this.data.lanes[(this.data.laneOf(this.rank)?.index ?? 0) + by];
    if (lane) this.open(firstRank(lane));
  }

  /** All ranks again. */
  back(): void {
    this.writeAddress("#");
    this.leave();
  }

  private leave(): void {
    this.rank = -1;
    this.frame = null;
    replace(this.framePart);
    this.arrange();
    this.drawSide();
    this.chart.canvas.focus();
    this.chart.redraw();
  }

  private arrange(): void {
    const isRank = this.rank >= 0;
    document.body.classList.toggle("one-rank", isRank);
    this.strip.hidden = this.framePart.hidden = !isRank;
    this.lanesPart.hidden = this.aside.hidden = isRank;
  }

  private writeAddress(hash: string): void {
    // inside a notebook there is none
    if (location.protocol !== "about:") history.pushState(null, "", hash);
  }

  private readAddress(): void {
    const wanted = new URLSearchParams(location.hash.replace(/^#/, ""));
    const theme = wanted.get("theme");
    if (theme === "dark" || theme === "light") {
      this.theme = theme;
      this.applyTheme();
    }
    const view = VIEWS.find(([name]) => name === wanted.get("view"))?.[0];
    if (view && !this.views.get(view)!.hidden) this.show(view);
    const rank = Number(wanted.get("rank") ?? NaN);
    const node = wanted.has("node") ? Number(wanted.get("node")) : undefined;
    if (Number.isInteger(rank) && this.data.laneOf(rank)) this.showRank(rank, node);
    else if (this.rank >= 0) this.leave();
  }

  // ------------------------------------------------------------------ theme and keys

  setTheme(theme: "light" | "dark"): void {
    this.theme = theme;
    this.applyTheme();
  }

  private switchTheme(): void {
    this.setTheme(this.state.theme.dark ? "light" : "dark");
  }

  private applyTheme(): void {
    const dark = this.theme === "auto" ? matchMedia("(prefers-color-scheme: dark)").matches : this.theme === "dark";
    this.state.theme = dark ? DARK : LIGHT;
    document.documentElement.dataset.theme = dark ? "dark" : "light";
    this.drawLegend();
    this.drawSide();
    this.chart.redraw();
  }

  private onKey(event: KeyboardEvent): void {
    const target = event.target as HTMLElement;
    if (/^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName) || event.ctrlKey || event.metaKey || event.altKey) return;
    if ((event.key === "Enter" || event.key === " ") && target.closest("button")) return;
    if (this.help.open) return;
    const act = this.rank >= 0 ? this.rankKeys()[event.key] : this.keys()[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  }

  private rankKeys(): Record<string, () => void> {
    return { r: () => this.back(), Escape: () => this.back(), ",": () => this.step(-1), ".": () => this.step(1) };
  }

  private keys(): Record<string, () => void> {
    const { chart } = this;
    const view = (name: ViewName) => () => {
      if (!this.views.get(name)!.hidden) this.show(name);
    };
    return {
      ArrowUp: () => this.walk(-1),
      ArrowDown: () => this.walk(1),
      ArrowLeft: () => this.along(-1),
      ArrowRight: () => this.along(1),
      Enter: () => this.openSelected(),
      r: () => this.letGo(),
      "1": view("timeline"),
      "2": view("waited"),
      "3": view("pipeline"),
      w: () => this.longestWait(),
      m: () => this.toggleMemory(),
      p: () => this.togglePath(),
      "+": () => chart.zoom(1.4),
      "=": () => chart.zoom(1.4),
      "-": () => chart.zoom(1 / 1.4),
      f: () => chart.fit(),
      d: () => this.switchTheme(),
      Escape: () => this.letGo(),
      "?": () => this.help.showModal(),
    };
  }

  /** The lane above or below. */
  private walk(by: number): void {
    const rows = this.chart.rows;
    const at = rows.findIndex((lane) => lane.index === this.state.lane);
    const next = rows[at < 0 ? (by > 0 ? 0 : rows.length - 1) : at + by];
    if (next) this.selectLane(next.index);
  }

  /** The meeting before or after, of the lane that is selected. */
  private along(by: number): void {
    const { data, state } = this;
    const own = state.lane >= 0 ? this.chart.byLane[state.lane].map(([meeting]) => meeting) : data.meetings;
    const at = own.findIndex((meeting) => meeting.index === state.meeting);
    const next = own[at < 0 ? (by > 0 ? 0 : own.length - 1) : at + by];
    if (next) this.selectMeeting(next.index);
  }

  private openSelected(): void {
    const { data, state } = this;
    const meeting = data.meetings[state.meeting];
    const part = meeting?.parts.find(({ lane }) => lane === state.lane) ?? meeting?.parts[0];
    const lane: Lane | undefined = data.lanes[part ? part.lane : Math.max(0, state.lane)];
    if (lane) this.open(firstRank(lane), part?.node);
  }

  /** The meeting at which a rank waited longest. */
  private longestWait(): void {
    let [longest, least] = [-1, 0];
    for (const meeting of this.data.meetings)
      for (const part of meeting.parts)
        if ((waitOf(part) ?? 0) > least) [longest, least] = [meeting.index, waitOf(part)!];
    if (longest >= 0) this.selectMeeting(longest);
  }
}

export async function beginWorld(): Promise<void> {
  const started = performance.now();
  const port = new WorldPort();
  (window as unknown as { torchVis: WorldPort }).torchVis = port;
  const waiting = h("div", { class: "waiting" }, "Reading the ranks…");
  document.body.append(waiting);
  const data = await WorldData.read();
  const page = new WorldPage(data);
  waiting.remove();
  page.chart.draw();
  port.connect(page, performance.now() - started);
}
