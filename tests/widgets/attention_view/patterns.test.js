import assert from "node:assert/strict";
import { test } from "node:test";
import { ExactHead, Patterns, shareOf } from "../../../xformer/widgets/attention_view/patterns.js";

const packed = (/** @type {object} */ header, /** @type {ArrayBufferView[]} */ blocks) => {
  const text = new TextEncoder().encode(JSON.stringify(header).padEnd(800));
  const parts = [
    new Uint8Array(4),
    new Uint8Array(Uint32Array.of(text.length).buffer),
    text,
    ...blocks.map((one) => new Uint8Array(one.buffer)),
  ];
  return Uint8Array.from(parts.flatMap((part) => [...part]));
};

// Two tokens, one causal head, two runs. Codes are √(weight / peak) in 253 steps; a column without the first key follows the planes.
const run = (/** @type {number} */ offset) => ({ offset, peaks: [1], restPeaks: [0.25], z: [1], silenced: [] });
const layer = { queries: 2, keys: 2, rows: 2, cols: 2, heads: 1, pool: [1, 1], runs: [run(0), run(6)], moved: [0.5] };
const planes = Uint8Array.of(253, 255, 219, 126, 255, 126, 253, 255, 0, 253, 255, 253);
const rider = Uint32Array.of(0, 2, 0, 5, 3, 0, 0, 0);
const patterns = new Patterns(packed({ content: 1, power: 2, layers: [layer] }, [planes, rider]));

test("the message says what was selected and how it is shown", () => {
  assert.deepEqual([patterns.cell, patterns.order, patterns.told], [[1, null], 5, [0, 0]]);
  assert.deepEqual(patterns.look, { scale: "without_first_token", show: "both", arcs: 0 });
});

test("weights are decoded from codes, and exactly once their head has arrived", () => {
  assert.deepEqual(
    [0, 1].map((key) => patterns.weight(0, 0, 0, 0, key)),
    [1, Infinity],
  );
  assert.equal(patterns.weight(0, 0, 0, 1, 1).toFixed(3), "0.248");
  assert.equal(patterns.difference(0, 0, 1, 1).toFixed(3), "0.752");
  patterns.head = new ExactHead(
    packed({ selected: [0, 0], exactPool: [1, 1], exactSize: [2, 2], isTriangle: true }, [
      Float32Array.of(1, 0.75, 0.25, 1, 0, 1),
    ]),
  );
  assert.deepEqual(
    [0, 1].map((key) => patterns.weight(0, 0, 0, 1, key)),
    [0.75, 0.25],
  );
  assert.equal(patterns.difference(0, 0, 1, 1), 0.75);
});

test("codes follow the scale, which may leave out the first token", () => {
  assert.deepEqual([...patterns.codes(0, 0, 0, 1, "fixed").codes], [253, 255, 190, 63]);
  assert.deepEqual([...patterns.codes(0, 0, 0, 0.25, "without_first_token").codes], [255, 255, 255, 253]);
  assert.deepEqual([...patterns.codes(0, 0, 0, 0.25, "without_first_token", true).codes], [255, 255, 251, 251]); // from the bytes
  assert.deepEqual([...patterns.differenceCodes(0, 0, 1, "fixed").codes], [127, 255, 32, 221]);
  assert.equal(patterns.largestDifference(0, 0, "without_first_token"), 0.75);
  assert.deepEqual(
    [1, 0.01, 0].map((weight) => shareOf(weight, 1, "log")),
    [1, 0.5, 0],
  );
});
