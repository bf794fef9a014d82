/** In a comparison: what changed by module, and what is different in an operation that both runs have, in words. */

import type { Run } from "../data/run.ts";
import { count } from "../data/units.ts";
import { h } from "../dom.ts";
import { more, nodeLink, section, type Go } from "./rows.ts";

const MOST = 20;
const MOST_LINES = 50;
const CHANGED = 3;

/** Operations of one operator that changed in the same way; the first stands for all. */
interface Alike {
  row: number[];
  count: number;
}

/** The words for one operation, or where to find them if more changed than the page has words for; null where it is not changed. */
export function changeWords(run: Run, node: number): HTMLElement | null {
  if (run.difference?.[node] !== CHANGED) return null;
  const row = run.data.compare!.changes.rows.find(([amount]) => amount === node);
  const text = row
    ? said(run, row)
    : h("div", { class: "sub" }, "More changed than this page says in words: tv.compare(a, b).changed has them all.");
  return section("What changed, A → B", text);
}

/** What changed by module, each line a link to where that is. */
export function moduleChanges(run: Run, go: Go): HTMLElement {
  const { lines, a, b } = run.data.compare!;
  const sides = a === b ? "A → B" : `${a} → ${b}`;
  const shown = lines.slice(0, MOST_LINES);
  return section(
    `What changed, ${sides} (${count(lines.length)})`,
    lines.length
      ? h("div", { class: "changes words" }, ...shown.map((line) => lineLink(line, go)))
      : h("p", { class: "sub" }, "Nothing that can be named by module."),
    more(lines.length - shown.length),
  );
}

function lineLink([path, what, node]: [string, string, number], go: Go): HTMLElement {
  const words = [h("b", {}, path || "model"), h("span", {}, ` ${what}`)];
  if (node < 0) return h("div", { class: "row" }, ...words);
  return h("button", { class: "row link", type: "button", on: { click: () => go(node) } }, ...words);
}

/** The changed operations with their words, those that changed in the same way together and views last, and how many there are. */
export function changeList(run: Run, go: Go): HTMLElement[] {
  const all = alike(run);
  if (!all.length) return [];
  const shown = all.slice(0, MOST);
  const total = Object.entries(run.data.compare!.counts).find(([name]) => name === "changed")?.[1] ?? all.length;
  const listed = shown.reduce((sum, { count: many }) => sum + many, 0);
  return [
    section(
      `Changed, A → B (${count(total)})`,
      h(
        "div",
        { class: "changes" },
        ...shown.flatMap(({ row, count: many }) => [
          nodeLink(run, row[0], go),
          said(run, row, many > 1 ? ` and ${count(many - 1)} more like it` : ""),
        ]),
      ),
      more(total - listed),
    ),
  ];
}

function alike(run: Run): Alike[] {
  const results = new Map<string, Alike>();
  for (const row of run.data.compare!.changes.rows) {
    const key = [run.name(row[0]), run.nodePhase[row[0]], ...row.slice(1)].join("\u0000");
    const known = results.get(key);
    if (known) known.count += 1;
    else results.set(key, { row, count: 1 });
  }
  const groups = [...results.values()];
  const isView = ({ row }: Alike): boolean => run.isView(row[0]);
  return [...groups.filter((one) => !isView(one)), ...groups.filter(isView)];
}

function said(run: Run, [, ...texts]: number[], after = ""): HTMLElement {
  return h(
    "ul",
    { class: "limits" },
    ...texts.map((text, i) =>
      h(
        "li",
        {},
        run.data.compare!.changes.texts[text],
        i === texts.length - 1 && after ? h("span", { class: "sub" }, after) : null,
      ),
    ),
  );
}
