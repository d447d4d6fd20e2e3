// Base class of canvas animations that play, pause and step: the elements, the clock and the tooltip.
//
//   class Scene extends Animation { … }   // defines what this class declares but does not do

import { density, element, pen } from "./shared.js";

/** @typedef {{ from: number, takes: number } & Record<string, any>} Part  in seconds */
/** @typedef {{ x: number, y: number, width: number, height: number } & Record<string, any>} Region  in CSS pixels of the canvas */

export class Clock {
  /** @param {Part[]} parts one after the other */
  constructor(parts) {
    this.parts = parts;
    const last = parts.at(-1);
    this.end = last ? last.from + last.takes : 0;
    this.now = this.end;
    this.isPlaying = false;
  }
  // The progress of a part, from 0 to 1.
  done(part) {
    return Math.min(1, Math.max(0, (this.now - part.from) / part.takes));
  }
  get isOver() {
    return this.now >= this.end - 1e-6;
  }
  get part() {
    return this.parts.find((part) => this.now < part.from + part.takes - 1e-6) ?? this.parts[this.parts.length - 1];
  }
  step(by) {
    this.isPlaying = false;
    const ends = this.parts.map((part) => part.from + part.takes);
    if (by > 0) this.now = ends.find((end) => end > this.now + 1e-6) ?? this.end;
    else this.now = ends.findLast((end) => end < this.now - 1e-6) ?? 0;
  }
}

const frame = (inStage, inControls) => `
    <div class="stage"><canvas role="img" tabindex="0"></canvas><div class="tip" hidden></div>${inStage}</div>
    <div class="controls">
      <button class="back" type="button" aria-label="One step back">‹</button>
      <button class="play" type="button">Play</button>
      <button class="next" type="button" aria-label="One step forward">›</button>
      ${inControls}<span class="says" role="status"></span>
    </div>`;

export class Animation {
  least = 0; // smallest width, in px
  labels = { play: "Play", again: "Again" };
  /** @type {Uint8Array<ArrayBuffer>} */ bytes;
  /** @type {any} */ data;
  fitted = ""; // the size for which the layout is made
  frame = 0; // the requested animation frame
  density = 1; // canvas pixels of one CSS pixel
  /** @type {Region[]} */ regions = [];
  /** @type {any} */ place;
  /** @type {(event: any) => void} */ send = () => {};

  /** @param {Uint8Array<ArrayBuffer>} bytes @returns {any} */
  read(bytes) { return bytes; }
  /** @param {any} data @returns {Part[]} */
  partsOf(data) { return data.parts; }
  /** @param {any} _data @param {number} width @returns {any} with a height */
  layOut(_data, width) { return { width, height: width }; }
  /** @param {Element} _root @param {any} _data @returns {any} colours and fonts */
  lookOf(_root, _data) {}
  /** Draw a frame. @returns {Region[]} */
  paint() { return []; }
  title() { return ""; }
  /** Whether the animation goes on where it is, although the data are new. @param {any} _before */
  goesOn(_before) { return false; }
  says() { return ""; }
  /** @param {Region} _region */
  click(_region) {}
  /** @param {PointerEvent | null} _event */
  point(_event) {}

  // `inStage` and `inControls` are trusted HTML, without user input.
  constructor(parent, className, inStage = "", inControls = "") {
    this.root = element("div", className);
    this.root.innerHTML = frame(inStage, inControls);
    parent.append(this.root);
    /** @type {(name: string) => any} */
    this.find = (name) => this.root.querySelector(name);
    this.canvas = this.find("canvas");
    this.context = pen(this.canvas);
    this.clock = new Clock([]);
    this.find(".play").onclick = () => (this.clock.isPlaying ? this.pause() : this.play());
    this.find(".back").onclick = () => this.step(-1);
    this.find(".next").onclick = () => this.step(1);
    this.canvas.onkeydown = (event) => {
      const does = { ArrowRight: () => this.step(1), ArrowLeft: () => this.step(-1), " ": () => this.find(".play").click() }[event.key];
      if (!does) return;
      event.preventDefault();
      does();
    };
    this.canvas.onpointermove = (event) => this.point(event);
    this.canvas.onpointerleave = () => this.point(null);
    this.canvas.onclick = (event) => {
      const region = this.regionAt(event);
      if (region) this.click(region);
    };
    this.observer = new ResizeObserver(() => this.size() !== this.fitted && this.fit());
    this.observer.observe(this.root);
  }

  // Show a run. If the bytes are unchanged, the animation continues.
  update(bytes) {
    const isSame = this.bytes?.length === bytes.length && this.bytes.every((byte, at) => byte === bytes[at]);
    if (!isSame) {
      const before = this.data;
      this.bytes = bytes.slice();
      this.data = this.read(bytes);
      if (before && this.goesOn(before)) {
        this.fit();
        return;
      }
      this.clock = new Clock(this.partsOf(this.data));
      this.canvas.setAttribute("aria-label", this.title());
    }
    this.fit(); // the theme may have changed
    if (!isSame && !matchMedia("(prefers-reduced-motion: reduce)").matches) this.play();
  }

  destroy() {
    cancelAnimationFrame(this.frame);
    this.observer.disconnect();
    this.root.remove();
  }

  size() { return [this.root.clientWidth, innerHeight, density(this.root)].join(); }

  fit() {
    this.fitted = this.size();
    if (!this.data || !this.root.clientWidth) return; // hidden or removed
    const width = Math.max(this.least, this.root.clientWidth);
    this.place = this.layOut(this.data, width);
    this.canvas.style.height = `${this.place.height}px`;
    this.density = density(this.root);
    this.canvas.width = Math.round(width * this.density);
    this.canvas.height = Math.round(this.place.height * this.density);
    this.look = this.lookOf(this.root, this.data);
    this.draw();
  }

  draw() {
    if (!this.place) return;
    this.context.setTransform(this.density, 0, 0, this.density, 0, 0);
    this.regions = this.paint();
    const { clock, labels } = this, says = this.says();
    this.find(".play").textContent = clock.isPlaying ? "Pause" : clock.isOver ? labels.again : labels.play;
    if (this.find(".says").textContent !== says) this.find(".says").textContent = says;
  }

  play() {
    const { clock } = this;
    if (clock.isOver) clock.now = 0;
    clock.isPlaying = true;
    let last = performance.now();
    const tick = (time) => {
      if (clock !== this.clock || !clock.isPlaying) return;
      clock.now = Math.min(clock.end, clock.now + Math.min(0.1, Math.max(0, time - last) / 1000));
      last = time;
      clock.isPlaying = !clock.isOver;
      this.draw();
      this.frame = requestAnimationFrame(tick);
    };
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(tick);
  }

  pause() {
    this.clock.isPlaying = false;
    this.draw();
  }

  step(by) {
    this.clock.step(by);
    this.draw();
  }

  regionAt(event) {
    const box = this.canvas.getBoundingClientRect();
    const scale = this.place.width / box.width, [x, y] = [(event.clientX - box.left) * scale, (event.clientY - box.top) * scale];
    const found = this.regions.findLast((one) => x >= one.x && x < one.x + one.width && y >= one.y && y < one.y + one.height);
    return found && { ...found, at: [x, y] };
  }

  // Show a tooltip at the pointer; hide it if there is no text.
  tell(region, text) {
    const tip = this.find(".tip");
    tip.hidden = !text;
    if (!text) return;
    tip.textContent = text;
    tip.style.left = `${Math.max(0, Math.min(region.at[0] + 12, this.place.width - 230))}px`;
    tip.style.top = `${region.at[1] + 16}px`;
  }
}
