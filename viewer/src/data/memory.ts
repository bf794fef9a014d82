/** Which memory is alive when, and what for: as `Trace.memory()` has worked it out. */

import type { Run } from "./run.ts";
import { Flag } from "./schema.gen.ts";

const known = new WeakMap<Run, Memory>();

export class Memory {
  readonly birth: Int32Array;
  readonly death: Int32Array;
  readonly bytes: Float64Array;
  readonly use: ArrayLike<number>; // of each block, a place in `words`
  readonly value: ArrayLike<number>; // the value that a block is told by, or -1
  readonly words: string[];
  /** By use and operation, the bytes that are there while it runs. */
  readonly live: ArrayLike<number>[];
  readonly total: Float64Array;
  readonly peak: number; // the operation

  /** That of a run, added up once. */
  static of(run: Run): Memory {
    const result = known.get(run) ?? new Memory(run);
    known.set(run, result);
    return result;
  }

  constructor(readonly run: Run) {
    const column = (name: string): ArrayLike<number> => run.columns.get(name) ?? [];
    this.words = run.data.uses ?? [];
    this.birth = Int32Array.from(column(run.columns.has("storage_from") ? "storage_from" : "storage_birth"));
    this.death = Int32Array.from(column("storage_death"));
    this.bytes = Float64Array.from(column("storage_bytes"));
    this.use = column("storage_use");
    this.value = column("storage_value");
    this.live = this.words.map((_, use) => column(`use:${use}`));
    this.total = new Float64Array(run.count);
    for (const line of this.live) for (let node = 0; node < run.count; node++) this.total[node] += line[node];
    this.peak = this.highest(0, run.count - 1);
  }

  /** Whether memory was recorded. */
  get isKnown(): boolean {
    return this.words.length > 0;
  }

  /** The operation between two at which most is alive, the first of them. */
  highest(from: number, to: number): number {
    let result = from;
    for (let node = from; node <= to; node++) if (this.total[node] > this.total[result]) result = node;
    return result;
  }

  /** The first operation during which a block takes memory of its own: a sum in place lies where its first input did. */
  private since(storage: number): number {
    const birth = this.birth[storage];
    return birth >= 0 && this.run.nodeFlags[birth] & Flag.IN_PLACE_SUM ? birth + 1 : birth;
  }

  /** The blocks that are alive at some time from one operation to another, largest first. */
  alive(from: number, to: number): number[] {
    const results: number[] = [];
    for (let storage = 0; storage < this.use.length; storage++) {
      if (this.since(storage) <= to && this.death[storage] > from && this.bytes[storage] > 0) results.push(storage);
    }
    return results.sort((a, b) => this.bytes[b] - this.bytes[a]);
  }
}
