/** What the page of several ranks is given: lanes, meetings, and the parts that the pages of its ranks are made of. */

import { inflate, unpack, type Column, type Entry } from "../data/decode.ts";

/** How a column is packed, and the number of the text that it is in. */
type Ref = [code: string, difference: number, length: number, part: number];

export interface LaneRow {
  ranks: [first: number, last: number][];
  trace: number;
  start: Ref;
  time: Ref;
  phase: Ref;
  live: Ref | null;
  name: string;
  count: number;
  coordinates: [axis: string, place: number][];
  stage: number | null;
  host: string;
  operations: number;
  peak_bytes: number | null;
  collectives: number;
  sent_bytes: number;
}

export interface About {
  ranks: number;
  mesh: Record<string, number>;
  unit: "ns" | "operations";
  axes: string[];
  kinds: string[];
  places: string[];
  problems: { rank: number; what: string; text: string }[];
  more_problems: number;
  /** How far clocks may be off; null where nothing bounds it. None of these without times. */
  clock_error_ns?: number | null;
  waits?: [lane: number, last: number, imposed: number, waited: number, place: string][];
  untimed?: number;
  path?: [lane: number, what: string, start: number, time: number, until: string][];
  chunks: [lane: number, stage: number, microbatch: number, what: string, start: number, time: number][];
  idle?: [lane: number, share: number][];
  idle_share?: number | null;
  ideal_idle_share?: number | null;
}

interface Rows {
  version: number;
  title: string;
  about: About;
  columns: Record<string, Ref>;
  lanes: LaneRow[];
  traces: { tables: [string, number][]; inner: [string, number][]; columns: [string, ...Ref][] }[];
}

/** One row of the page: ranks that do the same at the same time. */
export interface Lane extends Omit<LaneRow, "start" | "time" | "phase" | "live"> {
  index: number;
  start: Column;
  time: Column;
  phase: Column;
  live: Column | null;
  /** How long it stood waiting for others, let them wait, and how often it came last; null without times. */
  waited: number | null;
  imposed: number | null;
  last: number;
  /** When it begins and ends. */
  from: number;
  to: number;
}

/** One rank at one meeting; -1 for moments that are not known. */
export interface Part {
  lane: number;
  node: number;
  start: number;
  waiting: number;
  done: number;
}

/** One collective or message on all its ranks. */
export interface Meeting {
  index: number;
  kind: string;
  axis: number;
  place: string;
  bytes: number;
  members: number;
  number: number;
  /** Which part came last, -1 where it is not known or nobody waits for all. */
  last: number;
  parts: Part[];
  from: number;
  to: number;
}

function textOf(part: number): string {
  return document.getElementById(`part-${part}`)!.textContent;
}

async function column([code, difference, length, part]: Ref): Promise<Column> {
  const directory: Entry[] = [["", code, difference, length]];
  return (await unpack(directory, await inflate(textOf(part)))).get("")!;
}

/** All of it, as the page reads it. */
export class WorldData {
  readonly from: number;
  readonly to: number;
  readonly peak: number;

  private constructor(
    private readonly rows: Rows,
    readonly lanes: Lane[],
    readonly meetings: Meeting[],
  ) {
    this.from = lanes.reduce((least, lane) => Math.min(least, lane.from), lanes.length ? lanes[0].from : 0);
    this.to = Math.max(
      this.from + 1,
      lanes.reduce((most, lane) => Math.max(most, lane.to), 0),
    );
    this.peak = lanes.reduce((most, lane) => Math.max(most, lane.peak_bytes ?? 0), 0);
  }

