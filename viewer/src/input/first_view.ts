/** What is open at first: as many levels as can be read in the window, and the way to the largest repeat. */

import type { App } from "../app.ts";
import { LEGIBLE } from "../draw/fitting.ts";
import type { View } from "../draw/view.ts";
import type { Box, Opening } from "../tree/box.ts";
import { eachShown, openingOf } from "../tree/expansion.ts";

const MOST_BOXES = 90;
const MOST_STEPS = 6;
const LONE = 8; // boxes beside a module up to which it counts as what the frame is about
const ENOUGH = 3; // instances that make a repeat worth a step further in
const MANY = 6; // in one phase alone
const COMFORTABLE = 0.75; // scale for another level; for a repeat to be seen, the least that can be read will do

/** Open level by level while names can be read when all of it is fitted; leaves the scene laid out. */
export async function openFirstView(app: App, view: View): Promise<void> {
  app.room = view.room;
  const { roots } = app;
  for (const root of roots) for (const box of snapshot(root).keys()) if (box !== root) box.opening = "closed";
  const levels = roots.map(openLone);
  await app.relayout();
  app.room = view.room; // now that there is a legend
  await app.relayout();
  for (let step = 0; step < MOST_STEPS; step++) {
    const before = roots.map(snapshot);
    const opened = roots.map((root, i) => openLevel(root, levels[i] + step));
    if (!opened.some(Boolean)) break;
    if (await fits(app, view, COMFORTABLE)) continue;
    before.forEach(restore);
    break;
  }
  if (!(await showRepeats(app, view, roots, ENOUGH)))
    for (const root of roots) await showRepeats(app, view, [root], MANY);
  await app.relayout();
}

/** Open the way to the largest repeats, in all of these or in none. */
async function showRepeats(app: App, view: View, roots: Box[], least: number): Promise<boolean> {
  const before = roots.map(snapshot);
  let opened = false;
  roots.forEach((root, i) => {
    if (repeatShown(root)) return;
    if (openToRepeat(root) >= least) opened = true;
    else restore(before[i]);
  });
  if (!opened || (await fits(app, view, LEGIBLE))) return true;
  before.forEach(restore);
  return false;
}

async function fits(app: App, view: View, scale: number): Promise<boolean> {
  let boxes = 0;
  for (const root of app.roots) boxes += visible(root);
  if (boxes > MOST_BOXES || !(await app.relayout())) return false;
  const { width, height } = app.scene!;
  return view.around({ x: 0, y: 0, w: width, h: height }).scale >= scale;
}

/** Open the modules that are alone in their frame; returns the level that comes next. */
function openLone(root: Box): number {
  let lone = root;
  while (true) {
    const inside = lone.children.filter((box) => !box.isView);
    const modules = inside.filter((box) => box.canOpen);
    if (modules.length !== 1 || inside.length > LONE || modules[0].kind !== "module") return lone.level + 1;
    modules[0].opening = "all";
    lone = modules[0];
  }
}

function openLevel(root: Box, level: number): boolean {
  const results: Box[] = [];
  eachShown(root, (box) => {
    if (box.opening === "closed" && box.canOpen && box.level <= level && results.length < MOST_BOXES) results.push(box);
  });
  const worth = results.filter((box) => box.children.some((child) => child.canOpen));
  for (const box of worth) box.opening = openingOf(box);
  return worth.length > 0;
}

function isRepeat(box: Box): boolean {
  return box.kind === "fold" && box.count >= ENOUGH && box.elements[0] < 0;
}

function repeatShown(root: Box): boolean {
  let result = false;
  eachShown(root, (box) => (result ||= isRepeat(box)));
  return result;
}

/** Open what weighs most, and in it what weighs most, until a repeat of modules is to be seen; returns how many it has. */
function openToRepeat(root: Box): number {
  let box = root;
  while (true) {
    const inside = box.inside.filter((child) => child.canOpen);
    const repeats = inside.filter(isRepeat);
    if (repeats.length) return Math.max(...repeats.map((repeat) => repeat.count));
    if (!inside.length) return 0;
    box = inside.reduce((a, b) => (b.operations > a.operations ? b : a));
    if (box.kind !== "module") return 0;
    if (box.opening === "closed") box.opening = "all";
  }
}

function visible(root: Box): number {
  let count = 0;
  eachShown(root, (box) => {
    if (box.opening === "closed" && !box.isView) count += 1;
  });
  return count;
}

type Openings = Map<Box, Opening>;

function snapshot(root: Box): Openings {
  const result: Openings = new Map();
  eachShown(root, (box) => result.set(box, box.opening));
  return result;
}

function restore(openings: Openings): void {
  for (const [box, opening] of openings) box.opening = opening;
}
