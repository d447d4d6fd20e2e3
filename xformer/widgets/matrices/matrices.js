// The matrices of an attention computation with their numbers. Clicking a number shows how it is computed; Play does so for a
// whole row. Words and the numbers of their vectors can be edited in place.

import { contrast, element, palette, parse, svg, theme } from "../shared.js";
import { actsOf, layOut, shownFrom, termsOf, formatted } from "./layout.js";

const played = new Set(); // the steps that have been played automatically since the page was loaded

const FRAME = `
    <div class="stage"><svg role="application" tabindex="0"
      aria-label="Matrices with their numbers. Arrow keys move from number to number, Enter shows how one is computed, or edits it."></svg></div>
    <div class="work">
      <div class="controls">
        <button class="back" type="button" aria-label="One part back">‹</button>
        <button class="play" type="button">Play</button>
        <button class="next" type="button" aria-label="One part forward">›</button>
        <span class="says" role="status"></span>
      </div>
      <div class="sum"></div>
    </div>`;

const ink = (rgb) => (contrast(rgb, [0, 0, 0]) > contrast(rgb, [255, 255, 255]) ? "#000000" : "#ffffff");

function shortened(name, room) { // without the position of a token, if it is too long with it
  const short = name.length > room ? name.replace(/^\d+ · /, "") : name;
  return short.length > room ? `${short.slice(0, room - 1)}…` : short;
}

function drawn(parent, tag, attributes, text) {
  const node = svg(tag, attributes, "", text);
  parent.append(node);
  return node;
}

function lookOf(root, colours) {
  const { isDark: dark } = theme(root);
  const [signed, share] = [palette(colours.diverging[dark]).rgb, palette(colours.sequential[dark]).rgb];
  return {
    left: colours.left[dark], right: colours.right[dark], masked: colours.masked[dark],
    fill: (matrix, value) => {
      if (value === null) return parse(colours.masked[dark]);
      const part = matrix.share ? value : 0.5 + value / matrix.largest / 2;
      return (matrix.share ? share : signed)[Math.round(253 * Math.min(1, Math.max(0, part)))];
    },
  };
}

export class Matrices {
  /** @type {any} */ data;
  /** @type {{ name: string, r: number, c: number }} */ at; // the selected number; c is −1 for the word of a row
  /** @type {any} */ place = null; // the layout, once drawn
  /** @type {ReturnType<typeof lookOf>} */ look;
  /** @type {Element} */ frames;
  /** @type {Map<string, Element>} */ cells = new Map();
  /** @type {import("./layout.js").Act[]} */ acts = [];
  /** @type {(change: object) => void} */ send = () => {};
  now = 0; // seconds
  frame = 0; // the requested animation frame
  isPlaying = false;
  matrix = (/** @type {string} */ name) => this.data.matrices.find((one) => one.name === name);

  constructor(parent) {
    this.root = element("div", "matrices");
    this.root.innerHTML = FRAME; // trusted, without user input
    parent.append(this.root);
    /** @type {(name: string) => any} */
    this.find = (name) => this.root.querySelector(name);
    this.svg = this.find("svg");
    this.isQuiet = matchMedia("(prefers-reduced-motion: reduce)").matches;
    this.find(".play").onclick = () => (this.isPlaying ? this.stop() : this.playRow());
    this.find(".back").onclick = () => this.step(-1);
    this.find(".next").onclick = () => this.step(1);
    this.svg.onkeydown = (event) => this.key(event);
    this.svg.onclick = (event) => {
      const node = event.target.closest?.("[data-at]");
      if (node) this.click(...JSON.parse(node.dataset.at));
    };
    this.observer = new ResizeObserver(() => this.root.clientWidth !== this.width && this.fit());
    this.observer.observe(this.root);
  }

  // Show other numbers. If they are unchanged, the selected row is kept and the animation continues.
  update(data) {
    const { row, ...rest } = data, text = JSON.stringify(rest);
    if (text !== this.text) {
      this.text = text;
      this.data = data;
      this.stop();
      const last = data.matrices.findLast((one) => one.drawn && one.made);
      const at = this.at && this.matrix(this.at.name);
      const isInside = at?.drawn && this.at.r < at.rows.length && this.at.c < at.columns.length && data.step === this.step_;
      const [name, c] = data.at ?? [last.name, 0];
      this.at = isInside ? this.at : { name, r: Math.min(row, last.rows.length - 1), c };
      this.step_ = data.step;
      this.place = null;
      this.show();
      this.fit();
      if (!this.isQuiet && !played.has(data.step)) this.playRow();
      played.add(data.step);
    } else this.fit(); // the theme may have changed
    if (row !== this.row && row < this.matrix(this.at.name).rows.length) this.at.r = row;
    this.row = row;
  }

