/** The graph's canvas: camera and pointer. */

import type { App } from "../app.ts";
import { RECOMPUTED, SAID } from "../data/recomputed.ts";
import { fitCanvas, h } from "../dom.ts";
import type { Box } from "../tree/box.ts";
import { AIM, fitted, freeAreas, largestScale, READABLE, SMALL } from "./fitting.ts";
import { shapeOf } from "./measure.ts";
import { Minimap } from "./minimap.ts";
import { Painter, type Camera, type Zone } from "./painter.ts";
import { edgeText } from "./edges.ts";
import { labelsOf } from "./labels.ts";
import type { Column, EdgeHit, Rect } from "./scene.ts";

const SMALLEST = 0.002;
const LARGEST = 4;
const FLIGHT_MS = 260;
const TIP_AFTER_MS = 350;
const LABELS_AFTER_MS = 150;
const NEAR = 5; // pixels from a line at which it is meant
const EDGES_FROM = 0.3; // scale from which on lines can be told apart
const MARGIN = 24; // between what has to be seen and the border of the window
const TIP_FACTS = ["calls", "time", "backward", "FLOPs", "parameters"];
const MOST_COVERED = 0.6; // of the window, both ways, by one panel

export class View {
  readonly canvas = h("canvas", {
    class: "graph",
    tabindex: "0",
    role: "application",
    "aria-label": "Graph of the run; ? shows the keys",
  });
  readonly mini: Minimap;
  readonly tip = h("div", { class: "tip", hidden: true });
  readonly painter: Painter;
  camera: Camera = { scale: 1, x: 0, y: 0 };
  frameMs = 0;
  settled: "fit" | "begin" | "near" | null = null; // how the camera came to be where it is; null: a person moved it
  clickedAt = -Infinity;
  /** What a first look has in sight, the most important first. */
  private seen: Box[] = [];
  /** The size of the window when the first look began. */
  private begun = { w: 0, h: 0 };
  act: (zone: Zone["action"], box: Box) => void = () => {};
  private queued = 0;
  private flight = 0;
  private moved = false;
  private tipped: Box | null = null;
  private tipWait = 0;
  overlays: HTMLElement[] = []; // what lies on the graph, and is left free when it is fitted
  private readonly pointers = new Map<number, { x: number; y: number }>();

  constructor(readonly app: App) {
    this.painter = new Painter(this.canvas.getContext("2d", { alpha: false })!);
    this.mini = new Minimap(app, (x, y) => {
      this.flight += 1;
      this.settled = null;
      this.camera = {
        ...this.camera,
        x: this.size.w / 2 - x * this.camera.scale,
        y: this.size.h / 2 - y * this.camera.scale,
      };
      this.redraw();
    });
    this.painter.later = (column, frame) => this.label(column, frame);
    for (const event of ["scene", "select", "look", "hover"] as const) app.on(event, () => this.redraw());
    new ResizeObserver(() => this.redraw()).observe(this.canvas);
    this.listen();
  }

  private readonly labelling = new WeakSet<object>();

  /** Work out the labels of a large frame when nothing else is to be done. */
  private label(column: Column, frame: number): void {
    const result = column.results[frame];
    if (this.labelling.has(result)) return;
    this.labelling.add(result);
    window.setTimeout(() => {
      labelsOf(column, frame);
      this.redraw();
    }, LABELS_AFTER_MS);
  }

  redraw(): void {
    this.queued ||= requestAnimationFrame(() => this.drawNow());
  }

  drawNow(): void {
    // What was asked for before is drawn with it.
    cancelAnimationFrame(this.queued);
    this.queued = 0;
    const { scene } = this.app;
    if (!scene) return;
    const started = performance.now();
    const { width, height, ratio } = fitCanvas(this.canvas);
    if (!width) return;
    this.painter.draw(scene, this.camera, this.app.look, width, height, ratio);
    this.frameMs = performance.now() - started;
    this.mini.draw(this.camera, width, height);
    this.app.emit("camera");
  }

  get size(): { w: number; h: number } {
    return { w: this.canvas.clientWidth || 1, h: this.canvas.clientHeight || 1 };
  }

