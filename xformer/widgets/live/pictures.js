// Packs the runs of a live page into the bytes that the attention view and the scene draw. Mirrors xformer/viz/packing.py and
// xformer/widgets/scene_data.py.

import { LEVELS, MASKED, NAN } from "../shared.js";

const SHOWN = { " ": "·", "\n": "↵", "\r": "↵", "\t": "⇥" };
export const visible = (text) => text.replace(/[ \n\r\t]/g, (letter) => SHOWN[letter]) || "∅";

function joined(magic, header, blocks) {
  const text = new TextEncoder().encode(JSON.stringify(header)), padded = text.length + ((8 - ((text.length + 8) % 8)) % 8);
  const size = 8 + padded + blocks.reduce((sum, one) => sum + one.byteLength, 0), bytes = new Uint8Array(size).fill(32);
  bytes.set([...magic].map((letter) => letter.charCodeAt(0)));
  new DataView(bytes.buffer).setUint32(4, padded, true);
  bytes.set(text, 8);
  let at = 8 + padded;
  for (const block of blocks) {
    bytes.set(new Uint8Array(block.buffer, block.byteOffset, block.byteLength), at);
    at += block.byteLength;
  }
  return bytes;
}

// The exact weights of one head; masked cells are Infinity.
export function exactHead({ trace }, path, head) { // -> Float32Array [query, key]
  const pattern = trace.get(`${path}.pattern`), scores = trace.get(`${path}.scores`), [, , queries, keys] = pattern.shape;
  const size = queries * keys, cells = pattern.data.slice(head * size, (head + 1) * size);
  for (let i = 0; i < size; i++) if (scores.data[head * size + i] === -Infinity) cells[i] = Infinity;
  return cells;
}

const codeOf = (weight, peak) => (weight === Infinity ? MASKED : Number.isNaN(weight) ? NAN : Math.min(LEVELS, Math.round(LEVELS * Math.sqrt(Math.max(0, weight) / (peak || 1)))));

function plane(cells, queries, keys) { // -> codes, their peak, the first column without the first key, and the peak without it
  let peak = 0, restPeak = 0;
  for (let q = 0; q < queries; q++) {
    for (let k = 0; k < keys; k++) {
      const weight = cells[q * keys + k];
      if (!Number.isFinite(weight)) continue;
      peak = Math.max(peak, weight);
      if (k > 0) restPeak = Math.max(restPeak, weight);
    }
  }
  return { codes: Uint8Array.from(cells, (weight) => codeOf(weight, peak)), peak, restPeak, rest: new Uint8Array(queries).fill(MASKED) };
}

const norm = (data, from, width) => Math.hypot(...data.subarray(from, from + width));

function sizeOf({ trace }, path) { // the mean norm of each head's z over the queries
  const { shape: [, heads, queries, width], data } = trace.get(`${path}.z`);
  return Array.from({ length: heads }, (_, head) => {
    let sum = 0;
    for (let q = 0; q < queries; q++) sum += norm(data, (head * queries + q) * width, width);
    return sum / queries;
  });
}

// `runs` are the original and, if there is one, the changed run; `labels(site, "query" | "key")` returns the tokens of a side.
export function attentionBytes(runs, { sites }, labels, colours, chosen) {
  const names = [], known = new Map(), blocks = [], layers = [];
  const labelled = (site, side) => {
    const words = labels(site, side), stack = side === "key" && site.kind === "cross_attn" ? "encoder" : site.stack;
    const key = JSON.stringify([stack, words]);
    if (!known.has(key)) { known.set(key, names.length); names.push(words); }
    return known.get(key);
  };
  let offset = 0, content = 0;
  sites.forEach((site, at) => {
    const { path } = site, [, heads, queries, keys] = runs[0].trace.get(`${path}.pattern`).shape;
    const layer = { name: path, title: site.title, heads, queries, keys, rows: queries, cols: keys, pool: [1, 1],
      queryLabels: labelled(site, "query"), keyLabels: labelled(site, "key"), runs: /** @type {object[]} */ ([]) };
    for (const run of runs) {
      const planes = Array.from({ length: heads }, (_, head) => plane(exactHead(run, path, head), queries, keys)), z = sizeOf(run, path);
      layer.runs.push({ offset, peaks: planes.map((one) => one.peak), restPeaks: planes.map((one) => one.restPeak), z,
        silenced: z.flatMap((size, head) => (size === 0 && planes[head].peak > 0 ? [head] : [])) });
      for (const { codes } of planes) blocks.push(codes);
      for (const { rest } of planes) blocks.push(rest);
      offset += heads * queries * (keys + 1);
    }
    if (runs.length > 1) {
      const [before, after] = runs.map((run) => run.trace.get(`${path}.pattern`).data), size = queries * keys;
      layer.moved = Array.from({ length: heads }, (_, head) => {
        let sum = 0;
        for (let i = head * size; i < (head + 1) * size; i++) sum += Math.abs(after[i] - before[i]) || 0;
        return sum / 2 / queries;
      });
      const isLast = sites[at + 1]?.layer !== site.layer || sites[at + 1]?.stack !== site.stack, name = `${site.stack}.${site.layer}.resid_post`;
      const [from, to] = runs.map((run) => run.trace.get(name));
      if (isLast && from) {
        const width = from.shape.at(-1), moved = to.data.map((value, i) => value - from.data[i]);
        layer.stream = Array.from({ length: queries }, (_, q) => norm(moved, q * width, width) / Math.max(1e-9, norm(from.data, q * width, width)));
      }
    }
    layers.push(layer);
  });
  for (const run of runs) for (const site of sites) for (const value of run.trace.get(`${site.path}.pattern`).data) content = (content * 31 + Math.round(value * 1e6)) % 4294967291;
  const header = { view: "view", layers, labels: names.map((row) => row.map(visible)), thumbnail: 64, power: 2, firstHead: 1, firstPosition: 0,
    hues: colours.heads, sequential: colours.sequential, diverging: colours.diverging, content };
  const { query, key, layer, head, order, height = 0 } = chosen;
  const rider = Uint32Array.from([height, query === null ? 0 : query + 1, key === null ? 0 : key + 1, order, 0, 0, layer, head]);
  const packed = joined("XATT", header, [...blocks, rider]);
  const exact = (l, h) => {
    const [, , queries, keys] = runs[0].trace.get(`${sites[l].path}.pattern`).shape;
    return joined("XATH", { view: "view", content, selected: [l, h], exactPool: [1, 1], exactSize: [queries, keys], isTriangle: false },
      runs.map((run) => exactHead(run, sites[l].path, h)));
  };
  return { packed, exact };
}