  destroy() {
    this.stop();
    this.observer.disconnect();
    this.root.remove();
  }

  // Draw everything that does not change during the animation.
  fit() {
    if (!this.data) return;
    this.width = this.root.clientWidth;
    const { matrices, colours, words, most } = this.data;
    const place = (this.place = layOut(matrices, Math.max(280, this.width), innerHeight > 900));
    this.look = lookOf(this.root, colours);
    this.svg.replaceChildren();
    this.svg.style.height = `${place.height}px`;
    this.svg.style.minWidth = place.width > this.width ? `${place.width}px` : "";
    this.find(".stage").classList.toggle("scrolls", place.width > this.width);
    this.cells = new Map();
    for (const matrix of matrices.filter((one) => one.drawn)) {
      const { x, y, top, named, sumsAt } = place.places.get(matrix.name);
      drawn(this.svg, "text", { class: "title", x, y: top + 14 }, matrix.title);
      drawn(this.svg, "text", { class: "about", x, y: top + 31 }, matrix.about);
      const room = Math.floor((place.cell - 4) / 6);
      matrix.columns.forEach((name, c) => {
        drawn(this.svg, "text", { class: "column", x: x + (c + 0.5) * place.cell, y: y - 6 }, shortened(name, room));
      });
      const canEdit = named && words && matrix.rows_editable;
      matrix.rows.forEach((name, r) => {
        const middle = y + (r + 0.5) * place.row;
        if (named) {
          const node = drawn(this.svg, "text", { class: canEdit ? "label word" : "label", x: x - 8, y: middle }, name);
          if (canEdit) node.dataset.at = JSON.stringify([matrix.name, r, -1]);
        }
        matrix.values[r].forEach((value, c) => this.cells.set(`${matrix.name} ${r} ${c}`, this.drawCell(matrix, r, c, value)));
        if (matrix.sums) drawn(this.svg, "text", { class: "column", x: sumsAt + 28, y: middle + 4 }, `Σ ${formatted(matrix.sums[r])}`);
      });
      if (canEdit && words.length < most && top === 0) {
        const at = { x: x - 8, y: y + (words.length + 0.5) * place.row };
        drawn(this.svg, "text", { class: "label add", ...at }, "+ word").dataset.at = JSON.stringify([matrix.name, words.length, -1]);
        this.svg.style.height = `${Math.max(place.height, at.y + 14)}px`;
      }
    }
    this.frames = drawn(this.svg, "g", { class: "frames" });
    const rows = Math.max(...matrices.map((one) => one.rows.length));
    this.find(".sum").style.setProperty("--least", `${1.65 * (rows + 1)}rem`);
    this.draw();
  }

  drawCell(matrix, r, c, value) {
    const { x, y } = this.place.places.get(matrix.name), { cell, row } = this.place;
    const isEditable = this.data.words && matrix.editable;
    const node = drawn(this.svg, "g", { class: isEditable ? "cell editable" : "cell" });
    node.dataset.at = JSON.stringify([matrix.name, r, c]);
    const rgb = this.look.fill(matrix, value);
    drawn(node, "title", {}, `${matrix.rows[r]}, ${matrix.columns[c]}: ${value === null ? (matrix.share ? "0, masked" : "−∞") : value.toFixed(5)}`);
    drawn(node, "rect", { x: x + c * cell + 0.5, y: y + r * row + 0.5, width: cell - 1, height: row - 1, rx: 3, fill: `rgb(${rgb.join(" ")})` });
    const text = value === null && matrix.share ? "0" : formatted(value, cell < 34 && matrix.share === false ? 1 : 2);
    const size = text.length * 7 > cell - 4 ? 10.5 : Math.max(12.5, Math.min(18, cell * 0.21));
    drawn(node, "text", { class: "number", x: x + (c + 0.5) * cell, y: y + (r + 0.5) * row, style: `fill: ${ink(rgb)}; font-size: ${size}px` }, text);
    return node;
  }

