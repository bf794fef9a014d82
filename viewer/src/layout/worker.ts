/** The layout, off the page's own thread. */

import { Layout, type FrameSpec } from "./frames.ts";

const layout = new Layout();

self.onmessage = (event: MessageEvent<{ id: number; specs: FrameSpec[] }>) => {
  const { id, specs } = event.data;
  try {
    self.postMessage({ id, results: layout.all(specs) });
  } catch (error) {
    self.postMessage({ id, error: String(error) });
  }
};
