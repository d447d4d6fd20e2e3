// Draws the chosen heads as arcs from queries to keys, and lights those of the token under the pointer.

class Arcs {
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
      const silenced = this.patterns.isSilenced(this.current[0], head, pane.run);
      button.textContent = String(head + this.patterns.firstHead);
      button.classList.toggle("silenced", silenced);
      button.title = "click: show or hide this head's arcs · double click: this head alone";
      button.setAttribute("aria-label", this.headName(head) + (silenced ? ", silenced" : ""));
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
    this.report();
  }

  curve(at, plot, query, key) {
    const y0 = plot.y + ((query + 0.5) * plot.h) / this.layer.queries, y1 = plot.y + ((key + 0.5) * plot.h) / this.layer.keys;
    at.moveTo(plot.x, y0);
    at.bezierCurveTo(plot.x + plot.w * 0.42, y0, plot.x + plot.w * 0.58, y1, plot.x + plot.w, y1);
  }

  drawArcs(pane) {
    const { patterns } = this, l = this.current[0], { plot, layered } = pane, at = layered.clear(layered.base);
    // Curves of nearly the same weight share one path. The weakest are left out when there are too many to see.
    const sources = [...this.active].map((h) => ({ h, ...patterns.codes(pane.run, l, h, this.top(l, h), this.scale) }));
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

  focusArcs(pane) {
    const { focus, theme, layer } = this, { plot, layered } = pane, at = layered.clear(layered.over);
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
        const weight = this.seen(pane.run, l, h, query, key), w = shareOf(weight, top, this.scale);
        if (!(w >= 0.004) || weight === Infinity) continue;
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

  arcFocus(pane, event) {
    const { plot } = pane, box = pane.layered.base.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
    const part = (y - plot.y) / plot.h;
    if (part < 0 || part >= 1) return null;
    return x < plot.x + plot.w / 2 ? { query: Math.floor(part * this.layer.queries), key: null, kind: "query" }
      : { query: null, key: Math.floor(part * this.layer.keys), kind: "key" };
  }
}
