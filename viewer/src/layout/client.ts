/** Asks the worker for a layout; where a browser has no workers for a page from disk, works it out itself. */

import { Layout, type FrameResult, type FrameSpec } from "./frames.ts";

declare const WORKER: string;

/** Below so many cells, a message to the worker and back costs more than the layout. */
const SMALL = 600;

export class LayoutClient {
  private worker: Worker | null = null;
  private readonly local = new Layout();
  private readonly waiting = new Map<number, { resolve: (r: FrameResult[]) => void; specs: FrameSpec[] }>();
  private next = 0;

  constructor() {
    try {
      this.worker = new Worker(URL.createObjectURL(new Blob([WORKER], { type: "text/javascript" })));
      this.worker.onmessage = (event: MessageEvent<{ id: number; results?: FrameResult[]; error?: string }>) => {
        const { id, results } = event.data;
        const wanted = this.waiting.get(id);
        this.waiting.delete(id);
        if (wanted) wanted.resolve(results ?? this.local.all(wanted.specs));
      };
      this.worker.onerror = () => this.fallBack();
    } catch {
      this.worker = null;
    }
  }

  private fallBack(): void {
    this.worker = null;
    for (const { resolve, specs } of this.waiting.values()) resolve(this.local.all(specs));
    this.waiting.clear();
  }

  arrange(specs: FrameSpec[]): Promise<FrameResult[]> {
    let cells = 0;
    for (const spec of specs) cells += spec.w.length;
    if (!this.worker || cells < SMALL) return Promise.resolve(this.local.all(specs));
    const id = this.next++;
    return new Promise((resolve) => {
      this.waiting.set(id, { resolve, specs });
      this.worker!.postMessage({ id, specs });
    });
  }
}
