import assert from "node:assert/strict";
import { test } from "node:test";
import { float16, ModelFile } from "../../../xformer/widgets/live/model_file.js";

test("each float16 is one unit in the last place above the one before", () => {
  assert.deepEqual([0x3c00, 0xc000, 0x7bff, 0x0001].map(float16), [1, -2, 65504, 2 ** -24]);
  for (let bits = 0; bits < 0x7bff; bits++) {
    const unit = 2 ** (Math.max(1, bits >> 10) - 25);
    assert.equal(float16(bits + 1) - float16(bits), unit);
    assert.equal(float16(bits + 0x8000), -float16(bits));
  }
});

// Weights a [1, 2] = (1, −2) and b [1] = 0.5: trained as float32, and a snapshot with q = (127, −127), (0,) and the scales 3 and 9.
const trained = new Uint8Array(Float32Array.of(1, -2, 0.5).buffer);
const planes = [0, 1, 2, 3].flatMap((byte) => [0, 1, 2].map((i) => trained[4 * i + byte]));
const scales = new Uint8Array(Float32Array.of(3, 9).buffer),
  differences = new Uint8Array(Int8Array.of(127, -127, 0).buffer);
const snapshots = [
  { step: 7, kind: "delta8", at: 12 },
  { step: 9, kind: "float32", at: 0 },
];
const file = new ModelFile(
  {
    weights: [
      ["a", [1, 2]],
      ["b", [1]],
    ],
    snapshots,
  },
  Uint8Array.from([...planes, ...scales, ...differences]),
);

test("weights are the trained ones, or those of a snapshot as differences from them", () => {
  assert.deepEqual([...file.weights().get("a").data, ...file.weights().get("b").data], [1, -2, 0.5]);
  assert.deepEqual([...file.weights(7).get("a").data, ...file.weights(7).get("b").data], [4, -5, 0.5]);
  assert.deepEqual(file.steps, [7, 9]);
  assert.throws(() => file.weights(8), /has the training steps 7, 9, got 8/);
});
