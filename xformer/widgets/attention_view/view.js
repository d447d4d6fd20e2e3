// An interactive view of the attention of every layer and head. It draws all heads from its own data, and handles hovering without
// requests to the server.
//
//   const view = new AttentionView(element);
//   view.send = ({ layer, head, query, key, … }) => …;    // what is selected
//   view.update(bytes);                                   // packed by xformer/viz/packing.py
//
// `state` is what is selected and shown (state.js), `parts` are the elements (parts.js).

import { element } from "../shared.js";
import { drawArcs, drawFlow, drawMatrix, fillHeads, focusArcs, focusAt, focusMatrix } from "./detail.js";
import { layOut } from "./layout.js";
import { drawGrid, drawLegends, drawTitle, fillStrips, focusGrid, focusStrips, placeGrid, revealChips, revealThumb, thumbAt } from "./overview.js";
import { buildParts } from "./parts.js";
import { ExactHead, Original, Patterns } from "./patterns.js";
import { readoutOf } from "./readout.js";
import { State, themeKey, themeOf } from "./state.js";

/** @typedef {import("./state.js").Focus} Focus */
/** @typedef {Uint8Array<ArrayBuffer>} Bytes */

const isSameFocus = (/** @type {Focus | null} */ a, /** @type {Focus | null} */ b) =>
  a === b || Boolean(a && b && a.query === b.query && a.key === b.key && a.kind === b.kind);
const isSameText = (/** @type {unknown} */ a, /** @type {unknown} */ b) => JSON.stringify(a) === JSON.stringify(b);

const SETTLES = 120; // ms after which a view fits the height that is left to it

export class AttentionView {
  state = new State();
  parts = buildParts(this);
  /** @type {(choice: any) => void} */ send = () => {};
  /** @type {{ bytes: Bytes, head: ExactHead } | null} */ exact = null;       // the exact weights of a head, once received
  /** @type {{ bytes: Bytes, run: Original } | null} */ original = null;      // the planes of the original run, if they are sent apart
  /** @type {Bytes | null} */ waiting = null;                                 // planes of a changed run that wait for them
  reported = "";                                                              // the last selection that the server knows
  spoken = "";                                                                // the readout, for screen readers
  asked = -Infinity;
  frame = 0;
  thumbnails = 0;                                                             // the frame that will draw them
  /** @type {ReturnType<typeof setTimeout> | undefined} */ timer;
  /** @type {ReturnType<typeof setTimeout> | undefined} */ fitting;          // waits until what is above the view is in place
  isLaidOut = false;                                                          // before, a drawing would not have its size
  /** @type {MediaQueryList | undefined} */ density;

  /** @param {HTMLElement} parent */
  constructor(parent) {
    parent.append(this.parts.root);
    this.resizing = new ResizeObserver(() => {
      const { state, parts } = this;
      this.isLaidOut = true;
      if (!state.patterns) return;
      clearTimeout(this.fitting);
      if (Math.abs(parts.root.clientWidth - state.width) > 0.5) this.draw();
      else if (Math.abs(this.findRoom() - state.room) > 4) this.fitting = setTimeout(() => this.draw(), SETTLES);
    });
    this.resizing.observe(this.parts.root);
    this.watchDensity();
  }

  destroy() {
    this.resizing.disconnect();
    this.density?.removeEventListener("change", this.onDensity);
    clearTimeout(this.timer);
    clearTimeout(this.fitting);
    cancelAnimationFrame(this.frame);
    cancelAnimationFrame(this.thumbnails);
    this.parts.root.remove();
  }

  // ── drawing

  onDensity = () => { this.watchDensity(); if (this.state.patterns) this.draw(); };

  watchDensity() { // the window was zoomed or moved to another screen
    this.density?.removeEventListener("change", this.onDensity);
    this.density = matchMedia(`(resolution: ${devicePixelRatio}dppx)`);
    this.density.addEventListener("change", this.onDensity);
  }