  /** The camera that shows a rectangle whole and free of what lies on the graph, but no larger than life. */
  around(rect: Rect, most = largestScale(this.size.h), margin = 16): Camera {
    return fitted(rect, this.areas(), most, margin);
  }

  private areas(): Rect[] {
    const { w, h } = this.size;
    const origin = this.canvas.getBoundingClientRect();
    const rects = this.overlays
      .map((element) => element.getBoundingClientRect())
      .filter((rect) => {
        const isBeside = rect.left >= origin.right - 1; // a panel beside the graph is not on it
        const isInstead = rect.width > w * MOST_COVERED && rect.height > h * MOST_COVERED; // what it leaves is not worth moving to
        return rect.width && rect.height && !isBeside && !isInstead;
      });
    return freeAreas(
      w,
      h,
      rects.map((rect) => ({
        x: rect.left - origin.left - 6,
        y: rect.top - origin.top - 6,
        w: rect.width + 12,
        h: rect.height + 12,
      })),
    );
  }

  /** The largest part of the window that nothing lies on. */
  private get free(): Rect {
    return this.areas().reduce((a, b) => (b.w * b.h > a.w * a.h ? b : a), { x: 0, y: 0, w: 1, h: 1 });
  }

  get boxes(): number {
    return this.app.scene?.columns.reduce((sum, { picture }) => sum + picture.items.length, 0) ?? 0;
  }

  /** What a picture may take up to be read when it is fitted. */
  get room(): { w: number; h: number } {
    return this.roomsIn(0, 0)[0];
  }

  /** In a window that is so much narrower and lower, what each part of it that is free has room for, the largest first. */
  roomsIn(narrower: number, lower: number): { w: number; h: number }[] {
    const round = (n: number): number => Math.max(200, Math.round(n / 20) * 20);
    return this.areas()
      .map(({ w, h }) => ({ w: round((w - narrower - 32) / AIM), h: round((h - lower - 32) / AIM) }))
      .sort((a, b) => b.w * b.h - a.w * a.h);
  }

  fit(animate = true): void {
    const { scene } = this.app;
    if (!scene) return;
    this.fly(this.whole, animate);
    this.settled = "fit";
  }

  /** The camera that shows all there is. */
  private get whole(): Camera {
    return this.around({ x: 0, y: 0, w: this.app.scene!.width, h: this.app.scene!.height });
  }

  /** After something was opened or closed: all of it where it can still be read, else the place of the change. */
  settle(rect: Rect): void {
    const { settled } = this;
    if (settled && this.whole.scale >= SMALL) return this.fit();
    this.fly(this.near(rect));
    if (settled) this.settled = "near";
  }

  /** The closed box nearest to the middle of what is to be seen. */
  middle(): Box | null {
    const { w, h } = this.size;
    const [x, y] = [(w / 2 - this.camera.x) / this.camera.scale, (h / 2 - this.camera.y) / this.camera.scale];
    let result: Box | null = null;
    let least = Infinity;
    for (const column of this.app.scene?.columns ?? []) {
      for (const [item, { box, own }] of column.picture.items.entries()) {
        if (own >= 0 || box.start < 0) continue;
        const away = Math.hypot(column.x[item] + column.w[item] / 2 - x, column.y[item] + column.h[item] / 2 - y);
        if (away < least) [result, least] = [box, away];
      }
    }
    return result;
  }

  /** Where a box is in the window; of one that is not drawn, the innermost that is drawn around it. */
  onScreen(box: Box): Rect | null {
    const rect = this.placeOf(box);
    const { scale, x, y } = this.camera;
    return rect && { x: rect.x * scale + x, y: rect.y * scale + y, w: rect.w * scale, h: rect.h * scale };
  }

  private placeOf(box: Box): Rect | null {
    for (let at: Box | null = box; at; at = at.parent) {
      const hit = this.app.scene?.find(at);
      if (hit) return this.app.scene!.rect(hit);
    }
    return null;
  }

