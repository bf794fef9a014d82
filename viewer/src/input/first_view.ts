/** What is open at first: the model, the repeat that weighs most, and what else weighs much, as far as it can be read. */

import type { App } from "../app.ts";
import { Phase } from "../data/schema.gen.ts";
import { AIM, largestScale, READABLE } from "../draw/fitting.ts";
import type { View } from "../draw/view.ts";
import type { Room } from "../layout/layered.ts";
import type { Box } from "../tree/box.ts";
import { eachShown, openingOf, restore, snapshot, type Openings } from "../tree/expansion.ts";
import { narrowerIn } from "./sidebar.ts";

const MOST_BOXES = 90;
const MOST_STEPS = 60;
const MOST_LOOKED_AT = 400; // boxes among which the heaviest repeat is looked for
const LONE = 8; // boxes beside a module up to which it counts as what the frame is about
const TRIED = 3; // boxes that are tried, the heaviest first, before the picture counts as full
const TRIED_IN_EMPTINESS = 8;
const HEAVY = 0.02; // of the run: what weighs less is opened only where there would be emptiness
const WORTH_A_CUT = 0.3; // of the run: for less, no chain is cut that can be read in one piece
const WORTH = 0.1; // of the run: a repeat that weighs less is not what the model is about
const MOST_OF_IT = 0.5; // of the run: what weighs so much is opened although the window shows only a part of it
const NOT_MUCH_TOO_LARGE = 1.5; // of the room: a part of it shows most of the sheet
export const MOST_REPEATS = 20;
const HALF = 0.62; // of the room, which is less than the window: more than half of that is to be used
const FEW_BOXES = 6;
const MOST_EMPTY = 0.55; // of the room: the least that is to be used of it
// Heights of the room that a layout is made for: in a lower one, chains stand in more columns; in a higher one, inner frames do not.
const LOWER = [1, 0.85, 0.7, 0.5, 0.35, 1.3];
const LOWER_AT_LAST = [1, 0.85, 0.7, 0.6, 0.5, 0.42, 0.35, 0.28, 1.15, 1.3, 1.6];
const SPREADS = [1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 7, 9]; // of the gaps: what would leave most of the window empty is set more widely
const NOT_TOO_WIDE = SPREADS.filter((spread) => spread <= 3); // where there is more to open, that is better
const MUCH_TOO_LARGE = 1.4; // of the room: what takes so much of it fits in no shape

/** Sizes of windows that many people have: what the first screen of a smaller one opens, that of a larger one opens as well. */
const WINDOWS: Room[] = [
  { w: 1280, h: 720 },
  { w: 1440, h: 900 },
  { w: 1920, h: 1080 },
  { w: 2560, h: 1440 },
];

/**
 * Open what weighs most, one box after another, while all that boxes say can be read when the whole is fitted.
 *
 * A repeat is what a model consists of: the heaviest is drawn, whatever is around it. Where there is no room for its inside,
 * it is opened all the same if not much is cut off, or little else is to be seen. Leaves the scene laid out; returns the
 * boxes that are to be in sight, the most important first.
 */
export async function openFirstView(app: App, view: View): Promise<Box[]> {
  const { roots } = app;
  for (const root of roots) for (const box of snapshot(root).keys()) if (box !== root) box.opening = "closed";
  app.lower = app.spread = 1;
  const [first] = roots;
  if (first) openModel(first);
  const repeat = first ? heaviestRepeat(roots) : null;
  // what is opened in a smaller window is opened in a larger one: each goes on where the last has ended
  const windows = roomsUpTo(view);
  const stages: Stage[] = [];
  for (const rooms of windows) {
    for (const root of roots) {
      const model = openModel(root);
      if (model && !(await fits(app, rooms))) model.opening = "closed";
      if (root !== first) await openRepeat(app, root, rooms);
      else if (repeat) await openHeaviestRepeat(app, repeat, rooms, rooms === windows[0]);
    }
    await openHeaviest(app, roots, rooms);
    await openInEmptiness(app, rooms);
    const shown = first ? shownRepeat(first) : null;
    if (shown?.opening === "closed" && rooms === windows[0]) await openInPart(app, shown, rooms);
    stages.push({ rooms, openings: roots.map(snapshot) });
  }
  await settleShape(app, windows[windows.length - 1]);
  await showNoLess(app, view, stages.slice(0, -1), windows[windows.length - 1]);
  return heaviest(roots);
}