  get end() { return this.acts.reduce((sum, act) => sum + act.seconds, 0); }

  /** The current act and its progress. @returns {[import("./layout.js").Act, number]} */
  current() {
    let before = 0;
    for (const act of this.acts) {
      if (this.now < before + act.seconds) return [act, (this.now - before) / act.seconds];
      before += act.seconds;
    }
    return [this.acts[this.acts.length - 1], 1];
  }

  draw() {
    if (!this.place) return;
    const [act, part] = this.current();
    const isBefore = new Set(this.acts.slice(this.acts.indexOf(act) + 1));
    for (const node of this.cells.values()) node.classList.remove("blank");
    for (const one of isBefore.size || part < 1 ? [act, ...isBefore] : []) {
      one.matrix.columns.forEach((_, c) => {
        const isOpen = one !== act || part < shownFrom(one, c);
        if ((one.c === null || one.c === c) && isOpen) this.cells.get(`${one.matrix.name} ${one.r} ${c}`)?.classList.add("blank");
      });
    }
    this.drawFrames(act);
    this.drawSum(act, part);
    const isOver = this.now >= this.end;
    this.find(".play").textContent = this.isPlaying ? "Pause" : isOver ? "Play row" : "Play";
  }

  // Frame the numbers that are read and those that are computed.
  drawFrames(act) {
    this.frames.replaceChildren();
    const { cell, row, places } = this.place;
    const frame = (name, r, c, rows, columns, colour) => {
      const place = places.get(name);
      if (place) drawn(this.frames, "rect", { x: place.x + c * cell, y: place.y + r * row, width: columns * cell, height: rows * row, rx: 4, stroke: colour });
    };
    const at = this.matrix(this.at.name);
    if (!act) return frame(at.name, this.at.r, this.at.c, 1, 1, this.look.right);
    const { matrix, r, c } = act, { op, of, left, right, by } = matrix.made;
    const size = (name) => [this.matrix(name).rows.length, this.matrix(name).columns.length];
    if (op === "softmax") frame(of, r, 0, 1, size(of)[1], this.look.left);
    else if (op === "add") for (const [name] of of) frame(name, r, 0, 1, size(name)[1], this.look.left);
    else {
      frame(left, r, 0, 1, size(left)[1], this.look.left);
      if (op === "mix") frame(right, 0, 0, ...size(right), this.look.right);
      else if (by === "rows") frame(right, c, 0, 1, size(right)[1], this.look.right);
      else frame(right, 0, c, size(right)[0], 1, this.look.right);
    }
    if (c === null) frame(matrix.name, r, 0, 1, matrix.columns.length, "currentColor");
    else frame(matrix.name, r, c, 1, 1, "currentColor");
  }

  drawSum(act, part) {
    const says = this.find(".says"), place = this.find(".sum");
    const [text, nodes] = act ? { product, softmax, mix, add }[act.matrix.made.op](this, act, part) : [this.readOut(), []];
    if (says.textContent !== text) says.textContent = text;
    place.replaceChildren(...nodes);
    place.setAttribute("aria-hidden", "true"); // the sentence describes it
  }

  readOut() {
    const matrix = this.matrix(this.at.name), { r, c } = this.at;
    if (c < 0) return matrix.rows[r] ? `${matrix.rows[r]}: press Enter to change this word.` : "Press Enter to add a word.";
    const how = matrix.editable && this.data.words ? " Press Enter or click to change it." : "";
    return `${matrix.name}[${matrix.rows[r]}, ${matrix.columns[c]}] = ${formatted(matrix.values[r][c])}.${how}`;
  }

  // Show how the selected number is computed, at once or animated.
  show(plays = false) {
    const { name, r, c } = this.at, matrix = this.matrix(name);
    this.acts = matrix.made && c >= 0 ? [{ matrix, r, c: matrix.made.op === "product" ? c : null, seconds: matrix.made.op === "product" ? 2.6 : 3.8 }] : [];
    this.now = plays && !this.isQuiet ? 0 : this.end;
    if (plays && !this.isQuiet && this.acts.length) this.run();
    else this.stop();
  }

  actsOfRow() { return actsOf(this.data.matrices, this.at.r, this.data.at?.[1] ?? 0); }

