// Checks exercises and predictions of lessons. Every answer is computed by running the model; nothing here touches the page.
//
//   verdict(exercise, state, live) → { solved, sentence }
//   outcome(prediction, live)      → { truth, sentence, row }     the result, without the learner's guess
//   judged(prediction, guess, live) → { right, sentence, … }      the guess and the result

import { START, bare, requestOf, unchanged } from "./state.js";

const CLEARLY = 1e-3; // lead from which a weight counts as the largest, so that rounding does not decide
const KINDS = ["ablate", "cut", "mask", "positions", "replace", "step"];
const NAMES = {
  ablate: "ablations", cut: "cuts", mask: "another mask", positions: "positions off", replace: "other tokens", step: "another training step",
};

// ── states ──

export const whole = (state, input) => ({ ...structuredClone(START), input, ...state });

export function ran(state, live) { // the run of a state; throws an Error with a message for the learner
  return live.run(requestOf(state, live.model, () => live.trace(requestOf(bare(state), live.model))));
}

export function changesOf(state) { // the number of distinct changes of each kind
  return {
    ablate: new Set(state.ablate).size,
    cut: new Set(state.cut).size,
    mask: state.mask === "trained" ? 0 : state.mask === "drawn" ? Math.max(1, new Set(state.drawn).size) : 1,
    positions: state.positions ? 0 : 1,
    replace: Object.keys(state.replace).length,
    step: state.step === null ? 0 : 1,
  };
}

// ── words ──

const plural = (n, what) => `${n} ${what}${n === 1 ? "" : "s"}`;
const listed = (words, last = "and") => (words.length < 2 ? words.join("") : `${words.slice(0, -1).join(", ")} ${last} ${words.at(-1)}`);
const label = (live, id) => `“${live.model.labels[id]}”`;
const answer = (live, ids) => `“${ids.map((id) => live.model.labels[id]).join(" ")}”`;
const share = (value) => value.toFixed(2);
const headTitle = (live, site, head) => {
  const layers = live.model.sites, at = layers.findIndex((one) => one.path === site);
  const of = layers[at], where = of?.title ? of.title : `layer ${at + 1}`;
  return of && of.heads === 1 ? where : `${where}, head ${head + 1}`;
};

// ── measures of a run ──

const same = (a, b) => a.length === b.length && a.every((value, at) => value === b[at]);
const allRight = (result) => result.right !== null && same(result.predicted, result.right);
const countRight = (result) => result.predicted.filter((token, at) => token === result.right[at]).length;
const mean = (values) => values.reduce((sum, value) => sum + value, 0) / Math.max(1, values.length);
export const symbols = (result) => { // the number of positions before the end or start token: the input as typed
  const at = result.labels.findIndex((one) => one === "end" || one === "start");
  return at < 0 ? result.labels.length : at;
};

export function measured(measure, state, live) { // a measure of the run of a state
  const result = ran(state, live);
  if (measure.of === "right") return result.right === null ? NaN : countRight(result) / result.right.length;
  if (measure.of === "same") {
    const before = ran(unchanged(state), live);
    return mean(result.predicted.map((token, at) => (token === before.predicted[at] ? 1 : 0)));
  }
  const pattern = result.patterns[measure.site][measure.head];
  if (measure.of === "weight") return pattern[measure.query]?.[measure.key] ?? 0;
  const n = Math.min(symbols(result), pattern.length), places = [...Array(n).keys()];
  if (measure.of === "anti_diagonal") return mean(places.map((query) => pattern[query][n - 1 - query] ?? 0));
  return mean(places.slice(1).map((query) => pattern[query][query - 1])); // "previous"
}

export function leader(row) { // the key with the largest weight, the weight, and its lead over the second
  let key = 0;
  row.forEach((weight, at) => { if (weight > row[key]) key = at; });
  const others = row.filter((_, at) => at !== key);
  return { key, weight: row[key], lead: row[key] - Math.max(0, ...others) };
}

// ── exercises ──

export function verdict(exercise, given, live) {
  const state = whole(given, given.input);
  const not = (sentence) => ({ solved: false, sentence }), done = (sentence) => ({ solved: true, sentence });
  try {
    return ruleBroken(exercise, state, live, not) || GOALS[exercise.goal](exercise, state, live, not, done);
  } catch (error) {
    return not(error.message);
  }
}

