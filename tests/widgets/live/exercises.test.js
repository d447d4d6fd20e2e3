import assert from "node:assert/strict";
import { test } from "node:test";
import { changesOf, leader, outcome, verdict } from "../../../xformer/widgets/live/exercises.js";
import { START } from "../../../xformer/widgets/live/state.js";

const path = "encoder.0.attn";
// A model of "3 7" with one head, which answers wrongly once that head is ablated.
const live = {
  model: { labels: ["pad", "3", "7"], sites: [{ path, title: "layer 1", heads: 1 }], steps: [], defaultInput: "3 7" },
  parse: () => ({ source: [1, 2] }),
  trace: () => ({ trace: new Map() }),
  run: (/** @type {any} */ { ablate }) => ({
    labels: ["3", "7"],
    tokens: [1, 2],
    right: [2, 1],
    predicted: ablate.length ? [1, 1] : [2, 1],
    patterns: {
      [path]: [
        [
          [0.2, 0.8],
          [0.5, 0.5],
        ],
      ],
    },
  }),
};
const exercise = { goal: "breaks", input: "3 7", start: {}, allow: ["ablate"], at_most: 1 };
const state = { ...START, input: "3 7" },
  ablated = { ...state, ablate: [`${path}.0`] };

test("an exercise is solved by a change that it allows", () => {
  assert.deepEqual(verdict(exercise, ablated, live), {
    solved: true,
    sentence: "With 1 change the answer becomes “3 3”; right would be “7 3”.",
  });
  assert.match(verdict(exercise, state, live).sentence, /^Nothing is changed yet/);
  assert.match(
    verdict(exercise, { ...state, positions: false }, live).sentence,
    /used positions off; here only ablations count/,
  );
  assert.match(verdict({ ...exercise, at_most: 0 }, ablated, live).sentence, /made 1 change; at most 0 are allowed/);
  assert.match(verdict(exercise, { ...ablated, input: "3" }, live).sentence, /is about the input “3 7”, and you have “3”/);
});

test("attention counts as most only with a clear lead", () => {
  const asked = { ...exercise, goal: "attends", site: path, query: 0, key: 1 };
  assert.ok(verdict(asked, state, live).solved);
  assert.match(verdict({ ...asked, query: 1 }, state, live).sentence, /looks at several keys equally, with weight 0\.50/);
  assert.deepEqual(leader([0.2, 0.5, 0.3]), { key: 1, weight: 0.5, lead: 0.2 });
});

test("the outcome of a prediction is read from the run", () => {
  const found = outcome({ ask: "cell", site: path, head: 0, query: 0, state: {}, input: "3 7" }, live);
  assert.deepEqual([found.truth, found.sentence], [1, "Query 0 looks most at key 1, “7”, with weight 0.80."]);
});

test("repeated changes count once", () => {
  const twice = { ...state, ablate: ["a.0", "a.0", "a.1"], mask: "drawn", drawn: ["0.1", "1.0"], positions: false };
  assert.deepEqual(changesOf(twice), { ablate: 2, cut: 0, mask: 2, positions: 1, replace: 0, step: 0 });
});
