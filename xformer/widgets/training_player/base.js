// The state of a player: its packed timeline (xformer/viz/timeline.py), the shown frame, and whether it plays or follows a run.

import { contrast, element, hatching, headerOf, luminance, mix, palette, parse } from "../shared.js";

const still = matchMedia("(prefers-reduced-motion: reduce)");
const NEW_FRAMES_PER_SECOND = 14; // speed at which new frames are caught up with
export const SPEEDS = [["½×", 3], ["1×", 6], ["2×", 12], ["4×", 24]]; // frames per second

// Weights are encoded as 0…253 on the scale from 0 to 1; 254 is not a number, 255 masked.
class Film {
  constructor(bytes) {
    const [header, body] = headerOf(bytes);
    Object.assign(this, header);
    this.body = body;
    let offset = 0;
    for (const layer of this.layers) { layer.offset = offset; offset += layer.heads * layer.rows * layer.cols; }
    this.frameSize = offset;
    this.last = this.frames.length - 1;
  }

  plane(frame, layer, head) {
    const it = this.layers[layer], from = frame * this.frameSize + it.offset + head * it.rows * it.cols;
    return this.body.subarray(from, from + it.rows * it.cols);
  }

  scoreOf(frame, layer, head) { return this.frames[frame].scores[layer]?.[head]; }
  headName(layer, head) { return `${this.layers[layer].title} · head ${head + 1}`; }
  nearest(step) { // the last frame at or before a step, or the first frame
    let found = 0;
    this.frames.forEach((frame, i) => { if (frame.step <= step) found = i; });
    return found;
  }
}

export class Base {
  constructor(parent) {
    this.at = 0;            // the shown frame
    this.follows = true;    // whether it moves to the newest frame automatically
    this.playing = false;
    this.speed = 1;
    this.chosen = null;     // [layer, head] enlarged by the user
    this.order = null;
    this.want = null;       // the step requested by Python, until the user moves
    this.root = element("div", "tp");
    this.build();
    parent.append(this.root);
    this.resizing = new ResizeObserver(() => {
      if (this.film && Math.abs(this.root.clientWidth - this.width) > 0.5) this.draw();
    });
    this.resizing.observe(this.root);
  }

  destroy() {
    this.resizing.disconnect();
    clearTimeout(this.resting);
    clearTimeout(this.timer);
    this.root.remove();
  }

  update(bytes) {
    if (!bytes || bytes.length < 8) return;
    const old = this.film, film = new Film(bytes);
    const step = this.want ?? old?.frames[this.at]?.step ?? null;
    this.film = film;
    if (this.chosen && !(this.chosen[0] < film.layers.length && this.chosen[1] < film.layers[this.chosen[0]].heads)) this.chosen = null;
    if (this.order !== film.order) { // Python sets the step: a link, another run, a button
      this.order = film.order;
      this.follows = film.target === null;
      this.want = film.target; // its frame may not have arrived yet
      this.pause(false);
      this.at = film.target === null ? film.last : film.nearest(film.target);
    } else if (step !== null) this.at = film.nearest(step); // frames may have been inserted before it
    this.at = Math.max(0, Math.min(this.at, film.last));
    this.draw();
    if (this.follows && !this.playing && this.at < film.last) this.catchUp();
  }

  catchUp() { // show new frames one after the other, quickly
    if (still.matches) return this.show(this.film.last);
    clearTimeout(this.timer);
    const behind = this.film.last - this.at;
    this.timer = setTimeout(() => {
      if (!this.follows || this.playing) return;
      this.show(Math.min(this.film.last, this.at + Math.ceil(behind / 20)));
      if (this.at < this.film.last) this.catchUp();
    }, 1000 / NEW_FRAMES_PER_SECOND);
  }

  show(frame) {
    this.at = Math.max(0, Math.min(frame, this.film.last));
    this.drawFrame();
  }

  go(frame) { // by the user
    this.pause(false);
    this.follows = false;
    this.want = null;
    this.show(frame);
    this.rest();
  }

  play() {
    if (this.film.last < 1) return;
    if (this.at >= this.film.last) this.show(0);
    this.follows = false;
    this.want = null;
    this.playing = true;
    clearTimeout(this.resting);
    this.drawControls();
    const tick = () => {
      this.timer = setTimeout(() => {
        if (!this.playing) return;
        this.show(this.at + 1);
        if (this.at < this.film.last) return tick();
        this.pause(true);
      }, 1000 / SPEEDS[this.speed][1]);
    };
    clearTimeout(this.timer);
    tick();
  }

  pause(reports) {
    clearTimeout(this.timer);
    if (!this.playing) return;
    this.playing = false;
    if (this.at === this.film.last && this.film.live) this.follows = true;
    this.drawControls();
    if (reports) this.rest();
  }

  followAgain() {
    this.pause(false);
    this.want = null;
    this.follows = true;
    this.show(this.film.last);
    this.rest();
  }

  rest() { // report the frame to the server once the player rests
    clearTimeout(this.resting);
    this.resting = setTimeout(() => {
      if (this.playing) return;
      const [layer, head] = this.chosen ?? [null, null];
      this.send({ step: this.follows ? null : this.film.frames[this.at].step, layer, head });
    }, 220);
  }

  get head() { return this.chosen ?? this.film.best; }

  draw() { // everything, after new frames or a change of theme or size
    this.width = this.root.clientWidth;
    if (!this.width || !this.film.frames.length) return;
    this.readTheme();
    this.layOut();
    this.drawStatic();
    this.drawFrame();
  }

  drawFrame() {
    if (!this.width || !this.film.frames.length) return;
    this.drawStrip();
    this.drawHeads();
    this.drawRuler();
    this.drawControls();
  }

  readTheme() {
    const style = getComputedStyle(this.root), get = (name, fallback) => style.getPropertyValue(name).trim() || fallback;
    const ground = parse(get("--st-background-color", "#fff")), letters = parse(get("--st-text-color", "#111"));
    const primary = parse(get("--st-primary-color", "#2557d6"));
    const dpr = window.devicePixelRatio || 1, dark = luminance(ground) < 0.25;
    const key = [ground, letters, primary, dpr].join("|");
    if (this.theme?.key === key) return;
    this.theme = {
      key, dark, dpr, font: get("--st-font", "sans-serif"), background: mix(ground, ground, 0), text: mix(letters, letters, 0),
      muted: mix(ground, letters, 0.66), line: mix(ground, letters, 0.22), faint: mix(ground, letters, 0.08),
      primary: mix(primary, primary, 0), mark: mix(contrast(primary, ground) >= 4.5 ? primary : letters, letters, 0),
      colours: palette(this.film.sequential[dark ? 1 : 0]),
      hatch: hatching(dpr, mix(ground, letters, dark ? 0.16 : 0.11), mix(ground, letters, dark ? 0.34 : 0.3)),
    };
  }

  hue(head) { return this.film.hues[head % this.film.hues.length][this.theme.dark ? 1 : 0]; }
  font(size, weight = 400) { return `${weight} ${size}px ${this.theme.font}`; }
}
