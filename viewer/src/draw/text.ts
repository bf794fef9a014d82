/** Text widths without asking the canvas each time, and labels cut to fit. */

export const FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif';
export const MONO = 'ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace';

export class Ruler {
  private readonly widths = new Float64Array(128);
  private readonly other: number;

  constructor(font: string) {
    const context = typeof document === "undefined" ? null : document.createElement("canvas").getContext("2d");
    if (context) context.font = font;
    for (let code = 32; code < 127; code++) {
      this.widths[code] = context ? context.measureText(String.fromCharCode(code)).width : 7;
    }
    this.other = context ? context.measureText("層").width : 12;
  }

  width(text: string): number {
    let total = 0;
    for (let i = 0; i < text.length; i++) {
      const code = text.charCodeAt(i);
      total += code < 128 ? this.widths[code] : code < 0x2100 ? this.widths[110] : this.other;
    }
    return total;
  }

  /** The text, or as much of its two ends as there is room for. */
  fit(text: string, room: number): string {
    if (this.width(text) <= room) return text;
    let keep = Math.max(1, Math.floor((text.length * room) / this.width(text)) - 1);
    while (keep > 1) {
      const tail = Math.floor(keep * 0.4);
      const short = `${text.slice(0, keep - tail)}…${tail ? text.slice(-tail) : ""}`;
      if (this.width(short) <= room) return short;
      keep -= 1;
    }
    return "…";
  }
}
