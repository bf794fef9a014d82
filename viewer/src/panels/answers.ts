/** What a person opens the page for: where time, memory and FLOPs went, and what is odd. Each row is a search that colours the graph. */

import type { App } from "../app.ts";
import { Memory } from "../data/memory.ts";
import { recomputedOperations } from "../data/recomputed.ts";
import type { Run } from "../data/run.ts";
import { Flag, Phase, PHASES } from "../data/schema.gen.ts";
import { plural, shortened } from "../data/text.ts";
import { amount, count, duration, percent, size, type Show } from "../data/units.ts";
import { h } from "../dom.ts";
import { tokenSteps, tokenTotals } from "../data/tokens.ts";
import { pathText, section } from "./rows.ts";
import { totalsText } from "./tokens.ts";

/** Searches, and colours by a measure. */
export type Ask = (query: string, heat: string) => void;

/** A part of the run, what it takes, and the search that brings it out. */
interface Share {
  name: string;
  amount: number;
  query: string;
  note?: string;
}

const SHOWN = 5;
const TINY_NS = 10_000;
const MANY_TINY = 200;
const TINY_SHARE = 0.5;

export function answers(app: App, ask: Ask): HTMLElement[] {
  const { run } = app;
  if (!run.count) return [];
  return [...written(run), ...costs(run, ask), ...memoryAtPeak(run, ask), ...odd(run, ask)];
}

/** Of a run that writes a text: what a token takes. */
function written(run: Run): HTMLElement[] {
  const steps = tokenSteps(run);
  return steps.length ? [section("Tokens", h("p", { class: "sub" }, totalsText(tokenTotals(steps))))] : [];
}

/** By time where it was taken, else by FLOPs: the phases, then modules, operators and lines of the program. */
function costs(run: Run, ask: Ask): HTMLElement[] {
  const isTimed = (run.metrics.get("time_ns")?.values.length ?? 0) > 0;
  const metric = isTimed ? "time_ns" : run.metrics.has("flops") ? "flops" : "";
  if (!metric) return [];
  const show: Show = isTimed ? duration : amount;
  const { values, known } = run.metrics.get(metric)!;
  const of = (node: number): number => (known && !known[node] ? 0 : values[node]);
  let total = 0;
  for (let node = 0; node < run.count; node++) total += of(node);
  if (!total) return [];
  const group = (name: (node: number) => [name: string, query: string] | null): Share[] => {
    const shares = new Map<string, Share>();
    for (let node = 0; node < run.count; node++) {
      const key = name(node);
      if (!key) continue;
      const share = shares.get(key[0]);
      if (share) share.amount += of(node);
      else shares.set(key[0], { name: key[0], query: key[1], amount: of(node) });
    }
    return [...shares.values()].sort((a, b) => b.amount - a.amount);
  };
  const list = (title: string, shares: Share[]): HTMLElement | null =>
    shares.length
      ? section(title, ...shares.slice(0, SHOWN).map((share) => row(share, total, show, metric, ask)))
      : null;
  const what = isTimed ? "Time" : "FLOPs";
  const phases = group((node) => [PHASES[run.nodePhase[node]], `phase:${PHASES[run.nodePhase[node]]}`]);
  return [
    list(`${what}: ${show(total)}`, phases),
    list(`${what} by module`, group(moduleOf(run))),
    list(
      `${what} by operator`,
      group((node) => [run.name(node), `op:${run.name(node)}`]),
    ),
    list(`${what} by line`, group(lineOf(run))),
  ].filter((part) => part !== null);
}

/** The module that ran an operation; modules that differ in their numbers alone stand together. */
function moduleOf(run: Run): (node: number) => [string, string] | null {
  const byModule = run.tables.modules.map(([path, type]): [string, string] | null => {
    const pattern = path.replace(/(^|\.)\d+(?=\.|$)/g, "$1*");
    // Numbers alone say nothing: layers of a Sequential stand together by their class.
    const isNumber = /(^|\.)\d+$/.test(path);
    return path
      ? [isNumber ? `${pattern} ${type}` : pattern, `path:${pattern}${isNumber ? ` class:${type}` : ""}`]
      : null;
  });
  return (node) => {
    let scope = run.nodeScope[node];
    while (scope > 0 && run.module(scope)[2] !== "module") scope = run.scopeParent[scope];
    return byModule[run.scopeModule[scope]];
  };
}

/** The line of the program that an operation belongs to: of a gradient, that of the operation whose gradient it is. */
function lineOf(run: Run): (node: number) => [string, string] | null {
  const texts = run.tables.sites.map(([file, line]) => `${file.split(/[\\/]/).pop()}:${line}`);
  return (node) => {
    const forward = run.nodePhase[node] === Phase.BACKWARD ? run.nodeLink[node] : -1;
    const site = run.nodeSite[forward >= 0 ? forward : node];
    return site < 0 ? null : [texts[site], `file:${texts[site]}`];
  };
}

