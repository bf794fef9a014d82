/** What leaves the page: the view as a picture, the selection as data or as text to paste. */

import type { App } from "../app.ts";
import { PHASES, ROLES } from "../data/schema.gen.ts";
import { download, h } from "../dom.ts";
import { keyOf, keyPieces, pictureTitle, TITLE_BASE, TITLE_HEIGHT, TITLE_SIZE, type Piece } from "../draw/key.ts";
import { Painter } from "../draw/painter.ts";
import { toSvg } from "../draw/svg.ts";
import { FONT } from "../draw/text.ts";
import type { View } from "../draw/view.ts";
import { comparedRows, groupRows, singleRows } from "./figures.ts";
import { instanceName } from "./repeats.ts";
import { cellText } from "./rows.ts";

const LARGEST = 8000; // pixels of a side
const MOST = 5000; // operations of a selection

export function fileName(app: App, ending: string): string {
  return `${String(app.run.data.meta.model ?? "run").replace(/[^\w-]+/g, "_")}.${ending}`;
}

export function saveSvg(app: App): void {
  download(fileName(app, "svg"), new Blob([toSvg(app)], { type: "image/svg+xml" }));
}

/** The whole graph as it is open now, twice as fine where there is room. */
export async function pngOf(app: App): Promise<Blob> {
  const scene = app.scene!;
  const key = keyPieces(keyOf(app, true), scene.width);
  const title = pictureTitle(app);
  const wide = Math.max(scene.width, key.width, title.width) + 40;
  const tall = TITLE_HEIGHT + scene.height + 40 + (key.height ? key.height + 20 : 0);
  const scale = Math.min(2, LARGEST / wide, LARGEST / tall);
  const [w, hh] = [Math.ceil(wide * scale), Math.ceil(tall * scale)];
  const canvas = h("canvas", { width: w, height: hh });
  const context = canvas.getContext("2d")!;
  new Painter(context).draw(
    scene,
    { scale, x: 20 * scale, y: (20 + TITLE_HEIGHT) * scale },
    { ...app.look, still: true, hover: null },
    w,
    hh,
    1,
  );
  drawTitle(context, title.text, app);
  drawKey(context, key.pieces, app, scene.height + 20);
  return new Promise((resolve, reject) =>
    canvas.toBlob((blob) => (blob ? resolve(blob) : reject(new Error("no picture"))), "image/png"),
  );
}

/** What the picture is of, above the graph, in its units. */
function drawTitle(context: CanvasRenderingContext2D, text: string, app: App): void {
  context.textBaseline = "alphabetic";
  context.textAlign = "start";
  context.fillStyle = app.theme.ink;
  context.font = `600 ${TITLE_SIZE}px ${FONT}`;
  context.fillText(text, 0, TITLE_BASE - TITLE_HEIGHT - 20);
}

/** The legend below the graph, in its units. */
function drawKey(context: CanvasRenderingContext2D, pieces: Piece[], app: App, top: number): void {
  context.textBaseline = "alphabetic";
  for (const piece of pieces) {
    if ("fill" in piece) {
      context.fillStyle = piece.fill;
      context.fillRect(piece.x, top + piece.y, piece.w, piece.h);
    } else {
      context.fillStyle = piece.bold ? app.theme.ink : app.theme.faint;
      context.font = `${piece.bold ? 600 : 400} 12px ${FONT}`;
      context.textAlign = piece.anchor === "middle" ? "center" : piece.anchor;
      context.fillText(piece.text, piece.x, top + piece.y);
    }
  }
}

export async function savePng(app: App): Promise<void> {
  download(fileName(app, "png"), await pngOf(app));
}

