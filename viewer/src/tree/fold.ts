/** Repeated stretches of a sequence: what a person should see once, with how often it is there. */

export interface Stretch {
  start: number;
  period: number;
  times: number;
}

const PERIODS = 24;
const LONG_PERIODS = 512;
const LONG_WORK = 8_000_000;
const FEWEST_OPERATIONS = 4; // so many equal steps of plain operations in a row are drawn as one
const FEWEST_STEPS = 3; // for a stretch of several calls; two neighbours of one kind are enough
const ROOM = 44; // more boxes than this, and only operators have to agree, not shapes

/** The repeated stretches, from left to right; where several begin, the one that covers most. */
export function stretches(keys: ArrayLike<number>, isCall: ArrayLike<number>, longest = PERIODS): Stretch[] {
  const length = keys.length;
  const runs: { period: number; run: Int32Array }[] = [];
  const begins = new Uint8Array(length);
  for (let period = 1; period <= Math.min(longest, length >> 1); period++) {
    let run: Int32Array | null = null;
    for (let i = length - period - 1; i >= 0; i--) {
      if (keys[i] !== keys[i + period]) continue;
      run ??= new Int32Array(length - period + 1);
      run[i] = run[i + 1] + 1;
      begins[i] = 1;
    }
    if (run) runs.push({ period, run });
  }
  const results: Stretch[] = [];
  for (let index = 0; index < length; index++) {
    if (!begins[index]) continue;
    let best: Stretch | null = null;
    for (const { period, run } of runs) {
      const times = index < run.length ? Math.floor((run[index] + period) / period) : 1;
      if (times < 2 || !worthFolding(isCall, index, period, times)) continue;
      if (!best || times * period > best.times * best.period) best = { start: index, period, times };
    }
    if (best) {
      results.push(best);
      index += best.period * best.times - 1;
    }
  }
  return results;
}

function worthFolding(isCall: ArrayLike<number>, index: number, period: number, times: number): boolean {
  let calls = 0;
  for (let i = index; i < index + period; i++) calls += isCall[i];
  if (!calls) return times >= FEWEST_OPERATIONS;
  return times >= (period === 1 ? 2 : FEWEST_STEPS);
}

/** A sequence cut into single elements and repeated stretches. */
export function cut(strict: ArrayLike<number>, loose: ArrayLike<number>, isCall: ArrayLike<number>): Stretch[] {
  const exact = fill(stretches(strict, isCall), strict.length);
  if (exact.length <= ROOM) return exact;
  const longest = Math.min(LONG_PERIODS, Math.max(PERIODS, Math.floor(LONG_WORK / strict.length)));
  const rough = fill(stretches(loose, isCall, longest), strict.length);
  return rough.length < exact.length ? rough : exact;
}

function fill(results: Stretch[], length: number): Stretch[] {
  const all: Stretch[] = [];
  let position = 0;
  for (const stretch of results) {
    for (; position < stretch.start; position++) all.push({ start: position, period: 1, times: 1 });
    all.push(stretch);
    position = stretch.start + stretch.period * stretch.times;
  }
  for (; position < length; position++) all.push({ start: position, period: 1, times: 1 });
  return all;
}
