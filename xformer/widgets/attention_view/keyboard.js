// Answers the keyboard: other heads and layers, moving the cell, locking and unlocking it.

class Keyboard {
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
