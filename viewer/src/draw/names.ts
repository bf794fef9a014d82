/** The names of frames seen from farther away: larger than the rest, but only where nothing else stands. */

import type { FrameResult } from "../layout/frames.ts";
import { READABLE } from "./fitting.ts";
import type { Column } from "./scene.ts";

/** Below the upper border of a frame, from its left: so far to the right nothing stands in so much of its height. */
export type Step = [width: number, height: number];

export const NAMES_FROM = 0.32; // scale from which on the names of boxes can be read, and frames have their buttons
const ABOVE = 6; // from the border to the name
const BELOW = 3; // from the name to what stands below it
const HIGH = 22;
const SIDE = 8;
const MARK = 24; // beside the letters, for what a name is set on
const TAG = 15; // what a box that reads without a line has above it
const SMALLEST = 11 / 13; // of a letter, on the screen
const SMALL = SMALLEST;
const CUT = 0.8; // of a long name, what has to be left for it to tell what it is
const LONG = 90;

const known = new WeakMap<FrameResult, Step[]>();

/** Where a frame has room for its name. */
export function freeSteps(column: Column, frame: number): Step[] {
  const result = column.results[frame];
  let match = known.get(result);
  if (!match) known.set(result, (match = stepsOf(column, frame)));
  return match;
}

function stepsOf({ picture, results }: Column, frame: number): Step[] {
  const { x, y, width, height } = results[frame];
  const { items } = picture.frames[frame];
  const cells = [...items.keys()].filter((cell) => items[cell] >= 0).sort((a, b) => x[a] - x[b]);
  const steps: Step[] = [];
  let lowest = height;
  for (const cell of cells) {
    const top = y[cell] - (picture.items[items[cell]].tags.length ? TAG : 0);
    if (top >= lowest) continue;
    steps.push([x[cell], lowest]);
    lowest = top;
  }
  return [...steps, [width, lowest]];
}

export interface NamePlace {
  grow: number; // of the name
  buttons: number; // the same of its buttons, which stay in the strip that is kept for both
  room: number; // how far the name and what is beside it may reach from the left of the frame
}

/**
 * How large the name of a frame is, seen at a scale, and no larger than that of the frame `around` it.
 *
 * It is null where it would have to lie on something or could not be read.
 */
export function placeOf(
  steps: Step[],
  result: { width: number; height: number },
  name: number,
  beside: number,
  scale: number,
  around: number,
): NamePlace | null {
  const strip = steps[steps.length - 1][1];
  const buttons = Math.min(READABLE / scale, largest(strip));
  const most = Math.min(READABLE / scale, result.height / 48, around);
  const room = result.width - beside * buttons;
  const fitting = (letters: number): number =>
    Math.min(
      most,
      steps.reduce(
        (best, [w, h]) => Math.max(best, Math.min(largest(h), Math.min(w, room) / (letters + MARK + SIDE))),
        0,
      ),
    );
  const whole = fitting(name);
  const least = Math.min(most, SMALL / scale);
  const grow = whole >= least ? whole : name > LONG && fitting(name * CUT) >= least ? least : whole;
  if (grow * scale < SMALLEST) return null;
  const reach = steps.filter(([, h]) => largest(h) >= grow - 1e-9).reduce((far, [w]) => Math.max(far, w), 0);
  return { grow, buttons, room: Math.min(reach, room) };
}

function largest(height: number): number {
  return Math.max(0, height - ABOVE - BELOW) / HIGH;
}
