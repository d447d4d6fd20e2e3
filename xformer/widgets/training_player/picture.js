// Draws one frame: the token strip, thumbnails of all heads, and one enlarged head with its tokens.

import { element, LEVELS, MASKED, NAN, pen } from "../shared.js";

/** @typedef {import("./state.js").State} State */
/** @typedef {import("./parts.js").Parts} Parts */
/** @typedef {ReturnType<typeof placeOf>} Place */

const HINT = "Hover over a cell to read its weight; click a thumbnail to enlarge it.";

/** @param {HTMLCanvasElement} canvas @param {number} width @param {number} height @param {number} dpr */
export function fit(canvas, width, height, dpr) {
  if (canvas.dataset.size !== `${width}x${height}x${dpr}`) {
    canvas.width = Math.round(width * dpr); canvas.height = Math.round(height * dpr);
    canvas.style.width = `${width}px`; canvas.style.height = `${height}px`;
    canvas.dataset.size = `${width}x${height}x${dpr}`;
  }
  const at = pen(canvas);
  at.setTransform(dpr, 0, 0, dpr, 0, 0);
  at.clearRect(0, 0, width, height);
  return at;
}

const STANDS_OUT = 0.5; // score from which a head is marked as the best; lower scores can be chance

/**
 * The layout for this window and these layers; it does not depend on the frame, so that nothing jumps. The enlarged head is at
 * the left with everything else next to it, or below it in a narrow window.
 * @param {State} state @param {Parts} parts
 */
function placeOf(state, parts) {
  const { timeline, width } = state, most = Math.max(...timeline.layers.map((layer) => layer.heads)), n = timeline.layers.length;
  const gap = 6, few = most * n <= 1, wide = width >= 640;
  const framed = getComputedStyle(parts.root).getPropertyValue("--in-frame").trim(); // there it fills the window
  const high = Math.max(240, window.innerHeight - (framed ? 90 : 285));
  const large = wide ? Math.min(high, 760, Math.round(width * 0.5)) : Math.min(width, 420);
  const room = wide ? width - large - 28 : width;
  const at = pen(parts.large);
  at.font = state.font(11.5, 600);
  const names = Math.ceil(Math.max(...timeline.layers.map((layer) => at.measureText(layer.title).width))) + 10;
  const lanes = 38 * (timeline.reads.length + 1);
  const free = wide ? Math.max(60, large - lanes - 210) : 102 * n; // for the thumbnails
  let side = 0, across = 1; // number of layers side by side: the one that makes the heads largest
  for (let columns = 1; columns <= n; columns++) {
    const fits = Math.min(150, (room / columns - names) / most - gap, free / Math.ceil(n / columns) - gap);
    if (fits > side + 1) { side = Math.floor(fits); across = columns; }
  }
  side = Math.max(18, side);
  const down = Math.ceil(n / across), group = names + most * (side + gap);
  const ruler = { width: room, height: wide ? Math.max(96, Math.min(220, large - lanes - (few ? 0 : down * (side + gap)) - 118)) : 110 };
  return { large, side, gap, names, few, wide, across, down, group, ruler };
}

/** @param {State} state @param {Parts} parts */
export function layOut(state, parts) {
  state.place = placeOf(state, parts);
  parts.root.classList.toggle("wide", state.place.wide);
  parts.grid.hidden = state.place.few;
}

/** The lanes of the input and of the prediction, which change only with the timeline. @param {State} state @param {Parts} parts */
export function drawLanes({ timeline }, parts) {
  const { says } = timeline.frames[0], lanes = JSON.stringify([timeline.reads, timeline.offset, says.length]);
  if (parts.lanes === lanes) return;
  parts.lanes = lanes;
  parts.strip.replaceChildren();
  const lane = (/** @type {string} */ name, /** @type {string[]} */ tokens, /** @type {number} */ offset) => {
    parts.strip.append(element("div", "name", name));
    const row = element("div", "lane");
    row.setAttribute("role", "list");
    row.setAttribute("aria-label", name);
    for (let i = 0; i < offset; i++) row.append(element("div", "chip gap"));
    const chips = tokens.map((token) => {
      const chip = element("div", "chip");
      chip.setAttribute("role", "listitem");
      chip.append(element("span", "word", token));
      row.append(chip);
      return chip;
    });
    parts.strip.append(row);
    return chips;
  };
  for (const [name, tokens] of timeline.reads) lane(name, tokens, 0);
  parts.said = lane("predicts", says, timeline.offset);
  for (const chip of parts.said) chip.append(element("span", "sign"), element("span", "bar"));
}

