/** Ranks below each other on one clock: what they run, where they meet and wait, and the memory that they hold. */

import { duration, percent, size } from "../data/units.ts";
import { fitCanvas, h } from "../dom.ts";
import { mixed, type Theme } from "../draw/theme.ts";
import { FONT, Ruler } from "../draw/text.ts";
import { AXIS_COLORS, PHASE_COLORS, pick, WAIT_COLOR } from "./colors.ts";
import { waitOf, type Lane, type Meeting, type Part, type WorldData } from "./data.ts";

export type ViewName = "timeline" | "waited" | "pipeline";

export const GUTTER = 196;
const TOP = 30; // the clock above the lanes
const BOTTOM = 8;
const RIGHT = 14;
const LEAST = 50; // pixels of a lane
const MOST = 190;
const BAND = 0.46; // of a lane: what it runs; below it, the memory line
const REACH = 7; // pixels from a line within which it is meant
const CROWDED = 1500; // lines in sight from which on they step back
const SMALL = 11;
const WHATS = ["forward", "backward", "weights"];

export interface ChartState {
  view: ViewName;
  theme: Theme;
  lane: number;
  meeting: number;
  hiddenAxes: Set<number>;
  memory: boolean;
  path: boolean;
}

export interface Rect {
  x: number;
  y: number;
  w: number;
  h: number;
}

export interface Hit {
  lane: number;
  meeting: number;
  node: number;
  at: number;
}

export class LaneChart {
  readonly canvas = h("canvas", { class: "lanes", tabindex: "0", "aria-label": "Ranks on one clock" });
  readonly tip = h("div", { class: "tip", hidden: true });
  /** The span of the clock that is shown; of the heat map, of meetings in order. */
  private span: [from: number, to: number];
  private waitedSpan: [from: number, to: number];
  scroll = 0;
  private frame = 0;
  private hovered: Hit | null = null;
  private readonly small = new Ruler(`${SMALL}px ${FONT}`);
  private readonly bold = new Ruler(`600 13px ${FONT}`);
  private readonly names = new Map<number, (node: number) => string>();
  readonly longestWait: number;
  /** By lane, its operations in order of time. */
  private readonly order = new Map<number, Int32Array>();
  /** By lane, the meetings that it takes part in. */
  readonly byLane: [Meeting, Part][][];
  onSelect: (hit: Hit) => void = () => {};
  onOpen: (hit: Hit) => void = () => {};

  constructor(
    readonly data: WorldData,
    private readonly state: ChartState,
  ) {
    this.span = [data.from, data.to];
    this.waitedSpan = [0, Math.max(1, data.meetings.length)];
    this.longestWait = data.meetings.reduce(
      (most, meeting) => meeting.parts.reduce((longest, part) => Math.max(longest, waitOf(part) ?? 0), most),
      0,
    );
    this.byLane = data.lanes.map(() => []);
    for (const meeting of data.meetings) for (const part of meeting.parts) this.byLane[part.lane].push([meeting, part]);
    new ResizeObserver(() => this.redraw()).observe(this.canvas);
    this.listen();
  }

  // ------------------------------------------------------------------ places

  private get isWaited(): boolean {
    return this.state.view === "waited";
  }

  get shown(): [from: number, to: number] {
    return this.isWaited ? this.waitedSpan : this.span;
  }

  private get whole(): [from: number, to: number] {
    return this.isWaited ? [0, Math.max(1, this.data.meetings.length)] : [this.data.from, this.data.to];
  }

  show(from: number, to: number): void {
    const [first, last] = this.whole;
    const least = this.isWaited ? 4 : Math.max(this.data.isTimed ? 200 : 4, (last - first) * 1e-7);
    const wide = Math.min(last - first, Math.max(least, to - from));
    const begin = Math.min(Math.max(first, from), last - wide);
    if (this.isWaited) this.waitedSpan = [begin, begin + wide];
    else this.span = [begin, begin + wide];
    this.redraw();
  }

  fit(): void {
    this.scroll = 0;
    this.show(...this.whole);
  }

