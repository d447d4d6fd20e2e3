// The lanes over the ruler: what is read, what is right, what each model says; entropy and divergence below them.

import { element } from "../shared.js";
import { letter, shape } from "./base.js";

const WIDE_NAME = 176, NARROW_NAME = 74; // pixels of the column of names: on a narrow screen their letters stand for them
const NARROW = 560;
export const judged = (model, step) => model.has_right_answer && step < model.answer.length;
export const isRight = (model, step) => model.predicted[step] === model.answer[step];

const TRACK = 62, LOW_TRACK = 48, PAD = 8;
const WORDS = { entropy: "how undecided each model is", KL: "how far apart what they believe is (Kullback–Leibler divergence of the first from the second)" };

export const Timeline = (Base) => class extends Base {
  get name() { return this.width < NARROW ? NARROW_NAME : WIDE_NAME; }

  drawTimeline() {
    const { data } = this, labels = data.labels;
    const answers = data.models.some((model) => model.answer.length); // after the end of a text nobody knows what comes
    const columns = Math.max(this.steps, answers ? data.reads.length : 0), NAME = this.name;
    this.sheet.style.setProperty("--name", `${NAME}px`);
    this.tracks.hidden = this.now.hidden = !data.detail;
    this.cell = Math.max(27, Math.min(100, Math.floor((this.width - NAME - 4) / columns)));
    this.sheet.style.setProperty("--cell", `${this.cell}px`);
    this.sheet.style.width = `${NAME + columns * this.cell}px`;
    this.lanes.classList.toggle("narrow", this.cell < 44);
    this.lanes.replaceChildren();
    this.lanes.append(this.numbers());
    if (answers) this.lanes.append(this.lane("input", data.reads.map((text) => this.chip(text, "read"))));
    if (answers) this.lanes.append(this.lane(data.models.some((model) => model.has_right_answer) ? "right answer" : "the text", Array.from({ length: this.steps }, (_, step) => {
      const found = new Set(data.models.filter((p) => step < p.answer.length).map((p) => labels[p.answer[step]]));
      const chip = this.chip(found.size === 1 ? [...found][0] : found.size ? "≠" : "", "answer");
      if (found.size > 1) chip.title = `the right answers differ: ${[...found].join(" and ")}`;
      return chip;
    })));
    data.models.forEach((model, index) => {
      const chips = model.predicted.map((token, step) => {
        const known = judged(model, step), right = isRight(model, step), p = model.probability[step];
        const chip = this.chip(labels[token], known ? (right ? "right" : "wrong") : "said"), bar = element("span", "bar");
        if (known) chip.append(element("span", "sign", right ? "✓" : "✗"));
        bar.style.width = `${100 * p}%`;
        bar.style.background = this.hue(index);
        chip.append(bar);
        const other = step < model.answer.length ? `${labels[model.answer[step]]}, to which it gives ${model.answer_probability[step].toFixed(6)}` : "";
        chip.title = `step ${step}: ${model.name} says ${labels[token]} with probability ${p.toFixed(6)}`
          + (known ? (right ? ", which is right" : `, which is wrong; right is ${other}`) : other ? `; the text has ${other}` : "");
        return chip;
      });
      this.lanes.append(this.lane(model.name, chips, this.hue(index)));
    });
    this.drawTracks(columns);
    this.ruler.style.left = `${NAME}px`;
    this.ruler.style.width = `${this.steps * this.cell}px`;
    this.ruler.replaceChildren(element("span", "rail"));
    for (let step = 0; step < this.steps; step++) {
      const tick = element("span", step === data.divergence ? "tick parts" : "tick");
      tick.style.left = `${(step + 0.5) * this.cell}px`;
      this.ruler.append(tick);
    }
    this.handle = element("span", "handle");
    this.ruler.append(this.handle);
    this.drawParting();
  }

  numbers() {
    const row = this.lane(this.data.is_decoder ? "step" : "position", []);
    row.classList.add("numbers");
    row.lastChild.append(...Array.from({ length: this.steps }, (_, step) => element("span", "number", String(step))));
    return row;
  }

  lane(name, chips, hue) {
    const row = element("div", "lane"), called = element("div", "name");
    if (hue) { const dot = element("span", "dot"); dot.style.background = hue; called.append(dot); }
    const shown = hue && this.width < NARROW ? letter(name) : name;
    const words = element("span", shown.length > 22 ? "words long" : "words", shown);
    called.title = name;
    called.append(words);
    const track = element("div", "cells");
    track.append(...chips);
    row.append(called, track);
    return row;
  }

  chip(text, kind) {
    const chip = element("div", `chip ${kind}${text.length > 4 ? " long" : ""}`);
    chip.append(element("span", "token", text));
    return chip;
  }

  drawParting() {
    const { divergence } = this.data;
    this.flag.hidden = this.rule.hidden = divergence === null;
    if (divergence !== null) {
      const x = this.name + divergence * this.cell;
      this.rule.style.left = `${x}px`;
      this.flag.textContent = "they part here";
      const late = divergence > this.steps / 2 && divergence * this.cell > 120;
      this.flag.className = late ? "flag late" : "flag";
      this.flag.style.left = late ? "auto" : `${x}px`;
      this.flag.style.right = late ? `calc(100% - ${x}px)` : "auto";
    }
    const first = Math.min(...this.data.pairs.map((pair) => { const i = pair.same_context.indexOf(false); return i < 0 ? Infinity : i; }));
    this.apart.hidden = !Number.isFinite(first);
    if (Number.isFinite(first)) {
      this.apart.style.left = `${this.name + first * this.cell}px`;
      this.apart.style.width = `${(this.steps - first) * this.cell}px`;
      this.apart.title = "from here on they have read different tokens";
    }
  }

  drawCursor() {
    const { data, at } = this, NAME = this.name, x = NAME + at * this.cell;
    this.cursor.style.left = `${x}px`;
    this.cursor.style.width = `${this.cell}px`;
    this.handle.style.left = `${(at + 0.5) * this.cell}px`;
    const says = data.models.map((model) => at >= model.predicted.length ? `${letter(model.name)} has ended`
      : `${letter(model.name)} says ${data.labels[model.predicted[at]]}, ${judged(model, at) ? (isRight(model, at) ? "right, " : "wrong, ") : ""}probability ${model.probability[at].toFixed(2)}`);
    this.ruler.setAttribute("aria-valuemax", String(this.last));
    this.ruler.setAttribute("aria-valuenow", String(at));
    this.ruler.setAttribute("aria-valuetext", `step ${at} of ${this.last}${at === data.divergence ? ", they part here" : ""}: ${says.join("; ")}`);
    const room = this.scroller;
    if (x - NAME < room.scrollLeft) room.scrollLeft = x - NAME;
    else if (x + this.cell > room.scrollLeft + room.clientWidth) room.scrollLeft = x + this.cell - room.clientWidth;
  }

  stepAt(event) {
    const box = this.sheet.getBoundingClientRect();
    return Math.max(0, Math.min(this.last, Math.floor((event.clientX - box.left - this.name) / this.cell)));
  }

  drawTracks(columns) {
    const { data } = this;
    this.tracks.replaceChildren();
    if (!data.detail) return;
    const bits = Math.max(0.1, ...data.models.flatMap((model) => model.entropy));
    this.tracks.append(this.track("entropy", "bits", bits, columns, data.models.map((model, index) => ({
      values: model.entropy, hue: this.hue(index), width: 5.5 - 1.3 * index,
    }))));
    const nats = Math.max(0.1, ...data.pairs.flatMap((pair) => pair.kl.filter((value) => value !== null)));
    const row = this.track("KL", "nats", nats, columns, data.pairs.map((pair, index) => ({
      values: pair.kl, hue: this.pairHue(index), width: 2.5, dash: ["", "8 3", "3 3", "8 3 2 3", "2 2", "12 4"][index % 6],
    })));
    const key = element("span", "pairs");
    data.pairs.forEach((pair, index) => {
      const one = element("span", "pair", `${letter(pair.one)}‖${letter(pair.other)}`);
      one.style.color = this.pairHue(index);
      key.append(one);
    });
    row.firstChild.append(key);
    this.tracks.append(row);
  }

  track(name, unit, top, columns, lines) {
    const row = this.lane(name, []), width = columns * this.cell, tall = this.isLow ? LOW_TRACK : TRACK;
    row.classList.add("track");
    row.style.height = `${tall}px`;
    row.firstChild.title = `${WORDS[name]}, in ${unit}, from 0 to ${top.toPrecision(3)}`;
    row.firstChild.append(element("span", "unit", unit));
    const y = (value) => tall - PAD - (tall - 2 * PAD) * (value / top), x = (step) => (step + 0.5) * this.cell;
    const svg = shape("svg", { width, height: tall, "aria-hidden": "true" });
    for (const value of [0, top]) svg.append(shape("line", { x1: 0, x2: this.steps * this.cell, y1: y(value), y2: y(value), class: "grid" }));
    for (const { values, hue, width: wide, dash } of lines) {
      let path = "";
      values.forEach((value, step) => { if (value !== null) path += `${path && values[step - 1] !== null ? "L" : "M"}${x(step)} ${y(value)}`; });
      const line = shape("path", { d: path, fill: "none", "stroke-width": wide, "stroke-linejoin": "round" });
      line.style.stroke = hue;
      if (dash) line.setAttribute("stroke-dasharray", dash);
      svg.append(line);
      values.forEach((value, step) => {
        const mark = value === null ? shape("text", { x: x(step), y: PAD + 6, "text-anchor": "middle" }) : shape("circle", { cx: x(step), cy: y(value), r: wide / 2 + 1.2 });
        if (value === null) mark.textContent = "∞";
        mark.style.fill = hue;
        svg.append(mark);
      });
    }
    const ends = element("span", "ends");
    ends.append(element("span", "", top >= 10 ? top.toFixed(0) : top.toPrecision(2)), element("span", "", "0"));
    row.firstChild.append(ends);
    row.lastChild.append(svg);
    return row;
  }
};
