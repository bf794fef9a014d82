/** The page of one rank inside the page of all: an ordinary page of a trace, in a frame of its own. */

import { h } from "../dom.ts";
import type { WorldData } from "./data.ts";

/** The text of the viewer itself, which a frame runs again; read before anything else, while it is the script that runs. */
const SCRIPT = document.currentScript?.textContent ?? "";

/** A frame that shows a rank; `view` is what the address of an ordinary page would say after its #. */
export function rankFrame(data: WorldData, rank: number, view: string): HTMLIFrameElement {
  const style = document.querySelector("style")!.textContent;
  const policy = document.querySelector("meta[http-equiv]")!.getAttribute("content")!;
  const frame = h("iframe", { class: "rank", title: `The graph of rank ${rank}` });
  const escaped = policy.replaceAll("&", "&amp;").replaceAll('"', "&quot;");
  frame.srcdoc =
    `<!doctype html><html lang="en" data-view="${encodeURI(view).replaceAll('"', "%22")}"><head><meta charset="utf-8">` +
    `<meta http-equiv="Content-Security-Policy" content="${escaped}"><style>${style}</style></head><body>` +
    `${data.elementsOf(rank)}<script>${SCRIPT}</script></body></html>`;
  return frame;
}