  playRow() {
    if (this.now >= this.end) {
      this.acts = this.actsOfRow();
      this.now = this.isQuiet ? this.end : 0;
    }
    if (this.acts.length) this.run();
  }

  run() {
    this.isPlaying = this.now < this.end;
    let last = performance.now();
    const tick = (time) => {
      if (!this.isPlaying) return;
      this.now = Math.min(this.end, this.now + Math.min(0.1, Math.max(0, time - last) / 1000));
      last = time;
      this.isPlaying = this.now < this.end;
      this.draw();
      this.frame = requestAnimationFrame(tick);
    };
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(tick);
    this.draw();
  }

  stop() {
    this.isPlaying = false;
    cancelAnimationFrame(this.frame);
    this.draw();
  }

  // Step to the end of the previous or current act; from a single number, continue with those of its row.
  step(by) {
    if (this.acts.length < 2) {
      this.acts = this.actsOfRow();
      this.now = by > 0 ? 0 : this.end;
    }
    let end = 0;
    const ends = this.acts.map((act) => (end += act.seconds));
    const found = by > 0 ? ends.find((one) => one > this.now + 1e-6) : ends.findLast((one) => one < this.now - 1e-6);
    this.now = found ?? (by > 0 ? this.end : ends[0]);
    this.stop();
  }

  click(name, r, c) {
    const matrix = this.matrix(name);
    this.choose({ name, r, c });
    if (c < 0 || matrix.editable) this.edit();
    else this.show(true);
  }

  choose(at) {
    this.at = at;
    const followed = this.data.matrices.find((one) => one.drawn).rows;
    const isSame = at.r < followed.length && String(this.matrix(at.name).rows) === String(followed);
    if (at.r !== this.row && isSame) this.send({ row: (this.row = at.r) });
  }

  key(event) {
    const names = this.data.matrices.filter((one) => one.drawn).map((one) => one.name);
    const { name, r, c } = this.at, matrix = this.matrix(name), which = names.indexOf(name);
    const first = this.data.words && !which ? -1 : 0;
    const to = { ArrowUp: [0, -1], ArrowDown: [0, 1], ArrowLeft: [-1, 0], ArrowRight: [1, 0] }[event.key];
    if (event.key === " ") this.find(".play").click();
    else if (event.key === "Enter") this.click(name, r, c);
    else if (to) {
      const rows = matrix.rows.length + (c < 0 && this.data.words?.length < this.data.most ? 1 : 0);
      let next = { name, r: Math.min(rows - 1, Math.max(0, r + to[1])), c: c + to[0] };
      if (next.c >= matrix.columns.length) next = which + 1 < names.length ? { name: names[which + 1], r, c: 0 } : this.at;
      if (next.c < first) next = which ? { name: names[which - 1], r, c: this.matrix(names[which - 1]).columns.length - 1 } : this.at;
      next.r = Math.min(next.r, this.matrix(next.name).rows.length - (next.c < 0 ? 0 : 1));
      this.choose(next);
      this.show();
    } else return;
    event.preventDefault();
  }

  // Open an input field over the selected word or number.
  edit() {
    if (!this.data.words) return;
    this.show();
    this.find(".typed")?.remove();
    const { name, r, c } = this.at, { x, y, label } = this.place.places.get(name), { cell, row } = this.place;
    const box = element("input", "typed"), matrix = this.matrix(name);
    const old = c < 0 ? (this.data.words[r] ?? "") : String(Math.round(matrix.values[r][c] * 100) / 100);
    box.value = old;
    box.maxLength = 40;
    box.setAttribute("aria-label", c < 0 ? "Word" : `Number ${matrix.columns[c]} of ${matrix.rows[r]}`);
    const left = c < 0 ? x - label : x + c * cell, width = c < 0 ? label : cell;
    Object.assign(box.style, { left: `${left}px`, top: `${y + r * row}px`, width: `${Math.max(width, 64)}px`, height: `${row}px` });
    let isOpen = true;
    const close = (takes) => {
      if (!isOpen) return;
      isOpen = false;
      const value = box.value.trim();
      box.remove();
      this.svg.focus({ preventScroll: true });
      if (!takes || value === old) return;
      if (c < 0) this.send({ word: [r, value] });
      else if (value !== "" && Number.isFinite(+value.replace(",", ".").replace("−", "-"))) this.send({ number: [r, c, +value.replace(",", ".").replace("−", "-")] });
    };
    box.onkeydown = (event) => {
      event.stopPropagation();
      if (event.key === "Enter" || event.key === "Escape") close(event.key === "Enter");
    };
    box.onblur = () => close(true);
    this.find(".stage").append(box);
    box.focus({ preventScroll: true });
    box.select();
  }
}

