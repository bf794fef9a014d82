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
  IN_PLACE_SUM: 64,
  COLLECTIVE: 128,
} as const;
export const FLAGS: [bit: number, name: string][] = [
  [1, "escape"],
  [2, "random"],
  [4, "opaque"],
  [8, "recompute"],
  [16, "view"],
  [32, "grad mode"],
  [64, "in place sum"],
  [128, "collective"],
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
  | "result_kind"
  | "node_api"
  | "node_api_first"
  | "comm_node"
  | "comm_group"
  | "comm_seq"
  | "comm_peer"
  | "comm_tag"
  | "wait_node"
  | "wait_comm"
  | "resize_storage"
  | "resize_node"
  | "resize_bytes"
  | "placed_value"
  | "placed_how";

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

/** Of memory, by use. */
export const USE_COLORS = [
  "#8a94a3", // parameter
  "#9b6cc9", // optimizer state
  "#c9b184", // buffer or input
  "#dd8a2c", // gradient
  "#2f86c8", // saved for backward
  "#5f9e35", // activation
  "#cf3f49", // temporary
  "#12908e", // KV cache
];

export interface MetricInfo {
  /** Its name in words. */
  label: string;
  /** Without one, it is a plain number. */
  unit?: "ns" | "B" | "FLOP" | "count" | "share";
  /** That the figures of several operations are not added up. */
  isSummed?: false;
  /** That boxes are not coloured by the sum of it. */
  isHeat?: false;
  /** What it is called there, if not by its label. */
  heatLabel?: string;
  /** That it is told only of operations that have some. */
  isRare?: true;
  /** In a comparison, the metric of which this is B − A. */
  differenceOf?: string;
}

export const METRIC_INFO: Partial<Record<string, MetricInfo>> = {
  start_ns: { label: "starts at", unit: "ns", isSummed: false, isHeat: false },
  time_ns: { label: "time", unit: "ns", heatLabel: "time of operations" },
  time_low_ns: { label: "time, lowest", unit: "ns", isSummed: false, isHeat: false },
  time_high_ns: { label: "time, highest", unit: "ns", isSummed: false, isHeat: false },
  waited_ns: { label: "waited for other ranks", unit: "ns", heatLabel: "waited" },
  kernel_start_ns: { label: "kernels start at", unit: "ns", isSummed: false, isHeat: false },
  kernel_ns: { label: "time of its kernels", unit: "ns", heatLabel: "time of kernels" },
  kernel_low_ns: { label: "kernels, lowest", unit: "ns", isSummed: false, isHeat: false },
  kernel_high_ns: { label: "kernels, highest", unit: "ns", isSummed: false, isHeat: false },
  alloc_bytes: { label: "memory allocated", unit: "B" },
  free_bytes: { label: "memory freed", unit: "B", isHeat: false },
  live_bytes: { label: "memory alive after it", unit: "B", isSummed: false, isHeat: false },
  flops: { label: "FLOPs", unit: "FLOP" },
  macs: { label: "multiply-adds", unit: "count" },
  moved_bytes: { label: "bytes accessed", unit: "B" },
  parameters: { label: "parameters", unit: "count" },
  norm: { label: "norm of the result", isSummed: false, isHeat: false },
  nans: { label: "NaN values", isRare: true },
  infs: { label: "infinite values", isRare: true },
  units: { label: "units", isHeat: false, isRare: true },
  dead_units: { label: "dead units", isRare: true },
  saturated_units: { label: "saturated units", isRare: true },
  lowest: { label: "lowest number", isSummed: false, isHeat: false },
  highest: { label: "highest number", isSummed: false, isHeat: false },
  given_nans: { label: "NaN values before the run", isSummed: false, isHeat: false },
  given_infs: { label: "infinite values before the run", isSummed: false, isHeat: false },
  bound: { label: "bound by", isSummed: false, isHeat: false },
  peak_share: { label: "share of the peak reached", unit: "share", isSummed: false, isHeat: false },
  relevance: { label: "relevance", isSummed: false, isHeat: false },
  scope_start_ns: { label: "call starts at", unit: "ns", isSummed: false, isHeat: false },
  scope_time_ns: { label: "time of the call", unit: "ns", isSummed: false, isHeat: false },
  scope_time_low_ns: { label: "call, lowest", unit: "ns", isSummed: false, isHeat: false },
  scope_time_high_ns: { label: "call, highest", unit: "ns", isSummed: false, isHeat: false },
  scope_self_ns: { label: "self time of the call", unit: "ns", isHeat: false },
  scope_host_ns: { label: "of it Python", unit: "ns", isSummed: false, isHeat: false },
  difference: { label: "difference", isSummed: false, isHeat: false },
  difference_ns: { label: "time, B − A", unit: "ns", differenceOf: "time_ns" },
  difference_bytes: { label: "memory, B − A", unit: "B", differenceOf: "alloc_bytes" },
  difference_flops: { label: "FLOPs, B − A", unit: "FLOP", differenceOf: "flops" },
  difference_moved_bytes: { label: "bytes accessed, B − A", unit: "B", differenceOf: "moved_bytes" },
  difference_parameters: { label: "parameters, B − A", unit: "count", differenceOf: "parameters" },
};