/** Where not all of it can be seen: what a smaller window shows, as that shows it, if more boxes are in sight then. */
async function showNoLess(app: App, view: View, smaller: Stage[], rooms: Room[]): Promise<void> {
  if (!smaller.length || fitsIn(app, rooms)) return;
  const look = (): Look => ({
    openings: app.roots.map(snapshot),
    lower: app.lower,
    spread: app.spread,
    room: app.room,
  });
  const own = look();
  let [best, most] = [own, view.inSight(heaviest(app.roots))];
  for (const stage of smaller.reverse()) {
    stage.openings.forEach(restore);
    await settleShape(app, stage.rooms);
    const count = view.inSight(heaviest(app.roots));
    if (count > most) [best, most] = [look(), count];
  }
  own.openings.forEach(restore);
  best.openings.forEach(restore);
  app.room = rooms[0];
  if (best !== own) app.within = best.room;
  Object.assign(app, { lower: best.lower, spread: best.spread });
  await app.relayout();
}

/** What is open in a window of some rooms. */
interface Stage {
  rooms: Room[];
  openings: Openings[];
}

/** What is open, and how it is laid out. */
interface Look {
  openings: Openings[];
  lower: number;
  spread: number;
  room: Room;
}

/**
 * Draw the heaviest repeat of all phases, with what is around it open, and open it where there is room for its inside.
 *
 * In the smallest window a part of that will do. In a larger one it would put out of sight what the smaller one shows.
 */
async function openHeaviestRepeat(app: App, repeat: Box, rooms: Room[], isSmallest: boolean): Promise<void> {
  const share = shareOf(repeat, app.roots);
  if (share < WORTH || !openTo(repeat).includes(repeat)) return;
  if (isSmallest && share >= MOST_OF_IT && !isInOneTurn(repeat, app.roots)) return;
  if (await fits(app, rooms)) return;
  repeat.opening = "closed";
  if (isSmallest) await openInPart(app, repeat, rooms);
}

/** Whether a loop calls the model again and again, as decoding does: then the run is about its turns, and a layer in one of them can wait. */
function isInOneTurn(repeat: Box, roots: Box[]): boolean {
  return repeatsIn(roots, MOST_REPEATS).some(
    ({ box, share }) => box !== repeat && box.parent === roots[0] && box.isLoop && share >= WORTH,
  );
}

/** Open a repeat for which there is no room where not much is cut off, or little is to be seen besides. */
async function openInPart(app: App, repeat: Box, rooms: Room[]): Promise<void> {
  const isLittle = app.roots.reduce((sum, root) => sum + visible(root), 0) <= FEW_BOXES;
  repeat.opening = openingOf(repeat);
  if (isLittle || (await smallest(app, rooms)) <= NOT_MUCH_TOO_LARGE) return;
  repeat.opening = "closed";
}

/** How many times too large to be read as a whole all of it is in the shape that suits a room best. */
async function smallest(app: App, rooms: Room[]): Promise<number> {
  let result = Infinity;
  app.room = rooms[0];
  for (const [number, lower] of LOWER.entries()) {
    app.lower = lower;
    if (!(await (number ? app.reshape() : app.relayout()))) return Infinity;
    result = Math.min(result, (oversize(app, rooms) * READABLE) / AIM);
    if (result <= 1) break;
  }
  return result;
}

/** Open the heaviest repeat of another phase, if it weighs much and there is room for all of it. */
async function openRepeat(app: App, root: Box, rooms: Room[]): Promise<void> {
  const repeat = heaviestRepeat([root]);
  if (!repeat || shareOf(repeat, [root]) < WORTH) return;
  const opened = openTo(repeat);
  if (opened.length && !(await fits(app, rooms))) for (const box of opened) box.opening = "closed";
}

/** Where nothing more fits and a few boxes leave most of the window empty, open what weighs most all the same: a part of it says more. */
async function openInEmptiness(app: App, rooms: Room[]): Promise<void> {
  const [group] = closedGroups(app.roots);
  if (!group || app.roots.reduce((sum, root) => sum + visible(root), 0) > FEW_BOXES) return;
  await settleShape(app, rooms, NOT_TOO_WIDE);
  if (fitsIn(app, rooms) && used(app, rooms) < MOST_EMPTY) for (const box of group) box.opening = openingOf(box);
  app.lower = app.spread = 1;
}

