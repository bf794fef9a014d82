/** What a graph consists of. Written by tools/viewer_schema.py from Python's graph/schema.py and graph/metrics.py. */

export const Phase = {
  FORWARD: 0,
  BACKWARD: 1,
  OPTIMIZER: 2,
} as const;
export const PHASES = ["forward", "backward", "optimizer"];

export const Role = {
  ACTIVATION: 0,
  INPUT: 1,
  PARAMETER: 2,
  BUFFER: 3,
  CONSTANT: 4,
  GRADIENT: 5,
  OPTIMIZER_STATE: 6,
  OUTPUT: 7,
} as const;
export const ROLES = [
  "activation",
  "input",
  "parameter",
  "buffer",
  "constant",
  "gradient",
  "optimizer state",
  "output",
];

export const Kind = {
  DATA: 0,
  WHOLE: 1,
  SHAPE: 2,
} as const;
export const KINDS = ["data", "whole", "shape"];

export const Flag = {
  ESCAPE: 1,
  RANDOM: 2,
  OPAQUE: 4,
  RECOMPUTE: 8,
  VIEW: 16,
  GRAD_MODE: 32,
} as const;
export const FLAGS: [bit: number, name: string][] = [
  [1, "escape"],
  [2, "random"],
  [4, "opaque"],
  [8, "recompute"],
  [16, "view"],
  [32, "grad mode"],
];

/** The columns of a graph, by name. */
export type ColumnName =
  | "node_call"
  | "node_scope"
  | "node_site"
  | "node_link"
  | "node_phase"
  | "node_flags"
  | "in_start"
  | "out_start"
  | "in_value"
  | "in_slot"
  | "in_kind"
  | "out_value"
  | "out_slot"
  | "value_producer"
  | "value_type"
  | "value_storage"
  | "value_offset"
  | "value_carries"
  | "value_name"
  | "value_role"
  | "storage_bytes"
  | "storage_birth"
  | "storage_death"
  | "storage_device"
  | "scope_parent"
  | "scope_module"
  | "scope_call"
  | "result_start"
  | "result_value"
  | "result_kind";

/** Short names of element types. */
export const SHORT_DTYPE: Record<string, string> = {
  float32: "f32",
  float64: "f64",
  float16: "f16",
  bfloat16: "bf16",
  int64: "i64",
  int32: "i32",
  int16: "i16",
  int8: "i8",
  uint8: "u8",
  complex64: "c64",
  complex128: "c128",
};

export interface MetricInfo {
  /** Its name in words. */
  label: string;
  unit: "" | "ns" | "B" | "FLOP" | "count" | "share";
  /** Whether the figures of several operations may be added up. */
  isSummed: boolean;
  /** Whether boxes may be coloured by the sum of it. */
  isHeat: boolean;
  /** What it is called there. */
  heatLabel: string;
  /** Whether it is told only of operations that have some. */
  isRare: boolean;
  /** In a comparison, the metric of which this is B − A. */
  differenceOf: string;
}

