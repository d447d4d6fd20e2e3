import assert from "node:assert/strict";
import { test } from "node:test";
import { folded, layerOf, pixels, scaleOf, shown, Tensors } from "../../../xformer/widgets/code_view/tensors.js";

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

test("lines without tensors are folded, but not those next to one with tensors", () => {
  const busy = Array.from({ length: 14 }, (_, at) => at === 6);
  assert.deepEqual(folded(busy), [
    [0, 1],
    [1, 5],
    [5, 6],
    [6, 7],
    [7, 8],
    [8, 14],
  ]);
  const blank = busy.map((_, at) => at === 7);
  assert.deepEqual(folded(busy, blank).slice(-2), [
    [6, 7],
    [7, 14],
  ]);
  assert.deepEqual(folded([true, false, false, true]), [
    [0, 1],
    [1, 2],
    [2, 3],
    [3, 4],
  ]);
});

test("a layer is a path up to its first number, as in Python", () => {
  assert.deepEqual(["model.layers.3.mlp.0", "h.11", "model.norm", "conv1d.weight", ""].map(layerOf), [
    "model.layers.3",
    "h.11",
    "",
    "",
    "",
  ]);
});

test("two modules share their colours, and what a mask adds does not spoil them", () => {
  const header = {
    operations: [
      { low: -1, high: 2 },
      { low: 0, high: 8 },
    ],
    counterparts: { 0: 1, 1: 0 },
  };
  assert.deepEqual(
    [0, 1].map((number) => scaleOf(header, number)),
    [
      [-1, 8],
      [-1, 8],
    ],
  );
  const words = Uint32Array.from({ length: 256 }, (_, at) => at),
    look = { diverging: { words }, sequential: { words } };
  const numbers = [0, 4, 8, -3e38, Number.NaN];
  const drawn = new Uint32Array(
    pixels({ rows: 1, columns: 5, index: () => [], at: (_, j) => numbers[j] }, [0, 8], look).buffer,
  );
  assert.deepEqual([...drawn], [0, 127, 253, 0xffd0d0d0, 254]);
});
