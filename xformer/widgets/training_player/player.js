// A player of a training: scrubs through the snapshots of a run, plays them, or follows a run that is in progress.
//
//   const player = new Player(element);
//   player.send = ({ step, layer, head }) => …;    // where it rests
//   player.update(bytes);                          // packed by xformer/viz/timeline.py

import { buildParts } from "./parts.js";
import { drawHeads, drawLanes, drawStrip, layOut, readOut, thumbAt } from "./picture.js";
import { drawRuler, frameAt } from "./ruler.js";
import { SPEEDS, State, themeOf, Timeline } from "./state.js";

const NEW_FRAMES_PER_SECOND = 14; // speed at which new frames are caught up with
const REST = 220; // milliseconds after which a frame is reported to the server

export class Player {
  state = new State();
  parts = buildParts(this);
  /** @type {(rest: { step: number | null, layer: number | null, head: number | null }) => void} */ send = () => {};
  still = matchMedia("(prefers-reduced-motion: reduce)");
  /** @type {ReturnType<typeof setTimeout> | undefined} */ timer;
  /** @type {ReturnType<typeof setTimeout> | undefined} */ resting;

  /** @param {HTMLElement} parent */
  constructor(parent) {
    parent.append(this.parts.root);
    this.resizing = new ResizeObserver(() => {
      if (this.state.timeline && Math.abs(this.parts.root.clientWidth - this.state.width) > 0.5) this.draw();
    });
    this.resizing.observe(this.parts.root);
  }

  destroy() {
    this.resizing.disconnect();
    clearTimeout(this.resting);
    clearTimeout(this.timer);
    this.parts.root.remove();
  }

  /** @param {Uint8Array<ArrayBuffer>} bytes */
  update(bytes) {
    if (!bytes || bytes.length < 8) return;
    const { state } = this, timeline = new Timeline(bytes), { chosen } = state;
    const step = state.want ?? state.timeline?.frames[state.at]?.step ?? null;
    state.timeline = timeline;
    if (chosen && !(chosen[1] < (timeline.layers[chosen[0]]?.heads ?? 0))) state.chosen = null;
    if (state.order !== timeline.order) { // Python sets the step: a link, another run, a button
      state.order = timeline.order;
      state.follows = timeline.target === null;
      state.want = timeline.target; // its frame may not have arrived yet
      this.pause(false);
      state.at = timeline.target === null ? timeline.last : timeline.nearest(timeline.target);
    } else if (step !== null) state.at = timeline.nearest(step); // frames may have been inserted before it
    state.at = Math.max(0, Math.min(state.at, timeline.last));
    this.draw();
    if (state.follows && !state.playing && state.at < timeline.last) this.catchUp();
  }

  catchUp() { // show new frames one after the other, quickly
    const { state } = this;
    if (this.still.matches) return this.show(state.timeline.last);
    clearTimeout(this.timer);
    const behind = state.timeline.last - state.at;
    this.timer = setTimeout(() => {
      if (!state.follows || state.playing) return;
      this.show(Math.min(state.timeline.last, state.at + Math.ceil(behind / 20)));
      if (state.at < state.timeline.last) this.catchUp();
    }, 1000 / NEW_FRAMES_PER_SECOND);
  }

  /** @param {number} frame */
  show(frame) {
    this.state.at = Math.max(0, Math.min(frame, this.state.timeline.last));
    this.drawFrame();
  }

  /** By the user. @param {number} frame */
  go(frame) {
    this.pause(false);
    this.state.follows = false;
    this.state.want = null;
    this.show(frame);
    this.rest();
  }

  /** @param {PointerEvent} event */
  goTo(event) { this.go(frameAt(this.state, this.parts, event)); }

  toggle() { if (this.state.playing) this.pause(true); else this.play(); }