export function selectionJson(app: App): string {
  const { run } = app;
  const selected = app.selected?.subject ?? null;
  const nodes =
    app.node >= 0
      ? [app.node]
      : selected && selected.start >= 0
        ? Array.from(selected.forest.order.subarray(selected.start, selected.end))
        : [];
  const tensor = (value: number): object => ({
    value,
    name: run.valueName[value] >= 0 ? run.valueLabel(value) : null,
    role: ROLES[run.valueRole[value]],
    dtype: run.type(value)[0],
    shape: run.type(value)[1],
  });
  const metrics = (row: number): object =>
    Object.fromEntries(
      [...run.metrics.values()]
        .filter((metric) => metric.along === "node")
        .map((metric) => [metric.name, run.metric(metric.name, row)]),
    );
  return JSON.stringify(
    {
      model: run.data.meta.model ?? null,
      selection: selected
        ? { label: selected.label, type: selected.type, kind: selected.kind, count: selected.count }
        : null,
      operations: nodes.slice(0, MOST).map((node) => ({
        number: node,
        op: run.op(node),
        path: run.path(run.nodeScope[node]),
        phase: PHASES[run.nodePhase[node]],
        arguments: Object.fromEntries(run.arguments(node).map((entry) => [entry.name, entry.text])),
        inputs: Array.from(run.inValue.subarray(run.inStart[node], run.inStart[node + 1]), tensor),
        outputs: run.outputs(node).map(tensor),
        link: run.nodeLink[node] >= 0 ? run.nodeLink[node] : null,
        metrics: metrics(node),
      })),
      left_out: Math.max(0, nodes.length - MOST),
    },
    null,
    1,
  );
}

export function selectionMarkdown(app: App): string {
  const { run, node } = app;
  const selected = app.selected?.subject ?? null;
  const rows: [string, ...string[]][] = [];
  let title = String(run.data.meta.model ?? "run");
  if (node >= 0) {
    title = run.name(node);
    rows.push(
      ["operator", `\`${run.op(node)}\``],
      ["module", run.where(run.nodeScope[node])],
      ["phase", PHASES[run.nodePhase[node]]],
    );
    for (const entry of run.arguments(node))
      rows.push([
        entry.name,
        entry.values.length
          ? entry.values.map((value) => `${run.valueLabel(value)} ${run.typeText(value)}`).join(", ")
          : entry.text,
      ]);
    run.outputs(node).forEach((value) => rows.push(["makes", run.typeText(value)]));
    const site = run.nodeSite[node] >= 0 ? run.tables.sites[run.nodeSite[node]] : null;
    if (site) rows.push(["source", `${site[0]}:${site[1]} in ${site[2]}`]);
  } else if (selected) {
    title = selected === app.selected ? selected.label || selected.type : instanceName(selected);
    rows.push(["class", selected.type]);
    if (selected.start >= 0) rows.push(["operations", String(selected.operations)]);
    if (selected.count > 1) rows.push(["repeats", String(selected.count)]);
  }
  const isGroup = node < 0 && selected !== null && selected.start >= 0;
  const figures = node >= 0 ? singleRows(app, "node", node) : isGroup ? groupRows(app, selected) : [];
  for (const [name, text] of figures) rows.push([name, cellText(text)]);
  const compared = node >= 0 || isGroup ? comparedRows(app, node >= 0 ? null : selected, node) : [];
  const table = (head: string[], lines: string[][]): string =>
    [head, head.map(() => "---"), ...lines]
      .map((line) => `| ${line.map(cell).join(" | ")} |`)
      .join("\n")
      .replace(/^\|  +\|  +\|$/m, "| | |");
  return `### ${cell(title)}\n\n${table(["", ""], rows)}\n${
    compared.length
      ? `\n${table(
          ["", "A", "B", "B − A"],
          compared.map((line) => line.map(cellText)),
        )}\n`
      : ""
  }`;
}

function cell(text: string): string {
  return text.replaceAll("|", "\\|").replaceAll("\n", " ");
}

export async function copyMarkdown(app: App): Promise<void> {
  const text = selectionMarkdown(app);
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = h("textarea", {}); // a page from disk may have no clipboard of its own
    area.value = text;
    document.body.append(area);
    area.select();
    // eslint-disable-next-line @typescript-eslint/no-deprecated -- the only way where there is no clipboard
    document.execCommand("copy");
    area.remove();
  }
}

export function saveJson(app: App): void {
  download(fileName(app, "selection.json"), new Blob([selectionJson(app)], { type: "application/json" }));
}

export type { View };
