// The step that is shown: the likeliest tokens of all models on one scale, and every number in a table.

import { element } from "../shared.js";
import { letter } from "./base.js";
import { isRight, judged } from "./timeline.js";

const ROWS = 4, LOW_ROWS = 2; // tokens with bars: as many, so that nothing moves below; fewer in a low frame
const LINE = 18, THIN_LINE = 12; // pixels of a bar with its words; thin where a frame has to hold many
const LEAST = 0.001;
const fixed = (value, digits = 3) => (value === null ? "∞" : value !== 0 && value < 0.5 * 10 ** -digits ? `< ${(10 ** -digits).toFixed(digits)}` : value.toFixed(digits));

export const Now = (Base) => class extends Base {
  get rows() { return this.isLow ? LOW_ROWS : ROWS; }

  drawNow() {
    this.drawBars();
    this.drawNumbers();
  }

  tokensNow() { // those that somebody finds likely, says, or that are right; likeliest first
    const { data, at } = this, best = new Map(), keep = new Set();
    for (const model of data.models) {
      if (at >= model.predicted.length) continue;
      model.top[at].forEach((token, i) => best.set(token, Math.max(best.get(token) ?? 0, model.top_probability[at][i])));
      best.set(model.predicted[at], Math.max(best.get(model.predicted[at]) ?? 0, model.probability[at]));
      keep.add(model.predicted[at]);
      if (at >= model.answer.length) continue;
      best.set(model.answer[at], Math.max(best.get(model.answer[at]) ?? 0, model.answer_probability[at]));
      keep.add(model.answer[at]);
    }
    const order = [...best].filter(([token, p]) => p >= LEAST || keep.has(token)).sort((a, b) => b[1] - a[1]).map(([token]) => token);
    const first = order.filter((token) => keep.has(token)), rest = order.filter((token) => !keep.has(token));
    const rows = this.isFramed ? this.rows : Math.max(this.rows, first.length); // a frame has room for no more
    return order.filter((token) => [...first, ...rest].slice(0, rows).includes(token));
  }

  probabilityOf(model, token) { // [p, whether that is only an upper bound]
    const { at } = this, place = model.top[at].indexOf(token);
    if (place >= 0) return [model.top_probability[at][place], false];
    if (at < model.answer.length && token === model.answer[at]) return [model.answer_probability[at], false];
    if (token === model.predicted[at]) return [model.probability[at], false];
    return [model.top_probability[at].at(-1) ?? 0, true];
  }

  drawBars() {
    const { data, at } = this, tokens = this.tokensNow();
    const rows = tokens.map((token) => {
      const row = element("div", "row");
      const right = data.models.some((model) => at < model.predicted.length && judged(model, at) && model.answer[at] === token);
      row.append(element("div", "what", `${data.labels[token]}${right ? " ✓" : ""}`));
      const bars = element("div", "bars");
      data.models.forEach((model, index) => {
        const line = element("div", "line");
        if (at < model.predicted.length) {
          const [p, isBound] = this.probabilityOf(model, token), says = model.predicted[at] === token;
          const bar = element("span", "fill"), value = element("span", "value", isBound ? (p < LEAST ? "" : `≤ ${fixed(p)}`) : p < LEAST && !says ? "" : fixed(p));
          bar.style.width = `${isBound ? 0 : 64 * p}%`;
          bar.style.background = this.hue(index);
          if (says) value.append(element("b", "", `  ◀ ${letter(model.name)} says`));
          line.title = `${model.name}: ${data.labels[token]} ${isBound ? "at most " : ""}${p.toFixed(6)}`;
          line.append(bar, value);
        }
        bars.append(line);
      });
      row.append(bars);
      return row;
    });
    const title = element("div", "head");
    title.append(element("span", "", data.models.some((model) => model.has_right_answer) ? "token (✓ right)" : "token"), element("span", "", "probability, each bar from 0 to 1"));
    this.bars.style.setProperty("--lines", String(data.models.length));
    const line = this.isFramed && data.models.length > 2 ? THIN_LINE : LINE;
    this.bars.style.setProperty("--line", `${line}px`);
    this.bars.style.minHeight = `${24 + this.rows * (line * data.models.length + 8)}px`;
    this.bars.replaceChildren(title, ...rows);
  }

  drawNumbers() {
    const { data, at } = this, table = element("table", "");
    const answers = data.models.some((model) => model.answer.length), known = data.models.some((model) => model.has_right_answer);
    const answer = known ? "p(right)" : "p(text)";
    const heads = ["model", "says", "p", ...(answers ? [answer] : []), ...(data.is_sampled ? ["drawn"] : []), "entropy"];
    const titles = { p: "the model's probability of what it says", [answer]: known ? "its probability of the right token" : "its probability of what the text has here",
      drawn: "the chance that this was drawn, after temperature and the like", entropy: "how undecided it is, in bits: 0 for certain, 1 for a coin's toss" };
    table.append(this.rowOf("th", heads, titles));
    data.models.forEach((model, index) => {
      const there = at < model.predicted.length, sure = there && judged(model, at), right = sure && isRight(model, at);
      const optional = (given, value) => (given ? [value === undefined ? "–" : fixed(value)] : []);
      const cells = there ? [`${data.labels[model.predicted[at]]}${sure ? (right ? " ✓" : " ✗") : ""}`, fixed(model.probability[at]), ...optional(answers, model.answer_probability[at]),
        ...optional(data.is_sampled, model.drawn[at]), fixed(model.entropy[at])] : ["ended", ...heads.slice(2).map(() => "–")];
      const row = this.rowOf("td", [model.name, ...cells]), dot = element("span", "dot");
      dot.style.background = this.hue(index);
      row.firstChild.prepend(dot);
      row.firstChild.title = model.name;
      if (sure && !right) row.children[1].classList.add("wrong");
      table.append(row);
    });
    const pairs = element("table", "");
    pairs.append(this.rowOf("th", ["pair", "KL", "KL back", "TV", "has read"], {
      KL: "Kullback–Leibler divergence of the first from the second, in nats: how surprised one would be by the first's tokens who believes the second. 0: they agree",
      "KL back": "the same of the second from the first", TV: "total variation: the most by which their probabilities of any set of tokens differ, from 0 to 1",
      "has read": "whether both have read the same tokens up to here" }));
    data.pairs.forEach((pair, index) => {
      const there = at < pair.kl.length;
      const cells = there ? [fixed(pair.kl[at]), fixed(pair.kl_back[at]), fixed(pair.total_variation[at]), pair.same_context[at] ? "the same" : "different tokens"] : ["–", "–", "–", "–"];
      const row = this.rowOf("td", [`${letter(pair.one)} ‖ ${letter(pair.other)}`, ...cells]), dot = element("span", "dot");
      dot.style.background = this.pairHue(index);
      row.firstChild.prepend(dot);
      pairs.append(row);
    });
    this.numbersNow.replaceChildren(table, pairs);
  }

  rowOf(kind, cells, titles = {}) {
    const row = element("tr", "");
    row.append(...cells.map((text) => {
      const cell = element(kind, "", text);
      if (titles[text]) cell.title = titles[text];
      return cell;
    }));
    return row;
  }
};
