// The player's elements and event handlers: playback, speed, ruler, keyboard and heads.

import { element } from "../shared.js";
import { SPEEDS } from "./base.js";

export const Controls = (Base) => class extends Base {
  build() {
    this.strip = element("div", "strip");
    this.grid = element("canvas", "grid");
    this.grid.setAttribute("role", "img");
    this.large = element("canvas", "large");
    this.large.setAttribute("role", "img");
    const title = element("div", "title");
    this.dot = element("span", "dot"); this.name = element("span", "headname"); this.score = element("span", "score");
    this.telling = element("span", "telling");
    title.append(this.dot, this.name, this.score, this.telling);
    const stage = element("div", "stage");
    stage.append(this.large);
    this.hint = "Hover over a cell to read its weight; click a thumbnail to enlarge it.";
    this.readout = element("div", "readout", this.hint);

    const bar = element("div", "controls");
    this.button = element("button", "play"); this.button.type = "button";
    this.step = element("span", "step");
    this.step.setAttribute("aria-live", "off");
    this.back = element("button", "small", "‹"); this.next = element("button", "small", "›");
    this.back.title = "previous snapshot (←)"; this.next.title = "next snapshot (→)";
    this.pace = element("button", "pace"); this.pace.type = "button"; this.pace.title = "speed";
    this.pace.addEventListener("click", () => { this.speed = (this.speed + 1) % SPEEDS.length; this.drawControls(); });
    this.live = element("button", "live", "● live"); this.live.type = "button";
    this.live.title = "follow the newest snapshot";
    this.legend = element("div", "legend");
    this.legendBest = element("span", "key", ""); this.legendExact = element("span", "key", "exact match");
    this.legend.append(this.legendBest, this.legendExact);
    bar.append(this.button, this.back, this.next, this.pace, this.step, this.live, this.legend);

    this.ruler = element("canvas", "ruler");
    this.ruler.tabIndex = 0;
    this.ruler.setAttribute("role", "slider");
    this.ruler.setAttribute("aria-label", "training step that is shown");
    this.ruler.setAttribute("aria-valuemin", "0");
    const side = element("div", "side");
    side.append(this.strip, title, this.grid, this.readout, bar, this.ruler);
    this.root.append(stage, side);

    this.button.addEventListener("click", () => (this.playing ? this.pause(true) : this.play()));
    this.back.addEventListener("click", () => this.go(this.at - 1));
    this.next.addEventListener("click", () => this.go(this.at + 1));
    this.live.addEventListener("click", () => this.followAgain());
    this.grid.addEventListener("click", (event) => this.enlarge(event));
    this.large.addEventListener("pointermove", (event) => {
      const box = this.large.getBoundingClientRect();
      this.pointer = { x: event.clientX - box.left, y: event.clientY - box.top };
      this.point();
    });
    this.large.addEventListener("pointerleave", () => { this.pointer = null; this.readout.textContent = this.hint; });
    this.ruler.addEventListener("pointerdown", (event) => {
      this.ruler.setPointerCapture(event.pointerId);
      this.dragging = true;
      this.go(this.frameAt(event));
    });
    this.ruler.addEventListener("pointermove", (event) => { if (this.dragging) this.go(this.frameAt(event)); });
    for (const end of ["pointerup", "pointercancel"]) this.ruler.addEventListener(end, () => { this.dragging = false; });
    this.root.addEventListener("keydown", (event) => this.key(event));
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const onButton = event.target instanceof HTMLButtonElement;
    const moves = { ArrowLeft: this.at - 1, ArrowRight: this.at + 1, PageDown: this.at - 10, PageUp: this.at + 10, Home: 0, End: this.film.last };
    if (event.key in moves) this.go(moves[event.key]);
    else if (event.key === " " && !onButton) { if (this.playing) this.pause(true); else this.play(); }
    else return;
    event.preventDefault();
  }

  enlarge(event) {
    const box = this.grid.getBoundingClientRect(), { side, gap, names, across, group } = this.at_, x = event.clientX - box.left;
    const layer = Math.floor((event.clientY - box.top) / (side + gap)) * across + Math.floor(x / group);
    const head = Math.floor(((x % group) - names) / (side + gap));
    if (!(layer >= 0 && layer < this.film.layers.length && head >= 0 && head < this.film.layers[layer].heads)) return;
    this.chosen = [layer, head];
    this.drawHeads();
    this.rest();
  }

  drawControls() {
    const { film } = this;
    this.button.textContent = this.playing ? "❚❚ Pause" : "▶ Play";
    this.button.disabled = film.last < 1;
    this.back.disabled = this.at === 0; this.next.disabled = this.at === film.last;
    this.step.textContent = `step ${film.frames[this.at].step.toLocaleString("en")} of ${film.steps.toLocaleString("en")}`;
    this.live.hidden = !film.live;
    this.live.setAttribute("aria-pressed", String(this.follows));
    this.pace.textContent = SPEEDS[this.speed][0];
    this.legendExact.hidden = !film.exact.length; // free text has no exact match
    this.legendBest.hidden = this.bestNow().score < 0;
    this.legendBest.textContent = `best ${film.score} score`;
    this.legendBest.style.setProperty("--hue", this.hue(0)); this.legendExact.style.setProperty("--hue", this.hue(1));
  }
};
