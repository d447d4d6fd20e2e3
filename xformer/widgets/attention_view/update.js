// Takes new bytes from the server, keeps what was chosen here, and answers what the drawing asks of them.

class Update {
  update(bytes) {
    if (!bytes || bytes.length < 40) return;
    const theme = this.readTheme(), old = this.patterns;
    const next = new Patterns(bytes, this.original);
    this.waiting = next.isWhole ? null : bytes;
    if (!next.isWhole) return; // until the planes of its original are there
    const again = old && old.order === next.order; // nothing new was chosen on the server's side
    if (again && old.content === next.content && old.height === next.height
      && JSON.stringify(old.layers) === JSON.stringify(next.layers) && JSON.stringify(old.labels) === JSON.stringify(next.labels)) {
      if (theme !== this.themeKey) this.draw(); // the same picture: only the theme can have changed
      return;
    }
    this.patterns = next;
    if (this.exact && this.exact.content === next.content) next.head = this.exact;
    const started = performance.now();
    if (!again) { this.current = [...next.told]; this.reported = null; } // else what is chosen here stays
    this.current[0] = Math.min(this.current[0], next.layers.length - 1);
    this.current[1] = Math.min(this.current[1], this.layer.heads - 1);
    this.active = new Set([...this.active].filter((head) => head < this.layer.heads));
    if (!this.active.has(this.current[1])) this.active = new Set([this.current[1]]);
    const words = (p, at = this.current[0]) => p.layers[at] && [p.labels[p.layers[at].queryLabels], p.labels[p.layers[at].keyLabels]];
    if (old && JSON.stringify(words(old)) !== JSON.stringify(words(next))) this.forget(); // other tokens
    if (!again) { // how it looks, too
      const heads = Array.from({ length: this.layer.heads }, (_, head) => head).filter((head) => head < 32 && (next.look.arcs >>> head) & 1);
      this.scale = next.look.scale; this.show = next.look.show;
      this.active = new Set([...heads, this.current[1]]);
      for (const paint of this.painters) paint();
    }
    if (!again) { // a link, or a row of a table, that points at a cell
      const [query, key] = next.cell;
      this.lock = query !== null && key !== null ? { query, key, kind: "cell" } : query !== null ? this.tokenFocus("query", query)
        : key !== null ? { query: null, key, kind: "key" } : null;
      this.reported = this.choice();
    }
    this.draw();
    this.root.dataset.ms = (performance.now() - started).toFixed(1);
  }

  // The planes of the original run, which may come before those of the changed one or after them.
  updateOriginal(bytes) {
    if (this.originalBytes !== bytes) this.original = new Original(this.originalBytes = bytes);
    if (this.waiting) this.update(this.waiting);
  }

  // The exact weights of a head, which may come before the planes that they belong to.
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
  get same() { return this.layer.queryLabels === this.layer.keyLabels; } // queries and keys are the same tokens
  labels(kind) { return this.patterns.labels[kind === "query" ? this.layer.queryLabels : this.layer.keyLabels]; }
  top(layer, head) { // the weight that has the last colour; one for both runs, so that they compare
    if (!this.isOwn) return 1;
    const peak = this.scale === "rest" ? "restPeak" : "peak";
    return Math.max(...this.patterns.layers[layer].runs.map((_, run) => this.patterns[peak](run, layer, head)));
  }
  get isOwn() { return this.scale === "own" || this.scale === "rest"; } // a scale ends at the head's largest weight
  seen(run, layer, head, query, key) { // a weight as it is drawn: the first key may be left out
    return this.scale === "rest" && key === 0 ? Infinity : this.patterns.weight(run, layer, head, query, key);
  }
  headName(head) { return `head ${head + this.patterns.firstHead}`; }
  position(i) { return i + this.patterns.firstPosition; }
}