  play() {
    const { state } = this;
    if (state.timeline.last < 1) return;
    if (state.at >= state.timeline.last) this.show(0);
    state.follows = false;
    state.want = null;
    state.playing = true;
    clearTimeout(this.resting);
    this.drawControls();
    const tick = () => {
      this.timer = setTimeout(() => {
        if (!state.playing) return;
        this.show(state.at + 1);
        if (state.at < state.timeline.last) return tick();
        this.pause(true);
      }, 1000 / SPEEDS[state.speed][1]);
    };
    clearTimeout(this.timer);
    tick();
  }

  /** @param {boolean} reports */
  pause(reports) {
    const { state } = this;
    clearTimeout(this.timer);
    if (!state.playing) return;
    state.playing = false;
    if (state.at === state.timeline.last && state.timeline.live) state.follows = true;
    this.drawControls();
    if (reports) this.rest();
  }

  followAgain() {
    this.pause(false);
    this.state.want = null;
    this.state.follows = true;
    this.show(this.state.timeline.last);
    this.rest();
  }

  changeSpeed() {
    this.state.speed = (this.state.speed + 1) % SPEEDS.length;
    this.drawControls();
  }

  rest() { // report the frame to the server once the player rests
    const { state } = this;
    clearTimeout(this.resting);
    this.resting = setTimeout(() => {
      if (state.playing) return;
      const [layer, head] = state.chosen ?? [null, null];
      this.send({ step: state.follows ? null : state.frame.step, layer, head });
    }, REST);
  }

  draw() { // everything, after new frames or a change of theme or size
    const { state, parts } = this;
    state.width = parts.root.clientWidth;
    if (!state.width || !state.timeline.frames.length) return;
    state.theme = themeOf(parts.root, state.timeline.sequential);
    layOut(state, parts);
    drawLanes(state, parts);
    this.drawFrame();
  }

  drawFrame() {
    const { state, parts } = this;
    if (!state.width || !state.timeline.frames.length) return;
    drawStrip(state, parts);
    drawHeads(state, parts);
    readOut(state, parts);
    drawRuler(state, parts);
    this.drawControls();
  }

  drawControls() {
    const { state, parts, state: { timeline } } = this;
    parts.play.textContent = state.playing ? "❚❚ Pause" : "▶ Play";
    parts.play.disabled = timeline.last < 1;
    parts.back.disabled = state.at === 0; parts.next.disabled = state.at === timeline.last;
    parts.step.textContent = `step ${state.frame.step.toLocaleString("en")} of ${timeline.steps.toLocaleString("en")}`;
    parts.live.hidden = !timeline.live;
    parts.live.setAttribute("aria-pressed", String(state.follows));
    parts.pace.textContent = SPEEDS[state.speed][0];
    parts.legendExact.hidden = !timeline.exact.length; // free text has no exact match
    parts.legendBest.hidden = timeline.bestAt(state.at).score < 0;
    parts.legendBest.textContent = `best ${timeline.score} score`;
    parts.legendBest.style.setProperty("--hue", state.headHue(0)); parts.legendExact.style.setProperty("--hue", state.headHue(1));
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const { at, timeline } = this.state;
    const to = { ArrowLeft: at - 1, ArrowRight: at + 1, PageDown: at - 10, PageUp: at + 10, Home: 0, End: timeline.last }[event.key];
    if (to !== undefined) this.go(to);
    else if (event.key === " " && !(event.target instanceof HTMLButtonElement)) this.toggle();
    else return;
    event.preventDefault();
  }

  /** @param {MouseEvent} event */
  enlarge(event) {
    const thumb = thumbAt(this.state, this.parts, event);
    if (!thumb) return;
    this.state.chosen = thumb;
    drawHeads(this.state, this.parts);
    readOut(this.state, this.parts);
    this.rest();
  }

  /** @param {PointerEvent | null} event */
  point(event) {
    const box = this.parts.large.getBoundingClientRect();
    this.state.pointer = event && { x: event.clientX - box.left, y: event.clientY - box.top };
    readOut(this.state, this.parts);
  }
}
