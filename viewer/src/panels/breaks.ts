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
      ...breaks.map((graphBreak) => {
        const scope = graphBreak.partition === null ? -1 : run.partitionScope(graphBreak.partition);
        const title = `${graphBreak.reason}${graphBreak.id ? ` [${graphBreak.id}]` : ""}`;
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
          ...body(graphBreak),
        );
      }),
    ),
  );
}

/** On the partition that a break ends. */
export function breakFacts(run: Run, scope: number): HTMLElement | null {
  const graphBreak = scope >= 0 ? run.breakOf(scope) : undefined;
  return graphBreak
    ? h(
        "div",
        { class: "alert" },
        h("b", {}, `Ends in a graph break: ${graphBreak.reason}${graphBreak.id ? ` [${graphBreak.id}]` : ""}`),
        ...body(graphBreak),
      )
    : null;
}

function body(graphBreak: Break): HTMLElement[] {
  const file = graphBreak.file
    ? `${graphBreak.file.split(/[\\/]/).slice(-2).join("/")}:${graphBreak.line} in ${graphBreak.function}`
    : "an unknown line";
  return [
    h("div", { class: "sub", title: graphBreak.file ?? "" }, file),
    ...(graphBreak.code ? [h("pre", { class: "source" }, h("div", { class: "here" }, graphBreak.code))] : []),
    h("div", {}, graphBreak.explanation),
    ...graphBreak.hints.map((hint) => h("div", { class: "hint" }, `→ ${hint}`)),
    ...(graphBreak.lost?.length
      ? [
          h(
            "div",
            {},
            `Ran in eager mode because of it: ${graphBreak.lost.map(([op, times]) => (times > 1 ? `${op} ×${count(times)}` : op)).join(", ")}`,
          ),
        ]
      : []),
    h("div", { class: "sub" }, ending(graphBreak)),
  ];
}

function ending(graphBreak: Break): string {
  const met = (graphBreak.times ?? 1) > 1 ? `; met ${plural(graphBreak.times!, "time")}` : "";
  if (graphBreak.partition === null) return `ends no partition${met}`;
  const others = (graphBreak.partitions ?? []).filter((number) => number !== graphBreak.partition);
  const also = others.length ? ` (and ${others.join(", ")})` : "";
  return `ends partition ${graphBreak.partition}${also}${graphBreak.nodes === null ? "" : `, which holds ${plural(graphBreak.nodes, "node")}`}${met}`;
}
