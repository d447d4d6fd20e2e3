import assert from "node:assert/strict";
import { test } from "node:test";
import { argmax, concat, erf, linear, softmax, split, tensor } from "../../../xformer/widgets/live/tensors.js";

const matrix = (/** @type {number[][]} */ rows) => tensor([rows.length, rows[0].length], Float32Array.from(rows.flat()));

test("linear multiplies with the chosen rows of the transposed weight and adds the bias", () => {
  const [x, weight, bias] = [
    matrix([[1, 2]]),
    matrix([
      [3, 4],
      [5, 6],
      [7, 8],
    ]),
    tensor([3], Float32Array.of(10, 20, 30)),
  ];
  assert.deepEqual([...linear(x, weight, bias).data], [21, 37, 53]);
  assert.deepEqual([...linear(x, weight, null, 1, 2).data], [17]);
});

test("softmax gives shares of each row, and 0 for a row in which everything is masked", () => {
  const { data } = softmax(
    matrix([
      [0, Math.log(3), -Infinity],
      [-Infinity, -Infinity, -Infinity],
    ]),
  );
  assert.deepEqual(
    Array.from(data, (p) => Number(p.toFixed(6))),
    [0.25, 0.75, 0, 0, 0, 0],
  );
});

test("heads are split by features and concatenated again", () => {
  const x = matrix([
      [1, 2, 3, 4],
      [5, 6, 7, 8],
    ]),
    heads = split(x, 2);
  assert.deepEqual([...heads.data], [1, 2, 5, 6, 3, 4, 7, 8]);
  assert.deepEqual(concat(heads), x);
});

test("argmax is the first of equal values", () => assert.equal(argmax([1, 3, 3]), 1));

test("erf is exact in both of its expansions", () => {
  const known = { 0.1: 0.1124629160182849, 1: 0.8427007929497149, 2.4: 0.999311486103355, 2.6: 0.9997639655834707, 6.5: 1 };
  for (const [x, value] of Object.entries(known)) {
    assert.ok(Math.abs(erf(Number(x)) - value) < 1e-14, `erf(${x})`);
    assert.equal(erf(-Number(x)), -erf(Number(x)));
  }
});
