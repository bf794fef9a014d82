/** Colours of the canvas, light and dark; families keep their hue in both, and never stand for anything alone. */

export interface Theme {
  dark: boolean;
  ground: string;
  frames: string[];
  frameLine: string;
  card: string;
  cardLine: string;
  ink: string;
  faint: string;
  wire: string;
  wireLater: string; // of the backward pass, where it is laid over the forward one
  accent: string;
  producer: string;
  consumer: string;
  link: string;
  plate: string;
  heat: string[];
  diverging: string[];
  unknown: string;
  broken: string; // where a compiled graph broke
  difference: string[];
  differenceFar: string[];
}

/** Every colour in light and in dark. */
const COLORS: { [Name in keyof Omit<Theme, "dark">]: [light: Theme[Name], dark: Theme[Name]] } = {
  ground: ["#f4f5f8", "#12151b"],
  frames: [
    ["#ffffff", "#f8f9fb", "#ffffff"],
    ["#1a1f27", "#1f252e", "#1a1f27"],
  ],
  frameLine: ["#d3d8e0", "#353d49"],
  card: ["#ffffff", "#262d38"],
  cardLine: ["#c5ccd6", "#47515f"],
  ink: ["#1b2330", "#e8ecf2"],
  faint: ["#657080", "#9aa6b5"],
  wire: ["#a9b2bf", "#5e6978"],
  wireLater: ["#e0ab78", "#8a6236"],
  accent: ["#2460d8", "#6ea2ff"],
  producer: ["#0a7d8c", "#4fc3d0"],
  consumer: ["#c2570c", "#f19a52"],
  link: ["#8b3fc7", "#c08bf0"],
  plate: ["#eef1f5", "#2b333f"],
  heat: [
    ["#fff6e9", "#fedcb0", "#fdb468", "#f17c2a", "#c64a08", "#7c2503"],
    ["#2a2320", "#59301a", "#8f4312", "#c8620f", "#f29436", "#ffd9a0"],
  ],
  diverging: [
    ["#1f5fbf", "#8fb5e6", "#f4f4f4", "#f3b077", "#c2570c"],
    ["#7fb2ff", "#375f95", "#2b323c", "#8a5528", "#ffab66"],
  ],
  unknown: ["#ffffff", "#1a1f27"],
  broken: ["#d97706", "#f59e0b"],
  difference: [
    ["#ffffff", "#cfe8ff", "#ffe0c7", "#efe2fb"],
    ["#262d38", "#173e5e", "#5a3413", "#442b5c"],
  ],
  differenceFar: [
    ["#ccd2db", "#4f9fe8", "#ee8f45", "#ab78dc"],
    ["#47515f", "#3f8fd0", "#c8752e", "#9866c9"],
  ],
};

function themed(dark: boolean): Theme {
  const colors = Object.entries(COLORS).map(([name, both]) => [name, both[dark ? 1 : 0]]);
  return { dark, ...(Object.fromEntries(colors) as Omit<Theme, "dark">) };
}

export const LIGHT = themed(false);
export const DARK = themed(true);

/** Hues that stay apart for the colour-blind; a box says its name as well. */
export const FAMILIES: Record<string, string> = {
  attention: "#d95f4c",
  convolution: "#7a6bd1",
  recurrent: "#b45fb0",
  "matrix product": "#2f86c8",
  embedding: "#9b6cc9",
  normalisation: "#d1a10f",
  pooling: "#1fa08c",
  loss: "#cf3f49",
  activation: "#5f9e35",
  random: "#d67aa6",
  optimizer: "#84973a",
  reduction: "#dd8a2c",
  memory: "#9a948a",
  compiled: "#6b7280",
  elementwise: "#7d93ab",
  module: "#8a94a3",
};

export function mixed(stops: string[], share: number): string {
  const index = Math.min(Math.max(share, 0), 1) * (stops.length - 1);
  const lower = Math.min(Math.floor(index), stops.length - 2);
  return blend(stops[lower], stops[lower + 1], index - lower);
}

const blends = new Map<string, string>();
const MOST_BLENDS = 4096;

export function blend(a: string, b: string, share: number): string {
  const key = `${a}${b}${share}`;
  let result = blends.get(key);
  if (result === undefined) {
    if (blends.size >= MOST_BLENDS) blends.clear();
    blends.set(key, (result = blended(a, b, share)));
  }
  return result;
}

function blended(a: string, b: string, share: number): string {
  const first = channels(a);
  const two = channels(b);
  const parts = first.map((c, i) =>
    Math.round(c + (two[i] - c) * share)
      .toString(16)
      .padStart(2, "0"),
  );
  return `#${parts.join("")}`;
}

function channels(color: string): number[] {
  return [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16));
}

export function inkOn(fill: string): string {
  const [r, g, b] = channels(fill);
  return 0.299 * r + 0.587 * g + 0.114 * b < 135 ? "#ffffff" : "#1b2330";
}