/** @param {State} state @param {Parts} parts */
export function drawStrip({ frame, timeline: { judged } }, parts) {
  parts.said.forEach((chip, i) => {
    const right = frame.right[i], p = frame.probability[i], [word, sign, bar] = chip.querySelectorAll("span");
    chip.className = judged ? `chip ${right ? "right" : "wrong"}` : "chip";
    word.textContent = frame.says[i];
    sign.textContent = !judged ? "" : right ? "✓" : "✗";
    bar.style.width = `${(100 * p).toFixed(1)}%`;
    chip.title = `${frame.says[i]}: probability ${p.toFixed(4)}${!judged ? "" : right ? ", right" : ", wrong"}`;
  });
}

/** @type {HTMLCanvasElement} */
let scratch;

/**
 * Draw the weights of one head into a box.
 * @param {State} state @param {CanvasRenderingContext2D} at @param {number} layer @param {number} head
 * @param {number} x @param {number} y @param {number} w @param {number} h
 */
function paint(state, at, layer, head, x, y, w, h) {
  const it = state.timeline.layers[layer], codes = state.timeline.plane(state.at, layer, head), { theme } = state;
  scratch ??= element("canvas");
  if (scratch.width !== it.cols || scratch.height !== it.rows) { scratch.width = it.cols; scratch.height = it.rows; }
  const to = pen(scratch), image = to.createImageData(it.cols, it.rows), words = new Uint32Array(image.data.buffer);
  for (let i = 0; i < words.length; i++) words[i] = theme.colours.words[codes[i]];
  to.putImageData(image, 0, 0);
  at.save();
  at.fillStyle = theme.hatch;
  at.fillRect(x, y, w, h);
  at.imageSmoothingEnabled = false;
  at.drawImage(scratch, x, y, w, h);
  at.restore();
}

/** @param {State} state @param {Parts} parts */
export function drawHeads(state, parts) {
  const { timeline, theme } = state, { side, gap, names, large, few, across, down, group } = state.place, [layer, head] = state.head;
  const best = timeline.bestAt(state.at);
  if (!few) {
    const at = fit(parts.grid, across * group, down * (side + gap), theme.dpr);
    timeline.layers.forEach((it, l) => {
      const left = (l % across) * group, y = Math.floor(l / across) * (side + gap) + 1;
      at.fillStyle = theme.muted; at.font = state.font(11.5, 600); at.textBaseline = "middle"; at.textAlign = "left";
      at.fillText(it.title, left, y + side / 2);
      for (let h = 0; h < it.heads; h++) {
        const x = left + names + h * (side + gap) + 1;
        paint(state, at, l, h, x, y, side - 2, side - 2);
        const isLarge = l === layer && h === head;
        at.strokeStyle = isLarge ? state.headHue(h) : theme.line; at.lineWidth = isLarge ? 3 : 1;
        at.strokeRect(x - 0.5, y - 0.5, side - 1, side - 1);
        if (best.score >= STANDS_OUT && best.layer === l && best.head === h) star(state, at, x + side - 12, y + 10);
      }
    });
    parts.grid.setAttribute("aria-label", `All heads at step ${state.frame.step}; click one to enlarge it.`);
  }
  drawLarge(state, parts, layer, head, large);
  const score = state.frame.scores[layer]?.[head];
  parts.name.textContent = timeline.headName(layer, head);
  parts.dot.style.background = state.headHue(head);
  parts.score.textContent = score === undefined ? "" : `${timeline.score}: ${score.toFixed(2)}`;
  parts.telling.textContent = best.score < STANDS_OUT ? "" : best.layer === layer && best.head === head
    ? "★ best of all heads" : `★ ${timeline.headName(best.layer, best.head)}, ${best.score.toFixed(2)}`;
}

/** @param {State} state @param {CanvasRenderingContext2D} at @param {number} x @param {number} y */
function star(state, at, x, y) {
  at.fillStyle = state.theme.background;
  at.beginPath(); at.arc(x, y, 9, 0, 7); at.fill();
  at.fillStyle = state.theme.text;
  at.font = state.font(13, 700); at.textAlign = "center"; at.textBaseline = "middle";
  at.fillText("★", x, y + 0.5);
}

