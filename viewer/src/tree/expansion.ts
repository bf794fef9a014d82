/** Which boxes are open: the first view, depths, and opening the way to an operation. */

import type { Box, Opening } from "./box.ts";
import type { Picture } from "./picture.ts";

const ROOM = 14; // boxes that a person takes in at once
const DEEPEST = 40;

/** Open the modules that are alone in their frame, then level by level while there is room; returns how many levels. */
export function openAtFirst(root: Box, most = DEEPEST): number {
  let lone = root;
  while (true) {
    const inside = lone.children.filter((box) => !box.isView);
    const modules = inside.filter((box) => box.canOpen);
    if (modules.length !== 1 || inside.length > 8 || modules[0].kind !== "module") break;
    modules[0].opening = "all";
    lone = modules[0];
  }
  const base = lone.level + 1;
  const limit = most < DEEPEST ? 3 * ROOM : ROOM; // the others follow the first, unless they would be unreadable
  for (let depth = 1; depth <= most; depth++) {
    const before = snapshot(root);
    if (!openLevel(root, base + depth - 1, true)) return depth - 1;
    if (countVisible(root) > limit) {
      restore(before);
      return depth - 1;
    }
  }
  return most;
}

/** Open everything up to a depth, and close what is deeper. */
export function openToDepth(root: Box, depth: number): void {
  eachShown(root, (box) => {
    if (box.canOpen && box !== root) box.opening = box.level < depth ? openingOf(box) : "closed";
  });
}

/** How deep the picture is open now. */
export function depthOf(root: Box): number {
  let deepest = 0;
  eachShown(root, (box) => {
    if (box !== root && box.opening !== "closed") deepest = Math.max(deepest, box.level + 1);
  });
  return deepest;
}

export function openingOf(box: Box): Opening {
  return box.kind === "fold" ? "one" : "all";
}

export function openAll(root: Box, most: number): number {
  let opened = 0;
  const stack = [root];
  while (stack.length && opened < most) {
    const box = stack.pop()!;
    if (!box.canOpen) continue;
    box.opening = "all";
    opened += box.children.length;
    for (let i = box.children.length - 1; i >= 0; i--) stack.push(box.children[i]);
  }
  return opened;
}

export function closeAll(root: Box): void {
  eachShown(root, (box) => {
    if (box !== root) box.opening = "closed";
  });
}

function openLevel(root: Box, level: number, callsOnly: boolean): boolean {
  let opened = false;
  const results: Box[] = [];
  eachShown(root, (box) => {
    if (box.opening === "closed" && box.canOpen && box.level <= level) results.push(box);
  });
  for (const box of results) {
    if (callsOnly && !box.children.some((child) => child.canOpen)) continue;
    box.opening = openingOf(box);
    opened = true;
  }
  return opened;
}

function countVisible(root: Box): number {
  let count = 0;
  eachShown(root, (box) => {
    if (box.opening === "closed" && !box.isView) count += 1;
  });
  return count;
}

/** How each box that was to be seen was opened, and which instance of a repeat stood for all. */
export type Openings = Map<Box, { opening: Opening; shown: number }>;

export function snapshot(root: Box): Openings {
  const results: Openings = new Map();
  eachShown(root, (box) => results.set(box, { opening: box.opening, shown: box.shown }));
  return results;
}

export function restore(openings: Openings): void {
  for (const [box, { opening, shown }] of openings) {
    box.opening = opening;
    box.shown = shown;
  }
}

/** Every box that is to be seen, frames before what is in them. */
export function eachShown(root: Box, see: (box: Box) => void): void {
  const stack = [root];
  while (stack.length) {
    const box = stack.pop()!;
    see(box);
    if (box.opening === "closed") continue;
    const { inside } = box;
    for (let i = inside.length - 1; i >= 0; i--) stack.push(inside[i]);
  }
}

/** The boxes from the root to the operation at a position; with `open`, all of them but the last are opened. */
export function wayTo(root: Box, position: number, open: boolean, to: Box | null = null): Box[] {
  const way: Box[] = [];
  let box = root;
  while (true) {
    way.push(box);
    if (box === to || !box.canOpen) return way;
    if (box.opening === "closed" && !open) return way;
    let inside = box.children;
    if (box.kind === "fold" && (box.opening === "one" || (open && box.opening === "closed"))) {
      const index = inside.findIndex((child) => position >= child.start && position < child.end);
      if (index < 0) return way;
      if (open) {
        box.opening = "one";
        box.shown = index;
      } else if (index !== box.shown) return way;
      if (inside[index] === to) return way;
      if (inside[index].canOpen) inside = inside[index].children;
    } else if (open && box.opening === "closed") box.opening = "all";
    const next = inside.find((child) => position >= child.start && position < child.end);
    if (!next) return way;
    box = next;
  }
}

/** The box of the call of a module, what is around it opened; one of several alike is the repeat, opened at that one. */
export function wayToCall(root: Box, scope: number): Box | null {
  const way = wayTo(root, root.forest.start[scope], true);
  let at = way.findIndex((box) => box !== root && box.elements.length === 1 && box.elements[0] === ~scope);
  if (at < 0) at = way.findIndex((box) => box.kind === "fold" && box.elements.includes(~scope));
  const last = way[way.length - 1];
  if (at < 0) return last.kind === "op" && root.run.nodeScope[last.node] === scope ? last : null;
  for (const box of way.slice(at)) if (box.kind !== "fold" || box !== way[at]) box.opening = "closed";
  return way[at];
}

export function itemOf(picture: Picture, position: number): number {
  return position >= 0 ? picture.leaf[position] : -1;
}
