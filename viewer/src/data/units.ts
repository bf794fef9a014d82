/** Numbers as a person reads them, with their units. */

import { METRIC_INFO, type MetricInfo } from "./schema.gen.ts";

export type Show = (amount: number) => string;

function scaled(amount: number, step: number, units: string[]): string {
  let index = 0;
  let left = Math.abs(amount);
  while (left >= (step > 1000 && !index ? step : 999.5) && index < units.length - 1) {
    left /= step;
    index += 1;
  }
  const digits = index === 0 && Number.isInteger(amount) ? 0 : left >= 99.95 ? 0 : left >= 9.995 ? 1 : 2;
  return `${amount < 0 ? "−" : ""}${fixed(left, digits)}${units[index] ? ` ${units[index]}` : ""}`;
}

/** As Python rounds: of two that are equally near the even one, which sizes in memory often have to choose between. */
function fixed(amount: number, digits: number): string {
  const parts = amount * 10 ** digits;
  const lower = Math.floor(parts);
  const isHalf = parts - lower === 0.5 && Number.isInteger(amount * 8);
  return (isHalf && lower % 2 === 0 ? lower / 10 ** digits : amount).toFixed(digits);
}

/** As Python writes it, in minutes and hours as well. */
export const duration: Show = (ns) => {
  if (Math.abs(ns) < 99.95e9) return scaled(ns, 1000, ["ns", "µs", "ms", "s"]);
  const minutes = Math.round(Math.abs(ns) / 6e10);
  const sign = ns < 0 ? "−" : "";
  if (minutes < 60) return `${sign}${(Math.abs(ns) / 6e10).toFixed(1)} min`;
  return `${sign}${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, "0")} min`;
};
export const size: Show = (bytes) => scaled(bytes, 1024, ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]);
/** Amounts of something that is named with them: "1.50 GFLOP". */
export function amountOf(unit: string): Show {
  return (n) =>
    scaled(
      n,
      1000,
      ["", "k", "M", "G", "T", "P"].map((prefix) => prefix + unit),
    );
}

/** With a sign always: a difference. */
export function signed(show: Show): Show {
  return (n) => (n > 0 ? `+${show(n)}` : show(n));
}

export const percent: Show = (share) => `${(100 * share).toFixed(share && share < 0.0995 ? 1 : 0)} %`;
/** As Python writes it: exact while it is short. */
export const amount: Show = (n) =>
  Number.isInteger(n) && Math.abs(n) < 10_000 ? count(n) : scaled(n, 1000, ["", "k", "M", "G", "T", "P"]);
const minus = (text: string): string => text.replace(/^-/, "−");
export const plain: Show = (n) =>
  minus(
    Number.isInteger(n)
      ? n.toLocaleString("en-US")
      : Math.abs(n) >= 1e5 || Math.abs(n) < 1e-3
        ? n.toExponential(2)
        : String(Number(n.toPrecision(4))),
  );
export const count: Show = (n) => minus(n.toLocaleString("en-US"));

const SHOWS: Record<NonNullable<MetricInfo["unit"]>, Show> = {
  ns: duration,
  B: size,
  FLOP: amount,
  count: amount,
  share: percent,
};

/** How a metric's amounts are written: in its unit or, if nothing is known of it, in the one that its name ends in. */
export function showFor(name: string): Show {
  const info = METRIC_INFO[name];
  if (info) return info.unit ? SHOWS[info.unit] : plain;
  return name.endsWith("_ns") ? duration : name.endsWith("_bytes") ? size : plain;
}

/** What a metric is called: in words or, if nothing is known of it, by its name without the unit. */
export function metricLabel(name: string): string {
  return METRIC_INFO[name]?.label ?? name.replace(/_(ns|bytes)$/, "").replaceAll("_", " ");
}

const UNITS: Record<string, number> = {
  ns: 1,
  us: 1e3,
  µs: 1e3,
  ms: 1e6,
  s: 1e9,
  b: 1,
  kb: 1e3,
  mb: 1e6,
  gb: 1e9,
  kib: 1024,
  mib: 1024 ** 2,
  gib: 1024 ** 3,
  k: 1e3,
  m: 1e6,
  g: 1e9,
  t: 1e12,
};

/** Several amounts in one unit, that of the largest, as an axis has them. */
export function sizes(bytes: number[]): string[] {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const most = Math.max(...bytes);
  const index = Math.max(0, Math.min(units.length - 1, Math.floor(Math.log2(Math.max(1, most)) / 10)));
  return bytes.map(
    (amount) =>
      `${(amount / 1024 ** index).toFixed(index && most / 1024 ** index < 100 ? (most / 1024 ** index < 10 ? 2 : 1) : 0)} ${units[index]}`,
  );
}

/** "1.5ms" as a number in the metric's own unit, NaN where it is none. */
export function parseAmount(text: string): number {
  const match = /^(-?[\d.]+(?:e[+-]?\d+)?)\s*([a-zµ]*)$/i.exec(text.trim());
  if (!match) return NaN;
  const unit = match[2].toLowerCase();
  if (unit && !(unit in UNITS)) return NaN;
  return Number(match[1]) * (unit ? UNITS[unit] : 1);
}
