// The tensors of a code view, and the arithmetic of one number of a result.

/**
 * @typedef {object} Kept  one tensor; of a large one only the first entries of each axis
 * @property {number[]} shape
 * @property {number[]} [kept] the numbers of entries of each axis that are here
 * @property {number} [offset] the place of its first number
 * @property {string} [dtype]
 */
/**
 * @typedef {Kept & { name: string, axes: string[], inputs: (number | string)[], how: any, low?: number, high?: number, nan?: number,
 *   infinite?: number, huge?: number, module: string }} Operation
 */

/** @typedef {{ rows: number, columns: number, index: (i: number, j: number) => number[], at: (i: number, j: number) => number }} Matrix */

export class Tensors {
  /** @param {{ operations: Operation[], operands: Record<string, Kept>, changed?: number }} header @param {Float32Array} numbers */
  constructor(header, numbers) {
    this.header = header;
    this.numbers = numbers;
  }

  /** @param {number | string} source the index of an operation, or the name of an input or a weight @returns {Kept} */
  of(source) {
    return typeof source === "number" ? this.header.operations[source] : this.header.operands[source];
  }

  /** A number of a tensor; undefined if it is not here. @param {number | string} source @param {number[]} index */
  at(source, index) {
    const { kept, offset } = this.of(source);
    if (!kept || offset === undefined || index.some((i, axis) => i >= kept[axis])) return undefined;
    return this.numbers[offset + index.reduce((at, i, axis) => at * kept[axis] + i, 0)];
  }

  /** The last two axes of a result at some indices of the others. @param {number} number @param {number[]} lead @returns {Matrix | undefined} */
  matrix(number, lead) {
    const { kept } = this.of(number);
    if (!kept?.length) return undefined;
    const [rows, columns] = kept.length > 1 ? kept.slice(-2) : [1, kept[0]];
    const first = kept.slice(0, -2).map((n, axis) => Math.min(lead[axis] ?? 0, n - 1));
    const index = (/** @type {number} */ i, /** @type {number} */ j) => (kept.length > 1 ? [...first, i, j] : [j]);
    return { rows, columns, index, at: (/** @type {number} */ i, /** @type {number} */ j) => this.at(number, index(i, j)) ?? Number.NaN };
  }

  /** Whether an operation is one of the changed module. @param {number} number */
  isChanged(number) {
    return number >= (this.header.changed ?? Number.POSITIVE_INFINITY);
  }

  /** The same place in a tensor that was broadcast. @param {number | string} source @param {number[]} index */
  broadcast(source, index) {
    const { shape } = this.of(source);
    return this.at(source, index.slice(index.length - shape.length).map((i, axis) => (shape[axis] === 1 ? 0 : i)));
  }

  /**
   * The arithmetic of one number, as a line of text for each step; empty if it cannot be shown.
   * @param {number} number @param {number[]} index
   * @returns {string[]}
   */
  arithmetic(number, index) {
    const operation = this.header.operations[number], { how, inputs } = operation;
    const result = this.at(number, index);
    if (!how || result === undefined) return [];
    return KINDS[how.kind](this, operation, index, result, inputs) ?? [];
  }
}

/** @param {Operation} operation */
export function shapeOf({ axes, shape }) {
  return shape.length ? axes.map((axis, at) => (/^\d+$|^\?$/.test(axis) ? String(shape[at]) : `${axis} ${shape[at]}`)).join(" · ") : "a number";
}

/** @param {Operation} operation */
export const rangeOf = ({ low, high }) => (low === undefined || low === null || high === undefined ? "" : low === high ? shown(low) : `${shown(low)} … ${shown(high)}`);

/** The range of the colours of a result: of both modules, where there are two. @param {any} header @param {number} number @returns {[number, number]} */
export function scaleOf({ operations, counterparts }, number) {
  const both = [operations[number], operations[counterparts[number]]].filter(Boolean);
  return [Math.min(...both.map(({ low }) => low ?? 0)), Math.max(...both.map(({ high }) => high ?? 0))];
}

const HUGE = 1e30; // as in Python: what masks add, as the smallest number of a type

/** The colours of a matrix. @param {Matrix} matrix @param {[number, number]} range @param {any} look @returns {Uint8ClampedArray<ArrayBuffer>} */
export function pixels({ rows, columns, at }, [low, high], { diverging, sequential, dark }) {
  const words = new Uint32Array(rows * columns), limit = Math.max(Math.abs(low), Math.abs(high)) || 1;
  const { words: colours } = low < 0 ? diverging : sequential;
  for (let i = 0; i < rows; i++) {
    for (let j = 0; j < columns; j++) {
      const value = at(i, j), share = low < 0 ? (value / limit + 1) / 2 : value / limit;
      const code = Number.isNaN(value) ? 254 : Math.round(253 * Math.min(1, Math.max(0, share)));
      words[i * columns + j] = Math.abs(value) > HUGE ? (dark ? 0xff3a3a3a : 0xffd0d0d0) : colours[code];
    }
  }
  return new Uint8ClampedArray(words.buffer);
}

/** The path of a module up to its first number, as in `layer_of` of Python: "model.layers.3" of "model.layers.3.mlp". @param {string} path */
export const layerOf = (path) => /^(?:[^.]*\.)*?\d+(?=\.|$)/.exec(path)?.[0] ?? "";

