// Tensors of the live engine: { shape, data: Float32Array } in row-major order. Sums are in double precision.

/** @typedef {{ shape: number[], data: Float32Array }} Tensor */
/** @typedef {{ get(name: string): Tensor } & Map<string, Tensor>} Tensors  by name */

/** @param {number[]} shape */
export const size = (shape) => shape.reduce((product, n) => product * n, 1);
/** @param {number[]} shape @returns {Tensor} */
export const zeros = (shape) => ({ shape, data: new Float32Array(size(shape)) });
/** @param {number[]} shape @param {Float32Array} data @returns {Tensor} */
export const tensor = (shape, data) => ({ shape, data });

/**
 * y = x Wᵀ + b        x [n, d], W [rows, d] as in torch.nn.Linear, b [rows] or null -> y [n, rows]; only the rows `start`
 * to `stop` of W are used.
 * @param {Tensor} x @param {Tensor} weight @param {Tensor | null | undefined} bias
 */
export function linear(x, weight, bias, start = 0, stop = weight.shape[0]) {
  const width = weight.shape[1], n = x.data.length / width, rows = stop - start, y = zeros([n, rows]), from = x.data, W = weight.data, to = y.data;
  for (let i = 0; i < n; i++) {
    for (let row = 0; row < rows; row++) {
      let sum = bias ? bias.data[start + row] : 0, a = i * width, b = (start + row) * width;
      for (let k = 0; k < width; k++) sum += from[a++] * W[b++];
      to[i * rows + row] = sum;
    }
  }
  return y;
}

/** x + y. @param {Tensor} x @param {Tensor} y */
export function add(x, y) {
  const sum = zeros(x.shape);
  for (let i = 0; i < sum.data.length; i++) sum.data[i] = x.data[i] + y.data[i];
  return sum;
}

/** @param {Tensor} x @param {(value: number) => number} f @returns {Tensor} */
export const map = (x, f) => ({ shape: x.shape, data: x.data.map((value) => f(value)) });

/** x ∘ y. @param {Tensor} x @param {Tensor} y */
export function multiply(x, y) {
  const product = zeros(x.shape);
  for (let i = 0; i < product.data.length; i++) product.data[i] = x.data[i] * y.data[i];
  return product;
}

/** [n, heads · width] -> [heads, n, width]: the features of each head. @param {Tensor} x @param {number} heads */
export function split(x, heads) {
  const [n, features] = x.shape, width = features / heads, parts = zeros([heads, n, width]);
  for (let head = 0; head < heads; head++) {
    for (let i = 0; i < n; i++) parts.data.set(x.data.subarray(i * features + head * width, i * features + (head + 1) * width), (head * n + i) * width);
  }
  return parts;
}

/** [heads, n, width] -> [n, heads · width]: the heads concatenated. @param {Tensor} x */
export function concat(x) {
  const [heads, n, width] = x.shape, whole = zeros([n, heads * width]);
  for (let head = 0; head < heads; head++) {
    for (let i = 0; i < n; i++) whole.data.set(x.data.subarray((head * n + i) * width, (head * n + i + 1) * width), (i * heads + head) * width);
  }
  return whole;
}

/** softmax(x)ᵢ = exp(xᵢ − max x) / Σ exp(xⱼ − max x), row by row; zeros for rows that are all −∞. @param {Tensor} x */
export function softmax(x) {
  const width = x.shape[x.shape.length - 1], p = zeros(x.shape);
  for (let at = 0; at < x.data.length; at += width) {
    let most = -Infinity, sum = 0;
    for (let i = at; i < at + width; i++) if (x.data[i] > most) most = x.data[i];
    if (most === -Infinity) continue;
    const powers = new Float64Array(width);
    for (let i = 0; i < width; i++) sum += powers[i] = Math.exp(x.data[at + i] - most);
    for (let i = 0; i < width; i++) p.data[at + i] = powers[i] / sum;
  }
  return p;
}

/** The first of the largest, as torch.argmax. @param {ArrayLike<number>} row */
export function argmax(row) {
  let best = 0;
  for (let i = 1; i < row.length; i++) if (row[i] > row[best]) best = i;
  return best;
}

/** erf(x) to double precision: a series near 0, else the continued fraction of erfc (Abramowitz & Stegun 7.1.6, 7.1.14). @param {number} x */
export function erf(x) {
  const a = Math.abs(x);
  if (a > 6) return Math.sign(x);
  if (a < 2.5) {
    let term = a, sum = a;
    for (let n = 1; term > 1e-17 * sum; n++) sum += term *= (2 * a * a) / (2 * n + 1); // 2/√π · exp(−a²) · Σ (2a²)ⁿ a / (2n+1)!!
    return Math.sign(x) * (2 / Math.sqrt(Math.PI)) * Math.exp(-a * a) * sum;
  }
  let fraction = a;
  for (let n = 60; n > 0; n--) fraction = a + n / 2 / fraction;
  return Math.sign(x) * (1 - Math.exp(-a * a) / (Math.sqrt(Math.PI) * fraction));
}
