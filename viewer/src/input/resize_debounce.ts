/** Keeps the graph fitted while nobody has moved it: window and panels change the room that there is. */

import type { App } from "../app.ts";
import type { View } from "../draw/view.ts";

const AFTER_MS = 90;
const AFTER_CLICK_MS = 450; // a second click must meet what the first one met
const MUCH = 1.25;
const FEW = 1500; // boxes up to which a new layout is not noticed

export class ResizeDebounce {
  private waiting = 0;

  constructor(
    readonly app: App,
    readonly view: View,
  ) {
    new ResizeObserver(() => this.soon()).observe(view.canvas);
  }

  /** Fit again, once all that is changing has changed. */
  soon(): void {
    clearTimeout(this.waiting);
    const sinceClick = performance.now() - this.view.clickedAt;
    this.waiting = window.setTimeout(() => void this.again(), Math.max(AFTER_MS, AFTER_CLICK_MS - sinceClick));
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
