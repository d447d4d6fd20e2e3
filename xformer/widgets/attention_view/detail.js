// The enlarged head: its matrix, arcs and labels, and the readout of the weight under the pointer.

import { LEVELS, MASKED, button, ink, parse } from "../shared.js";
import { drawCodes, everyNth, fitted, markOut } from "./canvas.js";
import { shareOf } from "./patterns.js";

/** @typedef {import("./state.js").State} State */
/** @typedef {import("./state.js").Side} Side */
/** @typedef {import("./state.js").Focus} Focus */
/** @typedef {import("./parts.js").Pane} Pane */
/** @typedef {import("./layout.js").Plot} Plot */
/** @typedef {CanvasRenderingContext2D} Pen */

/** @param {State} state @param {Pane} pane */
export function drawMatrix(state, pane) {
  const { theme, patterns, layer } = state, [l, h] = state.current, { plot, layered } = pane;
  const at = layered.clear(layered.base), signed = pane.role === "difference";
  const scale = signed ? (state.isOwn ? patterns.largestDifference(l, h, state.scale) : 1) : state.top(l, h);
  const source = signed ? patterns.differenceCodes(l, h, scale, state.scale) : patterns.codes(pane.run, l, h, scale, state.scale);
  const colours = signed ? theme.diverging : theme.sequential;
  if (state.isOwn) pane.name.textContent += signed ? ` · ±${scale.toFixed(2)}` : ` · 0…${scale.toFixed(2)}`;
  pane.name.title = pane.name.textContent;
  pane.source = source;
  drawCodes(at, source, colours, plot, theme.hatch, theme.dpr, signed, layer.queries, layer.keys);
  at.strokeStyle = theme.line; at.lineWidth = 1;
  at.strokeRect(plot.x - 0.5, plot.y - 0.5, plot.w + 1, plot.h + 1);

  const cw = plot.w / layer.keys, ch = plot.h / layer.queries;
  if (Math.min(cw, ch) >= 9) { // hairlines between cells, if there is room
    at.fillStyle = theme.background;
    for (let k = 1; k < layer.keys; k++) at.fillRect(plot.x + k * cw - 0.5, plot.y, 1, plot.h);
    for (let q = 1; q < layer.queries; q++) at.fillRect(plot.x, plot.y + q * ch - 0.5, plot.w, 1);
  }
  const size = ch >= 18 && source.pool[0] * source.pool[1] === 1 && numberSize(state, at, cw, signed ? "+0.00" : "0.00");
  if (size) { // numbers in the cells
    at.textAlign = "center"; at.textBaseline = "middle"; at.font = state.font(size);
    for (let q = 0; q < layer.queries; q++) {
      for (let k = 0; k < layer.keys; k++) {
        const w = signed ? patterns.difference(l, h, q, k) : patterns.weight(pane.run, l, h, q, k);
        if (w === Infinity || source.codes[q * layer.keys + k] === MASKED) continue;
        const nil = Math.abs(w) < 0.005, text = Number.isNaN(w) ? "NaN" : nil ? "0" : `${signed && w > 0 ? "+" : ""}${w.toFixed(2).replace("-", "−")}`;
        at.fillStyle = ink(colours.rgb[source.codes[q * layer.keys + k]]);
        at.globalAlpha = nil ? 0.4 : 1;
        at.fillText(text, plot.x + (k + 0.5) * cw, plot.y + (q + 0.5) * ch);
      }
    }
  }
  at.globalAlpha = 1;
  at.fillStyle = theme.muted; at.font = state.font(12); at.textBaseline = "middle"; at.textAlign = "left";
  at.fillText(fitted(at, "key: position attended to →", Math.max(plot.w, 60)), plot.x, 8);
  if (plot.first) {
    at.save();
    at.translate(8, plot.y); at.rotate(-Math.PI / 2); at.textAlign = "right";
    const whole = "← query: attending position", short = "← query";
    at.fillText(at.measureText(whole).width <= plot.h + 20 ? whole : short, 0, 0);
    at.restore();
    for (let q = 0, n = everyNth(ch, 15); q < layer.queries; q += n) drawLabel(state, at, plot, "query", q, false);
  }
  for (let k = 0, n = plot.flat ? 1 : everyNth(cw, 17); k < layer.keys; k += n) drawLabel(state, at, plot, "key", k, false);
}

