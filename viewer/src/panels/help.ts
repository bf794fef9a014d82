/** All keys, on one sheet. */

import { button, h } from "../dom.ts";

export const KEYS: [string, string][] = [
  ["/", "search"],
  ["arrows", "walk: up to a producer, down to a consumer, left and right to neighbours"],
  ["Enter  or  Space", "open or close the selection"],
  ["Shift Enter", "a repeat: show every instance"],
  ["[  ]", "a repeat: the instance before, the one after"],
  ["Backspace", "select what is around the selection"],
  ["1 … 9", "open to that depth"],
  ["0", "close everything"],
  ["e", "open everything"],
  ["f", "fit all in the window"],
  ["z", "zoom to the selection"],
  ["+  −", "zoom in, zoom out"],
  ["h", "next heat map; Shift h: off"],
  ["g", "side by side, overlaid, or one phase"],
  ["l", "jump between an operation and its gradient"],
  ["p", "light up the whole path to producers and consumers"],
  ["v", "show or hide views"],
  ["m  t  k", "memory timeline, time flame chart; of a run that writes a text, its tokens"],
  ["u  or  Ctrl z", "undo a change of the view; Shift: redo"],
  ["d", "dark or light"],
  ["c", "copy the selection as Markdown"],
  ["s", "save a picture of the view, as SVG"],
  ["Esc", "let go of selection, search, brush"],
  ["?", "this sheet"],
];

export function helpSheet(): HTMLDialogElement {
  const sheet = h("dialog", { class: "help", "aria-label": "Keys" });
  sheet.append(
    h(
      "div",
      { class: "heading" },
      h("h2", {}, "Keys"),
      button("✕", "Close", () => sheet.close(), { class: "icon" }),
    ),
    h(
      "table",
      { class: "facts" },
      ...KEYS.map(([key, text]) => h("tr", {}, h("th", {}, h("kbd", {}, key)), h("td", {}, text))),
    ),
    h(
      "p",
      { class: "sub" },
      "Mouse: drag to move, wheel to zoom (Shift wheel: sideways), click to select, double click to open, click ×12 to show every instance.",
    ),
  );
  sheet.addEventListener("click", (event) => {
    if (event.target === sheet) sheet.close();
  });
  return sheet;
}