  /** In another layout: all of it where names can still be read, else a box as near as can be to where it was, large enough to be read. */
  stay(box: Box | null, old: Rect | null): void {
    const now = box && this.placeOf(box);
    if (!old || !now || this.whole.scale >= READABLE) return this.fit();
    const scale = Math.max(READABLE, Math.min(this.camera.scale, 1.2));
    const { w, h } = this.size;
    const x = Math.min(w, Math.max(0, old.x + old.w / 2)) - (now.x + now.w / 2) * scale;
    const y = Math.min(h, Math.max(0, old.y)) - now.y * scale;
    const isLarge = now.w * scale > w - 2 * MARGIN || now.h * scale > h - 2 * MARGIN;
    this.camera = isLarge ? { scale, x: MARGIN - now.x * scale, y: MARGIN - now.y * scale } : { scale, x, y };
    this.fly(isLarge ? this.camera : this.near(now), !isLarge);
    this.settled = "near";
  }

  /** The camera closest to the present one that shows a rectangle, and the sheet as far as it fits, free of what lies on the graph. */
  private near(rect: Rect): Camera {
    const { scale } = this.camera;
    const { free } = this;
    if (rect.w * scale > free.w - 20 || rect.h * scale > free.h - 20)
      return this.around(rect, Math.max(scale, 0.5), 24);
    const slide = (camera: number, start: number, size: number, sheet: number, from: number, room: number): number => {
      const [first, last] = sheet * scale <= room - 32 ? [0, sheet] : [start, start + size];
      const least = from + 16 - first * scale;
      return Math.max(least, Math.min(camera, from + room - 16 - last * scale));
    };
    const { width, height } = this.app.scene!;
    return {
      scale,
      x: slide(this.camera.x, rect.x, rect.w, width, free.x, free.w),
      y: slide(this.camera.y, rect.y, rect.h, height, free.y, free.h),
    };
  }

  /** Where a first look begins: all of it if it can be read, otherwise its beginning, moved so far that some boxes are in sight. */
  begin(animate = false, seen: Box[] = this.seen): void {
    this.seen = seen;
    const { scene } = this.app;
    if (!scene) return;
    let camera = this.whole;
    if (camera.scale < READABLE) {
      camera = this.beginning;
      const rects = seen.flatMap((box) => {
        const hit = scene.find(box);
        if (!hit) return [];
        const rect = scene.rect(hit);
        return [box.opening === "closed" ? rect : { ...rect, w: 1, h: 1 }]; // the title of a frame
      });
      rects.forEach((rect, number) => {
        if (this.isClear(rect, camera)) return;
        const moved = this.movedTo(rect, camera);
        if (rects.slice(0, number).every((other) => this.isClear(other, moved))) camera = moved;
      });
    }
    this.fly(camera, animate);
    if (!animate) this.begun = this.size;
    this.settled = "begin";
  }

  /** How many closed boxes a first look would have in sight as a whole. */
  inSight(seen: Box[]): number {
    this.begin(false, seen);
    const { scale, x, y } = this.camera;
    const { w, h } = this.size;
    let count = 0;
    for (const column of this.app.scene?.columns ?? [])
      column.picture.items.forEach(({ box }, item) => {
        const [left, top] = [column.x[item] * scale + x, column.y[item] * scale + y];
        const [right, bottom] = [left + column.w[item] * scale, top + column.h[item] * scale];
        count += Number(box.opening === "closed" && left >= 0 && top >= 0 && right <= w && bottom <= h);
      });
    return count;
  }

  /** The camera that shows the upper left of a sheet that is too large to be read as a whole. */
  private get beginning(): Camera {
    const { width, height } = this.app.scene!;
    const [beside, above] = [this.size.w - width * READABLE, this.size.h - height * READABLE];
    return { scale: READABLE, x: beside >= 0 ? beside / 2 : 20, y: above >= 0 ? above / 2 : 12 };
  }

  /** A camera moved up and to the left until a rectangle is in sight. */
  private movedTo(rect: Rect, { scale, x, y }: Camera): Camera {
    const { free } = this;
    return {
      scale,
      x: Math.min(x, free.x + free.w - MARGIN - (rect.x + rect.w) * scale),
      y: Math.min(y, free.y + free.h - MARGIN - (rect.y + rect.h) * scale),
    };
  }

