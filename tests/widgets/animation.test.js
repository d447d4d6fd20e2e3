import assert from "node:assert/strict";
import { test } from "node:test";
import { Clock } from "../../xformer/widgets/animation.js";

test("a clock steps to the ends of its parts, and knows their progress", () => {
  const parts = [
      { from: 0, takes: 2 },
      { from: 2, takes: 1 },
    ],
    clock = new Clock(parts);
  assert.ok(clock.isOver);
  clock.step(-1);
  assert.deepEqual([clock.now, clock.part, clock.done(parts[1])], [2, parts[1], 0]);
  clock.now = 1;
  assert.deepEqual([clock.part, clock.done(parts[0])], [parts[0], 0.5]);
  clock.step(1);
  clock.step(1);
  clock.step(1);
  assert.equal(clock.now, 3);
});
