/** Elements from plain values; text is always text. */

type Child = Node | string | null | undefined | false;
type Attribute = string | number | boolean | null | undefined;
interface Props {
  on?: Record<string, (event: Event) => void>;
  [name: string]: Attribute | Record<string, (event: Event) => void>;
}

export function h<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  props: Props = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === false || value === null) continue;
    if (typeof value === "object") {
      for (const [event, act] of Object.entries(value)) element.addEventListener(event, act);
    } else if (name === "class") element.className = String(value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children) if (child !== null && child !== undefined && child !== false) element.append(child);
  return element;
}

export function button(text: string, title: string, act: (event: Event) => void, more: Props = {}): HTMLButtonElement {
  return h("button", { type: "button", title, "aria-label": title, ...more, on: { click: act } }, text);
}

export function replace(parent: Element, ...children: Child[]): void {
  parent.replaceChildren(...(children.filter(Boolean) as (Node | string)[]));
}

/** A canvas that fills its parent at the screen's own resolution. */
export function fitCanvas(canvas: HTMLCanvasElement): { width: number; height: number; ratio: number } {
  const ratio = window.devicePixelRatio || 1;
  const width = canvas.clientWidth;
  const height = canvas.clientHeight;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  return { width, height, ratio };
}

export function download(name: string, content: Blob): void {
  const link = h("a", { href: URL.createObjectURL(content), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** What went wrong while a page was made, on the page. */
export function showFailure(error: unknown): never {
  document.body.append(
    h("pre", { class: "failed" }, `This page could not be shown: ${String(error)}\n${(error as Error)?.stack ?? ""}`),
  );
  throw error;
}

/** Let the page draw and answer before the next piece of work. */
export function pause(): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve));
}
