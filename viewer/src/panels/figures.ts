/** The figures of an operation or a group, under names that a person reads; in a comparison for both runs. */

import type { App } from "../app.ts";
import { COMPARED, REMOVED, ADDED } from "../data/run.ts";
import { METRIC_INFO } from "../data/schema.gen.ts";
import { plural } from "../data/text.ts";
import { duration, metricLabel, showFor, signed } from "../data/units.ts";
import { BOUNDS } from "../draw/heat.ts";
import type { Box } from "../tree/box.ts";
import { isUnknown, type Sum } from "../tree/forest.ts";
import type { Fact } from "./rows.ts";

const WHOLE = new Set(["gradient_norm", "activation_norm", "bound", "relevance", "peak_share"]);

/** An amount of a metric as text. */
export function metricText(app: App, name: string, amount: number): string {
  const { run } = app;
  if (name === "bound") return BOUNDS[amount] || "nothing: a view";
  if (name === "start_ns" || name === "scope_start_ns")
    return duration(amount - (run.metric("scope_start_ns", 0) ?? run.metric("start_ns", 0) ?? 0));
  return showFor(name)(amount);
}

/** Rows for what two runs share: A, B and the difference, which sums that leave something out have none of. Empty where this is no comparison. */
export function comparedRows(app: App, box: Box | null, node: number): Fact[] {
  const { run } = app;
  if (!run.difference) return [];
  const status = box ? box.difference : run.difference[node];
  const read = (name: string): Sum | null => {
    if (box) return box.forest.sum(name, box.start, box.end);
    const amount = run.metric(name, node);
    return { total: amount ?? 0, known: amount === null ? 0 : 1, unknown: amount === null ? 1 : 0 };
  };
  const cell = (name: string, base: string, isThere: boolean): string => {
    const sum = isThere ? read(name) : null;
    if (!sum) return "–";
    return isUnknown(sum) ? "not known" : (sum.unknown ? "≥ " : "") + showFor(base)(sum.total);
  };
  const difference = (name: string, base: string): string => {
    const sum = read(name);
    return !sum || sum.unknown ? "" : signed(showFor(base))(sum.total);
  };
  const rows: Fact[] = [];
  for (const [name, delta] of Object.entries(COMPARED)) {
    if (!run.metrics.has(delta)) continue;
    rows.push([
      metricLabel(name),
      cell(`${name}@a`, name, status !== ADDED),
      cell(name, name, status !== REMOVED),
      difference(delta, name),
    ]);
  }
  return rows;
}

/** The metrics of one operation, or of one call of a module. */
export function singleRows(app: App, along: "node" | "scope", row: number): Fact[] {
  const { run } = app;
  const rows: Fact[] = [];
  for (const metric of run.metrics.values()) {
    if (
      metric.along !== along ||
      metric.name.startsWith("difference") ||
      isCompared(app, metric.name) ||
      run.isAbsent(metric, row)
    )
      continue;
    const amount = run.metric(metric.name, row);
    if (METRIC_INFO[metric.name]?.isRare && !amount) continue;
    rows.push([metricLabel(metric.name), amount === null ? "not known" : metricText(app, metric.name, amount)]);
  }
  return rows;
}

/** The metrics of a group: sums, and what else a heat map shows of it. */
export function groupRows(app: App, box: Box): Fact[] {
  const { run } = app;
  const rows: Fact[] = [];
  for (const { name, along } of run.metrics.values()) {
    if (
      along !== "node" ||
      METRIC_INFO[name]?.isSummed === false ||
      name.startsWith("difference") ||
      isCompared(app, name)
    )
      continue;
    const sum = box.forest.sum(name, box.start, box.end);
    if (!sum || (run.difference && box.difference === REMOVED)) continue;
    if (METRIC_INFO[name]?.isRare && !sum.total) continue;
    // Of a module, the table of modules says how many it holds; here each would count where it is first used.
    if (name === "parameters" && !run.difference && box.kind === "module" && !run.isFunction(box.scope)) continue;
    const missing = sum.unknown ? ` (${plural(sum.unknown, "operation")} not known)` : "";
    // The time of a module is that of its calls, Python included; this is the sum over what ran in the box.
    const label = METRIC_INFO[name]?.heatLabel ?? metricLabel(name);
    rows.push([label, isUnknown(sum) ? "not known" : metricText(app, name, sum.total) + missing]);
  }
  for (const measure of app.measures) {
    if (!WHOLE.has(measure.id) || (measure.applies && !measure.applies(box))) continue;
    const amount = measure.of(box);
    rows.push([measure.label, amount === null ? "not known" : measure.show(amount)]);
  }
  return rows;
}

function isCompared(app: App, name: string): boolean {
  return app.run.difference !== null && name in COMPARED && app.run.metrics.has(COMPARED[name]);
}
