/** The page begins here: read the data, make the parts, draw. */

import { App } from "./app.ts";
import { inflate, unpack } from "./data/decode.ts";
import { Run } from "./data/run.ts";
import type { Tables } from "./data/tables.ts";
import { h } from "./dom.ts";
import { selectionJson, selectionMarkdown, pngOf } from "./panels/exports.ts";
import { Shell } from "./shell.ts";
import { toSvg } from "./draw/svg.ts";

async function begin(): Promise<void> {
  const started = performance.now();
  const waiting = h("div", { class: "waiting" }, "Reading the run…");
  document.body.append(waiting);
  const tables = JSON.parse(document.getElementById("tables")!.textContent) as Tables;
  const bytes = await inflate(document.getElementById("columns")!.textContent);
  document.getElementById("columns")!.remove();
  const columns = await unpack(tables.directory, bytes, pause);
  const run = new Run(tables, columns);
  await pause();
  const app = new App(run);
  await app.prepare(pause);
  const shell = new Shell(app);
  waiting.remove();
  await shell.begin(location.hash);
  window.addEventListener("hashchange", () => location.reload());
  const drawn = performance.now();
  // What tests and figures look at.
  Object.assign(window, {
    __torch_vis: {
      app,
      shell,
      run,
      drawn_ms: drawn,
      read_ms: drawn - started,
      toSvg: () => toSvg(app),
      json: () => selectionJson(app),
      markdown: () => selectionMarkdown(app),
      png: () => pngOf(app),
    },
  });
}

/** Let the page draw and answer before the next piece of work. */
function pause(): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve));
}

begin().catch((error: unknown) => {
  document.body.append(
    h("pre", { class: "failed" }, `This page could not be shown: ${String(error)}\n${(error as Error)?.stack ?? ""}`),
  );
  throw error;
});
