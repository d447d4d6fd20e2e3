// The attention of one head over a long input.
//
//   const map = new AttentionMap(element);
//   map.update(bytes);            // of `xformer.widgets.attention_map.map_data`
//
// Scroll, pinch, drag, + − 0 and the arrow keys move through the map; a click or Enter chooses a query, whose text is shaded.

import { button, canvasTheme, element, ink, labelled, LEVELS, palette, pen, theme } from "../shared.js";
import { codes, enlarged, isByBlocks, row, unpack, weight, within } from "./cells.js";

/** @typedef {import("./cells.js").Cells} Cells */
/** @typedef {import("./cells.js").View} View */

const AROUND = 160; // tokens on each side of the query in the text
const LISTED = 12;
const LABEL = 84; // px: the room for the tokens of queries
const NUMBERS = 24; // px: the room for the numbers of keys
const LEAST_LABEL = 13; // px: the height of a cell from which tokens are written

const LEAST = 1e-4; // smaller weights are written as "under 0.01 %"
const percent = (/** @type {number} */ value) => {
  if (value >= 0.9995) return "100 %";
  return value && value < LEAST ? "under 0.01 %" : `${(100 * value).toPrecision(value < 0.1 ? 2 : 3)} %`;
};
const count = (/** @type {number} */ n) => n.toLocaleString("en");