/** @param {State} state @param {Pen} at @param {number} width @param {string} widest */
function numberSize(state, at, width, widest) { // the largest font size in which a number fits a cell, or undefined
  return [13, 11.5, 10.5].find((size) => { at.font = state.font(size); return at.measureText(widest).width + 8 <= width; });
}

/**
 * The change of the residual stream at each query, one column per layer; layers with an ablated head are marked.
 * @param {State} state @param {Pane} pane
 */
export function drawFlow(state, pane) {
  const { theme, layer } = state, { plot, layered } = pane, at = layered.clear(layered.base), columns = state.flows;
  const cw = plot.w / columns.length, ch = plot.h / layer.queries;
  const most = Math.max(1e-6, ...columns.flatMap((one) => one.stream ?? [])), size = ch >= 18 && numberSize(state, at, cw, "100%");
  at.textBaseline = "middle"; at.textAlign = "center";
  columns.forEach((column, c) => {
    column.stream?.forEach((share, q) => {
      const code = Math.round(LEVELS * Math.min(1, share / most)), x = plot.x + c * cw, y = plot.y + q * ch, rgb = theme.sequential.rgb[code];
      at.fillStyle = `rgb(${rgb.join(",")})`; at.fillRect(x, y, cw - (cw > 9 ? 1 : 0), ch - (ch > 9 ? 1 : 0));
      if (!size) return;
      at.font = state.font(size); at.fillStyle = ink(rgb); at.globalAlpha = share < 0.005 ? 0.4 : 1;
      at.fillText(share < 0.005 ? "0" : `${Math.round(100 * share)}%`, x + cw / 2, y + ch / 2);
      at.globalAlpha = 1;
    });
    const isAblated = column.runs[state.patterns.runs - 1].silenced.length > 0;
    if (c % everyNth(cw, 16)) return;
    at.font = state.font(12.5, isAblated ? 700 : 400); at.fillStyle = theme.text;
    const words = column.title.replace(/^layer /, cw > 50 ? "layer " : "");
    at.fillText(fitted(at, `${isAblated ? "✕ " : ""}${words}`, Math.max(cw, 26)), plot.x + (c + 0.5) * cw, plot.y - 13);
  });
  at.strokeStyle = theme.line; at.lineWidth = 1; at.strokeRect(plot.x - 0.5, plot.y - 0.5, plot.w + 1, plot.h + 1);
}

/** @param {State} state @param {Pane} pane @param {PointerEvent | MouseEvent} event @returns {Focus | null} */
function flowFocus(state, pane, event) {
  const { plot } = pane, part = (event.clientY - pane.layered.base.getBoundingClientRect().top - plot.y) / plot.h;
  return part >= 0 && part < 1 ? { query: Math.floor(part * state.layer.queries), key: null, kind: "query" } : null;
}

/** @param {State} state @param {Pane} pane */
export function focusMatrix(state, pane) {
  const { focus, theme, layer } = state, { plot, layered } = pane, at = layered.clear(layered.over);
  if (!focus) return;
  const cw = plot.w / layer.keys, ch = plot.h / layer.queries, { query, key } = focus;
  const row = query === null ? null : { y: plot.y + query * ch, h: Math.max(1, ch) }, col = key === null ? null : { x: plot.x + key * cw, w: Math.max(1, cw) };
  // Dim everything but the row and the column.
  const xs = col ? [[plot.x, col.x], [col.x + col.w, plot.x + plot.w]] : [[plot.x, plot.x + plot.w]];
  const ys = row ? [[plot.y, row.y], [row.y + row.h, plot.y + plot.h]] : [[plot.y, plot.y + plot.h]];
  at.fillStyle = theme.veil;
  for (const [x0, x1] of xs) for (const [y0, y1] of ys) at.fillRect(x0, y0, x1 - x0, y1 - y0);
  at.strokeStyle = theme.text; at.lineWidth = 1;
  if (row) at.strokeRect(plot.x - 0.5, row.y - 0.5, plot.w + 1, row.h + 1);
  if (col) at.strokeRect(col.x - 0.5, plot.y - 0.5, col.w + 1, plot.h + 1);
  if (row && col && focus.kind === "cell") {
    const grow = Math.max(0, (6 - Math.min(cw, ch)) / 2);
    at.beginPath(); at.rect(col.x - 1 - grow, row.y - 1 - grow, col.w + 2 + 2 * grow, row.h + 2 + 2 * grow);
    markOut(at, theme, 2.5);
  }
  if (query !== null && plot.first) drawLabel(state, at, plot, "query", query, true);
  if (key !== null) drawLabel(state, at, plot, "key", key, true);
  if (focus.kind === "cell" && pane.source && Math.min(cw, ch) < 5 && Math.min(plot.w, plot.h) > 160) drawLens(state, at, pane, pane.source, focus);
}

