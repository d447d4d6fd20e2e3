// Decoder of packed attention patterns (xformer/viz/packing.py): single weights, and heads as codes to draw.

import { LEVELS, MASKED, NAN, headerOf } from "../shared.js";

const SCALES = ["fixed", "own", "log", "without_first_token"]; // 0…1, up to the head's largest, logarithmic, up to the largest without the first token
const DECADES = 4; // a logarithmic scale starts at 10^−DECADES

/**
 * One attention layer: its size, the size of its planes, the indices of its labels, and where its runs are in the bytes.
 * @typedef {{ name: string, title: string, queries: number, keys: number, rows: number, cols: number, heads: number, pool: number[],
 *   queryLabels: number, keyLabels: number, runs: Run[], moved: number[], stream?: number[] }} Layer
 */
/** @typedef {{ offset: number, peaks: number[], restPeaks: number[], z: number[], silenced: number[] }} Run */
/** @typedef {{ codes: Uint8Array, rows: number, cols: number, pool: number[] }} Codes  a head to draw, pooled by `pool` */
/** @typedef {Uint8Array<ArrayBuffer>} Bytes */

/** Map a weight to [0, 1] on a scale that ends at `top`. @param {number} w @param {number} top @param {string} scale */
export const shareOf = (w, top, scale) => Math.max(0, Math.min(1, scale === "log" ? 1 + Math.log10(Math.max(w, 1e-12)) / DECADES : w / (top || 1)));

// The exact weights of one head in each run; masked cells are Infinity.
export class ExactHead {
  /** @type {number} */ content;
  /** @type {number[]} */ selected; // its layer and head
  /** @type {number[]} */ exactPool;
  /** @type {number[]} */ exactSize;
  /** @type {boolean} */ isTriangle;

  /** @param {Bytes} bytes */
  constructor(bytes) {
    const [header, body] = headerOf(bytes);
    Object.assign(this, header);
    const sent = new Float32Array(body.slice().buffer); // a copy, for alignment
    const [rows, cols] = this.exactSize, size = this.isTriangle ? (rows * (rows + 1)) / 2 : rows * cols;
    this.floats = Array.from({ length: sent.length / size }, (_, run) => {
      const one = sent.subarray(run * size, (run + 1) * size);
      if (!this.isTriangle) return one;
      const whole = new Float32Array(rows * cols).fill(Infinity);
      for (let r = 0, from = 0; r < rows; from += ++r) whole.set(one.subarray(from, from + r + 1), r * cols);
      return whole;
    });
  }
}

// The planes of the original run and the settings common to all runs, if they arrive separately.
export class Original {
  /** @type {number} */ content;
  /** @type {object} */ common;
  /** @type {Run[]} */ runs;

  /** @param {Bytes} bytes */
  constructor(bytes) {
    const [header, body] = headerOf(bytes);
    Object.assign(this, header);
    this.body = body;
  }
}

export class Patterns {
  /** @type {Layer[]} */ layers;
  /** @type {string[][]} */ labels;
  /** @type {string[][]} */ hues;
  /** @type {string[][]} */ sequential;
  /** @type {string[][]} */ diverging;
  /** @type {number} */ content;
  /** @type {number} */ power; // a code is the root of a weight's share of the peak
  /** @type {number} */ thumbnail; // the largest side of a thumbnail, in cells
  /** @type {number} */ firstHead;
  /** @type {number} */ firstPosition;
  /** @type {ExactHead | null} */ head = null; // the exact weights
  runs = 1; // 2 with a changed run

