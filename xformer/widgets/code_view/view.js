// The source of a module, and beside each line what it computed; of two modules, side by side.
//
//   const view = new CodeView(element);
//   view.update(bytes);               // of `xformer.widgets.code_view.code_data`

import { canvasTheme, element, headerOf, palette, pen, theme } from "../shared.js";
import { Detail } from "./detail.js";
import { folded, layerOf, pixels, rangeOf, scaleOf, shapeOf, Tensors } from "./tensors.js";

/** @typedef {import("./tensors.js").Operation} Operation */
/** @typedef {[number, string]} Step  an operation, and what the line called to compute it */
/** @typedef {{ path: string, number: number, lines: Record<string, Step[]> }} Call */
/** @typedef {{ file: string, name: string, first: number, lines: string[], calls: Call[] }} Side  a function of one module */
/** @typedef {{ sides: (Side | null)[], open: boolean, rows?: [number | null, number | null][] }} SourceFunction */

const THUMB = { width: 72, height: 26 };
const NARROW = 720, TIGHT = 1000; // px: the enlarged tensor is below its line; the results are below their lines
const FEW = 3; // functions that are all open at first
const SIDES = ["original", "changed"];

export class CodeView {
  /** @type {Tensors} */ tensors;
  /** @type {any} */ header;
  /** @type {number} */ chosen = -1; // an operation
  /** @type {Map<SourceFunction, number>} */ callOf = new Map(); // the shown call of each function
  /** @type {Set<SourceFunction>} */ open = new Set();
  /** @type {Map<Element, Map<number, string>>} */ lines = new Map(); // the operations of each line that is shown, with what it called
  /** @type {Element | null | undefined} */ line; // the chosen one
  /** @type {any} */ look;
  pointer = [-1, -1];

  /** @param {HTMLElement} parent */
  constructor(parent) {
    this.root = element("div", "code-view");
    this.source = element("div", "source");
    this.detail = new Detail(this);
    this.root.append(this.source, this.detail.root);
    parent.append(this.root);
    this.source.onmousemove = ({ target, screenX, screenY }) => { // also sent when the page scrolls below the pointer
      if (screenX !== this.pointer[0] || screenY !== this.pointer[1]) this.preview(target);
      this.pointer = [screenX, screenY];
    };
    this.source.onmouseleave = () => {
      const focused = this.source.querySelector(":focus-visible"), number = operationAt(focused);
      if (number === undefined) this.detail.show(this.chosen, this.line);
      else this.preview(focused);
    };
    this.source.addEventListener("focusin", (event) => this.preview(event.target));
    this.source.addEventListener("focusout", () => this.detail.show(this.chosen, this.line));
    this.source.onclick = ({ target }) => {
      const number = operationAt(target);
      if (number !== undefined && !getSelection()?.toString()) this.choose(number, lineAt(target));
    };
    this.resized = new ResizeObserver(() => { if (this.fit() && this.header) this.place(); });
    this.resized.observe(this.root);
  }

  /** Choose the narrow or the wide layout; return whether it changed. */
  fit() {
    const { classList, clientWidth } = this.root, wasNarrow = classList.contains("narrow");
    if (clientWidth > 0) classList.toggle("tight", clientWidth < TIGHT);
    return clientWidth > 0 && classList.toggle("narrow", clientWidth < NARROW) !== wasNarrow;
  }

  destroy() {
    this.resized.disconnect();
    this.root.remove();
  }

  /** @param {Uint8Array<ArrayBuffer>} bytes */
  update(bytes) {
    if (this.bytes && same(this.bytes, bytes)) return;
    this.bytes = bytes;
    const [header, rest] = headerOf(bytes);
    const whole = rest.slice(0, rest.byteLength - (rest.byteLength % 4));
    this.header = header;
    this.tensors = new Tensors(header, new Float32Array(whole.buffer));
    this.chosen = header.start;
    this.callOf.clear();
    this.open.clear();
    for (const one of header.functions) { // show the call in which the chosen operation ran
      const at = callsOf(one).findIndex((call) => Object.values(call.lines).some((steps) => steps.some(([number]) => number === this.chosen)));
      this.callOf.set(one, Math.max(0, at));
      if (one.open || at >= 0 || header.functions.length <= FEW) this.open.add(one);
    }
    this.follow(header.operations[this.chosen]?.module ?? "");
    this.draw();
    if (header.difference && header.changed !== null) this.scrollTo(this.source.querySelector(".differs"));
  }

  /** Show the calls of the same layer in all functions. @param {string} path */
  follow(path) {
    const layer = layerOf(path);
    for (const one of this.header.functions) {
      const calls = callsOf(one), exact = calls.findIndex((call) => call.path === path);
      const at = exact >= 0 || !layer ? exact : calls.findIndex((call) => layerOf(call.path) === layer);
      const isThere = exact < 0 && layerOf(calls[this.callOf.get(one) ?? 0].path) === layer;
      if (at >= 0 && !isThere) this.callOf.set(one, at);
    }
  }

