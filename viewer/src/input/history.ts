/** Undo and redo: each change of the view is a step, in the browser's own history where the page has one. */

/** What the address says of the camera; moving it alone is no step. */
const CAMERA = ["at", "room"];
/** Letters typed one after another are one step. */
const TYPED = ["q"];

export class ViewHistory<State> {
  private steps: { hash: string; state: State }[] = [];
  private at = -1;
  /** Inside a notebook's frame there is no address, and Back belongs to the notebook. */
  private readonly hasAddress = location.protocol !== "about:" && window.parent === window;

  constructor(private readonly show: (hash: string, state: State | null) => void) {
    window.addEventListener("popstate", (event) => {
      const at = (event.state as { step?: number } | null)?.step;
      const step = at === undefined ? undefined : this.steps[at];
      if (step) this.at = at!;
      this.show(step?.hash ?? location.hash, step?.state ?? null);
    });
  }

  /** The view as it is now: a step of its own, or where only the camera moved the last step again. */
  record(hash: string, state: State): void {
    const last = this.steps[this.at];
    const isStep = last !== undefined && changed(last.hash, hash);
    const isTyping = isStep && !changed(last.hash, hash, TYPED);
    if (isStep && !isTyping) this.steps.length = this.at + 1;
    if (!last || (isStep && !isTyping)) this.at += 1;
    this.steps[this.at] = { hash, state };
    if (!this.hasAddress) return;
    const entry = { step: this.at };
    if (isStep && !isTyping) history.pushState(entry, "", hash);
    else history.replaceState(entry, "", hash);
  }

  /** Go back or forward; returns whether there was a step. */
  go(by: -1 | 1): boolean {
    const step = this.steps[this.at + by];
    if (!step) return false;
    if (this.hasAddress) history.go(by);
    else {
      this.at += by;
      this.show(step.hash, step.state);
    }
    return true;
  }
}

/** Whether two addresses differ in more than the camera and these. */
function changed(before: string, after: string, but: string[] = []): boolean {
  const [a, b] = [before, after].map((hash) => {
    const parts = new URLSearchParams(hash.slice(1));
    for (const name of [...CAMERA, ...but]) parts.delete(name);
    return parts.toString();
  });
  return a !== b;
}