  /** Whether a camera has a rectangle in sight with nothing lying on it. */
  private isClear({ x, y, w, h }: Rect, camera: Camera): boolean {
    const [left, top] = [x * camera.scale + camera.x, y * camera.scale + camera.y];
    const [right, bottom] = [left + w * camera.scale, top + h * camera.scale];
    return this.areas().some(
      (area) => left >= area.x && top >= area.y && right <= area.x + area.w && bottom <= area.y + area.h,
    );
  }

  /** In another room: all of it where a person asked for that, or where something took room from it; as it was begun otherwise. */
  again(): void {
    const { w, h } = this.size;
    const isLess = w < this.begun.w - 2 || h < this.begun.h - 2;
    if (this.settled === "fit" || (isLess && this.whole.scale >= SMALL * 0.8)) this.fit();
    else this.begin(true);
  }

  fly(to: Camera, animate = true): void {
    const turn = ++this.flight;
    this.settled = null;
    const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
    if (!animate || calm || document.visibilityState === "hidden") {
      this.camera = to;
      this.redraw();
      return;
    }
    const from = { ...this.camera };
    const { w, h } = this.size;
    const middle = (camera: Camera): [number, number] => [
      (w / 2 - camera.x) / camera.scale,
      (h / 2 - camera.y) / camera.scale,
    ];
    const [ax, ay] = middle(from);
    const [bx, by] = middle(to);
    const started = performance.now();
    const step = (): void => {
      if (turn !== this.flight) return;
      const share = Math.min(1, (performance.now() - started) / FLIGHT_MS);
      const eased = 1 - (1 - share) ** 3;
      const scale = from.scale * (to.scale / from.scale) ** eased;
      const [x, y] = [ax + (bx - ax) * eased, ay + (by - ay) * eased];
      this.camera = share === 1 ? to : { scale, x: w / 2 - x * scale, y: h / 2 - y * scale };
      this.drawNow();
      if (share < 1) requestAnimationFrame(step);
    };
    step();
  }

  flyToBox(box: Box, closer = false): void {
    const hit = this.app.scene?.find(box);
    if (!hit) return;
    const rect = this.app.scene!.rect(hit);
    const { w, h } = this.size;
    const scale = Math.max(Math.min(this.camera.scale, 1.2), closer ? 0.75 : 0.5);
    if (rect.w * scale > w || rect.h * scale > h) this.fly(this.around(rect, 1.15, 30));
    else this.fly({ scale, x: w / 2 - (rect.x + rect.w / 2) * scale, y: h / 2 - (rect.y + rect.h / 2) * scale });
  }

  /** Bring a box into the window without moving more than needed. */
  reveal(box: Box): void {
    const hit = this.app.scene?.find(box);
    if (!hit) return;
    const rect = this.app.scene!.rect(hit);
    const { w, h } = this.size;
    const { scale, x, y } = this.camera;
    const [left, top] = [rect.x * scale + x, rect.y * scale + y];
    const inside = left >= 10 && top >= 10 && left + rect.w * scale <= w - 10 && top + rect.h * scale <= h - 10;
    if (!inside || scale < 0.42) this.flyToBox(box);
  }

  zoom(factor: number, px = this.size.w / 2, py = this.size.h / 2): void {
    const scale = Math.min(LARGEST, Math.max(SMALLEST, this.camera.scale * factor));
    const change = scale / this.camera.scale;
    this.flight += 1;
    this.settled = null;
    this.camera = { scale, x: px - (px - this.camera.x) * change, y: py - (py - this.camera.y) * change };
    this.redraw();
  }

  pan(dx: number, dy: number): void {
    this.flight += 1;
    this.settled = null;
    this.camera = { ...this.camera, x: this.camera.x + dx, y: this.camera.y + dy };
    this.redraw();
  }

  private boxAt(event: MouseEvent): Box | null {
    const { scene } = this.app;
    if (!scene) return null;
    const [px, py] = this.place(event);
    const hit = scene.at((px - this.camera.x) / this.camera.scale, (py - this.camera.y) / this.camera.scale);
    return hit ? scene.box(hit) : null;
  }

