/** The edges of the panels: dragged, or moved with the arrow keys; the width of the one at the side is remembered. */

import { h } from "../dom.ts";

const KEPT = "torch_vis.side";
const LEAST = 240;
const STEP = 24;
const USUAL = { least: 22.5, share: 0.24, most: 48 }; // as style.css has it: in rem, of the window, in rem

/** How much narrower the panel at the side would be in a window so wide. */
export function narrowerIn(width: number): number {
  const isFixed = document.body.style.getPropertyValue("--side") !== "";
  if (isFixed || document.body.classList.contains("no-side")) return 0;
  const rem = parseFloat(getComputedStyle(document.documentElement).fontSize);
  const usual = (w: number): number => Math.min(Math.max(USUAL.least * rem, USUAL.share * w), USUAL.most * rem);
  return usual(innerWidth) - usual(width);
}

export function sideGrip(aside: HTMLElement, changed: () => void): HTMLElement {
  const grip = h("div", {
    class: "grip",
    role: "separator",
    tabindex: "0",
    "aria-orientation": "vertical",
    "aria-label": "Width of the panel",
    title: "Drag to make the panel wider; double click for its usual width",
  });
  const set = (wanted: number | null): void => {
    const most = Math.max(LEAST, innerWidth - 280);
    const width = wanted === null ? null : Math.round(Math.min(Math.max(wanted, LEAST), most));
    if (width === null) document.body.style.removeProperty("--side");
    else document.body.style.setProperty("--side", `${width}px`);
    keep(width);
    changed();
  };
  grip.addEventListener("pointerdown", (event) => {
    grip.setPointerCapture(event.pointerId);
    event.preventDefault();
  });
  grip.addEventListener("pointermove", (event) => {
    if (grip.hasPointerCapture(event.pointerId)) set(innerWidth - event.clientX);
  });
  grip.addEventListener("dblclick", () => set(null));
  grip.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: STEP, ArrowRight: -STEP }[event.key];
    if (by === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    set(aside.clientWidth + by);
  });
  const known = kept();
  if (known) set(known);
  return grip;
}

// Where a page may not store anything, the width lasts as long as the page.
function keep(width: number | null): void {
  try {
    if (width === null) localStorage.removeItem(KEPT);
    else localStorage.setItem(KEPT, String(width));
  } catch {
    return;
  }
}

function kept(): number {
  try {
    return Number(localStorage.getItem(KEPT)) || 0;
  } catch {
    return 0;
  }
}

const LOWEST = 90;

/** The upper edge of the charts below the graph. */
export function dockGrip(dock: HTMLElement): HTMLElement {
  const grip = h("div", {
    class: "grip across",
    role: "separator",
    tabindex: "0",
    "aria-orientation": "horizontal",
    "aria-label": "Height of the charts",
    title: "Drag to make the charts taller; double click for their usual height",
  });
  const set = (height: number): void => {
    const most = Math.max(LOWEST, innerHeight - 200);
    dock.style.setProperty("--dock", `${Math.round(Math.min(Math.max(height, LOWEST), most))}px`);
  };
  grip.addEventListener("pointerdown", (event) => {
    grip.setPointerCapture(event.pointerId);
    event.preventDefault();
  });
  grip.addEventListener("pointermove", (event) => {
    if (grip.hasPointerCapture(event.pointerId)) set(dock.getBoundingClientRect().bottom - event.clientY);
  });
  grip.addEventListener("dblclick", () => dock.style.removeProperty("--dock"));
  grip.addEventListener("keydown", (event) => {
    const by = { ArrowUp: STEP, ArrowDown: -STEP }[event.key];
    if (by === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    set(dock.clientHeight + by);
  });
  return grip;
}
