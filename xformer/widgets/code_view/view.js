// The source of a module, and beside each line what it computed.
//
//   const view = new CodeView(element);
//   view.update(bytes);               // of `xformer.widgets.code_view.code_data`

import { canvasTheme, element, headerOf, labelled, palette, pen, theme } from "../shared.js";
import { shown, Tensors } from "./tensors.js";

/** @typedef {import("./tensors.js").Operation} Operation */
/** @typedef {{ path: string, number: number, lines: Record<string, number[]> }} Call */
/** @typedef {{ file: string, name: string, first: number, lines: string[], calls: Call[] }} SourceFunction */

const THUMB = { width: 72, height: 26 };
const LARGEST = 460; // px: the enlarged tensor
const GAP = 60; // px: room for the labels of the rows
const NARROW = 860; // px
const FEW = 3; // functions that are all open at first

export class CodeView {
  /** @type {Tensors} */ tensors;
  /** @type {any} */ header;
  /** @type {number | undefined} */ chosen; // an operation
  /** @type {number[]} */ lead = []; // the indices of all axes but the last two
  /** @type {[number, number] | undefined} */ cell;
  /** @type {Map<SourceFunction, number>} */ callOf = new Map(); // the shown call of each function
  /** @type {Set<SourceFunction>} */ open = new Set();
  /** @type {any} */ look;
  /** @type {any} */ canvas; // the enlarged tensor, what is said of a cell, and its arithmetic
  /** @type {any} */ readout;
  /** @type {any} */ terms;

  /** @param {HTMLElement} parent */
  constructor(parent) {
    this.root = element("div", "code-view");
    this.source = element("div", "source");
    this.detail = element("aside", "detail");
    this.detail.setAttribute("aria-live", "polite");
    this.root.append(this.source, this.detail);
    parent.append(this.root);
  }

  destroy() {
    this.root.remove();
  }

  /** @param {Uint8Array<ArrayBuffer>} bytes */
  update(bytes) {
    const [header, rest] = headerOf(bytes);
    const whole = rest.slice(0, rest.byteLength - (rest.byteLength % 4));
    this.header = header;
    this.tensors = new Tensors(header, new Float32Array(whole.buffer));
    const { difference } = header;
    this.chosen = difference?.operation;
    if (this.chosen === undefined) { // the pattern of the first attention, else the first result with two axes
      const found = header.operations.findIndex((/** @type {Operation} */ one) => one.name === "softmax" && one.kept);
      this.chosen = found < 0 ? header.operations.findIndex((/** @type {Operation} */ one) => one.kept && one.shape.length > 1) : found;
    }
    for (const one of header.functions) { // show the call in which the chosen operation ran
      const at = one.calls.findIndex((/** @type {Call} */ call) => Object.values(call.lines).some((found) => found.includes(this.chosen ?? -1)));
      this.callOf.set(one, Math.max(0, at));
      if (one.open || at >= 0 || header.functions.length <= FEW) this.open.add(one);
    }
    this.draw();
  }

  draw() {
    const { isDark } = theme(this.root), { diverging, sequential } = this.header.colours;
    this.look = { ...canvasTheme(this.root), diverging: palette(diverging[isDark]), sequential: palette(sequential[isDark]) };
    this.source.replaceChildren(...this.header.functions.map((one) => this.functionOf(one)));
    const line = this.source.querySelector(".result:has(.chosen)");
    if (line && this.root.clientWidth < NARROW) line.after(this.detail); // below its line, where a reader of a phone is
    else this.root.append(this.detail);
    this.drawDetail();
  }

  // ── the source ──

