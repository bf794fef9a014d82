/** What a box's warmth says: a measure of what it stands for, and the colour. Which measures there are: METRIC_INFO. */

import { COMPARED, REMOVED, type Run } from "../data/run.ts";
import { METRIC_INFO, Phase } from "../data/schema.gen.ts";
import { amountOf, metricLabel, percent, plain, showFor, signed, type Show } from "../data/units.ts";
import type { Box } from "../tree/box.ts";
import { isUnknown } from "../tree/forest.ts";
import { mixed, type Theme } from "./theme.ts";

/** How an amount becomes a colour. */
export type Scale = "root" | "log" | "diverging" | "category";

export interface Measure {
  id: string;
  label: string;
  /** What a box that stands for several operations shows. */
  how: string;
  show: Show;
  scale: Scale;
  /** null: not known. */
  of: (box: Box) => number | null;
  /** Whether what a box shows leaves out operations of which it is not known. */
  isLow?: (box: Box) => boolean;
  /** Whether a box can have one at all. */
  applies?: (box: Box) => boolean;
  /** What to say where all boxes have the same. */
  even?: string;
}

/** The least and the greatest amount in sight. */
export interface Range {
  least: number;
  most: number;
}

/** By code; 0 is for views, which do nothing that could be bound. */
export const BOUNDS = ["", "compute", "memory", "overhead"];
const BOUND_COLORS = ["", "#2f86c8", "#dd8a2c", "#9a948a"];
export const BAD = "#d6336c";
const SUM = "the sum of all in a box";

/** Heat maps that this run has no figures for, and the call that gives them. */
export function absentMeasures(run: Run): [label: string, call: string][] {
  if (run.difference) return [];
  const all: [string, string, string][] = [
    ["norm", "gradient norm", "save t.with_metrics(t.gradients())"],
    ["bound", "roofline bound", "save t.with_metrics(t.roofline())"],
    ["relevance", "relevance", "save t.with_metrics(t.relevance())"],
  ];
  return all.flatMap(([name, label, call]): [string, string][] => (run.metrics.has(name) ? [] : [[label, call]]));
}

export function measures(run: Run): Measure[] {
  const results: Measure[] = [];
  const deltas = new Set(Object.values(COMPARED));
  const side = run.difference ? " (B)" : "";
  for (const { name, along } of run.metrics.values()) {
    if (along !== "node" || METRIC_INFO[name]?.isHeat === false) continue;
    const isDelta = deltas.has(name);
    const show = METRIC_INFO[name]?.unit === "FLOP" ? amountOf("FLOP") : showFor(name);
    results.push({
      id: name,
      label: (METRIC_INFO[name]?.heatLabel ?? metricLabel(name)) + (isDelta ? "" : side),
      how: SUM,
      show: isDelta ? signed(show) : show,
      scale: isDelta ? "diverging" : "root",
      of: (box) => total(box, name),
      isLow: (box) => box.start >= 0 && (box.forest.sum(name, box.start, box.end)?.unknown ?? 0) > 0,
    });
  }
  return [...results, ...ratios(run), ...norms(run), ...bound(run), ...relevance(run)];
}

function ratios(run: Run): Measure[] {
  if (!run.metrics.has("flops") || !run.metrics.has("moved_bytes")) return [];
  const results: Measure[] = [
    {
      id: "intensity",
      label: "arithmetic intensity",
      how: "FLOPs of all in a box over the bytes they move",
      show: (n) => `${plain(Number(n.toPrecision(3)))} FLOP/B`,
      scale: "root",
      of: (box) => ratio(total(box, "flops"), total(box, "moved_bytes")),
    },
  ];
  if (run.metrics.has("time_ns")) {
    results.push({
      id: "rate",
      label: "FLOP/s reached",
      how: "FLOPs of all in a box over their time",
      show: amountOf("FLOP/s"),
      scale: "root",
      of: (box) => ratio(total(box, "flops"), total(box, "time_ns"), 1e9),
    });
  }
  return results;
}

