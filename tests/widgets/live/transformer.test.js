import assert from "node:assert/strict";
import { test } from "node:test";
import { tensor } from "../../../xformer/widgets/live/tensors.js";
import { ACTIVATIONS, forward, MASKS, NORMS } from "../../../xformer/widgets/live/transformer.js";

const filled = (/** @type {number[]} */ shape, /** @type {number[]} */ values) => tensor(shape, Float32Array.from(values));
const rounded = (/** @type {Iterable<number>} */ values) => Array.from(values, (value) => Math.round(value * 1e5) / 1e5);

// One layer, two heads of width 1. Queries and keys are 0, so a head averages what it sees; its value is one of the two features.
const config = {
  architecture: "decoder",
  d_model: 2,
  n_layers: 1,
  n_heads: 2,
  d_head: 1,
  d_value: 1,
  d_ff: 0,
  norm: "none",
  positions: "none",
  mask: "full",
  see_self: true,
};
const weights = new Map(
  Object.entries({
    "embedding.token": filled([3, 2], [1, 2, 3, 4, 5, 6]),
    "decoder.blocks.0.attn.weight_in": filled([6, 2], [0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 1]),
    "decoder.blocks.0.attn.weight_out": filled([2, 2], [1, 0, 0, 1]),
    "unembedding.weight": filled([2, 2], [1, 0, 0, 1]),
  }),
);
const none = { causal: null, drawn: null, ablate: [], cut: [], positions: true, lenient: false };
const run = (changes = {}, sizes = {}) =>
  forward({ ...config, ...sizes }, weights, { tokens: [0, 1, 2], target: null }, { ...none, ...changes });
const path = "decoder.0.attn";

test("a causal layer adds the mean of what came before to the stream", () => {
  const trace = run();
  assert.deepEqual(rounded(trace.get(`${path}.pattern`).data.slice(0, 9)), [1, 0, 0, 0.5, 0.5, 0, 0.33333, 0.33333, 0.33333]);
  assert.deepEqual(rounded(trace.get("logits").data), [2, 4, 5, 7, 8, 10]); // [1, 2], [3, 4], [5, 6] and their means so far
});

test("a head can be ablated, a cell cut, and the mask changed", () => {
  assert.deepEqual(rounded(run({ ablate: [[path, 1]] }).get("logits").data), [2, 2, 5, 4, 8, 6]);
  assert.deepEqual(rounded(run({ cut: [[path, 0, 1, 0]] }).get("logits").data), [2, 4, 6, 7, 8, 10]);
  assert.deepEqual(rounded(run({ causal: false }).get("logits").data), [4, 6, 6, 8, 8, 10]);
  assert.deepEqual(rounded(run({ drawn: () => (q, k) => q === k }).get("logits").data), [2, 4, 6, 8, 10, 12]);
  assert.deepEqual(rounded(run({}, { mask: "sliding_window", window: 2 }).get("logits").data), [2, 4, 5, 7, 9, 11]);
  assert.throws(() => run({ cut: [[path, 0, 3, 0]] }), /there is no edge \(3, 0\)/);
});

test("norms and activations have their textbook values", () => {
  const [x, one] = [filled([1, 2], [3, 4]), filled([2], [1, 1])];
  assert.deepEqual(rounded(NORMS.layer(x, one, filled([2], [0, 1]), 0).data), [-1, 2]);
  assert.deepEqual(rounded(NORMS.rms(x, one, null, 0).data), rounded([3 / Math.sqrt(12.5), 4 / Math.sqrt(12.5)]));
  assert.deepEqual(
    rounded([ACTIVATIONS.relu, ACTIVATIONS.gelu, ACTIVATIONS.swiglu].map(({ act }) => act(1))),
    [1, 0.84134, 0.73106],
  );
  assert.ok(MASKS.full({}, 0, 9));
});