  static async read(): Promise<WorldData> {
    const rows = JSON.parse(document.getElementById("world")!.textContent) as Rows;
    const lanes: Lane[] = [];
    const waits = new Map((rows.about.waits ?? []).map((row) => [row[0], row]));
    for (const [index, row] of rows.lanes.entries()) {
      const [start, time, phase] = [await column(row.start), await column(row.time), await column(row.phase)];
      const wait = waits.get(index);
      let from = start.length ? Infinity : 0;
      let to = 0;
      for (let node = 0; node < start.length; node++) {
        from = Math.min(from, start[node]);
        to = Math.max(to, start[node] + time[node]);
      }
      lanes.push({
        ...row,
        index,
        start,
        time,
        phase,
        live: row.live && (await column(row.live)),
        waited: wait ? wait[3] : null,
        imposed: wait ? wait[2] : null,
        last: wait ? wait[1] : 0,
        from,
        to,
      });
    }
    return new WorldData(rows, lanes, await meetingsOf(rows));
  }

  get title(): string {
    return this.rows.title;
  }

  get about(): About {
    return this.rows.about;
  }

  get isTimed(): boolean {
    return this.about.unit === "ns";
  }

  /** The lane that a rank is in, or null. */
  laneOf(rank: number): Lane | null {
    return this.lanes.find((lane) => lane.ranks.some(([first, last]) => first <= rank && rank <= last)) ?? null;
  }

  /** What the operations of a lane are called, by number. */
  async operations(lane: Lane): Promise<(node: number) => string> {
    const trace = this.rows.traces[lane.trace];
    const calls = JSON.parse(textOf(trace.inner.find(([name]) => name === "calls")![1])) as [string][];
    const ref = trace.columns.find(([name]) => name === "node_call")!.slice(1) as Ref;
    const call = await column(ref);
    return (node) => calls[call[node]][0].replace(/^.*::/, "").replace(/\..*$/, "");
  }

  /** The data of an ordinary page of one rank, put together of the parts. */
  partsOf(rank: number): { tables: string; columns: string } {
    const trace = this.rows.traces[this.laneOf(rank)!.trace];
    const safe = (data: unknown): string => JSON.stringify(data).replaceAll("<", "\\u003c");
    const object = (fields: [string, string][]): string =>
      `{${fields.map(([name, text]) => `${JSON.stringify(name)}:${text}`).join(",")}}`;
    const fields = trace.tables.map(([name, part]): [string, string] => {
      if (name !== "meta") return [name, textOf(part)];
      return [name, safe({ ...(JSON.parse(textOf(part)) as Record<string, unknown>), rank })];
    });
    const directory = safe(trace.columns.map(([name, ...ref]) => [name, ...ref.slice(0, 3)]));
    const inner = object(trace.inner.map(([name, part]) => [name, textOf(part)]));
    return {
      tables: object([...fields, ["directory", directory], ["tables", inner]]),
      columns: trace.columns.map((entry) => textOf(entry[4])).join(" "),
    };
  }
}

async function meetingsOf(rows: Rows): Promise<Meeting[]> {
  const read = async (name: string): Promise<Column> => column(rows.columns[name]);
  const [kind, axis, place, bytes] = [await read("kind"), await read("axis"), await read("place"), await read("bytes")];
  const [members, number, last, first] = [
    await read("members"),
    await read("number"),
    await read("last"),
    await read("first"),
  ];
  const [lane, node, start, waiting, done] = [
    await read("part_lane"),
    await read("part_node"),
    await read("part_start"),
    await read("part_waiting"),
    await read("part_done"),
  ];
  const meetings: Meeting[] = [];
  for (let index = 0; index < kind.length; index++) {
    const end = index + 1 < kind.length ? first[index + 1] : lane.length;
    const parts: Part[] = [];
    for (let i = first[index]; i < end; i++)
      parts.push({ lane: lane[i], node: node[i], start: start[i], waiting: waiting[i], done: done[i] });
    meetings.push({
      index,
      kind: rows.about.kinds[kind[index]],
      axis: axis[index],
      place: rows.about.places[place[index]],
      bytes: bytes[index],
      members: members[index],
      number: number[index],
      last: last[index],
      parts,
      from: Math.min(...parts.map((part) => part.start)),
      to: Math.max(...parts.map((part) => Math.max(part.start, part.done))),
    });
  }
  return meetings;
}

/** How long a rank stood waiting at a meeting; null where nobody saw it. */
export function waitOf(part: Part): number | null {
  return part.done < 0 ? null : part.done - part.waiting;
}
