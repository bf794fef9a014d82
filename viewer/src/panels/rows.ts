/** Pieces that panels share: sections, tables of facts, links to operations, paths that keep their end. */

import type { Run } from "../data/run.ts";
import { PHASES } from "../data/schema.gen.ts";
import { count } from "../data/units.ts";
import { h } from "../dom.ts";

const LONGEST_TAIL = 20; // letters
const LEAST_HEAD = 3;
const LEFT_OUT = "≥: operations of which it is not known are left out, so that the two cannot be compared.";

export type Go = (node: number) => void;
export type Fact = [name: string, ...cells: (string | HTMLElement)[]];

export function cellText(cell: string | HTMLElement): string {
  return typeof cell === "string" ? cell : cell.textContent;
}

export function section(title: string, ...children: (Node | string | null)[]): HTMLElement {
  return h("section", {}, h("h3", {}, title), ...children);
}

/** Rows with something to say; with `heads`, several columns under them. */
export function facts(rows: Fact[], heads: string[] = []): HTMLElement {
  const head = heads.length ? h("tr", {}, h("th"), ...heads.map((text) => h("th", { class: "head" }, text))) : null;
  return h(
    "table",
    { class: heads.length ? "facts sides" : "facts" },
    head,
    ...rows
      .filter(([, ...cells]) => cells.some((cell) => cell !== ""))
      .map(([name, ...cells]) => h("tr", {}, h("th", {}, name), ...cells.map((cell) => h("td", {}, cell)))),
  );
}

/** What A, B and the difference come to; where a sum leaves operations out, what that means. */
export function comparedFacts(run: Run, rows: Fact[]): HTMLElement[] {
  const isLow = rows.some((row) => row.some((cell) => cellText(cell).startsWith("≥")));
  return [
    facts(
      rows,
      [...run.sides, "B − A"].map((head, i) => (i === 2 && run.sides[0] !== "A" ? "difference" : head)),
    ),
    ...(isLow ? [h("p", { class: "sub" }, LEFT_OUT)] : []),
  ];
}

/** Text with the letters that a pattern matches brought out; of a text that is shown in pieces, those from `from` to `to`. */
export function markedText(text: string, marks: RegExp | null, from = 0, to = text.length): (string | HTMLElement)[] {
  const pieces: (string | HTMLElement)[] = [];
  let end = from;
  for (const match of marks ? text.matchAll(marks) : []) {
    const [first, last] = [Math.max(match.index, end), Math.min(match.index + match[0].length, to)];
    if (first >= last) continue;
    pieces.push(text.slice(end, first), h("mark", {}, text.slice(first, last)));
    end = last;
  }
  return [...pieces, text.slice(end, to)];
}

/** A path of which the end stays to be seen where there is no room for all of it; what is cut away before it is "…". */
export function pathText(path: string, after = "", marks: RegExp | null = null): HTMLElement {
  let cut = path.lastIndexOf(".", path.length - 2) + 1;
  for (let at = cut; at > 0 && path.length - at <= LONGEST_TAIL; at = path.lastIndexOf(".", at - 2) + 1) cut = at;
  if (path.length - cut > LONGEST_TAIL) cut = path.length - LONGEST_TAIL;
  if (cut < LEAST_HEAD) cut = 0;
  return h(
    "span",
    { class: "sub path", title: path + after },
    h("span", { class: "path-head" }, ...markedText(path, marks, 0, cut)),
    // Cut at its beginning, where the "…" of the head stands: its text runs from left to right all the same.
    h("span", { class: "path-tail" }, h("bdi", { dir: "ltr" }, ...markedText(path, marks, cut), after)),
  );
}

/** A path that is broken after its dots where it has to be. */
export function brokenPath(path: string): HTMLElement {
  const parts = path.split(/(?<=\.)/);
  return h("span", {}, ...parts.flatMap((part, i) => (i ? [h("wbr"), part] : [part])));
}

export function nodeLink(run: Run, node: number, go: Go, extra = "", marks: RegExp | null = null): HTMLElement {
  const path = run.where(run.nodeScope[node]);
  return h(
    "button",
    { class: "row link", type: "button", on: { click: () => go(node) } },
    h("b", {}, ...markedText(run.name(node), marks)),
    pathText(path, ` · ${PHASES[run.nodePhase[node]]} · ${count(node)}`, marks),
    extra ? h("span", { class: "amount" }, extra) : "",
  );
}

export function more(left: number): HTMLElement | null {
  return left > 0 ? h("div", { class: "sub" }, `and ${count(left)} more`) : null;
}

/** The lines around a place of the program. */
export function sourceOf(run: Run, [file, line, fn]: [string, number, string], title = "Source"): HTMLElement {
  const lines = run.tables.sources[file] ?? {};
  const near = Object.keys(lines)
    .map(Number)
    .filter((n) => Math.abs(n - line) <= 4)
    .sort((a, b) => a - b);
  const code = h(
    "pre",
    { class: "source" },
    ...near.map((n) =>
      h("div", { class: n === line ? "here" : "" }, h("span", { class: "no" }, String(n).padStart(5)), ` ${lines[n]}`),
    ),
  );
  const index = `${file.split(/[\\/]/).slice(-2).join("/")}:${line}`;
  return section(
    title,
    h("div", { class: "sub", title: `${file}:${line}` }, `${index} in ${fn}`),
    near.length ? code : h("div", { class: "sub" }, "the file was not there when this page was written"),
  );
}
