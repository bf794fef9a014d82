/** Colours of the page of ranks: phases of a program, axes of a mesh. */

/** Forward, backward, optimizer; light and dark. */
export const PHASE_COLORS: [light: string, dark: string][] = [
  ["#5a9bd8", "#4a86c2"],
  ["#e3a35c", "#bd7d38"],
  ["#a3ad5c", "#8a944a"],
];

/** Of mesh axes, in the order in which they are met: they stay apart for the colour-blind, and from those of phases. */
export const AXIS_COLORS: [light: string, dark: string][] = [
  ["#7a3fc0", "#c39bf5"],
  ["#00857a", "#45d0c0"],
  ["#c22f6b", "#ff8ab5"],
  ["#3d5a00", "#b6d957"],
  ["#5b4636", "#d8b89c"],
  ["#14559e", "#86bdff"],
];

export const WAIT_COLOR: [light: string, dark: string] = ["#c0392b", "#ff7b6b"];

export function pick(pair: [light: string, dark: string], dark: boolean): string {
  return pair[dark ? 1 : 0];
}
