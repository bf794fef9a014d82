/** What of a run a person would want to know of without asking: each in a sentence, with the search that brings it out. */

import { Memory } from "./memory.ts";
import { recomputedOperations } from "./recomputed.ts";
import { typeText, type Run } from "./run.ts";
import { Flag, Kind, Phase, Role } from "./schema.gen.ts";
import { plural, shortened } from "./text.ts";
import { count, duration, percent, size } from "./units.ts";

export interface Oddity {
  text: string;
  /** "" where no search says it. */
  query: string;
}

const SHOWN = 5; // of each kind
const TINY_NS = 10_000;
const MANY_TINY = 200;
const TINY_SHARE = 0.5;
const LOOP = 8; // runs of one operation from which on a loop is worth a word
const LOOP_SHARE = 0.001; // of the time of the run
const LARGE_SHARE = 0.2; // of the memory at the peak
const PARAMETERS_NAMED = 3;

/** Each looks for one kind of them. */
const KINDS = [looks, loops, ungraded, numbers, largeTemporary, casts, again, tiny];

/** All of them; `pause` is waited for between one kind and the next. */
export async function oddities(run: Run, pause: () => Promise<void> = async () => {}): Promise<Oddity[]> {
  const results: Oddity[] = [];
  for (const find of run.count ? KINDS : []) {
    results.push(...find(run));
    await pause();
  }
  return results;
}

/** "models.py:12" of an operation; "" where its line is not known. */
export function lineText(run: Run, node: number): string {
  const site = run.nodeSite[run.dueTo(node)];
  return site < 0 ? "" : run.lines[site];
}

/** Lines on which Python looked at what a tensor holds. */
function looks(run: Run): Oddity[] {
  const lines = new Map<string, number>();
  for (let node = 0; node < run.count; node++) {
    if (!(run.nodeFlags[node] & Flag.ESCAPE)) continue;
    const line = lineText(run, node);
    lines.set(line, (lines.get(line) ?? 0) + 1);
  }
  // on a CPU nobody waits: the numbers are there when it looks
  const isWaited = run.tables.devices.some((device) => !["cpu", "meta"].includes(device.split(":")[0]));
  return [...lines]
    .sort((a, b) => b[1] - a[1])
    .slice(0, SHOWN)
    .map(([line, times]) => ({
      text:
        `Python looked at the values of a tensor${line ? ` at ${line}` : ""}` +
        `${times > 1 ? `, ${count(times)} times` : ""}${isWaited ? ": the device waits there" : ""}`,
      query: line ? `file:${line} flag:escape` : "flag:escape",
    }));
}

/** Operations of one line of one module, on tensors of the same types. */
interface Turns {
  number: number;
  nodes: number[];
  time: number;
}

/** Loops in which no turn needs what another made, so that one call on all of it would do. */
function loops(run: Run): Oddity[] {
  const groups: Turns[] = [];
  const byKey = new Map<number, Turns>();
  const groupOf = new Int32Array(run.count).fill(-1);
  const joined = new Joined();
  const types = typeNumbers(run);
  for (let node = 0; node < run.count; node++) {
    const isOther = run.isView(node) || (run.nodeFlags[node] & Flag.ESCAPE) !== 0;
    const isStep = run.nodePhase[node] === Phase.FORWARD && run.nodeSite[node] >= 0 && !isOther;
    const reads = isStep ? readTypes(run, node, types, joined) : -1;
    if (reads < 0) continue;
    const place = joined.of(run.nodeSite[node], run.scopeModule[run.nodeScope[node]]);
    const key = joined.of(joined.of(place, run.opIds[run.nodeCall[node]]), reads);
    let turns = byKey.get(key);
    if (!turns) {
      byKey.set(key, (turns = { number: groups.length, nodes: [], time: 0 }));
      groups.push(turns);
    }
    groupOf[node] = turns.number;
    turns.nodes.push(node);
    turns.time += run.metric("time_ns", node) ?? 0;
  }
  let total = 0;
  for (let node = 0; node < run.count; node++) total += run.metric("time_ns", node) ?? 0;
  const long = groups.filter(({ nodes, time }) => nodes.length >= LOOP && time >= LOOP_SHARE * total);
  long.sort((a, b) => b.time - a.time);
  const free = long.slice(0, 2 * SHOWN).filter((turns) => !isChained(run, turns, groupOf));
  return free.slice(0, PARAMETERS_NAMED).map(({ nodes }) => {
    const line = lineText(run, nodes[0]);
    const name = run.name(nodes[0]);
    return {
      text:
        `${name} ran ${count(nodes.length)} times at ${line}, and none of them needs what another made: ` +
        "one call on all of it could do",
      query: `file:${line} op:${name}`,
    };
  });
}