/**
 * A magnifier for cells that are too small to see, in the opposite corner.
 * @param {State} state @param {Pen} at @param {Pane} pane @param {import("./patterns.js").Codes} source
 * @param {{ query: number, key: number }} cell
 */
function drawLens(state, at, pane, source, { query, key }) {
  const { theme } = state, { plot } = pane, colours = pane.role === "difference" ? theme.diverging : theme.sequential, reach = 6, cell = Math.floor(Math.min(11, plot.w / 32)), size = (2 * reach + 1) * cell;
  const x0 = (key + 0.5) / state.layer.keys > 0.5 ? plot.x + 6 : plot.x + plot.w - size - 6;
  const y0 = (query + 0.5) / state.layer.queries > 0.5 ? plot.y + 6 : plot.y + plot.h - size - 6;
  const r0 = Math.floor(query / source.pool[0]), c0 = Math.floor(key / source.pool[1]);
  at.fillStyle = theme.background; at.fillRect(x0 - 3, y0 - 3, size + 6, size + 6);
  for (let r = -reach; r <= reach; r++) {
    for (let c = -reach; c <= reach; c++) {
      if (r0 + r < 0 || r0 + r >= source.rows || c0 + c < 0 || c0 + c >= source.cols) continue;
      const code = source.codes[(r0 + r) * source.cols + c0 + c];
      at.fillStyle = code === MASKED ? theme.line : `rgb(${colours.rgb[code].join(",")})`;
      at.fillRect(x0 + (c + reach) * cell, y0 + (r + reach) * cell, cell - 0.5, cell - 0.5);
    }
  }
  at.strokeStyle = theme.text; at.lineWidth = 1.5; at.strokeRect(x0 - 3, y0 - 3, size + 6, size + 6);
  at.beginPath(); at.rect(x0 + reach * cell - 1, y0 + reach * cell - 1, cell + 1.5, cell + 1.5);
  markOut(at, theme, 2);
}

/** @param {State} state @param {Pane} pane @param {PointerEvent | MouseEvent} event @returns {Focus | null} */
function cellFocus(state, pane, event) {
  const { plot } = pane, box = pane.layered.base.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
  const index = (at, from, size, count) => { const i = Math.floor(((at - from) / size) * count); return i >= 0 && i < count ? i : null; };
  const query = index(y, plot.y, plot.h, state.layer.queries), key = index(x, plot.x, plot.w, state.layer.keys);
  if (query !== null && key !== null) return { query, key, kind: "cell" };
  if (query !== null && x < plot.x && plot.first) return { query, key: null, kind: "query" };
  if (key !== null && y < plot.y && y > 16) return { query: null, key, kind: "key" };
  return null;
}

/** @param {State} state @param {Pane} pane @param {import("./view.js").AttentionView} view */
export function fillHeads(state, pane, view) {
  const { heads } = state.layer;
  pane.pick.hidden = heads === 1;
  pane.pickTitle.textContent = state.active.size > 1 ? `${state.active.size} heads` : state.headName([...state.active][0]);
  if (pane.heads.children.length !== heads) {
    pane.heads.replaceChildren(...Array.from({ length: heads }, (_, head) => {
      const node = button("", () => view.toggleHead(head));
      node.addEventListener("dblclick", () => view.showOnly(head));
      return node;
    }));
  }
  pane.heads.querySelectorAll("button").forEach((node, head) => {
    const colour = state.headHue(head), silenced = state.patterns.isSilenced(state.current[0], head, pane.run);
    node.textContent = String(head + state.patterns.firstHead);
    node.classList.toggle("silenced", silenced);
    node.title = "click: show or hide the arcs of this head · double-click: show only this head";
    node.setAttribute("aria-label", state.headName(head) + (silenced ? ", ablated" : ""));
    node.setAttribute("aria-pressed", String(state.active.has(head)));
    node.style.setProperty("--hue", colour);
    node.style.setProperty("--ink", ink(parse(colour)));
  });
}

