// The state of one ruler: which step is shown, whether it plays, and when the server hears of a step.

import { element, parse } from "../shared.js";

const SVG = "http://www.w3.org/2000/svg";
export const shape = (tag, attributes) => {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
};
export const SPEEDS = [["½×", 1600], ["1×", 800], ["2×", 400], ["4×", 200]]; // milliseconds a step
const REST = 220; // milliseconds after which a step counts as rested on
export const letter = (name) => name.split(" ")[0]; // models are called "A · …"

export class Base {
  constructor(parent) {
    this.at = 0;
    this.speed = 1;
    this.playing = false;
    this.order = null;
    this.text = null;
    this.root = element("div", "sr");
    this.build();
    parent.append(this.root);
    this.resizing = new ResizeObserver(() => {
      if (this.data && Math.abs(this.root.clientWidth - this.width) > 0.5) this.draw();
    });
    this.resizing.observe(this.root);
  }

  destroy() {
    this.resizing.disconnect();
    clearTimeout(this.resting);
    clearTimeout(this.timer);
    this.root.remove();
  }

  get steps() { return Math.max(...this.data.models.map((model) => model.predicted.length)); }
  get isFramed() { return getComputedStyle(this.root).getPropertyValue("--in-frame").trim() !== ""; }
  get isLow() { return window.innerHeight <= 600 && this.isFramed; }
  get last() { return this.steps - 1; }

  update(data) {
    if (!data || !Array.isArray(data.models) || !data.models.length) return;
    const text = JSON.stringify(data);
    this.data = data;
    if (this.order !== data.order) { // Python says where to go: a link, other models, another input
      this.order = data.order;
      this.pause(false);
      this.at = Math.max(0, Math.min(data.start, this.last));
      clearTimeout(this.resting);
    }
    this.readTheme();
    if (text === this.text && this.drawnIn === this.look) return; // a rerun that changed nothing
    this.text = text;
    this.draw();
  }

  readTheme() {
    const style = getComputedStyle(this.root), ground = style.getPropertyValue("--st-background-color").trim() || "#fff";
    const [r, g, b] = parse(ground);
    this.dark = 0.2126 * r + 0.7152 * g + 0.0722 * b < 110;
    this.look = `${ground}|${this.dark}`;
  }

  hue(model) { return this.data.hues[model % this.data.hues.length][this.dark ? 1 : 0]; }
  pairHue(pair) {
    return this.data.pairs.length === 1 ? "var(--st-text-color)" : this.data.pair_hues[pair % this.data.pair_hues.length][this.dark ? 1 : 0];
  }

  go(step) { // a visitor goes to a step
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

  pause(says) {
    clearTimeout(this.timer);
    if (!this.playing) return;
    this.playing = false;
    this.drawControls();
    if (says) this.rest();
  }

  rest() { // tell the server where the ruler rests, once it does; a fast play goes on before that
    clearTimeout(this.resting);
    if (this.playing && SPEEDS[this.speed][1] < 3 * REST) return;
    this.resting = setTimeout(() => {
      if (this.sent === `${this.order}|${this.at}`) return;
      this.sent = `${this.order}|${this.at}`;
      this.send({ step: this.at, order: this.order });
    }, REST);
  }

  draw() { // everything: other models, theme or size
    this.width = this.root.clientWidth;
    if (!this.width) return;
    this.readTheme();
    this.drawnIn = this.look;
    for (const [name, holds] of [["framed", this.isFramed], ["low", this.isLow], ["many", this.data.models.length > 2]]) this.root.classList.toggle(name, holds);
    this.drawTimeline();
    this.drawStep();
  }

  drawStep() {
    if (!this.width) return;
    this.drawCursor();
    if (this.data.detail) this.drawNow();
    this.drawControls();
  }
}
