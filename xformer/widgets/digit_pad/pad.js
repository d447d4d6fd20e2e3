// A drawing pad of 8 × 8 pixels with a soft brush. The drawing is sent at the end of a stroke, one base-17 digit per pixel.
import { button, element } from "../shared.js";

const SIDE = 8, FULL = 16, REACH = 1.15;

export class Pad {
  /** @type {(pixels: string) => void} */ send = () => {};

  constructor(parent) {
    this.root = parent.appendChild(element("div", "pad"));
    this.page = this.root.appendChild(element("div", "page"));
    this.page.tabIndex = 0;
    this.page.setAttribute("role", "application");
    this.page.setAttribute("aria-label", "An image of 8 by 8 pixels. Arrow keys move, space adds ink, Delete removes it.");
    this.cells = Array.from({ length: SIDE * SIDE }, () => this.page.appendChild(element("div", "pixel")));
    const bar = this.root.appendChild(element("div", "tools"));
    this.rubber = bar.appendChild(button("Erase", () => this.setRubbing(!this.rubbing), "tool"));
    bar.append(button("Clear", () => { this.ink.fill(0); this.show(); this.report(); }, "tool"));
    this.spoken = this.root.appendChild(element("div", "spoken"));
    this.spoken.setAttribute("aria-live", "polite");
    this.ink = new Array(SIDE * SIDE).fill(0);
    this.at = 0;
    this.last = null;       // the last point of the stroke, in pixels; null between strokes
    this.setRubbing(false);
    this.page.addEventListener("pointerdown", (event) => this.begin(event));
    this.page.addEventListener("pointermove", (event) => this.go(event));
    for (const end of ["pointerup", "pointercancel"]) this.page.addEventListener(end, () => this.end());
    this.page.addEventListener("keydown", (event) => this.key(event));
    this.page.addEventListener("focus", () => this.show());
    this.page.addEventListener("blur", () => this.show());
  }

  setRubbing(on) {
    this.rubbing = on;
    this.rubber.setAttribute("aria-pressed", String(on));
  }

  destroy() { this.root.remove(); }

  update({ pixels }) {
    if (this.last) return; // a stroke is in progress; the update is older
    this.ink = pixels.slice();
    this.show();
  }

  show() {
    const focused = this.page.matches(":focus-visible");
    this.cells.forEach((cell, index) => {
      cell.style.setProperty("--ink", `${(100 * this.ink[index]) / FULL}%`);
      cell.classList.toggle("here", focused && index === this.at);
    });
  }

  place(event) {
    const box = this.page.getBoundingClientRect();
    return [((event.clientX - box.left) / box.width) * SIDE, ((event.clientY - box.top) / box.height) * SIDE];
  }

  begin(event) {
    if (event.button !== 0) return;
    this.page.setPointerCapture(event.pointerId);
    this.last = this.place(event);
    this.dab(...this.last);
    this.show();
  }

  go(event) {
    if (!this.last) return;
    const [x, y] = this.place(event), [fromX, fromY] = this.last;
    const steps = Math.max(1, Math.ceil(Math.hypot(x - fromX, y - fromY) * 4));
    for (let step = 1; step <= steps; step++) {
      this.dab(fromX + ((x - fromX) * step) / steps, fromY + ((y - fromY) * step) / steps);
    }
    this.last = [x, y];
    this.show();
  }

  end() {
    if (!this.last) return;
    this.last = null;
    this.report();
  }

  dab(x, y) { // full ink within half a pixel of the centre, none beyond REACH
    for (let index = 0; index < this.ink.length; index++) {
      const far = Math.hypot((index % SIDE) + 0.5 - x, Math.floor(index / SIDE) + 0.5 - y);
      const share = Math.min(1, Math.max(0, (REACH - far) / (REACH - 0.5)));
      const ink = Math.round(FULL * share);
      this.ink[index] = this.rubbing ? Math.min(this.ink[index], FULL - ink) : Math.max(this.ink[index], ink);
    }
  }

  key(event) {
    const moves = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -SIDE, ArrowDown: SIDE };
    const column = this.at % SIDE;
    if (event.key in moves) {
      const next = this.at + moves[event.key];
      const wraps = (event.key === "ArrowLeft" && column === 0) || (event.key === "ArrowRight" && column === SIDE - 1);
      if (next >= 0 && next < SIDE * SIDE && !wraps) this.at = next;
    } else if (event.key === " " || event.key === "Enter") {
      this.ink[this.at] = Math.min(FULL, this.ink[this.at] + FULL / 2);
      this.report();
    } else if (event.key === "Delete" || event.key === "Backspace") {
      this.ink[this.at] = 0;
      this.report();
    } else return;
    event.preventDefault();
    this.show();
    this.spoken.textContent = `row ${Math.floor(this.at / SIDE) + 1}, column ${(this.at % SIDE) + 1}: ink ${this.ink[this.at]} of ${FULL}`;
  }

  report() { this.send(this.ink.map((ink) => ink.toString(17)).join("")); }
}