  /** @param {SourceFunction} one */
  functionOf(one) {
    const part = element("details", "function"), head = element("summary", "head");
    part.open = this.open.has(one);
    part.ontoggle = () => { this.open[part.open ? "add" : "delete"](one); };
    head.append(element("h3", "", one.name), element("span", "file", `${one.file}:${one.first}`));
    if (one.calls.length > 1) {
      const choice = element("select");
      choice.setAttribute("aria-label", `Call of ${one.name}`);
      one.calls.forEach((call, at) => {
        const name = call.path || "the module itself";
        choice.append(new Option(call.number ? `${name} (call ${call.number + 1})` : name, String(at)));
      });
      choice.value = String(this.callOf.get(one));
      choice.onchange = () => { this.callOf.set(one, Number(choice.value)); this.draw(); };
      head.append(choice);
    } else if (one.calls[0].path) {
      head.append(element("span", "file", one.calls[0].path));
    }
    const lines = element("div", "lines");
    const call = one.calls[this.callOf.get(one) ?? 0];
    one.lines.forEach((text, at) => { lines.append(...this.line(one.file, one.first + at, text, call.lines[one.first + at] ?? [])); });
    part.append(head, lines);
    return part;
  }

  /** @param {string} file @param {number} number @param {string} text @param {number[]} operations */
  line(file, number, text, operations) {
    const code = element("code", "", text || " ");
    const isChosen = this.chosen !== undefined && operations.includes(this.chosen);
    const { difference } = this.header;
    if (difference?.line === `${file}:${number}`) code.classList.add("differs");
    if (isChosen) code.classList.add("chosen");
    const result = element("div", "result");
    if (operations.length) {
      const last = operations[operations.length - 1], operation = this.header.operations[last];
      const open = element("button", isChosen ? "chosen" : "");
      open.type = "button";
      open.setAttribute("aria-label", `Line ${number}: ${operation.name}, ${this.shapeOf(operation)}`);
      open.onclick = () => this.choose(last);
      open.append(this.thumbnail(operation, last), element("span", "shape", this.shapeOf(operation)), element("span", "range", rangeOf(operation)));
      result.append(open);
      if (operation.nan) result.append(element("span", "warning", `${operation.nan} NaN`));
    }
    return [element("span", "number", String(number)), code, result];
  }

  /** @param {Operation} operation */
  shapeOf({ axes, shape }) {
    return shape.length ? axes.map((axis, at) => (/^\d+$|^\?$/.test(axis) ? String(shape[at]) : `${axis} ${shape[at]}`)).join(" · ") : "a number";
  }

  /** @param {Operation} operation @param {number} number */
  thumbnail(operation, number) {
    const canvas = element("canvas"), matrix = this.matrix(number, []);
    canvas.setAttribute("aria-hidden", "true");
    if (!matrix) return element("span", "none");
    canvas.width = matrix.columns;
    canvas.height = matrix.rows;
    const stretched = Math.min(THUMB.width / matrix.columns, THUMB.height / matrix.rows, 8);
    canvas.style.width = `${Math.max(4, matrix.columns * stretched)}px`;
    canvas.style.height = `${Math.max(4, matrix.rows * stretched)}px`;
    const image = new ImageData(matrix.columns, matrix.rows);
    const words = new Uint32Array(image.data.buffer);
    for (let i = 0; i < matrix.rows; i++) for (let j = 0; j < matrix.columns; j++) words[i * matrix.columns + j] = this.word(operation, matrix.at(i, j));
    pen(canvas).putImageData(image, 0, 0);
    return canvas;
  }

  /** The last two axes of a result at some indices of the others. @param {number} number @param {number[]} lead */
  matrix(number, lead) {
    const { kept } = this.tensors.of(number);
    if (!kept?.length) return undefined;
    const [rows, columns] = kept.length > 1 ? kept.slice(-2) : [1, kept[0]];
    const first = kept.slice(0, -2).map((_, axis) => lead[axis] ?? 0);
    const index = (/** @type {number} */ i, /** @type {number} */ j) => (kept.length > 1 ? [...first, i, j] : [j]);
    return { rows, columns, index, at: (/** @type {number} */ i, /** @type {number} */ j) => this.tensors.at(number, index(i, j)) ?? Number.NaN };
  }

  /** The colour of a number among those of its tensor. @param {Operation} operation @param {number} value */
  word({ low = 0, high = 0 }, value) {
    const { diverging, sequential, dark } = this.look;
    if (Number.isNaN(value)) return diverging.words[254];
    if (!Number.isFinite(value)) return dark ? 0xff3a3a3a : 0xffd0d0d0;
    const limit = Math.max(Math.abs(low), Math.abs(high)) || 1;
    const share = low < 0 ? (value / limit + 1) / 2 : value / limit;
    return (low < 0 ? diverging : sequential).words[Math.round(253 * Math.min(1, Math.max(0, share)))];
  }

