/** Where an arrow key leads: up to producers, down to consumers, sideways to what stands beside; through frames and phases. */

import type { Hit, Rect, Scene } from "../draw/scene.ts";
import type { Box } from "../tree/box.ts";

export type Direction = "up" | "down" | "left" | "right";

export function navigate(scene: Scene, from: Box | null, direction: Direction): Box | null {
  const hit = from ? scene.find(from) : null;
  if (!hit) return first(scene);
  if (direction === "left" || direction === "right") return beside(scene, hit, direction === "right");
  const forward = direction === "down";
  const { picture } = scene.columns[hit.column];
  if (forward && picture.items[hit.item].own >= 0) return within(scene, hit);
  return neighbour(scene, hit, forward) ?? acrossPhases(scene, hit, forward);
}

/** The first box in the order of execution: an input, where there is one. */
function first(scene: Scene): Box | null {
  for (const { picture } of scene.columns) {
    const item = picture.items.find(({ box }) => box.kind === "input") ?? picture.items.find(({ own }) => own < 0);
    if (item) return item.box;
  }
  return null;
}

/** Into a frame: the box in it that runs first. */
function within(scene: Scene, hit: Hit): Box | null {
  const { picture } = scene.columns[hit.column];
  let frame = picture.items[hit.item].own;
  while (true) {
    const inside = picture.frames[frame].items.filter((item) => item >= 0).map((item) => picture.items[item]);
    if (!inside.length) return null;
    const next = inside.reduce((a, b) => (b.box.start < a.box.start ? b : a));
    if (next.own < 0) return next.box;
    frame = next.own;
  }
}

/** The nearest box that reads from this one, or that it reads from, in whatever frame that is. */
function neighbour(scene: Scene, hit: Hit, forward: boolean): Box | null {
  const { picture } = scene.columns[hit.column];
  const results: Hit[] = [];
  for (const edge of picture.edges) {
    const [mine, theirs] = forward ? [edge.source, edge.target] : [edge.target, edge.source];
    if (isIn(scene, hit, mine) && !isIn(scene, hit, theirs)) results.push({ column: hit.column, item: theirs });
  }
  return nearest(scene, hit, results);
}

/** What in another phase reads from a box, or is read by it. */
export function otherPhase(scene: Scene, box: Box): Box | null {
  const hit = scene.find(box);
  return hit && (acrossPhases(scene, hit, true) ?? acrossPhases(scene, hit, false));
}

/** What another phase reads of this one's results, or made of what this one reads. */
function acrossPhases(scene: Scene, hit: Hit, forward: boolean): Box | null {
  const box = scene.box(hit);
  const { run } = box.forest;
  const values = new Set<number>();
  if (box.start < 0) for (const value of box.elements) values.add(run.roots[value]);
  for (let position = Math.max(0, box.start); position < box.end; position++) {
    const node = box.forest.order[position];
    const [start, list] = forward ? [run.outStart, run.outValue] : [run.inStart, run.inValue];
    for (let row = start[node]; row < start[node + 1]; row++) values.add(run.roots[list[row]]);
  }
  const results: Hit[] = [];
  scene.columns.forEach(({ picture }, column) => {
    if (column === hit.column && box.kind !== "output") return; // what is handed out may be read in its own phase as well
    const later = picture.forest.phases[0] - box.forest.phases[0];
    if (column !== hit.column && (forward ? later < 0 : later > 0)) return; // what runs later has made nothing that is read here
    const { forest, leaf } = picture;
    for (let index = 0; index < forest.total; index++) {
      const node = forest.order[index];
      const [start, list] = forward ? [run.inStart, run.inValue] : [run.outStart, run.outValue];
      for (let row = start[node]; row < start[node + 1]; row++) {
        if (leaf[index] >= 0 && values.has(run.roots[list[row]])) results.push({ column, item: leaf[index] });
      }
      if (results.length) return; // the first in the order of execution
    }
  });
  return results.length ? scene.box(results[0]) : null;
}

/** The box nearest to this one on one side, at about its height; of a frame, what stands outside it. */
function beside(scene: Scene, hit: Hit, right: boolean): Box | null {
  const own = scene.rect(hit);
  let best: Box | null = null;
  let least = Infinity;
  scene.columns.forEach(({ picture }, column) =>
    picture.items.forEach(({ own: frame, box }, item) => {
      if (frame >= 0 || (column === hit.column && (item === hit.item || isIn(scene, hit, item)))) return;
      const rect = scene.rect({ column, item });
      const gap = right ? rect.x - own.x - own.w : own.x - rect.x - rect.w;
      const overlap = Math.max(0, Math.max(rect.y - own.y - own.h, own.y - rect.y - rect.h));
      if (gap < -4 || overlap > gap + own.h + 60) return;
      const far = Math.max(0, gap) + 3 * overlap + Math.abs(rect.y + rect.h / 2 - own.y - Math.min(own.h, 44) / 2) / 2;
      if (far >= least) return;
      [best, least] = [box, far];
    }),
  );
  return best;
}

function isIn(scene: Scene, hit: Hit, item: number): boolean {
  const { picture } = scene.columns[hit.column];
  while (item >= 0) {
    if (item === hit.item) return true;
    item = picture.frames[picture.items[item].frame].item;
  }
  return false;
}

function nearest(scene: Scene, hit: Hit, results: Hit[]): Box | null {
  const middle = ({ x, y, w, h }: Rect): [number, number] => [x + w / 2, y + h / 2];
  const [x, y] = middle(scene.rect(hit));
  let best: Hit | null = null;
  let least = Infinity;
  for (const other of results) {
    const [ox, oy] = middle(scene.rect(other));
    const far = Math.hypot(ox - x, oy - y);
    if (far >= least) continue;
    [best, least] = [other, far];
  }
  return best && scene.box(best);
}