function ruleBroken(exercise, state, live, not) { // a violated rule of the exercise, if any
  const words = (text) => text.trim().replace(/\s+/g, " ");
  const { start, allow, keep = [], at_most: most } = exercise, began = whole(start, exercise.input);
  if (!allow.includes("input") && words(state.input) !== words(began.input)) {
    return not(`This exercise is about the input “${began.input}”, and you have “${state.input}”.`);
  }
  const other = keep.find((kind) => !sameKind(kind, state, began));
  if (other) return not(`This exercise keeps ${keptWords(other, began)}, and you have changed that.`);
  const used = KINDS.filter((kind) => !keep.includes(kind) && !allow.includes(kind) && changesOf(state)[kind] > 0);
  if (used.length) {
    const may = KINDS.filter((kind) => allow.includes(kind)).map((kind) => NAMES[kind]);
    return not(`You have used ${listed(used.map((kind) => NAMES[kind]))}; ${may.length ? `here only ${listed(may)} count` : "here no further change of the model counts"}.`);
  }
  const total = count(exercise, state);
  if (most !== undefined && total > most) return not(`You have made ${plural(total, "change")}; at most ${most} ${most === 1 ? "is" : "are"} allowed.`);
  if (exercise.shortest === undefined && exercise.longest === undefined) return null;
  const n = live.parse(state.input).source.length;
  if (n < (exercise.shortest ?? 0)) return not(`This input has ${plural(n, "token")}; at least ${exercise.shortest} are wanted.`);
  if (n > (exercise.longest ?? Infinity)) return not(`This input has ${plural(n, "token")}; at most ${exercise.longest} are wanted.`);
  return null;
}

const sameKind = (kind, a, b) => JSON.stringify(kind === "mask" ? [a.mask, a.drawn] : a[kind]) === JSON.stringify(kind === "mask" ? [b.mask, b.drawn] : b[kind]);
const keptWords = (kind, { mask, positions, step }) => ({
  mask: mask === "trained" ? "the mask as trained" : `the ${mask} mask`, positions: `positions ${positions ? "on" : "off"}`,
  step: step === null ? "the trained weights" : `training step ${step}`, ablate: "its ablations", cut: "its cuts", replace: "its tokens",
})[kind];

// The number of changes that count: without those that the exercise keeps, and without the training step.
const count = ({ keep = [] }, state) => Object.entries(changesOf(state)).reduce((sum, [kind, n]) => sum + (kind === "step" || keep.includes(kind) ? 0 : n), 0);

const GOALS = {
  breaks(exercise, state, live, not, done) {
    const before = ran(unchanged(state), live), total = count(exercise, state);
    if (!allRight(before)) return not(`Without changes the model answers ${answer(live, before.predicted)}, which is wrong already.`);
    if (total === 0) return not(`Nothing is changed yet, and the answer ${answer(live, before.predicted)} is right.`);
    const after = ran(state, live);
    if (allRight(after)) return not(`With ${plural(total, "change")} the answer is still right: ${answer(live, after.predicted)}.`);
    return done(`With ${plural(total, "change")} the answer becomes ${answer(live, after.predicted)}; right would be ${answer(live, after.right)}.`);
  },

  wrong_input(_exercise, state, live, not, done) {
    const result = ran(state, live);
    if (result.right === null) return not("For this input there is no right answer to compare with.");
    if (allRight(result)) return not(`The model is right: ${answer(live, result.predicted)}.`);
    return done(`The model answers ${answer(live, result.predicted)}; right would be ${answer(live, result.right)}.`);
  },

  right_input(_exercise, state, live, not, done) {
    const result = ran(state, live);
    if (result.right === null) return not("For this input there is no right answer to compare with.");
    if (allRight(result)) return done(`The model is right: ${answer(live, result.predicted)}.`);
    return not(`The model answers ${answer(live, result.predicted)}; right would be ${answer(live, result.right)}.`);
  },

  attends(exercise, state, live, not, done) {
    const { site, query, key } = exercise, pattern = ran(state, live).patterns[site];
    const asked = exercise.head === undefined ? pattern.map((_, head) => head) : [exercise.head];
    if (query >= pattern[0].length || key >= pattern[0][0].length) return not(`This input has no query ${query} with a key ${key}.`);
    const found = asked.map((head) => ({ head, ...leader(pattern[head][query]), asked: pattern[head][query][key] }));
    const best = found.find((one) => one.key === key && one.lead > CLEARLY);
    if (best) return done(`In ${headTitle(live, site, best.head)} query ${query} looks most at key ${key}, with weight ${share(best.weight)}.`);
    const near = found.reduce((a, b) => (b.asked > a.asked ? b : a));
    const where = headTitle(live, site, near.head);
    if (near.weight === 0) return not(`In ${where} query ${query} may look at nothing now.`);
    if (near.lead <= CLEARLY && near.weight - near.asked <= CLEARLY) return not(`In ${where} query ${query} looks at several keys equally, with weight ${share(near.weight)}.`);
    return not(`In ${where} query ${query} looks most at key ${near.key}, with weight ${share(near.weight)}; key ${key} gets ${share(near.asked)}.`);
  },

  same_answer(exercise, state, live, not, done) {
    const before = ran(unchanged(state), live), after = ran(state, live), least = exercise.at_least;
    const { counted, idle } = effective(exercise, state, before);
    const left = idle ? ` ${plural(idle, "cut")} without effect ${idle === 1 ? "does" : "do"} not count.` : "";
    if (counted < least) return not(`${plural(counted, "change")} of ${least} so far.${left}`);
    if (!same(before.predicted, after.predicted)) return not(`The answer became ${answer(live, after.predicted)}; without changes it is ${answer(live, before.predicted)}.`);
    return done(`${plural(counted, "change")}, and the answer is still ${answer(live, after.predicted)}.${left}`);
  },

  first_step(exercise, state, live, not, done) {
    const { measure, at_least: least } = exercise, { steps } = live.model;
    if (!steps.length) return not("This page has no training steps.");
    const at = (step) => measured(measure, { ...state, step: step === steps.at(-1) ? null : step }, live);
    const step = state.step ?? steps.at(-1), value = at(step);
    if (!(value >= least)) return not(`At step ${step} it is ${share(value)}, less than ${least}.`);
    const before = steps.slice(0, steps.indexOf(step)).find((one) => at(one) >= least);
    if (before !== undefined) return not(`At step ${step} it is ${share(value)}, but an earlier step has ${least} too.`);
    return done(`Step ${step} is the first with at least ${least}: ${share(value)}.`);
  },

  predicts(exercise, state, live, not, done) {
    const { predicted } = ran(state, live), { output, token } = exercise;
    if (output >= predicted.length) return not(`This input has ${plural(predicted.length, "output")}, so there is no output ${output}.`);
    const said = live.model.labels[predicted[output]];
    return said === token ? done(`Output ${output} is “${token}” now.`) : not(`Output ${output} is “${said}”, and “${token}” is wanted.`);
  },
};

