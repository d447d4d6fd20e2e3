// The state of a live page as a plain object, and its encoding in the URL fragment.
//
//   #input=3+7+12+9&mask=causal&ablate=encoder.1.attn.2&positions=off&layer=1&head=2&tab=arithmetic

export const START = {
  input: "", // as typed; for an image, "test 3", or "drawn" and its pixels
  replace: {}, // position -> the text of another token
  mask: "trained", // trained | causal | full | drawn
  drawn: [], // the cells that a drawn mask hides, "query.key"
  ablate: [], // "encoder.1.attn.2"
  cut: [], // "encoder.1.attn.2.0.3": head, query, key; "*" for every head
  positions: true,
  step: null, // a training step; null for the trained weights
  layer: 0, head: 0, query: null, key: null,
  tab: "attention",
};
const LISTS = ["drawn", "ablate", "cut"], COUNTS = ["step", "layer", "head", "query", "key"];
const CHANGES = ["mask", "drawn", "ablate", "cut", "positions", "replace"];

/** The fragment, without default values. @param {any} state @param {any} usual @param {number | null} lesson */
export function fragmentOf(state, usual, lesson = null) {
  const pairs = new URLSearchParams();
  for (const [name, value] of Object.entries(state)) {
    if (JSON.stringify(value) === JSON.stringify(usual[name])) continue;
    if (LISTS.includes(name)) pairs.set(name, value.join(","));
    else if (name === "positions") pairs.set(name, value ? "on" : "off");
    else if (name === "replace") pairs.set(name, Object.entries(value).map(([at, text]) => `${at}:${encodeURIComponent(text)}`).join(","));
    else pairs.set(name, value === null ? "" : String(value));
  }
  if (lesson !== null) pairs.set("lesson", String(lesson));
  return pairs.toString();
}

export function stateOf(fragment, usual) { // -> a state and the step of the lesson; invalid values keep their defaults
  const pairs = new URLSearchParams(fragment.replace(/^#/, "")), state = structuredClone(usual);
  for (const [name, text] of pairs) {
    if (LISTS.includes(name)) state[name] = text ? text.split(",") : [];
    else if (COUNTS.includes(name)) state[name] = /^\d+$/.test(text) ? Number(text) : text === "" && ["step", "query", "key"].includes(name) ? null : state[name];
    else if (name === "positions") state.positions = text !== "off";
    else if (name === "replace") state.replace = replacedIn(text);
    else if (name in START) state[name] = text;
  }
  const lesson = pairs.get("lesson");
  return { state, lesson: /^\d+$/.test(lesson ?? "") ? Number(lesson) : null };
}

function replacedIn(text) {
  const found = {};
  for (const pair of text.split(",")) {
    const at = pair.indexOf(":");
    try {
      if (at > 0) found[Number(pair.slice(0, at))] = decodeURIComponent(pair.slice(at + 1));
    } catch { /* an invalid percent encoding */ }
  }
  return found;
}

export const isChanged = (state) => CHANGES.some((name) => JSON.stringify(state[name]) !== JSON.stringify(START[name]));
export const bare = (state) => ({ ...unchanged(state), replace: state.replace }); // keeps the input, without changes of the model
export const unchanged = (state) => ({ ...state, ...Object.fromEntries(CHANGES.map((name) => [name, structuredClone(START[name])])) });

// The place of an ablation or a cut, written "encoder.1.attn.2" or "encoder.1.attn.2.0.3".
export const headOf = (text) => { const at = text.lastIndexOf("."); return [text.slice(0, at), Number(text.slice(at + 1))]; };
export function cutOf(text) {
  const parts = text.split("."), [head, query, key] = parts.splice(-3);
  return [parts.join("."), head === "*" ? null : Number(head), Number(query), Number(key)];
}

// The request for `live.run`. A drawn mask modifies the trained one, so `trained` returns the run of `bare(state)`.
export function requestOf(state, { sites }, trained) {
  return {
    input: state.input,
    replace: Object.entries(state.replace).map(([at, token]) => [Number(at), token]),
    mask: state.mask === "drawn" ? drawnMask(state.drawn, sites, trained()) : state.mask,
    positions: state.positions, step: state.step, ablate: state.ablate.map(headOf), cut: state.cut.map(cutOf),
  };
}

// [query][key]: the trained mask of self-attention with some cells inverted.
function drawnMask(cells, sites, { trace }) {
  const site = sites.findLast(({ kind }) => kind !== "cross_attn"), { shape: [, , n], data } = trace.get(`${site.path}.scores`);
  const mask = Array.from({ length: n }, (_, q) => Array.from({ length: n }, (_, k) => data[q * n + k] !== -Infinity));
  for (const cell of new Set(cells)) {
    const [query, key] = cell.split(".").map(Number);
    if (mask[query]?.[key] !== undefined) mask[query][key] = !mask[query][key];
  }
  return mask;
}