const quoted = (name) => `“${name}”`;

function chip(view, matrix, value, kind, digits) {
  const node = element("b", `chip ${kind}`, value === null && matrix?.share ? "0" : formatted(value, digits));
  if (!matrix) return node;
  const rgb = view.look.fill(matrix, value);
  node.style.background = `rgb(${rgb.join(" ")})`;
  node.style.color = ink(rgb);
  if (view.look[kind]) node.style.borderColor = view.look[kind];
  return node;
}

function on(node, isOn) {
  node.classList.toggle("off", !isOn);
  return node;
}

function inRow(...parts) {
  const node = element("span", "term");
  node.append(...parts);
  return node;
}

const MOST_TERMS = 8; // largest number of products that are written out

// A cell of a product: the products of its factors, one by one, then their sum.
function product(view, { matrix, r, c }, part) {
  const { terms, sum, divide } = termsOf(view.matrix, matrix, r, c);
  const { left, right, by, together } = matrix.made, [a, b] = [view.matrix(left), view.matrix(right)];
  if (together && c === matrix.columns.length - 1) {
    const value = element("b", "result", formatted(matrix.values[r][c]));
    return [`${matrix.columns[c]}: the keys with the smallest weights, together`, [inRow(`log of the sum of eˢ over ${together} keys = `, value)]];
  }
  const bySize = [...terms].sort(([x, y], [v, w]) => Math.abs(v * w) - Math.abs(x * y));
  const some = terms.length > MOST_TERMS ? bySize.slice(0, MOST_TERMS) : terms;
  const nodes = some.map(([x, y], k) => {
    const node = inRow(k ? "+ " : "", chip(view, a, x, "left"), " × ", chip(view, b, y, "right"), " = ", element("b", "result", formatted(x * y)));
    return on(node, part >= (0.65 * k) / some.length);
  });
  const rest = some.reduce((left_over, [x, y]) => left_over - x * y, sum);
  if (some !== terms) nodes.push(on(inRow(`+ ${terms.length - some.length} smaller products: `, element("b", "result", formatted(rest))), part >= 0.68));
  nodes.push(on(inRow("= ", element("b", "result", formatted(sum))), part >= 0.75));
  const whole = divide === 1 ? sum : sum / divide;
  if (divide !== 1) nodes.push(on(inRow(`÷ ${formatted(divide)} = `, element("b", "result", formatted(whole))), part >= 0.82));
  const value = matrix.values[r][c];
  if (value === null || Math.abs(value - whole) > 0.005 + 1e-3 * Math.abs(whole)) {
    const why = value === null ? "masked" : matrix.made.moved;
    nodes.push(on(inRow(`→ ${why}: `, element("b", "result", formatted(value))), part >= 0.88));
  }
  const other = by === "rows" ? `row ${quoted(b.rows[c])}` : `column ${c + 1}`;
  const text = `${matrix.name}[${matrix.rows[r]}, ${matrix.columns[c]}] = row ${quoted(a.rows[r])} of ${left} · ${other} of ${right}`;
  return [`${text}${divide === 1 ? "" : ` ÷ ${formatted(divide)}`} = ${formatted(value)}`, nodes];
}

