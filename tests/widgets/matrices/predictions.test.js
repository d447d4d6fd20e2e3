import assert from "node:assert/strict";
import { test } from "node:test";
import { formatted } from "../../../xformer/widgets/matrices/layout.js";
import { questionsOf } from "../../../xformer/widgets/matrices/predictions.js";

const WORDS = ["0 · a", "1 · b", "2 · c"];
const matrix = (/** @type {string} */ name, /** @type {any[][]} */ values, more = {}) => ({
  name,
  values,
  rows: WORDS.slice(0, values.length),
  columns: values[0].map((_, at) => `${at + 1}`),
  drawn: true,
  made: null,
  ...more,
});
const Q = matrix("Q", [
  [2, -1],
  [1, 1],
  [0, 2],
]);
const K = matrix("K", [
  [1, 1],
  [2, 2],
  [3, 1],
]);
const V = matrix("V", [
  [4, 0],
  [0, 1],
  [-1, 8],
]);
const S = matrix(
  "S",
  [
    [0.5, 1, 2.5],
    [1, 2, 2],
    [1, 2, 1],
  ],
  { columns: WORDS, made: { op: "product", left: "Q", right: "K", by: "rows", divide: 2 } },
);

/** @param {any[]} matrices @param {number} row */
const asked = (matrices, row) => questionsOf((name) => matrices.find((one) => one.name === name), matrices, row);
const told = (/** @type {any} */ { name, c, choices }) => [
  name,
  c,
  ...choices.map(({ value, why }) => [formatted(value), why.slice(0, 30)]),
];

test("the wrong scores are those before the scale, without signs, and of other words", () => {
  assert.deepEqual(told(asked([Q, K, V, S], 0)[0]), [
    "S",
    2,
    ["1.00", "That is the score of “1 · b”."],
    ["2.50", ""],
    ["3.50", "That counts every product as p"],
    ["5.00", "That is the sum of the product"],
  ]);
  assert.equal(asked([Q, K, V, S], 1)[0].c, 2); // not the score of a word and itself
});

test("the wrong weights are equal, not divided, or without an exponential", () => {
  const { exp } = Math,
    sum = exp(0.5) + exp(2.5);
  const scores = matrix("S", [[0.5, null, 2.5]]),
    weights = matrix("A", [[exp(0.5) / sum, null, exp(2.5) / sum]], { made: { op: "softmax", of: "S" } });
  assert.deepEqual(told(asked([scores, weights], 0)[0]), [
    "A",
    2,
    ["0.50", "That is 1 ÷ 2, the same weight"],
    ["0.88", ""],
    ["12.18", "That is e to the power of the "],
  ]); // 2.5 ÷ 3.0 is too close to 0.88
  const negative = matrix("S", [[0.5, -0.9, -0.9]]),
    of = matrix("A", [[0.67, 0.165, 0.165]], { made: { op: "softmax", of: "S" } });
  assert.ok(asked([negative, of], 0)[0].choices.every(({ value }) => value >= 0)); // no weight is negative
});

test("the wrong mixed values are a plain average, one word alone, and a plain sum", () => {
  const A = matrix("A", [[0.1, 0.2, 0.7]]),
    Y = matrix("Y", [[-0.3, 5.8]], { made: { op: "mix", left: "A", right: "V" } });
  assert.deepEqual(told(asked([A, V, Y], 0)[0]), [
    "Y",
    1,
    ["3.00", "That is the plain average of t"],
    ["5.80", ""],
    ["8.00", "That is the number of “2 · c” "],
    ["9.00", "That is the sum of the column,"],
  ]);
});

test("no question without a wrong value that differs, on learned products, and on rows that are masked", () => {
  const one = matrix("S", [[1]]),
    certain = matrix("A", [[1]], { made: { op: "softmax", of: "S" } });
  assert.deepEqual(
    asked([one, certain], 0)[0]?.choices.map(({ value }) => formatted(value)),
    ["1.00", "2.72"],
  );
  const zero = matrix("S", [[0]]);
  assert.deepEqual(asked([zero, certain], 0), []); // e⁰ = 1 and 1 ÷ 1 = 1
  const learned = matrix("Q", Q.values, { made: { op: "product", left: "X", right: "W_Q", by: "columns", divide: 1 } });
  const masked = matrix("S", [[null, null, null]], S);
  assert.deepEqual(asked([learned, K, { ...masked, values: [[null, null, null]] }], 0), []);
  assert.deepEqual(asked([Q, K, S], 3), []); // no such row
});
