// Where everything stands: the thumbnails of all heads, and the panes of the enlarged head.

import { pen } from "../shared.js";

const NARROW = 480; // below this width, matrices are below each other

/** @typedef {import("./state.js").State} State */
/** @typedef {{ layer: number, head: number, x: number, y: number, w: number, h: number }} Thumb */
/** @typedef {ReturnType<typeof gridOf>} Grid */
/**
 * The area of a pane in which cells or arcs are drawn, and the widths of its labels.
 * @typedef {object} Plot
 * @property {number} x
 * @property {number} y
 * @property {number} w
 * @property {number} h
 * @property {number} queryLabel
 * @property {number} keyLabel
 * @property {boolean} first whether the labels of the queries are at its left
 * @property {boolean} flat whether the labels of the keys are horizontal
 * @property {number} tilt
 * @property {number} pitch the height of a row
 */

/**
 * Where the thumbnails stand: one row per layer, one column per head.
 * @param {State} state @param {CanvasRenderingContext2D} at
 */
export function gridOf(state, at) {
  const { layers } = state.patterns;
  at.font = state.font(12.5, 500);
  const titles = Math.ceil(Math.min(180, Math.max(...layers.map((l) => at.measureText(l.title).width)))) + 14;
  const columns = Math.max(...layers.map((l) => l.heads)), below = !state.changed ? 0 : layers.length > 12 ? 3 : 7;
  const sideIn = (width, height, gap) => Math.floor(Math.min((width - titles - 4) / columns - gap, height / layers.length - gap - below, 124));
  // Place the thumbnails next to the enlarged head if both stay large enough, else above it. With many layers, the thumbnails
  // are small and stay next to it; the grid scrolls if it is still too high.
  const room = state.room ? state.room - 26 : 560, rest = state.width - 28 - 520;
  const wide = columns > 8 ? 5 : 8, narrow = sideIn(state.width - 28 - 570, room, wide);
  const deep = narrow < 40 && sideIn(rest, 1e6, 2) >= 10, beside = narrow >= 40 || deep;
  const gap = deep ? 2 : wide;
  const above = Math.max(30, sideIn(state.width, 340, wide), Math.min(44, sideIn(state.width, 1e6, wide)));
  const side = deep ? Math.min(sideIn(rest, 1e6, 2), Math.max(state.room ? 8 : 12, sideIn(rest, state.room ? room : 430, 2)), 44) : beside ? Math.min(narrow, 104) : above;
  const longest = (l) => Math.max(l.queries, l.keys), thumbs = /** @type {Thumb[]} */ ([]);
  let y = 24;
  const rows = layers.map((l, layer) => {
    const w = Math.round(side * Math.max(0.4, l.keys / longest(l))), h = Math.round(side * Math.max(0.4, l.queries / longest(l)));
    const row = { y, h };
    for (let head = 0; head < l.heads; head++) thumbs.push({ layer, head, x: titles + head * (side + gap) + 2, y, w, h });
    y += h + gap + below;
    return row;
  });
  return { titles, columns, gap, side, rows, thumbs, beside, width: titles + columns * (side + gap) + 2, height: y + 2, below, deep };
}

/**
 * Decide which panes are shown, and their positions and sizes.
 * @param {State} state @param {import("./parts.js").Parts} parts
 */
