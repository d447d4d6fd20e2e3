// Bars of the likeliest tokens at the selected step, all models on one scale.

import { element } from "../shared.js";
import { judged, letter } from "./timeline.js";

const ROWS = 4; // the same at every step, so that the layout does not jump
const LINE = 16, THIN_LINE = 12; // height of a bar in pixels; thin if a frame holds many
const LEAST = 0.001;
const fixed = (p) => (p !== 0 && p < 0.0005 ? "< 0.001" : p.toFixed(3));

function tokensAt({ data, at, isFramed }) { // predicted and right tokens first, then the likeliest; sorted by probability
  const best = new Map(), keep = new Set();
  const add = (token, p) => best.set(token, Math.max(best.get(token) ?? 0, p));
  for (const model of data.models) {
    if (at >= model.predicted.length) continue;
    model.top[at].forEach((token, i) => add(token, model.top_probability[at][i]));
    add(model.predicted[at], model.probability[at]);
    keep.add(model.predicted[at]);
    if (at >= model.answer.length) continue;
    add(model.answer[at], model.answer_probability[at]);
    keep.add(model.answer[at]);
  }
  const order = [...best].filter(([token, p]) => p >= LEAST || keep.has(token)).sort((a, b) => b[1] - a[1]).map(([token]) => token);
  const first = [...order.filter((token) => keep.has(token)), ...order.filter((token) => !keep.has(token))];
  const rows = new Set(first.slice(0, isFramed ? ROWS : Math.max(ROWS, keep.size)));
  return order.filter((token) => rows.has(token));
}

function probabilityOf(model, token, at) { // [p, whether it is only an upper bound]
  const place = model.top[at].indexOf(token);
  if (place >= 0) return [model.top_probability[at][place], false];
  if (at < model.answer.length && token === model.answer[at]) return [model.answer_probability[at], false];
  if (token === model.predicted[at]) return [model.probability[at], false];
  return [model.top_probability[at].at(-1) ?? 0, true];
}

export function drawBars(ruler) {
  const { data, at, bars } = ruler, line = ruler.isFramed && data.models.length > 2 ? THIN_LINE : LINE;
  const rows = tokensAt(ruler).map((token) => {
    const row = element("div", "row"), lines = element("div", "lines");
    const isRight = data.models.some((model) => at < model.predicted.length && judged(model, at) && model.answer[at] === token);
    row.append(element("div", "what", `${data.labels[token]}${isRight ? " ✓" : ""}`), lines);
    data.models.forEach((model, index) => {
      const node = element("div", "line");
      lines.append(node);
      if (at >= model.predicted.length) return;
      const [p, isBound] = probabilityOf(model, token, at), isPredicted = model.predicted[at] === token;
      const fill = element("span", "fill"), value = element("span", "value", isBound || (p < LEAST && !isPredicted) ? "" : fixed(p));
      fill.style.width = `${isBound ? 0 : 64 * p}%`;
      fill.style.background = ruler.hue(index);
      if (isPredicted) value.append(element("b", "", `  ◀ ${letter(model.name)}`));
      node.title = `${model.name}: ${data.labels[token]} ${isBound ? "at most " : ""}${p.toFixed(6)}`;
      node.append(fill, value);
    });
    return row;
  });
  const known = data.models.some((model) => model.has_right_answer) ? "  (✓ right, ◀ predicted)" : "  (◀ predicted)";
  bars.style.setProperty("--line", `${line}px`);
  bars.style.minHeight = `${30 + ROWS * (line * data.models.length + 8)}px`;
  bars.replaceChildren(element("div", "head", `Probability of the likeliest tokens at ${data.is_decoder ? "step" : "position"} ${at}${known}`), ...rows);
}
