/** What a box's warmth says: a measure summed over what it stands for. */

import { PARAMETER, type Run } from "../data/run.ts";
import { amount, plain, showFor, type Show } from "../data/units.ts";
import type { Box } from "../tree/box.ts";

export interface Measure {
  id: string;
  label: string;
  show: Show;
  diverging: boolean;
  /** null: not known. */
  of(box: Box): number | null;
}

const LABELS: Record<string, string> = {
  time_ns: "time, inclusive",
  alloc_bytes: "memory allocated",
  flops: "FLOPs",
  macs: "multiply-adds",
  moved_bytes: "bytes moved",
  parameters: "parameters",
  grad_norm: "gradient norm",
  relevance: "relevance",
  difference_ns: "time, B − A",
  difference_bytes: "memory, B − A",
};
const NOT_HEAT = new Set(["start_ns", "live_bytes", "free_bytes", "difference"]);
const SIGNED = new Set(["difference_ns", "difference_bytes", "relevance"]);

/** Parameters as a metric of the operations: each counts where it is first read, so that sums count it once. */
export function addParameters(run: Run): void {
  const values = new Float64Array(run.count);
  const seen = new Set<string>();
  const counted = new Uint8Array(run.values);
  let found = false;
  const offset = run.columns.get("value_offset");
  for (let node = 0; node < run.count; node++) {
    if (run.nodePhase[node] !== 0) continue;
    for (let row = run.inStart[node]; row < run.inStart[node + 1]; row++) {
      const value = run.inValue[row];
      if (run.valueRole[value] !== PARAMETER || run.producer[value] >= 0 || counted[value]) continue;
      counted[value] = 1;
      const key = `${run.valueStorage[value]},${offset ? offset[value] : 0},${run.valueType[value]}`;
      if (seen.has(key)) continue;
      seen.add(key);
      values[node] += run.type(value)[1].reduce((a, b) => a * b, 1);
      found = true;
    }
  }
  if (found) run.metrics.set("parameters", { name: "parameters", along: "node", values, known: null });
}

export function measures(run: Run): Measure[] {
  const found: Measure[] = [];
  const nodeMetrics = [...run.metrics.values()].filter((metric) => metric.along === "node" && !NOT_HEAT.has(metric.name));
  const summed = (name: string): Measure => ({
    id: name, label: LABELS[name] ?? name.replaceAll("_", " "), show: showFor(name), diverging: SIGNED.has(name),
    of: (box) => total(box, name),
  });
  if (run.metrics.has("time_ns")) {
    found.push({ id: "self_ns", label: "time, self", show: showFor("time_ns"), diverging: false, of: (box) => ownTotal(box, "time_ns") });
  }
  for (const { name } of nodeMetrics) found.push(summed(name));
  if (run.metrics.has("flops") && run.metrics.has("moved_bytes")) {
    found.push({
      id: "intensity", label: "arithmetic intensity (FLOPs per byte)", show: plain, diverging: false,
      of: (box) => ratio(total(box, "flops"), total(box, "moved_bytes")),
    });
    if (run.metrics.has("time_ns")) {
      found.push({
        id: "rate", label: "FLOPs per second reached", show: (n) => `${amount(n)}FLOP/s`, diverging: false,
        of: (box) => ratio(total(box, "flops"), scaled(total(box, "time_ns"))),
      });
    }
  }
  return found;
}

function scaled(ns: number | null): number | null {
  return ns === null ? null : ns / 1e9;
}

function ratio(a: number | null, b: number | null): number | null {
  return a === null || !b ? null : a / b;
}

export function total(box: Box, metric: string): number | null {
  if (box.start < 0) return null;
  const sum = box.forest.sum(metric, box.start, box.end);
  if (!sum || (sum.unknown === box.operations && box.operations > 0)) return null;
  return sum.total;
}

/** Of a module only the operations that it runs itself. */
function ownTotal(box: Box, metric: string): number | null {
  if (box.kind !== "module" && box.kind !== "fold") return total(box, metric);
  const { forest, run } = box;
  let sum = 0;
  let known = 0;
  for (const element of box.elements) {
    for (const inner of element < 0 ? forest.elements(~element) : [element]) {
      const own = inner >= 0 ? run.metric(metric, inner) : null;
      if (own === null) continue;
      sum += own;
      known += 1;
    }
  }
  return known || !box.operations ? sum : 0;
}
