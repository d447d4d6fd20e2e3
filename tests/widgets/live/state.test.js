import assert from "node:assert/strict";
import { test } from "node:test";
import {
  bare,
  cutOf,
  fragmentOf,
  isChanged,
  requestOf,
  START,
  stateOf,
  unchanged,
} from "../../../xformer/widgets/live/state.js";

const state = {
  ...START,
  input: "3 7",
  mask: "drawn",
  drawn: ["0.1"],
  ablate: ["encoder.1.attn.2"],
  cut: ["encoder.0.attn.*.1.0"],
  replace: { 1: "a,b" },
  positions: false,
  step: 60,
  layer: 1,
  query: 0,
};

test("a state survives the address, and defaults are left out of it", () => {
  assert.deepEqual(stateOf(`#${fragmentOf(state, START, 2)}`, START), { state, lesson: 2 });
  assert.equal(fragmentOf({ ...START, head: 3 }, START), "head=3");
});

test("invalid values of an address keep their defaults", () => {
  assert.deepEqual(stateOf("#layer=-1&query=x&step=1e3&other=1&lesson=x&replace=%E0%A4%A", START), {
    state: START,
    lesson: null,
  });
});

test("changes of the model can be distinguished and undone, and leave the view alone", () => {
  assert.ok(isChanged(state));
  assert.deepEqual(unchanged(state), { ...START, input: "3 7", step: 60, layer: 1, query: 0 });
  assert.deepEqual(bare(state).replace, { 1: "a,b" });
});

test("a request has parsed edits, and a drawn mask inverts cells of the trained one", () => {
  const trace = new Map([["encoder.0.attn.scores", { shape: [1, 1, 2, 2], data: [0, -Infinity, 0, 0] }]]);
  const request = requestOf(
    { ...state, drawn: ["0.1", "1.0", "9.9"] },
    { sites: [{ kind: "attn", path: "encoder.0.attn" }] },
    () => ({ trace }),
  );
  assert.deepEqual(request.mask, [
    [true, true],
    [false, true],
  ]);
  assert.deepEqual([request.ablate, request.cut], [[["encoder.1.attn", 2]], [["encoder.0.attn", null, 1, 0]]]);
  assert.deepEqual(cutOf("decoder.0.self_attn.3.2.1"), ["decoder.0.self_attn", 3, 2, 1]);
});
