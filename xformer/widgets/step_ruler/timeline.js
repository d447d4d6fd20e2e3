// All steps as one drawing: the input, the right answer, the predictions of each model, their entropy, and pairwise divergence.

import { element, setAttributes, svg } from "../shared.js";

export const letter = (name) => name.split(" ")[0]; // models are named "A · …"
export const judged = (model, step) => model.has_right_answer && step < model.answer.length;

const NARROW = 560, WIDE_NAME = 158, NARROW_NAME = 84; // pixels; in a narrow window, names are abbreviated to letters
const MIN_CELL = 32, MAX_CELL = 150, LETTER = 8.2;
const DASHES = ["", "8 3", "3 3", "8 3 2 3", "2 2", "12 4"];
const SIZES = { flag: 18, rail: 40, given: 34, lane: 38, curve: 84 }, FRAMED = { flag: 18, rail: 36, given: 29, lane: 31, curve: 56 };
const CURVES = {
  entropy: ["uncertainty", "bits", "entropy of the prediction: 0 is certain, 1 bit is a coin toss", "entropy"],
  kl: ["difference", "nats", "KL divergence of the second model's prediction from the first's: 0 where they are equal", "KL"],
};

export class Timeline {
  names = element("div", "names");
  scroller = element("div", "scroller");
  sheet = element("div", "sheet");
  slider = element("div", "slider");

  cell = MIN_CELL; // width of a step, in pixels
  steps = 0;
  columns = 1;
  y = 0; // where the next lane begins
  back = svg("g", {});
  picture = svg("svg", { "aria-hidden": "true" }); // the slider describes it in words
  cursor = svg("rect", {}, "cursor");
  handle = svg("circle", { r: 8 }, "handle");
  /** @type {Record<string, { now: HTMLElement, lines: any[], unit: string }>} */ values = {};

