/** What a repeat says of its instances: how many, which differ, and in what. */

import { Role } from "../data/schema.gen.ts";
import { plural } from "../data/text.ts";
import { count } from "../data/units.ts";
import { h } from "../dom.ts";
import type { Box } from "../tree/box.ts";
import { more, pathText, section, type Go } from "./rows.ts";

const MOST = 8;

/** The name of one instance: its module, the parameter that it works on, or its number. */
export function instanceName(box: Box): string {
  if (box.kind === "module") return box.label;
  const own = parameterOf(box);
  const siblings = box.parent?.kind === "fold" ? box.parent.children : [];
  const other = siblings.find((sibling) => sibling !== box);
  // What all of them work on is the name of none.
  if (own && !(other && parameterOf(other) === own)) return own;
  return box.kind === "step"
    ? `${box.type}, ${box.label}`
    : siblings.length > 1
      ? `${box.label}, ${count(siblings.indexOf(box) + 1)} of ${count(siblings.length)}`
      : box.label;
}

/** The first parameter that a box reads, by name. */
function parameterOf(box: Box): string {
  const { run, forest } = box;
  for (let position = box.start; position < box.end; position++) {
    const node = forest.order[position];
    for (let row = run.inStart[node]; row < run.inStart[node + 1]; row++) {
      const value = run.inValue[row];
      if (run.roleOf(value) === Role.PARAMETER && run.valueName[run.rootOf(value)] >= 0)
        return run.valueLabel(run.rootOf(value));
    }
  }
  return "";
}

export function standsFor(box: Box): string {
  const odd = box.oddInstances.length;
  if (!odd) return `${count(box.count)} that do the same; what can be added up is the sum over all of them`;
  const differ = box.children.some(
    (child, i) => child.odd && box.oddInstances.includes(i) && !sameOperators(child, typical(box)),
  );
  return `${count(box.count)} in a row, ${count(odd)} of them with other ${differ ? "operators or shapes" : "shapes"}; what can be added up is the sum over all of them`;
}

/** The instances that are not like most, each with what is different. */
export function differing(box: Box, go: Go): HTMLElement | null {
  const odd = box.oddInstances;
  if (!odd.length) return null;
  const usual = typical(box);
  const rows = odd.slice(0, MOST).map((index) => {
    const one = box.children[index];
    return h(
      "button",
      { class: "row tall link", type: "button", on: { click: () => go(one.forest.order[one.start]) } },
      h("b", {}, pathText(instanceName(one))),
      h("span", { class: "second" }, difference(one, usual)),
    );
  });
  return section(
    `${plural(odd.length, "instance")} that differ${odd.length === 1 ? "s" : ""} from the others`,
    ...rows,
    more(odd.length - MOST),
  );
}

/** In what an instance differs, in a few words. */
export function difference(box: Box, usual: Box): string {
  if (!sameOperators(box, usual))
    return `other operators: ${count(box.operations)} instead of ${count(usual.operations)}`;
  const { run, forest } = box;
  for (let position = 0; position < box.operations; position++) {
    const a = run.outputs(forest.order[box.start + position])[0];
    const b = run.outputs(forest.order[usual.start + position])[0];
    if (a === undefined || b === undefined || run.typeText(a) === run.typeText(b)) continue;
    return `${run.name(forest.order[box.start + position])} makes ${run.typeText(a)}, not ${run.typeText(b)}`;
  }
  return "differs inside";
}

function typical(box: Box): Box {
  return box.children.find((child) => !child.odd) ?? box.children[0];
}

function sameOperators(a: Box, b: Box): boolean {
  if (a.operations !== b.operations) return false;
  const { run, forest } = a;
  for (let position = 0; position < a.operations; position++) {
    if (
      run.opIds[run.nodeCall[forest.order[a.start + position]]] !==
      run.opIds[run.nodeCall[forest.order[b.start + position]]]
    )
      return false;
  }
  return true;
}
