/** Names of the traced program as text that shows what is in it: characters that would turn or hide others are written out. */

// Controls, and the marks that change the direction of the text around them.
// eslint-disable-next-line no-control-regex -- they are what is looked for
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff]/g;

export function visible(text: string): string {
  if (text.search(UNSEEN) < 0) return text;
  return text.replace(UNSEEN, (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

/** The same all through plain data. */
export function visibleAll<T>(data: T): T {
  if (typeof data === "string") return visible(data) as T;
  if (Array.isArray(data)) {
    const items = data as unknown[];
    for (let i = 0; i < items.length; i++) if (typeof items[i] !== "number") items[i] = visibleAll(items[i]);
  } else if (data && typeof data === "object") {
    const fields = data as Record<string, unknown>;
    for (const [name, value] of Object.entries(fields)) {
      const shown = visible(name);
      if (shown !== name) Reflect.deleteProperty(fields, name);
      if (typeof value !== "number" || shown !== name) fields[shown] = visibleAll(value);
    }
  }
  return data;
}

/** A name in a sentence: of a very long one both ends. */
export function shortened(text: string, most = 90): string {
  if (text.length <= most) return text;
  const head = Math.floor(most / 3);
  return `${text.slice(0, head)}…${text.slice(text.length - (most - 1 - head))}`;
}

/** "1 operation", "2 operations", "3 boxes". */
export function plural(count: number, what: string): string {
  const many = /(s|x|ch)$/.test(what) ? `${what}es` : `${what}s`;
  return `${count.toLocaleString("en-US")} ${count === 1 ? what : many}`;
}