  constructor(go) {
    this.root = element("div", "timeline");
    this.slider.tabIndex = 0;
    setAttributes(this.slider, { role: "slider", "aria-label": "step that is shown", "aria-valuemin": 0 });
    this.sheet.append(this.picture, this.slider);
    this.scroller.append(this.sheet);
    this.root.append(this.names, this.scroller);
    let dragging = false;
    const stepAt = (event) => {
      const { left, width } = this.sheet.getBoundingClientRect(); // may be enlarged
      return Math.floor(((event.clientX - left) / width) * this.columns);
    };
    this.sheet.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      dragging = event.target === this.slider;
      if (dragging) this.sheet.setPointerCapture(event.pointerId);
      this.slider.focus({ preventScroll: true });
      event.preventDefault();
      go(stepAt(event));
    });
    this.sheet.addEventListener("pointermove", (event) => { if (dragging && stepAt(event) !== this.at) go(stepAt(event)); });
    for (const end of ["pointerup", "pointercancel"]) this.sheet.addEventListener(end, () => { dragging = false; });
  }

  draw(ruler) {
    const { data } = ruler, steps = ruler.last + 1, size = ruler.isFramed ? FRAMED : SIZES;
    const answers = data.models.some((model) => model.answer.length); // there is none after the end of a text
    const columns = Math.max(steps, answers ? data.reads.length : 0);
    const name = ruler.width < NARROW ? NARROW_NAME : WIDE_NAME;
    this.root.style.flexBasis = `${Math.max(560, name + 44 * columns)}px`;
    this.names.style.width = `${name}px`;
    this.cell = Math.max(MIN_CELL, Math.min(MAX_CELL, Math.floor((this.root.clientWidth - name) / columns)));
    this.isNarrow = ruler.width < NARROW;
    Object.assign(this, { steps, columns });
    const width = columns * this.cell;
    this.sheet.style.width = `${width}px`;
    this.names.replaceChildren();
    this.picture.replaceChildren();
    this.back.replaceChildren();
    this.picture.append(this.back);
    this.y = size.flag;
    this.drawRail(data, size.rail);
    if (answers) {
      this.drawGiven("input", data.reads.map((text) => [text, ""]), size.given);
      const isKnown = data.models.some((model) => model.has_right_answer);
      this.drawGiven(isKnown ? "right answer" : "the text", Array.from({ length: steps }, (_, step) => {
        const found = new Set(data.models.filter((m) => step < m.answer.length).map((m) => data.labels[m.answer[step]]));
        return found.size > 1 ? ["≠", `the right answers differ: ${[...found].join(" and ")}`] : [[...found][0] ?? "", ""];
      }), size.given, "answer");
    }
    data.models.forEach((model, index) => this.drawModel(data, model, ruler.hue(index), size.lane));
    this.values = {};
    if (data.detail) {
      this.drawCurve("entropy", size.curve, data.models.map((model, index) => ({ values: model.entropy, hue: ruler.hue(index), name: letter(model.name), thick: 5.5 - 1.3 * index, dash: "" })));
      this.drawCurve("kl", size.curve, data.pairs.map((pair, index) => ({ values: pair.kl, hue: ruler.pairHue(index), name: `${letter(pair.one)}, ${letter(pair.other)}`, thick: 2.5, dash: DASHES[index % DASHES.length] })));
    }
    setAttributes(this.picture, { width, height: this.y });
    this.drawBackground(data, width);
    Object.assign(this.slider.style, { top: `${size.flag}px`, height: `${size.rail}px`, width: `${steps * this.cell}px` });
  }

  label(height, text, hue = "", title = "", hint = "") { // the name of a lane, to its left
    const row = element("div", "name");
    row.style.height = `${height}px`;
    if (hue) { const dot = element("span", "dot"); dot.style.background = hue; row.append(dot); }
    const words = element("span", "words", text);
    if (hint) words.append(element("span", "hint", hint));
    row.append(words);
    if (title) row.title = title;
    this.names.append(row);
    return row;
  }

  middle(step) { return (step + 0.5) * this.cell; }

  drawRail(data, height) {
    const y = this.y + height - 12, right = this.middle(this.steps - 1), unit = data.is_decoder ? "step" : "position";
    this.label(this.y + height, unit).classList.add("low");
    this.picture.append(svg("line", { x1: this.middle(0), x2: right, y1: y, y2: y }, "rail"));
    for (let step = 0; step < this.steps; step++) {
      const x = this.middle(step);
      this.picture.append(svg("line", { x1: x, x2: x, y1: y - 4, y2: y + 4 }, "tick"), svg("text", { x, y: this.y + 12 }, "number", String(step)));
    }
    setAttributes(this.handle, { cy: y });
    this.picture.append(this.handle);
    this.y += height;
  }

  chip(step, height, text, kind, title) {
    const chip = svg("g", { transform: `translate(${step * this.cell + 2} ${this.y + 2})` }, `chip ${kind}`), width = this.cell - 4;
    const most = Math.max(1, Math.floor((width - 6) / LETTER));
    chip.append(svg("rect", { width, height: height - 4, rx: 6 }), svg("text", { x: width / 2, y: height / 2 + 3 }, "token", text.length > most + 1 ? `${text.slice(0, most)}…` : text));
    if (title || text.length > most + 1) chip.append(svg("title", {}, "", title || text));
    this.picture.append(chip);
    return chip;
  }

  drawGiven(name, chips, height, kind = "read") {
    this.label(height, this.isNarrow && name === "right answer" ? "right" : name);
    chips.forEach(([text, title], step) => { if (text) this.chip(step, height, text, kind, title); });
    this.y += height;
  }

  drawModel(data, model, hue, height) {
    this.label(height, this.isNarrow ? letter(model.name) : model.name, hue, model.name);
    model.predicted.forEach((token, step) => {
      const known = judged(model, step), isRight = model.answer[step] === token, p = model.probability[step], width = this.cell - 4;
      const other = step < model.answer.length ? `${data.labels[model.answer[step]]}, to which it gives ${model.answer_probability[step].toFixed(6)}` : "";
      const title = `${model.name}, step ${step}: ${data.labels[token]} with probability ${p.toFixed(6)}`
        + (known ? (isRight ? ", which is right" : `, which is wrong; right is ${other}`) : other ? `; the text has ${other}` : "");
      const chip = this.chip(step, height, data.labels[token], known ? (isRight ? "right" : "wrong") : "predicted", title);
      if (known && width >= 52) chip.append(svg("text", { x: width - 9, y: 14 }, "sign", isRight ? "✓" : "✗"));
      chip.append(svg("line", { x1: 3, x2: 3 + (width - 6) * p, y1: height - 8, y2: height - 8, stroke: hue, "stroke-width": 4 }));
    });
    this.y += height;
  }

  drawCurve(what, height, lines) {
    const [name, unit, title, short] = CURVES[what], values = lines.flatMap((line) => line.values.filter((value) => value !== null));
    const top = Math.max(0.1, ...values), low = this.y + height - 10, high = this.y + 12, y = (value) => low - (low - high) * value / top;
    const row = this.label(height, this.isNarrow ? short : name, "", `${title}, in ${unit}`, "?"), now = element("div", "now"), ends = element("span", "ends");
    row.classList.add("curve");
    ends.append(element("span", "", top >= 10 ? top.toFixed(0) : top.toPrecision(2)), element("span", "", "0"));
    row.append(now, ends);
    this.values[what] = { now, lines, unit };
    for (const value of [0, top]) this.picture.append(svg("line", { x1: 0, x2: this.steps * this.cell, y1: y(value), y2: y(value) }, "grid"));
    for (const { values, hue, thick, dash } of lines) {
      let path = "";
      values.forEach((value, step) => { if (value !== null) path += `${path && values[step - 1] !== null ? "L" : "M"}${this.middle(step)} ${y(value)}`; });
      this.picture.append(svg("path", { d: path, fill: "none", stroke: hue, "stroke-width": thick, "stroke-linejoin": "round", ...(dash ? { "stroke-dasharray": dash } : {}) }));
      values.forEach((value, step) => this.picture.append(value === null ? svg("text", { x: this.middle(step), y: high + 6, fill: hue }, "infinite", "∞")
        : svg("circle", { cx: this.middle(step), cy: y(value), r: thick / 2 + 1.2, fill: hue })));
    }
    this.y += height;
  }

  drawBackground(data, width) { // the selected step, the first difference, and the steps at which the models have read different tokens
    const first = Math.min(...data.pairs.map((pair) => { const i = pair.same_context.indexOf(false); return i < 0 ? Infinity : i; }));
    if (Number.isFinite(first)) {
      const hatch = svg("pattern", { id: "sr-hatch", width: 7, height: 7, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" });
      hatch.append(svg("line", { x1: 0, y1: 0, x2: 0, y2: 7 }, "hatch"));
      const area = svg("rect", { x: first * this.cell, y: 18, width: (this.steps - first) * this.cell, height: this.y - 18, fill: "url(#sr-hatch)" }, "apart");
      area.append(svg("title", {}, "", "from here on the models have read different tokens"));
      this.back.append(hatch, area);
    }
    setAttributes(this.cursor, { y: 17, width: this.cell, height: this.y - 17, rx: 8 });
    this.back.append(this.cursor);
    if (data.divergence === null) return;
    const x = data.divergence * this.cell, isLate = x + 110 > width;
    this.picture.append(svg("line", { x1: x + 1, x2: x + 1, y1: 2, y2: this.y }, "rule"),
      svg("text", { x: x + (isLate ? -5 : 7), y: 13, "text-anchor": isLate ? "end" : "start" }, "flag", "first difference"));
  }

  drawCursor(ruler) {
    const { at } = ruler, x = at * this.cell, { scroller } = this;
    this.at = at;
    setAttributes(this.cursor, { x });
    setAttributes(this.handle, { cx: this.middle(at) });
    for (const { now, lines, unit } of Object.values(this.values)) {
      now.replaceChildren(...lines.slice(0, 4).map(({ values, hue, name }) => {
        const value = values[at], text = value === undefined ? "–" : value === null ? "∞" : value.toPrecision(value >= 1 ? 3 : 2);
        const node = element("span", "value", `${name} ${value !== undefined && value !== null && value < 0.005 ? "0.00" : text}`);
        node.style.setProperty("--hue", hue);
        return node;
      }), element("span", "unit", unit));
    }
    setAttributes(this.slider, { "aria-valuemax": ruler.last, "aria-valuenow": at, "aria-valuetext": ruler.describe() });
    if (x < scroller.scrollLeft) scroller.scrollLeft = x;
    else if (x + this.cell > scroller.scrollLeft + scroller.clientWidth) scroller.scrollLeft = x + this.cell - scroller.clientWidth;
  }
}