/** @param {State} state @param {Pen} at @param {Plot} plot @param {number} query @param {number} key */
function curve(state, at, plot, query, key) {
  const y0 = plot.y + ((query + 0.5) * plot.h) / state.layer.queries, y1 = plot.y + ((key + 0.5) * plot.h) / state.layer.keys;
  at.moveTo(plot.x, y0);
  at.bezierCurveTo(plot.x + plot.w * 0.42, y0, plot.x + plot.w * 0.58, y1, plot.x + plot.w, y1);
}

/** @param {State} state @param {Pane} pane */
export function drawArcs(state, pane) {
  const { patterns } = state, l = state.current[0], { plot, layered } = pane, at = layered.clear(layered.base);
  // Curves of similar weight share one path. The weakest are left out if there are too many to see.
  const sources = [...state.active].map((h) => ({ h, ...patterns.codes(pane.run, l, h, state.top(l, h), state.scale) }));
  const counts = new Uint32Array(256);
  for (const s of sources) for (let i = 0; i < s.codes.length; i++) counts[s.codes[i]]++;
  let least = LEVELS, total = counts[LEVELS];
  while (least > 5 && total + counts[least - 1] <= 2000) total += counts[--least];
  at.lineCap = "butt";
  for (const s of sources) {
    const buckets = Array.from({ length: 12 }, () => /** @type {number[]} */ ([]));
    for (let i = 0; i < s.codes.length; i++) {
      const code = s.codes[i];
      if (code >= least && code <= LEVELS) buckets[Math.min(11, Math.floor((code / LEVELS) * 12))].push(i);
    }
    at.strokeStyle = state.headHue(s.h);
    buckets.forEach((cells, b) => {
      if (!cells.length) return;
      const w = (b + 0.5) / 12;
      at.globalAlpha = 0.04 + 0.9 * w ** 0.85; at.lineWidth = 0.5 + Math.min(2.7, 0.6 * plot.pitch) * w;
      at.beginPath();
      for (const i of cells) {
        const r = Math.floor(i / s.cols), c = i - r * s.cols;
        curve(state, at, plot, (r + 0.5) * s.pool[0] - 0.5, (c + 0.5) * s.pool[1] - 0.5);
      }
      at.stroke();
    });
  }
}

/** @param {State} state @param {Pane} pane */
export function focusArcs(state, pane) {
  const { focus, theme, layer } = state, { plot, layered } = pane, at = layered.clear(layered.over);
  pane.node.classList.toggle("dim", Boolean(focus));
  at.fillStyle = theme.muted; at.font = state.font(12); at.textBaseline = "middle";
  at.textAlign = "right"; at.fillText("query", plot.x - 6, plot.y - 12);
  at.textAlign = "left"; at.fillText("key", plot.x + plot.w + 6, plot.y - 12);
  for (const kind of /** @type {Side[]} */ (["query", "key"])) {
    const tokens = state.count(kind);
    for (let i = 0, n = everyNth(plot.h / tokens, 15); i < tokens; i += n) arcLabel(state, at, plot, kind, i, false);
  }
  if (!focus) return;
  const l = state.current[0], byKey = focus.kind === "key", count = byKey ? layer.queries : layer.keys;
  for (const h of state.active) {
    const top = state.top(l, h) || 1;
    at.strokeStyle = state.headHue(h);
    for (let i = 0; i < count; i++) {
      const [query, key] = byKey ? [i, focus.key] : [focus.query, i];
      const weight = state.seen(pane.run, l, h, query, key), w = shareOf(weight, top, state.scale);
      if (!(w >= 0.004) || weight === Infinity) continue;
      at.globalAlpha = 0.12 + 0.88 * w; at.lineWidth = 0.8 + 3.6 * w;
      at.beginPath(); curve(state, at, plot, query, key); at.stroke();
    }
  }
  at.globalAlpha = 1;
  if (focus.query !== null) arcLabel(state, at, plot, "query", focus.query, true);
  if (focus.key !== null) arcLabel(state, at, plot, "key", focus.key, true);
  at.fillStyle = theme.mark;
  if (!byKey) { at.beginPath(); at.arc(plot.x, plot.y + ((focus.query + 0.5) * plot.h) / layer.queries, 4, 0, 7); at.fill(); }
  if (byKey || focus.kind === "cell") { at.beginPath(); at.arc(plot.x + plot.w, plot.y + ((focus.key + 0.5) * plot.h) / layer.keys, 4, 0, 7); at.fill(); }
}

