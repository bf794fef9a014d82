/** The panel beside the lanes: what the step comes to, and the facts of a lane or a meeting that is selected. */

import { count, duration, percent, size } from "../data/units.ts";
import { plural } from "../data/text.ts";
import { button, h } from "../dom.ts";
import type { LaneChart } from "./chart.ts";
import { waitOf, type Lane, type Meeting, type WorldData } from "./data.ts";

const MOST = 6; // of ranks and stretches that are listed

export interface PanelActions {
  open: (rank: number, node?: number) => void;
  selectLane: (lane: number) => void;
  selectMeeting: (meeting: number) => void;
}

function times(number: number): string {
  return number === 1 ? "once" : `${count(number)} times`;
}

/** The first rank of a lane, which stands for all of it. */
export function firstRank(lane: Lane): number {
  return lane.ranks[0][0];
}

function facts(rows: [string, string | HTMLElement][]): HTMLElement {
  return h(
    "table",
    { class: "facts" },
    ...rows.map(([name, text]) => h("tr", {}, h("th", {}, name), h("td", {}, text))),
  );
}

/** What all ranks together come to. */
export function summaryOf(data: WorldData, chart: LaneChart, act: PanelActions): HTMLElement[] {
  const { about } = data;
  const sections: HTMLElement[] = [];
  const mesh = Object.entries(about.mesh).map(([axis, ranks]) => `${axis} ${ranks}`);
  const rows: [string, string | HTMLElement][] = [
    ["ranks", count(about.ranks) + (mesh.length ? ` (${mesh.join(" × ")})` : "")],
  ];
  if (data.isTimed) rows.push(["step", duration(data.to - data.from)]);
  rows.push(["collectives", count(data.meetings.length)]);
  const fullest = data.lanes.reduce((a, b) => ((b.peak_bytes ?? 0) > (a.peak_bytes ?? 0) ? b : a), data.lanes[0]);
  if (fullest?.peak_bytes) rows.push(["fullest", `${fullest.name}, ${size(fullest.peak_bytes)}`]);
  if (about.idle_share !== undefined && about.idle_share !== null) {
    const ideal =
      about.ideal_idle_share === null || about.ideal_idle_share === undefined
        ? ""
        : ` (${percent(about.ideal_idle_share)} if all stages took the same time)`;
    rows.push(["pipeline idle", percent(about.idle_share) + ideal]);
  }
  if (data.isTimed)
    rows.push([
      "clocks",
      typeof about.clock_error_ns === "number" ? `within ${duration(about.clock_error_ns)}` : "not known how far apart",
    ]);
  sections.push(h("section", {}, h("h3", {}, "All ranks"), facts(rows)));
  if (about.problems.length) {
    sections.push(
      h(
        "section",
        { class: "problems" },
        h("h3", {}, `${plural(about.problems.length + about.more_problems, "place")} where ranks do not agree`),
        ...about.problems.map((row) => h("p", {}, row.text)),
        about.more_problems ? h("p", { class: "sub" }, `and ${count(about.more_problems)} more`) : null,
      ),
    );
  }
  if (about.waits?.length) sections.push(waitsOf(data, act));
  if (about.path?.length) sections.push(pathOf(data, act));
  const longest = data.meetings
    .map((meeting): [Meeting, number] => [meeting, Math.max(0, ...meeting.parts.map((part) => waitOf(part) ?? 0))])
    .filter(([, waited]) => waited > 0)
    .sort((a, b) => b[1] - a[1])
    .slice(0, MOST);
  if (longest.length)
    sections.push(
      h(
        "section",
        {},
        h("h3", {}, "Longest waits"),
        ...longest.map(([meeting, waited]) =>
          row(
            chart.axisColor(meeting.axis),
            `${meeting.kind} on ${about.axes[meeting.axis]}`,
            duration(waited),
            meeting.place,
            () => act.selectMeeting(meeting.index),
          ),
        ),
      ),
    );
  if (!data.isTimed)
    sections.push(
      h(
        "p",
        { class: "sub" },
        "These ranks were followed by shapes alone and have no times: lanes show operations in order.",
      ),
    );
  return sections;
}

function row(color: string, name: string, amount: string, second: string, act: () => void): HTMLElement {
  const swatch = h("i", { class: "swatch" });
  swatch.style.background = color;
  return h(
    "button",
    { class: "row link", type: "button", on: { click: act } },
    swatch,
    h("b", {}, name),
    h("span", { class: "amount" }, amount),
    h("span", { class: "second" }, second),
  );
}

