/** Draws a scene on a canvas: only what is in the window, and only as much of it as can be read at its size. */

import { ADDED, REMOVED } from "../data/run.ts";
import { BREAK, type Box } from "../tree/box.ts";
import { READABLE } from "./fitting.ts";
import { drawHeader, farName, nameOf, type Buttons } from "./header.ts";
import { LABEL_SIZE, labelsOf, labelsReady, meets } from "./labels.ts";
import { drawLoop, drawOdd, drawTags, isOdd } from "./marks.ts";
import { titleRuler } from "./measure.ts";
import { freeSteps, NAMES_FROM, placeOf, type NamePlace, type Step } from "./names.ts";
import { drawOverlay } from "./overlay.ts";
import { atTop, laterPaths, pathsOf, sidePaths, type Paths } from "./paths.ts";
import { TITLE_SIZE, titleWidth, type Column, type Hit, type Rect, type Scene } from "./scene.ts";
import { behind, fadedFrame, frameFill, round } from "./shapes.ts";
import { FONT } from "./text.ts";
import { blend, type Theme } from "./theme.ts";
import { drawName, drawWords, TEXT_FROM } from "./words.ts";

export interface Camera {
  scale: number;
  x: number;
  y: number;
}

export interface Paint {
  fill: string;
  accent: string;
  far: string; // the whole of it where it is but a speck; pale colours would be lost
}

/** A place of the window that answers a click. */
export interface Zone extends Rect {
  action: "toggle" | "previous" | "next" | "all";
  box: Box;
}

export interface Look {
  theme: Theme;
  paint: (box: Box) => Paint;
  selected: Box | null;
  hover: Box | null;
  /** Edges to be brought out: column, edge, and as what. */
  highlighted: { column: number; edge: number; as: "producer" | "consumer" | "edge" }[];
  marked: Set<Box> | null; // everything else is drawn faint
  links: [Hit, Hit][];
  labels: boolean;
  isHeat: boolean; // colours are a measure
  /** What a box has of it, in words; "" where there is none, or it is not known. */
  heatText: (box: Box) => string;
  plain?: boolean; // boxes and lines only
  still?: boolean; // a picture to keep: nothing to be clicked
}

/** Of a frame, to be drawn above all boxes. */
interface Name {
  box: Box;
  rect: Rect;
  accent: string;
  lines: number[]; // where lines enter or leave through the top
  steps: Step[];
  around: Name | null;
  grow: number;
  hidden: boolean;
}

const CARD_FROM = 0.2;
const LABELS_FROM = READABLE * 0.999;
const FAR = READABLE; // scale below which the names of frames grow
const MARKS_FROM = 0.3;
const TIPS_FROM = 0.3;
const SIDE = 8;
const FAINT = 0.5; // of what steps back for something else

export class Painter {
  zones: Zone[] = [];
  drawn = 0;
  /** The size of the name that each box or frame was drawn with, in pixels; those without a name are not in it. */
  readonly nameSizes = new Map<Box, number>();
  later: (column: Column, frame: number) => void = () => {}; // asks for the labels of a frame, to be drawn another time
  private names: Name[] = [];
  private nameOf = new Map<number, Name>(); // by frame of the column that is drawn
  private labelled: [Column, number][] = [];
  private plates: Rect[] = []; // under the names of frames
  private tips: (() => void)[] = []; // the arrowheads of lines that have been drawn

  constructor(readonly context: CanvasRenderingContext2D) {}

  draw(scene: Scene, camera: Camera, look: Look, width: number, height: number, ratio: number): void {
    const { context } = this;
    this.zones = [];
    this.drawn = 0;
    this.nameSizes.clear();
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.fillStyle = look.theme.ground;
    context.fillRect(0, 0, width, height);
    context.setTransform(ratio * camera.scale, 0, 0, ratio * camera.scale, ratio * camera.x, ratio * camera.y);
    const view = {
      x: -camera.x / camera.scale,
      y: -camera.y / camera.scale,
      w: width / camera.scale,
      h: height / camera.scale,
    };
    this.names = [];
    this.labelled = [];
    this.plates = [];
    for (const column of scene.columns) this.column(column, view, camera, look);
    this.map(camera, look);
    drawOverlay(context, scene, look, camera, view, this.plates);
    for (const [column, frame] of this.labelled) this.labels(column, frame, look);
  }

