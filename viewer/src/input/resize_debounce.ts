/** Keeps the graph fitted while nobody has moved it: window, panels and legend change the room that there is. */

import type { App } from "../app.ts";
import type { View } from "../draw/view.ts";

const AFTER_MS = 90;
const AFTER_CLICK_MS = 450; // a second click must meet what the first one met
const MUCH = 1.25;
const FEW = 1500; // boxes up to which a new layout is not noticed
const LOW = 420; // pixels of the stage below which the legend would take what little room there is
const SLIM = 520;

export class ResizeDebounce {
  private waiting = 0;
  private asked: boolean | null = null; // whether the person wants to see the legend

  constructor(
    readonly app: App,
    readonly view: View,
    readonly legend: HTMLDetailsElement,
  ) {
    legend.querySelector("summary")!.addEventListener("click", () => (this.asked = !legend.open));
    const observer = new ResizeObserver(() => this.soon());
    observer.observe(view.canvas);
    observer.observe(legend);
  }

  /** Fit again, once all that is changing has changed. */
  soon(): void {
    this.foldLegend();
    clearTimeout(this.waiting);
    const sinceClick = performance.now() - this.view.clickedAt;
    this.waiting = window.setTimeout(() => void this.again(), Math.max(AFTER_MS, AFTER_CLICK_MS - sinceClick));
  }

  foldLegend(): void {
    const { w, h } = this.view.size;
    const open = this.asked ?? (h > LOW && w > SLIM);
    if (this.legend.open !== open) this.legend.open = open;
  }

  private async again(): Promise<void> {
    const { app, view } = this;
    const how = view.settled;
    if (!app.scene || (how !== "fit" && how !== "begin")) return;
    if (this.isOtherRoom() && view.boxes <= FEW) {
      app.room = view.room;
      if (!(await app.relayout())) return;
    }
    if (view.settled === how) view.again();
  }

  /** Whether the room is so different from the one that the graph was laid out for that another layout is better. */
  isOtherRoom(): boolean {
    const [now, then] = [this.view.room, this.app.room];
    return Math.max(now.w / then.w, then.w / now.w, now.h / then.h, then.h / now.h) > MUCH;
  }
}