export function layOut(state, parts) {
  const { theme, layer, grid } = state, { matrices: panes, arcs: arcPanes, flow: stream } = parts, gap = 14;
  const width = grid.beside ? state.width - grid.width - 28 - (grid.deep ? 14 : 0) : state.width;
  const isSame = state.changed && !state.moved, flow = isSame && state.flows.length > 0;
  const matrices = state.show === "arcs" && !flow ? 0 : state.moved ? 3 : 1;
  const stacked = matrices > 1 && width < NARROW, across = stacked ? 1 : matrices; // on a phone, the changed run comes first
  let arcs = state.show === "matrix" || flow ? 0 : 1;

  const at = pen(parts.grid.base);
  at.font = state.font(12.5);
  const longest = (/** @type {import("./state.js").Side} */ kind) => Math.ceil(Math.min(96, Math.max(...state.labels(kind).slice(0, 600).map((text) => at.measureText(text).width))));
  const digits = at.measureText(`${state.position(Math.max(layer.queries, layer.keys) - 1)} · `).width;
  const queryLabel = longest("query") + digits, keyLabel = longest("key") + digits;
  const left = 20 + queryLabel + 8, close = 6;

  const arcsRoom = 2 * 26 + queryLabel + keyLabel + 150, wide = keyLabel + 6;
  const fixed = left + (across - 1) * (close + gap) + 2 * across; // everything but the plots
  const arcsWidth = Math.max(arcsRoom, Math.min(460, width * 0.36)), beside = (width - fixed - arcsWidth - gap) / Math.max(1, across);
  const wrap = Boolean(matrices && arcs && beside < Math.min(220, layer.keys * 72));
  if (wrap && state.show === "both" && state.room && (state.framed ? state.room < 540 : grid.beside)) arcs = 0; // no room for them
  const fitsWindow = state.room && (state.framed || grid.beside);
  const tallestBelow = (top) => state.patterns.height // everything but the plot: the head's name, captions and legend
    || (fitsWindow ? Math.max(110, state.framed && wrap && arcs ? (state.room - 330) / 2 : state.room - top - 116) : 520);
  if (arcs && state.changed && (wrap || !matrices)) arcs = 2; // on a line of their own, both runs fit
  panes.forEach((pane, i) => { pane.node.hidden = i >= matrices; });
  panes[0].run = isSame ? 1 : 0; // equal weights, and the cells that are cut are hatched
  stream.node.hidden = !flow;
  arcPanes.forEach((pane) => { pane.node.hidden = !arcs || (arcs === 1 && pane.run !== state.patterns.runs - 1); });
  const fit = (spill, top) => {
    const room = Math.max(90, (arcs && !wrap ? beside : (width - fixed) / Math.max(1, across)) - spill);
    const cell = Math.min(state.room ? 110 : 72, room / layer.keys, tallestBelow(top) / layer.queries);
    return [Math.round(Math.max(Math.min(room, 48), cell * layer.keys)), Math.round(Math.max(48, cell * layer.queries))];
  };
  let right = 2, top = 38, [plotWidth, plotHeight] = fit(right, top);
  const flat = plotWidth / layer.keys >= Math.max(18, wide); // key labels are horizontal if they fit, else tilted
  if (!flat) {
    right = Math.max(2, Math.ceil(keyLabel / 2 + 8 - Math.min(10, plotWidth / layer.keys / 2)));
    top = 20 + Math.ceil(Math.sin(Math.PI / 3) * keyLabel + 14);
    [plotWidth, plotHeight] = fit(right, top);
  }
  const common = { flat, tilt: flat ? 0 : -Math.PI / 3, queryLabel, keyLabel, first: false, pitch: 0 };

  panes.forEach((pane, i) => {
    const first = !i || stacked;
    pane.plot = { ...common, x: first ? left : close, y: top, w: plotWidth, h: plotHeight, first };
    pane.node.style.order = stacked && pane.role === "changed" ? "-1" : "";
    pane.size = [pane.plot.x + plotWidth + right, top + plotHeight + 3];
    pane.name.textContent = isSame ? "attention, unchanged" : state.changed ? { original: "original", changed: "changed", difference: "changed − original" }[pane.role] : "matrix";
  });
  const used = fixed + across * (plotWidth + right);
  arcPanes.forEach((pane) => {
    let w = matrices && !wrap ? width - used - gap - 2 : arcs === 2 ? (width - gap) / 2 - 2 : width;
    w = Math.floor(Math.max(Math.min(arcsRoom, width), Math.min(w, 620)));
    const most = Math.max(layer.queries, layer.keys);
    // Next to a matrix, the rows of both are aligned.
    const h = matrices && !wrap ? Math.max(plotHeight, Math.min(240, 26 * most)) : Math.min(tallestBelow(24), Math.max(most * 26, 150));
    const before = Math.max(46, queryLabel + 14), after = Math.max(34, keyLabel + 14); // wide enough for the headings
    pane.plot = { ...common, x: before, y: matrices && !wrap ? top : 24, w: w - before - after, h, pitch: h / most };
    pane.size = [w, pane.plot.y + h + 4];
    pane.name.textContent = state.changed ? `arcs, ${pane.role}` : "arcs";
  });
  const columns = Math.max(1, state.flows.length), left0 = stream.node.hidden ? 0 : used + gap;
  stream.plot = { ...common, x: 6, y: top, w: Math.max(60, Math.min(Math.max(290, 56 * columns), width - left0 - 22)), h: plotHeight };
  stream.size = [stream.plot.w + 12, top + plotHeight + 3];
  stream.name.textContent = "change of the residual stream";
  for (const pane of [...panes, stream, ...arcPanes]) {
    if (pane.node.hidden) continue;
    pane.node.style.width = `${pane.size[0]}px`;
    pane.layered.resize(pane.size[0], pane.size[1], theme.dpr);
  }
}
