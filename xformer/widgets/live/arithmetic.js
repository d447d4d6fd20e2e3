// One query of a head, step by step, as data of the matrices widget: q·k / √d, mask, softmax, the weighted sum of the values,
// and the head's contribution to the stream. Mirrors `row_data` in xformer/widgets/matrices_data.py.

import { headOutput } from "./transformer.js";

const MOST_KEYS = 16, FEW = 4;

const largestOf = (rows) => Math.max(1e-9, ...rows.flat().map((value) => Math.abs(value ?? 0)));
const matrix = (name, values, more) => ({ name, values, largest: largestOf(values), title: name, about: "", share: false, made: null,
  breaks: false, sums: null, editable: false, drawn: false, ...more });
const rowsOf = ({ shape, data }, head) => { // the vectors of one head, [1, head, pos, width]
  const [, , n, width] = shape;
  return Array.from({ length: n }, (_, at) => Array.from(data.subarray((head * n + at) * width, (head * n + at + 1) * width)));
};
const numbers = (n, letter) => Array.from({ length: n }, (_, at) => `${letter}${at + 1}`);

// -> data of the widget; null if the row has too many keys to be legible
export function rowData({ trace, weights }, site, head, query, key, labels, colours) {
  const { path } = site, [q, k, v, z] = ["q", "k", "v", "z"].map((name) => rowsOf(trace.get(`${path}.${name}`), head));
  const scores = rowsOf(trace.get(`${path}.scores`), head)[query], pattern = rowsOf(trace.get(`${path}.pattern`), head)[query];
  if (scores.length > MOST_KEYS) return null;
  const keys = labels("key").map((word, at) => `${at} · ${word}`), asked = `${query} · ${labels("query")[query]}`;
  const masked = scores.filter((score) => score === -Infinity).length, seen = scores.map((score) => (score === -Infinity ? null : score));
  const mixed = v[0].map((_, d) => pattern.reduce((sum, weight, at) => sum + (weight || 0) * v[at][d], 0)), isAblated = mixed.some(Boolean) && !z[query].some(Boolean);
  const W_O = headOutput(weights, site, head), out = W_O[0].map((_, d) => z[query].reduce((sum, value, i) => sum + value * W_O[i][d], 0)); // [d_value][d_model]
  const row = (name, values, title, about, more) => matrix(name, [values], { rows: [asked], drawn: true, title, about, ...more });
  const operand = (name, values, rows, columns = numbers(values[0].length, "")) => matrix(name, values, { rows, columns });
  const few = (values) => values.slice(0, FEW), of = (n) => `${Math.min(FEW, n)} of ${n} numbers`;
  return {
    matrices: [
      operand("q", [q[query]], [asked]), operand("K", k, keys), operand("V", v, keys),
      row("S", seen, `S = q Kᵀ / √${q[0].length}`, masked ? `${masked} masked: −∞` : "no key is masked",
        { columns: keys, made: { op: "product", left: "q", right: "K", by: "rows", divide: Math.sqrt(q[0].length), moved: "including other terms of this model" } }),
      row("A", pattern, "A = softmax(S)", "sums to 1", { columns: keys, share: true, made: { op: "softmax", of: "S" } }),
      row("Z", few(isAblated ? z[query] : mixed), "z = A V", isAblated ? "ablated: set to 0" : of(mixed.length),
        { columns: few(numbers(mixed.length, "z")), made: isAblated ? null : { op: "mix", left: "A", right: "V" } }),
      operand("all of z", [z[query]], [asked]), operand("W_O", W_O, numbers(W_O.length, "z")),
      row("Y", few(out), "y = z W_O", `what the head writes: ${of(out.length)}`,
        { columns: few(numbers(out.length, "y")), breaks: false, made: { op: "product", left: "all of z", right: "W_O", by: "columns", divide: 1, moved: "" } }),
    ],
    step: `${path} ${head} ${query} ${key}`, row: 0, words: null, most: 0, at: ["S", key],
    colours: { ...colours, left: colours.heads[1], right: colours.heads[0] },
  };
}
