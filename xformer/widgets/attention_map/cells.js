// The data of the map, and what a part of it looks like at any size.

import { headerOf, LEVELS } from "../shared.js";

/** @typedef {{ layer: number, head: number, title: string, shape: [number, number], entropy: number }} Thumbnail */
/**
 * @typedef {object} Cells
 * @property {any} header
 * @property {Uint8Array} blocks codes of the largest weights of blocks
 * @property {Uint32Array} starts the first cell of each query
 * @property {Uint32Array} permitted the first key that the mask permits to each query, and the one after the last
 * @property {Uint32Array} keys
 * @property {Float32Array} weights
 * @property {Uint8Array[]} thumbnails
 */
/** @typedef {{ query: number, key: number, size: number }} View the cell in the upper left corner, and the number of cells of a side */

/** @param {number} bits a 16-bit float */
export function half(bits) {
  const sign = bits & 0x8000 ? -1 : 1, exponent = (bits >> 10) & 31, fraction = bits & 1023;
  if (exponent === 31) return fraction ? Number.NaN : sign * Number.POSITIVE_INFINITY;
  return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -14 * (fraction / 1024));
}

/** @param {Uint8Array<ArrayBuffer>} bytes @returns {Cells} */
export function unpack(bytes) {
  const [header, rest] = headerOf(bytes);
  let at = 0;
  const take = (/** @type {number} */ n) => rest.slice(at, (at += n)); // a copy, whose numbers are aligned
  const side = (/** @type {number} */ n) => Math.ceil(n / header.block);
  const blocks = take(side(header.shape[0]) * side(header.shape[1]));
  const starts = new Uint32Array(take(4 * (header.shape[0] + 1)).buffer);
  const permitted = new Uint32Array(take(8 * header.shape[0]).buffer);
  const keys = new Uint32Array(take(4 * header.n_cells).buffer);
  const weights = Float32Array.from(new Uint16Array(take(2 * header.n_cells).buffer), half);
  const thumbnails = header.thumbnails.map((/** @type {Thumbnail} */ { shape }) => take(shape[0] * shape[1]));
  return { header, blocks, starts, permitted, keys, weights, thumbnails };
}

/** The cells of one query that are in the page, the largest weight first. @param {Cells} cells @param {number} query */
export function row(cells, query) {
  const found = [];
  for (let i = cells.starts[query]; i < cells.starts[query + 1]; i++) found.push({ key: cells.keys[i], weight: cells.weights[i] });
  return found.sort((a, b) => b.weight - a.weight);
}

/** The weight of a cell, or null if it is below the threshold. @param {Cells} cells @param {number} query @param {number} key */
export function weight(cells, query, key) {
  let low = cells.starts[query], high = cells.starts[query + 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (cells.keys[middle] < key) low = middle + 1;
    else high = middle;
  }
  return low < cells.starts[query + 1] && cells.keys[low] === key ? cells.weights[low] : null;
}

/** Whether a view is drawn from the largest weights of blocks, because a pixel covers more than one. @param {Cells} cells @param {View} view @param {number} side pixels */
export const isByBlocks = (cells, view, side) => cells.header.threshold > 0 && view.size / side > cells.header.block / 4;

/**
 * The codes of the pixels of a view: the largest weight that each covers; 255 outside the pattern, and where the mask permits none of
 * its cells. Holes within the range of the keys of a query are not known here, and are drawn like weights of 0.
 * @param {Cells} cells @param {View} view @param {number} side pixels of a side @returns {Uint8Array}
 */
export function codes(cells, view, side) {
  const [nQuery, nKey] = cells.header.shape, { block, peak } = cells.header, step = view.size / side;
  const pixels = new Uint8Array(side * side).fill(255);
  const inside = (/** @type {number} */ from, /** @type {number} */ n) => Math.min(side, Math.max(0, Math.ceil((n - from) / step)));
  const [height, width] = [inside(view.query, nQuery), inside(view.key, nKey)];
  for (let y = 0; y < height; y++) {
    let [first, end] = [nKey, 0];
    const below = Math.max(Math.floor(view.query + y * step) + 1, Math.ceil(view.query + (y + 1) * step));
    for (let query = Math.floor(view.query + y * step); query < Math.min(nQuery, below); query++) {
      first = Math.min(first, cells.permitted[2 * query]);
      end = Math.max(end, cells.permitted[2 * query + 1]);
    }
    const [from, to] = [Math.floor((first - view.key) / step), Math.ceil((end - view.key) / step)];
    if (end > first) pixels.fill(0, y * side + Math.min(width, Math.max(0, from)), y * side + Math.min(width, Math.max(0, to)));
  }
  if (isByBlocks(cells, view, side)) {
    const columns = Math.ceil(nKey / block);
    for (let y = 0; y < height; y++) {
      const above = Math.floor((view.query + y * step) / block) * columns;
      for (let x = 0; x < width; x++) {
        if (pixels[y * side + x] === 0) pixels[y * side + x] = cells.blocks[above + Math.floor((view.key + x * step) / block)];
      }
    }
    return pixels;
  }
  const scale = 1 / (peak || 1), last = Math.min(nQuery, Math.ceil(view.query + view.size)), right = view.key + view.size;
  const tall = Math.max(1, Math.ceil(1 / step));
  for (let query = Math.max(0, Math.floor(view.query)); query < last; query++) {
    for (let i = cells.starts[query]; i < cells.starts[query + 1]; i++) {
      const key = cells.keys[i];
      if (key < Math.floor(view.key) || key >= right) continue;
      const code = Math.round(LEVELS * Math.sqrt(cells.weights[i] * scale));
      const top = Math.floor((query - view.query) / step), from = Math.floor((key - view.key) / step);
      for (let y = Math.max(0, top); y < Math.min(height, top + tall); y++) {
        for (let x = Math.max(0, from); x < Math.min(width, from + tall); x++) {
          const before = pixels[y * side + x];
          if (before === 255 || before < code) pixels[y * side + x] = code;
        }
      }
    }
  }
  return pixels;
}

/** The view enlarged by a factor around one of its points, within the pattern. @param {View} view @param {number} factor @param {[number, number]} at shares of the height and the width @param {[number, number]} shape @returns {View} */
export function enlarged(view, factor, at, shape) {
  const whole = Math.max(...shape), size = Math.min(whole, Math.max(8, view.size / factor));
  return within({ query: view.query + at[0] * (view.size - size), key: view.key + at[1] * (view.size - size), size }, shape);
}

/** @param {View} view @param {[number, number]} shape @returns {View} */
export function within(view, shape) {
  const keep = (/** @type {number} */ from, /** @type {number} */ n) => Math.min(Math.max(0, n - view.size), Math.max(0, from));
  return { query: keep(view.query, shape[0]), key: keep(view.key, shape[1]), size: view.size };
}
