// Pointer and keyboard input: hovering, locking, the selected head, and reports to the server.

export const Input = (Base) => class extends Base {
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

  later() { // one repaint per frame for any number of events
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

  forget() {
    const had = this.lock;
    this.hover = this.lock = null;
    if (had) this.report();
  }

  choose(layer, head) { // the arcs follow the selected head, unless several heads are compared
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

  choice() { // the selection as reported to the server
    const [layer, head] = this.current, at = this.lock;
    const arcs = this.active.size > 1 ? [...this.active] : []; // a single one is the selected head
    return JSON.stringify({ layer, head, query: at ? at.query : null, key: at && at.kind !== "token" ? at.key : null,
      scale: this.scale, shown: this.show, arcs });
  }

  report() { // to the server: the first change at once, rapid changes debounced
    clearTimeout(this.timer);
    const isFirst = performance.now() - (this.asked ?? -Infinity) > 300;
    this.asked = performance.now();
    this.timer = setTimeout(() => {
      const choice = this.choice();
      if (choice === this.reported) return;
      this.reported = choice;
      this.send(JSON.parse(choice));
    }, isFirst ? 0 : 80);
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
};
