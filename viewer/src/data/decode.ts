/** Columns as Python packed them: base64, deflate, bytes by weight, differences. */

export type Column = Int8Array | Int16Array | Int32Array | Uint8Array | Float64Array;
export type Entry = [name: string, code: string, difference: number, length: number];

const LARGE = 200_000;
const SIZE: Record<string, number> = { u1: 1, i1: 1, i2: 2, i4: 4, f8: 8 };

/** The bytes of one text, or of several with spaces between them. */
export async function inflate(text: string): Promise<Uint8Array> {
  const parts = await Promise.all(text.split(" ").map(inflateOne));
  if (parts.length === 1) return parts[0];
  const bytes = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    bytes.set(part, at);
    at += part.length;
  }
  return bytes;
}

async function inflateOne(text: string): Promise<Uint8Array> {
  const packed = fromBase64(text);
  const stream = new Blob([packed as BlobPart]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

function fromBase64(text: string): Uint8Array {
  const native = (Uint8Array as unknown as { fromBase64?: (text: string) => Uint8Array }).fromBase64;
  if (native) return native(text);
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

/** Every column; between large ones, `pause` lets the page breathe. */
export async function unpack(
  directory: Entry[],
  bytes: Uint8Array,
  pause: () => Promise<void> = async () => {},
): Promise<Map<string, Column>> {
  const results = new Map<string, Column>();
  let at = 0;
  for (const [name, code, difference, length] of directory) {
    const size = SIZE[code];
    const column = unplane(bytes.subarray(at, at + size * length), code, length);
    results.set(name, difference ? summed(column, difference === 2) : column);
    at += size * length;
    if (length > LARGE) await pause();
  }
  return results;
}

function unplane(bytes: Uint8Array, code: string, length: number): Column {
  const size = SIZE[code];
  if (size === 1) return code === "u1" ? bytes.slice() : new Int8Array(bytes.slice().buffer);
  if (code === "i4") {
    const whole = new Int32Array(length);
    const [b, c, d] = [length, 2 * length, 3 * length];
    for (let i = 0; i < length; i++)
      whole[i] = bytes[i] | (bytes[b + i] << 8) | (bytes[c + i] << 16) | (bytes[d + i] << 24);
    return whole;
  }
  const mixed = new Uint8Array(bytes.length);
  for (let plane = 0; plane < size; plane++) {
    const from = plane * length;
    for (let i = 0, to = plane; i < length; i++, to += size) mixed[to] = bytes[from + i];
  }
  return code === "i2" ? new Int16Array(mixed.buffer) : new Float64Array(mixed.buffer);
}

function summed(steps: Column, wide: boolean): Column {
  const column = wide ? new Float64Array(steps.length) : new Int32Array(steps.length);
  let total = 0;
  for (let i = 0; i < steps.length; i++) column[i] = total += steps[i];
  return column;
}