  zoom(factor: number, about = 0.5): void {
    const [from, to] = this.shown;
    const at = from + about * (to - from);
    this.show(at - (at - from) / factor, at + (to - at) / factor);
  }

  pan(share: number): void {
    const [from, to] = this.shown;
    this.show(from + share * (to - from), to + share * (to - from));
  }

  private get wide(): number {
    return Math.max(1, this.canvas.clientWidth - GUTTER - RIGHT);
  }

  private x(at: number): number {
    const [from, to] = this.shown;
    return GUTTER + ((at - from) / (to - from)) * this.wide;
  }

  private atX(x: number): number {
    const [from, to] = this.shown;
    return from + ((x - GUTTER) / this.wide) * (to - from);
  }

  /** The lanes that this view has rows for. */
  get rows(): Lane[] {
    if (this.state.view !== "pipeline") return this.data.lanes;
    const lanes = new Set(this.data.about.chunks.map(([lane]) => lane));
    return this.data.lanes.filter((lane) => lanes.has(lane.index));
  }

  private get rowHeight(): number {
    const room = this.canvas.clientHeight - TOP - BOTTOM;
    return Math.min(MOST, Math.max(LEAST, Math.floor(room / Math.max(1, this.rows.length))));
  }

  private get most(): number {
    return Math.max(0, this.rows.length * this.rowHeight + TOP + BOTTOM - this.canvas.clientHeight);
  }

  scrollTo(y: number): void {
    this.scroll = Math.min(this.most, Math.max(0, y));
    this.redraw();
  }

  private y(row: number): number {
    return TOP + row * this.rowHeight - this.scroll;
  }

  /** Where the band of a lane is, in pixels of the canvas; null for one that has no row. */
  band(lane: number): Rect | null {
    const row = this.rows.findIndex((other) => other.index === lane);
    if (row < 0) return null;
    const height = this.rowHeight;
    const share = this.state.view === "timeline" && this.state.memory ? BAND : 0.72;
    return { x: GUTTER, y: this.y(row) + Math.round(height * 0.1), w: this.wide, h: Math.round(height * share) };
  }

  /** Bring a lane into sight. */
  reveal(lane: number): void {
    const row = this.rows.findIndex((other) => other.index === lane);
    if (row < 0) return;
    const top = row * this.rowHeight;
    const room = this.canvas.clientHeight - TOP - BOTTOM;
    if (top < this.scroll) this.scrollTo(top);
    else if (top + this.rowHeight > this.scroll + room) this.scrollTo(top + this.rowHeight - room);
  }

  /** Bring a meeting into sight. */
  revealMeeting(meeting: Meeting): void {
    const [from, to] = this.shown;
    const [begin, end] = this.isWaited ? [meeting.index, meeting.index + 1] : [meeting.from, meeting.to];
    if (begin >= from && end <= to) return;
    const wide = Math.max(to - from, (end - begin) * 1.4);
    this.show((begin + end) / 2 - wide / 2, (begin + end) / 2 + wide / 2);
  }

  axisColor(axis: number): string {
    return pick(AXIS_COLORS[axis % AXIS_COLORS.length], this.state.theme.dark);
  }

  // ------------------------------------------------------------------ the pointer

  hitAt(x: number, y: number): Hit {
    const row = Math.floor((y - TOP + this.scroll) / this.rowHeight);
    const lane = y < TOP ? -1 : (this.rows[row]?.index ?? -1);
    const hit: Hit = { lane, meeting: -1, node: -1, at: x < GUTTER ? NaN : this.atX(x) };
    if (x < GUTTER || y < TOP) return hit;
    if (this.isWaited) {
      const index = Math.floor(this.atX(x));
      if (index >= 0 && index < this.data.meetings.length) hit.meeting = index;
      return hit;
    }
    if (this.state.view === "timeline") hit.meeting = this.meetingAt(x, y);
    if (lane >= 0) hit.node = this.nodeAt(this.data.lanes[lane], hit.at);
    return hit;
  }