const NEAR = 1; // lines around a line with tensors that stay
const SHORT = 4; // lines that are not worth folding

/**
 * The parts of a function, as first line and last line + 1: what is shown, and runs of lines without tensors, which are folded.
 * The first line and those next to one with tensors are shown.
 * @param {boolean[]} busy whether each line has tensors
 * @param {boolean[]} blank whether each line is empty
 * @returns {[number, number][]}
 */
export function folded(busy, blank = []) {
  const stays = busy.map((isBusy, at) => at === 0 || isBusy || (!blank[at] && busy.slice(Math.max(0, at - NEAR), at + NEAR + 1).some(Boolean)));
  /** @type {[number, number][]} */
  const parts = [];
  for (let begin = 0, end; begin < busy.length; begin = end) {
    for (end = begin + 1; end < busy.length && stays[end] === stays[begin]; end++);
    parts.push([begin, end]);
  }
  return parts.flatMap(([begin, end]) => (stays[begin] || end - begin < SHORT ? Array.from({ length: end - begin }, (_, at) => /** @type {[number, number]} */ ([begin + at, begin + at + 1])) : [/** @type {[number, number]} */ ([begin, end])]));
}

/** @param {number} value */
export function shown(value) {
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  const size = Math.abs(value);
  const text = size !== 0 && (size < 0.001 || size >= 100000) ? value.toExponential(2) : size >= 100 ? value.toFixed(1) : value.toFixed(3);
  return text.replace("-", "−");
}

const TERMS = 6; // largest terms that are written out

/** @type {Record<string, (tensors: Tensors, operation: Operation, index: number[], result: number, inputs: (number | string)[]) => string[] | undefined>} */
const KINDS = {
  product(tensors, { how, inputs }, index, result) {
    const [left, right, out] = how.terms;
    const place = new Map([...out].map((letter, axis) => [letter, index[axis]]));
    const summed = [...left].filter((letter) => !place.has(letter));
    const sizes = new Map();
    for (const [term, input] of [[left, inputs[0]], [right, inputs[1]]]) [...term].forEach((letter, axis) => sizes.set(letter, Math.max(sizes.get(letter) ?? 1, tensors.of(input).shape[axis])));
    if (summed.length !== 1) return undefined;
    const n = sizes.get(summed[0]);
    const terms = [];
    for (let k = 0; k < n; k++) {
      place.set(summed[0], k);
      const [a, b] = [[left, inputs[0]], [right, inputs[1]]].map(([term, input]) => {
        const shape = tensors.of(input).shape;
        return tensors.at(input, [...term].map((letter, axis) => (shape[axis] === 1 ? 0 : (place.get(letter) ?? 0))));
      });
      if (a !== undefined && b !== undefined) terms.push({ a, b, value: a * b });
    }
    if (!terms.length) return undefined;
    const bias = how.bias ? tensors.at(inputs[2], [index[index.length - 1]]) : undefined;
    const largest = [...terms].sort((one, other) => Math.abs(other.value) - Math.abs(one.value)).slice(0, TERMS);
    const rest = n - largest.length;
    const written = largest.map(({ a, b }) => `${shown(a)} × ${shown(b)}`).join("  +  ");
    return [
      `sum of ${n} products${bias === undefined ? "" : " and a bias"}${rest ? `, the ${largest.length} largest${terms.length < n ? ` of the first ${terms.length}` : ""}` : ""}:`,
      `${written}${rest ? `  +  … ${rest} more` : ""}${bias === undefined ? "" : `  +  ${shown(bias)}`}`,
      `= ${shown(result)}`,
    ];
  },
  softmax(tensors, { how, inputs, shape }, index, result) {
    const row = Array.from({ length: shape[how.axis] }, (_, i) => tensors.at(inputs[0], index.with(how.axis, i)));
    const here = row[index[how.axis]];
    if (here === undefined || row.some((value) => value === undefined)) return undefined;
    const scores = /** @type {number[]} */ (row);
    const total = scores.reduce((sum, score) => sum + Math.exp(score), 0);
    return [
      `exp(${shown(here)}) ÷ (${scores.map((score) => `exp(${shown(score)})`).slice(0, TERMS).join(" + ")}${scores.length > TERMS ? " + …" : ""})`,
      `= ${shown(Math.exp(here))} ÷ ${shown(total)} = ${shown(result)}`,
    ];
  },
  mask(tensors, { inputs }, index, result) {
    const [before, isMasked] = [tensors.broadcast(inputs[0], index), tensors.broadcast(inputs[1], index)];
    if (before === undefined || isMasked === undefined) return undefined;
    return [isMasked ? `masked: ${shown(before)} is replaced by ${shown(result)}` : `not masked: ${shown(before)} stays`];
  },
  binary(tensors, { how, inputs }, index, result) {
    const values = inputs.map((input) => tensors.broadcast(input, index));
    if ("constant" in how) values.splice(how.first ? 0 : 1, 0, how.constant);
    if (values.some((value) => value === undefined)) return undefined;
    const [a, b] = values.map((value) => shown(/** @type {number} */ (value)));
    return [`${a} ${how.sign} ${b.startsWith("−") ? `(${b})` : b} = ${shown(result)}`];
  },
  function(tensors, operation, index, result) {
    const before = tensors.at(operation.inputs[operation.how.input], index);
    return before === undefined ? undefined : [`${operation.name}: ${shown(before)} → ${shown(result)}`];
  },
};
