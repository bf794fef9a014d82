/** What an edge stands for: the tensor as it was handed over, who made it, who reads it, and its bytes. */

import { REMOVED, type Run } from "../data/run.ts";
import { size } from "../data/units.ts";
import type { Edge, Picture } from "../tree/picture.ts";
import { handedAlong } from "./labels.ts";
import type { Box } from "../tree/box.ts";
import type { EdgeHit, Scene } from "./scene.ts";

const MOST_LOOKED_AT = 200; // values, when readers are looked for through views

export interface EdgeFacts {
  value: number; // as the box at its beginning hands it over
  read: number; // as the box at its end reads it: the same, or a view of it
  count: number; // of tensors that pass
  from: string;
  to: string;
  isCarried: boolean;
  side: string; // of a comparison: the run that alone has it
  /** Whether what is at its end adds gradients of one tensor up. */
  isSum: boolean;
}

export function edgeFacts(picture: Picture, edge: Edge): EdgeFacts {
  const { items, forest } = picture;
  const { run } = forest;
  const [source, target] = [items[edge.source].box, items[edge.target].box];
  return {
    value: handedAlong(picture, edge),
    read: edge.value,
    count: edge.count,
    from: calledText(source),
    to: calledText(target),
    isCarried: edge.carried,
    side: edge.side ? run.sides[edge.side === REMOVED ? 0 : 1] : "",
    isSum: addsUp(picture, edge),
  };
}

/** A box from outside, with the number of the call where its name on the screen has one. */
function calledText(box: Box): string {
  const number = / #\d+$/.exec(box.label)?.[0] ?? "";
  return box.whole.endsWith(number) ? box.whole : box.whole + number;
}

/** Whether what reads the tensor at the end of an edge, itself or through views, adds gradients of one tensor up. */
function addsUp({ forest, leaf }: Picture, { target, value }: Edge): boolean {
  const { run } = forest;
  const waiting = [value];
  for (const passed of waiting) {
    for (const reader of run.readers(passed)) {
      const position = forest.position[reader];
      if (run.isView(reader)) waiting.push(...run.outputs(reader));
      else if (position >= 0 && leaf[position] === target && run.addsGradients(reader)) return true;
    }
    if (waiting.length > MOST_LOOKED_AT) break;
  }
  return false;
}

/** The bytes of a tensor itself, whatever block it lies in. */
export function tensorBytes(run: Run, value: number): number | null {
  const [dtype, shape] = run.type(value);
  const bits = /complex(\d+)|(\d+)/.exec(dtype);
  const width = dtype === "bool" ? 8 : bits ? Number(bits[1] ?? bits[2]) : NaN;
  return Number.isFinite(width) ? shape.reduce((product, n) => product * n, width / 8) : null;
}

/** A few lines about the edges of one line. */
export function edgeText(scene: Scene, hits: EdgeHit[]): string {
  const facts = hits.map(({ column, edge }) => {
    const { picture } = scene.columns[column];
    return edgeFacts(picture, picture.edges[edge]);
  });
  const { run } = scene.columns[hits[0].column].picture.forest;
  const [first] = facts;
  const bytes = tensorBytes(run, first.value);
  const targets = [...new Set(facts.map(({ to }) => to))];
  return [
    `${run.typeText(first.value)}${bytes === null ? "" : ` · ${size(bytes)}`}`,
    `from ${first.from}`,
    `to ${targets.slice(0, 3).join(", ")}${targets.length > 3 ? ` and ${targets.length - 3} more` : ""}`,
    run.typeText(first.read) === run.typeText(first.value) ? "" : `read as ${run.typeText(first.read)}`,
    first.side ? `only in ${first.side}` : "",
    first.count > 1 ? `and ${first.count - 1} more tensors` : "",
    first.isCarried ? "handed to the next turn of the loop" : "",
    first.isSum ? "gradients of one tensor add up there" : "",
  ]
    .filter(Boolean)
    .join("\n");
}
