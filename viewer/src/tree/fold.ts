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
  const found: Stretch[] = [];
  for (let place = 0; place < length; place++) {
    if (!begins[place]) continue;
    let best: Stretch | null = null;
    for (const { period, run } of runs) {
      const times = place < run.length ? Math.floor((run[place] + period) / period) : 1;
      if (times < 2 || !worthFolding(isCall, place, period, times)) continue;
      if (!best || times * period > best.times * best.period) best = { start: place, period, times };
    }
    if (best) {
      found.push(best);
      place += best.period * best.times - 1;
    }
  }
  return found;
}

function worthFolding(isCall: ArrayLike<number>, place: number, period: number, times: number): boolean {
  let calls = 0;
  for (let i = place; i < place + period; i++) calls += isCall[i];
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

function fill(found: Stretch[], length: number): Stretch[] {
  const all: Stretch[] = [];
  let place = 0;
  for (const stretch of found) {
    for (; place < stretch.start; place++) all.push({ start: place, period: 1, times: 1 });
    all.push(stretch);
    place = stretch.start + stretch.period * stretch.times;
  }
  for (; place < length; place++) all.push({ start: place, period: 1, times: 1 });
  return all;
}
