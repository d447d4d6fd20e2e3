// What the line above the panes reports: the weight of a cell, or the largest of a row, a column or a head.

/** @typedef {import("./state.js").State} State */

/** @param {number} w @param {boolean} exact */
function number(w, exact) { return w === Infinity ? "masked" : Number.isNaN(w) ? "not a number" : (exact ? "" : "≈ ") + w.toFixed(exact ? 4 : 3); }

/** @param {State} state @param {import("./state.js").Side} kind @param {number} i */
function token(state, kind, i) { return `${kind} ${state.position(i)} '${state.labels(kind)[i]}'`; }

/** @param {State} state @param {number} query @param {number} key */
function words(state, query, key) { // "0.9731", or with a changed run "original 0.9731, changed 0.1200, difference −0.8531"
  const { patterns } = state, [l, h] = state.current, exact = patterns.isSharp(l, h);
  const before = patterns.weight(0, l, h, query, key);
  if (!state.changed) return number(before, exact);
  const after = patterns.weight(1, l, h, query, key), d = patterns.difference(l, h, query, key);
  const moved = d === Infinity || Number.isNaN(d) ? "" : ` (${d > 0 ? "+" : d < 0 ? "−" : "±"}${Math.abs(d).toFixed(exact ? 4 : 3)})`;
  return `original ${number(before, exact)} · changed ${number(after, exact)}${moved}`;
}

/**
 * What is under the pointer or locked: a sentence and, for a cell, its weight.
 * @param {State} state
 * @returns {{ text: string, value: string, muted?: boolean }}
 */
export function readoutOf(state) {
  const { focus, patterns, layer } = state, [l, h] = state.current, run = patterns.runs - 1;
  if (state.thumb) {
    const it = patterns.layers[state.thumb.layer], t = state.thumb, peak = patterns.peak(run, t.layer, t.head);
    const moved = state.changed ? ` · moved by ${it.moved[t.head].toFixed(3)} (0: unchanged, 1: disjoint)` : "";
    return { text: `${it.title} · ${state.headName(t.head)} (${it.name} [${t.head}]): ${patterns.isSilenced(t.layer, t.head) ? "ablated (z = 0); " : ""}largest weight ${peak.toFixed(3)}${moved}`, value: "" };
  }
  if (!focus) return { text: "Hover over a cell or a token to read its weight; click to lock it.", value: "", muted: true };
  if (focus.kind === "cell") return { text: `${token(state, "query", focus.query)} → ${token(state, "key", focus.key)}:`, value: words(state, focus.query, focus.key) };
  // For a whole row or column, report its largest weight.
  const byKey = focus.kind === "key", count = byKey ? layer.queries : layer.keys;
  let best = -1, most = -Infinity;
  for (let i = 0; i < count; i++) {
    const w = byKey ? patterns.weight(run, l, h, i, focus.key) : patterns.weight(run, l, h, focus.query, i);
    if (w !== Infinity && w > most) { most = w; best = i; }
  }
  const who = byKey ? token(state, "key", focus.key) : token(state, "query", focus.query);
  if (best < 0) return { text: `${who}: everything is masked or not a number.`, value: "" };
  const [query, key] = byKey ? [best, focus.key] : [focus.query, best];
  return { text: byKey ? `${who} gets most attention from ${token(state, "query", best)}:` : `${who} attends most to ${token(state, "key", best)}:`, value: words(state, query, key) };
}
