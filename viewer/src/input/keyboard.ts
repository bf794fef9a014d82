/** The keys. */

import type { App } from "../app.ts";
import type { Box } from "../tree/box.ts";
import type { Hit, Scene } from "../draw/scene.ts";

export interface Actions {
  search(): void;
  toggle(box: Box): void;
  showAll(box: Box): void;
  step(box: Box, by: number): void;
  depth(depth: number): void;
  openEverything(): void;
  fit(): void;
  zoomToSelection(): void;
  zoom(factor: number): void;
  nextHeat(off: boolean): void;
  nextMode(): void;
  jumpLink(): void;
  path(): void;
  views(): void;
  dock(name: string): void;
  theme(): void;
  copy(): void;
  saveSvg(): void;
  escape(): void;
  help(): void;
  pick(box: Box): void;
}

export function listen(app: App, actions: Actions): void {
  document.addEventListener("keydown", (event) => {
    const target = event.target as HTMLElement;
    if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName)) return;
    if (event.key === "Enter" && target.closest("button, th, tr")) return;
    if (event.key === " " && target.closest("button")) return;
    if (document.querySelector("dialog[open]")) return;
    if (act(app, actions, event)) event.preventDefault();
  });
}

function act(app: App, actions: Actions, event: KeyboardEvent): boolean {
  const { selected } = app;
  if (/^[1-9]$/.test(event.key)) actions.depth(Number(event.key));
  else if (event.key === "0") actions.depth(0);
  else {
    const simple: Record<string, () => void> = {
      "/": actions.search, e: actions.openEverything, f: actions.fit, z: actions.zoomToSelection,
      "+": () => actions.zoom(1.25), "=": () => actions.zoom(1.25), "-": () => actions.zoom(0.8),
      h: () => actions.nextHeat(false), H: () => actions.nextHeat(true), g: actions.nextMode, l: actions.jumpLink,
      p: actions.path, v: actions.views, m: () => actions.dock("memory"), t: () => actions.dock("time"), d: actions.theme,
      c: actions.copy, s: actions.saveSvg, Escape: actions.escape, "?": actions.help,
      Enter: () => selected && (event.shiftKey ? actions.showAll(selected) : actions.toggle(selected)),
      " ": () => selected && actions.toggle(selected),
      "[": () => selected && actions.step(selected, -1), "]": () => selected && actions.step(selected, 1),
      Backspace: () => {
        const around = app.scene && selected ? aroundOf(app.scene, selected) : null;
        if (around) actions.pick(around);
      },
    };
    const direction = ({ ArrowUp: "up", ArrowDown: "down", ArrowLeft: "left", ArrowRight: "right" } as const)[event.key];
    if (direction) {
      const next = app.scene ? walk(app.scene, selected, direction) : null;
      if (next) actions.pick(next);
    } else if (simple[event.key]) simple[event.key]();
    else return false;
  }
  return true;
}

function aroundOf(scene: Scene, box: Box): Box | null {
  const hit = scene.find(box);
  if (!hit) return null;
  const { picture } = scene.columns[hit.column];
  const { item } = picture.frames[picture.items[hit.item].frame];
  return item >= 0 ? picture.items[item].box : null;
}

/** Up to the nearest producer, down to the nearest consumer, sideways to what stands beside. */
export function walk(scene: Scene, from: Box | null, direction: "up" | "down" | "left" | "right"): Box | null {
  const hit = from ? scene.find(from) : null;
  if (!hit) return scene.columns[0]?.picture.items[0]?.box ?? null;
  const column = scene.columns[hit.column];
  const { picture } = column;
  const middle = (item: number): [number, number] => [column.x[item] + column.w[item] / 2, column.y[item] + column.h[item] / 2];
  const [x, y] = middle(hit.item);
  const isUp = direction === "up";
  if (isUp || direction === "down") {
    const ends: number[] = [];
    for (const edge of picture.edges) {
      const [mine, theirs] = isUp ? [edge.target, edge.source] : [edge.source, edge.target];
      if (within(column, mine, hit)) ends.push(theirs);
    }
    const outside = ends.filter((item) => !within(column, item, hit));
    if (outside.length) return nearest(outside, middle, x, y, picture);
  }
  const siblings = picture.frames[picture.items[hit.item].frame].items.filter((item) => item >= 0 && item !== hit.item);
  const there = siblings.filter((item) => {
    const [ox, oy] = middle(item);
    if (direction === "left") return ox < x - 4 && Math.abs(oy - y) < 500;
    if (direction === "right") return ox > x + 4 && Math.abs(oy - y) < 500;
    return isUp ? oy < y - 4 : oy > y + 4;
  });
  if (there.length) return nearest(there, middle, x, y, picture);
  const { item } = picture.frames[picture.items[hit.item].frame];
  if ((direction === "left" || direction === "right") && scene.columns.length > 1) {
    const other = scene.columns[hit.column + (direction === "right" ? 1 : -1)];
    if (other?.picture.items.length) return other.picture.items[closestY(other, y)].box;
  }
  return item >= 0 ? picture.items[item].box : null;
}

function closestY(column: { y: Float64Array; h: Float64Array; picture: { items: { own: number }[] } }, y: number): number {
  let best = 0;
  column.picture.items.forEach(({ own }, i) => {
    if (own < 0 && Math.abs(column.y[i] + column.h[i] / 2 - y) < Math.abs(column.y[best] + column.h[best] / 2 - y)) best = i;
  });
  return best;
}

function within(column: Scene["columns"][number], item: number, hit: Hit): boolean {
  const { picture } = column;
  while (item >= 0) {
    if (item === hit.item) return true;
    item = picture.frames[picture.items[item].frame].item;
  }
  return false;
}

function nearest(items: number[], middle: (item: number) => [number, number], x: number, y: number, picture: { items: { box: Box }[] }): Box {
  let best = items[0];
  let least = Infinity;
  for (const item of items) {
    const [ox, oy] = middle(item);
    const far = Math.hypot(ox - x, oy - y);
    if (far < least) {
      least = far;
      best = item;
    }
  }
  return picture.items[best].box;
}