  /** @param {Bytes} bytes @param {Original} [original] */
  constructor(bytes, original) {
    const numbers = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength), [header, body] = headerOf(bytes);
    Object.assign(this, header);
    const rider = [32, 28, 24, 20, 16, 12, 8, 4].map((back) => numbers.getUint32(bytes.length - back, true)); // appended to the packed bytes
    this.height = rider[0];
    this.cell = [rider[1], rider[2]].map((n) => (n ? n - 1 : null)); // the (query, key) locked by the server
    this.order = rider[3];                                           // the sequence number of the server's selection
    this.look = { scale: SCALES[rider[4] & 3], show: ["both", "matrix", "arcs"][rider[4] >> 2] || "both", arcs: rider[5] };
    this.told = [rider[6], rider[7]];                                // the layer and head that it selected
    this.body = body.subarray(0, body.length - 32);
    this.first = this.body;
    this.isWhole = header.original === undefined || original?.content === header.original;
    if (!this.isWhole) return;
    if (header.original !== undefined && original) {
      Object.assign(this, original.common);
      this.first = original.body;
      this.layers.forEach((layer, at) => { layer.runs.unshift(original.runs[at]); });
    }
    this.runs = this.layers[0].runs.length;
  }

  get exactPool() { return this.head ? this.head.exactPool : [1, 1]; }
  /** @param {number} layer @param {number} head */
  exact(layer, head) { return this.isExact(layer, head) ? this.head : null; }

  /** @param {number} layer @param {number} head */
  isExact(layer, head) { return this.head !== null && layer === this.head.selected[0] && head === this.head.selected[1]; }

  /** @param {number} layer @param {number} head */
  isSharp(layer, head) { return this.isExact(layer, head) && this.exactPool[0] * this.exactPool[1] === 1; }

  // The first column without the first key, stored after the planes of a layer.
  rest(run, layer, head) {
    const { rows, cols, heads, runs } = this.layers[layer], from = runs[run].offset + heads * rows * cols + head * rows;
    return this.bodyOf(run).subarray(from, from + rows);
  }

  plane(run, layer, head) {
    const { rows, cols, runs } = this.layers[layer], size = rows * cols, from = runs[run].offset + head * size;
    return this.bodyOf(run).subarray(from, from + size);
  }

  bodyOf(run) { return run ? this.body : this.first; }

  // An ablated head has a pattern, but its z is 0; zSize is the mean norm of z, null if unknown.
  isSilenced(layer, head, run = this.runs - 1) { return this.layers[layer].runs[run].silenced.includes(head); }
  zSize(run, layer, head) { return this.layers[layer].runs[run].z[head] ?? null; }

  peak(run, layer, head) { return this.layers[layer].runs[run].peaks[head]; }
  restPeak(run, layer, head) { return this.layers[layer].runs[run].restPeaks[head]; }

  // The weight of one cell: a number, NaN, or Infinity where masked.
  weight(run, layer, head, query, key) {
    const it = this.layers[layer];
    const exact = this.exact(layer, head);
    if (exact) return exact.floats[run][Math.floor(query / exact.exactPool[0]) * exact.exactSize[1] + Math.floor(key / exact.exactPool[1])];
    const code = this.plane(run, layer, head)[Math.floor(query / it.pool[0]) * it.cols + Math.floor(key / it.pool[1])];
    return code === MASKED ? Infinity : code === NAN ? NaN : (code / LEVELS) ** this.power * this.peak(run, layer, head);
  }

  // The change of a weight. Masked cells count as 0; cells masked in both runs stay masked.
  difference(layer, head, query, key) {
    const before = this.weight(0, layer, head, query, key), after = this.weight(1, layer, head, query, key);
    if (before === Infinity && after === Infinity) return Infinity;
    return (after === Infinity ? 0 : after) - (before === Infinity ? 0 : before);
  }

  // One head as codes on a scale that ends at `top`, at the best available resolution: {codes, rows, cols, pool}. On the scale
  // "without_first_token", the first key is left out as if it were masked.
  codes(run, layer, head, top, scale, coarse = false) {
    const it = this.layers[layer];
    const exact = coarse ? null : this.exact(layer, head);
    if (exact) {
      const from = exact.floats[run], codes = new Uint8Array(from.length), [rows, cols] = exact.exactSize;
      for (let i = 0; i < from.length; i++) {
        const w = from[i];
        codes[i] = w === Infinity ? MASKED : Number.isNaN(w) ? NAN : Math.round(LEVELS * shareOf(w, top, scale));
      }
      // In pooled weights, the first column is the one that contains the first key.
      if (scale === "without_first_token") for (let r = 0; r < rows; r++) codes[r * cols] = MASKED;
      return { codes, rows, cols, pool: exact.exactPool };
    }
    const plane = this.plane(run, layer, head), codes = new Uint8Array(plane.length), table = new Uint8Array(256);
    const peak = this.peak(run, layer, head);
    for (let c = 0; c <= LEVELS; c++) table[c] = Math.round(LEVELS * shareOf((c / LEVELS) ** this.power * peak, top, scale));
    table[NAN] = NAN; table[MASKED] = MASKED;
    for (let i = 0; i < plane.length; i++) codes[i] = table[plane[i]];
    if (scale === "without_first_token") this.rest(run, layer, head).forEach((code, r) => { codes[r * it.cols] = table[code]; });
    return { codes, rows: it.rows, cols: it.cols, pool: it.pool };
  }

  // changed − original as codes: 0 is −top, 126.5 is no change, 253 is +top.
  differenceCodes(layer, head, top, scale) {
    const it = this.layers[layer], exact = this.exact(layer, head);
    const [rows, cols] = exact?.exactSize ?? [it.rows, it.cols], pool = exact?.exactPool ?? it.pool;
    const codes = new Uint8Array(rows * cols), half = LEVELS / 2;
    for (let r = 0, i = 0; r < rows; r++) {
      for (let c = 0; c < cols; c++, i++) {
        const d = this.difference(layer, head, r * pool[0], c * pool[1]);
        codes[i] = d === Infinity || (scale === "without_first_token" && !c) ? MASKED : Number.isNaN(d) ? NAN
          : Math.max(0, Math.min(LEVELS, Math.round(half + (d / (top || 1)) * half)));
      }
    }
    return { codes, rows, cols, pool };
  }

  largestDifference(layer, head, scale) {
    const it = this.layers[layer], [tall, wide] = this.exact(layer, head)?.exactPool ?? it.pool;
    let most = 0;
    for (let q = 0; q < it.queries; q += tall) {
      for (let k = scale === "without_first_token" ? wide : 0; k < it.keys; k += wide) {
        const d = Math.abs(this.difference(layer, head, q, k));
        if (d > most && d !== Infinity) most = d;
      }
    }
    return most;
  }
}