export class AttentionMap {
  /** @param {HTMLElement} parent */
  constructor(parent) {
    this.root = element("div", "attention-map");
    this.canvas = element("canvas");
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "application");
    const tools = element("div", "tools");
    tools.append(
      labelled("+", "Enlarge", () => this.zoom(2, [0.5, 0.5])),
      labelled("−", "Reduce", () => this.zoom(0.5, [0.5, 0.5])),
      button("Whole pattern", () => this.show({ query: 0, key: 0, size: Math.max(...this.cells.header.shape) })),
    );
    this.readout = element("p", "readout");
    this.readout.setAttribute("aria-live", "polite");
    const left = element("div", "left");
    left.append(this.canvas, tools, this.readout);
    this.reading = element("div", "reading");
    const both = element("div", "both");
    both.append(left, this.reading);
    this.heads = element("div", "heads");
    this.root.append(both, this.heads);
    parent.append(this.root);
    /** @type {Cells} */
    this.cells = /** @type {any} */ (null);
    /** @type {View} */
    this.view = { query: 0, key: 0, size: 1 };
    this.query = 0;
    /** @type {((value: any) => void) | undefined} */
    this.send = undefined;
    this.pointers = new Map();
    this.listen();
    this.observer = new ResizeObserver(() => this.draw());
    this.observer.observe(left);
  }

  /** @param {Uint8Array<ArrayBuffer>} bytes */
  update(bytes) {
    if (!bytes || this.bytes?.length === bytes.length && this.bytes.every((value, at) => value === bytes[at])) return;
    const before = this.cells?.header;
    this.bytes = bytes;
    this.cells = unpack(bytes);
    const { shape } = this.cells.header;
    if (!before || String(before.shape) !== String(shape) || String(before.queries) !== String(this.cells.header.queries)) {
      this.view = { query: 0, key: 0, size: Math.max(...shape) };
      this.query = shape[0] - 1;
    }
    this.drawHeads();
    this.choose(this.query);
  }

  destroy() {
    this.observer.disconnect();
    this.root.remove();
  }

  get side() {
    return Math.max(200, Math.min(this.canvas.parentElement?.clientWidth ?? 400, 640) - LABEL);
  }

  /** @param {View} view */
  show(view) {
    this.view = within(view, this.cells.header.shape);
    this.draw();
  }

  /** @param {number} factor @param {[number, number]} at */
  zoom(factor, at) {
    this.show(enlarged(this.view, factor, at, this.cells.header.shape));
  }

  /** Choose a query: its row is marked and its text shaded. @param {number} query */
  choose(query) {
    this.query = Math.min(this.cells.header.shape[0] - 1, Math.max(0, query));
    this.drawReading();
    this.draw();
  }

  /** The cell below a pointer, or null outside the pattern. @param {{ offsetX: number, offsetY: number }} event */
  cellAt({ offsetX, offsetY }) {
    const step = this.view.size / this.side;
    const [query, key] = [Math.floor(this.view.query + offsetY * step), Math.floor(this.view.key + (offsetX - LABEL) * step)];
    const [nQuery, nKey] = this.cells.header.shape;
    return offsetX >= LABEL && query >= 0 && query < nQuery && key >= 0 && key < nKey ? { query, key } : null;
  }

  listen() {
    const { canvas, pointers } = this;
    const share = (/** @type {{ offsetX: number, offsetY: number }} */ at) => /** @type {[number, number]} */ ([at.offsetY / this.side, (at.offsetX - LABEL) / this.side]);
    canvas.addEventListener("wheel", (event) => {
      if (!this.cells) return;
      event.preventDefault();
      this.zoom(Math.exp(-event.deltaY / 300), share(event));
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      pointers.set(event.pointerId, { offsetX: event.offsetX, offsetY: event.offsetY, moved: 0 });
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!this.cells) return;
      const before = pointers.get(event.pointerId);
      if (!before) {
        this.describe(this.cellAt(event));
        return;
      }
      const now = { offsetX: event.offsetX, offsetY: event.offsetY, moved: 0 };
      now.moved = before.moved + Math.hypot(now.offsetX - before.offsetX, now.offsetY - before.offsetY);
      const others = [...pointers.entries()].filter(([id]) => id !== event.pointerId).map(([, one]) => one);
      if (others.length) { // two fingers: their distance is the size
        const apart = (/** @type {any} */ a, /** @type {any} */ b) => Math.hypot(a.offsetX - b.offsetX, a.offsetY - b.offsetY);
        const middle = { offsetX: (now.offsetX + others[0].offsetX) / 2, offsetY: (now.offsetY + others[0].offsetY) / 2 };
        this.zoom(apart(now, others[0]) / Math.max(1, apart(before, others[0])), share(middle));
      } else {
        const step = this.view.size / this.side;
        this.show({ ...this.view, query: this.view.query - (now.offsetY - before.offsetY) * step, key: this.view.key - (now.offsetX - before.offsetX) * step });
      }
      pointers.set(event.pointerId, now);
    });
    const release = (/** @type {PointerEvent} */ event) => {
      const before = pointers.get(event.pointerId);
      pointers.delete(event.pointerId);
      const cell = before && before.moved < 4 && event.type === "pointerup" ? this.cellAt(event) : null;
      if (cell) this.choose(cell.query);
    };
    canvas.addEventListener("pointerup", release);
    canvas.addEventListener("pointercancel", release);
    canvas.addEventListener("pointerleave", () => this.describe(null));
    canvas.addEventListener("keydown", (event) => {
      if (!this.cells) return;
      const move = this.view.size / 8;
      const { query, key } = this.view;
      const keys = /** @type {Record<string, () => void>} */ ({
        "+": () => this.zoom(2, [0.5, 0.5]),
        "=": () => this.zoom(2, [0.5, 0.5]),
        "-": () => this.zoom(0.5, [0.5, 0.5]),
        0: () => this.show({ query: 0, key: 0, size: Math.max(...this.cells.header.shape) }),
        ArrowUp: () => this.show({ ...this.view, query: query - move }),
        ArrowDown: () => this.show({ ...this.view, query: query + move }),
        ArrowLeft: () => this.show({ ...this.view, key: key - move }),
        ArrowRight: () => this.show({ ...this.view, key: key + move }),
        Enter: () => this.choose(Math.floor(query + this.view.size / 2)),
      });
      if (!keys[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      keys[event.key]();
    });
  }

  /** @param {{ query: number, key: number } | null} cell */
  describe(cell) {
    const { header } = this.cells, { view } = this;
    if (cell && (cell.key < this.cells.permitted[2 * cell.query] || cell.key >= this.cells.permitted[2 * cell.query + 1])) {
      this.readout.textContent = `Query ${this.name(cell.query)} → key ${this.name(cell.key, true)}: masked`;
      return;
    }
    if (!cell) {
      const [nQuery, nKey] = header.shape;
      const last = (/** @type {number} */ from, /** @type {number} */ n) => count(Math.min(n, Math.ceil(from + view.size)) - 1);
      this.readout.textContent = `Queries ${count(Math.floor(view.query))} to ${last(view.query, nQuery)}, keys ${count(Math.floor(view.key))} to ${last(view.key, nKey)}.`;
      if (isByBlocks(this.cells, view, this.side)) this.readout.textContent += ` Each point is the largest weight of ${header.block} × ${header.block} cells.`;
      else if (header.threshold >= LEAST) this.readout.textContent += ` Weights above ${percent(header.threshold)} are drawn.`;
      return;
    }
    const found = weight(this.cells, cell.query, cell.key);
    const value = found !== null ? percent(found) : header.threshold >= LEAST ? `not above ${percent(header.threshold)}` : percent(header.threshold);
    this.readout.textContent = `Query ${this.name(cell.query)} → key ${this.name(cell.key, true)}: ${value}`;
  }

  /** @param {number} at */
  name(at, isKey = false) {
    const { queries, keys } = this.cells.header;
    return `${count(at)} · ${(isKey ? (keys ?? queries) : queries)[at]}`;
  }

  draw() {
    if (!this.cells) return;
    const { canvas, view } = this, { header } = this.cells;
    const look = canvasTheme(this.root), { words } = this.palette();
    const side = this.side, [width, height] = [side + LABEL, side + (side / view.size >= LEAST_LABEL ? LABEL : NUMBERS)];
    [canvas.width, canvas.height] = [width * look.dpr, height * look.dpr];
    [canvas.style.width, canvas.style.height] = [`${width}px`, `${height}px`];
    canvas.setAttribute("aria-label", `Attention of ${header.shape[0]} queries to ${header.shape[1]} keys. Plus and minus enlarge and reduce, the arrow keys move, Enter chooses the query in the middle.`);
    const context = pen(canvas);
    context.setTransform(look.dpr, 0, 0, look.dpr, 0, 0);
    context.clearRect(0, 0, width, height);
    const n = Math.round(side * Math.min(2, look.dpr));
    const image = new ImageData(n, n), pixels = new Uint32Array(image.data.buffer), found = codes(this.cells, view, n);
    for (let i = 0; i < found.length; i++) pixels[i] = words[found[i]];
    const drawn = new OffscreenCanvas(n, n);
    /** @type {OffscreenCanvasRenderingContext2D} */ (drawn.getContext("2d")).putImageData(image, 0, 0);
    const [rows, columns] = [header.shape[0] - view.query, header.shape[1] - view.key].map((rest) => (side * Math.min(view.size, rest)) / view.size);
    context.fillStyle = look.hatch;
    context.fillRect(LABEL, 0, columns, rows);
    context.imageSmoothingEnabled = false;
    context.drawImage(drawn, LABEL, 0, side, side);
    context.strokeStyle = look.line;
    context.strokeRect(LABEL - 0.5, 0.5, side, side);
    const cell = side / view.size;
    const top = (this.query - view.query) * cell;
    if (top + cell >= 0 && top <= side) {
      context.strokeStyle = look.primary;
      context.lineWidth = 1.5;
      context.strokeRect(LABEL - 1, Math.max(0, top), side + 1, Math.max(2, cell));
    }
    this.axis(context, look, cell, false);
    this.axis(context, look, cell, true);
    this.describe(null);
  }

  /** @param {CanvasRenderingContext2D} context @param {ReturnType<typeof canvasTheme>} look @param {number} cell */
  axis(context, look, cell, isKey = false) {
    const { header } = this.cells, from = isKey ? this.view.key : this.view.query, n = header.shape[isKey ? 1 : 0];
    const tokens = isKey ? (header.keys ?? header.queries) : header.queries;
    const last = Math.min(n, Math.ceil(from + this.view.size));
    const hasTokens = cell >= LEAST_LABEL;
    const step = hasTokens ? 1 : 10 ** Math.ceil(Math.log10(Math.max(1, (isKey ? 60 : 24) / cell)));
    context.fillStyle = look.muted;
    context.font = `12px ${look.font}`;
    context.textBaseline = "middle";
    for (let at = Math.ceil(from / step) * step; at < last; at += step) {
      const place = (at - from + 0.5) * cell;
      context.save();
      if (isKey) {
        context.translate(LABEL + place, this.side + 6);
        if (hasTokens) context.rotate(Math.PI / 2);
        else context.translate(0, 6);
        context.textAlign = hasTokens ? "left" : "center";
      } else {
        context.translate(LABEL - 6, Math.max(7, place));
        context.textAlign = "right";
      }
      const text = hasTokens ? tokens[at] : count(at);
      context.fillText(text.length > 11 ? `${text.slice(0, 10)}…` : text, 0, 0);
      context.restore();
    }
  }

  palette() {
    const { isDark } = theme(this.root);
    if (this.colours?.isDark !== isDark) this.colours = { isDark, ...palette(this.cells.header.colours[isDark]) };
    return this.colours;
  }

  drawReading() {
    const { header } = this.cells, { query } = this, found = row(this.cells, query), { rgb } = this.palette();
    const tokens = header.keys ?? header.queries, largest = found[0]?.weight || 1;
    const heading = element("h3", "", `Query ${this.name(query)} attends to`);
    const list = element("ol", "largest");
    for (const { key, weight: value } of found.slice(0, LISTED)) {
      const item = element("li");
      const bar = element("span", "bar");
      bar.style.width = `${Math.max(1, (60 * value) / largest)}px`;
      item.append(button(this.name(key, true), () => this.jump(key), "token"), bar, element("span", "value", percent(value)));
      list.append(item);
    }
    if (!found.length) list.append(element("li", "", header.threshold >= LEAST ? `No weight above ${percent(header.threshold)}.` : "No weight."));
    const text = element("p", "text");
    const byKey = new Map(found.map((one) => [one.key, one.weight]));
    const [from, to] = [Math.max(0, query - AROUND), Math.min(tokens.length, query + AROUND + 1)];
    for (let at = from; at < to; at++) {
      const token = button(tokens[at].replace("↵", "↵ "), () => this.choose(at), at === query ? "word here" : "word");
      const value = byKey.get(at);
      if (value !== undefined) {
        const colour = rgb[Math.round(LEVELS * Math.sqrt(Math.min(1, value / (header.peak || 1))))];
        token.style.background = `rgb(${colour.join(" ")})`;
        token.style.color = ink(colour);
        token.title = percent(value);
      }
      token.setAttribute("aria-pressed", String(at === query));
      token.tabIndex = at === query ? 0 : -1;
      text.append(token);
    }
    const steps = element("div", "steps");
    steps.append(
      labelled("←", "Earlier text", () => this.choose(query - AROUND)),
      labelled("→", "Later text", () => this.choose(query + AROUND)),
      element("span", "", `tokens ${count(from)} to ${count(to - 1)} of ${count(tokens.length)}`),
    );
    text.onkeydown = (event) => {
      const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!by) return;
      event.preventDefault();
      this.choose(this.query + by);
      /** @type {HTMLElement | null} */ (this.reading.querySelector(".here"))?.focus();
    };
    this.reading.replaceChildren(heading, list, text, steps);
    const here = /** @type {HTMLElement | null} */ (text.querySelector(".here"));
    if (here) text.scrollTop = here.offsetTop - text.clientHeight / 2;
  }

  /** Show a key with the chosen query in the map. @param {number} key */
  jump(key) {
    const size = Math.min(this.view.size, 64);
    this.show({ query: this.query - size / 2, key: key - size / 2, size });
  }

  drawHeads() {
    const { header, thumbnails } = this.cells, { words } = this.palette();
    this.heads.replaceChildren();
    if (thumbnails.length < 2) return;
    header.thumbnails.forEach((/** @type {import("./cells.js").Thumbnail} */ one, /** @type {number} */ at) => {
      const [height, width] = one.shape, picture = element("canvas");
      [picture.width, picture.height] = [width, height];
      const image = new ImageData(width, height), pixels = new Uint32Array(image.data.buffer);
      for (let i = 0; i < pixels.length; i++) pixels[i] = words[thumbnails[at][i]];
      pen(picture).putImageData(image, 0, 0);
      const isChosen = one.layer === header.layer && one.head === header.head;
      const holder = this.send ? button("", () => this.send?.({ layer: one.layer, head: one.head })) : element("span");
      holder.className = isChosen ? "head chosen" : "head";
      holder.title = `${one.title}, entropy ${one.entropy}`;
      if (this.send) holder.setAttribute("aria-label", holder.title);
      if (this.send) holder.setAttribute("aria-pressed", String(isChosen));
      holder.append(picture);
      this.heads.append(holder);
    });
  }
}