/** One number for every two, so that what several have in common can be told by a number. */
class Joined {
  private readonly numbers = new Map<number, number>();

  of(a: number, b: number): number {
    const key = a * 0x4000000 + b;
    let result = this.numbers.get(key);
    if (result === undefined) this.numbers.set(key, (result = this.numbers.size));
    return result;
  }
}

/** By type, a number for what is told of it: an element type and a shape. */
function typeNumbers(run: Run): number[] {
  const numbers = new Map<string, number>();
  return run.tables.types.map((type) => {
    const text = typeText(type);
    if (!numbers.has(text)) numbers.set(text, numbers.size);
    return numbers.get(text)!;
  });
}

/** The types of the tensors that an operation reads, as one number; -1 for none. */
function readTypes(run: Run, node: number, types: number[], joined: Joined): number {
  let result = -1;
  for (let row = run.inStart[node]; row < run.inStart[node + 1]; row++)
    if (run.inKind[row] !== Kind.SHAPE) result = joined.of(result + 1, types[run.valueType[run.inValue[row]]]);
  return result;
}

/** Whether one of the operations needs another one's result, however far between. */
function isChained(run: Run, { nodes, number }: Turns, groupOf: Int32Array): boolean {
  const [first, last] = [nodes[0], nodes[nodes.length - 1]];
  const depends = new Uint8Array(last - first + 1);
  const { inStart, inValue, inKind, producer } = run;
  for (let node = first; node <= last; node++) {
    let needs = false;
    for (let row = inStart[node]; row < inStart[node + 1] && !needs; row++) {
      const from = inKind[row] === Kind.SHAPE ? -1 : producer[inValue[row]];
      needs = from >= first && depends[from - first] === 1;
    }
    const isTurn = groupOf[node] === number;
    if (needs && isTurn) return true;
    if (needs || isTurn) depends[node - first] = 1;
  }
  return false;
}

/** Parameters that backward left without a gradient, where it gave others theirs. */
function ungraded(run: Run): Oddity[] {
  const parameters = new Set<string>();
  const graded = new Set<string>();
  for (let value = 0; value < run.values; value++) {
    if (run.valueName[value] < 0) continue;
    const name = run.valueLabel(value);
    if (name.endsWith(".grad")) graded.add(name.slice(0, -".grad".length));
    else if (run.valueRole[value] === Role.PARAMETER) parameters.add(name);
  }
  const without = [...parameters].filter((name) => !graded.has(name));
  if (!without.length || !graded.size) return [];
  const names = without.slice(0, PARAMETERS_NAMED).map((name) => shortened(name));
  const rest = without.length - names.length;
  const module = without[0].split(".").slice(0, -1).join(".");
  return [
    {
      text:
        `${plural(without.length, "parameter")} that the run reads got no gradient: ` +
        names.join(", ") +
        (rest ? ` and ${count(rest)} more` : ""),
      query: module ? `path:${module}` : "",
    },
  ];
}

