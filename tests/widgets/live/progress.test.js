import assert from "node:assert/strict";
import { test } from "node:test";
import {
  linksOf,
  notBegun,
  parseProgress,
  readProgress,
  shapeOf,
  summary,
  textOf,
  writeProgress,
} from "../../../xformer/widgets/live/progress.js";

const lesson = {
  name: "masks",
  next: { name: "positions" },
  app: { link: "/attention?model=reverse" },
  steps: [[{ kind: "text" }], [{ kind: "predict", choices: ["a", "b"] }], [{ kind: "exercise" }], [{ kind: "exercise" }]].map(
    (parts) => ({ parts }),
  ),
};
const shape = shapeOf(lesson, ({ choices }) => choices.length);
const begun = { step: 2, done: false, solved: new Set([3]), answers: new Map([[1, 1]]) };
const stored = JSON.parse(textOf(begun, shape));
const read = (/** @type {any} */ value) => parseProgress(typeof value === "string" ? value : JSON.stringify(value), shape);

/** @param {any} storage */
const withStorage = (storage, act = () => {}) => {
  Object.defineProperty(globalThis, "localStorage", { configurable: true, ...storage });
  act();
};

test("the shape of a lesson has the steps with tasks", () => {
  assert.deepEqual(shape, { steps: 4, exercises: [2, 3], predictions: { 1: 2 } });
});

test("what is written is read again", () => {
  assert.deepEqual(read(stored), begun);
  assert.equal(read({ ...stored, step: 4 }).done, true);
});

test("damaged and foreign values count as a lesson not yet begun", () => {
  for (const value of ["", "{", "null", "7", "[]", "x".repeat(20_000), { ...stored, version: 2 }, { ...stored, steps: 5 }]) {
    assert.deepEqual(read(value), notBegun());
  }
  for (const step of [-1, 5, 1.5, "2", null]) assert.deepEqual(read({ ...stored, step }), notBegun());
});

test("tasks that the lesson does not have are ignored", () => {
  const found = read({ ...stored, solved: [0, 2, "3", 99], answers: { 0: 1, 1: 2, x: 0 } });
  assert.deepEqual(found, { ...begun, solved: new Set([2]), answers: new Map() });
  for (const value of [7, "2", null]) assert.deepEqual(read({ ...stored, solved: value, answers: value }).solved, new Set());
});

test("a storage that is full or forbidden is ignored", () => {
  const kept = new Map();
  const fake = {
    getItem: (/** @type {string} */ key) => kept.get(key) ?? null,
    setItem: (/** @type {string} */ key, /** @type {string} */ text) => kept.set(key, text),
    removeItem: (/** @type {string} */ key) => kept.delete(key),
  };
  withStorage({ value: fake }, () => {
    writeProgress("masks", shape, begun);
    assert.deepEqual(readProgress("masks", shape), begun);
    assert.deepEqual(readProgress("heads", shape), notBegun());
    writeProgress("masks", shape, notBegun());
    assert.equal(kept.size, 0);
  });
  const full = () => {
    throw new Error("QuotaExceededError");
  };
  withStorage({ value: { ...fake, setItem: full } }, () => writeProgress("masks", shape, begun));
  withStorage({ get: full }, () => {
    writeProgress("masks", shape, begun);
    assert.deepEqual(readProgress("masks", shape), notBegun());
  });
});

test("the summary says how far the learner is", () => {
  assert.deepEqual(summary(notBegun(), shape), { text: "Not started", solved: "", share: 0 });
  assert.deepEqual(summary(begun, shape), { text: "Step 3 of 4", solved: "1 of 2 solved", share: 0.5 });
  assert.deepEqual(summary({ ...begun, done: true }, shape), { text: "Done", solved: "1 of 2 solved", share: 1 });
});

test("links lead only to where the page is served from", () => {
  const at = (/** @type {string} */ pathname, protocol = "http:") => linksOf({ protocol, pathname }, lesson);
  assert.deepEqual(at("/lesson/masks"), { learn: "/learn", next: "/lesson/positions", app: "/attention?model=reverse" });
  assert.deepEqual(at("/lab/lesson/masks").app, "/lab/attention?model=reverse");
  assert.deepEqual(at("/xformer/lessons/masks.html", "https:"), { next: "positions.html" });
  assert.deepEqual(linksOf({ protocol: "http:", pathname: "/lesson/masks" }, { name: "masks" }), { learn: "/learn" });
  for (const path of ["/lesson/heads", "/lessons/heads.html", "/masks.html", "/room/ABCDEF"]) assert.deepEqual(at(path), {});
  assert.deepEqual(at("/home/me/lesson/masks", "file:"), {});
});
