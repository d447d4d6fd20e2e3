import assert from "node:assert/strict";
import { test } from "node:test";
import { POSITIONS, turn } from "../../../xformer/widgets/live/positions.js";
import { tensor } from "../../../xformer/widgets/live/tensors.js";

const rounded = (/** @type {Iterable<number>} */ values) => Array.from(values, (value) => Math.round(value * 1e6) / 1e6);

test("sinusoidal positions are sines and cosines of decreasing frequency", () => {
  const { data } = POSITIONS.sinusoidal.add({ d_model: 4, position_base: 10000 }, {}, 4);
  assert.deepEqual(rounded(data.slice(12)), rounded([Math.sin(3), Math.cos(3), Math.sin(0.03), Math.cos(0.03)]));
});

test("mirror positions count from both ends", () => {
  const [from_start, from_end] = [
    [1, 2, 3],
    [10, 20, 30],
  ].map((values) => tensor([3, 1], Float32Array.from(values)));
  assert.deepEqual([...POSITIONS.mirror.add({}, { from_start, from_end }, 2).data], [21, 12]);
});

test("rotary scores depend on the distance alone", () => {
  const angles = POSITIONS.rotary.angles({ d_head: 2, position_base: 10000 }, 6);
  const { data } = turn(tensor([1, 6, 2], Float32Array.from(Array(6).fill([1, 2]).flat())), angles);
  const dot = (/** @type {number} */ i, /** @type {number} */ j) =>
    data[2 * i] * data[2 * j] + data[2 * i + 1] * data[2 * j + 1];
  assert.deepEqual(rounded([dot(0, 2), dot(3, 5), dot(4, 4)]), rounded([5 * Math.cos(2), 5 * Math.cos(2), 5]));
});

test("ALiBi's slopes for 6 heads are those of 4 and every other one of 8", () => {
  const bias = POSITIONS.alibi.bias({ n_heads: 6 }, {}, 3); // [head, query, key]
  assert.deepEqual(
    rounded([0, 1, 2, 3, 4, 5].map((head) => -bias.data[9 * head + 2] / 2)),
    [0.25, 0.0625, 0.015625, 0.003906, 0.5, 0.125],
  );
});

test("T5's buckets are those of its published formula", () => {
  const table = tensor(
      [32, 1],
      Float32Array.from({ length: 32 }, (_, bucket) => bucket),
    ),
    n = 130;
  const buckets = (/** @type {boolean} */ causal, /** @type {number} */ query, /** @type {number[]} */ offsets) => {
    const { data } = POSITIONS.t5.bias({ n_heads: 1 }, { table }, n, causal);
    return offsets.map((offset) => data[query * n + query + offset]);
  };
  assert.deepEqual(buckets(true, 129, [0, -1, -15, -16, -20, -64, -100, -128]), [0, 1, 15, 16, 17, 26, 30, 31]);
  assert.deepEqual(buckets(false, 105, [-100, -20, -8, -1, 0, 1, 8, 20]), [15, 10, 8, 1, 0, 17, 24, 26]);
});