  /** @param {number} number */
  choose(number) {
    this.chosen = number;
    this.cell = undefined;
    this.lead = [];
    this.draw();
  }

  // ── the enlarged tensor ──

  drawDetail() {
    const number = this.chosen;
    if (number === undefined || number < 0) return this.detail.replaceChildren();
    const operation = this.header.operations[number];
    const title = element("h3", "", operation.name);
    const parts = [title, element("p", "shape", `${this.shapeOf(operation)}${operation.dtype === "float32" ? "" : ` ${operation.dtype}`}`)];
    const { difference } = this.header;
    if (difference?.operation === number) parts.push(element("p", "warning", difference.reason));
    parts.push(this.steps(number), this.choices(operation));
    const matrix = this.matrix(number, this.lead);
    if (!matrix) return this.detail.replaceChildren(...parts, element("p", "", "Its numbers were not kept."));
    this.canvas = element("canvas");
    this.readout = element("p", "readout", "");
    this.terms = element("div", "terms");
    this.paint(number, operation, matrix);
    const { kept = [], shape } = operation;
    const isCut = kept.some((/** @type {number} */ n, /** @type {number} */ axis) => n < shape[axis]);
    const cut = isCut ? [element("p", "file", `Shown are the first ${kept.join(" × ")} of ${shape.join(" × ")}.`)] : [];
    const range = element("p", "file", `${rangeOf(operation)}${operation.infinite ? ` · ${operation.infinite} infinite` : ""}${operation.nan ? ` · ${operation.nan} NaN` : ""}`);
    this.detail.replaceChildren(...parts, this.canvas, range, ...cut, this.readout, this.terms);
    this.say(number, matrix);
  }

  /** The other operations of the line. @param {number} number */
  steps(number) {
    const bar = element("div", "steps");
    for (const one of this.header.functions) {
      const call = one.calls[this.callOf.get(one) ?? 0];
      const line = Object.values(call.lines).find((/** @type {any} */ found) => found.includes(number));
      if (!line || /** @type {number[]} */ (line).length < 2) continue;
      for (const step of /** @type {number[]} */ (line)) {
        const name = this.header.operations[step].name;
        const choice = labelled(name, `Show the result of ${name}`, () => this.choose(step), step === number ? "chosen" : "");
        choice.setAttribute("aria-pressed", String(step === number));
        bar.append(choice);
      }
    }
    return bar;
  }

  /** Choosers of all axes but the last two. @param {Operation} operation */
  choices({ kept = [], axes }) {
    const bar = element("div", "axes");
    kept.slice(0, -2).forEach((n, axis) => {
      if (n < 2) return;
      const choice = element("select"), label = element("label", "", `${axes[axis]} `);
      for (let at = 0; at < n; at++) choice.append(new Option(String(at), String(at)));
      choice.value = String(this.lead[axis] ?? 0);
      choice.onchange = () => { this.lead[axis] = Number(choice.value); this.drawDetail(); };
      label.append(choice);
      bar.append(label);
    });
    return bar;
  }

