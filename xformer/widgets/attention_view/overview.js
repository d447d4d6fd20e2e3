// Everything around the enlarged head: the thumbnails of all heads, the legends and the token chips.

import { LEVELS, element, ink, parse, pen } from "../shared.js";
import { drawCodes, fitted, markOut } from "./canvas.js";
import { gridOf } from "./layout.js";
import { shareOf } from "./patterns.js";

/** @typedef {import("./state.js").State} State */
/** @typedef {import("./parts.js").Parts} Parts */
/** @typedef {import("./layout.js").Thumb} Thumb */

/** @param {State} state @param {Parts} parts */
export function placeGrid(state, parts) {
  const g = (state.grid = gridOf(state, pen(parts.grid.base)));
  parts.body.classList.toggle("beside", g.beside);
  parts.body.classList.toggle("deep", g.deep);
  parts.grid.resize(g.width, g.height, state.theme.dpr);
}

/** @param {State} state @param {Parts} parts */
export function drawGrid(state, parts) {
  const { theme, patterns, grid: g } = state, at = parts.grid.clear(parts.grid.base);
  at.textBaseline = "middle";
  for (let head = 0; head < g.columns; head++) { // one hue per head
    const x = g.titles + head * (g.side + g.gap) + 2, label = g.side >= 62 ? state.headName(head) : String(head + patterns.firstHead);
    const hue = state.headHue(head);
    at.font = state.font(11.5, 650);
    const w = Math.min(g.side, at.measureText(label).width + 12);
    at.fillStyle = hue;
    at.beginPath(); at.roundRect(x, 2, w, 17, 5); at.fill();
    at.fillStyle = ink(parse(hue));
    at.textAlign = "center";
    at.fillText(label, x + w / 2, 11);
  }
  at.textAlign = "left";
  at.font = state.font(g.side + g.gap + g.below < 15 ? 11 : 12.5, 500);
  g.rows.forEach((row, layer) => {
    at.fillStyle = theme.text;
    at.fillText(fitted(at, patterns.layers[layer].title, g.titles - 8), 0, row.y + row.h / 2);
  });
  const run = patterns.runs - 1; // the changed run, if there is one
  for (const t of g.thumbs) {
    const it = patterns.layers[t.layer];
    const source = patterns.codes(run, t.layer, t.head, state.top(t.layer, t.head), state.scale, true);
    drawCodes(at, source, theme.sequential, t, theme.hatch, theme.dpr, false, it.queries, it.keys, patterns.thumbnail);
    at.strokeStyle = theme.line; at.lineWidth = 1;
    at.strokeRect(t.x - 0.5, t.y - 0.5, t.w + 1, t.h + 1);
    if (patterns.isSilenced(t.layer, t.head)) strike(state, at, t);
    if (!state.changed) continue;
    const thick = g.below > 3 ? 3 : 2, y = t.y + t.h + (g.below > 3 ? 3 : 1); // how far the pattern moved
    at.fillStyle = theme.line; at.fillRect(t.x, y, t.w, thick);
    at.fillStyle = theme.text; at.fillRect(t.x, y, Math.max(it.moved[t.head] > 1e-6 ? 1 : 0, t.w * Math.min(1, it.moved[t.head])), thick);
  }
}

/** @param {State} state @param {CanvasRenderingContext2D} at @param {Thumb} t */
function strike(state, at, t) { // an ablated head: dimmed and crossed out, with a label if it fits
  const { theme } = state;
  at.fillStyle = theme.veil; at.fillRect(t.x, t.y, t.w, t.h);
  at.beginPath();
  at.moveTo(t.x, t.y); at.lineTo(t.x + t.w, t.y + t.h); at.moveTo(t.x + t.w, t.y); at.lineTo(t.x, t.y + t.h);
  markOut(at, theme, 1.5, 1);
  at.font = state.font(11, 650);
  const wide = at.measureText("ablated").width + 8;
  if (wide > t.w || t.h < 34) return;
  at.fillStyle = theme.background; at.fillRect(t.x + (t.w - wide) / 2, t.y + t.h / 2 - 8, wide, 16);
  at.fillStyle = theme.text; at.textAlign = "center"; at.textBaseline = "middle";
  at.fillText("ablated", t.x + t.w / 2, t.y + t.h / 2 + 0.5);
  at.textAlign = "left";
}

