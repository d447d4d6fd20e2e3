// Draws packed attention patterns (xformer/viz/packing.py), and answers every hover without asking the server.
// Order of the file: bytes -> codes (0..253 on a scale, 254 not a number, 255 masked) -> pixels -> panes -> the view.

const LEVELS = 253, NAN = 254, MASKED = 255;
const instances = new WeakMap(); // the element that holds a view -> its view, so a rerun finds what was locked

export default function ({ data, parentElement, setTriggerValue }) {
  let view = instances.get(parentElement);
  if (!view) instances.set(parentElement, (view = new AttentionView(parentElement)));
  const call = ++view.calls;
  view.send = (choice) => setTriggerValue("choice", choice);
  view.update(data);
  // An outdated call is cleaned up too: only the latest one may take the view down.
  return () => {
    if (view.calls !== call) return;
    view.destroy();
    instances.delete(parentElement);
  };
}

// ── bytes ───────────────────────────────────────────────────────────────────────────────────────────────────────────

class Patterns {
  constructor(bytes) {
    const numbers = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    const length = numbers.getUint32(4, true);
    const header = JSON.parse(new TextDecoder().decode(bytes.subarray(8, 8 + length)));
    Object.assign(this, header);
    const rider = [16, 12, 8, 4].map((back) => numbers.getUint32(bytes.length - back, true)); // rides behind the packed bytes
    this.height = rider[0];
    this.cell = [rider[1], rider[2]].map((n) => (n ? n - 1 : null)); // locked by the server: query, key
    this.order = rider[3];                                           // counts what the server chose
    this.body = bytes.subarray(8 + length, bytes.length - 16);
    this.runs = this.layers[0].runs.length; // 1, or 2 with a changed run
    const cells = this.layers[this.selected[0]].queries * this.layers[this.selected[0]].keys;
    const floats = new Float32Array(this.body.slice(this.exact).buffer); // a copy, since floats have to be aligned
    this.floats = Array.from({ length: this.runs }, (_, run) => floats.subarray(run * cells, (run + 1) * cells));
  }

  isExact(layer, head) { return layer === this.selected[0] && head === this.selected[1]; }

  plane(run, layer, head) {
    const { rows, cols, runs } = this.layers[layer], size = rows * cols, from = runs[run].offset + head * size;
    return this.body.subarray(from, from + size);
  }

  peak(run, layer, head) { return this.layers[layer].runs[run].peaks[head]; }

  // The weight of one cell: a number, NaN, or Infinity where masked.
  weight(run, layer, head, query, key) {
    const it = this.layers[layer];
    if (this.isExact(layer, head)) return this.floats[run][query * it.keys + key];
    const code = this.plane(run, layer, head)[Math.floor(query / it.pool[0]) * it.cols + Math.floor(key / it.pool[1])];
    return code === MASKED ? Infinity : code === NAN ? NaN : (code / LEVELS) * this.peak(run, layer, head);
  }

  // How far a cell moved. A masked cell has the weight 0; masked in both runs it stays masked.
  difference(layer, head, query, key) {
    const before = this.weight(0, layer, head, query, key), after = this.weight(1, layer, head, query, key);
    if (before === Infinity && after === Infinity) return Infinity;
    return (after === Infinity ? 0 : after) - (before === Infinity ? 0 : before);
  }

  // One head as codes on the scale 0..top, as fine as it is known: {codes, rows, cols, pool}.
  codes(run, layer, head, top, coarse = false) {
    const it = this.layers[layer];
    if (!coarse && this.isExact(layer, head)) {
      const from = this.floats[run], codes = new Uint8Array(from.length), scale = LEVELS / (top || 1);
      for (let i = 0; i < from.length; i++) {
        const w = from[i];
        codes[i] = w === Infinity ? MASKED : w !== w ? NAN : Math.max(0, Math.min(LEVELS, Math.round(w * scale)));
      }
      return { codes, rows: it.queries, cols: it.keys, pool: [1, 1] };
    }
    const plane = this.plane(run, layer, head), codes = new Uint8Array(plane.length), table = new Uint8Array(256);
    const scale = this.peak(run, layer, head) / (top || 1);
    for (let c = 0; c <= LEVELS; c++) table[c] = Math.min(LEVELS, Math.round(c * scale));
    table[NAN] = NAN; table[MASKED] = MASKED;
    for (let i = 0; i < plane.length; i++) codes[i] = table[plane[i]];
    return { codes, rows: it.rows, cols: it.cols, pool: it.pool };
  }

  // changed − original as codes: 0 is −top, 126.5 is no change, 253 is +top.
  differenceCodes(layer, head, top) {
    const it = this.layers[layer], fine = this.isExact(layer, head);
    const [rows, cols, pool] = fine ? [it.queries, it.keys, [1, 1]] : [it.rows, it.cols, it.pool];
    const codes = new Uint8Array(rows * cols), half = LEVELS / 2;
    for (let r = 0, i = 0; r < rows; r++) {
      for (let c = 0; c < cols; c++, i++) {
        const d = this.difference(layer, head, r * pool[0], c * pool[1]);
        codes[i] = d === Infinity ? MASKED : d !== d ? NAN
          : Math.max(0, Math.min(LEVELS, Math.round(half + (d / (top || 1)) * half)));
      }
    }
    return { codes, rows, cols, pool };
  }

  largestDifference(layer, head) {
    const it = this.layers[layer], [tall, wide] = this.isExact(layer, head) ? [1, 1] : it.pool;
    let most = 0;
    for (let q = 0; q < it.queries; q += tall) {
      for (let k = 0; k < it.keys; k += wide) {
        const d = Math.abs(this.difference(layer, head, q, k));
        if (d > most && d !== Infinity) most = d;
      }
    }
    return most;
  }
}

// Reduce to at most `tallest` × `widest` cells by the maximum, so that a lonely peak survives; masked loses to all.
function pooled(source, tallest, widest, signed) {
  const tall = Math.ceil(source.rows / Math.max(1, tallest)), wide = Math.ceil(source.cols / Math.max(1, widest));
  if (tall === 1 && wide === 1) return source;
  const rows = Math.ceil(source.rows / tall), cols = Math.ceil(source.cols / wide);
  const codes = new Uint8Array(rows * cols).fill(MASKED);
  for (let r = 0, i = 0; r < source.rows; r++) {
    const to = Math.floor(r / tall) * cols;
    for (let c = 0; c < source.cols; c++, i++) {
      const code = source.codes[i], at = to + Math.floor(c / wide), had = codes[at];
      if (code === MASKED) continue;
      if (had === MASKED || (signed && code !== NAN && had !== NAN
        ? Math.abs(code - LEVELS / 2) > Math.abs(had - LEVELS / 2) : code > had)) codes[at] = code;
    }
  }
  return { codes, rows, cols, pool: [source.pool[0] * tall, source.pool[1] * wide] };
}

// ── colours ─────────────────────────────────────────────────────────────────────────────────────────────────────────

