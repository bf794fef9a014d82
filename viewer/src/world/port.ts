/**
 * `window.torchVis` on the page of several ranks, for tests and for scripts of the person who opened it.
 *
 *     await torchVis.ready;
 *     torchVis.lanes().map((lane) => [lane.name, lane.waited_ns]);
 *     torchVis.show("waited");
 *     await torchVis.open(3); // the graph of rank 3; its own port is then torchVis.rank()
 *
 * Everything that is returned is plain data, as it is at that moment. Places are in pixels of the window.
 */

import type { Port } from "../port.ts";
import type { Rect, ViewName } from "./chart.ts";
import { waitOf, type Meeting } from "./data.ts";
import type { WorldPage } from "./page.ts";

export interface DrawnLane {
  name: string;
  /** How many ranks it stands for, and which: first and last of each stretch. */
  count: number;
  ranks: [number, number][];
  operations: number;
  peak_bytes: number | null;
  waited_ns: number | null;
  imposed_ns: number | null;
  /** Where its band is; null for a lane without a row in this view. */
  rect: Rect | null;
}

export interface DrawnMeeting {
  kind: string;
  axis: string;
  place: string;
  bytes: number | null;
  color: string;
  /** By lane: when it came, and how long it waited; null for what is not known. */
  parts: { lane: number; node: number; start: number; waited_ns: number | null }[];
  /** The lane that came last; -1 where it is not known or nobody waits for all. */
  last: number;
}

export class WorldPort {
  isReady = false;
  readonly isWorld = true;
  /** Resolves when the lanes are drawn for the first time. */
  readonly ready: Promise<void>;
  private resolve: () => void = () => {};
  private parts: { page: WorldPage; readMs: number } | null = null;

  constructor() {
    this.ready = new Promise((resolve) => (this.resolve = resolve));
  }

  connect(page: WorldPage, readMs: number): void {
    this.parts = { page, readMs };
    this.isReady = true;
    this.resolve();
  }

  private get page(): WorldPage {
    if (!this.parts) throw new Error("the page is not drawn yet: await torchVis.ready");
    return this.parts.page;
  }

  lanes(): DrawnLane[] {
    const { data, chart } = this.page;
    const bounds = chart.canvas.getBoundingClientRect();
    return data.lanes.map((lane) => {
      const band = chart.band(lane.index);
      return {
        name: lane.name,
        count: lane.count,
        ranks: lane.ranks,
        operations: lane.operations,
        peak_bytes: lane.peak_bytes,
        waited_ns: lane.waited,
        imposed_ns: lane.imposed,
        rect: band && { ...band, x: band.x + bounds.left, y: band.y + bounds.top },
      };
    });
  }

  meetings(): DrawnMeeting[] {
    return this.page.data.meetings.map((meeting) => this.describe(meeting));
  }

  private describe(meeting: Meeting): DrawnMeeting {
    const { data, chart } = this.page;
    return {
      kind: meeting.kind,
      axis: data.about.axes[meeting.axis],
      place: meeting.place,
      bytes: meeting.bytes < 0 ? null : meeting.bytes,
      color: chart.axisColor(meeting.axis),
      parts: meeting.parts.map((part) => ({
        lane: part.lane,
        node: part.node,
        start: part.start,
        waited_ns: waitOf(part),
      })),
      last: meeting.last < 0 ? -1 : meeting.parts[meeting.last].lane,
    };
  }

  /** The micro-batches of a pipeline: lane, stage, micro-batch, direction, start, time. */
  chunks(): WorldPage["data"]["about"]["chunks"] {
    return this.page.data.about.chunks;
  }

  state(): {
    view: ViewName;
    lane: number;
    meeting: number;
    rank: number;
    dark: boolean;
    memory: boolean;
    path: boolean;
    shown: [number, number];
    idle_share: number | null;
  } {
    const { state, rank, chart, data } = this.page;
    return {
      view: state.view,
      lane: state.lane,
      meeting: state.meeting,
      rank,
      dark: state.theme.dark,
      memory: state.memory,
      path: state.path,
      shown: chart.shown,
      idle_share: data.about.idle_share ?? null,
    };
  }

  timings(): { readMs: number } {
    return { readMs: this.parts?.readMs ?? 0 };
  }

  show(view: ViewName): void {
    this.page.show(view);
    this.page.chart.draw();
  }

  select(lane: number): void {
    this.page.selectLane(lane);
  }

  selectMeeting(meeting: number): void {
    this.page.selectMeeting(meeting);
  }

  zoom(from: number, to: number): void {
    this.page.chart.show(from, to);
  }

  theme(name: "dark" | "light"): void {
    this.page.setTheme(name);
  }

  /** Open the graph of a rank, and wait until it is drawn; at an operation of it, if one is named. */
  async open(rank: number, node?: number): Promise<void> {
    this.page.open(rank, node);
    const { frame } = this.page;
    await new Promise((resolve) => frame!.addEventListener("load", resolve, { once: true }));
    await this.rank()!.ready;
  }

  /** The port of the rank's page that is shown; null while all ranks are. */
  rank(): Port | null {
    return this.page.frame?.contentWindow?.torchVis ?? null;
  }

  /** All ranks again. */
  back(): void {
    this.page.back();
  }
}
