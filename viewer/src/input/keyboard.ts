/** The keys. */

import type { App } from "../app.ts";
import type { Box } from "../tree/box.ts";
import type { Scene } from "../draw/scene.ts";
import { navigate } from "./tree_navigation.ts";

export interface Actions {
  search: () => void;
  toggle: (box: Box) => void;
  showAll: (box: Box) => void;
  step: (box: Box, by: number) => void;
  depth: (depth: number) => void;
  openEverything: () => void;
  fit: () => void;
  zoomToSelection: () => void;
  zoom: (factor: number) => void;
  nextHeat: (off: boolean) => void;
  nextMode: () => void;
  jumpLink: () => void;
  path: () => void;
  views: () => void;
  dock: (name: string) => void;
  theme: () => void;
  copy: () => void;
  saveSvg: () => void;
  escape: () => void;
  help: () => void;
  undo: () => void;
  redo: () => void;
  pick: (box: Box) => void;
}

export function listen(app: App, actions: Actions): void {
  document.addEventListener("keydown", (event) => {
    const target = event.target as HTMLElement;
    if (/^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName)) return;
    if ((event.ctrlKey || event.metaKey) && /^[zy]$/i.test(event.key)) {
      event.preventDefault();
      if (event.shiftKey || event.key.toLowerCase() === "y") actions.redo();
      else actions.undo();
      return;
    }
    if (event.ctrlKey || event.metaKey || event.altKey) return;
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
      "/": actions.search,
      e: actions.openEverything,
      f: actions.fit,
      z: actions.zoomToSelection,
      "+": () => actions.zoom(1.25),
      "=": () => actions.zoom(1.25),
      "-": () => actions.zoom(0.8),
      h: () => actions.nextHeat(false),
      H: () => actions.nextHeat(true),
      g: actions.nextMode,
      l: actions.jumpLink,
      p: actions.path,
      v: actions.views,
      m: () => actions.dock("memory"),
      t: () => actions.dock("time"),
      k: () => actions.dock("tokens"),
      d: actions.theme,
      c: actions.copy,
      s: actions.saveSvg,
      u: actions.undo,
      U: actions.redo,
      Escape: actions.escape,
      "?": actions.help,
      Enter: () => selected && (event.shiftKey ? actions.showAll(selected) : actions.toggle(selected)),
      " ": () => selected && actions.toggle(selected),
      "[": () => selected && actions.step(selected, -1),
      "]": () => selected && actions.step(selected, 1),
      Backspace: () => {
        const around = app.scene && selected ? aroundOf(app.scene, selected) : null;
        if (around) actions.pick(around);
      },
    };
    const direction = ({ ArrowUp: "up", ArrowDown: "down", ArrowLeft: "left", ArrowRight: "right" } as const)[
      event.key
    ];
    if (direction) {
      const next = app.scene ? navigate(app.scene, selected, direction) : null;
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
