import assert from "node:assert/strict";
import { test } from "node:test";
import { codes, enlarged, half, isByBlocks, row, weight, within } from "../../../xformer/widgets/attention_map/cells.js";

/** Four queries under a causal mask; the weight of key 0 of the last query is below the threshold. */
const cells = /** @type {any} */ ({
  header: { shape: [4, 4], block: 2, peak: 1, threshold: 0.1 },
  blocks: Uint8Array.of(253, 0, 200, 180),
  starts: Uint32Array.of(0, 1, 3, 5, 7),
  permitted: Uint32Array.of(0, 1, 0, 2, 0, 3, 0, 4),
  keys: Uint32Array.of(0, 0, 1, 0, 2, 1, 3),
  weights: Float32Array.of(1, 0.36, 0.64, 0.5, 0.25, 0.16, 0.81),
});

const every = { ...cells, header: { ...cells.header, threshold: 0 } };

test("16-bit floats", () => {
  for (const [bits, value] of [
    [0x3c00, 1],
    [0x3800, 0.5],
    [0xc000, -2],
    [0x0001, 2 ** -24],
    [0x0000, 0],
    [0x2e66, 0.0999755859375],
  ]) {
    assert.equal(half(bits), value);
  }
  assert.ok(Number.isNaN(half(0x7e00)));
});

test("a row is sorted by weight, and a cell below the threshold has no weight", () => {
  assert.deepEqual(
    row(cells, 3).map(({ key }) => key),
    [3, 1],
  );
  assert.equal(weight(cells, 2, 2), 0.25);
  assert.equal(weight(cells, 3, 0), null);
});

test("each pixel of an enlarged view is one cell, grey where the mask permits none", () => {
  const root = (/** @type {number} */ share) => Math.round(253 * Math.sqrt(share));
  // biome-ignore format: a matrix
  assert.deepEqual([...codes(every, { query: 0, key: 0, size: 4 }, 4)], [
    253, 255, 255, 255,
    root(0.36), root(0.64), 255, 255,
    root(0.5), 0, root(0.25), 255,
    0, root(0.16), 0, root(0.81),
  ]);
});

test("a pixel that covers several cells has the largest weight", () => {
  assert.deepEqual([...codes(every, { query: 0, key: 0, size: 4 }, 2)], [253, 255, 179, 228]);
  assert.deepEqual([...codes(cells, { query: 0, key: 0, size: 4 }, 2)], [253, 255, 200, 180]); // that of the block
});

test("a view beyond the pattern is empty there", () => {
  const pixels = codes(every, { query: 2, key: 0, size: 4 }, 4);
  assert.deepEqual([...pixels.slice(8)], new Array(8).fill(255));
});

test("blocks are drawn where a pixel covers many cells and some weights are left out", () => {
  assert.ok(isByBlocks(cells, { query: 0, key: 0, size: 4 }, 2));
  assert.ok(!isByBlocks(cells, { query: 0, key: 0, size: 4 }, 8));
  assert.ok(!isByBlocks(every, { query: 0, key: 0, size: 4 }, 2));
});

test("a view stays within the pattern and keeps the point under the pointer", () => {
  const view = enlarged({ query: 0, key: 0, size: 1000 }, 2, [0.5, 0.25], [1000, 1000]);
  assert.deepEqual(view, { query: 250, key: 125, size: 500 });
  assert.deepEqual(enlarged(view, 0.01, [0, 0], [1000, 1000]), { query: 0, key: 0, size: 1000 });
  assert.deepEqual(within({ query: -5, key: 990, size: 20 }, [1000, 1000]), { query: 0, key: 980, size: 20 });
});