const linear = (c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
const gamma = (c) => (c <= 0.0031308 ? c * 12.92 : 1.055 * c ** (1 / 2.4) - 0.055);

function parse(colour) { // any CSS colour -> [r, g, b] in 0..255
  const context = parse.context || (parse.context = document.createElement("canvas").getContext("2d", { willReadFrequently: true }));
  context.clearRect(0, 0, 1, 1);
  context.fillStyle = "#888";
  context.fillStyle = colour;
  context.fillRect(0, 0, 1, 1);
  return Array.from(context.getImageData(0, 0, 1, 1).data.slice(0, 3));
}
const luminance = (rgb) => { const [r, g, b] = rgb.map((c) => linear(c / 255)); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
const ink = (rgb) => (luminance(rgb) > 0.3 ? "#0b0e14" : "#ffffff");
const mix = (a, b, t) => `rgb(${a.map((c, i) => Math.round(c + (b[i] - c) * t)).join(",")})`;

function oklab([r, g, b]) {
  const [R, G, B] = [r, g, b].map((c) => linear(c / 255));
  const l = Math.cbrt(0.4122214708 * R + 0.5363325363 * G + 0.0514459929 * B);
  const m = Math.cbrt(0.2119034982 * R + 0.6806995451 * G + 0.1073969566 * B);
  const s = Math.cbrt(0.0883024619 * R + 0.2817188376 * G + 0.6299787005 * B);
  return [0.2104542553 * l + 0.793617785 * m - 0.0040720468 * s, 1.9779984951 * l - 2.428592205 * m + 0.4505937099 * s,
    0.0259040371 * l + 0.7827717662 * m - 0.808675766 * s];
}
function fromOklab([L, a, b]) {
  const l = (L + 0.3963377774 * a + 0.2158037573 * b) ** 3, m = (L - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (L - 0.0894841775 * a - 1.291485548 * b) ** 3;
  return [4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s, -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s].map((c) => Math.round(255 * gamma(Math.max(0, Math.min(1, c)))));
}

// 256 colours: 0..253 along the stops (OKLab), then not-a-number (loud) and masked (see-through: hatching lies beneath).
function palette(stops) {
  const labs = stops.map((stop) => oklab(parse(stop))), rgb = [], words = new Uint32Array(256);
  for (let c = 0; c <= LEVELS; c++) {
    const at = (c / LEVELS) * (labs.length - 1), i = Math.min(labs.length - 2, Math.floor(at)), t = at - i;
    rgb.push(fromOklab(labs[i].map((v, n) => v + (labs[i + 1][n] - v) * t)));
  }
  rgb.push([214, 0, 110]);
  rgb.forEach(([r, g, b], c) => { words[c] = (255 << 24) | (b << 16) | (g << 8) | r; });
  return { rgb, words };
}

function hatching(dpr, ground, line) {
  const size = 6 * dpr, tile = document.createElement("canvas");
  tile.width = tile.height = Math.round(size);
  const at = tile.getContext("2d"), s = tile.width;
  at.fillStyle = ground; at.fillRect(0, 0, s, s);
  at.strokeStyle = line; at.lineWidth = dpr;
  at.beginPath();
  for (const x of [-s, 0, s]) { at.moveTo(x - 1, s + 1); at.lineTo(x + s + 1, -1); }
  at.stroke();
  return at.createPattern(tile, "repeat");
}

// ── pixels ──────────────────────────────────────────────────────────────────────────────────────────────────────────

function element(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

class Layered { // two canvases, one on the other: the picture, and what follows the pointer
  constructor(className) {
    this.node = element("div", `stack ${className}`);
    this.base = element("canvas", "base");
    this.over = element("canvas", "over");
    this.over.setAttribute("aria-hidden", "true");
    this.node.append(this.base, this.over);
  }

  resize(width, height, dpr) {
    for (const canvas of [this.base, this.over]) {
      canvas.width = Math.round(width * dpr); canvas.height = Math.round(height * dpr);
      canvas.style.width = `${width}px`; canvas.style.height = `${height}px`;
    }
    [this.width, this.height, this.dpr] = [width, height, dpr];
  }

  clear(canvas) {
    const at = canvas.getContext("2d");
    at.setTransform(this.dpr, 0, 0, this.dpr, 0, 0);
    at.clearRect(0, 0, this.width, this.height);
    return at;
  }
}

const scratch = { canvas: null };
function drawCodes(at, source, colours, box, hatch, dpr, signed, rows, cols, finest = Infinity) {
  const shown = pooled(source, Math.min(finest, box.h * dpr), Math.min(finest, box.w * dpr), signed);
  const canvas = scratch.canvas || (scratch.canvas = document.createElement("canvas"));
  if (canvas.width < shown.cols || canvas.height < shown.rows) {
    canvas.width = Math.max(canvas.width, shown.cols); canvas.height = Math.max(canvas.height, shown.rows);
  }
  const to = canvas.getContext("2d"), image = to.createImageData(shown.cols, shown.rows);
  const words = new Uint32Array(image.data.buffer);
  for (let i = 0; i < words.length; i++) words[i] = colours.words[shown.codes[i]];
  to.putImageData(image, 0, 0);
  at.save();
  at.beginPath(); at.rect(box.x, box.y, box.w, box.h); at.clip();
  at.setTransform(1, 0, 0, 1, 0, 0); // hatching in device pixels
  at.fillStyle = hatch; at.fillRect(box.x * dpr, box.y * dpr, box.w * dpr, box.h * dpr);
  at.setTransform(dpr, 0, 0, dpr, 0, 0);
  at.imageSmoothingEnabled = false;
  // The last block may stand for fewer cells than the others: it is drawn in full and clipped.
  at.drawImage(canvas, 0, 0, shown.cols, shown.rows, box.x, box.y,
    (box.w * shown.cols * shown.pool[1]) / cols, (box.h * shown.rows * shown.pool[0]) / rows);
  at.restore();
}

function fitted(at, text, width) { // text cut to a width, with an ellipsis
  if (at.measureText(text).width <= width) return text;
  const letters = Array.from(text);
  while (letters.length > 1 && at.measureText(letters.join("") + "…").width > width) letters.pop();
  return letters.join("") + "…";
}

function everyNth(room, need) { // the smallest round step at which labels `need` pixels apart do not touch
  for (let ten = 1; ; ten *= 10) for (const n of [1, 2, 5]) if (room * n * ten >= need) return n * ten;
}

// ── the view ────────────────────────────────────────────────────────────────────────────────────────────────────────

class AttentionView {
  constructor(parent) {
    this.calls = 0;
    this.show = "both";           // matrix | arcs | both
    this.own = false;             // each head on its own scale instead of 0…1
    this.current = [0, 0];        // layer, head
    this.active = new Set([0]);   // heads whose arcs are drawn
    this.hover = this.lock = null; // {query, key, kind: cell | token | query | key}
    this.sent = [];               // heads reported to the server, until it echoes them
    this.build();
    parent.append(this.root);
    this.resizing = new ResizeObserver(() => {
      if (this.patterns && Math.abs(this.root.clientWidth - this.width) > 0.5) this.draw();
    });
    this.resizing.observe(this.root);
    this.watchDensity();
  }

  destroy() {
    this.resizing.disconnect();
    this.density?.removeEventListener("change", this.onDensity);
    clearTimeout(this.timer);
    cancelAnimationFrame(this.frame);
    this.root.remove();
  }

  watchDensity() { // a window dragged to another screen, or zoomed
    this.density?.removeEventListener("change", this.onDensity);
    this.density = matchMedia(`(resolution: ${devicePixelRatio}dppx)`);
    this.onDensity = () => { this.watchDensity(); if (this.patterns) this.draw(); };
    this.density.addEventListener("change", this.onDensity);
  }

  // ── building ──

  build() {
    const root = (this.root = element("div", "av"));
    root.setAttribute("role", "group");
    root.setAttribute("aria-label", "Attention of every layer and head");

    this.bar = element("div", "bar");
    this.legend = element("div", "key"); this.signedLegend = element("div", "key"); this.maskedLegend = element("div", "key");
    this.movedLegend = element("div", "key muted");
    const push = element("div", "push");
    push.append(
      this.segments("Colour scale", [["0 … 1", false], ["each head's own", true]], () => this.own, (value) => { this.own = value; }),
      this.segments("View", [["matrix", "matrix"], ["arcs", "arcs"], ["both", "both"]], () => this.show, (value) => { this.show = value; }),
    );
    this.bar.append(this.legend, this.signedLegend, this.maskedLegend, this.movedLegend, push);

    this.grid = new Layered("grid");
    this.scroll = element("div", "scroll");
    this.scroll.append(this.grid.node);
    this.focusable(this.grid.base);
    this.grid.base.addEventListener("pointermove", (event) => this.overGrid(event));
    this.grid.base.addEventListener("pointerleave", () => this.setThumb(null));
    this.grid.base.addEventListener("click", (event) => { const t = this.thumbAt(event); if (t) this.choose(t.layer, t.head); });

    const line = element("div", "head");
    this.dot = element("span", "dot"); this.title = element("span", "name"); this.path = element("span", "path");
    this.precision = element("span", "tag"); this.locked = element("button", "tag locked", "locked — Esc unlocks");
    this.locked.addEventListener("click", () => this.setLock(null));
    line.append(this.dot, this.title, this.path, this.precision, this.locked);
    this.readout = element("div", "readout");
    this.text = element("span", "text");
    this.readout.append(this.text);

    this.strips = ["query", "key"].map((kind) => {
      const node = element("div", "strip"), what = element("span", "what"), chips = element("div", "chips");
      node.append(what, chips);
      const index = (event) => { const chip = event.target.closest?.(".chip"); return chip ? Number(chip.dataset.i) : null; };
      chips.addEventListener("pointerover", (event) => { const i = index(event); if (i !== null) this.setHover(this.tokenFocus(kind, i)); });
      chips.addEventListener("pointerleave", () => this.setHover(null));
      chips.addEventListener("click", (event) => { const i = index(event); if (i !== null) this.toggleLock(this.tokenFocus(kind, i)); });
      return { kind, node, what, chips, nodes: [] };
    });

    this.stage = element("div", "stage");
    this.matrices = ["original", "changed", "difference"].map((role) => this.pane(role, "matrix"));
    this.arcs = ["original", "changed"].map((role) => this.pane(role, "arcs"));
    this.stage.append(...this.matrices.map((p) => p.node), ...this.arcs.map((p) => p.node));

    this.live = element("div", "quiet");
    this.live.setAttribute("aria-live", "polite");
    const help = element("div", "help");
    help.append("Hover links a row, a column and the tokens; a click locks. ");
    for (const [key, does] of [["Esc", "unlocks"], ["← ↑ → ↓", "move the cell"], ["[ ]", "other head"], [", .", "other layer"]]) {
      help.append(element("kbd", "", key), ` ${does} · `);
    }
    help.append("small numbers are positions");
    this.body = element("div", "body");
    const detail = element("div", "detail");
    detail.append(line, this.readout, ...this.strips.map((s) => s.node), this.stage);
    this.body.append(this.scroll, detail);
    root.append(this.bar, this.body, help, this.live);
    root.addEventListener("keydown", (event) => this.onKey(event));
  }

  focusable(canvas) {
    canvas.tabIndex = 0;
    canvas.setAttribute("role", "application");
  }

  segments(label, options, get, set) {
    const node = element("div", "seg");
    node.setAttribute("role", "group");
    node.setAttribute("aria-label", label);
    const paint = () => buttons.forEach((b, i) => b.setAttribute("aria-pressed", String(options[i][1] === get())));
    const buttons = options.map(([text, value]) => {
      const button = element("button", "", text);
      button.type = "button";
      button.addEventListener("click", () => { set(value); paint(); this.draw(); });
      return button;
    });
    node.append(...buttons);
    paint();
    return node;
  }

  pane(role, kind) {
    const node = element("div", `pane ${kind}`), caption = element("h4"), name = element("span"), layered = new Layered("plot");
    const pane = { role, kind, run: role === "changed" ? 1 : 0, node, caption, name, layered, heads: null };
    caption.append(name);
    if (kind === "arcs") {
      pane.heads = element("div", "heads");
      pane.heads.setAttribute("role", "group");
      pane.heads.setAttribute("aria-label", "Heads whose arcs are drawn; a double click shows one alone");
      caption.append(pane.heads);
    }
    node.append(caption, layered.node);
    this.focusable(layered.base);
    const focusAt = (event) => (kind === "arcs" ? this.arcFocus(pane, event) : this.cellFocus(pane, event));
    layered.base.addEventListener("pointermove", (event) => { const f = focusAt(event); this.setHover(f); });
    layered.base.addEventListener("pointerleave", () => this.setHover(null));
    layered.base.addEventListener("click", (event) => this.toggleLock(focusAt(event)));
    return pane;
  }

  // ── data in ──

  update(bytes) {
    if (!bytes || bytes.length < 24) return;
    const theme = this.readTheme(), old = this.patterns;
    const next = new Patterns(bytes);
    const again = old && old.order === next.order; // nothing new was chosen on the server's side
    if (again && old.whole === next.whole && old.height === next.height && String(old.selected) === String(next.selected)
      && JSON.stringify(old.layers) === JSON.stringify(next.layers) && JSON.stringify(old.labels) === JSON.stringify(next.labels)) {
      if (theme !== this.themeKey) this.draw(); // the same picture: only the theme can have changed
      return;
    }
    this.patterns = next;
    const started = performance.now();
    const echo = this.sent.indexOf(String(next.selected));
    if (again && echo >= 0) this.sent.splice(0, echo + 1); // the server answers an earlier choice: what is chosen here stays
    else if (!again || String(old.selected) !== String(next.selected)) { this.current = [...next.selected]; this.reported = null; }
    this.current[0] = Math.min(this.current[0], next.layers.length - 1);
    this.current[1] = Math.min(this.current[1], this.layer.heads - 1);
    this.active = new Set([...this.active].filter((head) => head < this.layer.heads));
    if (!this.active.has(this.current[1])) this.active = new Set([this.current[1]]);
    const words = (p, at = this.current[0]) => p.layers[at] && [p.labels[p.layers[at].queryLabels], p.labels[p.layers[at].keyLabels]];
    if (old && JSON.stringify(words(old)) !== JSON.stringify(words(next))) this.forget(); // other tokens
    if (!again) { // a link, or a row of a table, that points at a cell
      const [query, key] = next.cell;
      this.lock = query !== null && key !== null ? { query, key, kind: "cell" } : query !== null ? this.tokenFocus("query", query)
        : key !== null ? { query: null, key, kind: "key" } : null;
      this.reported = this.choice();
    }
    this.draw();
    this.root.dataset.ms = (performance.now() - started).toFixed(1);
  }

  get layer() { return this.patterns.layers[this.current[0]]; }
  get focus() { return this.lock || this.hover; }
  get changed() { return this.patterns.runs > 1; }
  get same() { return this.layer.queryLabels === this.layer.keyLabels; } // queries and keys are the same tokens
  labels(kind) { return this.patterns.labels[kind === "query" ? this.layer.queryLabels : this.layer.keyLabels]; }
  top(layer, head) { // the weight that has the last colour; one for both runs, so that they compare
    return this.own ? Math.max(...this.patterns.layers[layer].runs.map((_, run) => this.patterns.peak(run, layer, head))) : 1;
  }
  headName(head) { return `head ${head + this.patterns.firstHead}`; }
  position(i) { return i + this.patterns.firstPosition; }
  hue(head) { const pair = this.patterns.hues[head % this.patterns.hues.length]; return pair[this.theme.dark ? 1 : 0]; }

  readTheme() {
    const style = getComputedStyle(this.root), get = (name, fallback) => style.getPropertyValue(name).trim() || fallback;
    return ["background-color:#ffffff", "text-color:#1a1c24", "font:sans-serif", "base-font-size:16px"]
      .map((pair) => { const [name, fallback] = pair.split(":"); return get(`--st-${name}`, fallback); }).join("|");
  }

  applyTheme() {
    const key = this.readTheme(), dpr = window.devicePixelRatio || 1;
    if (key === this.themeKey && this.theme.dpr === dpr) return;
    this.themeKey = key;
    const [background, text, font, base] = key.split("|"), ground = parse(background), letters = parse(text);
    const dark = luminance(ground) < 0.25;
    this.theme = {
      dark, dpr, font, mark: dark ? "#ff5f52" : "#e0112b", zoom: Math.max(0.9, Math.min(1.3, parseFloat(base) / 16 || 1)), background: mix(ground, ground, 0), text: mix(letters, letters, 0),
      muted: mix(ground, letters, 0.66), line: mix(ground, letters, 0.22), faint: mix(ground, letters, 0.09), veil: `rgba(${ground.join(",")},0.5)`,
      sequential: palette(this.patterns.sequential[dark ? 1 : 0]), diverging: palette(this.patterns.diverging[dark ? 1 : 0]),
      hatch: hatching(dpr, mix(ground, letters, dark ? 0.16 : 0.11), mix(ground, letters, dark ? 0.34 : 0.3)),
    };
    // What the pointer marks has to stand out from the scale, which the app's own accent may not.
    this.root.style.setProperty("--av-mark", this.theme.mark);
  }

  font(size, weight = 400) { return `${weight} ${(size * this.theme.zoom).toFixed(2)}px ${this.theme.font || "sans-serif"}`; }

  // ── drawing ──

  draw() { // everything: new data, theme, size or switch
    this.width = this.root.clientWidth;
    if (!this.width) return; // hidden: the observer calls again
    this.applyTheme();
    this.drawLegends();
    this.drawGrid();
    this.drawHead();
  }

  drawHead() { // the chosen head, enlarged
    this.drawTitle();
    this.fillStrips();
    this.layOut();
    for (const pane of this.matrices) if (!pane.node.hidden) this.drawMatrix(pane);
    for (const pane of this.arcs) if (!pane.node.hidden) { this.fillHeads(pane); this.drawArcs(pane); }
    this.drawFocus();
  }

  drawTitle() {
    const [layer, head] = this.current, it = this.layer;
    this.dot.style.background = this.hue(head);
    this.title.textContent = `${it.title} · ${this.headName(head)}`;
    this.path.textContent = `${it.name} [${head}]`;
    const exact = this.patterns.isExact(layer, head);
    this.precision.textContent = exact ? "exact values" : it.pool[0] * it.pool[1] > 1 ? "pooled preview" : "8-bit preview";
    const label = `${it.title}, ${this.headName(head)}: ${it.queries} queries by ${it.keys} keys. Arrow keys move the cell.`;
    for (const pane of [...this.matrices, ...this.arcs]) pane.layered.base.setAttribute("aria-label", `${pane.kind}, ${pane.role}: ${label}`);
    const count = this.patterns.layers.reduce((sum, l) => sum + l.heads, 0);
    this.grid.base.setAttribute("aria-label", `All ${count} heads, a row a layer, a column a head. Chosen: ${it.title}, ${this.headName(head)}.`);
  }

  drawLegends() {
    const { theme } = this, bar = (colours, width) => {
      const canvas = element("canvas"), dpr = theme.dpr;
      canvas.width = Math.round(width * dpr); canvas.height = Math.round(12 * dpr);
      canvas.style.width = `${width}px`; canvas.style.height = "12px";
      const at = canvas.getContext("2d");
      for (let x = 0; x < canvas.width; x++) {
        at.fillStyle = `rgb(${colours.rgb[Math.round((x / (canvas.width - 1)) * LEVELS)].join(",")})`;
        at.fillRect(x, 0, 1, canvas.height);
      }
      return canvas;
    };
    this.legend.replaceChildren("weight 0", bar(theme.sequential, 120), this.own ? "the head's largest" : "1");
    const hatch = element("canvas");
    hatch.width = Math.round(22 * theme.dpr); hatch.height = Math.round(12 * theme.dpr);
    hatch.style.width = "22px"; hatch.style.height = "12px";
    const at = hatch.getContext("2d");
    at.fillStyle = theme.hatch; at.fillRect(0, 0, hatch.width, hatch.height);
    this.maskedLegend.replaceChildren(hatch, "masked");
    this.signedLegend.hidden = this.movedLegend.hidden = !this.changed;
    if (!this.changed) return;
    this.signedLegend.replaceChildren(this.own ? "difference −largest" : "difference −1", bar(theme.diverging, 120), this.own ? "+largest" : "+1");
    this.movedLegend.replaceChildren("small heads: the changed run; the bar below each: how far it moved");
  }

  gridGeometry() {
    const { layers } = this.patterns, at = this.grid.base.getContext("2d");
    at.font = this.font(12.5, 500);
    const titles = Math.ceil(Math.min(150, Math.max(...layers.map((l) => at.measureText(l.title).width)))) + 12;
    const columns = Math.max(...layers.map((l) => l.heads)), gap = columns > 8 ? 5 : 8, below = this.changed ? 7 : 0;
    const fit = (width, height) => Math.floor(Math.max(30, Math.min((width - titles - 4) / columns - gap, height / layers.length - gap - below, 124)));
    // Beside the enlarged head where that leaves it room and the thumbnails a decent size; else above it.
    const narrow = fit(this.width - 28 - 600, 560), above = Math.max(fit(this.width, 340), Math.min(44, fit(this.width, 1e6)));
    const beside = narrow >= 40, side = beside ? Math.min(narrow, 104) : above;
    const longest = (l) => Math.max(l.queries, l.keys), thumbs = [];
    let y = 24;
    const rows = layers.map((l, layer) => {
      const w = Math.round(side * Math.max(0.4, l.keys / longest(l))), h = Math.round(side * Math.max(0.4, l.queries / longest(l)));
      const row = { y, h };
      for (let head = 0; head < l.heads; head++) thumbs.push({ layer, head, x: titles + head * (side + gap) + 2, y, w, h });
      y += h + gap + below;
      return row;
    });
    return { titles, columns, gap, side, rows, thumbs, beside, width: titles + columns * (side + gap) + 2, height: y + 2, below };
  }

  drawGrid() {
    const { theme, patterns } = this, g = (this.gridAt = this.gridGeometry());
    this.body.classList.toggle("beside", g.beside);
    this.detail = g.beside ? this.width - g.width - 28 : this.width;
    this.grid.resize(g.width, g.height, theme.dpr);
    const at = this.grid.clear(this.grid.base);
    at.textBaseline = "middle";
    for (let head = 0; head < g.columns; head++) { // one hue a head
      const x = g.titles + head * (g.side + g.gap) + 2, label = g.side >= 62 ? this.headName(head) : String(head + patterns.firstHead);
      const hue = this.hue(head);
      at.font = this.font(11.5, 650);
      const w = Math.min(g.side, at.measureText(label).width + 12);
      at.fillStyle = hue;
      at.beginPath(); at.roundRect(x, 2, w, 17, 5); at.fill();
      at.fillStyle = ink(parse(hue));
      at.textAlign = "center";
      at.fillText(label, x + w / 2, 11);
    }
    at.textAlign = "left";
    at.font = this.font(12.5, 500);
    g.rows.forEach((row, layer) => {
      at.fillStyle = theme.text;
      at.fillText(fitted(at, patterns.layers[layer].title, g.titles - 8), 0, row.y + row.h / 2);
    });
    const run = patterns.runs - 1; // the changed run, where there is one
    for (const t of g.thumbs) {
      const it = patterns.layers[t.layer];
      const source = patterns.codes(run, t.layer, t.head, this.top(t.layer, t.head), true);
      drawCodes(at, source, theme.sequential, t, theme.hatch, theme.dpr, false, it.queries, it.keys, patterns.thumbnail);
      at.strokeStyle = theme.line; at.lineWidth = 1;
      at.strokeRect(t.x - 0.5, t.y - 0.5, t.w + 1, t.h + 1);
      if (!this.changed) continue;
      at.fillStyle = theme.line; at.fillRect(t.x, t.y + t.h + 3, t.w, 3);
      at.fillStyle = theme.text; at.fillRect(t.x, t.y + t.h + 3, Math.max(it.moved[t.head] > 1e-6 ? 1 : 0, t.w * Math.min(1, it.moved[t.head])), 3);
    }
  }

  layOut() { // which panes, where, how large
    const { detail: width, theme, layer } = this, gap = 14, tallest = this.patterns.height || 520;
    const matrices = this.show === "arcs" ? 0 : this.changed ? 3 : 1;
    let arcs = this.show === "matrix" ? 0 : 1;

    const at = this.grid.base.getContext("2d");
    at.font = this.font(12.5);
    const longest = (kind) => Math.ceil(Math.min(96, Math.max(...this.labels(kind).slice(0, 600).map((text) => at.measureText(text).width))));
    const digits = at.measureText(String(this.position(Math.max(layer.queries, layer.keys) - 1))).width * 0.82 + 6;
    const queryLabel = longest("query") + digits, keyLabel = longest("key") + digits;
    const left = 20 + queryLabel + 8, close = 6;

    const arcsRoom = 2 * 26 + queryLabel + keyLabel + 150, wide = longest("key") + 6;
    const fixed = left + (matrices - 1) * (close + gap) + 2 * matrices; // all that is not a plot
    const arcsWidth = Math.max(arcsRoom, Math.min(460, width * 0.36)), beside = (width - fixed - arcsWidth - gap) / Math.max(1, matrices);
    const wrap = Boolean(matrices && arcs && beside < Math.min(220, layer.keys * 72));
    if (arcs && this.changed && (wrap || !matrices)) arcs = 2; // a line of their own has room for both runs
    this.matrices.forEach((pane, i) => { pane.node.hidden = i >= matrices; });
    this.arcs.forEach((pane) => { pane.node.hidden = !arcs || (arcs === 1 && pane.run !== this.patterns.runs - 1); });
    const fit = (spill) => {
      const room = Math.max(90, (arcs && !wrap ? beside : (width - fixed) / Math.max(1, matrices)) - spill);
      const cell = Math.min(72, room / layer.keys, tallest / layer.queries);
      return [Math.round(Math.max(Math.min(room, 48), cell * layer.keys)), Math.round(Math.max(48, cell * layer.queries))];
    };
    let right = 2, [plotWidth, plotHeight] = fit(right);
    const flat = plotWidth / layer.keys >= Math.max(18, wide); // key labels upright where they fit, else tilted
    if (!flat) {
      right = Math.max(2, Math.ceil(keyLabel / 2 + 8 - Math.min(10, plotWidth / layer.keys / 2)));
      [plotWidth, plotHeight] = fit(right);
    }
    const tilt = flat ? 0 : -Math.PI / 3, top = 20 + (flat ? 32 : Math.ceil(Math.sin(Math.PI / 3) * keyLabel + 14));

    this.matrices.forEach((pane, i) => {
      pane.plot = { x: i ? close : left, y: top, w: plotWidth, h: plotHeight, flat, tilt, queryLabel, keyLabel, first: !i };
      pane.size = [pane.plot.x + plotWidth + right, top + plotHeight + 3];
      pane.name.textContent = this.changed ? { original: "original", changed: "changed", difference: "difference: changed − original" }[pane.role] : "matrix";
    });
    const used = fixed + matrices * (plotWidth + right);
    this.arcs.forEach((pane) => {
      let w = matrices && !wrap ? width - used - gap - 2 : arcs === 2 ? (width - gap) / 2 - 2 : width;
      w = Math.floor(Math.max(Math.min(arcsRoom, width), Math.min(w, 620)));
      const most = Math.max(layer.queries, layer.keys);
      // Beside a matrix the rows of both line up.
      const h = matrices && !wrap ? Math.max(plotHeight, Math.min(240, 26 * most)) : Math.min(tallest, Math.max(most * 26, 150));
      const before = Math.max(46, queryLabel + 14), after = Math.max(34, keyLabel + 14); // room for the headings, too
      pane.plot = { x: before, y: matrices && !wrap ? top : 24, w: w - before - after, h, pitch: h / most, queryLabel, keyLabel };
      pane.size = [w, pane.plot.y + h + 4];
      pane.name.textContent = this.changed ? `arcs, ${pane.role}` : "arcs";
    });
    for (const pane of [...this.matrices, ...this.arcs]) {
      if (pane.node.hidden) continue;
      pane.node.style.width = `${pane.size[0]}px`;
      pane.layered.resize(pane.size[0], pane.size[1], theme.dpr);
    }
  }

  // Labels: the token next to the picture, its position small and muted further out, so repeats stay distinct.
  drawLabel(at, plot, kind, i, strong) {
    const { theme } = this, text = this.labels(kind)[i], number = String(this.position(i));
    const count = kind === "query" ? this.layer.queries : this.layer.keys;
    at.save();
    at.textBaseline = "middle";
    if (kind === "query") {
      const y = plot.y + ((i + 0.5) * plot.h) / count;
      at.font = this.font(12.5, strong ? 700 : 400);
      const shown = fitted(at, text, 96), wide = at.measureText(shown).width;
      if (strong) { at.fillStyle = theme.background; at.fillRect(plot.x - plot.queryLabel - 8, y - 9, plot.queryLabel + 7, 18); }
      at.textAlign = "right";
      at.fillStyle = theme.text; at.fillText(shown, plot.x - 6, y);
      at.font = this.font(10.5, strong ? 700 : 400);
      at.fillStyle = strong ? theme.text : theme.muted; at.fillText(number, plot.x - 11 - wide, y);
    } else {
      const x = plot.x + ((i + 0.5) * plot.w) / count, y = plot.y - 6;
      at.translate(x, y);
      at.font = this.font(12.5, strong ? 700 : 400);
      const shown = fitted(at, text, plot.flat ? plot.w / count : 96), wide = at.measureText(shown).width;
      if (plot.flat) {
        if (strong) { at.fillStyle = theme.background; at.fillRect(-Math.max(wide, 14) / 2 - 3, -30, Math.max(wide, 14) + 6, 32); }
        at.textAlign = "center";
        at.fillStyle = theme.text; at.fillText(shown, 0, -7);
        at.font = this.font(10.5, strong ? 700 : 400);
        at.fillStyle = strong ? theme.text : theme.muted; at.fillText(number, 0, -22);
      } else {
        at.rotate(plot.tilt);
        if (strong) { at.fillStyle = theme.background; at.fillRect(0, -9, plot.keyLabel + 8, 18); }
        at.textAlign = "left";
        at.fillStyle = theme.text; at.fillText(shown, 2, 0);
        at.font = this.font(10.5, strong ? 700 : 400);
        at.fillStyle = strong ? theme.text : theme.muted; at.fillText(number, wide + 7, 0);
      }
    }
    at.restore();
  }

  drawMatrix(pane) {
    const { theme, patterns, layer } = this, [l, h] = this.current, { plot, layered } = pane;
    const at = layered.clear(layered.base), signed = pane.role === "difference";
    const scale = signed ? (this.own ? patterns.largestDifference(l, h) : 1) : this.top(l, h);
    const source = signed ? patterns.differenceCodes(l, h, scale) : patterns.codes(pane.run, l, h, scale);
    const colours = signed ? theme.diverging : theme.sequential;
    if (this.own) pane.name.textContent += signed ? ` (scale ±${scale.toFixed(3)})` : ` (scale 0…${scale.toFixed(3)})`;
    Object.assign(pane, { source, colours });
    drawCodes(at, source, colours, plot, theme.hatch, theme.dpr, signed, layer.queries, layer.keys);
    at.strokeStyle = theme.line; at.lineWidth = 1;
    at.strokeRect(plot.x - 0.5, plot.y - 0.5, plot.w + 1, plot.h + 1);

    const cw = plot.w / layer.keys, ch = plot.h / layer.queries;
    if (Math.min(cw, ch) >= 9) { // hair lines between cells, where there is room
      at.fillStyle = theme.background;
      for (let k = 1; k < layer.keys; k++) at.fillRect(plot.x + k * cw - 0.5, plot.y, 1, plot.h);
      for (let q = 1; q < layer.queries; q++) at.fillRect(plot.x, plot.y + q * ch - 0.5, plot.w, 1);
    }
    if (cw >= 34 && ch >= 20 && source.pool[0] * source.pool[1] === 1) { // numbers in the cells
      at.textAlign = "center"; at.textBaseline = "middle"; at.font = this.font(cw >= 52 ? 13 : 11.5);
      for (let q = 0; q < layer.queries; q++) {
        for (let k = 0; k < layer.keys; k++) {
          const w = signed ? patterns.difference(l, h, q, k) : patterns.weight(pane.run, l, h, q, k);
          if (w === Infinity) continue;
          const nil = Math.abs(w) < 0.005, text = w !== w ? "NaN" : nil ? "0" : `${signed && w > 0 ? "+" : ""}${w.toFixed(2).replace("-", "−")}`;
          at.fillStyle = ink(colours.rgb[source.codes[q * layer.keys + k]]);
          at.globalAlpha = nil ? 0.4 : 1;
          at.fillText(text, plot.x + (k + 0.5) * cw, plot.y + (q + 0.5) * ch);
        }
      }
    }
    at.globalAlpha = 1;
    at.fillStyle = theme.muted; at.font = this.font(12); at.textBaseline = "middle"; at.textAlign = "left";
    at.fillText(fitted(at, "key: what it looks at →", Math.max(plot.w, 60)), plot.x, 8);
    if (plot.first) {
      at.save();
      at.translate(8, plot.y); at.rotate(-Math.PI / 2); at.textAlign = "right";
      const whole = "← query: the position that looks", short = "← query";
      at.fillText(at.measureText(whole).width <= plot.h + 20 ? whole : short, 0, 0);
      at.restore();
      for (let q = 0, n = everyNth(ch, 15); q < layer.queries; q += n) this.drawLabel(at, plot, "query", q, false);
    }
    for (let k = 0, n = plot.flat ? 1 : everyNth(cw, 17); k < layer.keys; k += n) this.drawLabel(at, plot, "key", k, false);
  }

  // ── arcs ──

  fillHeads(pane) {
    const { heads } = this.layer;
    if (pane.heads.children.length !== heads) {
      pane.heads.replaceChildren(...Array.from({ length: heads }, (_, head) => {
        const button = element("button");
        button.type = "button";
        button.addEventListener("click", () => this.toggleHead(head));
        button.addEventListener("dblclick", () => { this.active = new Set([head]); this.choose(this.current[0], head); });
        return button;
      }));
    }
    Array.from(pane.heads.children).forEach((button, head) => {
      const hue = this.hue(head);
      button.textContent = String(head + this.patterns.firstHead);
      button.title = "click: show or hide this head's arcs · double click: this head alone";
      button.setAttribute("aria-label", this.headName(head));
      button.setAttribute("aria-pressed", String(this.active.has(head)));
      button.style.setProperty("--hue", hue);
      button.style.setProperty("--ink", ink(parse(hue)));
    });
  }

  toggleHead(head) {
    if (this.active.has(head) && this.active.size === 1) { this.say("The last head stays on."); return; }
    if (this.active.has(head)) this.active.delete(head); else this.active.add(head);
    if (!this.active.has(this.current[1])) { this.pick(this.current[0], [...this.active][0]); return; }
    for (const pane of this.arcs) if (!pane.node.hidden) { this.fillHeads(pane); this.drawArcs(pane); }
    this.drawFocus();
  }

  curve(at, plot, query, key) {
    const y0 = plot.y + ((query + 0.5) * plot.h) / this.layer.queries, y1 = plot.y + ((key + 0.5) * plot.h) / this.layer.keys;
    at.moveTo(plot.x, y0);
    at.bezierCurveTo(plot.x + plot.w * 0.42, y0, plot.x + plot.w * 0.58, y1, plot.x + plot.w, y1);
  }

  drawArcs(pane) {
    const { patterns } = this, l = this.current[0], { plot, layered } = pane, at = layered.clear(layered.base);
    // Curves of nearly the same weight share one path. The weakest are left out when there are too many to see.
    const sources = [...this.active].map((h) => ({ h, ...patterns.codes(pane.run, l, h, this.top(l, h)) }));
    const counts = new Uint32Array(256);
    for (const s of sources) for (let i = 0; i < s.codes.length; i++) counts[s.codes[i]]++;
    let least = LEVELS, total = counts[LEVELS];
    while (least > 5 && total + counts[least - 1] <= 2000) total += counts[--least];
    at.lineCap = "butt";
    for (const s of sources) {
      const buckets = Array.from({ length: 12 }, () => []);
      for (let i = 0; i < s.codes.length; i++) {
        const code = s.codes[i];
        if (code >= least && code <= LEVELS) buckets[Math.min(11, Math.floor((code / LEVELS) * 12))].push(i);
      }
      at.strokeStyle = this.hue(s.h);
      buckets.forEach((cells, b) => {
        if (!cells.length) return;
        const w = (b + 0.5) / 12;
        at.globalAlpha = 0.04 + 0.9 * w ** 0.85; at.lineWidth = 0.5 + Math.min(2.7, 0.6 * plot.pitch) * w;
        at.beginPath();
        for (const i of cells) {
          const r = Math.floor(i / s.cols), c = i - r * s.cols;
          this.curve(at, plot, (r + 0.5) * s.pool[0] - 0.5, (c + 0.5) * s.pool[1] - 0.5);
        }
        at.stroke();
      });
    }
  }

  arcLabel(at, plot, kind, i, strong) {
    const { theme } = this, count = kind === "query" ? this.layer.queries : this.layer.keys, side = kind === "query" ? -1 : 1;
    const y = plot.y + ((i + 0.5) * plot.h) / count, x = side < 0 ? plot.x - 6 : plot.x + plot.w + 6;
    at.textBaseline = "middle"; at.textAlign = side < 0 ? "right" : "left";
    at.font = this.font(12.5, strong ? 700 : 400);
    const shown = fitted(at, this.labels(kind)[i], 96), wide = at.measureText(shown).width;
    if (strong) {
      const w = (side < 0 ? plot.queryLabel : plot.keyLabel) + 8;
      at.fillStyle = theme.background; at.fillRect(side < 0 ? x - w + 3 : x - 3, y - 9, w, 18);
    }
    at.fillStyle = theme.text; at.fillText(shown, x, y);
    at.font = this.font(10.5, strong ? 700 : 400);
    at.fillStyle = strong ? theme.text : theme.muted; at.fillText(String(this.position(i)), x + side * (wide + 5), y);
  }

  focusArcs(pane) {
    const { focus, patterns, theme, layer } = this, { plot, layered } = pane, at = layered.clear(layered.over);
    pane.node.classList.toggle("dim", Boolean(focus));
    at.fillStyle = theme.muted; at.font = this.font(12); at.textBaseline = "middle";
    at.textAlign = "right"; at.fillText("query", plot.x - 6, plot.y - 12);
    at.textAlign = "left"; at.fillText("key", plot.x + plot.w + 6, plot.y - 12);
    for (const kind of ["query", "key"]) {
      const tokens = kind === "query" ? layer.queries : layer.keys;
      for (let i = 0, n = everyNth(plot.h / tokens, 15); i < tokens; i += n) this.arcLabel(at, plot, kind, i, false);
    }
    if (!focus) return;
    const l = this.current[0], byKey = focus.kind === "key", count = byKey ? layer.queries : layer.keys;
    for (const h of this.active) {
      const top = this.top(l, h) || 1;
      at.strokeStyle = this.hue(h);
      for (let i = 0; i < count; i++) {
        const [query, key] = byKey ? [i, focus.key] : [focus.query, i];
        const w = Math.min(1, patterns.weight(pane.run, l, h, query, key) / top);
        if (!(w >= 0.004) || patterns.weight(pane.run, l, h, query, key) === Infinity) continue;
        at.globalAlpha = 0.12 + 0.88 * w; at.lineWidth = 0.8 + 3.6 * w;
        at.beginPath(); this.curve(at, plot, query, key); at.stroke();
      }
    }
    at.globalAlpha = 1;
    if (focus.query !== null) this.arcLabel(at, plot, "query", focus.query, true);
    if (focus.key !== null) this.arcLabel(at, plot, "key", focus.key, true);
    at.fillStyle = theme.mark;
    if (!byKey) { at.beginPath(); at.arc(plot.x, plot.y + ((focus.query + 0.5) * plot.h) / layer.queries, 4, 0, 7); at.fill(); }
    if (byKey || focus.kind === "cell") { at.beginPath(); at.arc(plot.x + plot.w, plot.y + ((focus.key + 0.5) * plot.h) / layer.keys, 4, 0, 7); at.fill(); }
  }

  // ── what follows the pointer ──

  drawFocus() {
    for (const pane of this.matrices) if (!pane.node.hidden) this.focusMatrix(pane);
    for (const pane of this.arcs) if (!pane.node.hidden) this.focusArcs(pane);
    this.focusGrid();
    this.focusStrips();
    this.locked.hidden = !this.lock;
    this.read();
  }

  focusMatrix(pane) {
    const { focus, theme, layer } = this, { plot, layered } = pane, at = layered.clear(layered.over);
    if (!focus) return;
    const cw = plot.w / layer.keys, ch = plot.h / layer.queries, { query, key } = focus;
    const row = query === null ? null : { y: plot.y + query * ch, h: Math.max(1, ch) }, col = key === null ? null : { x: plot.x + key * cw, w: Math.max(1, cw) };
    // A veil over everything but the row and the column.
    const xs = col ? [[plot.x, col.x], [col.x + col.w, plot.x + plot.w]] : [[plot.x, plot.x + plot.w]];
    const ys = row ? [[plot.y, row.y], [row.y + row.h, plot.y + plot.h]] : [[plot.y, plot.y + plot.h]];
    at.fillStyle = theme.veil;
    for (const [x0, x1] of xs) for (const [y0, y1] of ys) at.fillRect(x0, y0, x1 - x0, y1 - y0);
    at.strokeStyle = theme.text; at.lineWidth = 1;
    if (row) at.strokeRect(plot.x - 0.5, row.y - 0.5, plot.w + 1, row.h + 1);
    if (col) at.strokeRect(col.x - 0.5, plot.y - 0.5, col.w + 1, plot.h + 1);
    if (row && col && focus.kind === "cell") {
      at.strokeStyle = theme.mark; at.lineWidth = 2.5;
      const grow = Math.max(0, (6 - Math.min(cw, ch)) / 2);
      at.strokeRect(col.x - 1 - grow, row.y - 1 - grow, col.w + 2 + 2 * grow, row.h + 2 + 2 * grow);
    }
    if (row && plot.first) this.drawLabel(at, plot, "query", query, true);
    if (col) this.drawLabel(at, plot, "key", key, true);
    if (focus.kind === "cell" && Math.min(cw, ch) < 5 && Math.min(plot.w, plot.h) > 160) this.drawLens(at, pane, query, key);
  }

  drawLens(at, pane, query, key) { // the cells around a cell too small to see, in the corner away from it
    const { theme } = this, { plot, source, colours } = pane, reach = 6, cell = Math.floor(Math.min(11, plot.w / 32)), size = (2 * reach + 1) * cell;
    const x0 = (key + 0.5) / this.layer.keys > 0.5 ? plot.x + 6 : plot.x + plot.w - size - 6;
    const y0 = (query + 0.5) / this.layer.queries > 0.5 ? plot.y + 6 : plot.y + plot.h - size - 6;
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
    at.strokeStyle = theme.mark; at.lineWidth = 2; at.strokeRect(x0 + reach * cell - 1, y0 + reach * cell - 1, cell + 1.5, cell + 1.5);
  }

  focusGrid() {
    const { theme, patterns, focus, layer } = this, at = this.grid.clear(this.grid.over);
    for (const t of this.gridAt.thumbs) {
      if (focus) { // thin lines, in every layer that has the same tokens on that side
        const it = patterns.layers[t.layer];
        at.strokeStyle = theme.mark; at.lineWidth = 1;
        at.beginPath();
        if (focus.query !== null && it.queryLabels === layer.queryLabels) {
          const y = t.y + ((focus.query + 0.5) * t.h) / it.queries;
          at.moveTo(t.x, y); at.lineTo(t.x + t.w, y);
        }
        if (focus.key !== null && it.keyLabels === layer.keyLabels) {
          const x = t.x + ((focus.key + 0.5) * t.w) / it.keys;
          at.moveTo(x, t.y); at.lineTo(x, t.y + t.h);
        }
        at.stroke();
      }
      const chosen = t.layer === this.current[0] && t.head === this.current[1];
      const under = this.thumb && t.layer === this.thumb.layer && t.head === this.thumb.head;
      if (!chosen && !under) continue;
      at.strokeStyle = chosen ? theme.mark : theme.text; at.lineWidth = chosen ? 3 : 1.5;
      at.beginPath(); at.roundRect(t.x - 2, t.y - 2, t.w + 4, t.h + 4, 3); at.stroke();
    }
  }

  fillStrips() {
    for (const strip of this.strips) {
      strip.node.hidden = this.same && strip.kind === "key"; // one strip where queries and keys are the same tokens
      strip.what.textContent = this.same ? "tokens" : strip.kind === "query" ? "queries" : "keys";
      const labels = this.labels(strip.kind);
      if (strip.node.hidden || strip.labels === labels || (strip.labels && JSON.stringify(strip.labels) === JSON.stringify(labels))) continue;
      strip.labels = labels;
      strip.nodes = labels.map((text, i) => {
        const chip = element("span", "chip");
        chip.dataset.i = i;
        chip.append(element("span", "at", String(this.position(i))), element("span", "tok", text));
        return chip;
      });
      strip.chips.replaceChildren(...strip.nodes);
      strip.shown = [];
    }
  }

  focusStrips() {
    const { focus, patterns } = this, [l, h] = this.current, run = patterns.runs - 1;
    const hue = this.hue(h), top = this.top(l, h) || 1;
    for (const strip of this.strips) {
      if (strip.node.hidden) continue;
      if (strip.hue !== hue) strip.chips.style.setProperty("--hue", (strip.hue = hue));
      // Keys are weighted by the row of the hovered query, queries by the column of the hovered key.
      const byKey = focus && (this.same ? focus.kind === "key" : strip.kind === "query");
      const known = focus && (byKey ? focus.key !== null : focus.query !== null);
      strip.nodes.forEach((chip, i) => {
        const w = !known ? -1 : byKey ? patterns.weight(run, l, h, i, focus.key) : patterns.weight(run, l, h, focus.query, i);
        const code = w === Infinity ? -2 : w !== w ? -1 : w < 0 ? 0 : Math.round(Math.min(1, w / top) * 200);
        const asQuery = focus && focus.query === i && (this.same || strip.kind === "query");
        const asKey = focus && focus.key === i && (this.same || strip.kind === "key") && !(asQuery && this.same);
        const state = code * 4 + (asQuery ? 1 : 0) + (asKey ? 2 : 0);
        if (strip.shown[i] === state) return;
        strip.shown[i] = state;
        chip.className = `chip${asQuery ? " q" : ""}${asKey ? " k" : ""}${code === -2 ? " masked" : ""}`;
        chip.style.setProperty("--w", Math.max(0, code) / 200);
      });
    }
  }

  revealChips() { // a strip longer than the screen scrolls to what is locked, without moving the page
    for (const strip of this.strips) {
      const i = this.focus && (this.same ? this.focus.key ?? this.focus.query : this.focus[strip.kind]), chip = strip.nodes[i];
      if (strip.node.hidden || !chip) continue;
      const from = chip.offsetLeft - strip.chips.offsetLeft, box = strip.chips;
      if (from < box.scrollLeft || from + chip.offsetWidth > box.scrollLeft + box.clientWidth) box.scrollLeft = from - box.clientWidth / 2;
    }
  }

  // ── the number under the pointer ──

  number(w, exact) { return w === Infinity ? "masked" : w !== w ? "not a number" : (exact ? "" : "≈ ") + w.toFixed(exact ? 4 : 3); }
  token(kind, i) { return `${kind} ${this.position(i)} '${this.labels(kind)[i]}'`; }

  words(query, key) { // "0.9731", or with a changed run "original 0.9731, changed 0.1200, difference −0.8531"
    const { patterns } = this, [l, h] = this.current, exact = patterns.isExact(l, h);
    const before = patterns.weight(0, l, h, query, key);
    if (!this.changed) return this.number(before, exact);
    const after = patterns.weight(1, l, h, query, key), d = patterns.difference(l, h, query, key);
    const moved = d === Infinity || d !== d ? "" : ` (${d > 0 ? "+" : d < 0 ? "−" : "±"}${Math.abs(d).toFixed(exact ? 4 : 3)})`;
    return `original ${this.number(before, exact)} · changed ${this.number(after, exact)}${moved}`;
  }

  read() {
    const { focus, patterns, layer } = this, [l, h] = this.current, run = patterns.runs - 1;
    if (this.thumb) {
      const it = patterns.layers[this.thumb.layer], t = this.thumb, peak = patterns.peak(run, t.layer, t.head);
      const moved = this.changed ? ` · moved by ${it.moved[t.head].toFixed(3)} (0 the same, 1 wholly other)` : "";
      return this.print(`${it.title} · ${this.headName(t.head)} (${it.name} [${t.head}]): largest weight ${peak.toFixed(3)}${moved}`, "");
    }
    if (!focus) return this.print("Point at a cell or a token to read its weight; click to lock it.", "", true);
    if (focus.kind === "cell") return this.print(`${this.token("query", focus.query)} → ${this.token("key", focus.key)}:`, this.words(focus.query, focus.key));
    // A whole row or column: its largest weight.
    const byKey = focus.kind === "key", count = byKey ? layer.queries : layer.keys;
    let best = -1, most = -Infinity;
    for (let i = 0; i < count; i++) {
      const w = byKey ? patterns.weight(run, l, h, i, focus.key) : patterns.weight(run, l, h, focus.query, i);
      if (w !== Infinity && w > most) { most = w; best = i; }
    }
    const who = byKey ? this.token("key", focus.key) : this.token("query", focus.query);
    if (best < 0) return this.print(`${who}: everything is masked or not a number.`, "");
    const [query, key] = byKey ? [best, focus.key] : [focus.query, best];
    return this.print(byKey ? `${who} is looked at most by ${this.token("query", best)}:` : `${who} looks most at ${this.token("key", best)}:`, this.words(query, key));
  }

  print(text, value, muted = false) {
    this.spoken = `${text} ${value}`.trim();
    this.text.classList.toggle("muted", muted);
    this.text.replaceChildren(value ? `${text} ` : text, value ? element("b", "", value) : "");
    this.readout.title = this.spoken;
  }

  say(text = this.spoken) { this.live.textContent = text; }

  // ── pointing ──

  cellFocus(pane, event) {
    const { plot } = pane, box = pane.layered.base.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
    const index = (at, from, size, count) => { const i = Math.floor(((at - from) / size) * count); return i >= 0 && i < count ? i : null; };
    const query = index(y, plot.y, plot.h, this.layer.queries), key = index(x, plot.x, plot.w, this.layer.keys);
    if (query !== null && key !== null) return { query, key, kind: "cell" };
    if (query !== null && x < plot.x && plot.first) return { query, key: null, kind: "query" };
    if (key !== null && y < plot.y && y > 16) return { query: null, key, kind: "key" };
    return null;
  }

  arcFocus(pane, event) {
    const { plot } = pane, box = pane.layered.base.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
    const part = (y - plot.y) / plot.h;
    if (part < 0 || part >= 1) return null;
    return x < plot.x + plot.w / 2 ? { query: Math.floor(part * this.layer.queries), key: null, kind: "query" }
      : { query: null, key: Math.floor(part * this.layer.keys), kind: "key" };
  }

  tokenFocus(kind, i) {
    if (this.same) return { query: i, key: i, kind: "token" };
    return kind === "query" ? { query: i, key: null, kind } : { query: null, key: i, kind };
  }

  thumbAt(event) {
    const box = this.grid.base.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
    return this.gridAt.thumbs.find((t) => x >= t.x - 3 && x < t.x + t.w + 3 && y >= t.y - 3 && y < t.y + t.h + 3 + this.gridAt.below) || null;
  }

  overGrid(event) { this.setThumb(this.thumbAt(event)); }

  setThumb(thumb) {
    if (thumb === this.thumb) return;
    this.thumb = thumb;
    this.later();
  }

  setHover(focus) {
    const a = this.hover, same = a === focus || (a && focus && a.query === focus.query && a.key === focus.key && a.kind === focus.kind);
    if (same) return;
    this.hover = focus;
    if (!this.lock) this.later();
  }

  later() { // one repaint a frame, however many events
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => { this.frame = 0; this.drawFocus(); });
  }

  toggleLock(focus) {
    const a = this.lock;
    if (!focus) return;
    this.setLock(a && a.query === focus.query && a.key === focus.key && a.kind === focus.kind ? null : focus);
  }

  setLock(focus) {
    if (!focus && !this.lock) return;
    this.lock = focus;
    this.drawFocus();
    this.revealChips();
    this.say(focus ? `Locked. ${this.spoken}` : "Unlocked.");
    this.report();
  }

  // ── choosing ──

  choose(layer, head) { // the arcs follow, unless several heads are being compared
    if (this.active.size > 1) this.active.add(head); else this.active = new Set([head]);
    this.pick(layer, head);
  }

  pick(layer, head) {
    const before = this.layer, next = this.patterns.layers[layer];
    head = Math.min(head, next.heads - 1);
    this.active = new Set([...this.active].filter((h) => h < next.heads).concat(head));
    this.current = [layer, head];
    if (before.queryLabels !== next.queryLabels || before.keyLabels !== next.keyLabels) this.forget(); // other tokens
    this.drawHead();
    this.say(`${next.title}, ${this.headName(head)}.`);
    this.report();
  }

  forget() {
    const had = this.lock;
    this.hover = this.lock = null;
    if (had) this.report();
  }

  choice() { // as the server is told
    const [layer, head] = this.current, at = this.lock;
    return JSON.stringify({ layer, head, query: at ? at.query : null, key: at && at.kind !== "token" ? at.key : null });
  }

  report() { // to the server, once the hand is still
    clearTimeout(this.timer);
    this.timer = setTimeout(() => {
      const choice = this.choice();
      if (choice === this.reported) return;
      this.reported = choice;
      const known = this.sent.length ? this.sent[this.sent.length - 1] : String(this.patterns.selected);
      if (known !== String(this.current)) this.sent.push(String(this.current));
      this.send(JSON.parse(choice));
    }, 80);
  }

  onKey(event) {
    if (!this.patterns || event.ctrlKey || event.metaKey || event.altKey) return;
    const onCanvas = event.target.tagName === "CANVAS", onGrid = event.target === this.grid.base;
    const [layer, head] = this.current, { layers } = this.patterns;
    const turn = (value, by, count) => (value + by + count) % count;
    const toHead = (by) => this.choose(layer, turn(head, by, this.layer.heads));
    const toLayer = (by) => this.choose(turn(layer, by, layers.length), head);
    const arrows = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    const step = onCanvas && arrows[event.key];
    if (event.key === "[") toHead(-1);
    else if (event.key === "]") toHead(1);
    else if (event.key === "," || (onCanvas && event.key === "PageUp")) toLayer(-1);
    else if (event.key === "." || (onCanvas && event.key === "PageDown")) toLayer(1);
    else if (event.key === "Escape" && this.lock) this.setLock(null);
    else if (onCanvas && !onGrid && (event.key === "Enter" || event.key === " ")) this.toggleLock(this.lock || this.hover);
    else if (step && onGrid) { if (step[0]) toLayer(step[0]); else toHead(step[1]); }
    else if (step) this.move(step);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  move([down, right]) {
    const from = this.focus, keep = (value, count) => Math.max(0, Math.min(count - 1, value));
    const cell = from ? { query: keep((from.query ?? 0) + down, this.layer.queries), key: keep((from.key ?? 0) + right, this.layer.keys), kind: "cell" }
      : { query: 0, key: 0, kind: "cell" };
    if (this.lock) { this.lock = cell; this.report(); } else this.hover = cell;
    this.thumb = null;
    this.drawFocus();
    this.revealChips();
    this.say();
  }
}
