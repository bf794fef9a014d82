// Builds the page's bundle into the Python package; with --tests, the unit tests into .tests for node's own runner;
// with --bench, the programs of bench/ into .bench.
import { createHash } from "node:crypto";
import { mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const target = join(here, "..", "src", "torch_vis", "views", "page");

/** Every source file in order, so that the bundle can say what it was built from. */
function sources(folder) {
  return readdirSync(folder, { withFileTypes: true })
    .sort((a, b) => (a.name < b.name ? -1 : 1))
    .flatMap((entry) => (entry.isDirectory() ? sources(join(folder, entry.name)) : [join(folder, entry.name)]));
}

export function digest() {
  const hash = createHash("sha256");
  for (const file of sources(join(here, "src"))) hash.update(readFileSync(file));
  return hash.digest("hex");
}

const common = { bundle: true, minify: true, target: "es2022", charset: "ascii", legalComments: "none", write: false };

async function text(entry, options = {}) {
  const result = await build({ ...common, entryPoints: [join(here, "src", entry)], ...options });
  return result.outputFiles[0].text.replaceAll("</script", "<\\/script").trimEnd();
}

async function programs(folder, into) {
  rmSync(join(here, into), { recursive: true, force: true });
  mkdirSync(join(here, into), { recursive: true });
  for (const file of readdirSync(join(here, folder)).filter((name) => name.endsWith(".ts"))) {
    await build({
      bundle: true,
      platform: "node",
      format: "esm",
      target: "node20",
      logLevel: "warning",
      entryPoints: [join(here, folder, file)],
      outfile: join(here, into, file.replace(/\.ts$/, ".mjs")),
      define: { WORKER: '""' },
    });
  }
}

if (process.argv.includes("--tests")) await programs("test", ".tests");
else if (process.argv.includes("--bench")) await programs("bench", ".bench");
else {
  const worker = await text("layout/worker.ts", { format: "iife" });
  const script = await text("main.ts", { format: "iife", define: { WORKER: JSON.stringify(worker) } });
  const scripts = { viewer: script, world: await text("world/main.ts", { format: "iife" }) };
  for (const [name, sheet] of Object.entries({ viewer: "style.css", world: "world/world.css" })) {
    const style = await text(sheet, { loader: { ".css": "css" } });
    writeFileSync(join(target, `${name}.js`), `/* sources ${digest()} */${scripts[name]}`);
    writeFileSync(join(target, `${name}.css`), style.replaceAll("<", "\\3c "));
    const [js, css] = [scripts[name], style].map((part) => (part.length / 1024).toFixed(0));
    console.log(`${name}.js ${js} KiB, ${name}.css ${css} KiB`);
  }
}
