/** Which memory is alive when, and what for. */

import type { Run } from "./run.ts";

/** Of several roles in one block the one that it is known for: a parameter that is also an output stays a parameter. */
const WEIGHT = [1, 6, 8, 7, 5, 4, 3, 2];

export class Memory {
  readonly birth: Int32Array;
  readonly death: Int32Array;
  readonly bytes: Float64Array;
  readonly role: Int8Array;
  readonly value: Int32Array; // a value that lies there
  /** By role and operation, the bytes alive. */
  readonly live: Float64Array[];
  readonly total: Float64Array;
  readonly peak: number; // the operation

  constructor(readonly run: Run) {
    const { storages, count } = run;
    const births = run.columns.get("storage_birth");
    const deaths = run.columns.get("storage_death");
    const sizes = run.columns.get("storage_bytes");
    this.birth = Int32Array.from({ length: storages }, (_, i) => births![i]);
    this.death = Int32Array.from({ length: storages }, (_, i) => Math.min(deaths![i], count));
    this.bytes = Float64Array.from({ length: storages }, (_, i) => sizes![i]);
    this.role = new Int8Array(storages).fill(-1);
    this.value = new Int32Array(storages).fill(-1);
    for (let value = 0; value < run.values; value++) {
      const storage = run.valueStorage[value];
      const role = run.valueRole[value];
      if (this.value[storage] < 0 || (run.valueName[value] >= 0 && run.valueName[this.value[storage]] < 0)) this.value[storage] = value;
      if (this.role[storage] < 0 || WEIGHT[role] > WEIGHT[this.role[storage]]) this.role[storage] = role;
    }
    this.live = WEIGHT.map(() => new Float64Array(count + 1));
    for (let storage = 0; storage < storages; storage++) {
      const steps = this.live[Math.max(0, this.role[storage])];
      steps[Math.max(0, this.birth[storage])] += this.bytes[storage];
      if (this.death[storage] <= count) steps[this.death[storage]] -= this.bytes[storage];
    }
    this.total = new Float64Array(count);
    let peak = 0;
    for (const steps of this.live) for (let i = 1; i <= count; i++) steps[i] += steps[i - 1];
    for (let node = 0; node < count; node++) {
      for (const steps of this.live) this.total[node] += steps[node];
      if (this.total[node] > this.total[peak]) peak = node;
    }
    this.peak = peak;
  }

  /** The operation between two at which most is alive. */
  highest(from: number, to: number): number {
    let found = from;
    for (let node = from; node <= to; node++) if (this.total[node] > this.total[found]) found = node;
    return found;
  }

  /** The blocks that are alive at some time from one operation to another, largest first. */
  alive(from: number, to: number): number[] {
    const found: number[] = [];
    for (let storage = 0; storage < this.birth.length; storage++) {
      if (this.birth[storage] <= to && this.death[storage] > from) found.push(storage);
    }
    return found.sort((a, b) => this.bytes[b] - this.bytes[a]);
  }
}