  /** The scroll position of the page if the view should fit the window, else null. @returns {number | null} */
  get scrolled() { return null; }

  findRoom() { // the height available below the top of this view, in a window or a slide frame; 0 for no limit
    const { root } = this.parts, framed = Boolean(getComputedStyle(root).getPropertyValue("--in-frame").trim());
    this.state.framed = framed;
    root.classList.toggle("framed", framed);
    const scrolled = framed ? 0 : this.scrolled;
    const room = scrolled === null ? 0 : Math.max(framed ? 0 : 380, innerHeight - root.getBoundingClientRect().top - scrolled - 8);
    root.style.setProperty("--av-room", room ? `${room}px` : "");
    return room;
  }

  draw() { // everything, after new data or a change of theme, size or options
    const { state, parts } = this, { root } = parts;
    state.width = root.clientWidth;
    state.room = this.findRoom();
    if (!state.width) return; // hidden; the observer calls again
    if (themeKey(root) !== state.theme?.key) state.theme = themeOf(root, state.patterns);
    root.style.setProperty("--av-mark", state.theme.mark);
    placeGrid(state, parts);
    this.drawHead();
    this.thumbnails ||= requestAnimationFrame(() => { // hundreds of heads would make a long frame with the enlarged one
      this.thumbnails = 0;
      drawGrid(state, parts);
    });
  }

  drawHead() { // the enlarged head
    const { state, parts } = this;
    drawLegends(state, parts);
    drawTitle(state, parts);
    revealThumb(state, parts);
    fillStrips(state, parts);
    layOut(state, parts);
    for (const pane of parts.matrices) if (!pane.node.hidden) drawMatrix(state, pane);
    this.drawAllArcs();
    if (!parts.flow.node.hidden) drawFlow(state, parts.flow);
    this.drawFocus();
  }

  drawAllArcs() {
    for (const pane of this.parts.arcs) if (!pane.node.hidden) { fillHeads(this.state, pane, this); drawArcs(this.state, pane); }
  }

  drawFocus() {
    const { state, parts } = this;
    for (const pane of parts.matrices) if (!pane.node.hidden) focusMatrix(state, pane);
    for (const pane of parts.arcs) if (!pane.node.hidden) focusArcs(state, pane);
    focusGrid(state, parts);
    focusStrips(state, parts);
    parts.locked.hidden = !state.lock;
    const { text, value, muted = false } = readoutOf(state);
    this.spoken = `${text} ${value}`.trim();
    parts.text.classList.toggle("muted", muted);
    parts.text.replaceChildren(value ? `${text} ` : text, value ? element("b", "", value) : "");
    parts.readout.title = this.spoken;
  }

