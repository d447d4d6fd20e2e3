import assert from "node:assert/strict";
import { test } from "node:test";
import { continueText, decode } from "../../../xformer/widgets/live/decoding.js";
import { tensor } from "../../../xformer/widgets/live/tensors.js";

const config = { architecture: "decoder", vocab_size: 6, max_len: 4, end_token: 5 };
const read = /** @type {number[][]} */ ([]);
const next = (/** @type {number[]} */ tokens) => {
  // a model that counts up
  read.push(tokens);
  const logits = tensor([1, tokens.length, 6], new Float32Array(tokens.length * 6));
  tokens.forEach((token, at) => {
    logits.data[at * 6 + Math.min(5, token + 1)] = 9;
  });
  return new Map([["logits", logits]]);
};
const tokens = (/** @type {{ token: number }[]} */ steps) => steps.map(({ token }) => token);

test("decoding stops at the end token, after the most steps, or where the input is longest", () => {
  assert.deepEqual(tokens(decode(config, { tokens: [3] }, next)), [4, 5]);
  assert.deepEqual(tokens(decode(config, { tokens: [1] }, next, 2)), [2, 3]);
  assert.deepEqual(tokens(decode({ ...config, end_token: null }, { tokens: [0, 0] }, next)), [1, 2, 3]);
});

test("an encoder predicts at each of its positions in one run", () => {
  assert.deepEqual(tokens(decode({ ...config, architecture: "encoder" }, { stream: [0, 2, 1] }, next)), [1, 3, 2]);
});

test("a text is continued from its end where it exceeds the context", () => {
  read.length = 0;
  assert.deepEqual(tokens(continueText({ ...config, end_token: null }, [1, 1, 1, 1, 0], next, 3)), [1, 2, 3]);
  assert.deepEqual(read, [
    [1, 1, 1, 0],
    [1, 1, 0, 1],
    [1, 0, 1, 2],
  ]);
});