  draw() {
    const { isDark } = theme(this.root), { diverging, sequential } = this.header.colours;
    this.look = { ...canvasTheme(this.root), diverging: palette(diverging[isDark]), sequential: palette(sequential[isDark]) };
    this.fit();
    this.lines.clear();
    const functions = this.header.functions.map((/** @type {SourceFunction} */ one) => this.functionOf(one));
    this.source.replaceChildren(...functions);
    if (!functions.length) this.source.append(element("p", "", "Only PyTorch's own code ran, so there are no lines to show."));
    this.place();
  }

  /** Mark the chosen line, and show its tensor: beside the source, or below the line where the view is narrow. */
  place() {
    for (const marked of this.source.querySelectorAll(".chosen")) marked.classList.remove("chosen");
    const line = (this.line = this.lineOf(this.chosen));
    line?.classList.add("chosen");
    if (line && this.root.classList.contains("narrow")) line.after(this.detail.root);
    else this.root.append(this.detail.root);
    this.detail.show(this.chosen, line);
  }

  /** A line that has an operation: the chosen one, if it does. @param {number} number */
  lineOf(number) {
    const isThere = (/** @type {Element | null | undefined} */ line) => !!line && this.lines.get(line)?.has(number);
    return isThere(this.line) ? this.line : [...this.lines.keys()].find(isThere);
  }

  /** @param {number} number an operation @param {Element | null | undefined} line */
  choose(number, line) {
    this.chosen = number;
    this.line = line;
    this.place();
  }

  /** Show the tensor of a line while the pointer or the focus is on it. @param {EventTarget | null} target */
  preview(target) {
    const number = operationAt(target);
    const line = lineAt(target), isShown = number === this.detail.number && line === this.detail.line;
    if (number !== undefined && !isShown && !this.root.classList.contains("narrow")) this.detail.show(number, line);
  }

  /** Scroll this document only, not one that contains it. @param {Element | null} line */
  scrollTo(line) {
    const view = line?.ownerDocument.defaultView;
    if (line && view) view.scrollTo({ top: view.scrollY + line.getBoundingClientRect().top - view.innerHeight / 3 });
  }

  // ── the source ──

  /** @param {SourceFunction} one */
  functionOf(one) {
    const part = element("details", "function"), head = element("summary", "head");
    part.open = this.open.has(one);
    part.ontoggle = () => { this.open[part.open ? "add" : "delete"](one); };
    const sides = one.sides.filter((side) => side !== null), calls = callsOf(one);
    const names = [...new Set(sides.map((side) => side.name))], places = [...new Set(sides.map((side) => `${side.file}:${side.first}`))];
    head.append(element("h3", "", names.join(" | ")), element("span", "file", places.join(" | ")));
    if (sides.length < one.sides.length) head.append(element("span", "file", `only ${SIDES[one.sides.findIndex((side) => side !== null)]}`));
    if (calls.length > 1) {
      const choice = element("select");
      choice.setAttribute("aria-label", `Call of ${names[0]}`);
      calls.forEach((call, at) => {
        const name = call.path || "the module itself";
        choice.append(new Option(call.number ? `${name} (call ${call.number + 1})` : name, String(at)));
      });
      choice.value = String(this.callOf.get(one));
      choice.onchange = () => { this.chooseCall(one, Number(choice.value)); };
      head.append(choice);
    } else if (calls[0].path) {
      head.append(element("span", "file", calls[0].path));
    }
    part.append(head, this.linesOf(one));
    return part;
  }

  /** Show another call, of this function and of those that ran in the same layer. @param {SourceFunction} one @param {number} at */
  chooseCall(one, at) {
    const before = new Map(this.callOf), chosen = this.chosen;
    this.callOf.set(one, at);
    this.follow(callsOf(one)[at].path);
    for (const each of this.header.functions) { // the same step of the same line stays chosen
      const [old, now] = [before, this.callOf].map((calls) => callsOf(each)[calls.get(each) ?? 0].lines);
      for (const [line, steps] of Object.entries(old)) {
        const step = steps.findIndex(([number]) => number === chosen);
        if (step >= 0) this.chosen = (now[line]?.[step] ?? [chosen])[0];
      }
    }
    const place = this.header.functions.indexOf(one);
    this.draw();
    this.source.children[place].querySelector("select")?.focus();
  }

