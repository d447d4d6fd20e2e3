import assert from "node:assert/strict";
import { test } from "node:test";
import { BareInput, NONE, TaskInput } from "../../../xformer/widgets/live/tasks.js";

const digits = Array.from("0123456789");
const input = (/** @type {string} */ name, architecture = "encoder", more = {}) =>
  new TaskInput(
    {
      name,
      architecture,
      symbols: 9,
      max_len: 3,
      pad: 0,
      start: 11,
      end: 10,
      unit: "numbers",
      separator: " ",
      example: "3 1",
      images: [],
      labels: digits,
      typedLabels: digits.slice(1),
      ...more,
    },
    { architecture, max_len: 8, image: 0 },
  );
const framed = (/** @type {TaskInput} */ task, /** @type {string} */ text) => task.frame(task.read(text));

test("each architecture lays out the source and the answer in its own way", () => {
  const { stream, target, labels } = framed(input("reverse"), "3, 7 1");
  assert.deepEqual([stream, target, labels], [[3, 7, 1, 10], null, [1, 7, 3, 10]]);
  const decoder = framed(input("sort", "decoder"), "3 1");
  assert.deepEqual(
    [decoder.stream, decoder.tokens, decoder.labels],
    [
      [3, 1, 11, 1, 3],
      [3, 1, 11],
      [NONE, NONE, 1, 3, 10],
    ],
  );
  const pair = framed(input("copy", "encoder-decoder"), "3 1");
  assert.deepEqual(
    [pair.stream, pair.target, pair.labels],
    [
      [3, 1, 10],
      [11, 3, 1],
      [3, 1, 10],
    ],
  );
});

test("answers follow the rule of the task", () => {
  const answer = (/** @type {string} */ name, /** @type {string} */ text, more = {}) =>
    framed(input(name, "encoder", { end: null, ...more }), text).answer;
  assert.deepEqual(answer("addition", "99+1="), [1, 1, 2]); // 100 from its last digit; the digit d is the token d + 1
  assert.deepEqual(answer("parity", "1 1 0 1"), [2, 1, 1, 2]);
  assert.deepEqual(answer("brackets", "(())"), [4, 5, 4, 3]);
  assert.deepEqual(answer("brackets", "())("), [4, 3, 7, 7]); // lost once the depth is below 0
  assert.deepEqual(answer("modular", "6 + 8", { symbols: 9 }), [6]); // 14 mod 9 = 5
  assert.deepEqual(answer("copy-twice", "3 1"), [3, 1, 3, 1]);
});

test("an input that cannot be read is refused in a sentence", () => {
  const refusals = {
    "": "Type some numbers from 1 to 9, for example 3 1.",
    "3 12": "“12” is not one; try 3 1.",
    "1 1 1 1 1 1 1 1": "reads at most 8 tokens, and these 8 numbers need 9",
  };
  for (const [text, sentence] of Object.entries(refusals))
    assert.throws(
      () => framed(input("reverse"), text),
      (error) => String(error).includes(sentence),
      text,
    );
});

test("a model without a task reads token ids, on both sides of an encoder-decoder", () => {
  const config = { architecture: "encoder-decoder", vocab_size: 20, max_len: 4, image: 0 };
  assert.deepEqual(new BareInput(config).read("3 7 > 1"), [[3, 7], [1]]);
  assert.throws(() => new BareInput(config).read("3 7"), /reads two sequences/);
  assert.throws(() => new BareInput({ ...config, architecture: "encoder" }).read("3 20"), /1 to 4 tokens from 0 to 19/);
});