  private column(column: Column, view: Rect, camera: Camera, look: Look): void {
    const { picture } = column;
    this.nameOf.clear();
    const stack = [0];
    const leaves: number[] = [];
    while (stack.length) {
      const frame = stack.pop()!;
      const result = column.results[frame];
      const rect = { x: column.frameX[frame], y: column.frameY[frame], w: result.width, h: result.height };
      if (!meets(rect, view)) continue;
      if (frame === 0) this.title(column, rect, camera, look);
      else this.frame(column, frame, rect, camera, look);
      if (Math.max(rect.w, rect.h) * camera.scale < 6) continue;
      for (const item of picture.frames[frame].items)
        if (item >= 0 && picture.items[item].own >= 0) this.others(column, picture.items[item].own, look);
      this.lines(column, frame, camera, look);
      if (frame) this.frameName(column, frame, rect, camera, look);
      for (const item of picture.frames[frame].items) {
        if (item < 0) continue;
        if (picture.items[item].own >= 0) stack.push(picture.items[item].own);
        else if (meets({ x: column.x[item], y: column.y[item], w: column.w[item], h: column.h[item] }, view))
          leaves.push(item);
      }
    }
    this.drawn += leaves.length;
    if (camera.scale < CARD_FROM) this.specks(column, leaves, look);
    else for (const item of leaves) this.card(column, item, camera, look);
    for (const draw of this.tips.splice(0)) draw(); // they reach over the cards that lie below the first of a repeat
  }

  private title(column: Column, rect: Rect, camera: Camera, look: Look): void {
    const { context } = this;
    context.fillStyle = look.theme.frames[0];
    context.strokeStyle = look.theme.frameLine;
    context.lineWidth = 1;
    round(context, rect.x, rect.y, rect.w, rect.h, 14);
    context.fill();
    context.stroke();
    if (look.plain) return;
    const wanted = Math.min(Math.max(TITLE_SIZE, 12 / camera.scale), Math.max(90, 9 / camera.scale));
    const short = column.title.split(" · ")[0];
    const [text, size] = [column.title, short]
      .map((words): [string, number] => [words, Math.min(wanted, (column.slot * TITLE_SIZE) / titleWidth(words))])
      .find(([, fits]) => fits * camera.scale > 9) ?? [
      short,
      Math.min(wanted, (column.slot * TITLE_SIZE) / titleWidth(short)),
    ];
    context.fillStyle = look.theme.faint;
    context.font = `600 ${size}px ${FONT}`;
    context.textAlign = "left";
    context.textBaseline = "bottom";
    context.fillText(text, rect.x + 4, rect.y - 8);
  }

  private frame(column: Column, frame: number, rect: Rect, camera: Camera, look: Look): void {
    const { context } = this;
    const { theme } = look;
    const item = column.picture.frames[frame].item;
    const { box } = column.picture.items[item];
    const depth = column.picture.frames[frame].depth;
    context.globalAlpha = fadedFrame(box, look);
    context.fillStyle = frameFill(theme, depth, box);
    context.strokeStyle = look.selected === box ? theme.accent : look.hover === box ? theme.faint : theme.frameLine;
    context.lineWidth = Math.max(look.selected === box ? 2.5 : 1.2, (look.selected === box ? 2 : 0.7) / camera.scale);
    round(context, rect.x, rect.y, rect.w, rect.h, 10);
    context.fill();
    context.stroke();
    if (box.type.startsWith(BREAK)) {
      // Where the compiler had to give up.
      context.fillStyle = theme.broken;
      round(context, rect.x + 10, rect.y + rect.h - 2, rect.w - 20, 4, 2);
      context.fill();
    }
    context.globalAlpha = 1;
  }

  /** Behind a repeat that shows one instance, the edges of the others; lines pass over them to reach the one that is shown. */
  private others(column: Column, frame: number, look: Look): void {
    const { context } = this;
    const { box } = column.picture.items[column.picture.frames[frame].item];
    if (box.kind !== "fold" || box.opening !== "one") return;
    const { width, height } = column.results[frame];
    context.globalAlpha = fadedFrame(box, look);
    context.fillStyle = look.theme.frames[(column.picture.frames[frame].depth + 1) % 2];
    context.strokeStyle = look.theme.frameLine;
    context.lineWidth = 1;
    for (const step of [8, 4]) {
      round(context, column.frameX[frame] + step, column.frameY[frame] + step * behind(column), width, height, 10);
      context.fill();
      context.stroke();
    }
    context.globalAlpha = 1;
  }