  /** The line across lanes that is nearest to a place. */
  private meetingAt(x: number, y: number): number {
    let nearest = -1;
    let least = REACH;
    for (const meeting of this.inSight()) {
      const points = this.points(meeting);
      for (let i = 0; i < points.length; i++) {
        const away =
          i + 1 < points.length
            ? distance(x, y, points[i], points[i + 1])
            : Math.hypot(points[i][0] - x, points[i][1] - y);
        if (away < least) [nearest, least] = [meeting.index, away];
      }
    }
    return nearest;
  }

  private sorted(lane: Lane): Int32Array {
    let order = this.order.get(lane.index);
    if (!order) {
      order = Int32Array.from({ length: lane.start.length }, (_, node) => node).sort(
        (a, b) => lane.start[a] - lane.start[b],
      );
      this.order.set(lane.index, order);
    }
    return order;
  }

  /** The operation that runs at a moment, or -1. */
  private nodeAt(lane: Lane, at: number): number {
    const order = this.sorted(lane);
    const slack = (this.shown[1] - this.shown[0]) / this.wide;
    let [low, high] = [0, order.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (lane.start[order[middle]] <= at) low = middle + 1;
      else high = middle;
    }
    for (let i = low - 1; i >= Math.max(0, low - 4); i--) {
      const node = order[i];
      if (at <= lane.start[node] + lane.time[node] + slack) return node;
    }
    return -1;
  }

