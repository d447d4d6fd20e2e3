// Steps through the predictions of several models: buttons, the timeline, and the likeliest tokens of the selected step.

import { button, element, labelled, parse } from "../shared.js";
import { drawBars } from "./bars.js";
import { Timeline, judged, letter } from "./timeline.js";

/** @type {[string, number][]} */
const SPEEDS = [["½×", 1600], ["1×", 800], ["2×", 400], ["4×", 200]]; // milliseconds per step
const REST = 220; // milliseconds after which a step is reported to the server

export class StepRuler {
  speed = 1; // an index of SPEEDS
  playButton = button("▶ Play", () => (this.playing ? this.pause(true) : this.play()), "play");
  back = labelled("‹", "one step back (←)", () => this.go(this.at - 1), "small");
  next = labelled("›", "one step forward (→)", () => this.go(this.at + 1), "small");
  step = element("span", "step");
  toDivergence = button("", () => this.go(this.data.divergence));
  speedButton = button(SPEEDS[1][0], () => { this.speed = (this.speed + 1) % SPEEDS.length; this.drawControls(); });
  bars = element("div", "bars");

  /** @type {(choice: { step: number, order: number }) => void} */ send = () => {};
  /** @type {any} */ data;
  width = 0;
  /** @type {ReturnType<typeof setTimeout>} */ timer;

  constructor(parent) {
    this.at = 0;
    this.playing = false;
    this.root = element("div", "sr");
    const bar = element("div", "controls"), stage = element("div", "stage");
    this.toDivergence.title = "go to the first step with different predictions (D)";
    bar.append(this.playButton, this.back, this.next, this.step, this.toDivergence, this.speedButton);
    this.timeline = new Timeline((step) => this.go(step));
    stage.append(this.timeline.root, this.bars);
    this.root.append(bar, stage);
    this.root.addEventListener("keydown", (event) => this.key(event));
    parent.append(this.root);
    this.resizing = new ResizeObserver(() => { if (this.data && Math.abs(this.root.clientWidth - this.width) > 0.5) this.draw(); });
    this.resizing.observe(this.root);
  }

  destroy() {
    this.resizing.disconnect();
    clearTimeout(this.resting);
    clearTimeout(this.timer);
    this.root.remove();
  }

  get last() { return Math.max(...this.data.models.map((model) => model.predicted.length)) - 1; }
  hue(index) { return this.data.hues[index % this.data.hues.length][this.dark ? 1 : 0]; }
  pairHue(index) {
    return this.data.pairs.length === 1 ? "var(--st-text-color)" : this.data.pair_hues[index % this.data.pair_hues.length][this.dark ? 1 : 0];
  }

  update(data) {
    if (!data || !Array.isArray(data.models) || !data.models.length) return;
    const text = JSON.stringify(data);
    this.data = data;
    if (this.order !== data.order) { // Python sets the step: a link, other models, another input
      this.order = data.order;
      this.pause(false);
      this.at = Math.max(0, Math.min(data.start, this.last));
      clearTimeout(this.resting);
    }
    if (text === this.text && this.drawnIn === this.theme()) return; // a rerun without changes
    this.text = text;
    this.draw();
  }

  theme() { return getComputedStyle(this.root).getPropertyValue("--st-background-color").trim() || "#fff"; }

  draw() { // everything, after a change of models, theme or size
    this.width = this.root.clientWidth;
    if (!this.width) return;
    this.drawnIn = this.theme();
    const [r, g, b] = parse(this.drawnIn);
    this.dark = 0.2126 * r + 0.7152 * g + 0.0722 * b < 110;
    this.isFramed = getComputedStyle(this.root).getPropertyValue("--in-frame").trim() !== "";
    this.bars.hidden = !this.data.detail || (this.isFramed && window.innerHeight <= 600); // slides do not scroll
    this.timeline.draw(this);
    this.drawStep();
  }

  drawStep() {
    if (!this.width) return;
    this.timeline.drawCursor(this);
    if (!this.bars.hidden) drawBars(this);
    this.drawControls();
  }

  drawControls() {
    const { data, at } = this, { divergence } = data;
    this.playButton.textContent = this.playing ? "❚❚ Pause" : "▶ Play";
    this.playButton.disabled = this.last < 1;
    this.back.disabled = at === 0;
    this.next.disabled = at === this.last;
    this.step.textContent = `${data.is_decoder ? "step" : "position"} ${at} of ${this.last}`;
    this.toDivergence.disabled = divergence === null;
    this.toDivergence.textContent = divergence === null ? "⚑ No difference" : `⚑ First difference: ${divergence}`;
    this.speedButton.textContent = SPEEDS[this.speed][0];
    this.speedButton.title = "speed of Play";
  }

  describe() { // the step in words, for screen readers
    const { data, at } = this, says = data.models.map((model) => at >= model.predicted.length ? `${letter(model.name)} has ended`
      : `${letter(model.name)} predicts ${data.labels[model.predicted[at]]}, ${judged(model, at) ? (model.answer[at] === model.predicted[at] ? "right, " : "wrong, ") : ""}probability ${model.probability[at].toFixed(2)}`);
    return `step ${at} of ${this.last}${at === data.divergence ? ", the first difference" : ""}: ${says.join("; ")}`;
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || !this.data) return;
    const moves = { ArrowLeft: this.at - 1, ArrowDown: this.at - 1, ArrowRight: this.at + 1, ArrowUp: this.at + 1,
      PageDown: this.at - 5, PageUp: this.at + 5, Home: 0, End: this.last };
    if (event.key in moves) this.go(moves[event.key]);
    else if (event.key.toLowerCase() === "d" && this.data.divergence !== null) this.go(this.data.divergence);
    else if (event.key === " " && !(event.target instanceof HTMLButtonElement)) { if (this.playing) this.pause(true); else this.play(); }
    else return;
    event.preventDefault();
  }

  go(step) { // by the user
    this.pause(false);
    this.show(step);
    this.rest();
  }

  show(step) {
    this.at = Math.max(0, Math.min(step, this.last));
    this.drawStep();
  }

  play() {
    if (this.last < 1) return;
    if (this.at >= this.last) this.show(0);
    this.playing = true;
    this.drawControls();
    this.rest();
    const tick = () => {
      this.timer = setTimeout(() => {
        if (!this.playing) return;
        this.show(this.at + 1);
        this.rest();
        if (this.at < this.last) tick();
        else this.pause(true);
      }, SPEEDS[this.speed][1]);
    };
    clearTimeout(this.timer);
    tick();
  }

  pause(reports) {
    clearTimeout(this.timer);
    if (!this.playing) return;
    this.playing = false;
    this.drawControls();
    if (reports) this.rest();
  }

  rest() { // report a step to the server once the ruler rests on it; not during fast playback
    clearTimeout(this.resting);
    if (this.playing && SPEEDS[this.speed][1] < 3 * REST) return;
    this.resting = setTimeout(() => {
      if (this.sent === `${this.order}|${this.at}`) return;
      this.sent = `${this.order}|${this.at}`;
      this.send({ step: this.at, order: this.order });
    }, REST);
  }
}
