// The state of an attention view: drawing order, updates and theme.
// The view draws all heads from its own data and handles hovering without requests to the server.

import { contrast, hatching, luminance, mix, palette, parse } from "../shared.js";
import { ExactHead, Original, Patterns } from "./patterns.js";

export class Base {
  constructor(parent) {
    this.show = "both";           // matrix | arcs | both
    this.scale = "fixed";         // the colour scale, one of SCALES
    this.current = [0, 0];        // layer, head
    this.active = new Set([0]);   // heads whose arcs are drawn
    this.hover = this.lock = null; // {query, key, kind: cell | token | query | key}
    this.exact = null;            // the exact weights of a head, once received
    this.build();
    parent.append(this.root);
    this.resizing = new ResizeObserver(() => {
      if (this.patterns && (Math.abs(this.root.clientWidth - this.width) > 0.5 || Math.abs(this.findRoom() - this.room) > 4)) this.draw();
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

  watchDensity() { // the window was zoomed or moved to another screen
    this.density?.removeEventListener("change", this.onDensity);
    this.density = matchMedia(`(resolution: ${devicePixelRatio}dppx)`);
    this.onDensity = () => { this.watchDensity(); if (this.patterns) this.draw(); };
    this.density.addEventListener("change", this.onDensity);
  }

  get scrolled() { return null; } // the scroll position of the page if the view should fit the window, else null

  findRoom() { // the height available below the top of this view, in a window or a slide frame; 0 for no limit
    this.framed = Boolean(getComputedStyle(this.root).getPropertyValue("--in-frame").trim());
    this.root.classList.toggle("framed", this.framed);
    const scrolled = this.framed ? 0 : this.scrolled;
    const room = scrolled === null ? 0 : Math.max(this.framed ? 0 : 380, innerHeight - this.root.getBoundingClientRect().top - scrolled - 8);
    this.root.style.setProperty("--av-room", room ? `${room}px` : "");
    return room;
  }

  draw() { // everything, after new data or a change of theme, size or options
    this.width = this.root.clientWidth;
    this.room = this.findRoom();
    if (!this.width) return; // hidden; the observer calls again
    this.applyTheme();
    this.drawGrid();
    this.drawHead();
  }

  drawHead() { // the enlarged head
    this.drawLegends();
    this.drawTitle();
    this.revealThumb();
    this.fillStrips();
    this.layOut();
    for (const pane of this.matrices) if (!pane.node.hidden) this.drawMatrix(pane);
    for (const pane of this.arcs) if (!pane.node.hidden) { this.fillHeads(pane); this.drawArcs(pane); }
    if (!this.flow.node.hidden) this.drawFlow(this.flow);
    this.drawFocus();
  }

  drawFocus() {
    for (const pane of this.matrices) if (!pane.node.hidden) this.focusMatrix(pane);
    for (const pane of this.arcs) if (!pane.node.hidden) this.focusArcs(pane);
    this.focusGrid();
    this.focusStrips();
    this.locked.hidden = !this.lock;
    this.read();
  }

  update(bytes) {
    if (!bytes || bytes.length < 40) return;
    const theme = this.readTheme(), old = this.patterns;
    const next = new Patterns(bytes, this.original);
    this.waiting = next.isWhole ? null : bytes;
    if (!next.isWhole) return; // wait for the planes of the original run
    const again = old && old.order === next.order; // the server has not changed the selection
    if (again && old.content === next.content && old.height === next.height
      && JSON.stringify(old.layers) === JSON.stringify(next.layers) && JSON.stringify(old.labels) === JSON.stringify(next.labels)) {
      if (theme !== this.themeKey) this.draw(); // only the theme can have changed
      return;
    }
    this.patterns = next;
    if (this.exact && this.exact.content === next.content) next.head = this.exact;
    const started = performance.now();
    if (!again) { this.current = [...next.told]; this.reported = null; } // otherwise the selection in the browser is kept
    this.current[0] = Math.min(this.current[0], next.layers.length - 1);
    this.current[1] = Math.min(this.current[1], this.layer.heads - 1);
    this.active = new Set([...this.active].filter((head) => head < this.layer.heads));
    if (!this.active.has(this.current[1])) this.active = new Set([this.current[1]]);
    const words = (p, at = this.current[0]) => p.layers[at] && [p.labels[p.layers[at].queryLabels], p.labels[p.layers[at].keyLabels]];
    if (old && JSON.stringify(words(old)) !== JSON.stringify(words(next))) this.forget(); // other tokens
    if (!again) { // display options
      const heads = Array.from({ length: this.layer.heads }, (_, head) => head).filter((head) => head < 32 && (next.look.arcs >>> head) & 1);
      this.scale = next.look.scale; this.show = next.look.show;
      this.active = new Set([...heads, this.current[1]]);
      for (const paint of this.painters) paint();
    }
    if (!again) { // a cell selected by a link or a table row
      const [query, key] = next.cell;
      this.lock = query !== null && key !== null ? { query, key, kind: "cell" } : query !== null ? this.tokenFocus("query", query)
        : key !== null ? { query: null, key, kind: "key" } : null;
      this.reported = this.choice();
    }
    this.draw();
    this.root.dataset.ms = (performance.now() - started).toFixed(1);
  }

  // Receive the planes of the original run, before or after those of the changed run.
  updateOriginal(bytes) {
    if (this.originalBytes !== bytes) this.original = new Original(this.originalBytes = bytes);
    if (this.waiting) this.update(this.waiting);
  }

  // Receive the exact weights of a head, which may arrive before their planes.
  updateHead(bytes) {
    if (this.exactBytes === bytes) return;
    const started = performance.now();
    this.exactBytes = bytes;
    this.exact = new ExactHead(bytes);
    if (!this.patterns || this.exact.content !== this.patterns.content) return;
    this.patterns.head = this.exact;
    if (this.width && this.patterns.isExact(...this.current)) this.drawHead();
    this.root.dataset.exact = this.exact.selected.join(".");
    this.root.dataset.ms = (performance.now() - started).toFixed(1);
  }

  get layer() { return this.patterns.layers[this.current[0]]; }
  get focus() { return this.lock || this.hover; }
  get changed() { return this.patterns.runs > 1; }
  get moved() { return this.changed && this.layer.moved[this.current[1]] > 1e-6; } // whether the attention of this head changed
  get flows() { // the layers with a recorded change of the residual stream at these queries
    return this.patterns.layers.filter((layer) => layer.stream && layer.queryLabels === this.layer.queryLabels);
  }
  get same() { return this.layer.queryLabels === this.layer.keyLabels; } // queries and keys are the same tokens
  labels(kind) { return this.patterns.labels[kind === "query" ? this.layer.queryLabels : this.layer.keyLabels]; }
  top(layer, head) { // the weight at the end of the scale, common to both runs
    if (!this.isOwn) return 1;
    const peak = this.scale === "without_first_token" ? "restPeak" : "peak";
    return Math.max(...this.patterns.layers[layer].runs.map((_, run) => this.patterns[peak](run, layer, head)));
  }
  get isOwn() { return this.scale === "own" || this.scale === "without_first_token"; } // whether the scale ends at the head's largest weight
  seen(run, layer, head, query, key) { // the weight as drawn; the scale may leave out the first key
    return this.scale === "without_first_token" && key === 0 ? Infinity : this.patterns.weight(run, layer, head, query, key);
  }
  headName(head) { return `head ${head + this.patterns.firstHead}`; }
  position(i) { return i + this.patterns.firstPosition; }

  hue(head) { const pair = this.patterns.hues[head % this.patterns.hues.length]; return pair[this.theme.dark ? 1 : 0]; }

  readTheme() {
    const style = getComputedStyle(this.root), get = (name, fallback) => style.getPropertyValue(name).trim() || fallback;
    return ["background-color:#ffffff", "text-color:#1a1c24", "font:sans-serif", "base-font-size:16px", "primary-color:#2557d6"]
      .map((pair) => { const [name, fallback] = pair.split(":"); return get(`--st-${name}`, fallback); }).join("|");
  }

  applyTheme() {
    const key = this.readTheme(), dpr = window.devicePixelRatio || 1;
    if (key === this.themeKey && this.theme.dpr === dpr) return;
    this.themeKey = key;
    const [background, text, font, base, primary] = key.split("|"), ground = parse(background), letters = parse(text);
    const accent = parse(primary), mark = contrast(accent, ground) >= 4.5 ? accent : letters; // also the background of text
    const dark = luminance(ground) < 0.25;
    this.theme = {
      dark, dpr, font, mark: mix(mark, mark, 0), zoom: Math.max(0.9, Math.min(1.3, parseFloat(base) / 16 || 1)),
      background: mix(ground, ground, 0), text: mix(letters, letters, 0),
      muted: mix(ground, letters, 0.66), line: mix(ground, letters, 0.22), faint: mix(ground, letters, 0.09), veil: `rgba(${ground.join(",")},0.5)`,
      sequential: palette(this.patterns.sequential[dark ? 1 : 0]), diverging: palette(this.patterns.diverging[dark ? 1 : 0]),
      hatch: hatching(dpr, mix(ground, letters, dark ? 0.16 : 0.11), mix(ground, letters, dark ? 0.34 : 0.3)),
    };
    this.root.style.setProperty("--av-mark", this.theme.mark);
  }

  font(size, weight = 400) { return `${weight} ${(size * this.theme.zoom).toFixed(2)}px ${this.theme.font || "sans-serif"}`; }
}