/** NaN and infinity, where they were looked for. */
function numbers(run: Run): Oddity[] {
  return [
    ["nans", "NaN"],
    ["infs", "infinity"],
  ].flatMap(([name, word]) => {
    const metric = run.metrics.get(name);
    let bad = 0;
    for (let node = 0; metric && node < run.count; node++) if ((run.metric(name, node) ?? 0) > 0) bad += 1;
    return bad ? [{ text: `${plural(bad, "operation")} gave ${word}`, query: `${name}>0` }] : [];
  });
}

/** The largest of what is alive at the peak and needed by one operation alone. */
function largeTemporary(run: Run): Oddity[] {
  const memory = Memory.of(run);
  if (!memory.isKnown || !run.count) return [];
  const { peak, total } = memory;
  const block = memory.alive(peak, peak).find((storage) => memory.words[memory.use[storage]] === "temporary");
  const bytes = block === undefined ? 0 : memory.bytes[block];
  const maker = block === undefined || memory.value[block] < 0 ? -1 : run.producer[run.rootOf(memory.value[block])];
  if (maker < 0 || bytes < LARGE_SHARE * total[peak]) return [];
  const line = lineText(run, maker);
  return [
    {
      text:
        `A temporary of ${size(bytes)} is ${percent(bytes / total[peak])} of the memory at the peak: ` +
        `the result of ${run.name(maker)}${line ? ` at ${line}` : ""}`,
      query: line ? `file:${line} op:${run.name(maker)}` : `op:${run.name(maker)}`,
    },
  ];
}

/** Casts that a later one takes back. */
function casts(run: Run): Oddity[] {
  const lines = new Map<string, { times: number; way: string }>();
  for (let node = 0; node < run.count; node++) {
    if (run.name(node) !== "to") continue;
    const [before, between] = castOf(run, node);
    for (const reader of between < 0 ? [] : readersOf(run, between)) {
      if (run.name(reader) !== "to") continue;
      const [, after] = castOf(run, reader);
      const [from, via, back] = [before, between, after].map((value) => (value < 0 ? "" : run.type(value)[0]));
      if (!from || from === via || from !== back) continue;
      const line = lineText(run, reader);
      const known = lines.get(line);
      if (known) known.times += 1;
      else lines.set(line, { times: 1, way: `${from} → ${via} → ${from}` });
    }
  }
  return [...lines].slice(0, SHOWN).map(([line, { times, way }]) => ({
    text: `A cast is taken back${line ? ` at ${line}` : ""}: ${way}${times > 1 ? `, ${count(times)} times` : ""}`,
    query: line ? `file:${line} op:to` : "op:to",
  }));
}

/** What a cast reads and what it makes; -1 where there is none. */
function castOf(run: Run, node: number): [before: number, after: number] {
  return [run.inValue[run.inStart[node]] ?? -1, run.outValue[run.outStart[node]] ?? -1];
}

/** The operations that read a value or a view of it. */
function readersOf(run: Run, value: number): number[] {
  const results: number[] = [];
  const waiting = [value];
  for (const next of waiting)
    for (const reader of run.readers(next)) {
      if (run.isView(reader)) waiting.push(...run.outputs(reader));
      else results.push(reader);
    }
  return results;
}

function again(run: Run): Oddity[] {
  const times = recomputedOperations(run);
  if (!times) return [];
  return [{ text: `${plural(times, "operation")} of forward ran again during backward`, query: "flag:recomputed" }];
}

/** Whether starting operations costs more than they do. */
function tiny(run: Run): Oddity[] {
  let [short, timed] = [0, 0];
  for (let node = 0; node < run.count; node++) {
    const time = run.isView(node) ? null : run.metric("time_ns", node);
    if (time === null) continue;
    timed += 1;
    if (time < TINY_NS) short += 1;
  }
  if (short < MANY_TINY || short <= timed * TINY_SHARE) return [];
  return [
    {
      text:
        `${count(short)} of ${count(timed)} operations take less than ${duration(TINY_NS)} each: ` +
        "launching them costs more than they do",
      query: `time<${TINY_NS / 1000}us`,
    },
  ];
}