const MOST_TOKENS = 20, MOST_VALUES = 16, MOST_ANSWERS = 5;

// The scene of one run: its tokens, vectors, patterns and answers.
export function sceneBytes(run, { sites, isEncoderDecoder, continues }, tokens, answers, colours, edit) {
  const blocks = [];
  let size = 0;
  const add = (array) => {
    const padded = new Uint8Array(array.byteLength + ((4 - (array.byteLength % 4)) % 4)), at = size;
    padded.set(new Uint8Array(array.buffer, array.byteOffset, array.byteLength));
    blocks.push(padded);
    size += padded.length;
    return at;
  };
  /** @returns {[number, number]} */
  const windowOf = (n) => (n <= MOST_TOKENS ? [0, n] : continues ? [n - MOST_TOKENS, n] : [0, MOST_TOKENS]);
  const rows = (name, [from, to]) => { // the vectors of an activation at the shown tokens
    const value = run.trace.get(name);
    if (!value || value.shape.at(-2) < to) return null;
    const width = value.shape.at(-1);
    return { width, data: value.data.subarray(from * width, to * width) };
  };
  const column = (name, { width, data }) => {
    const n = Math.min(width, MOST_VALUES), dimensions = Array.from({ length: n }, (_, i) => Math.floor((i * width) / n));
    const values = new Float32Array((data.length / width) * n).map((_, i) => data[Math.floor(i / n) * width + dimensions[i % n]] || 0);
    return { name, dimensions, width, largest: values.reduce((most, value) => Math.max(most, Math.abs(value)), 0), at: add(values) };
  };
  const share = (added, before) => added && before && Array.from({ length: added.data.length / added.width }, (_, r) =>
    Math.min(1e3, norm(added.data, r * added.width, added.width) / Math.max(1e-9, norm(before.data, r * before.width, before.width))));
  const stacks = [...new Set(sites.map((site) => site.stack))].map((name) => {
    const words = tokens(name), shown = windowOf(words.length), prefix = isEncoderDecoder ? `${name}.` : "";
    const own = sites.map((site, at) => ({ ...site, at })).filter((site) => site.stack === name), columns = [];
    const entering = rows(`${name}.0.resid_pre`, shown), placed = rows(`${prefix}pos_embed`, shown);
    if (entering && placed) {
      columns.push(column("token", { width: entering.width, data: entering.data.map((value, i) => value - placed.data[i]) }));
      columns.push(column("position", placed), column("sum", entering));
    } else if (entering) columns.push(column("token", entering));
    const layers = [...new Set(own.map((site) => site.layer))].map((layer) => {
      const block = `${name}.${layer}`, before = rows(`${block}.resid_pre`, shown), after = rows(`${block}.resid_post`, shown);
      const attention = own.filter((site) => site.layer === layer).map((site) => {
        const { shape: [, heads, , keys], data } = run.trace.get(`${site.path}.pattern`), all = run.trace.get(`${site.path}.pattern`).shape[2];
        const [from, to] = windowOf(keys), weights = new Uint8Array(heads * (shown[1] - shown[0]) * (to - from));
        let i = 0;
        for (let head = 0; head < heads; head++) for (let q = shown[0]; q < shown[1]; q++) for (let k = from; k < to; k++) {
          weights[i++] = Math.round(255 * Math.min(1, Math.max(0, data[(head * all + q) * keys + k] || 0)));
        }
        return { site: site.at, kind: site.kind, added: share(rows(`${site.path}.out`, shown), before), heads, drawn: heads, shape: [shown[1] - shown[0], to - from], at: add(weights) };
      });
      return { attention, fed: share(rows(`${block}.ffn.out`, shown), before), ...(after ? { after: column("", after) } : {}) };
    });
    return { name, tokens: words.slice(...shown).map(visible), first: shown[0], n: words.length, columns, layers };
  });
  const last = stacks[stacks.length - 1];
  const listed = answers.filter(({ row }) => row === null || (row >= last.first && row < last.first + last.tokens.length))
    .map(({ row, said, answer, isRight }) => ({ row: row === null ? null : row - last.first, said: said.slice(0, MOST_ANSWERS), answer, is_right: isRight }));
  return joined("XSC1", { stacks, answers: listed, continues, edit, colours }, blocks);
}