function norms(run: Run): Measure[] {
  if (!run.metrics.has("norm")) return [];
  const normOf = (id: string, label: string, phase: number, where: string): Measure => ({
    id,
    label,
    how: `the largest L2 norm of a result ${where}`,
    show: plain,
    scale: "log",
    of: (box) => largest(box, "norm", phase),
    applies: (box) => box.forest.phases.includes(phase),
  });
  const seen = new Set<number>();
  for (let node = 0; node < run.count && seen.size < 2; node++) seen.add(run.nodePhase[node]);
  return [
    ...(seen.has(Phase.BACKWARD)
      ? [normOf("gradient_norm", "gradient norm", Phase.BACKWARD, "of the backward pass")]
      : []),
    ...(seen.has(Phase.FORWARD)
      ? [normOf("activation_norm", "activation norm", Phase.FORWARD, "of the forward pass")]
      : []),
  ];
}

function bound(run: Run): Measure[] {
  if (!run.metrics.has("bound")) return [];
  return [
    {
      id: "bound",
      label: "roofline bound",
      how: "what limits most of a box's time",
      show: (code) => BOUNDS[code] ?? String(code),
      scale: "category",
      of: (box) => cached(box, "bound", () => boundOf(box)),
    },
    ...(run.metrics.has("peak_share")
      ? [
          {
            id: "peak_share",
            label: "share of peak",
            how: "the time at the roofline over the time taken, of all in a box",
            show: percent,
            scale: "root" as const,
            of: (box: Box) => cached(box, "peak_share", () => weighted(box, "peak_share", "time_ns")),
          },
        ]
      : []),
  ];
}

function relevance(run: Run): Measure[] {
  if (!run.metrics.has("relevance")) return [];
  return [
    {
      id: "relevance",
      label: "relevance",
      how: "what all results that leave a box were given",
      show: plain,
      scale: "diverging",
      of: (box) => cached(box, "relevance", () => leaving(box, "relevance")),
      even: "the same in every box, because each layer hands on all that it was given: open modules to see how branches share it",
    },
  ];
}

function ratio(a: number | null, b: number | null, factor = 1): number | null {
  return a === null || !b ? null : (a * factor) / b;
}

export function total(box: Box, metric: string): number | null {
  if (box.start < 0) return null;
  if (box.run.difference && !metric.startsWith("difference") && box.difference === REMOVED) return null;
  const sum = box.forest.sum(metric, box.start, box.end);
  if (!sum || isUnknown(sum)) return null;
  return sum.unknown && metric.startsWith("difference") ? null : sum.total; // what leaves something out cannot be compared
}

const kept = new WeakMap<Box, Map<string, number | null>>();

function cached(box: Box, key: string, make: () => number | null): number | null {
  let known = kept.get(box);
  if (!known) kept.set(box, (known = new Map<string, number | null>()));
  let result = known.get(key);
  if (result === undefined) known.set(key, (result = make()));
  return result;
}

export function largest(box: Box, metric: string, phase: number): number | null {
  return cached(box, `${metric}${phase}`, () => {
    const { forest, run } = box;
    let result: number | null = null;
    for (let position = Math.max(0, box.start); position < box.end; position++) {
      const node = forest.order[position];
      const amount = run.nodePhase[node] === phase ? run.metric(metric, node) : null;
      if (amount === null) continue;
      if (!Number.isFinite(amount)) return amount;
      if (result === null || amount > result) result = amount;
    }
    return result;
  });
}

/** The bound that takes most of the time; without times, the one of most operations. */
function boundOf(box: Box): number | null {
  const { forest, run } = box;
  const share = BOUNDS.map(() => 0);
  for (let position = Math.max(0, box.start); position < box.end; position++) {
    const node = forest.order[position];
    const code = run.metric("bound", node);
    if (code && code < share.length) share[code] += run.metrics.has("time_ns") ? (run.metric("time_ns", node) ?? 0) : 1;
  }
  const most = Math.max(...share);
  return most > 0 ? share.indexOf(most) : null;
}