/** @param {State} state @param {Parts} parts */
export function focusGrid(state, parts) {
  const { theme, patterns, focus, layer } = state, at = parts.grid.clear(parts.grid.over);
  for (const t of state.grid.thumbs) {
    if (focus) { // thin lines, in every layer with the same tokens on that side
      const it = patterns.layers[t.layer];
      at.beginPath();
      if (focus.query !== null && it.queryLabels === layer.queryLabels) {
        const y = t.y + ((focus.query + 0.5) * t.h) / it.queries;
        at.moveTo(t.x, y); at.lineTo(t.x + t.w, y);
      }
      if (focus.key !== null && it.keyLabels === layer.keyLabels) {
        const x = t.x + ((focus.key + 0.5) * t.w) / it.keys;
        at.moveTo(x, t.y); at.lineTo(x, t.y + t.h);
      }
      markOut(at, theme, 1.25, 0.75);
    }
    const chosen = t.layer === state.current[0] && t.head === state.current[1];
    const under = state.thumb && t.layer === state.thumb.layer && t.head === state.thumb.head;
    if (!chosen && !under) continue;
    at.strokeStyle = chosen ? theme.mark : theme.text; at.lineWidth = chosen ? 3 : 1.5;
    at.beginPath(); at.roundRect(t.x - 2, t.y - 2, t.w + 4, t.h + 4, 3); at.stroke();
  }
}

/** @param {State} state @param {Parts} parts */
export function revealThumb(state, parts) { // scroll the grid to the selected layer, once per selection, without moving the page
  const row = state.grid.rows[state.current[0]], box = parts.scroll, chosen = String(state.current);
  if (!row || chosen === parts.drawn.revealed) return;
  parts.drawn.revealed = chosen;
  if (row.y < box.scrollTop || row.y + row.h > box.scrollTop + box.clientHeight) box.scrollTop = row.y - box.clientHeight / 2;
}

/** @param {State} state @param {Parts} parts @param {PointerEvent | MouseEvent} event */
export function thumbAt(state, parts, event) {
  const box = parts.grid.base.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
  return state.grid.thumbs.find((t) => x >= t.x - 3 && x < t.x + t.w + 3 && y >= t.y - 3 && y < t.y + t.h + 3 + state.grid.below) || null;
}

/** @param {State} state @param {Parts} parts */
export function drawTitle(state, parts) {
  const [layer, head] = state.current, it = state.layer;
  parts.dot.style.background = state.headHue(head);
  parts.title.textContent = `${it.title} · ${state.headName(head)}`;
  parts.title.title = `${it.name} [${head}]`;
  const exact = state.patterns.isExact(layer, head);
  const [tall, wide] = state.patterns.exactPool;
  parts.precision.textContent = exact ? (tall * wide > 1 ? `largest of ${tall} × ${wide} cells` : "exact values") : it.pool[0] * it.pool[1] > 1 ? "pooled preview" : "8-bit preview";
  const silenced = state.patterns.isSilenced(layer, head);
  const before = state.changed ? state.patterns.zSize(0, layer, head) : null;
  parts.silence.hidden = !silenced;
  parts.silence.textContent = `ablated · |z| ${before ? `${before.toFixed(2)} → ` : ""}0`;
  parts.silence.title = "The head still computes its attention pattern, which is shown, but its z is set to 0, so it writes nothing to the residual stream. |z| is the norm of z, averaged over the queries.";
  parts.title.classList.toggle("struck", silenced);
  parts.flow.layered.base.setAttribute("aria-label", "Change of the residual stream after each layer.");
  const label = `${it.title}, ${state.headName(head)}${silenced ? ", ablated" : ""}: ${it.queries} queries by ${it.keys} keys. Arrow keys move the cell.`;
  for (const pane of [...parts.matrices, ...parts.arcs]) pane.layered.base.setAttribute("aria-label", `${pane.kind}, ${pane.role}: ${label}`);
  const count = state.patterns.layers.reduce((sum, l) => sum + l.heads, 0);
  parts.grid.base.setAttribute("aria-label", `All ${count} heads, one row per layer, one column per head. Selected: ${it.title}, ${state.headName(head)}.`);
}