/** Lay out in the shape that fills most of a room, with wider gaps where that is less than half of it; where none fits, in the smallest. */
async function settleShape(app: App, rooms: Room[], spreads = SPREADS): Promise<void> {
  app.room = rooms[0];
  app.lower = app.spread = 1;
  await app.relayout();
  let [best, most] = [{ lower: 1, spread: 1 }, -Infinity];
  for (const spread of spreads) {
    for (const lower of LOWER_AT_LAST) {
      Object.assign(app, { lower, spread });
      await app.reshape();
      const share = fitsIn(app, rooms)
        ? used(app, rooms)
        : -oversize(app, rooms) - Number(inSight(app, rooms[0]) < HALF);
      if (share > most + (spread > 1 ? 0.005 : 0.03)) [best, most] = [{ lower, spread }, share];
      if (lower === 1 && share >= HALF) return;
    }
    if (most >= HALF || most < 0) break;
  }
  Object.assign(app, best);
  await app.reshape();
}

/** The rooms in usual windows that are smaller than this one, and its own. */
function roomsUpTo(view: View): Room[][] {
  const smaller = WINDOWS.filter(
    ({ w, h }) => w <= innerWidth && h <= innerHeight && (w < innerWidth || h < innerHeight),
  );
  const inWindow = ({ w, h }: Room): Room[] => view.roomsIn(innerWidth - w - narrowerIn(w), innerHeight - h);
  return [...smaller.map(inWindow), view.roomsIn(0, 0)];
}

/**
 * What weighs most, the most first: a module, or where that is open in a phase its frame, and the closed box that weighs most.
 *
 * What a module takes in all phases counts together, and its first box is meant. The step of an optimizer counts where nothing
 * else ran: it is no part of the model.
 */
function heaviest(roots: Box[]): Box[] {
  const models = roots.filter(({ forest }) => forest.phases.some((phase) => phase !== Phase.OPTIMIZER));
  const frames = new Map<string, Box>();
  for (const root of roots)
    eachShown(root, (box) => {
      if (box.kind !== "root" && box.opening !== "closed" && !frames.has(counterpart(box)))
        frames.set(counterpart(box), box);
    });
  const closed = groupsOf(models.length ? models : roots, (box) => box.kind !== "root" && box.opening === "closed").map(
    ([first]) => first,
  );
  const lone = closed.find((box) => !frames.has(counterpart(box)));
  const most = closed.slice(0, 1).map((box) => frames.get(counterpart(box)) ?? box);
  return [...new Set(lone ? [...most, lone] : most)];
}

/** Open what weighs most, and its counterparts in other phases, one after another, while all of it can be read in a room. */
async function openHeaviest(app: App, roots: Box[], rooms: Room[]): Promise<void> {
  const total = roots.reduce((sum, root) => sum + weight(root), 0);
  if (!(await fits(app, rooms))) return;
  for (let step = 0; step < MOST_STEPS; step++) {
    const isEmpty = used(app, rooms) < HALF;
    const groups = closedGroups(roots).filter((group) => isEmpty || weightOf(group) >= HEAVY * total);
    let opened = false;
    const now = cuts(app);
    for (const group of groups.slice(0, isEmpty ? TRIED_IN_EMPTINESS : TRIED)) {
      const most = isEmpty || weightOf(group) >= WORTH_A_CUT * total ? Infinity : now;
      opened = await tryToOpen(app, group, rooms, most);
      if (opened) break;
    }
    if (!opened) return;
  }
}

/** Open all of them, or the first alone, where that fits and no more chains are cut than so many. */
async function tryToOpen(app: App, group: Box[], rooms: Room[], mostCuts: number): Promise<boolean> {
  for (const some of group.length > 1 ? [group, group.slice(0, 1)] : [group]) {
    const opened = [...some];
    for (const box of some) box.opening = openingOf(box);
    const repeat = shownRepeat(app.roots[0]);
    if (repeat?.opening === "closed") {
      repeat.opening = openingOf(repeat);
      opened.push(repeat);
    }
    if (await fits(app, rooms, mostCuts)) return true;
    for (const box of opened) box.opening = "closed";
  }
  return false;
}