/** @param {State} state @param {Parts} parts @param {number} layer @param {number} head @param {number} size */
function drawLarge(state, parts, layer, head, size) {
  const { timeline, theme } = state, it = timeline.layers[layer];
  const left = it.queryLabels.some((text) => text.length > 3) ? 76 : 62, top = 50, inner = size - left - 4;
  const aspect = it.queryLabels.length / it.keyLabels.length, w = inner, h = Math.min(inner * 1.05, Math.max(60, inner * aspect));
  state.box = { x: left, y: top, w, h, layer, head };
  const at = fit(parts.large, size, Math.ceil(top + inner + 4), theme.dpr);
  paint(state, at, layer, head, left, top, w, h);
  at.strokeStyle = theme.line; at.lineWidth = 1; at.strokeRect(left - 0.5, top - 0.5, w + 1, h + 1);
  const { queryLabels: q, keyLabels: k } = it, short = (/** @type {string} */ text, /** @type {number} */ most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
  at.textBaseline = "middle";
  const tall = h / q.length, wide = w / k.length;
  at.font = state.font(Math.min(13, 10 + wide / 12));
  const widest = Math.max(...k.map((text) => at.measureText(short(text, 4)).width));
  const everyRow = Math.max(1, Math.ceil(13 / tall)), everyColumn = Math.max(1, Math.ceil((widest + 1) / wide));
  q.forEach((text, i) => { // the token and its position, small and muted, so that repeated tokens stay distinct
    if (i % everyRow) return;
    const y = top + (i + 0.5) * tall;
    at.textAlign = "right";
    at.font = state.font(Math.min(13, 10 + tall / 12)); at.fillStyle = theme.text; at.fillText(short(text, 5), left - 6, y);
    const edge = left - 11 - at.measureText(short(text, 5)).width;
    at.font = state.font(9.5); at.fillStyle = theme.muted; at.fillText(String(i), edge, y);
  });
  at.textAlign = "center";
  k.forEach((text, i) => {
    if (i % everyColumn) return;
    const x = left + (i + 0.5) * wide;
    at.font = state.font(Math.min(13, 10 + wide / 12)); at.fillStyle = theme.text; at.fillText(short(text, 4), x, top - 9);
    at.font = state.font(9.5); at.fillStyle = theme.muted; at.fillText(String(i), x, top - 23);
  });
  at.fillStyle = theme.muted; at.font = state.font(11);
  at.textAlign = "left"; at.fillText("key: position attended to →", left, top - 41);
  at.save(); at.translate(8, top + h); at.rotate(-Math.PI / 2); at.fillText("← query: attending position", 0, 0); at.restore();
  parts.large.setAttribute("aria-label",
    `Attention of ${timeline.headName(layer, head)} at step ${state.frame.step}: ${q.length} queries by ${k.length} keys.`);
}

/** Report the cell under the pointer. @param {State} state @param {Parts} parts */
export function readOut({ box, timeline, pointer, at }, parts) {
  const it = timeline.layers[box.layer], { x, y } = pointer ?? { x: -1, y: -1 };
  const col = Math.floor(((x - box.x) / box.w) * it.cols), row = Math.floor(((y - box.y) / box.h) * it.rows);
  if (row < 0 || col < 0 || row >= it.rows || col >= it.cols) { parts.readout.textContent = HINT; return; }
  const code = timeline.plane(at, box.layer, box.head)[row * it.cols + col];
  const pooled = it.rows < it.queryLabels.length || it.cols < it.keyLabels.length;
  const q = Math.floor((row * it.queryLabels.length) / it.rows), k = Math.floor((col * it.keyLabels.length) / it.cols);
  const weight = code === MASKED ? "masked" : code === NAN ? "not a number" : (code / LEVELS).toFixed(2);
  parts.readout.textContent = `${pooled ? "near " : ""}position ${q} (${it.queryLabels[q]}) → ${k} (${it.keyLabels[k]}): ${weight}`;
}

/** The layer and head whose thumbnail is clicked. @param {State} state @param {Parts} parts @param {MouseEvent} event */
export function thumbAt({ timeline, place: { side, gap, names, across, group } }, parts, event) {
  const box = parts.grid.getBoundingClientRect(), x = event.clientX - box.left;
  const layer = Math.floor((event.clientY - box.top) / (side + gap)) * across + Math.floor(x / group);
  const head = Math.floor(((x % group) - names) / (side + gap));
  return /** @type {[number, number] | null} */ (layer >= 0 && head >= 0 && head < (timeline.layers[layer]?.heads ?? 0) ? [layer, head] : null);
}