/** @param {State} state @param {Parts} parts */
export function drawLegends(state, parts) {
  const shown = [state.theme.key, state.scale, state.changed, state.moved].join("|");
  if (shown === parts.drawn.legends) return;
  parts.drawn.legends = shown;
  const { theme } = state, bar = (colours, width) => {
    const canvas = element("canvas"), dpr = theme.dpr;
    canvas.width = Math.round(width * dpr); canvas.height = Math.round(12 * dpr);
    canvas.style.width = `${width}px`; canvas.style.height = "12px";
    const at = pen(canvas);
    for (let x = 0; x < canvas.width; x++) {
      at.fillStyle = `rgb(${colours.rgb[Math.round((x / (canvas.width - 1)) * LEVELS)].join(",")})`;
      at.fillRect(x, 0, 1, canvas.height);
    }
    return canvas;
  };
  const [least, most] = {
    fixed: ["0", "1"], own: ["0", "the head’s largest"], log: ["0.0001", "1, logarithmic"],
    without_first_token: ["0", "the head’s largest without the first token"],
  }[state.scale];
  parts.legend.replaceChildren(`weight ${least}`, bar(theme.sequential, 120), most);
  const hatch = element("canvas");
  hatch.width = Math.round(22 * theme.dpr); hatch.height = Math.round(12 * theme.dpr);
  hatch.style.width = "22px"; hatch.style.height = "12px";
  const at = pen(hatch);
  at.fillStyle = theme.hatch; at.fillRect(0, 0, hatch.width, hatch.height);
  parts.maskedLegend.replaceChildren(hatch, state.scale === "without_first_token" ? "masked, or the first token" : "masked");
  parts.signedLegend.hidden = !state.moved;
  parts.movedLegend.hidden = !state.changed;
  if (!state.changed) return;
  parts.signedLegend.replaceChildren(state.isOwn ? "difference −largest" : "difference −1", bar(theme.diverging, 120), state.isOwn ? "+largest" : "+1");
  parts.movedLegend.replaceChildren(" · thumbnails show the changed run; the bar below each, how far its pattern moved");
}

/** @param {State} state @param {Parts} parts */
export function fillStrips(state, parts) {
  for (const strip of parts.strips) {
    strip.node.hidden = state.same && strip.kind === "key"; // one strip if queries and keys are the same tokens
    strip.what.textContent = state.same ? "tokens" : strip.kind === "query" ? "queries" : "keys";
    const labels = state.labels(strip.kind);
    if (strip.node.hidden || strip.labels === labels || (strip.labels && JSON.stringify(strip.labels) === JSON.stringify(labels))) continue;
    strip.labels = labels;
    strip.nodes = labels.map((text, i) => {
      const chip = element("span", "chip");
      chip.dataset.i = String(i);
      chip.append(element("span", "at", String(state.position(i))), element("span", "tok", text));
      return chip;
    });
    strip.chips.replaceChildren(...strip.nodes);
    strip.shown = [];
  }
}

/** @param {State} state @param {Parts} parts */
export function focusStrips(state, parts) {
  const { focus } = state, [l, h] = state.current, run = state.patterns.runs - 1;
  const hue = state.headHue(h), top = state.top(l, h) || 1;
  for (const strip of parts.strips) {
    if (strip.node.hidden) continue;
    if (strip.colour !== hue) strip.chips.style.setProperty("--hue", (strip.colour = hue));
    // Keys are weighted by the row of the hovered query, queries by the column of the hovered key.
    const byKey = focus && (state.same ? focus.kind === "key" : strip.kind === "query");
    const line = focus && (byKey ? focus.key : focus.query);
    strip.nodes.forEach((chip, i) => {
      const w = line === null ? -1 : byKey ? state.seen(run, l, h, i, line) : state.seen(run, l, h, line, i);
      const code = w === Infinity ? -2 : Number.isNaN(w) ? -1 : w < 0 ? 0 : Math.round(shareOf(w, top, state.scale) * 200);
      const asQuery = focus && focus.query === i && (state.same || strip.kind === "query");
      const asKey = focus && focus.key === i && (state.same || strip.kind === "key") && !(asQuery && state.same);
      const look = code * 4 + (asQuery ? 1 : 0) + (asKey ? 2 : 0);
      if (strip.shown[i] === look) return;
      strip.shown[i] = look;
      chip.className = `chip${asQuery ? " q" : ""}${asKey ? " k" : ""}${code === -2 ? " masked" : ""}`;
      chip.style.setProperty("--w", String(Math.max(0, code) / 200));
    });
  }
}

/** @param {State} state @param {Parts} parts */
export function revealChips(state, parts) { // scroll a long strip to the locked token, without moving the page
  for (const strip of parts.strips) {
    const { focus } = state, i = focus && (state.same ? focus.key ?? focus.query : focus[strip.kind]), chip = strip.nodes[i ?? -1];
    if (strip.node.hidden || !chip) continue;
    const from = chip.offsetLeft - strip.chips.offsetLeft, box = strip.chips;
    if (from < box.scrollLeft || from + chip.offsetWidth > box.scrollLeft + box.clientWidth) box.scrollLeft = from - box.clientWidth / 2;
  }
}
