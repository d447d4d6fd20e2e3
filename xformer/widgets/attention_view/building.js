// Builds the elements of the view once, and says what each does when it is pointed at, clicked or typed into.

class Building {
  build() {
    const root = (this.root = element("div", "av"));
    root.setAttribute("role", "group");
    root.setAttribute("aria-label", "Attention of every layer and head");

    this.bar = element("div", "bar");
    this.legend = element("div", "key"); this.signedLegend = element("div", "key"); this.maskedLegend = element("div", "key");
    this.movedLegend = element("span", "muted");
    const push = element("div", "push");
    push.append(
      this.segments("Colour scale", [["0 … 1", "fixed"], ["each head's own", "own"], ["log", "log"], ["without the first token", "rest"]],
        () => this.scale, (value) => { this.scale = value; }),
      this.segments("View", [["matrix", "matrix"], ["arcs", "arcs"], ["both", "both"]], () => this.show, (value) => { this.show = value; }),
    );
    this.bar.append(this.legend, this.signedLegend, this.maskedLegend, push);

    this.grid = new Layered("grid");
    this.scroll = element("div", "scroll");
    this.scroll.append(this.grid.node);
    this.focusable(this.grid.base);
    this.grid.base.addEventListener("pointermove", (event) => this.overGrid(event));
    this.grid.base.addEventListener("pointerleave", () => this.setThumb(null));
    this.grid.base.addEventListener("click", (event) => { const t = this.thumbAt(event); if (t) this.choose(t.layer, t.head); });

    const line = element("div", "head");
    this.dot = element("span", "dot"); this.title = element("span", "name"); this.path = element("span", "path");
    this.precision = element("span", "tag"); this.silence = element("span", "tag silenced"); this.locked = element("button", "tag locked", "locked — Esc unlocks");
    this.locked.addEventListener("click", () => this.setLock(null));
    line.append(this.dot, this.title, this.silence, this.path, this.precision, this.locked);
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
    help.append("small numbers are positions", this.movedLegend);
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
    (this.painters ||= []).push(paint);
    const buttons = options.map(([text, value]) => {
      const button = element("button", "", text);
      button.type = "button";
      button.addEventListener("click", () => { set(value); paint(); this.draw(); this.report(); });
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
}
