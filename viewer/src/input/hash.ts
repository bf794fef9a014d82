/** The view in the address: a link brings back what was open, selected, coloured and where. */

import type { App, Mode } from "../app.ts";
import type { Camera } from "../draw/painter.ts";
import type { Box, Opening } from "../tree/box.ts";
import { eachShown } from "../tree/expansion.ts";

const MOST_OPEN = 300;

export function encode(
  app: App,
  camera: Camera,
  size: { w: number; h: number },
  dock: string,
  query: string,
  panels: Record<string, string> = {},
): string {
  const parts = new URLSearchParams();
  if (app.mode !== "side") parts.set("mode", app.mode);
  if (app.heat) parts.set("heat", app.heat.id);
  if (app.views) parts.set("views", "1");
  if (app.wholePath) parts.set("path", "1");
  if (app.themeChoice !== "auto") parts.set("theme", app.themeChoice);
  if (dock) parts.set("dock", dock);
  if (query) parts.set("q", query);
  for (const [name, state] of Object.entries(panels)) if (state) parts.set(name, state);
  if (app.node >= 0) parts.set("node", String(app.node));
  else if (app.selected) parts.set("sel", app.selected.key);
  const open: string[] = [];
  for (const root of app.roots) {
    eachShown(root, (box) => {
      if (box !== root && box.opening !== "closed") open.push(box.key + (box.opening === "one" ? `~${box.shown}` : ""));
    });
  }
  parts.set("open", open.length > MOST_OPEN ? "all" : open.join(" "));
  const x = (size.w / 2 - camera.x) / camera.scale;
  const y = (size.h / 2 - camera.y) / camera.scale;
  const { w, h } = app.within ?? app.room;
  parts.set("room", [w, h, app.lower, app.spread].join(","));
  parts.set(
    "at",
    [x, y]
      .map((n) => n.toFixed(0))
      .concat(camera.scale.toFixed(3))
      .join(","),
  );
  return `#${parts.toString()}`;
}

export interface Wanted {
  mode: Mode | null;
  heat: string;
  views: boolean;
  path: boolean;
  theme: "auto" | "light" | "dark";
  dock: string;
  query: string;
  tab: string;
  sort: string;
  brush: [number, number] | null;
  node: number;
  selected: string;
  open: Map<string, number> | "all" | null;
  at: [number, number, number] | null;
  room: { w: number; h: number } | null; // what the layout was made for, and how much of its height
  lower: number;
  spread: number;
}

function isRoom(numbers: number[]): boolean {
  return numbers.length >= 2 && numbers.slice(0, 2).every((n) => n >= 100 && n < 1e5);
}

export function decode(hash: string): Wanted {
  const parts = new URLSearchParams(hash.replace(/^#/, ""));
  const theme = parts.get("theme");
  const open = parts.get("open");
  const at = (parts.get("at") ?? "").split(",").map(Number);
  const room = (parts.get("room") ?? "").split(",").map(Number);
  const brush = (parts.get("brush") ?? "").split("-").map(Number);
  return {
    mode:
      (["side", "over", "forward", "backward", "optimizer"].find((mode) => mode === parts.get("mode")) as
        Mode | undefined) ?? null,
    heat: parts.get("heat") ?? "",
    views: parts.get("views") === "1",
    path: parts.get("path") === "1",
    theme: theme === "dark" || theme === "light" ? theme : "auto",
    dock: parts.get("dock") ?? "",
    query: parts.get("q") ?? "",
    tab: ["summary", "details", "modules"].find((tab) => tab === parts.get("tab")) ?? "",
    sort: parts.get("sort") ?? "",
    brush: brush.length === 2 && brush.every(Number.isInteger) && brush[0] <= brush[1] ? [brush[0], brush[1]] : null,
    node: parts.has("node") ? Number(parts.get("node")) : -1,
    selected: parts.get("sel") ?? "",
    open:
      open === null
        ? null
        : open === "all"
          ? "all"
          : new Map(
              open
                .split(" ")
                .filter(Boolean)
                .map((key) => {
                  const [name, shown] = key.split("~");
                  return [name, shown === undefined ? -1 : Number(shown)];
                }),
            ),
    room: isRoom(room) ? { w: room[0], h: room[1] } : null,
    lower: isRoom(room) && room[2] > 0.2 && room[2] < 2 ? room[2] : 1,
    spread: isRoom(room) && room[3] > 1 && room[3] <= 5 ? room[3] : 1,
    at: at.length === 3 && at.every(Number.isFinite) && at[2] > 0 ? [at[0], at[1], at[2]] : null,
  };
}

/** Open exactly the boxes that a link names. */
export function applyOpen(root: Box, open: Map<string, number>): void {
  const stack = [root];
  while (stack.length) {
    const box = stack.pop()!;
    if (box !== root && box.canOpen) {
      const shown = open.get(box.key);
      const opening: Opening = shown === undefined ? "closed" : shown >= 0 ? "one" : "all";
      box.opening = opening;
      if (shown !== undefined && shown >= 0) box.shown = Math.min(shown, Math.max(0, box.children.length - 1));
    }
    if (box.opening !== "closed") stack.push(...box.inside);
  }
}
