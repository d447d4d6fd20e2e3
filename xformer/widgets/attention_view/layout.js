// Decides which panes of the enlarged head are shown, where, and how large.

class Layout {
  layOut() { // which panes, where, how large
    const { detail: width, theme, layer } = this, gap = 14;
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
    if (wrap && this.show === "both" && this.room && this.room < 540) arcs = 0; // a low frame has no line for them
    const high = this.room ? Math.max(110, wrap && arcs ? (this.room - 330) / 2 : this.room - 270) : 520; // of a plot
    const tallest = this.patterns.height || high;
    if (arcs && this.changed && (wrap || !matrices)) arcs = 2; // a line of their own has room for both runs
    this.matrices.forEach((pane, i) => { pane.node.hidden = i >= matrices; });
    this.arcs.forEach((pane) => { pane.node.hidden = !arcs || (arcs === 1 && pane.run !== this.patterns.runs - 1); });
    const fit = (spill) => {
      const room = Math.max(90, (arcs && !wrap ? beside : (width - fixed) / Math.max(1, matrices)) - spill);
      const cell = Math.min(this.room ? 110 : 72, room / layer.keys, tallest / layer.queries);
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
      pane.name.textContent = this.changed ? { original: "original", changed: "changed", difference: "changed − original" }[pane.role] : "matrix";
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
}
