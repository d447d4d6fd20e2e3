// Reader of a packed model: "XLIV" · header length (uint32, little endian) · header (JSON) · deflated body.
//
// header.weights is [[name, shape], …]; header.snapshots has { step, kind, at } of each snapshot, the trained weights last:
//
//   float32, float16     the lowest bytes of all numbers, then the next ones: the highest are similar and compress well
//   delta8               w = trained + scale · q / 127        q int8; a scale (float32) for each row comes before the numbers

import { headerOf } from "../shared.js";
import { size, tensor } from "./tensors.js";

const KEPT = 4; // number of decoded snapshots kept in memory

export function float16(bits) { // sign · 2^(exponent − 15) · (1 + fraction / 1024); subnormal: fraction · 2^−24
  const sign = bits & 0x8000 ? -1 : 1, exponent = (bits >> 10) & 31, fraction = bits & 1023;
  return exponent ? sign * 2 ** (exponent - 15) * (1 + fraction / 1024) : sign * fraction * 2 ** -24;
}

export async function openModel(bytes) { // -> a promise of the ModelFile
  if (String.fromCharCode(...bytes.subarray(0, 4)) !== "XLIV") throw new Error("This is not a model of a live page.");
  const [header, body] = headerOf(bytes), inflated = new Blob([body]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return new ModelFile(header, new Uint8Array(await new Response(inflated).arrayBuffer()));
}

export class ModelFile {
  constructor(header, body) {
    this.header = header;
    this.body = body;
    this.length = header.weights.reduce((sum, [, shape]) => sum + size(shape), 0);
    this.kept = new Map();
  }

  get steps() { return this.header.snapshots.length > 1 ? this.header.snapshots.map((one) => one.step) : []; }

  /**
   * The weights at a training step; null for the trained ones.
   * @param {number | null} step
   * @returns {import("./tensors.js").Tensors}
   */
  weights(step = null) {
    const snapshots = this.header.snapshots, found = step === null ? snapshots.at(-1) : snapshots.find((one) => one.step === step);
    if (!found) throw new Error(`This page has the training steps ${this.steps.join(", ") || "of the trained model alone"}, got ${step}.`);
    if (!this.kept.has(found.at)) {
      if (this.kept.size >= KEPT) this.kept.delete([...this.kept.keys()].find((at) => at !== snapshots.at(-1).at));
      this.kept.set(found.at, this.named(this.numbers(found)));
    }
    return this.kept.get(found.at);
  }

  named(numbers) {
    const weights = new Map();
    let at = 0;
    for (const [name, shape] of this.header.weights) weights.set(name, tensor(shape, numbers.subarray(at, at += size(shape))));
    return weights;
  }

  joined(at, width) { // interleave bytes that are stored by significance
    const bytes = new Uint8Array(width * this.length);
    for (let byte = 0; byte < width; byte++) for (let i = 0; i < this.length; i++) bytes[i * width + byte] = this.body[at++];
    return bytes.buffer;
  }

  numbers({ kind, at }) { // -> Float32Array of all weights
    if (kind === "float32") return new Float32Array(this.joined(at, 4));
    if (kind === "float16") return Float32Array.from(new Uint16Array(this.joined(at, 2)), float16);
    const trained = this.numbers(this.header.snapshots.at(-1)), numbers = new Float32Array(this.length);
    const rows = this.header.weights.reduce((sum, [, shape]) => sum + shape[0], 0);
    const scales = new Float32Array(this.body.buffer, at, rows), codes = new Int8Array(this.body.buffer, at + 4 * rows, this.length);
    let i = 0, row = 0;
    for (const [, shape] of this.header.weights) {
      for (let r = 0, width = size(shape) / shape[0]; r < shape[0]; r++, row++) {
        for (let k = 0; k < width; k++, i++) numbers[i] = trained[i] + (scales[row] * codes[i]) / 127;
      }
    }
    return numbers;
  }
}
