// Draws the ruler below the frame: the best head's score and exact match over the steps, marks, and the current step.

import { fit } from "./picture.js";

const RULER = { left: 34, right: 12, top: 20, bottom: 19 };

export const Ruler = (Base) => class extends Base {
  get span() { return this.at_.ruler.width - RULER.left - RULER.right; }
  rulerX(step) { return RULER.left + (this.span * step) / Math.max(1, this.film.steps); }
  stepAt(x) { return ((x - RULER.left) / this.span) * this.film.steps; }

  drawRuler() {
    const { film, theme } = this, { width, height } = this.at_.ruler, { left, right, top, bottom } = RULER;
    const at = fit(this.ruler, width, height, theme.dpr), floor = height - bottom, y = (v) => floor - (floor - top) * v;
    at.fillStyle = theme.faint; at.fillRect(left, top, width - left - right, floor - top);
    at.font = this.font(10.5); at.fillStyle = theme.muted; at.textBaseline = "middle"; at.textAlign = "right";
    for (const v of [0, 0.5, 1]) {
      at.fillText(String(v), left - 6, y(v));
      at.strokeStyle = theme.line; at.lineWidth = 1; at.setLineDash(v === 0.5 ? [2, 3] : []);
      at.beginPath(); at.moveTo(left, y(v)); at.lineTo(width - right, y(v)); at.stroke();
    }
    at.setLineDash([]);
    const [blue, orange] = [0, 1].map((i) => this.hue(i));
    this.curve(at, film.exact.map(([step, v]) => [this.rulerX(step), y(v)]), orange, 2);
    this.curve(at, film.frames.map((frame, i) => [this.rulerX(frame.step), y(Math.max(0, this.bestOf(i)))]), blue, 2.5);
    // where there are frames
    at.fillStyle = theme.muted;
    for (const frame of film.frames) at.fillRect(this.rulerX(frame.step) - 0.5, floor, 1, 4);
    at.textAlign = "center"; at.textBaseline = "alphabetic";
    const each = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000, 500000, 1e6, 2e6, 5e6]
      .find((n) => ((width - left - right) * n) / Math.max(1, film.steps) > 64) ?? film.steps;
    for (let s = 0; s <= film.steps; s += each) {
      at.textAlign = this.rulerX(s) > width - 24 ? "right" : "center"; // the last one stays inside
      at.fillText(s.toLocaleString("en"), Math.min(this.rulerX(s), width - (this.rulerX(s) > width - 24 ? 1 : 0)), height - 3);
    }
    let edge = -Infinity;
    for (const [step, words] of [...film.marks].sort((a, b) => a[0] - b[0])) {
      const x = this.rulerX(step);
      at.strokeStyle = theme.text; at.lineWidth = 1.25; at.setLineDash([4, 3]);
      at.beginPath(); at.moveTo(x, top - 4); at.lineTo(x, floor); at.stroke(); at.setLineDash([]);
      at.font = this.font(11.5, 600);
      const wide = at.measureText(words).width, from = Math.max(edge + 14, Math.min(x - 4, width - wide - 4));
      if (from + wide > width) continue;
      at.textAlign = "left"; at.fillStyle = theme.text; at.fillText(words, from, top - 9);
      edge = from + wide;
    }
    const x = this.rulerX(film.frames[this.at].step);
    at.strokeStyle = theme.background; at.lineWidth = 6; at.beginPath(); at.moveTo(x, top); at.lineTo(x, floor); at.stroke();
    at.strokeStyle = theme.primary; at.lineWidth = 3; at.beginPath(); at.moveTo(x, top); at.lineTo(x, floor); at.stroke();
    at.fillStyle = theme.primary; at.strokeStyle = theme.background; at.lineWidth = 2;
    at.beginPath(); at.arc(x, floor, 8, 0, 7); at.fill(); at.stroke();
    this.ruler.setAttribute("aria-valuemax", film.steps);
    this.ruler.setAttribute("aria-valuenow", film.frames[this.at].step);
    this.ruler.setAttribute("aria-valuetext", `step ${film.frames[this.at].step} of ${film.steps}`);
  }

  bestOf(frame) { return Math.max(-1, ...this.film.frames[frame].scores.flat()); }

  curve(at, points, colour, width) {
    at.strokeStyle = colour; at.fillStyle = colour; at.lineWidth = width; at.lineJoin = "round";
    at.beginPath();
    points.forEach(([x, y], i) => (i ? at.lineTo(x, y) : at.moveTo(x, y)));
    at.stroke();
    if (points.length && points.length < 40) for (const [x, y] of points) { at.beginPath(); at.arc(x, y, width * 0.9, 0, 7); at.fill(); }
  }

  frameAt(event) {
    const step = this.stepAt(event.clientX - this.ruler.getBoundingClientRect().left), { frames } = this.film;
    let found = 0;
    frames.forEach((frame, i) => { if (Math.abs(frame.step - step) < Math.abs(frames[found].step - step)) found = i; });
    return found;
  }
};