/** How often a chain goes on in the next column. */
function cuts(app: App): number {
  return app.scene!.columns.reduce(
    (sum, { results }) => results.reduce((inner, { columns }) => inner + columns - 1, sum),
    0,
  );
}

/** The closed boxes that are worth opening, the heaviest first; the same module stands together in all phases. */
function closedGroups(roots: Box[]): Box[][] {
  return groupsOf(roots, (box) => box.opening === "closed" && isWorthOpening(box));
}

/** Some of the boxes, the heaviest first; the same module stands together in all phases. */
function groupsOf(roots: Box[], isMeant: (box: Box) => boolean): Box[][] {
  const groups = new Map<string, Box[]>();
  for (const root of roots)
    eachShown(root, (box) => {
      if (!isMeant(box)) return;
      const key = counterpart(box);
      const group = groups.get(key);
      if (group) group.push(box);
      else groups.set(key, [box]);
    });
  return [...groups.values()].sort((a, b) => weightOf(b) - weightOf(a));
}

/** What the boxes of one module have in common in all phases. */
function counterpart(box: Box): string {
  return box.elements[0] < 0 ? `${box.kind} ${box.run.path(~box.elements[0])} ${box.label}` : box.key;
}

function weightOf(boxes: Box[]): number {
  return boxes.reduce((sum, box) => sum + weight(box), 0);
}

/** What a box takes of the run: its time, or where none was taken the number of its operations. */
function weight(box: Box): number {
  return box.start < 0 ? 0 : box.forest.weight(box.start, box.end);
}

/** The share of a run that is in a box: of its time or, since times of one short run say little, of its operations if that is more. */
function shareOf(box: Box, roots: Box[]): number {
  return Math.max(weightIn(box, roots) / weightOf(roots), box.operations / box.forest.total);
}

/** What a box takes of the run in several phases: the same calls ran in each. */
function weightIn(box: Box, roots: Box[]): number {
  const others = roots.filter(({ forest }) => forest !== box.forest);
  const ofCall = ({ forest }: Box, element: number): number =>
    element < 0 ? forest.weight(forest.start[~element], forest.end[~element]) : 0;
  return others.reduce(
    (sum, root) => box.elements.reduce((inner, element) => inner + ofCall(root, element), sum),
    weight(box),
  );
}

/** Lay out in the first shape in which all can be read and no more chains are cut than so many. */
async function fits(app: App, rooms: Room[], mostCuts = Infinity): Promise<boolean> {
  let boxes = 0;
  for (const root of app.roots) boxes += visible(root);
  if (boxes > MOST_BOXES) return false;
  app.room = rooms[0];
  for (const [number, lower] of LOWER.entries()) {
    app.lower = lower;
    if (!(await (number ? app.reshape() : app.relayout()))) return false;
    if (fitsIn(app, rooms) && cuts(app) <= mostCuts) return true;
    const { width, height } = app.scene!;
    if (width * height > MUCH_TOO_LARGE * rooms[0].w * rooms[0].h) return false;
  }
  return false;
}

/** Whether all of the sheet can be read when it is fitted in a room. */
function fitsIn(app: App, rooms: Room[]): boolean {
  return oversize(app, rooms) * READABLE <= AIM;
}

/** How many times larger than the room that suits it best the sheet is. */
function oversize(app: App, rooms: Room[]): number {
  const { width, height } = app.scene!;
  return Math.min(...rooms.map(({ w, h }) => Math.max(width / w, height / h)));
}

/** The share of the largest room that boxes lie in when the sheet is fitted. */
function used(app: App, rooms: Room[]): number {
  const { width, height } = app.scene!;
  const scales = rooms.map(({ w, h }) => Math.min(largestScale(h * AIM), w / width, h / height));
  const scale = Math.max(...scales);
  const inner = boundsOf(app);
  return (inner.w * inner.h * scale * scale) / (rooms[0].w * rooms[0].h);
}

/** The share of a room in which boxes can be when the sheet is too large for it, and as small as can be read. */
function inSight(app: App, room: Room): number {
  const { w, h } = boundsOf(app);
  const [wide, high] = [Math.min(room.w, w * READABLE), Math.min(room.h, h * READABLE)];
  return (wide * high) / (room.w * room.h);
}

