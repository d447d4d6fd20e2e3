import assert from "node:assert/strict";
import { test } from "node:test";
import { shown, Tensors } from "../../../xformer/widgets/code_view/tensors.js";

/** @param {Record<string, any>[]} operations @param {number[][]} arrays */
function tensorsOf(operations, arrays) {
  let offset = 0;
  const all = operations.map((one, at) => {
    const placed = { inputs: [], how: null, axes: [], name: "op", module: "", kept: one.shape, ...one, offset };
    offset += arrays[at].length;
    return placed;
  });
  return new Tensors(/** @type {any} */ ({ operations: all, operands: {} }), Float32Array.from(arrays.flat()));
}

test("a product is the sum of its terms, largest first", () => {
  const how = { kind: "product", terms: ["ik", "kj", "ij"] };
  const tensors = tensorsOf(
    [{ shape: [1, 3] }, { shape: [3, 2] }, { shape: [1, 2], inputs: [0, 1], how }],
    [
      [1, 2, 3],
      [1, 4, 2, 5, 3, 6],
      [14, 32],
    ],
  );
  assert.deepEqual(tensors.arithmetic(2, [0, 1]), [
    "sum of 3 products:",
    "3.000 × 6.000  +  2.000 × 5.000  +  1.000 × 4.000",
    "= 32.000",
  ]);
});

test("an operand of one row is broadcast, and an einsum follows its letters", () => {
  const how = { kind: "product", terms: ["bqhd", "bkhd", "bhqk"] };
  const tensors = tensorsOf(
    [{ shape: [1, 2, 1, 2] }, { shape: [1, 1, 1, 2] }, { shape: [1, 1, 2, 1], inputs: [0, 1], how }],
    [
      [1, 2, 3, 4],
      [5, 6],
      [17, 39],
    ],
  );
  assert.match(tensors.arithmetic(2, [0, 0, 1, 0])[1], /4.000 × 6.000 {2}\+ {2}3.000 × 5.000/);
});

test("a softmax divides by the sum of its row", () => {
  const how = { kind: "softmax", axis: 1 };
  const tensors = tensorsOf(
    [{ shape: [1, 2] }, { shape: [1, 2], inputs: [0], how }],
    [
      [0, Math.log(3)],
      [0.25, 0.75],
    ],
  );
  assert.equal(tensors.arithmetic(1, [0, 1]).at(-1), "= 3.000 ÷ 4.000 = 0.750");
});

test("a masked cell says what was replaced", () => {
  const how = { kind: "mask", value: "-inf" };
  const tensors = tensorsOf(
    [{ shape: [1, 2] }, { shape: [2] }, { shape: [1, 2], inputs: [0, 1], how }],
    [
      [1, 2],
      [0, 1],
      [1, -Infinity],
    ],
  );
  assert.deepEqual(tensors.arithmetic(2, [0, 1]), ["masked: 2.000 is replaced by −∞"]);
  assert.deepEqual(tensors.arithmetic(2, [0, 0]), ["not masked: 1.000 stays"]);
});

test("what was cut off has no arithmetic", () => {
  const how = { kind: "function", input: 0 };
  const tensors = tensorsOf(
    [
      { shape: [4], kept: [2] },
      { shape: [4], kept: [2], inputs: [0], how },
    ],
    [
      [1, 2],
      [2, 4],
    ],
  );
  assert.equal(tensors.at(0, [3]), undefined);
  assert.deepEqual(tensors.arithmetic(1, [3]), []);
});

test("numbers are short", () => {
  assert.deepEqual([0, -1.5, 123.456, 1e-5, Number.NaN, -Infinity].map(shown), [
    "0.000",
    "−1.500",
    "123.5",
    "1.00e−5",
    "NaN",
    "−∞",
  ]);
});
