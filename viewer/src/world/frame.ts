/** The page of one rank inside the page of all: an ordinary page of a trace, in a frame of its own. */

import { h } from "../dom.ts";
import type { WorldData } from "./data.ts";

/** An element as text; what is in it is ours, or has no tags. */
function tag(name: string, attributes: string, content: string): string {
  return `<${name}${attributes && ` ${attributes}`}>${content}</${name}>`;
}

/** A frame that shows a rank; `view` is what the address of an ordinary page would say after its #. */
export function rankFrame(data: WorldData, rank: number, view: string): HTMLIFrameElement {
  const style = document.querySelector("style")!.textContent;
  const policy = document.querySelector("meta[http-equiv]")!.getAttribute("content")!;
  const escaped = policy.replaceAll("&", "&amp;").replaceAll('"', "&quot;");
  const viewer = document.getElementById("viewer")!.textContent;
  const parts = data.partsOf(rank);
  const head = `<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="${escaped}">`;
  const body =
    tag("script", 'type="application/json" id="tables"', parts.tables) +
    tag("script", 'type="text/plain" id="columns"', parts.columns) +
    tag("script", "", viewer);
  const shown = `lang="en" data-view="${encodeURI(view).replaceAll('"', "%22")}"`;
  const frame = h("iframe", { class: "rank", title: `The graph of rank ${rank}` });
  frame.srcdoc =
    "<!doctype html>" + tag("html", shown, tag("head", "", head + tag("style", "", style)) + tag("body", "", body));
  return frame;
}
