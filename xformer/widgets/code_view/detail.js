// The enlarged tensor of a line; of two modules, both below each other.

import { element, labelled, pen } from "../shared.js";
import { layerOf, pixels, rangeOf, scaleOf, shapeOf, shown } from "./tensors.js";

/** @typedef {import("./tensors.js").Operation} Operation */
/** @typedef {import("./tensors.js").Matrix} Matrix */

const LARGEST = 460; // px
const GAP = 60; // px: room for the labels of the rows
const TOP = 26; // px: room for those of the columns

export class Detail {
  /** @type {number[]} */ lead = []; // the indices of all axes but the last two
  /** @type {[number, number] | undefined} */ cell;
  number = -1;
  /** @type {Element | null | undefined} */ line; // of which it is a result

  /** @param {import("./view.js").CodeView} view */
  constructor(view) {
    this.view = view;
    this.root = element("aside", "detail");
    this.readout = element("p", "readout", "");
    this.readout.setAttribute("aria-live", "polite");
    this.terms = element("div", "terms");
  }

  /** @param {number} number an operation @param {Element | null | undefined} line */
  show(number, line) {
    this.line = line;
    if (number !== this.number) {
      this.lead = [];
      this.cell = undefined;
    }
    this.number = number;
    this.draw();
  }

  draw() {
    const { header } = this.view, number = this.number, operation = header.operations[number];
    if (!operation) return this.root.replaceChildren();
    /** @type {HTMLElement[]} */
    const parts = [element("h3", "", operation.name), element("p", "shape", `${shapeOf(operation)}${operation.dtype === "float32" ? "" : ` ${operation.dtype ?? ""}`}`)];
    const { difference, counterparts } = header;
    if (difference?.operation === number) parts.push(element("p", "warning", difference.reason));
    parts.push(this.steps(), this.choices(operation));
    const other = counterparts[number];
    /** @type {[number, string][]} */
    const both = other === undefined ? [[number, ""]] : number < other ? [[number, "original"], [other, "changed"]] : [[other, "original"], [number, "changed"]];
    for (const [at, side] of both) parts.push(...this.tensor(at, side));
    this.root.replaceChildren(...parts, this.readout, this.terms);
    this.say();
  }

  /** One tensor with its range. @param {number} number @param {string} side */
  tensor(number, side) {
    const operation = this.view.header.operations[number], matrix = this.view.tensors.matrix(number, this.lead);
    const { kept = [], shape } = operation;
    /** @type {HTMLElement[]} */
    const parts = side ? [element("h4", "", side)] : [];
    if (matrix) parts.push(this.heatmap(number, operation, matrix));
    else parts.push(element("p", "", this.missing(operation)));
    const counts = [[operation.infinite, "infinite"], [operation.huge, "beyond ±1e30"], [operation.nan, "NaN"]].filter(([n]) => n).map(([n, name]) => `${n} ${name}`);
    parts.push(element("p", "file", [rangeOf(operation), ...counts].filter(Boolean).join(" · ")));
    if (kept.some((/** @type {number} */ n, /** @type {number} */ axis) => n < shape[axis])) parts.push(element("p", "file", `Shown are the first ${kept.join(" × ")} of ${shape.join(" × ")}.`));
    return parts;
  }

  /** Why a tensor has no picture. @param {Operation} operation */
  missing(operation) {
    if (!operation.shape.length) return "One number.";
    const layer = layerOf(operation.module);
    return operation.low === undefined || !layer ? "Its numbers were not kept." : `Not all numbers fit; code_view(…, at="${layer}") keeps those of this layer.`;
  }