/** How wide and high all boxes are together. */
function boundsOf(app: App): Room {
  let [left, top, right, bottom] = [Infinity, Infinity, -Infinity, -Infinity];
  for (const { x, y, w, h } of app.scene!.columns)
    for (let item = 0; item < w.length; item++) {
      left = Math.min(left, x[item]);
      top = Math.min(top, y[item]);
      right = Math.max(right, x[item] + w[item]);
      bottom = Math.max(bottom, y[item] + h[item]);
    }
  return right > left ? { w: right - left, h: bottom - top } : { w: 0, h: 0 };
}

/** Open the module that a run is about: one that is alone, or all but alone; returns it if it was closed. */
function openModel(root: Box): Box | null {
  const inside = root.children.filter((box) => !box.isView);
  const modules = inside.filter((box) => box.canOpen && box.kind !== "bundle");
  const [model] = modules;
  if (modules.length !== 1 || inside.length > LONE || model.kind !== "module" || isOptimizer(model)) return null;
  if (model.opening !== "closed") return null;
  model.opening = "all";
  return model;
}

function isOptimizer(box: Box): boolean {
  return box.run.module(box.scope)[2] === "optimizer";
}

/** Open a repeat and all that is around it; returns what was closed before. */
function openTo(repeat: Box): Box[] {
  const opened: Box[] = [];
  for (let box: Box | null = repeat; box?.parent; box = box.parent)
    if (box.opening === "closed") {
      box.opening = box === repeat ? "one" : openingOf(box);
      opened.push(box);
    }
  return opened;
}

/** Of the repeats that are to be seen and weigh much, the heaviest. */
function shownRepeat(root: Box): Box | null {
  let result: Box | null = null;
  eachShown(root, (box) => {
    const isMuch = isRepeat(box) && weight(box) >= WORTH * weight(root);
    if (isMuch && (!result || weight(box) > weight(result))) result = box;
  });
  return result;
}

/** Of the repeats of the first of some phases, drawn or not, the one that weighs most in all of them. */
function heaviestRepeat(roots: Box[]): Box | null {
  return repeatsIn(roots, 1)[0]?.box ?? null;
}

/**
 * So many repeats of the first of some phases, drawn or not, and what they take of all of them, the heaviest first.
 *
 * What is in a box weighs no more than it: looked into by weight, what is met first is the heaviest.
 */
export function repeatsIn(roots: Box[], most: number): { box: Box; share: number }[] {
  const results: { box: Box; share: number }[] = [];
  const [root] = roots;
  const waiting = [{ box: root, amount: Infinity }];
  for (let looked = 0; waiting.length && looked < MOST_LOOKED_AT && results.length < most; looked++) {
    let best = 0;
    for (let i = 1; i < waiting.length; i++) if (waiting[i].amount > waiting[best].amount) best = i;
    const [{ box, amount }] = waiting.splice(best, 1);
    if (isRepeat(box)) results.push({ box, share: amount / weightOf(roots) });
    else if (box === root || box.kind === "module")
      for (const child of box.children) if (child.canOpen) waiting.push({ box: child, amount: weightIn(child, roots) });
  }
  return results;
}

/** Whether there are modules in it: the operations of a layer say less than its name. */
function isWorthOpening(box: Box): boolean {
  if (!box.canOpen || box.kind === "bundle") return false;
  const inside = box.kind === "fold" && box.children.length ? box.children[0].children : box.children;
  return inside.some((child) => child.canOpen);
}

/** Whether a box stands for several calls of modules, or for several turns of a loop that calls some. */
export function isRepeat(box: Box): boolean {
  return (
    box.kind === "fold" &&
    box.elements.subarray(0, box.period).some((element) => element < 0 && isModule(box, ~element))
  );
}

function isModule(box: Box, scope: number): boolean {
  return box.run.module(scope)[2] === "module";
}

/** Whether something is closed that has modules in it. */
export function hasClosed(root: Box): boolean {
  let result = false;
  eachShown(root, (box) => (result ||= box.opening === "closed" && isWorthOpening(box)));
  return result;
}

function visible(root: Box): number {
  let count = 0;
  eachShown(root, (box) => {
    if (box.opening === "closed" && !box.isView) count += 1;
  });
  return count;
}
