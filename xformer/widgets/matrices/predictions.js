// The matrices with a question before each of them: the next matrix is hidden, the visitor picks the value of one of its cells,
// and then sees it computed. The wrong values to choose from are the results of common mistakes, which the verdict names.

import { button, element, svg, theme } from "../shared.js";
import { actsOf, formatted, termsOf } from "./layout.js";
import { Matrices } from "./matrices.js";

/** @typedef {{ value: number, why: string }} Choice `why`: how a wrong value comes about; "" for the right one */
/** @typedef {{ name: string, r: number, c: number, words: string, choices: Choice[] }} Question */

const MOST = 4; // choices
const quoted = (name) => `“${name}”`;
const isApart = (/** @type {number} */ a, /** @type {number} */ b) => Math.abs(a - b) >= Math.max(0.05, 0.1 * Math.abs(b));
const sumOf = (/** @type {number[]} */ values) => values.reduce((sum, value) => sum + value, 0);
const best = (n, /** @type {(at: number) => number} */ measure) => Array.from({ length: n }, (_, at) => at).reduce((so_far, at) => (measure(at) > measure(so_far) ? at : so_far), 0);

/**
 * One question on each matrix of scores, of weights and of mixed values: on the largest score of another word, on the largest weight, and on the mixed
 * value that differs most from a plain average. A matrix without a wrong value that is far enough from the right one has no question.
 * @param {(name: string) => any} find @param {any[]} matrices @param {number} row
 * @returns {Question[]}
 */
export function questionsOf(find, matrices, row) {
  const questions = [];
  for (const matrix of matrices) {
    const { made } = matrix;
    const of = made && { product: made.by === "rows" && ofScores, softmax: ofWeights, mix: ofMixed }[made.op];
    if (!of || !matrix.drawn || row >= matrix.rows.length) continue;
    const { c, words, wrong } = of(find, matrix, row);
    const choices = [{ value: matrix.values[row][c], why: "" }];
    if (choices[0].value === null) continue; // a row in which every key is masked
    for (const one of wrong) {
      if (choices.length < MOST && Number.isFinite(one.value) && choices.every(({ value }) => isApart(one.value, value))) choices.push(one);
    }
    if (choices.length > 1) questions.push({ name: matrix.name, r: row, c, words, choices: choices.sort((a, b) => a.value - b.value) });
  }
  return questions;
}

function ofScores(find, matrix, row) {
  const { left, right, divide } = matrix.made, scores = matrix.values[row].map((score) => score ?? -Infinity);
  const isSame = String(matrix.rows) === String(matrix.columns); // then the score of a word and itself is a sum of squares, which is no question
  const c = best(scores.length, (at) => (isSame && at === row ? -1e9 : scores[at])), { terms, sum } = termsOf(find, matrix, row, c);
  const others = scores.map((_, at) => at).filter((at) => at !== c && scores[at] > -Infinity).sort((a, b) => scores[b] - scores[a]);
  const wrong = [{ value: sumOf(terms.map(([x, y]) => Math.abs(x * y))) / divide, why: "That counts every product as positive." }];
  if (divide !== 1) wrong.unshift({ value: sum, why: `That is the sum of the products, before it is divided by ${formatted(divide)}.` });
  for (const at of [others[0], others[others.length - 1]]) if (at !== undefined) wrong.push({ value: scores[at], why: `That is the score of ${quoted(matrix.columns[at])}.` });
  const words = `row ${quoted(matrix.rows[row])} of ${left} · row ${quoted(matrix.columns[c])} of ${right}${divide === 1 ? "" : ` ÷ ${formatted(divide)}`}`;
  return { c, words, wrong };
}

function ofWeights(find, matrix, row) {
  const weights = matrix.values[row], all = find(matrix.made.of).values[row], scores = all.filter((score) => score !== null);
  const c = best(weights.length, (at) => weights[at] ?? -1);
  const wrong = [
    { value: 1 / scores.length, why: `That is 1 ÷ ${scores.length}, the same weight for all.` },
    { value: Math.exp(all[c]), why: "That is e to the power of the score, before it is divided by the sum of the row." },
    { value: all[c] / sumOf(scores), why: "That is the score divided by the sum of the scores, without e to the power of each." },
  ];
  return { c, words: `the softmax of row ${quoted(matrix.rows[row])} of ${matrix.made.of}`, wrong: wrong.filter(({ value }) => value >= 0) };
}