  /** The other operations of the line. */
  steps() {
    const bar = element("div", "steps"), { header, lines } = this.view, line = this.line;
    const steps = (line && lines.get(line)) ?? new Map();
    const mine = [...steps.keys()].filter((number) => this.view.tensors.isChanged(number) === this.view.tensors.isChanged(this.number));
    if (mine.length < 2) return bar;
    for (const number of mine) {
      const name = steps.get(number) || header.operations[number].name;
      const choice = labelled(name, `Show the result of ${name}`, () => this.view.choose(number, line), number === this.number ? "chosen" : "");
      choice.setAttribute("aria-pressed", String(number === this.number));
      bar.append(choice);
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
      choice.onchange = () => {
        this.lead[axis] = Number(choice.value);
        this.draw();
        this.root.querySelectorAll("select")[[...bar.querySelectorAll("select")].indexOf(choice)]?.focus();
      };
      label.append(choice);
      bar.append(label);
    });
    return bar;
  }

  /** @param {number} number @param {Operation} operation @param {Matrix} matrix */
  heatmap(number, operation, matrix) {
    const canvas = element("canvas"), { rows, columns } = matrix;
    canvas.tabIndex = 0;
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", `${operation.name}: ${rows} rows, ${columns} columns. Arrow keys move the cell.`);
    const size = this.paint(canvas, number, matrix);
    const cellOf = (/** @type {MouseEvent} */ event) => {
      const box = canvas.getBoundingClientRect();
      const i = Math.floor((event.clientY - box.top - TOP) / size), j = Math.floor((event.clientX - box.left - GAP) / size);
      return i >= 0 && j >= 0 && i < rows && j < columns ? /** @type {[number, number]} */ ([i, j]) : undefined;
    };
    canvas.onmousemove = (event) => this.say(cellOf(event));
    canvas.onmouseleave = () => this.say();
    const move = (/** @type {[number, number] | undefined} */ cell) => {
      this.cell = cell;
      this.paint(canvas, number, matrix);
      this.say();
    };
    canvas.onclick = (event) => move(cellOf(event));
    canvas.onkeydown = (event) => {
      const step = /** @type {Record<string, [number, number]>} */ ({ ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] })[event.key];
      if (!step) return;
      event.preventDefault();
      const [i, j] = this.cell ?? [0, 0];
      move(this.cell ? [Math.min(rows - 1, Math.max(0, i + step[0])), Math.min(columns - 1, Math.max(0, j + step[1]))] : [0, 0]);
    };
    return canvas;
  }

  /** Draw a heatmap with its labels; return the size of a cell. @param {HTMLCanvasElement} canvas @param {number} number @param {Matrix} matrix */
  paint(canvas, number, matrix) {
    const { header, look } = this.view, { rows, columns } = matrix, { dpr, font, text, mark } = look;
    const width = Math.min(LARGEST, this.root.clientWidth || LARGEST);
    const size = Math.max(1, Math.min(40, (width - GAP) / columns, LARGEST / rows));
    canvas.width = Math.round((GAP + size * columns) * dpr);
    canvas.height = Math.round((TOP + size * rows + 4) * dpr);
    Object.assign(canvas.style, { width: `${GAP + size * columns}px`, height: `${TOP + size * rows + 4}px` });
    const small = element("canvas"), at = pen(canvas);
    Object.assign(small, { width: columns, height: rows });
    pen(small).putImageData(new ImageData(pixels(matrix, scaleOf(header, number), look), columns), 0, 0);
    at.scale(dpr, dpr);
    at.imageSmoothingEnabled = false;
    at.drawImage(small, GAP, TOP, size * columns, size * rows);
    if (size > 6) { // thin gaps between the cells
      for (let i = 1; i <= rows; i++) at.clearRect(GAP, TOP + i * size - 1, size * columns, 1);
      for (let j = 1; j <= columns; j++) at.clearRect(GAP + j * size - 1, TOP, 1, size * rows);
    }
    const [left, above] = [this.labels(number, -2, rows), this.labels(number, -1, columns)];
    Object.assign(at, { font: `11px ${font}`, textBaseline: "middle", fillStyle: text, textAlign: "right" });
    if (size >= 10) left.forEach((label, i) => { at.fillText(short(label), GAP - 6, TOP + (i + 0.5) * size); });
    at.textAlign = "center";
    if (size >= 18) above.forEach((label, j) => { at.fillText(label.length * 7 < size ? label : String(j), GAP + (j + 0.5) * size, TOP - 10); });
    if (this.cell) {
      Object.assign(at, { strokeStyle: mark, lineWidth: 2 });
      at.strokeRect(GAP + this.cell[1] * size, TOP + this.cell[0] * size, size - 1, size - 1);
    }
    return size;
  }

  /** Tokens on axes of positions, numbers on others. @param {number} number @param {number} axis @param {number} n */
  labels(number, axis, n) {
    const { axes, shape } = this.view.header.operations[number], { labels } = this.view.header;
    const isTokens = ["pos", "query", "key"].includes(axes.at(axis) ?? "") && labels.length === shape.at(axis);
    return Array.from({ length: n }, (_, at) => (isTokens ? `${at} · ${labels[at]}` : String(at)));
  }

  /** Say the number of a cell, in both modules, and its arithmetic; the locked cell if the pointer is on none. */
  say(cell = this.cell) {
    const { header, tensors } = this.view, operation = header.operations[this.number], matrix = tensors.matrix(this.number, this.lead);
    if (!cell || !matrix) {
      this.readout.textContent = matrix ? "Point at a cell to read it; click to keep it." : "";
      return this.terms.replaceChildren();
    }
    const index = matrix.index(...cell), other = header.counterparts[this.number];
    const names = index.map((i, axis) => `${/^\d+$|^\?$/.test(operation.axes[axis]) ? `axis ${axis}` : operation.axes[axis]} ${i}`);
    const theirs = other === undefined ? undefined : tensors.at(other, index);
    const [mine, side] = [shown(matrix.at(...cell)), tensors.isChanged(this.number) ? "original" : "changed"];
    this.readout.textContent = `${names.join(", ")}: ${mine}${theirs === undefined ? "" : `, ${side} ${shown(theirs)}`}`;
    this.terms.replaceChildren(...tensors.arithmetic(this.number, index).map((line) => element("p", "", line)));
  }
}

/** @param {string} label */
const short = (label) => (label.length > 8 ? `${label.slice(0, 7)}…` : label);