  /** After its lines, which pass behind it where they have no other way. */
  private frameName(column: Column, frame: number, rect: Rect, camera: Camera, look: Look): void {
    if (look.plain || rect.w * camera.scale < 40) return;
    const { box } = column.picture.items[column.picture.frames[frame].item];
    const { accent } = look.paint(box);
    const lines = atTop(column.results[frame]).map((x) => x + rect.x);
    if (camera.scale >= FAR)
      this.header(
        box,
        rect,
        accent,
        { grow: 1, buttons: 1, room: rect.w },
        look.still ? "badge" : "all",
        camera,
        look,
        lines,
      );
    else {
      const around = this.nameOf.get(column.picture.frames[frame].parent) ?? null; // frames come before what is in them
      const name: Name = {
        box,
        rect,
        accent,
        lines,
        steps: freeSteps(column, frame),
        around,
        grow: Infinity,
        hidden: false,
      };
      this.names.push(name);
      this.nameOf.set(frame, name);
    }
  }

  /** From far away, names larger than the rest and above it, as on a map. */
  private map(camera: Camera, look: Look): void {
    const far = camera.scale < NAMES_FROM;
    for (const name of this.names) {
      const { box, rect, accent, lines, steps } = name;
      name.hidden = far && name.around?.hidden === true; // what is inside tells nothing without what it is in
      if (name.hidden) continue;
      const around = name.around?.grow ?? Infinity;
      const size = { width: rect.w, height: rect.h };
      let which: Buttons = look.still ? "badge" : "all";
      let namePlace = far
        ? null
        : placeOf(steps, size, titleRuler().width(nameOf(box)), box.kind === "fold" ? 84 : 36, camera.scale, around);
      if (!namePlace) {
        which = "none"; // a narrow one is better named than closed with one click
        namePlace = placeOf(steps, size, titleRuler().width(farName(box)), SIDE, camera.scale, around);
      }
      name.grow = namePlace?.grow ?? name.around?.grow ?? Infinity;
      name.hidden = !namePlace;
      if (namePlace) this.header(box, rect, accent, namePlace, which, camera, look, lines);
    }
  }

  private header(
    box: Box,
    rect: Rect,
    accent: string,
    namePlace: NamePlace,
    which: Buttons,
    camera: Camera,
    look: Look,
    lines: number[],
  ): void {
    this.nameSizes.set(box, 13 * namePlace.grow * camera.scale);
    for (const { action, ...at } of drawHeader(this.context, box, accent, look, {
      rect,
      place: namePlace,
      which,
      lines,
      plates: this.plates,
    }))
      this.zone(camera, at, action, box);
  }

  private zone(camera: Camera, rect: Rect, action: Zone["action"], box: Box): void {
    this.zones.push({
      x: rect.x * camera.scale + camera.x,
      y: rect.y * camera.scale + camera.y,
      w: rect.w * camera.scale,
      h: rect.h * camera.scale,
      action,
      box,
    });
  }

  private lines(column: Column, frame: number, camera: Camera, look: Look): void {
    const { context } = this;
    const { lines } = column.picture.frames[frame];
    if (!lines.length) return;
    const result = column.results[frame];
    const arrows = lines.map((line) => line.arrow);
    const isCarried = (line: number): boolean => lines[line].carried;
    const paths = pathsOf(result, arrows, (line) => isCarried(line) || lines[line].side > 0);
    context.save();
    context.translate(column.frameX[frame], column.frameY[frame]);
    context.globalAlpha = look.marked || look.highlighted.length ? 0.6 : 1;
    context.lineWidth = Math.min(1.3, 0.8 / camera.scale + 0.4);
    context.lineJoin = "round";
    this.strokes(paths, look.theme.wire, camera);
    if (lines.some(({ carried }) => carried)) {
      context.setLineDash([6, 4]);
      this.strokes(laterPaths(lines, result, arrows, isCarried), look.theme.link, camera);
      context.setLineDash([]);
    }
    for (const side of [ADDED, REMOVED]) {
      if (!lines.some((line) => line.side === side && !line.carried)) continue;
      const isSide = (line: number): boolean => lines[line].side === side && !isCarried(line);
      if (side === REMOVED) context.setLineDash([6, 4]);
      this.strokes(sidePaths(result, side, arrows, isSide), look.theme.differenceFar[side], camera);
      context.setLineDash([]);
    }
    const { forest, items } = column.picture;
    if (forest.phases.length > 1) {
      const isLater = (line: number): boolean =>
        items[lines[line].source].box.start >= 0 &&
        forest.run.nodePhase[forest.order[items[lines[line].source].box.start]] > 0;
      this.strokes(laterPaths(column.picture.frames[frame], result, arrows, isLater), look.theme.wireLater, camera);
    }
    if (look.labels && !look.plain && camera.scale > LABELS_FROM) {
      if (labelsReady(column, frame)) this.labelled.push([column, frame]);
      else this.later(column, frame);
    }
    context.restore();
  }