/** @param {State} state @param {Pane} pane @param {PointerEvent | MouseEvent} event @returns {Focus | null} */
function arcFocus(state, pane, event) {
  const { plot } = pane, box = pane.layered.base.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
  const part = (y - plot.y) / plot.h;
  if (part < 0 || part >= 1) return null;
  return x < plot.x + plot.w / 2 ? { query: Math.floor(part * state.layer.queries), key: null, kind: "query" }
    : { query: null, key: Math.floor(part * state.layer.keys), kind: "key" };
}

const FOCUS = { arcs: arcFocus, matrix: cellFocus, flow: flowFocus };

/** @param {State} state @param {Pane} pane @param {PointerEvent | MouseEvent} event */
export const focusAt = (state, pane, event) => FOCUS[pane.kind](state, pane, event);

/**
 * Labels: the token next to the plot, and its position, small and muted, so that repeated tokens stay distinct.
 * @param {State} state @param {Pen} at @param {Plot} plot @param {Side} kind @param {number} i @param {boolean} strong
 */
function drawLabel(state, at, plot, kind, i, strong) {
  const { theme } = state, count = kind === "query" ? state.layer.queries : state.layer.keys;
  const draw = (align, most) => drawName(state, at, state.position(i), fitted(at, state.labels(kind)[i], most), align, strong);
  at.save();
  at.font = state.font(12.5, strong ? 700 : 400);
  at.fillStyle = theme.background;
  if (kind === "query") {
    at.translate(plot.x - 6, plot.y + ((i + 0.5) * plot.h) / count);
    if (strong) at.fillRect(-plot.queryLabel - 2, -9, plot.queryLabel + 1, 18);
    draw("right", 96);
  } else {
    at.translate(plot.x + ((i + 0.5) * plot.w) / count, plot.y - 6);
    if (plot.flat) {
      if (strong) at.fillRect(-plot.keyLabel / 2 - 3, -16, plot.keyLabel + 6, 18);
      at.translate(0, -7);
      draw("center", 96);
    } else {
      at.rotate(plot.tilt);
      if (strong) at.fillRect(0, -9, plot.keyLabel + 8, 18);
      at.translate(2, 0);
      draw("left", 96);
    }
  }
  at.restore();
}

/**
 * Write a position and its token, "0 · the", aligned at the origin.
 * @param {State} state @param {Pen} at @param {number} position @param {string} text @param {"left" | "center" | "right"} align @param {boolean} strong
 */
function drawName(state, at, position, text, align, strong) {
  const { theme } = state, number = `${position} · `, [before, wide] = [number, text].map((one) => at.measureText(one).width);
  const x = align === "left" ? 0 : -(before + wide) / (align === "center" ? 2 : 1);
  at.textAlign = "left"; at.textBaseline = "middle";
  at.fillStyle = strong ? theme.text : theme.muted; at.fillText(number, x, 0);
  at.fillStyle = theme.text; at.fillText(text, x + before, 0);
}

/** @param {State} state @param {Pen} at @param {Plot} plot @param {Side} kind @param {number} i @param {boolean} strong */
function arcLabel(state, at, plot, kind, i, strong) {
  const { theme } = state, count = kind === "query" ? state.layer.queries : state.layer.keys, side = kind === "query" ? -1 : 1;
  const y = plot.y + ((i + 0.5) * plot.h) / count, x = side < 0 ? plot.x - 6 : plot.x + plot.w + 6;
  at.save();
  at.font = state.font(12.5, strong ? 700 : 400);
  at.fillStyle = theme.background;
  at.translate(x, y);
  const w = (side < 0 ? plot.queryLabel : plot.keyLabel) + 8;
  if (strong) at.fillRect(side < 0 ? 3 - w : -3, -9, w, 18);
  drawName(state, at, state.position(i), fitted(at, state.labels(kind)[i], 96), side < 0 ? "right" : "left", strong);
  at.restore();
}
