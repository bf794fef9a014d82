/** Two 32-bit streams joined into one number of 53 bits. */
export class Hash {
  private a = 0;
  private b = 0;

  begin(seed: number): void {
    this.a = Math.imul(seed ^ 0x9e3779b9, 0x85ebca6b);
    this.b = Math.imul(seed ^ 0x7f4a7c15, 0xc2b2ae35);
  }

  add(number: number): void {
    const n = number | 0;
    this.a = Math.imul((this.a ^ n) + 0x165667b1, 0x27d4eb2f);
    this.a ^= this.a >>> 15;
    this.b = Math.imul((this.b ^ (n + 0x51ed270b)) + 0x2545f491, 0x9e3779b1);
    this.b ^= this.b >>> 13;
  }

  end(): number {
    return (this.a >>> 0) * 2097152 + (this.b & 0x1fffff);
  }
}
