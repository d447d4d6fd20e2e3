// The layout of the matrices, and the computation of their numbers: plain values in, plain values out.

const GAP = 26, HEAD = 56, BETWEEN = 16, SUMS = 58;
const LEAST = 36, LARGE = 72, NARROWEST = 30, WIDEST = 88; // widths of a cell

const labelWidth = (matrix) => Math.min(100, 14 + 7 * Math.max(...matrix.rows.map((name) => name.length)));
const isNamed = (line, at) => !at || String(line[at].rows) !== String(line[at - 1].rows);
const tail = (matrix) => (matrix.sums ? SUMS : 0);
const aside = (line, at) => (at ? GAP : 0) + (isNamed(line, at) ? labelWidth(line[at]) : 0) + tail(line[at]); // everything but the cells
const slot = (matrix, cell) => Math.max(matrix.columns.length * cell, 7.4 * matrix.title.length, 6.2 * matrix.about.length);
const lineWidth = (line, cell) => line.reduce((sum, matrix, at) => sum + aside(line, at) + slot(matrix, cell), 0);

function linesOf(matrices, width, least) {
  if (lineWidth(matrices, least) <= width) return [matrices];
  const lines = [];
  for (const matrix of matrices) {
    const line = lines.at(-1);
    if (!line || matrix.breaks || lineWidth([...line, matrix], least) > width) lines.push([matrix]);
    else line.push(matrix);
  }
  return lines;
}

export function layOut(matrices, width, isTall = false) {
  const drawn = matrices.filter((matrix) => matrix.drawn), isLow = drawn.every((matrix) => matrix.rows.length === 1);
  const lines = linesOf(drawn, width, isLow && isTall ? LARGE : LEAST);
  const fits = (cell) => lines.every((line) => lineWidth(line, cell) <= width);
  let cell = lines.length > 1 && !isLow ? 46 : WIDEST;
  while (cell > NARROWEST && !fits(cell)) cell -= 1;
  const row = lines.length > 1 && !isLow ? 26 : Math.min(isLow && isTall ? 54 : 42, Math.max(isTall ? 40 : 28, Math.round(cell * 0.58)));
  const places = new Map();
  let top = 0;
  for (const line of lines) {
    let x = 0;
    line.forEach((matrix, at) => {
      const named = isNamed(line, at);
      x += (at ? GAP : 0) + (named ? labelWidth(matrix) : 0);
      places.set(matrix.name, { x, y: top + HEAD, top, named, label: labelWidth(matrix), sumsAt: x + matrix.columns.length * cell });
      x += slot(matrix, cell) + tail(matrix);
    });
    top += HEAD + row * Math.max(...line.map((matrix) => matrix.rows.length)) + BETWEEN;
  }
  return { cell, row, places, width: Math.max(...lines.map((line) => lineWidth(line, cell))), height: top - BETWEEN + 4 };
}

// The factors of a product, and their sum.
export function termsOf(find, matrix, r, c) {
  const { left, right, by, divide } = matrix.made;
  const [a, b] = [find(left), find(right)];
  const terms = a.values[r].map((value, k) => [value ?? 0, (by === "rows" ? b.values[c][k] : b.values[k][c]) ?? 0]);
  const sum = terms.reduce((so_far, [x, y]) => so_far + x * y, 0);
  return { terms, sum, divide };
}

/** @typedef {{ matrix: any, r: number, c: number | null, seconds: number }} Act */

/**
 * The acts that compute a row: the cells of a product (the `slow` one in detail), or a whole row of a softmax or weighted sum.
 * @param {any[]} matrices @param {number} row @param {number} slow
 * @returns {Act[]}
 */
export function actsOf(matrices, row, slow) {
  const acts = [];
  for (const matrix of matrices) {
    if (!matrix.made || !matrix.drawn || row >= matrix.rows.length) continue;
    if (matrix.made.op !== "product") acts.push({ matrix, r: row, c: null, seconds: matrix.made.op === "mix" ? 4 : 3.6 });
    else matrix.columns.forEach((_, c) => acts.push({ matrix, r: row, c, seconds: c === slow ? 2.6 : 0.4 }));
  }
  return acts;
}

// The progress of an act from which a number of its row is shown.
export function shownFrom(act, c) {
  return act.matrix.made.op === "softmax" ? 0.6 + (0.35 * c) / act.matrix.columns.length : 0.9;
}

export function formatted(value, digits = 2) {
  if (value === null) return "−∞";
  const text = Math.abs(value) >= 1000 ? value.toExponential(1).replace("+", "") : (Math.round(value * 100) / 100 + 0).toFixed(digits);
  return text.replace("-", "−");
}
