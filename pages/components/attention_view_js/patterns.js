// Reads packed attention patterns (xformer/viz/packing.py): any weight of any head, and a head as codes to draw.
// A code is 0..253 on a scale, 254 not a number, 255 masked.

const LEVELS = 253, NAN = 254, MASKED = 255;

class Patterns {
  constructor(bytes) {
    const numbers = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    const length = numbers.getUint32(4, true);
    const header = JSON.parse(new TextDecoder().decode(bytes.subarray(8, 8 + length)));
    Object.assign(this, header);
    const rider = [24, 20, 16, 12, 8, 4].map((back) => numbers.getUint32(bytes.length - back, true)); // rides behind the packed bytes
    this.height = rider[0];
    this.cell = [rider[1], rider[2]].map((n) => (n ? n - 1 : null)); // locked by the server: query, key
    this.order = rider[3];                                           // counts what the server chose
    this.look = { own: Boolean(rider[4] & 1), show: ["both", "matrix", "arcs"][rider[4] >> 1] || "both", arcs: rider[5] };
    this.body = bytes.subarray(8 + length, bytes.length - 24);
    this.runs = this.layers[0].runs.length; // 1, or 2 with a changed run
    const cells = this.layers[this.selected[0]].queries * this.layers[this.selected[0]].keys;
    const floats = new Float32Array(this.body.slice(this.exact).buffer); // a copy, since floats have to be aligned
    this.floats = Array.from({ length: this.runs }, (_, run) => floats.subarray(run * cells, (run + 1) * cells));
  }

  isExact(layer, head) { return layer === this.selected[0] && head === this.selected[1]; }

  plane(run, layer, head) {
    const { rows, cols, runs } = this.layers[layer], size = rows * cols, from = runs[run].offset + head * size;
    return this.body.subarray(from, from + size);
  }

  // A silenced head looks, but its z is 0 in the run that is shown last; how long z is on average, null where not known.
  isSilenced(layer, head, run = this.runs - 1) { return this.layers[layer].runs[run].silenced.includes(head); }
  zSize(run, layer, head) { return this.layers[layer].runs[run].z[head] ?? null; }

  peak(run, layer, head) { return this.layers[layer].runs[run].peaks[head]; }

  // The weight of one cell: a number, NaN, or Infinity where masked.
  weight(run, layer, head, query, key) {
    const it = this.layers[layer];
    if (this.isExact(layer, head)) return this.floats[run][query * it.keys + key];
    const code = this.plane(run, layer, head)[Math.floor(query / it.pool[0]) * it.cols + Math.floor(key / it.pool[1])];
    return code === MASKED ? Infinity : code === NAN ? NaN : (code / LEVELS) * this.peak(run, layer, head);
  }

  // How far a cell moved. A masked cell has the weight 0; masked in both runs it stays masked.
  difference(layer, head, query, key) {
    const before = this.weight(0, layer, head, query, key), after = this.weight(1, layer, head, query, key);
    if (before === Infinity && after === Infinity) return Infinity;
    return (after === Infinity ? 0 : after) - (before === Infinity ? 0 : before);
  }

  // One head as codes on the scale 0..top, as fine as it is known: {codes, rows, cols, pool}.
  codes(run, layer, head, top, coarse = false) {
    const it = this.layers[layer];
    if (!coarse && this.isExact(layer, head)) {
      const from = this.floats[run], codes = new Uint8Array(from.length), scale = LEVELS / (top || 1);
      for (let i = 0; i < from.length; i++) {
        const w = from[i];
        codes[i] = w === Infinity ? MASKED : w !== w ? NAN : Math.max(0, Math.min(LEVELS, Math.round(w * scale)));
      }
      return { codes, rows: it.queries, cols: it.keys, pool: [1, 1] };
    }
    const plane = this.plane(run, layer, head), codes = new Uint8Array(plane.length), table = new Uint8Array(256);
    const scale = this.peak(run, layer, head) / (top || 1);
    for (let c = 0; c <= LEVELS; c++) table[c] = Math.min(LEVELS, Math.round(c * scale));
    table[NAN] = NAN; table[MASKED] = MASKED;
    for (let i = 0; i < plane.length; i++) codes[i] = table[plane[i]];
    return { codes, rows: it.rows, cols: it.cols, pool: it.pool };
  }

  // changed − original as codes: 0 is −top, 126.5 is no change, 253 is +top.
  differenceCodes(layer, head, top) {
    const it = this.layers[layer], fine = this.isExact(layer, head);
    const [rows, cols, pool] = fine ? [it.queries, it.keys, [1, 1]] : [it.rows, it.cols, it.pool];
    const codes = new Uint8Array(rows * cols), half = LEVELS / 2;
    for (let r = 0, i = 0; r < rows; r++) {
      for (let c = 0; c < cols; c++, i++) {
        const d = this.difference(layer, head, r * pool[0], c * pool[1]);
        codes[i] = d === Infinity ? MASKED : d !== d ? NAN
          : Math.max(0, Math.min(LEVELS, Math.round(half + (d / (top || 1)) * half)));
      }
    }
    return { codes, rows, cols, pool };
  }

  largestDifference(layer, head) {
    const it = this.layers[layer], [tall, wide] = this.isExact(layer, head) ? [1, 1] : it.pool;
    let most = 0;
    for (let q = 0; q < it.queries; q += tall) {
      for (let k = 0; k < it.keys; k += wide) {
        const d = Math.abs(this.difference(layer, head, q, k));
        if (d > most && d !== Infinity) most = d;
      }
    }
    return most;
  }
}