function waitsOf(data: WorldData, act: PanelActions): HTMLElement {
  const waits = data.about.waits!.filter(([, , imposed]) => imposed > 0).slice(0, MOST);
  if (!waits.length)
    return h(
      "section",
      {},
      h("h3", {}, "Stragglers"),
      h("p", { class: "sub" }, "Nobody was seen waiting for another rank."),
    );
  return h(
    "section",
    {},
    h("h3", {}, "Stragglers: who lets others wait"),
    ...waits.map(([lane, last, imposed, , place]) =>
      row(
        "var(--bad)",
        data.lanes[lane].name,
        duration(imposed),
        `came last ${times(last)}, most before ${place}`,
        () => act.selectLane(lane),
      ),
    ),
  );
}

function pathOf(data: WorldData, act: PanelActions): HTMLElement {
  const path = data.about.path!;
  const total = path.reduce((sum, [, , , time]) => sum + time, 0) || 1;
  const talk = path.filter(([, what]) => what !== "compute").reduce((sum, [, , , time]) => sum + time, 0);
  const byLane = new Map<number, number>();
  for (const [lane, , , time] of path) byLane.set(lane, (byLane.get(lane) ?? 0) + time);
  return h(
    "section",
    {},
    h("h3", {}, "Critical path"),
    h(
      "p",
      { class: "sub" },
      `${duration(total)}: ${percent(1 - talk / total)} computation, ${percent(talk / total)} communication`,
    ),
    ...[...byLane]
      .sort((a, b) => b[1] - a[1])
      .slice(0, MOST)
      .map(([lane, time]) =>
        row("var(--ink)", data.lanes[lane].name, percent(time / total), duration(time), () => act.selectLane(lane)),
      ),
  );
}

/** The facts of one lane. */
export function laneOf(data: WorldData, lane: Lane, act: PanelActions): HTMLElement[] {
  const rows: [string, string | HTMLElement][] = [];
  if (lane.count > 1) rows.push(["ranks", `${count(lane.count)} that do the same`]);
  if (lane.count === 1 && lane.coordinates.length)
    rows.push(["place", lane.coordinates.map(([axis, at]) => `${axis} ${at} of ${data.about.mesh[axis]}`).join(", ")]);
  if (lane.stage !== null) rows.push(["stage", String(lane.stage)]);
  if (lane.host) rows.push(["host", lane.host]);
  rows.push(["operations", count(lane.operations)]);
  if (lane.peak_bytes !== null) rows.push(["peak", size(lane.peak_bytes)]);
  rows.push(["collectives", `${count(lane.collectives)}, sends ${size(lane.sent_bytes)}`]);
  if (data.isTimed) rows.push(["time", duration(lane.to - lane.from)]);
  if (lane.waited !== null) rows.push(["waited", duration(lane.waited)]);
  if (lane.imposed !== null) rows.push(["let others wait", `${duration(lane.imposed)}; came last ${times(lane.last)}`]);
  const idle = data.about.idle?.find(([index]) => index === lane.index);
  if (idle) rows.push(["pipeline idle", percent(idle[1])]);
  const rank = firstRank(lane);
  return [
    h(
      "section",
      {},
      h("h3", {}, lane.name + (lane.count > 1 ? ` × ${count(lane.count)}` : "")),
      button(`Graph of rank ${rank}`, `Open the graph of rank ${rank} (Enter)`, () => act.open(rank), {
        class: "primary",
      }),
      facts(rows),
    ),
  ];
}

/** The facts of one collective or message. */
export function meetingOf(data: WorldData, meeting: Meeting, chart: LaneChart, act: PanelActions): HTMLElement[] {
  const rows: [string, string | HTMLElement][] = [
    ["group", `${data.about.axes[meeting.axis]}, ${count(meeting.members)} ranks`],
    ["number", `${count(meeting.number)} of its group`],
  ];
  if (meeting.bytes >= 0) rows.push(["bytes", size(meeting.bytes)]);
  rows.push(["where", meeting.place]);
  return [
    h(
      "section",
      {},
      h("h3", {}, meeting.kind),
      facts(rows),
      h("h3", {}, data.isTimed ? "In the order in which they came" : "Its ranks"),
      ...[...meeting.parts]
        .sort((a, b) => a.start - b.start)
        .map((part) => {
          const lane = data.lanes[part.lane];
          const waited = waitOf(part);
          const isLast = meeting.parts.length > 1 && meeting.parts[meeting.last] === part;
          const after = data.isTimed
            ? `${duration(part.start - meeting.from)} after the first`
            : `operation ${count(part.node)}`;
          return row(
            chart.axisColor(meeting.axis),
            lane.name + (isLast ? " · last" : ""),
            waited === null ? "" : `waited ${duration(waited)}`,
            `${after}; click for its place in the graph`,
            () => act.open(firstRank(lane), part.node),
          );
        }),
    ),
  ];
}
