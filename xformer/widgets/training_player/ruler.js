// Draws the ruler below the frame: the best head's score and exact match over the steps, marks, and the current step.

import { fit } from "./picture.js";

/** @typedef {import("./state.js").State} State */
/** @typedef {import("./parts.js").Parts} Parts */

const RULER = { left: 34, right: 12, top: 20, bottom: 19 };

/** @param {State} state */
const span = (state) => state.place.ruler.width - RULER.left - RULER.right;
/** @param {State} state @param {number} step */
const rulerX = (state, step) => RULER.left + (span(state) * step) / Math.max(1, state.timeline.steps);

/** @param {State} state @param {Parts} parts */
export function drawRuler(state, parts) {
  const { timeline, theme } = state, { width, height } = state.place.ruler, { left, right, top, bottom } = RULER;
  const at = fit(parts.ruler, width, height, theme.dpr), floor = height - bottom, y = (/** @type {number} */ v) => floor - (floor - top) * v;
  at.fillStyle = theme.faint; at.fillRect(left, top, width - left - right, floor - top);
  at.font = state.font(10.5); at.fillStyle = theme.muted; at.textBaseline = "middle"; at.textAlign = "right";
  for (const v of [0, 0.5, 1]) {
    at.fillText(String(v), left - 6, y(v));
    at.strokeStyle = theme.line; at.lineWidth = 1; at.setLineDash(v === 0.5 ? [2, 3] : []);
    at.beginPath(); at.moveTo(left, y(v)); at.lineTo(width - right, y(v)); at.stroke();
  }
  at.setLineDash([]);
  const [blue, orange] = [0, 1].map((i) => state.headHue(i));
  curve(at, timeline.exact.map(([step, v]) => [rulerX(state, step), y(v)]), orange, 2);
  curve(at, timeline.frames.map((frame, i) => [rulerX(state, frame.step), y(Math.max(0, timeline.bestAt(i).score))]), blue, 2.5);
  // where there are frames
  at.fillStyle = theme.muted;
  for (const frame of timeline.frames) at.fillRect(rulerX(state, frame.step) - 0.5, floor, 1, 4);
  at.textAlign = "center"; at.textBaseline = "alphabetic";
  const each = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000, 500000, 1e6, 2e6, 5e6]
    .find((n) => ((width - left - right) * n) / Math.max(1, timeline.steps) > 64) ?? timeline.steps;
  for (let s = 0; s <= timeline.steps; s += each) {
    at.textAlign = rulerX(state, s) > width - 24 ? "right" : "center"; // the last one stays inside
    at.fillText(s.toLocaleString("en"), Math.min(rulerX(state, s), width - (rulerX(state, s) > width - 24 ? 1 : 0)), height - 3);
  }
  let edge = -Infinity;
  for (const [step, words] of [...timeline.marks].sort((a, b) => a[0] - b[0])) {
    const x = rulerX(state, step);
    at.strokeStyle = theme.text; at.lineWidth = 1.25; at.setLineDash([4, 3]);
    at.beginPath(); at.moveTo(x, top - 4); at.lineTo(x, floor); at.stroke(); at.setLineDash([]);
    at.font = state.font(11.5, 600);
    const wide = at.measureText(words).width, from = Math.max(edge + 14, Math.min(x - 4, width - wide - 4));
    if (from + wide > width) continue;
    at.textAlign = "left"; at.fillStyle = theme.text; at.fillText(words, from, top - 9);
    edge = from + wide;
  }
  const x = rulerX(state, state.frame.step);
  at.strokeStyle = theme.background; at.lineWidth = 6; at.beginPath(); at.moveTo(x, top); at.lineTo(x, floor); at.stroke();
  at.strokeStyle = theme.primary; at.lineWidth = 3; at.beginPath(); at.moveTo(x, top); at.lineTo(x, floor); at.stroke();
  at.fillStyle = theme.primary; at.strokeStyle = theme.background; at.lineWidth = 2;
  at.beginPath(); at.arc(x, floor, 8, 0, 7); at.fill(); at.stroke();
  parts.ruler.setAttribute("aria-valuemax", String(timeline.steps));
  parts.ruler.setAttribute("aria-valuenow", String(state.frame.step));
  parts.ruler.setAttribute("aria-valuetext", `step ${state.frame.step} of ${timeline.steps}`);
}

/** @param {CanvasRenderingContext2D} at @param {number[][]} points @param {string} colour @param {number} width */
function curve(at, points, colour, width) {
  at.strokeStyle = colour; at.fillStyle = colour; at.lineWidth = width; at.lineJoin = "round";
  at.beginPath();
  points.forEach(([x, y], i) => (i ? at.lineTo(x, y) : at.moveTo(x, y)));
  at.stroke();
  if (points.length && points.length < 40) for (const [x, y] of points) { at.beginPath(); at.arc(x, y, width * 0.9, 0, 7); at.fill(); }
}

/** The frame nearest to the pointer. @param {State} state @param {Parts} parts @param {PointerEvent} event */
export function frameAt(state, parts, event) {
  const x = event.clientX - parts.ruler.getBoundingClientRect().left - RULER.left, { frames, steps } = state.timeline;
  const step = (x / span(state)) * steps;
  let found = 0;
  frames.forEach((frame, i) => { if (Math.abs(frame.step - step) < Math.abs(frames[found].step - step)) found = i; });
  return found;
}
