// Draws a question for students and the lecturer: a map of cells, or a row of answers, optionally with vote shares.

import { button, element } from "../shared.js";
import { visible } from "../live/pictures.js";

const MANY = 48; // beyond this number of answers, they are a drop-down list
const percent = (n, of) => `${Math.round((100 * n) / Math.max(1, of))}%`;
export const total = (votes) => Object.values(votes ?? {}).reduce((sum, n) => sum + n, 0);
const share = (votes, truth) => {
  const n = total(votes), right = truth.reduce((sum, answer) => sum + (votes?.[answer] ?? 0), 0);
  return n ? `${percent(right, n)} right (${right} of ${n})` : "No answers";
};

// The shares of right answers. Two votes are compared among those who answered twice, since others came and went.
export function result({ round, votes, twice, truth }) {
  const all = `${share(votes[round], truth)}.`, n = total(twice[2]);
  if (round === 1) return all;
  if (!n) return `${all} Nobody answered both before and after the discussion.`;
  const compared = `efore the discussion ${share(twice[1], truth)}, after it ${share(twice[2], truth)}.`;
  const isEveryone = n === total(votes[1]) && n === total(votes[2]);
  return isEveryone ? `B${compared}` : `${all} Among those who answered twice (${n}): b${compared}`;
}

const shown = (question, word) => (question.kind === "token" ? visible(word) : word);
export const wordOf = (question, answer) => {
  if (question.kind !== "cell") return shown(question, question.options[answer]);
  const [query, key] = answer.split(".").map(Number);
  return `query ${query} (${visible(question.queries[query])}) → key ${key} (${visible(question.keys[key])})`;
};

/**
 * @typedef {object} Shown
 * @property {(answer: string) => void} [choose]
 * @property {string} [mine]
 * @property {string[]} [truth]
 * @property {Record<string, number>} [votes]
 */

// The answers of a question, as buttons if `choose(answer)` is given. `mine` is pressed, `truth` outlined, and `votes` are shown.
/** @param {any} question @param {Shown} shown @returns {HTMLElement} */
export function answers(question, { choose, mine, truth, votes }) {
  const draw = question.kind === "cell" ? map : votes ? bars : question.options.length > MANY ? list : row;
  return draw(question, { choose, mine, truth: new Set(truth ?? []), votes, n: total(votes) });
}

function map(question, { choose, mine, truth, votes, n }) {
  const { queries, keys, query: asked } = question, most = Math.max(1, ...Object.values(votes ?? {}));
  const box = element("div", "map"), table = element("table"), body = table.createTBody();
  table.style.setProperty("--n", keys.length);
  table.createTHead().insertRow().append(element("td"), ...keys.map((word) => element("th", "", visible(word))));
  queries.forEach((word, query) => {
    if (asked !== null && asked !== query) return;
    const line = body.insertRow();
    line.append(element("th", "", visible(word)));
    keys.forEach((_, at) => {
      const answer = `${query}.${at}`, count = votes?.[answer] ?? 0, name = wordOf(question, answer);
      const cell = choose ? button("", () => choose(answer)) : element("div", "", votes && count ? percent(count, n) : "");
      cell.classList.add("cell");
      if (choose) cell.setAttribute("aria-pressed", String(mine === answer));
      else if (mine === answer) cell.classList.add("mine");
      cell.dataset.answer = answer;
      cell.setAttribute("aria-label", `${name}${votes ? `: ${count} votes` : ""}${truth.has(answer) ? ", what the model does" : ""}`);
      if (!choose) cell.setAttribute("role", "img");
      cell.title = name;
      if (truth.has(answer)) cell.classList.add("truth");
      if (votes) {
        cell.style.setProperty("--share", (count / most).toFixed(3));
        if (count / most > 0.55) cell.classList.add("strong");
      }
      line.insertCell().append(cell);
    });
  });
  box.append(element("p", "hint", "Rows are queries, columns are keys: a cell is one token attending to another."), table);
  return box;
}

function row(question, { choose, mine, truth }) {
  const box = element("div", "options");
  question.options.forEach((word, at) => {
    const answer = String(at), node = choose ? button(shown(question, word), () => choose(answer)) : element("div", "", shown(question, word));
    node.classList.add("option");
    node.dataset.answer = answer;
    if (choose) node.setAttribute("aria-pressed", String(mine === answer));
    else if (mine === answer) node.classList.add("mine");
    if (truth.has(answer)) node.classList.add("truth");
    box.append(node);
  });
  return box;
}

function list(question, { choose, mine }) {
  const select = element("select", "option");
  select.append(new Option("choose an answer", ""), ...question.options.map((word, at) => new Option(shown(question, word), at)));
  select.setAttribute("aria-label", question.text);
  select.value = mine ?? "";
  select.disabled = !choose;
  select.onchange = () => { if (select.value !== "") choose(select.value); };
  return select;
}

function bars(question, { mine, truth, votes, n }) { // the answers; if there are many, only those with votes and the right ones, most frequent first
  const box = element("div", "bars"), every = question.options.map((word, at) => ({ word, answer: String(at), count: votes[at] ?? 0 }));
  const kept = every.length <= 12 ? every : every.filter(({ answer, count }) => count || truth.has(answer)).sort((a, b) => b.count - a.count).slice(0, 12);
  for (const { word, answer, count } of kept) {
    const line = element("div", `bar${truth.has(answer) ? " truth" : ""}${mine === answer ? " mine" : ""}`), fill = element("span", "fill");
    fill.style.width = `${(100 * count) / Math.max(1, n)}%`;
    const track = element("span", "track");
    track.append(fill);
    line.dataset.answer = answer;
    line.append(element("span", "word", shown(question, word)), track, element("span", "count", `${percent(count, n)} · ${count}`));
    box.append(line);
  }
  if (!kept.length) box.append(element("p", "hint", "No answers yet."));
  return box;
}
