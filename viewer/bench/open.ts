/** How long it takes, in node, to open everything in a saved page: `node build.mjs --bench && node .bench/open.mjs page.html`. */

import { readFileSync } from "node:fs";
import { App } from "../src/app.ts";
import { inflate, unpack } from "../src/data/decode.ts";
import { Run } from "../src/data/run.ts";
import type { Tables } from "../src/data/tables.ts";
import { face, HEADER, headerWidth } from "../src/draw/measure.ts";
import { Layout } from "../src/layout/frames.ts";
import { openAll } from "../src/tree/expansion.ts";
import { compose } from "../src/tree/picture.ts";

const text = readFileSync(process.argv[2], "utf8");
const part = (id: string): string => new RegExp(`id="${id}">([^<]*)<`).exec(text)![1];
const tables = JSON.parse(part("tables")) as Tables;
tables.tables = JSON.parse(new TextDecoder().decode(await inflate(part("names")))) as Tables["tables"];
const bytes = await inflate(part("columns"));
const now = (): number => process.cpuUsage().user / 1000; // of the processor, so that others do not matter
const clock = (name: string, from: number): void => console.log(name.padEnd(24), (now() - from).toFixed(1), "ms");
let at = now();
const run = new Run(tables, await unpack(tables.directory, bytes));
clock("read", at);
at = now();
const app = new App(run);
await app.prepare(() => Promise.resolve());
clock("trees", at);
for (let round = 0; round < 3; round++) {
  for (const root of app.roots) {
    at = now();
    const opened = openAll(root, 60_000);
    clock(`open ${opened}`, at);
    at = now();
    const picture = compose(root, { views: false, up: false, measure: face, header: HEADER, headerWidth });
    clock(`compose ${picture.items.length}`, at);
    at = now();
    const results = new Layout().all(picture.specs);
    clock(`layout ${picture.frames.length} frames`, at);
    console.log(
      "crossings",
      results.reduce((sum, result) => sum + result.crossings, 0),
      Math.round(results[0].width),
      "×",
      Math.round(results[0].height),
    );
  }
}