  /** @param {SourceFunction} one */
  linesOf(one) {
    const isTwo = !!one.rows, lines = element("div", isTwo ? "lines two" : one.sides.length > 1 ? "lines both" : "lines");
    if (one.sides.length > 1) lines.append(...SIDES.map((side) => element("span", "side file", side)));
    const calls = one.sides.map((side) => side && this.callIn(one, side));
    const rows = one.rows ?? (one.sides[0] ?? one.sides[1])?.lines.map((_, at) => one.sides.map((side) => (side ? at : null))) ?? [];
    const cells = rows.map((row) => one.sides.map((side, at) => {
      const place = row[at] ?? null;
      return side && place !== null ? { side, number: side.first + place, text: side.lines[place], steps: calls[at]?.lines[side.first + place] ?? [] } : null;
    }));
    const isBusy = cells.map((row) => row.some((cell) => cell?.steps.length) || (isTwo && row[0]?.text !== row[1]?.text));
    for (const [begin, end] of folded(isBusy, cells.map((row) => row.every((cell) => !cell?.text.trim())))) {
      const drawn = () => cells.slice(begin, end).map((row) => this.drawLine(row, isTwo));
      if (end - begin < 2) lines.append(...drawn());
      else {
        const fold = element("button", "fold", `⋯ ${end - begin} lines without tensors`);
        fold.type = "button";
        fold.onclick = () => fold.replaceWith(...drawn());
        lines.append(fold);
      }
    }
    return lines;
  }

  /** The shown call of a function in one module: the same module's as in the first. @param {SourceFunction} one @param {Side} side */
  callIn(one, side) {
    const at = this.callOf.get(one) ?? 0, { path, number } = callsOf(one)[at];
    return side.calls.find((call) => call.path === path && call.number === number) ?? side.calls[Math.min(at, side.calls.length - 1)];
  }

  /** @param {({ side: Side, number: number, text: string, steps: Step[] } | null)[]} cells @param {boolean} isTwo */
  drawLine(cells, isTwo) {
    const line = element("div", "line"), { difference, differing } = this.header;
    cells.forEach((cell, at) => {
      const isApart = isTwo && cells[0]?.text !== cells[1]?.text, sign = isApart ? "−+"[at] : "";
      const shownCell = isTwo ? cell : (cells[0] ?? cells[1]); // the same source: its text once, with both results
      if (isTwo || !line.childElementCount) line.append(element("span", "number", shownCell ? `${sign}${shownCell.number}` : ""), this.codeOf(shownCell?.text));
      const result = element("div", "result");
      if (cells.length > 1) result.dataset.side = SIDES[at];
      if (cell?.steps.length) {
        const number = cell.steps[cell.steps.length - 1][0];
        result.append(this.resultOf(number, cell.number, cells.length > 1 ? SIDES[at] : ""));
        line.dataset.operation ??= String(number);
        this.lines.set(line, new Map([...(this.lines.get(line) ?? []), ...cell.steps]));
        if (cell.steps.some(([step]) => differing.includes(step))) line.classList.add("apart");
      }
      if (difference && cell && !at && difference.line === `${cell.side.file}:${cell.number}`) line.classList.add("differs");
      if (isTwo && at && cells[0]?.text === cell?.text) line.classList.add("same");
      line.append(result);
    });
    return line;
  }

  codeOf(text = "") {
    const code = element("code", "", text || " "), indent = text.length - text.trimStart().length + 4;
    code.style.setProperty("--indent", `${indent}ch`); // of what is wrapped
    return code;
  }

  /** @param {number} number @param {number} line @param {string} side */
  resultOf(number, line, side) {
    const operation = this.header.operations[number], open = element("button");
    open.type = "button";
    open.dataset.operation = String(number);
    open.setAttribute("aria-label", `Line ${line}${side && `, ${side}`}: ${operation.name}, ${shapeOf(operation)}`);
    open.append(this.thumbnail(number), element("span", "shape", shapeOf(operation)));
    const range = element("span", "range", rangeOf(operation));
    if (operation.nan) range.append(element("strong", "warning", ` ${operation.nan} NaN`));
    open.append(range);
    return open;
  }

  /** @param {number} number */
  thumbnail(number) {
    const matrix = this.tensors.matrix(number, []);
    if (!matrix) return element("span", "none");
    const canvas = element("canvas");
    canvas.setAttribute("aria-hidden", "true");
    const stretched = Math.min(THUMB.width / matrix.columns, THUMB.height / matrix.rows, 8);
    Object.assign(canvas.style, { width: `${Math.max(4, matrix.columns * stretched)}px`, height: `${Math.max(4, matrix.rows * stretched)}px` });
    canvas.width = matrix.columns;
    canvas.height = matrix.rows;
    pen(canvas).putImageData(new ImageData(pixels(matrix, scaleOf(this.header, number), this.look), matrix.columns), 0, 0);
    return canvas;
  }
}

/** @param {SourceFunction} one @returns {Call[]} */
const callsOf = (one) => (one.sides[0] ?? one.sides[1])?.calls ?? [];

/** @param {EventTarget | null} target */
const lineAt = (target) => (target instanceof Element ? target.closest(".line") : null);

/** The operation of the result or line that an element belongs to. @param {EventTarget | null} target */
function operationAt(target) {
  const place = target instanceof Element ? target.closest("[data-operation]") : null;
  return place instanceof HTMLElement ? Number(place.dataset.operation) : undefined;
}

/** @param {Uint8Array} one @param {Uint8Array} other */
const same = (one, other) => one === other || (one.length === other.length && one.every((value, at) => value === other[at]));
