// Draws the chosen head as a matrix, and marks the row, the column and the cell under the pointer.

class Matrix {
  drawMatrix(pane) {
    const { theme, patterns, layer } = this, [l, h] = this.current, { plot, layered } = pane;
    const at = layered.clear(layered.base), signed = pane.role === "difference";
    const scale = signed ? (this.isOwn ? patterns.largestDifference(l, h, this.scale) : 1) : this.top(l, h);
    const source = signed ? patterns.differenceCodes(l, h, scale, this.scale) : patterns.codes(pane.run, l, h, scale, this.scale);
    const colours = signed ? theme.diverging : theme.sequential;
    if (this.isOwn) pane.name.textContent += signed ? ` · ±${scale.toFixed(2)}` : ` · 0…${scale.toFixed(2)}`;
    pane.name.title = pane.name.textContent;
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
          if (w === Infinity || source.codes[q * layer.keys + k] === MASKED) continue;
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
      const grow = Math.max(0, (6 - Math.min(cw, ch)) / 2);
      at.beginPath(); at.rect(col.x - 1 - grow, row.y - 1 - grow, col.w + 2 + 2 * grow, row.h + 2 + 2 * grow);
      markOut(at, theme, 2.5);
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
    at.beginPath(); at.rect(x0 + reach * cell - 1, y0 + reach * cell - 1, cell + 1.5, cell + 1.5);
    markOut(at, theme, 2);
  }

  cellFocus(pane, event) {
    const { plot } = pane, box = pane.layered.base.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
    const index = (at, from, size, count) => { const i = Math.floor(((at - from) / size) * count); return i >= 0 && i < count ? i : null; };
    const query = index(y, plot.y, plot.h, this.layer.queries), key = index(x, plot.x, plot.w, this.layer.keys);
    if (query !== null && key !== null) return { query, key, kind: "cell" };
    if (query !== null && x < plot.x && plot.first) return { query, key: null, kind: "query" };
    if (key !== null && y < plot.y && y > 16) return { query: null, key, kind: "key" };
    return null;
  }
}