  later() { // one repaint per frame for any number of events
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => { this.frame = 0; this.drawFocus(); });
  }

  say(text = this.spoken) { this.parts.live.textContent = text; }

  // ── data

  /** @param {Bytes} bytes */
  update(bytes) {
    if (!bytes || bytes.length < 40) return;
    const { state, parts } = this, old = state.patterns;
    const next = new Patterns(bytes, this.original?.run);
    this.waiting = next.isWhole ? null : bytes;
    if (!next.isWhole) return; // wait for the planes of the original run
    const again = old && old.order === next.order; // the server has not changed the selection
    if (again && old.content === next.content && old.height === next.height && isSameText(old.layers, next.layers) && isSameText(old.labels, next.labels)) {
      if (themeKey(parts.root) !== state.theme?.key) this.draw(); // only the theme can have changed
      return;
    }
    const started = performance.now();
    state.patterns = next;
    if (this.exact && this.exact.head.content === next.content) next.head = this.exact.head;
    if (!again) { state.current = [...next.told]; this.reported = ""; } // otherwise the selection in the browser is kept
    state.current[0] = Math.min(state.current[0], next.layers.length - 1);
    state.current[1] = Math.min(state.current[1], state.layer.heads - 1);
    state.active = new Set([...state.active].filter((head) => head < state.layer.heads));
    if (!state.active.has(state.current[1])) state.active = new Set([state.current[1]]);
    const words = (/** @type {Patterns} */ p, at = state.current[0]) => p.layers[at] && [p.labels[p.layers[at].queryLabels], p.labels[p.layers[at].keyLabels]];
    if (old && !isSameText(words(old), words(next))) this.forget(); // other tokens
    if (!again) this.select(next);
    if (this.isLaidOut) this.draw();
    parts.root.dataset.ms = (performance.now() - started).toFixed(1);
  }

  /** Select what the server has selected, such as the cell of a link or of a table row. @param {Patterns} patterns */
  select({ look, cell: [query, key] }) {
    const { state, parts } = this;
    const heads = Array.from({ length: state.layer.heads }, (_, head) => head).filter((head) => head < 32 && (look.arcs >>> head) & 1);
    state.scale = parts.menus.scale.value = look.scale;
    state.show = parts.menus.show.value = look.show;
    state.active = new Set([...heads, state.current[1]]);
    state.lock = query !== null && key !== null ? { query, key, kind: "cell" } : query !== null ? state.tokenFocus("query", query)
      : key !== null ? { query: null, key, kind: "key" } : null;
    this.reported = this.choice();
  }

  /** Receive the planes of the original run, before or after those of the changed run. @param {Bytes} bytes */
  updateOriginal(bytes) {
    if (this.original?.bytes !== bytes) this.original = { bytes, run: new Original(bytes) };
    if (this.waiting) this.update(this.waiting);
  }

  /** Receive the exact weights of a head, which may arrive before their planes. @param {Bytes} bytes */
  updateHead(bytes) {
    if (this.exact?.bytes === bytes) return;
    const started = performance.now(), { state, parts } = this, head = new ExactHead(bytes);
    this.exact = { bytes, head };
    if (head.content !== state.patterns?.content) return;
    state.patterns.head = head;
    if (state.width && state.patterns.isExact(state.current[0], state.current[1])) this.drawHead();
    parts.root.dataset.exact = head.selected.join(".");
    parts.root.dataset.ms = (performance.now() - started).toFixed(1);
  }

  // ── the selection

  choice() { // as reported to the server
    const { current: [layer, head], lock, active, scale, show: shown } = this.state;
    const arcs = active.size > 1 ? [...active] : []; // a single one is the selected head
    return JSON.stringify({ layer, head, query: lock ? lock.query : null, key: lock && lock.kind !== "token" ? lock.key : null, scale, shown, arcs });
  }

  report() { // to the server: the first change at once, rapid changes debounced
    clearTimeout(this.timer);
    const isFirst = performance.now() - this.asked > 300;
    this.asked = performance.now();
    this.timer = setTimeout(() => {
      const choice = this.choice();
      if (choice === this.reported) return;
      this.reported = choice;
      this.send(JSON.parse(choice));
    }, isFirst ? 0 : 80);
  }

  /** @param {{ show?: string, scale?: string }} look */
  set(look) {
    Object.assign(this.state, look);
    this.draw();
    this.report();
  }

  /** @param {PointerEvent | MouseEvent} event */
  thumbAt(event) { return thumbAt(this.state, this.parts, event); }
  /** @param {import("./parts.js").Pane} pane @param {PointerEvent | MouseEvent} event */
  focusAt(pane, event) { return focusAt(this.state, pane, event); }

  /** @param {import("./layout.js").Thumb | null} thumb */
  setThumb(thumb) {
    if (thumb === this.state.thumb) return;
    this.state.thumb = thumb;
    this.later();
  }

  /** @param {Focus | null} focus */
  setHover(focus) {
    if (isSameFocus(this.state.hover, focus)) return;
    this.state.hover = focus;
    if (!this.state.lock) this.later();
  }

  /** @param {Focus | null} focus */
  toggleLock(focus) {
    if (focus) this.setLock(isSameFocus(this.state.lock, focus) ? null : focus);
  }

  /** @param {Focus | null} focus */
  setLock(focus) {
    if (!focus && !this.state.lock) return;
    this.state.lock = focus;
    this.drawFocus();
    revealChips(this.state, this.parts);
    this.say(focus ? `Locked. ${this.spoken}` : "Unlocked.");
    this.report();
  }

  forget() {
    const had = this.state.lock;
    this.state.hover = this.state.lock = null;
    if (had) this.report();
  }

  /** The arcs follow the selected head, unless several heads are compared. @param {number} layer @param {number} head */
  choose(layer, head) {
    if (this.state.active.size > 1) this.state.active.add(head); else this.state.active = new Set([head]);
    this.pick(layer, head);
  }

  /** @param {number} layer @param {number} head */
  pick(layer, head) {
    const { state } = this, before = state.layer, next = state.patterns.layers[layer];
    head = Math.min(head, next.heads - 1);
    state.active = new Set([...state.active].filter((h) => h < next.heads).concat(head));
    state.current = [layer, head];
    if (before.queryLabels !== next.queryLabels || before.keyLabels !== next.keyLabels) this.forget(); // other tokens
    this.drawHead();
    this.say(`${next.title}, ${state.headName(head)}.`);
    this.report();
  }

  /** Show or hide the arcs of a head. @param {number} head */
  toggleHead(head) {
    const { active, current } = this.state;
    if (active.has(head) && active.size === 1) { this.say("At least one head stays selected."); return; }
    if (active.has(head)) active.delete(head); else active.add(head);
    if (!active.has(current[1])) { this.pick(current[0], [...active][0]); return; }
    this.drawAllArcs();
    this.drawFocus();
    this.report();
  }

  /** @param {number} head */
  showOnly(head) {
    this.state.active = new Set([head]);
    this.choose(this.state.current[0], head);
  }

  // ── the keyboard

  /** @param {KeyboardEvent} event */
  key(event) {
    const { state, parts } = this;
    if (!state.patterns || event.ctrlKey || event.metaKey || event.altKey) return;
    const onCanvas = event.target instanceof HTMLCanvasElement, onGrid = event.target === parts.grid.base;
    const [layer, head] = state.current, { layers } = state.patterns;
    const turn = (/** @type {number} */ value, /** @type {number} */ by, /** @type {number} */ count) => (value + by + count) % count;
    const toHead = (/** @type {number} */ by) => this.choose(layer, turn(head, by, state.layer.heads));
    const toLayer = (/** @type {number} */ by) => this.choose(turn(layer, by, layers.length), head);
    const step = onCanvas && { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (event.key === "[") toHead(-1);
    else if (event.key === "]") toHead(1);
    else if (event.key === "," || (onCanvas && event.key === "PageUp")) toLayer(-1);
    else if (event.key === "." || (onCanvas && event.key === "PageDown")) toLayer(1);
    else if (event.key === "Escape" && state.lock) this.setLock(null);
    else if (onCanvas && !onGrid && (event.key === "Enter" || event.key === " ")) this.toggleLock(state.focus);
    else if (step && onGrid) { if (step[0]) toLayer(step[0]); else toHead(step[1]); }
    else if (step) this.move(step[0], step[1]);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  /** @param {number} down @param {number} right */
  move(down, right) {
    const { state } = this, from = state.focus;
    const keep = (/** @type {number} */ value, /** @type {number} */ count) => Math.max(0, Math.min(count - 1, value));
    const query = from ? keep((from.query ?? 0) + down, state.layer.queries) : 0, key = from ? keep((from.key ?? 0) + right, state.layer.keys) : 0;
    state[state.lock ? "lock" : "hover"] = { query, key, kind: "cell" };
    if (state.lock) this.report();
    state.thumb = null;
    this.drawFocus();
    revealChips(state, this.parts);
    this.say();
  }
}