function ofMixed(find, matrix, row) {
  const { left, right } = matrix.made, [a, b] = [find(left), find(right)], weights = a.values[row].map((weight) => weight ?? 0), n = weights.length;
  const average = (c) => sumOf(b.values.map((value) => value[c])) / n;
  const c = best(matrix.columns.length, (at) => Math.abs(matrix.values[row][at] - average(at))), top = best(n, (at) => weights[at]);
  const wrong = [
    { value: average(c), why: "That is the plain average of the column, with the same weight for all." },
    { value: b.values[top][c], why: `That is the number of ${quoted(b.rows[top])} alone, whose weight is ${formatted(weights[top])}.` },
    { value: sumOf(b.values.map((value) => value[c])), why: "That is the sum of the column, without the weights." },
  ];
  return { c, words: `column ${matrix.columns[c]} of ${right}, weighted by row ${quoted(matrix.rows[row])} of ${left}`, wrong };
}

const KEY = "xformer.predicted", NARROW = 640; // pixels

/** The predictions of this visit: whether the first answer to each question was right. @returns {Record<string, boolean>} */
function remembered() {
  try {
    const found = JSON.parse(sessionStorage.getItem(KEY) ?? "{}");
    return typeof found === "object" && found ? found : {};
  } catch { // storage is forbidden or damaged
    return {};
  }
}

function remember(/** @type {string} */ question, /** @type {boolean} */ isRight) {
  try {
    sessionStorage.setItem(KEY, JSON.stringify({ [question]: isRight, ...remembered() })); // the first answer counts
  } catch { /* storage is full or forbidden */ }
}

const finished = new Set(); // the steps whose questions have been answered since the page was loaded; they are not asked again at once

export class PredictedMatrices extends Matrices {
  box = element("div", "predict");
  /** @type {Question[]} */ questions = [];
  index = -1; // of the question; −1 for none
  /** @type {Choice | null} */ guess = null;

  constructor(parent) {
    super(parent);
    this.find(".controls").after(this.box);
    document.addEventListener("keydown", this.digit);
  }

  get question() { return this.questions[this.index]; }
  get isAsking() { return Boolean(this.question && !this.guess); }

  update(data) {
    const before = this.text;
    super.update(data);
    if (this.text === before) return;
    if (!data.predict) finished.clear();
    if (data.predict && !finished.has(data.step)) this.ask(this.at.r);
    else this.leave();
  }

  destroy() {
    document.removeEventListener("keydown", this.digit);
    super.destroy();
  }

  // ── questions ──

  ask(row) {
    this.choose({ ...this.at, r: row });
    this.questions = questionsOf(this.matrix, this.data.matrices, row);
    this.go(0);
  }

  go(index) {
    this.index = index;
    this.guess = null;
    if (!this.question) return this.finish();
    const { name, r, c } = this.question;
    this.at = { name, r, c };
    this.acts = actsOf([this.matrix(name)], r, c).sort((a, b) => Number(a.c === c) - Number(b.c === c)); // the asked cell last
    this.now = 0;
    this.stop();
    this.drawBox();
    if (index && (this.width ?? 0) <= NARROW) this.frames.scrollIntoView({ block: "center" }); // on a phone the matrices are below each other
  }

  take(choice) {
    const { name, r, c, choices } = this.question, right = choices.find(({ why }) => !why);
    remember([this.data.step, name, r, c, formatted(right?.value)].join(" "), !choice.why);
    this.guess = choice;
    this.now = this.isQuiet ? this.end : 0;
    this.run();
    this.drawBox();
    /** @type {HTMLElement} */ (this.box.querySelector(".onward")).focus({ preventScroll: true });
    if ((this.width ?? 0) > NARROW) this.find(".sum").scrollIntoView({ block: "nearest" });
  }

  finish() {
    finished.add(this.data.step);
    this.send({ predicted: this.data.step }); // Python may tell its findings now
    this.leave();
  }

  leave() {
    this.index = -1;
    this.guess = null;
    if (this.place) this.show();
    this.drawBox();
  }