  /** @param {number} number @param {Operation} operation @param {NonNullable<ReturnType<CodeView["matrix"]>>} matrix */
  paint(number, operation, matrix) {
    const { rows, columns } = matrix, { dpr, font, text, mark } = this.look;
    const width = Math.min(LARGEST, this.detail.clientWidth || LARGEST);
    const size = Math.max(2, Math.min(40, (width - GAP) / columns, LARGEST / rows));
    const labels = [this.labels(operation, -2, rows), this.labels(operation, -1, columns)];
    const top = 26, height = top + size * rows + 4;
    this.canvas.width = Math.round((GAP + size * columns) * dpr);
    this.canvas.height = Math.round(height * dpr);
    Object.assign(this.canvas.style, { width: `${GAP + size * columns}px`, height: `${height}px` });
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "img");
    this.canvas.setAttribute("aria-label", `${operation.name}: ${rows} rows, ${columns} columns. Arrow keys move the cell.`);
    const at = pen(this.canvas);
    at.scale(dpr, dpr);
    at.font = `11px ${font}`;
    at.textBaseline = "middle";
    for (let i = 0; i < rows; i++) {
      for (let j = 0; j < columns; j++) {
        const word = this.word(operation, matrix.at(i, j));
        at.fillStyle = `rgb(${word & 255} ${(word >> 8) & 255} ${(word >> 16) & 255})`;
        at.fillRect(GAP + j * size, top + i * size, size - (size > 6 ? 1 : 0), size - (size > 6 ? 1 : 0));
      }
    }
    at.fillStyle = text;
    at.textAlign = "right";
    if (size >= 10) labels[0].forEach((label, i) => at.fillText(short(label), GAP - 6, top + (i + 0.5) * size));
    at.textAlign = "center";
    if (size >= 18) labels[1].forEach((label, j) => at.fillText(short(label), GAP + (j + 0.5) * size, top - 10));
    if (this.cell) {
      at.strokeStyle = mark;
      at.lineWidth = 2;
      at.strokeRect(GAP + this.cell[1] * size, top + this.cell[0] * size, size - 1, size - 1);
    }
    const cellOf = (/** @type {MouseEvent} */ event) => {
      const box = this.canvas.getBoundingClientRect();
      const i = Math.floor((event.clientY - box.top - top) / size), j = Math.floor((event.clientX - box.left - GAP) / size);
      return i >= 0 && j >= 0 && i < rows && j < columns ? /** @type {[number, number]} */ ([i, j]) : undefined;
    };
    this.canvas.onmousemove = (event) => this.say(number, matrix, cellOf(event));
    this.canvas.onmouseleave = () => this.say(number, matrix);
    const move = (/** @type {[number, number] | undefined} */ cell) => {
      this.cell = cell;
      this.paint(number, operation, matrix);
      this.say(number, matrix);
    };
    this.canvas.onclick = (event) => move(cellOf(event));
    this.canvas.onkeydown = (event) => {
      const step = /** @type {Record<string, [number, number]>} */ ({ ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] })[event.key];
      if (!step) return;
      event.preventDefault();
      const [i, j] = this.cell ?? [0, 0];
      move(this.cell ? [Math.min(rows - 1, Math.max(0, i + step[0])), Math.min(columns - 1, Math.max(0, j + step[1]))] : [0, 0]);
    };
  }

  /** Tokens on axes of positions, numbers on others. @param {Operation} operation @param {number} axis @param {number} n */
  labels({ axes, shape }, axis, n) {
    const name = axes.at(axis) ?? "", { labels } = this.header;
    const isTokens = ["pos", "query", "key"].includes(name) && labels.length === shape.at(axis);
    return Array.from({ length: n }, (_, at) => (isTokens ? `${at} · ${labels[at]}` : String(at)));
  }

  /** Say the number of a cell and its arithmetic; the locked cell if the pointer is on none. */
  /** @param {number} number @param {NonNullable<ReturnType<CodeView["matrix"]>>} matrix @param {[number, number]} [cell] */
  say(number, matrix, cell = this.cell) {
    if (!cell) {
      this.readout.textContent = "Point at a cell to read it; click to keep it.";
      return this.terms.replaceChildren();
    }
    const operation = this.header.operations[number], index = matrix.index(...cell);
    const names = index.map((i, axis) => `${/^\d+$|^\?$/.test(operation.axes[axis]) ? `axis ${axis}` : operation.axes[axis]} ${i}`);
    this.readout.textContent = `${names.join(", ")}: ${shown(matrix.at(...cell))}`;
    this.terms.replaceChildren(...this.tensors.arithmetic(number, index).map((line) => element("p", "", line)));
  }
}

/** @param {string} label */
const short = (label) => (label.length > 8 ? `${label.slice(0, 7)}…` : label);

/** @param {Operation} operation */
const rangeOf = ({ low, high }) => (low === undefined || low === null || high === undefined ? "" : low === high ? shown(low) : `${shown(low)} … ${shown(high)}`);