function memoryAtPeak(run: Run, ask: Ask): HTMLElement[] {
  const memory = new Memory(run);
  if (!memory.isKnown || !run.count) return [];
  const { peak, total } = memory;
  const uses = memory.words
    .map((name, use): Share => ({ name, amount: memory.live[use][peak], query: "" }))
    .filter((share) => share.amount > 0)
    .sort((a, b) => b.amount - a.amount);
  const largest = memory.alive(peak, peak)[0];
  const value = largest === undefined ? -1 : memory.value[largest];
  const steady = run.data.meta.steady_peak_bytes;
  return [
    section(
      `Memory at the peak: ${size(total[peak])}`,
      ...(typeof steady === "number"
        ? [h("p", { class: "sub" }, `${size(steady)} from the second step on: this one made the optimizer's state`)]
        : []),
      ...uses.map((share) => row(share, total[peak], size, "", ask)),
      h(
        "p",
        { class: "sub" },
        `during ${run.name(peak)} ${shortened(run.placeText(run.nodeScope[peak]))}` +
          (value >= 0 ? `; the largest is ${shortened(run.originText(value))}, ${size(memory.bytes[largest])}` : ""),
      ),
    ),
  ];
}

/** What a person would want to know of without asking. */
function odd(run: Run, ask: Ask): HTMLElement[] {
  const facts: [text: string, query: string][] = [];
  const looks = new Map<number, number>();
  let [casts, tiny, timed, nans] = [0, 0, 0, 0];
  const times = run.metrics.get("time_ns");
  const bad = [run.metrics.get("nans"), run.metrics.get("infs")];
  for (let node = 0; node < run.count; node++) {
    const isEscape = (run.nodeFlags[node] & Flag.ESCAPE) !== 0;
    if (isEscape) looks.set(run.nodeSite[node], (looks.get(run.nodeSite[node]) ?? 0) + 1);
    if (run.name(node) === "to") casts += 1;
    if (times && !run.isView(node) && (!times.known || times.known[node])) {
      timed += 1;
      if (times.values[node] < TINY_NS) tiny += 1;
    }
    if (bad.some((metric) => metric && (!metric.known || metric.known[node]) && metric.values[node] > 0)) nans += 1;
  }
  const devices = run.tables.devices;
  // on a CPU nobody waits: the numbers are there when it looks
  const waits = devices.some((device) => !["cpu", "meta"].includes(device.split(":")[0]))
    ? ": the device waits there"
    : "";
  for (const [site, times] of [...looks].sort((a, b) => b[1] - a[1]).slice(0, SHOWN)) {
    const [file, line] = site >= 0 ? run.tables.sites[site] : ["", 0];
    const at = file ? `${file.split(/[\\/]/).pop()}:${line}` : "";
    facts.push([
      `Python looked at the values of a tensor ${at ? `at ${at} ` : ""}${count(times)} ×${waits}`,
      at ? `file:${at} flag:escape` : "flag:escape",
    ]);
  }
  const again = recomputedOperations(run);
  if (again) facts.push([`${plural(again, "operation")} of forward ran again during backward`, "flag:recomputed"]);
  if (nans) facts.push([`${plural(nans, "operation")} gave NaN or infinity`, ""]);
  if (casts > 1) facts.push([`${count(casts)} casts and copies to another type or device`, "op:to"]);
  if (tiny >= MANY_TINY && tiny > timed * TINY_SHARE)
    facts.push([
      `${count(tiny)} of ${count(timed)} operations take less than ${duration(TINY_NS)} each: launching them costs more than they do`,
      `time<${TINY_NS / 1000}us`,
    ]);
  if (!facts.length) return [];
  return [
    section(
      "Worth a look",
      ...facts.map(([text, query]) =>
        query
          ? h("button", { class: "row link odd", type: "button", on: { click: () => ask(query, "") } }, text)
          : h("p", { class: "sub" }, text),
      ),
    ),
  ];
}

function row({ name, amount, query }: Share, total: number, show: Show, heat: string, ask: Ask): HTMLElement {
  const share = amount / total;
  const bar = h("span", { class: "meter" });
  bar.style.width = `${(100 * share).toFixed(1)}%`;
  const cells = [
    bar,
    h("span", { class: "name" }, pathText(name)),
    h("span", { class: "amount" }, `${show(amount)} · ${percent(share)}`),
  ];
  if (!query) return h("div", { class: "share" }, ...cells);
  return h("button", { class: "share link", type: "button", on: { click: () => ask(query, heat) } }, ...cells);
}