export const METRIC_INFO: Partial<Record<string, MetricInfo>> = {
  start_ns: {
    label: "began after",
    unit: "ns",
    isSummed: false,
    isHeat: false,
    heatLabel: "began after",
    isRare: false,
    differenceOf: "",
  },
  time_ns: {
    label: "time",
    unit: "ns",
    isSummed: true,
    isHeat: true,
    heatLabel: "inclusive time",
    isRare: false,
    differenceOf: "",
  },
  time_low_ns: {
    label: "time, lowest",
    unit: "ns",
    isSummed: false,
    isHeat: false,
    heatLabel: "time, lowest",
    isRare: false,
    differenceOf: "",
  },
  time_high_ns: {
    label: "time, highest",
    unit: "ns",
    isSummed: false,
    isHeat: false,
    heatLabel: "time, highest",
    isRare: false,
    differenceOf: "",
  },
  kernel_start_ns: {
    label: "kernels began after",
    unit: "ns",
    isSummed: false,
    isHeat: false,
    heatLabel: "kernels began after",
    isRare: false,
    differenceOf: "",
  },
  kernel_ns: {
    label: "time of its kernels",
    unit: "ns",
    isSummed: true,
    isHeat: true,
    heatLabel: "time of kernels",
    isRare: false,
    differenceOf: "",
  },
  kernel_low_ns: {
    label: "kernels, lowest",
    unit: "ns",
    isSummed: false,
    isHeat: false,
    heatLabel: "kernels, lowest",
    isRare: false,
    differenceOf: "",
  },
  kernel_high_ns: {
    label: "kernels, highest",
    unit: "ns",
    isSummed: false,
    isHeat: false,
    heatLabel: "kernels, highest",
    isRare: false,
    differenceOf: "",
  },
  alloc_bytes: {
    label: "memory allocated",
    unit: "B",
    isSummed: true,
    isHeat: true,
    heatLabel: "memory allocated",
    isRare: false,
    differenceOf: "",
  },
  free_bytes: {
    label: "memory freed",
    unit: "B",
    isSummed: true,
    isHeat: false,
    heatLabel: "memory freed",
    isRare: false,
    differenceOf: "",
  },
  live_bytes: {
    label: "memory alive after it",
    unit: "B",
    isSummed: false,
    isHeat: false,
    heatLabel: "memory alive after it",
    isRare: false,
    differenceOf: "",
  },
  flops: {
    label: "FLOPs",
    unit: "FLOP",
    isSummed: true,
    isHeat: true,
    heatLabel: "FLOPs",
    isRare: false,
    differenceOf: "",
  },
  macs: {
    label: "multiply-adds",
    unit: "count",
    isSummed: true,
    isHeat: true,
    heatLabel: "multiply-adds",
    isRare: false,
    differenceOf: "",
  },
  moved_bytes: {
    label: "bytes moved",
    unit: "B",
    isSummed: true,
    isHeat: true,
    heatLabel: "bytes moved",
    isRare: false,
    differenceOf: "",
  },
  parameters: {
    label: "parameters",
    unit: "count",
    isSummed: true,
    isHeat: true,
    heatLabel: "parameters",
    isRare: false,
    differenceOf: "",
  },
  norm: {
    label: "norm of the result",
    unit: "",
    isSummed: false,
    isHeat: false,
    heatLabel: "norm of the result",
    isRare: false,
    differenceOf: "",
  },
  nans: {
    label: "NaN values",
    unit: "",
    isSummed: true,
    isHeat: true,
    heatLabel: "NaN values",
    isRare: true,
    differenceOf: "",
  },
  infs: {
    label: "infinite values",
    unit: "",
    isSummed: true,
    isHeat: true,
    heatLabel: "infinite values",
    isRare: true,
    differenceOf: "",
  },
  units: {
    label: "units",
    unit: "",
    isSummed: true,
    isHeat: false,
    heatLabel: "units",
    isRare: true,
    differenceOf: "",
  },
  dead_units: {
    label: "dead units",
    unit: "",
    isSummed: true,
    isHeat: true,
    heatLabel: "dead units",
    isRare: true,
    differenceOf: "",
  },
  bound: {
    label: "bound by",
    unit: "",
    isSummed: false,
    isHeat: false,
    heatLabel: "bound by",
    isRare: false,
    differenceOf: "",
  },
  peak_share: {
    label: "share of the peak reached",
    unit: "share",
    isSummed: false,
    isHeat: false,
    heatLabel: "share of the peak reached",
    isRare: false,
    differenceOf: "",
  },
  relevance: {
    label: "relevance",
    unit: "",
    isSummed: false,
    isHeat: false,
    heatLabel: "relevance",
    isRare: false,
    differenceOf: "",
  },
  scope_start_ns: {
    label: "call began after",
    unit: "ns",
    isSummed: false,
    isHeat: false,
    heatLabel: "call began after",
    isRare: false,
    differenceOf: "",
  },
  scope_time_ns: {
    label: "call took",
    unit: "ns",
    isSummed: false,
    isHeat: false,
    heatLabel: "call took",
    isRare: false,
    differenceOf: "",
  },
  scope_time_low_ns: {
    label: "call, lowest",
    unit: "ns",
    isSummed: false,
    isHeat: false,
    heatLabel: "call, lowest",
    isRare: false,
    differenceOf: "",
  },
  scope_time_high_ns: {
    label: "call, highest",
    unit: "ns",
    isSummed: false,
    isHeat: false,
    heatLabel: "call, highest",
    isRare: false,
    differenceOf: "",
  },
  scope_self_ns: {
    label: "of it its own",
    unit: "ns",
    isSummed: true,
    isHeat: false,
    heatLabel: "of it its own",
    isRare: false,
    differenceOf: "",
  },
  scope_host_ns: {
    label: "of it Python",
    unit: "ns",
    isSummed: false,
    isHeat: false,
    heatLabel: "of it Python",
    isRare: false,
    differenceOf: "",
  },
  difference: {
    label: "difference",
    unit: "",
    isSummed: false,
    isHeat: false,
    heatLabel: "difference",
    isRare: false,
    differenceOf: "",
  },
  difference_ns: {
    label: "time, B − A",
    unit: "ns",
    isSummed: true,
    isHeat: true,
    heatLabel: "time, B − A",
    isRare: false,
    differenceOf: "time_ns",
  },
  difference_bytes: {
    label: "memory, B − A",
    unit: "B",
    isSummed: true,
    isHeat: true,
    heatLabel: "memory, B − A",
    isRare: false,
    differenceOf: "alloc_bytes",
  },
  difference_flops: {
    label: "FLOPs, B − A",
    unit: "FLOP",
    isSummed: true,
    isHeat: true,
    heatLabel: "FLOPs, B − A",
    isRare: false,
    differenceOf: "flops",
  },
  difference_moved_bytes: {
    label: "bytes moved, B − A",
    unit: "B",
    isSummed: true,
    isHeat: true,
    heatLabel: "bytes moved, B − A",
    isRare: false,
    differenceOf: "moved_bytes",
  },
  difference_parameters: {
    label: "parameters, B − A",
    unit: "count",
    isSummed: true,
    isHeat: true,
    heatLabel: "parameters, B − A",
    isRare: false,
    differenceOf: "parameters",
  },
};
