/** Graph breaks: why each happened, on which line, what torch advises, and the partition that it ends. */

import type { Run } from "../data/run.ts";
import type { Break } from "../data/tables.ts";
import { plural } from "../data/text.ts";
import { count } from "../data/units.ts";
import { h } from "../dom.ts";
import { section } from "./rows.ts";

export function breakList(run: Run, goScope: (scope: number) => void): HTMLElement | null {
  const breaks = run.data.breaks ?? [];
  if (!breaks.length) return null;
  return section(
    `Graph breaks (${count(breaks.length)})`,
    h(
      "ol",
      { class: "limits breaks" },
      ...breaks.map((one) => {
        const scope = one.partition === null ? -1 : run.partitionScope(one.partition);
        const title = `${one.reason}${one.id ? ` [${one.id}]` : ""}`;
        return h(
          "li",
          {},
          scope >= 0
            ? h(
                "button",
                {
                  class: "link",
                  type: "button",
                  title: "Show the partition that ends here",
                  on: { click: () => goScope(scope) },
                },
                title,
              )
            : h("b", {}, title),
          ...body(one),
        );
      }),
    ),
  );
}

/** On the partition that a break ends. */
export function breakFacts(run: Run, scope: number): HTMLElement | null {
  const one = scope >= 0 ? run.breakOf(scope) : undefined;
  return one
    ? h(
        "div",
        { class: "alert" },
        h("b", {}, `Ends in a graph break: ${one.reason}${one.id ? ` [${one.id}]` : ""}`),
        ...body(one),
      )
    : null;
}

function body(one: Break): HTMLElement[] {
  const file = one.file
    ? `${one.file.split(/[\\/]/).slice(-2).join("/")}:${one.line} in ${one.function}`
    : "an unknown line";
  return [
    h("div", { class: "sub", title: one.file ?? "" }, file),
    ...(one.code ? [h("pre", { class: "source" }, h("div", { class: "here" }, one.code))] : []),
    h("div", {}, one.explanation),
    ...one.hints.map((hint) => h("div", { class: "hint" }, `→ ${hint}`)),
    ...(one.lost?.length
      ? [
          h(
            "div",
            {},
            `Ran in eager mode because of it: ${one.lost.map(([op, times]) => (times > 1 ? `${op} ×${count(times)}` : op)).join(", ")}`,
          ),
        ]
      : []),
    h("div", { class: "sub" }, ending(one)),
  ];
}

function ending(one: Break): string {
  const met = (one.times ?? 1) > 1 ? `; met ${plural(one.times!, "time")}` : "";
  if (one.partition === null) return `ends no partition${met}`;
  const others = (one.partitions ?? []).filter((number) => number !== one.partition);
  const also = others.length ? ` (and ${others.join(", ")})` : "";
  return `ends partition ${one.partition}${also}${one.nodes === null ? "" : `, which holds ${plural(one.nodes, "node")}`}${met}`;
}
