/** In a comparison: what is different in an operation that both runs have, in words. */

import type { Run } from "../data/run.ts";
import { count } from "../data/units.ts";
import { h } from "../dom.ts";
import { more, nodeLink, section, type Go } from "./rows.ts";

const MOST = 20;
const CHANGED = 3;

/** The words for one operation; null where there are none: it is not changed, or one of more than the page has words for. */
export function changeWords(run: Run, node: number): HTMLElement | null {
  if (run.difference?.[node] !== CHANGED) return null;
  const row = run.data.compare!.changes.rows.find(([one]) => one === node);
  const text = row ? said(run, row) : h("div", { class: "sub" }, "More changed than this page says in words: tv.compare(a, b).changed has them all.");
  return section("What changed, A → B", text);
}

/** The first changed operations that are no views, each with its words, and how many there are. */
export function changeList(run: Run, go: Go): HTMLElement[] {
  const rows = run.data.compare!.changes.rows;
  const shown = [...rows.filter(([node]) => !run.isView(node)), ...rows.filter(([node]) => run.isView(node))].slice(0, MOST);
  const total = Object.entries(run.data.compare!.counts).find(([name]) => name === "changed")?.[1] ?? rows.length;
  if (!shown.length) return [];
  return [section(`Changed, A → B (${count(total)})`, ...shown.flatMap((row) => [nodeLink(run, row[0], go), said(run, row)]), more(total - shown.length))];
}

function said(run: Run, [, ...texts]: number[]): HTMLElement {
  return h("ul", { class: "limits" }, ...texts.map((text) => h("li", {}, run.data.compare!.changes.texts[text])));
}