  private listen(): void {
    const { canvas } = this;
    let from: { x: number; y: number; span: [number, number]; scroll: number } | null = null;
    let moved = false;
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      from = { x: event.offsetX, y: event.offsetY, span: [...this.shown], scroll: this.scroll };
      moved = false;
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!from) {
        this.hover(event.offsetX, event.offsetY);
        return;
      }
      moved ||= Math.hypot(event.offsetX - from.x, event.offsetY - from.y) > 3;
      if (!moved) return;
      this.hover(-1, -1);
      const by = ((from.x - event.offsetX) / this.wide) * (from.span[1] - from.span[0]);
      this.scroll = Math.min(this.most, Math.max(0, from.scroll + from.y - event.offsetY));
      this.show(from.span[0] + by, from.span[1] + by);
    });
    canvas.addEventListener("pointerup", (event) => {
      if (from && !moved) this.onSelect(this.hitAt(event.offsetX, event.offsetY));
      from = null;
    });
    canvas.addEventListener("pointerleave", () => this.hover(-1, -1));
    canvas.addEventListener("dblclick", (event) => this.onOpen(this.hitAt(event.offsetX, event.offsetY)));
    canvas.addEventListener(
      "wheel",
      (event) => {
        event.preventDefault();
        if (event.offsetX < GUTTER) this.scrollTo(this.scroll + event.deltaY);
        else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY))
          this.pan((event.deltaX || event.deltaY) / 1000);
        else this.zoom(Math.exp(-event.deltaY / 400), (event.offsetX - GUTTER) / this.wide);
      },
      { passive: false },
    );
  }

  private hover(x: number, y: number): void {
    const hit = x < 0 ? null : this.hitAt(x, y);
    const isSame = hit?.meeting === this.hovered?.meeting && hit?.lane === this.hovered?.lane;
    this.hovered = hit;
    const text = hit ? this.words(hit) : "";
    this.tip.hidden = !text;
    if (text) {
      this.tip.textContent = text;
      const left = Math.min(x + 14, this.canvas.clientWidth - this.tip.offsetWidth - 6);
      const below = y + 18 + this.tip.offsetHeight < this.canvas.clientHeight;
      this.tip.style.left = `${Math.max(4, left)}px`;
      this.tip.style.top = `${below ? y + 18 : Math.max(4, y - this.tip.offsetHeight - 10)}px`;
    }
    this.canvas.style.cursor = hit && (hit.meeting >= 0 || !Number.isFinite(hit.at)) ? "pointer" : "default";
    if (!isSame) this.redraw();
  }

  /** What is under the pointer. */
  private words(hit: Hit): string {
    if (hit.meeting >= 0) return this.meetingWords(this.data.meetings[hit.meeting], this.isWaited ? hit.lane : -1);
    const lane = this.data.lanes[hit.lane];
    if (!lane) return "";
    if (!Number.isFinite(hit.at)) return `${lane.name}\nDouble click or Enter: its graph`;
    if (this.state.view === "pipeline") {
      const chunk = this.data.about.chunks.find(
        ([index, , , , start, time]) => index === lane.index && start <= hit.at && hit.at <= start + time,
      );
      if (!chunk) return `${lane.name} is idle`;
      const amount = this.data.isTimed ? duration(chunk[5]) : `${chunk[5]} operations`;
      return `Micro-batch ${chunk[2]}, ${chunk[3]}\nstage ${chunk[1]} on ${lane.name}\n${amount}`;
    }
    if (hit.node < 0) return "";
    const name = this.nameOf(lane, hit.node);
    const live = lane.live ? `\n${size(lane.live[hit.node])} alive` : "";
    const time = this.data.isTimed ? `, ${duration(lane.time[hit.node])}` : "";
    return `${name || "operation"} (${hit.node.toLocaleString("en-US")})\n${lane.name}${time}${live}`;
  }

  /** What an operation is called; read when it is first asked for. */
  private nameOf(lane: Lane, node: number): string {
    const names = this.names.get(lane.trace);
    if (names) return names(node);
    this.names.set(lane.trace, () => "");
    void this.data.operations(lane).then((read) => this.names.set(lane.trace, read));
    return "";
  }

  meetingWords(meeting: Meeting, lane: number): string {
    const { axes } = this.data.about;
    const amount = meeting.bytes >= 0 ? ` of ${size(meeting.bytes)}` : "";
    const lines = [`${meeting.kind}${amount} on ${axes[meeting.axis]}`, meeting.place];
    const own = meeting.parts.find((part) => part.lane === lane);
    if (lane >= 0) {
      const waited = own ? waitOf(own) : null;
      const words = own
        ? waited === null
          ? "nobody was seen waiting"
          : `waited ${duration(waited)}`
        : "takes no part";
      lines.push(`${this.data.lanes[lane].name}: ${words}`);
    }
    if (meeting.last >= 0 && meeting.parts.length > 1 && this.data.isTimed) {
      const late = meeting.parts[meeting.last];
      lines.push(`last: ${this.data.lanes[late.lane].name}, ${duration(late.start - meeting.from)} after the first`);
    }
    return lines.join("\n");
  }

  // ------------------------------------------------------------------ drawing

  redraw(): void {
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      this.draw();
    });
  }

  draw(): void {
    if (!this.canvas.clientWidth) return;
    const { width, height, ratio } = fitCanvas(this.canvas);
    const context = this.canvas.getContext("2d")!;
    const { theme } = this.state;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.fillStyle = theme.ground;
    context.fillRect(0, 0, width, height);
    this.scroll = Math.min(this.most, this.scroll);
    context.save();
    context.beginPath();
    context.rect(0, TOP, width, height - TOP);
    context.clip();
    this.rows.forEach((lane, row) => this.plate(context, lane, row, width));
    context.save();
    context.beginPath();
    context.rect(GUTTER, TOP, width - GUTTER, height - TOP);
    context.clip();
    if (this.state.view === "waited") this.heat(context);
    else {
      this.rows.forEach((lane, row) => {
        if (this.y(row) > height || this.y(row) + this.rowHeight < TOP) return;
        if (this.state.view === "pipeline") this.chunks(context, lane);
        else this.operations(context, lane, row);
      });
      if (this.state.view === "timeline") {
        if (this.state.path) this.path(context);
        this.meetings(context);
      }
    }
    context.restore();
    this.rows.forEach((lane, row) => this.label(context, lane, row));
    context.restore();
    this.clock(context, width);
  }

  /** The ground of a lane. */
  private plate(context: CanvasRenderingContext2D, lane: Lane, row: number, width: number): void {
    const { theme } = this.state;
    const [y, height] = [this.y(row), this.rowHeight];
    context.fillStyle = lane.index === this.state.lane ? theme.plate : theme.frames[row % 2];
    context.fillRect(0, y, width, height);
    if (lane.index === this.state.lane) {
      context.fillStyle = theme.accent;
      context.fillRect(0, y, 3, height);
    }
    context.fillStyle = theme.frameLine;
    context.fillRect(0, y + height - 1, width, 1);
  }

  /** What a lane is called, where its ranks are, and its figures. */
  private label(context: CanvasRenderingContext2D, lane: Lane, row: number): void {
    const { theme } = this.state;
    const [y, height] = [this.y(row), this.rowHeight];
    if (y > this.canvas.clientHeight || y + height < TOP) return;
    const room = GUTTER - 22;
    context.fillStyle = lane.index === this.state.lane ? theme.plate : theme.frames[row % 2];
    context.fillRect(3, y, GUTTER - 4, height - 1);
    context.textAlign = "left";
    context.textBaseline = "alphabetic";
    const place = lane.count === 1 ? lane.coordinates.map(([axis, at]) => `${axis} ${at}`) : [];
    const stage = `stage ${lane.stage}`;
    if (lane.stage !== null && !place.includes(stage)) place.push(stage);
    const figures: string[] = [];
    if (this.state.view === "pipeline") {
      const idle = this.data.about.idle?.find(([index]) => index === lane.index);
      if (idle) figures.push(`idle ${percent(idle[1])}`);
    } else {
      if (lane.peak_bytes !== null && this.state.view === "timeline") figures.push(`peak ${size(lane.peak_bytes)}`);
      if (lane.waited !== null && (this.isWaited || height >= 62))
        figures.push(lane.waited ? `waited for others ${duration(lane.waited)}` : "waited for nobody");
    }
    const fits = height >= 20 + 15 * (figures.length + (place.length ? 1 : 0));
    const lines = [place.join(" · "), ...(fits ? figures : [figures.join(" · ")])].filter(Boolean);
    const [step, count] = [15, 1 + lines.length];
    let at = y + height / 2 - ((count - 1) * step) / 2 + 4;
    context.fillStyle = theme.ink;
    context.font = `600 13px ${FONT}`;
    const times = lane.count > 1 ? ` × ${lane.count.toLocaleString("en-US")}` : "";
    context.fillText(this.bold.fit(lane.name + times, room), 12, at);
    context.font = `${SMALL}px ${FONT}`;
    context.fillStyle = theme.faint;
    for (const line of lines) context.fillText(this.small.fit(line, room), 12, (at += step));
  }

  /** The clock above; of the heat map, the axis of each meeting. */
  private clock(context: CanvasRenderingContext2D, width: number): void {
    const { theme } = this.state;
    context.fillStyle = theme.ground;
    context.fillRect(0, 0, width, TOP);
    context.fillStyle = theme.frameLine;
    context.fillRect(0, TOP - 1, width, 1);
    context.font = `${SMALL}px ${FONT}`;
    context.textBaseline = "middle";
    context.fillStyle = theme.faint;
    context.textAlign = "left";
    const [from, to] = this.shown;
    const what = this.isWaited
      ? "collectives in order"
      : this.data.isTimed
        ? "time on one clock"
        : "operations in order";
    context.fillText(what, 12, TOP / 2);
    if (this.isWaited) {
      const each = this.wide / (to - from);
      for (const meeting of this.data.meetings) {
        const x = this.x(meeting.index);
        if (x + each < GUTTER || x > width) continue;
        context.fillStyle = this.axisColor(meeting.axis);
        context.fillRect(Math.max(GUTTER, x), TOP - 8, Math.max(1, each - (each > 4 ? 1 : 0)), 5);
      }
      return;
    }
    const zero = this.data.from;
    const step = nice((to - from) / Math.max(2, this.wide / 100));
    for (let tick = Math.ceil((from - zero) / step) * step; tick <= to - zero; tick += step) {
      const x = this.x(tick + zero);
      const text = this.data.isTimed ? duration(tick) : tick.toLocaleString("en-US");
      context.fillStyle = theme.frameLine;
      context.fillRect(Math.round(x), TOP - 6, 1, 6);
      context.fillStyle = theme.faint;
      context.textAlign = x < GUTTER + 8 ? "left" : x > width - 40 ? "right" : "center";
      context.fillText(text, x, TOP / 2 - 1);
    }
  }

  /** What a lane runs, where it stands waiting, and its memory. */
  private operations(context: CanvasRenderingContext2D, lane: Lane, row: number): void {
    const { theme } = this.state;
    const band = this.band(lane.index)!;
    const [from, to] = this.span;
    const columns = Math.ceil(this.wide);
    // for each column of pixels the phase that takes most of it, and the bytes alive
    const filled = [0, 1, 2].map(() => new Float32Array(columns));
    const live = lane.live ? new Float64Array(columns).fill(-1) : null;
    const order = this.sorted(lane);
    const each = (to - from) / this.wide;
    for (const node of order) {
      const [start, end] = [lane.start[node], lane.start[node] + lane.time[node]];
      if (end < from || start > to) continue;
      const first = Math.max(0, Math.floor((start - from) / each));
      const last = Math.min(columns - 1, Math.floor((end - from) / each));
      const shares = filled[Math.min(2, lane.phase[node])];
      for (let column = first; column <= last; column++) {
        const low = from + column * each;
        shares[column] += Math.max(0, Math.min(end, low + each) - Math.max(start, low)) / each;
      }
      if (live && last >= 0 && last < columns) live[last] = Math.max(live[last], lane.live![node]);
    }
    for (let column = 0; column < columns; column++) {
      const sum = filled[0][column] + filled[1][column] + filled[2][column];
      if (sum <= 0) continue;
      const phase = [0, 1, 2].reduce((a, b) => (filled[b][column] > filled[a][column] ? b : a));
      // what is busy for a part of a pixel is paler, never gone
      context.globalAlpha = 0.35 + 0.65 * Math.min(1, sum);
      context.fillStyle = pick(PHASE_COLORS[phase], theme.dark);
      context.fillRect(GUTTER + column, band.y, 1.02, band.h);
    }
    context.globalAlpha = 1;
    this.waits(context, lane, band);
    if (live && this.state.memory) this.memoryLine(context, lane, live, row, band);
  }

  /** Stretches in which a rank stood waiting, hatched. */
  private waits(context: CanvasRenderingContext2D, lane: Lane, band: Rect): void {
    const color = pick(WAIT_COLOR, this.state.theme.dark);
    for (const [meeting, part] of this.byLane[lane.index]) {
      if (!waitOf(part) || this.state.hiddenAxes.has(meeting.axis)) continue;
      const [left, right] = [this.x(part.waiting), this.x(part.done)];
      if (right - left < 1 || right < GUTTER || left > GUTTER + this.wide) continue;
      hatched(context, { x: left, y: band.y, w: right - left, h: band.h }, color, this.state.theme.ground);
    }
  }

  private memoryLine(context: CanvasRenderingContext2D, lane: Lane, live: Float64Array, row: number, band: Rect): void {
    const { theme } = this.state;
    const top = band.y + band.h + 5;
    const bottom = this.y(row) + this.rowHeight - 5;
    const high = bottom - top;
    if (high < 8 || !this.data.peak) return;
    let held = 0;
    // what was alive before the first operation in sight
    for (const node of this.sorted(lane)) {
      if (lane.start[node] + lane.time[node] > this.span[0]) break;
      held = lane.live![node];
    }
    context.beginPath();
    context.moveTo(GUTTER, bottom);
    const end = Math.min(live.length, Math.ceil(this.x(lane.to) - GUTTER) + 1);
    for (let column = 0; column < end; column++) {
      if (live[column] >= 0) held = live[column];
      context.lineTo(GUTTER + column, bottom - (held / this.data.peak) * high);
    }
    context.lineTo(GUTTER + Math.max(0, end - 1), bottom);
    context.fillStyle = `${theme.producer}33`;
    context.strokeStyle = theme.producer;
    context.lineWidth = 1;
    context.fill();
    context.stroke();
  }

  private inSight(): Meeting[] {
    const [from, to] = this.span;
    return this.data.meetings.filter(
      (meeting) => meeting.to >= from && meeting.from <= to && !this.state.hiddenAxes.has(meeting.axis),
    );
  }

  /** Where a meeting touches the lanes of its members, in the order of lanes. */
  private points(meeting: Meeting): [x: number, y: number, part: Part][] {
    return meeting.parts
      .filter((part) => part.start >= 0)
      .map((part): [number, number, Part] => {
        const band = this.band(part.lane)!;
        return [this.x(part.start), band.y + band.h / 2, part];
      })
      .sort((a, b) => a[1] - b[1]);
  }

  private meetings(context: CanvasRenderingContext2D): void {
    const all = this.inSight();
    const isCrowded = all.length > CROWDED / Math.max(1, 1280 / this.wide);
    for (const meeting of all) this.line(context, meeting, isCrowded ? 0.25 : 0.8, 1.25);
    for (const index of [this.hovered?.meeting ?? -1, this.state.meeting]) {
      const meeting = this.data.meetings[index];
      if (meeting && all.includes(meeting)) this.line(context, meeting, 1, 3);
    }
  }

  private line(context: CanvasRenderingContext2D, meeting: Meeting, alpha: number, width: number): void {
    const points = this.points(meeting);
    if (!points.length) return;
    const { theme } = this.state;
    const color = this.axisColor(meeting.axis);
    context.globalAlpha = alpha;
    context.strokeStyle = color;
    context.fillStyle = color;
    context.lineWidth = width;
    context.beginPath();
    points.forEach(([x, y], i) => (i ? context.lineTo(x, y) : context.moveTo(x, y)));
    context.stroke();
    const late = meeting.last >= 0 && meeting.parts.length > 1 ? meeting.parts[meeting.last] : null;
    const band = this.band(meeting.parts[0].lane)!;
    for (const [x, y, part] of points) {
      const high = Math.max(6, band.h * 0.5);
      context.fillRect(x - width / 2, y - high / 2, width, high);
      if (part !== late) continue;
      // the one that all others waited for
      context.beginPath();
      context.arc(x, y, width > 2 ? 6 : 4, 0, 2 * Math.PI);
      context.fill();
      context.lineWidth = 1.5;
      context.strokeStyle = theme.ground;
      context.stroke();
      context.strokeStyle = color;
      context.lineWidth = width;
    }
    context.globalAlpha = 1;
  }

  /** The path that decides how long the step takes: along lanes, and from one to the next. */
  private path(context: CanvasRenderingContext2D): void {
    const { theme } = this.state;
    context.strokeStyle = theme.ink;
    context.lineWidth = 2.5;
    context.lineJoin = "round";
    context.beginPath();
    (this.data.about.path ?? []).forEach(([lane, , start, time], i) => {
      const band = this.band(lane)!;
      const y = band.y - 2;
      if (i) context.lineTo(this.x(start), y);
      else context.moveTo(this.x(start), y);
      context.lineTo(this.x(start + time), y);
    });
    context.stroke();
  }

  /** The micro-batches of a lane. */
  private chunks(context: CanvasRenderingContext2D, lane: Lane): void {
    const { theme } = this.state;
    const band = this.band(lane.index)!;
    const stages = [...new Set(this.data.about.chunks.filter(([index]) => index === lane.index).map((row) => row[1]))];
    context.font = `600 ${SMALL}px ${FONT}`;
    context.textBaseline = "middle";
    context.textAlign = "center";
    for (const [index, stage, microbatch, what, start, time] of this.data.about.chunks) {
      if (index !== lane.index) continue;
      const [left, right] = [this.x(start), this.x(start + time)];
      if (right < GUTTER || left > GUTTER + this.wide) continue;
      const place = WHATS.indexOf(what);
      const wide = Math.max(1.5, right - left);
      context.globalAlpha = stages.indexOf(stage) % 2 ? 0.72 : 1;
      context.fillStyle = place < 2 ? pick(PHASE_COLORS[place], theme.dark) : pick(PHASE_COLORS[2], theme.dark);
      context.fillRect(left, band.y, wide, band.h);
      context.globalAlpha = 1;
      context.strokeStyle = theme.ground;
      context.lineWidth = 1;
      context.strokeRect(left + 0.5, band.y + 0.5, Math.max(0.5, wide - 1), band.h - 1);
      const text = stages.length > 1 ? `${microbatch}·${stage}` : String(microbatch);
      if (this.small.width(text) + 6 > wide) continue;
      context.fillStyle = theme.dark ? "#10131a" : "#12151b";
      context.fillText(text, left + wide / 2, band.y + band.h / 2 + 1);
    }
  }

  /** How long each rank waited at each meeting. */
  private heat(context: CanvasRenderingContext2D): void {
    const { theme } = this.state;
    const [from, to] = this.waitedSpan;
    const each = this.wide / (to - from);
    this.rows.forEach((lane, row) => {
      const [y, height] = [this.y(row) + 3, this.rowHeight - 7];
      if (y > this.canvas.clientHeight || y + height < TOP) return;
      for (const [meeting, part] of this.byLane[lane.index]) {
        const x = this.x(meeting.index);
        if (x + each < GUTTER || x > GUTTER + this.wide) continue;
        const waited = waitOf(part);
        const wide = Math.max(1, each - (each > 4 ? 1 : 0));
        if (waited === null) hatched(context, { x, y, w: wide, h: height }, theme.faint, theme.ground);
        else {
          context.fillStyle = mixed(theme.heat, this.longestWait ? Math.sqrt(waited / this.longestWait) : 0);
          context.fillRect(x, y, wide, height);
        }
        const isLast = meeting.last >= 0 && meeting.parts.length > 1 && meeting.parts[meeting.last] === part;
        if (isLast && wide > 5) {
          context.fillStyle = this.axisColor(meeting.axis);
          context.beginPath();
          context.arc(x + wide / 2, y + height / 2, Math.min(4, wide / 3), 0, 2 * Math.PI);
          context.fill();
        }
        if (meeting.index === this.state.meeting || meeting.index === this.hovered?.meeting) {
          context.strokeStyle = theme.accent;
          context.lineWidth = 2;
          context.strokeRect(x, y, wide, height);
        }
      }
    });
  }
}