  /** The edges under the pointer, where no closed box lies. */
  private edgesAt(event: MouseEvent): EdgeHit[] {
    const { scene } = this.app;
    const { scale, x, y } = this.camera;
    if (!scene || scale < EDGES_FROM || (this.boxAt(event)?.opening ?? "all") === "closed") return [];
    const [px, py] = this.place(event);
    return scene.edgesAt((px - x) / scale, (py - y) / scale, NEAR / scale);
  }

  private place(event: MouseEvent): [number, number] {
    const bounds = this.canvas.getBoundingClientRect();
    return [event.clientX - bounds.left, event.clientY - bounds.top];
  }

  private zoneAt(event: MouseEvent): Zone | undefined {
    const [x, y] = this.place(event);
    return [...this.painter.zones]
      .reverse()
      .find((zone) => x >= zone.x && y >= zone.y && x <= zone.x + zone.w && y <= zone.y + zone.h);
  }

  private listen(): void {
    const { canvas } = this;
    canvas.addEventListener("wheel", (event) => this.onWheel(event), { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      this.pointers.set(event.pointerId, { x: event.clientX, y: event.clientY });
      this.tip.hidden = true;
      clearTimeout(this.tipWait);
      this.moved = false;
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => this.onMove(event));
    const end = (event: PointerEvent): void => void this.pointers.delete(event.pointerId);
    canvas.addEventListener("pointerup", end);
    canvas.addEventListener("pointercancel", end);
    canvas.addEventListener("pointerleave", () => {
      this.hideTip();
      this.app.point(null);
      this.app.hoverEdges = [];
      this.redraw();
    });
    canvas.addEventListener("click", (event) => {
      if (this.moved) return;
      this.clickedAt = performance.now();
      const zone = this.zoneAt(event);
      if (zone) {
        this.act(zone.action, zone.box);
        return;
      }
      const edges = this.edgesAt(event);
      if (edges.length) this.app.selectEdges(edges);
      else this.app.select(this.boxAt(event));
    });
    canvas.addEventListener("dblclick", (event) => {
      if (this.zoneAt(event)) return;
      const box = this.boxAt(event);
      if (box?.canOpen) this.act("toggle", box);
    });
  }

  private onWheel(event: WheelEvent): void {
    event.preventDefault();
    this.hideTip();
    const [px, py] = this.place(event);
    const unit = event.deltaMode === 1 ? 20 : 1;
    if (event.shiftKey) this.pan(-(event.deltaY || event.deltaX) * unit, 0);
    else this.zoom(Math.exp(-event.deltaY * unit * (event.ctrlKey ? 0.01 : 0.0018)), px, py);
  }

  private onMove(event: PointerEvent): void {
    const before = this.pointers.get(event.pointerId);
    if (!before) {
      this.onHover(event);
      return;
    }
    const [dx, dy] = [event.clientX - before.x, event.clientY - before.y];
    if (this.pointers.size === 2) {
      const other = [...this.pointers].find(([id]) => id !== event.pointerId)![1];
      const was = Math.hypot(before.x - other.x, before.y - other.y);
      const is = Math.hypot(event.clientX - other.x, event.clientY - other.y);
      const bounds = this.canvas.getBoundingClientRect();
      if (was)
        this.zoom(is / was, (event.clientX + other.x) / 2 - bounds.left, (event.clientY + other.y) / 2 - bounds.top);
    } else if (this.moved || Math.hypot(dx, dy) > 3) {
      this.moved = true;
      this.pan(dx, dy);
    } else return;
    this.pointers.set(event.pointerId, { x: event.clientX, y: event.clientY });
  }

  private onHover(event: PointerEvent): void {
    const zone = this.zoneAt(event);
    const edges = zone ? [] : this.edgesAt(event);
    if (this.hoverEdges(edges, event)) return;
    const box = zone ? zone.box : this.boxAt(event);
    this.canvas.style.cursor = zone || box ? "pointer" : "grab";
    if (box !== this.app.hover) {
      this.app.point(box);
      this.redraw();
    }
    if (box !== this.tipped || zone) this.hideTip();
    if (!box || zone || box === this.tipped) return;
    this.tipped = box;
    this.tipWait = window.setTimeout(() => this.showTip(box), TIP_AFTER_MS);
  }

  /** Bring out the edges that the pointer is on, with what passes there; returns whether there are any. */
  private hoverEdges(edges: EdgeHit[], event: PointerEvent): boolean {
    const { app } = this;
    const isSame =
      edges.length === app.hoverEdges.length && edges.every(({ edge }, i) => edge === app.hoverEdges[i].edge);
    if (!isSame) {
      app.hoverEdges = edges;
      this.hideTip();
      this.redraw();
    }
    if (!edges.length) return false;
    app.hover = null;
    this.canvas.style.cursor = "pointer";
    if (isSame) return true;
    const [px, py] = this.place(event);
    this.tip.textContent = edgeText(app.scene!, edges);
    this.tip.hidden = false;
    this.tip.style.left = `${Math.max(4, Math.min(px + 12, this.size.w - this.tip.offsetWidth - 4))}px`;
    this.tip.style.top = `${Math.max(4, Math.min(py + 12, this.size.h - this.tip.offsetHeight - 4))}px`;
    return true;
  }

  private hideTip(): void {
    clearTimeout(this.tipWait);
    this.tip.hidden = true;
    this.tipped = null;
  }

  /** Beside the box on the side with more room, so that what comes before and after it stays in sight. */
  private showTip(box: Box): void {
    const hit = this.app.scene?.find(box);
    if (!hit || this.pointers.size) return;
    const rect = this.app.scene!.rect(hit);
    const { scale, x, y } = this.camera;
    const { w, h: high } = this.size;
    this.tip.textContent = this.tipText(box);
    this.tip.hidden = false;
    const [wide, tall] = [this.tip.offsetWidth, this.tip.offsetHeight];
    const [left, right] = [rect.x * scale + x, (rect.x + rect.w) * scale + x];
    const wanted = right + 10 + wide <= w || w - right > left ? right + 10 : left - 10 - wide;
    this.tip.style.left = `${Math.max(4, Math.min(wanted, w - wide - 4))}px`;
    this.tip.style.top = `${Math.max(4, Math.min(rect.y * scale + y, high - tall - 4))}px`;
  }

  private tipText(box: Box): string {
    const lines = [box.label];
    const type = box.type && box.type !== box.label ? box.type : "";
    if (box.kind === "op")
      lines.push(
        type,
        ...box.run
          .outputs(box.node)
          .slice(0, 3)
          .map((value) => box.run.typeText(value)),
      );
    else if (box.start >= 0)
      lines.push(
        [type, shapeOf(box)].filter(Boolean).join(" · "),
        `${box.operations.toLocaleString("en-US")} operations`,
        ...this.moduleWords(box),
      );
    else lines.push(type);
    const { heat } = this.app;
    const isSaid = !heat && box.kind === "module" && this.moduleWords(box).length > 0;
    for (const measure of heat ? [heat] : this.app.measures.filter((one) => one.id === "time_ns" && !isSaid)) {
      const amount = box.start < 0 ? null : measure.of(box);
      if (box.start >= 0)
        lines.push(
          `${measure.label}: ${amount === null ? "not known" : (measure.isLow?.(box) ? "≥ " : "") + measure.show(amount)}`,
        );
    }
    const odd = box.kind === "fold" ? box.oddInstances.length : 0;
    if (odd) lines.push(`${odd} of ${box.count} differ in operators or shapes`);
    if (box.recomputed) lines.push(`${RECOMPUTED}: ${SAID}`);
    if (box.odd) lines.push("differs from its siblings in operators or shapes");
    return lines.filter(Boolean).join("\n");
  }

  /** Of a module, what the table of modules says of all its calls. */
  private moduleWords(box: Box): string[] {
    const isModule = box.kind === "module" && !box.run.isFunction(box.scope);
    return (isModule ? this.app.moduleFacts(box.scope) : [])
      .filter(([name, text]) => TIP_FACTS.includes(name) && (name !== "calls" || text !== "1"))
      .map(([name, text]) => `${name}: ${text}`);
  }
}
