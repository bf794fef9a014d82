/** The page begins here: read the data, make the parts, draw. */

import { App } from "./app.ts";
import { inflate, unpack } from "./data/decode.ts";
import { Run } from "./data/run.ts";
import type { Tables } from "./data/tables.ts";
import { h, pause, showFailure } from "./dom.ts";
import { Port } from "./port.ts";
import { Shell } from "./shell.ts";

async function begin(): Promise<void> {
  const started = performance.now();
  const waiting = h("div", { class: "waiting" }, "Reading the run…");
  document.body.append(waiting);
  const tables = JSON.parse(document.getElementById("tables")!.textContent) as Tables;
  const names = document.getElementById("names");
  // a page inside the page of several ranks has its names unpacked
  if (names) tables.tables = JSON.parse(new TextDecoder().decode(await inflate(names.textContent))) as Tables["tables"];
  const bytes = await inflate(document.getElementById("columns")!.textContent);
  document.getElementById("columns")!.remove();
  const columns = await unpack(tables.directory, bytes, pause);
  const run = new Run(tables, columns);
  await pause();
  const app = new App(run);
  await app.prepare(pause);
  const shell = new Shell(app);
  waiting.remove();
  // a page inside the page of several ranks is told what to show
  await shell.begin(location.hash || decodeURI(document.documentElement.dataset.view ?? ""));
  await window.torchVis.connect(app, shell, performance.now() - started);
}

window.torchVis = new Port();
begin().catch(showFailure);