  digit = (/** @type {KeyboardEvent} */ event) => {
    const target = /** @type {Element} */ (event.composedPath()[0]);
    if (!this.isAsking || event.ctrlKey || event.altKey || event.metaKey || target.matches?.("input, textarea, select")) return;
    const choice = /^[1-9]$/.test(event.key) ? this.question.choices[Number(event.key) - 1] : undefined;
    if (choice) this.take(choice);
  };

  click(name, r, c) {
    if (!this.question) return super.click(name, r, c);
    if (c < 0 || this.matrix(name).editable) { // an edit ends the questions
      this.leave();
      return super.click(name, r, c);
    }
    if (r !== this.question.r) this.ask(r);
  }

  key(event) {
    if (!this.question) return super.key(event);
    const row = this.question.r + ({ ArrowUp: -1, ArrowDown: 1 }[event.key] ?? 0);
    if (row === this.question.r || row < 0 || row >= this.matrix(this.question.name).rows.length) return;
    event.preventDefault();
    this.ask(row);
  }

  // ── drawing ──

  draw() {
    super.draw();
    if (!this.place) return;
    this.root.classList.toggle("predicting", Boolean(this.question));
    if (!this.question) return;
    const made = this.data.matrices.filter((one) => one.drawn && one.made), at = made.findIndex((one) => one.name === this.question.name);
    for (const one of made.slice(at)) {
      const isOpen = one === made[at] && this.guess && !this.isPlaying;
      one.values.forEach((line, r) => line.forEach((_, c) => {
        if (!isOpen && !(one === made[at] && this.guess && r === this.question.r)) this.cells.get(`${one.name} ${r} ${c}`)?.classList.add("blank");
      }));
    }
  }

  drawFrames(act) {
    super.drawFrames(this.isAsking ? this.acts[this.acts.length - 1] : act); // the last act computes the asked cell
    if (!this.isAsking) return;
    const { name, r, c } = this.question, { cell, row, places } = this.place, { x, y } = places.get(name);
    this.frames.append(svg("text", { x: x + (c + 0.5) * cell, y: y + (r + 0.5) * row }, "asked", "?"));
  }

  drawSum(act, part) {
    if (!this.isAsking) return super.drawSum(act, part);
    const { name, r, c, words } = this.question, { rows, columns } = this.matrix(name);
    const text = `Predict ${name}[${rows[r]}, ${columns[c]}] = ${words}. Which value?`;
    if (this.find(".says").textContent !== text) this.find(".says").textContent = text;
    this.find(".sum").replaceChildren();
  }

  drawBox() {
    const all = Object.values(remembered()), count = all.length ? `Predicted ${all.filter(Boolean).length} of ${all.length}` : "";
    const row = this.at.r, rows = this.data.matrices.find((one) => one.drawn).rows;
    const parts = [];
    if (this.question && !this.guess) {
      this.question.choices.forEach((choice, at) => {
        const node = button("", () => this.take(choice), "choice");
        const key = element("kbd", "", String(at + 1));
        key.setAttribute("aria-hidden", "true");
        node.append(key, formatted(choice.value));
        parts.push(node);
      });
      parts.push(button("Skip", () => this.finish(), "skip"));
    } else if (this.question && this.guess) {
      const { name, r, c, choices } = this.question, matrix = this.matrix(name), isRight = !this.guess.why;
      const cell = `${name}[${matrix.rows[r]}, ${matrix.columns[c]}] = ${formatted(choices.find(({ why }) => !why)?.value)}.`;
      const says = isRight ? `✓ Right: ${cell}` : `✗ Not ${formatted(this.guess.value)}: ${cell} ${this.guess.why}`;
      const verdict = element("strong", isRight ? "verdict right" : "verdict wrong", says), isLast = this.index === this.questions.length - 1;
      verdict.setAttribute("role", "status");
      parts.push(verdict, button(isLast ? "Done" : "Next matrix", () => this.go(this.index + 1), "onward"));
    } else if (this.data.predict) {
      const next = finished.has(this.data.step) && rows.length > 1 ? (row + 1) % rows.length : row;
      parts.push(button(`Predict row ${quoted(rows[next])}`, () => this.ask(next), "onward"));
    }
    if (this.data.predict && count) parts.push(element("span", "count", count));
    this.box.hidden = !parts.length;
    this.box.classList.toggle("dark", Boolean(theme(this.root).isDark));
    this.box.replaceChildren(...parts);
  }
}
