import assert from "node:assert/strict";
import { test } from "node:test";
import { actsOf, layOut, shownFrom, termsOf, formatted } from "../../../xformer/widgets/matrices/layout.js";

const matrix = (/** @type {string} */ name, more = {}) => ({
  name,
  title: name,
  about: "",
  drawn: true,
  rows: ["0 · a", "1 · b"],
  columns: ["1", "2"],
  sums: null,
  made: null,
  ...more,
});

test("matrices stand side by side, or below each other where the window is narrow", () => {
  const two = [matrix("X"), matrix("Y"), matrix("hidden", { drawn: false })];
  const wide = layOut(two, 600),
    narrow = layOut(two, 200);
  assert.deepEqual([...wide.places.keys()], ["X", "Y"]);
  assert.equal(wide.places.get("Y").y, wide.places.get("X").y);
  assert.ok(wide.places.get("Y").x >= wide.places.get("X").x + 2 * wide.cell);
  assert.deepEqual([wide.places.get("X").named, wide.places.get("Y").named], [true, false]); // the same rows are named once
  assert.ok(narrow.places.get("Y").y > narrow.places.get("X").y + 2 * narrow.row);
});

test("a product has its factors, by rows or by columns, and is computed cell by cell", () => {
  const operands = {
    q: { values: [[1, 2]] },
    K: {
      values: [
        [3, 4],
        [5, null],
      ],
    },
  };
  const find = (/** @type {"q" | "K"} */ name) => operands[name];
  const made = { op: "product", left: "q", right: "K", by: "rows", divide: 2 };
  assert.deepEqual(termsOf(find, { made }, 0, 1), {
    terms: [
      [1, 5],
      [2, 0],
    ],
    sum: 5,
    divide: 2,
  });
  assert.deepEqual(termsOf(find, { made: { ...made, by: "columns" } }, 0, 0).terms, [
    [1, 3],
    [2, 5],
  ]);
  const acts = actsOf([matrix("S", { made }), matrix("A", { made: { op: "softmax", of: "S" } }), matrix("X")], 1, 0);
  assert.deepEqual(
    acts.map(({ matrix: { name }, r, c, seconds }) => [name, r, c, seconds]),
    [
      ["S", 1, 0, 2.6],
      ["S", 1, 1, 0.4],
      ["A", 1, null, 3.6],
    ],
  );
  assert.deepEqual([shownFrom(acts[0], 0), shownFrom(acts[2], 1)], [0.9, 0.6 + 0.35 / 2]);
});

test("numbers are short, with a minus sign", () => {
  assert.deepEqual(
    [null, -0.001, -1.256, 12345].map((value) => formatted(value)),
    ["−∞", "0.00", "−1.26", "1.2e4"],
  );
});