/** A share of all in a box, each by its weight. */
function weighted(box: Box, metric: string, weight: string): number | null {
  const { forest, run } = box;
  let sum = 0;
  let weights = 0;
  for (let position = Math.max(0, box.start); position < box.end; position++) {
    const amount = run.metric(metric, forest.order[position]);
    const by = run.metric(weight, forest.order[position]);
    if (amount === null || by === null) continue;
    sum += amount * by;
    weights += by;
  }
  return weights ? sum / weights : null;
}

/** The sum over the results that are read outside; of a box that hands out none, its last. */
function leaving(box: Box, metric: string): number | null {
  const { forest, run } = box;
  const outside = (node: number): boolean => {
    const position = forest.position[node];
    return position < box.start || position >= box.end;
  };
  let sum: number | null = null;
  let last: number | null = null;
  for (let index = Math.max(0, box.start); index < box.end; index++) {
    const node = forest.order[index];
    const amount = run.metric(metric, node);
    if (amount === null) continue;
    last = amount;
    if (run.users(node).some(outside)) sum = (sum ?? 0) + amount;
  }
  return sum ?? last;
}

/** The range of a measure over some boxes. */
export function rangeOf(measure: Measure, boxes: Iterable<Box>): Range {
  const range = { least: Infinity, most: 0 };
  for (const box of boxes) {
    const amount = Math.abs(measure.of(box) ?? NaN);
    if (!Number.isFinite(amount)) continue;
    range.most = Math.max(range.most, amount);
    if (amount > 0) range.least = Math.min(range.least, amount);
  }
  if (range.least > range.most) range.least = range.most;
  return range;
}

export function fillOf(measure: Measure, range: Range, box: Box, theme: Theme): string {
  const amount = measure.of(box);
  if (amount === null || (!range.most && amount === 0)) return theme.unknown;
  if (!Number.isFinite(amount)) return BAD;
  if (measure.scale === "category") return categoryColor(amount, theme);
  if (isEven(measure, range)) return evenColor(theme);
  return mixed(measure.scale === "diverging" ? theme.diverging : theme.heat, shareOf(measure.scale, range, amount));
}

/** Whether a measure says the same of all boxes, so that a strong colour would say more than there is. */
export function isEven(measure: Measure, { least, most }: Range): boolean {
  return measure.even !== undefined && most > 0 && least >= most * 0.99;
}

export function evenColor(theme: Theme): string {
  return mixed(theme.diverging, 0.65);
}

export function categoryColor(code: number, theme: Theme): string {
  return BOUND_COLORS[code] ? mixed([theme.card, BOUND_COLORS[code]], theme.dark ? 0.75 : 0.6) : theme.unknown;
}

/** Where on the ramp an amount lies, from 0 to 1. */
export function shareOf(scale: Scale, { least, most }: Range, amount: number): number {
  if (!most) return scale === "diverging" ? 0.5 : 0;
  if (scale === "diverging") return 0.5 + (Math.sign(amount) * Math.sqrt(Math.min(1, Math.abs(amount) / most))) / 2;
  if (scale === "log") return amount <= 0 ? 0 : most === least ? 1 : Math.log(amount / least) / Math.log(most / least);
  return Math.sqrt(Math.max(0, amount) / most);
}

/** The amount at a place of the ramp. */
export function amountAt(scale: Scale, { least, most }: Range, share: number): number {
  if (scale === "diverging") return Math.sign(share - 0.5) * (2 * share - 1) ** 2 * most;
  if (scale === "log") return least * (most / (least || 1)) ** share;
  return share * share * most;
}

export const SCALES: Record<Scale, string> = {
  root: "colour by the square root",
  log: "logarithmic colours",
  diverging: "colour by the square root, to both sides",
  category: "",
};
