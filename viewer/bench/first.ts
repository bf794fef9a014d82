/** How long the first view of a saved page takes in node: `node .bench/first.mjs page.html`. */

import { readFileSync } from "node:fs";
import { App } from "../src/app.ts";
import { inflate, unpack } from "../src/data/decode.ts";
import { Run } from "../src/data/run.ts";
import type { Tables } from "../src/data/tables.ts";

const text = readFileSync(process.argv[2], "utf8");
const part = (id: string): string => new RegExp(`id="${id}">([^<]*)<`).exec(text)![1];
const tables = JSON.parse(part("tables")) as Tables;
tables.tables = JSON.parse(new TextDecoder().decode(await inflate(part("names")))) as Tables["tables"];
const clock = (name: string, from: number): number => {
  console.log(name.padEnd(12), (process.cpuUsage().user / 1000 - from).toFixed(1), "ms");
  return process.cpuUsage().user / 1000;
};
let at = process.cpuUsage().user / 1000;
const bytes = await inflate(part("columns"));
at = clock("inflate", at);
const run = new Run(tables, await unpack(tables.directory, bytes));
at = clock("read", at);
const app = new App(run);
at = clock("trees", at);
await app.relayout();
clock("layout", at);
console.log(app.scene!.columns.map((column) => [column.picture.items.length, column.picture.edges.length]));
