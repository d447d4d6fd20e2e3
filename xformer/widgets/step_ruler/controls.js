// The ruler's elements, and what they listen to: play, speed, a pointer on the ruler or a lane, the keyboard.

import { element } from "../shared.js";
import { SPEEDS } from "./base.js";

export const Controls = (Base) => class extends Base {
  build() {
    const bar = element("div", "controls");
    this.button = element("button", "play"); this.button.type = "button";
    this.back = element("button", "small", "‹"); this.back.type = "button"; this.back.title = "one step back (←)";
    this.next = element("button", "small", "›"); this.next.type = "button"; this.next.title = "one step on (→)";
    this.back.setAttribute("aria-label", "one step back"); this.next.setAttribute("aria-label", "one step on");
    this.step = element("span", "step");
    this.toDivergence = element("button", "part", "⚑ First parting"); this.toDivergence.type = "button";
    this.toDivergence.title = "go to the first step that they answer differently (P)";
    this.speeds = element("div", "seg");
    this.speeds.setAttribute("role", "group"); this.speeds.setAttribute("aria-label", "speed");
    this.speedButtons = SPEEDS.map(([words], index) => {
      const node = element("button", "", words);
      node.type = "button";
      node.addEventListener("click", () => { this.speed = index; this.drawControls(); });
      this.speeds.append(node);
      return node;
    });
    this.verdict = element("span", "verdict");
    bar.append(this.button, this.back, this.next, this.step, this.toDivergence, this.speeds, this.verdict);

    this.scroller = element("div", "scroller");
    this.sheet = element("div", "sheet");
    this.cursor = element("div", "cursor"); this.rule = element("div", "rule"); this.apart = element("div", "apart"); this.flag = element("div", "flag");
    this.lanes = element("div", "lanes"); this.tracks = element("div", "tracks");
    const rail = element("div", "railrow");
    this.ruler = element("div", "slider");
    this.ruler.tabIndex = 0;
    this.ruler.setAttribute("role", "slider");
    this.ruler.setAttribute("aria-label", "step that is shown");
    this.ruler.setAttribute("aria-valuemin", "0");
    rail.append(this.ruler);
    this.sheet.append(this.apart, this.cursor, this.rule, this.flag, this.lanes, rail, this.tracks);
    this.scroller.append(this.sheet);
    const now = (this.now = element("div", "now"));
    this.bars = element("div", "top"); this.numbersNow = element("div", "numbersnow");
    now.append(this.bars, this.numbersNow);
    this.root.append(bar, this.scroller, now);

    this.button.addEventListener("click", () => (this.playing ? this.pause(true) : this.play()));
    this.back.addEventListener("click", () => this.go(this.at - 1));
    this.next.addEventListener("click", () => this.go(this.at + 1));
    this.toDivergence.addEventListener("click", () => { if (this.data.divergence !== null) this.go(this.data.divergence); });
    this.sheet.addEventListener("pointerdown", (event) => {
      if (event.button !== 0 || event.clientX - this.sheet.getBoundingClientRect().left < this.name) return;
      this.dragging = event.target === this.ruler || this.ruler.contains(event.target);
      if (this.dragging) this.sheet.setPointerCapture(event.pointerId);
      this.ruler.focus({ preventScroll: true });
      event.preventDefault();
      this.go(this.stepAt(event));
    });
    this.sheet.addEventListener("pointermove", (event) => { if (this.dragging && this.stepAt(event) !== this.at) this.go(this.stepAt(event)); });
    for (const end of ["pointerup", "pointercancel"]) this.sheet.addEventListener(end, () => { this.dragging = false; });
    this.root.addEventListener("keydown", (event) => this.key(event));
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || !this.data) return;
    const onButton = event.target instanceof HTMLButtonElement;
    const moves = { ArrowLeft: this.at - 1, ArrowDown: this.at - 1, ArrowRight: this.at + 1, ArrowUp: this.at + 1,
      PageDown: this.at - 5, PageUp: this.at + 5, Home: 0, End: this.last };
    if (event.key in moves) this.go(moves[event.key]);
    else if (event.key.toLowerCase() === "p" && this.data.divergence !== null) this.go(this.data.divergence);
    else if (event.key === " " && !onButton) { if (this.playing) this.pause(true); else this.play(); }
    else return;
    event.preventDefault();
  }

  drawControls() {
    const { data, at } = this;
    if (!data) return;
    this.button.textContent = this.playing ? "❚❚ Pause" : "▶ Play";
    this.button.disabled = this.last < 1;
    this.back.disabled = at === 0; this.next.disabled = at === this.last;
    this.step.textContent = `${data.is_decoder ? "step" : "position"} ${at} of ${this.last}`;
    this.toDivergence.disabled = data.divergence === null;
    this.toDivergence.textContent = data.divergence === null ? "⚑ They never part" : `⚑ First parting: ${data.divergence}`;
    this.speedButtons.forEach((node, index) => node.setAttribute("aria-pressed", String(index === this.speed)));
    const said = new Set(data.models.filter((p) => at < p.predicted.length).map((p) => data.labels[p.predicted[at]]));
    this.verdict.textContent = said.size > 1 ? "≠ different tokens" : "= the same token";
    this.verdict.classList.toggle("differs", said.size > 1);
  }
};