function distance(x: number, y: number, a: [number, number, ...unknown[]], b: [number, number, ...unknown[]]): number {
  const [dx, dy] = [b[0] - a[0], b[1] - a[1]];
  const along = dx || dy ? Math.min(1, Math.max(0, ((x - a[0]) * dx + (y - a[1]) * dy) / (dx * dx + dy * dy))) : 0;
  return Math.hypot(a[0] + along * dx - x, a[1] + along * dy - y);
}

/** A rectangle with stripes: time in which nothing was done. */
function hatched(context: CanvasRenderingContext2D, { x, y, w, h }: Rect, color: string, ground: string): void {
  context.save();
  context.beginPath();
  context.rect(x, y, w, h);
  context.clip();
  context.fillStyle = ground;
  context.fillRect(x, y, w, h);
  context.globalAlpha = 0.1;
  context.fillStyle = color;
  context.fillRect(x, y, w, h);
  context.globalAlpha = 0.5;
  context.strokeStyle = color;
  context.lineWidth = 1;
  context.beginPath();
  const left = Math.max(0, x - (x % 6));
  const right = Math.min(x + w, left + 6000);
  for (let at = left - h; at < right; at += 6) {
    context.moveTo(at, y + h);
    context.lineTo(at + h, y);
  }
  context.stroke();
  context.restore();
}

/** The smallest of 1, 2, 5, 10, … that is not under a number. */
function nice(least: number): number {
  const unit = 10 ** Math.floor(Math.log10(Math.max(least, 1e-9)));
  return [1, 2, 5, 10].map((factor) => factor * unit).find((step) => step >= least * (1 - 1e-9)) ?? unit * 10;
}