  private strokes(paths: Paths, color: string, camera: Camera): void {
    const { context } = this;
    context.strokeStyle = color;
    context.stroke(camera.scale < TIPS_FROM ? paths.straight : paths.curves);
    if (camera.scale <= TIPS_FROM) return;
    const [transform, alpha] = [context.getTransform(), context.globalAlpha];
    this.tips.push(() => {
      context.save();
      context.setTransform(transform);
      context.globalAlpha = alpha;
      context.fillStyle = color;
      context.fill(paths.arrows);
      context.restore();
    });
  }

  private labels(column: Column, frame: number, look: Look): void {
    const { context } = this;
    const [x, y] = [column.frameX[frame], column.frameY[frame]];
    context.font = `${LABEL_SIZE}px ${FONT}`;
    context.textAlign = "left";
    context.textBaseline = "middle";
    for (const label of labelsOf(column, frame)) {
      context.globalAlpha = 0.88;
      context.fillStyle = look.theme.frames[column.picture.frames[frame].depth % 2];
      context.fillRect(x + label.x, y + label.y, label.w, label.h);
      context.globalAlpha = 1;
      context.fillStyle = look.theme.faint;
      context.fillText(label.text, x + label.x + 2, y + label.y + label.h / 2 + 0.5);
    }
  }

  /** Boxes too small for text: one path for each colour. */
  private specks(column: Column, items: number[], look: Look): void {
    const byFill = new Map<string, number[]>();
    for (const item of items) {
      const { box } = column.picture.items[item];
      const color = look.paint(box).far;
      const key = look.marked && !look.marked.has(box) ? `${color}70` : color;
      const list = byFill.get(key);
      if (list) list.push(item);
      else byFill.set(key, [item]);
    }
    for (const [color, list] of byFill) {
      this.context.fillStyle = color;
      this.context.beginPath();
      for (const item of list) this.context.rect(column.x[item], column.y[item], column.w[item], column.h[item]);
      this.context.fill();
    }
  }

  private card(column: Column, item: number, camera: Camera, look: Look): void {
    const { context } = this;
    const { theme } = look;
    const { box, tags } = column.picture.items[item];
    const [x, y, w, h] = [column.x[item], column.y[item], column.w[item], column.h[item]];
    const { fill: own, accent, far } = look.paint(box);
    const isEnd = box.kind === "input" || box.kind === "output";
    const radius = isEnd ? h / 2 : 7;
    const fill =
      camera.scale < TEXT_FROM && !look.isHeat && !isEnd ? blend(theme.card, far, theme.dark ? 0.45 : 0.5) : own;
    if (look.marked && !look.marked.has(box)) context.globalAlpha = FAINT;
    context.lineWidth = Math.max(1, 0.6 / camera.scale);
    context.strokeStyle = theme.cardLine;
    if (box.kind === "fold") {
      for (const step of [6, 3]) {
        context.fillStyle = theme.card;
        round(context, x + step, y + step * behind(column), w, h, radius);
        context.fill();
        context.stroke();
      }
    }
    context.fillStyle = fill;
    if (look.hover === box) context.strokeStyle = theme.faint;
    if (look.selected === box) {
      context.strokeStyle = theme.accent;
      context.lineWidth = 2.6;
    }
    round(context, x, y, w, h, radius);
    context.fill();
    context.stroke();
    if (!isEnd) {
      context.fillStyle = accent;
      round(context, x + 5, y + 7, 4, h - 14, 2);
      context.fill();
    }
    const isWhole = camera.scale >= READABLE * 0.999;
    const { toggle, size } = isWhole
      ? drawWords(context, box, { x, y, w, h }, fill, look)
      : drawName(context, box, { x, y, w, h }, fill, camera.scale, look);
    if (size) this.nameSizes.set(box, size * camera.scale);
    if (toggle) this.zone(camera, toggle, "toggle", box);
    if (camera.scale >= MARKS_FROM && isOdd(box)) drawOdd(context, x + w, y, camera.scale);
    if (column.loops.has(item)) drawLoop(context, { x, y, w, h }, theme.link, camera.scale);
    if (tags.length && camera.scale >= TEXT_FROM) drawTags(context, column, tags, x, y, w, look);
    context.globalAlpha = 1;
  }
}