function effective(exercise, state, before) { // the number of changes that can have an effect, and of cuts that cannot
  const gone = new Set(state.ablate), cells = new Set(state.cut);
  const cutsSomething = (text) => { // a cell with attention, in a head that is not ablated, and in no other cut
    const parts = text.split("."), [head, query, key] = parts.splice(-3), site = parts.join(".");
    if (head !== "*" && cells.has(`${site}.*.${query}.${key}`)) return false;
    const heads = head === "*" ? before.patterns[site].map((_, at) => at) : [Number(head)];
    return heads.some((at) => !gone.has(`${site}.${at}`) && (before.patterns[site][at][query]?.[key] ?? 0) > 0);
  };
  const idle = [...cells].filter((text) => !cutsSomething(text)).length;
  return { counted: count(exercise, state) - idle, idle };
}

// ── predictions ──

export function outcome(prediction, live) {
  const state = whole(prediction.state, prediction.state.input ?? prediction.input);
  if (prediction.ask === "cell") {
    const { site, head, query } = prediction, result = ran(state, live), row = result.patterns[site][head][query];
    const { key, weight, lead } = leader(row), keys = keysOf(result, site);
    const clear = lead > CLEARLY ? "most at" : "as much as anywhere at";
    return { truth: key, row, sentence: `Query ${query} looks ${clear} key ${key}${keys ? `, ${label(live, keys[key])}` : ""}, with weight ${share(weight)}.` };
  }
  if (prediction.ask === "token") {
    const { predicted } = ran(state, live), truth = predicted[prediction.output];
    return { truth, sentence: `Output ${prediction.output} is ${label(live, truth)}.` };
  }
  const { measure, choices, best } = prediction;
  if (best) {
    const values = choices.map((one) => measured(measure, whole(one.state, one.state.input ?? state.input), live));
    const sign = best === "highest" ? 1 : -1;
    const truth = values.reduce((at, value, n) => (sign * value > sign * values[at] ? n : at), 0);
    const words = choices.map((one, n) => `${one.text}: ${share(values[n])}`);
    return { truth, values, sentence: `${words.join("; ")}.` };
  }
  const value = measured(measure, state, live);
  const truth = choices.reduce((at, one, n) => (value >= one.at_least ? n : at), 0);
  return { truth, values: [value], sentence: `${choices[truth].text}: ${MEASURES[measure.of](share(value), measure)}.` };
}

const MEASURES = {
  right: (value) => `the share of right outputs is ${value}`,
  same: (value) => `the share of outputs that stay the same is ${value}`,
  anti_diagonal: (value) => `the anti-diagonal has ${value} of the weight`,
  previous: (value) => `the position before has ${value} of the weight`,
  weight: (value, { query, key }) => `query ${query} gives key ${key} the weight ${value}`,
};

const keysOf = (result, site) => (site.endsWith("self_attn") ? null : result.tokens.length ? result.tokens : null);

export function judged(prediction, guess, live) {
  const found = outcome(prediction, live), right = guess === found.truth;
  const named = {
    cell: () => `key ${guess}`, token: () => label(live, guess), choice: () => `“${prediction.choices[guess].text}”`,
  }[prediction.ask]();
  return { ...found, right, sentence: `Your guess: ${named}${right ? ", which is right" : ""}. ${found.sentence}` };
}