// A row of a softmax: the exponentials of the scores, their sum, and the quotients.
function softmax(view, { matrix, r }, part) {
  const of = view.matrix(matrix.made.of), scores = of.values[r], areMany = scores.length > 8;
  const raised = scores.map((score) => (score === null ? 0 : Math.exp(score)));
  const sum = raised.reduce((a, b) => a + b, 0);
  const table = element("div", areMany ? "table many" : "table");
  table.style.gridTemplateColumns = `auto repeat(${scores.length}, minmax(${areMany ? 2.5 : 3.1}rem, auto)) auto`;
  const add = (node, isOn = true) => table.append(on(node, isOn));
  const n = scores.length, chosen = view.at.name === matrix.name ? view.at.c : -1;
  add(element("span", "", ""));
  of.columns.forEach((name, c) => add(element("span", c === chosen ? "head chosen" : "head", areMany ? shortened(name, 7) : name)));
  add(element("span", "", ""));
  add(element("span", "name", "score s"));
  scores.forEach((score) => add(chip(view, of, score, "left")));
  add(element("span", "", ""));
  add(element("span", "name", "eˢ"));
  raised.forEach((value, c) => add(element("b", "result", formatted(value)), part >= 0.08 + (0.4 * c) / n));
  add(inRow("Σ = ", element("b", "result", formatted(sum))), part >= 0.52);
  add(element("span", "name", "eˢ ÷ Σ"));
  raised.forEach((_, c) => add(chip(view, matrix, matrix.values[r][c], "target"), part >= shownFrom({ matrix }, c)));
  const total = matrix.values[r].reduce((a, b) => a + (b ?? 0), 0);
  add(inRow("Σ = ", element("b", "result", formatted(total))), part >= 0.97);
  return [`${matrix.name}, row ${quoted(matrix.rows[r])}: e to the power of each score, divided by their sum`, [table]];
}

// A row of a sum: the rows that are added, below each other, and their sum.
function add(view, { matrix, r }, part) {
  const { of } = matrix.made, table = element("div", "table");
  table.style.gridTemplateColumns = `auto repeat(${matrix.columns.length}, minmax(3rem, auto))`;
  const row = (name, kind, values, isOn) => {
    table.append(on(element("span", "name", name), isOn));
    for (const value of values) table.append(on(kind ? chip(view, view.matrix(kind), value, "left") : chip(view, matrix, value, "target"), isOn));
  };
  of.forEach(([name, words], k) => row(`${k ? "+ " : ""}${words}`, name, view.matrix(name).values[r], part >= (0.75 * k) / of.length));
  row("= ", "", matrix.values[r], part >= 0.85);
  return [`${matrix.title}, row ${quoted(matrix.rows[r])}: ${of.map(([, words]) => words).join(" + ")}`, [table]];
}

// A row of a weighted sum: each vector times its weight, one by one, then their sum.
function mix(view, { matrix, r }, part) {
  const { left, right } = matrix.made, [a, b] = [view.matrix(left), view.matrix(right)];
  const weights = a.values[r], n = weights.length;
  const table = element("div", "table");
  const width = matrix.columns.length; // the columns that are drawn
  const wide = width <= 5 && view.width > 640;
  table.style.gridTemplateColumns = `auto auto auto repeat(${width * (wide ? 2 : 1)}, minmax(3rem, auto))`;
  const largest = [...weights.keys()].sort((i, j) => weights[j] - weights[i]).slice(0, MOST_TERMS);
  const rest = matrix.values[r].slice(0, width);
  largest.sort((i, j) => i - j).forEach((j, at) => {
    const isOn = part >= (0.75 * at) / largest.length, weight = weights[j];
    const vector = b.values[j].slice(0, width);
    vector.forEach((value, c) => (rest[c] -= (weight ?? 0) * value));
    table.append(on(chip(view, a, weight, "left"), isOn), on(element("span", "", "×"), isOn), on(element("span", "name", b.rows[j]), isOn));
    if (wide) vector.forEach((value) => table.append(on(chip(view, b, value, "right"), isOn)));
    vector.forEach((value, c) => table.append(on(element("b", c || !wide ? "result" : "result first", formatted((weight ?? 0) * value)), isOn)));
  });
  const isSummed = part >= 0.85;
  if (largest.length < n) {
    const name = [element("span"), element("span", "", "+"), element("span", "name", `${n - largest.length} smaller`)];
    const blanks = wide ? rest.map(() => element("span")) : [], sums = rest.map((value) => element("b", "result", formatted(value)));
    table.append(...[...name, ...blanks, ...sums].map((node) => on(node, part >= 0.78)));
  }
  table.append(on(element("span", "name", "sum"), isSummed), element("span"), on(element("span", "name", matrix.rows[r]), isSummed));
  if (wide) matrix.columns.forEach(() => table.append(element("span")));
  matrix.values[r].slice(0, width).forEach((value) => table.append(on(chip(view, matrix, value, "target"), isSummed)));
  return [`${matrix.name}, row ${quoted(matrix.rows[r])}: each row of ${right} times its weight in ${left}, added up`, [table]];
}
