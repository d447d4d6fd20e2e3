// Writes tokens and positions beside the matrix and the arcs.

class Labels {
  // Labels: the token next to the picture, its position small and muted further out, so repeats stay distinct.
  drawLabel(at, plot, kind, i, strong) {
    const { theme } = this, text = this.labels(kind)[i], number = String(this.position(i));
    const count = kind === "query" ? this.layer.queries : this.layer.keys;
    at.save();
    at.textBaseline = "middle";
    if (kind === "query") {
      const y = plot.y + ((i + 0.5) * plot.h) / count;
      at.font = this.font(12.5, strong ? 700 : 400);
      const shown = fitted(at, text, 96), wide = at.measureText(shown).width;
      if (strong) { at.fillStyle = theme.background; at.fillRect(plot.x - plot.queryLabel - 8, y - 9, plot.queryLabel + 7, 18); }
      at.textAlign = "right";
      at.fillStyle = theme.text; at.fillText(shown, plot.x - 6, y);
      at.font = this.font(10.5, strong ? 700 : 400);
      at.fillStyle = strong ? theme.text : theme.muted; at.fillText(number, plot.x - 11 - wide, y);
    } else {
      const x = plot.x + ((i + 0.5) * plot.w) / count, y = plot.y - 6;
      at.translate(x, y);
      at.font = this.font(12.5, strong ? 700 : 400);
      const shown = fitted(at, text, plot.flat ? plot.w / count : 96), wide = at.measureText(shown).width;
      if (plot.flat) {
        if (strong) { at.fillStyle = theme.background; at.fillRect(-Math.max(wide, 14) / 2 - 3, -30, Math.max(wide, 14) + 6, 32); }
        at.textAlign = "center";
        at.fillStyle = theme.text; at.fillText(shown, 0, -7);
        at.font = this.font(10.5, strong ? 700 : 400);
        at.fillStyle = strong ? theme.text : theme.muted; at.fillText(number, 0, -22);
      } else {
        at.rotate(plot.tilt);
        if (strong) { at.fillStyle = theme.background; at.fillRect(0, -9, plot.keyLabel + 8, 18); }
        at.textAlign = "left";
        at.fillStyle = theme.text; at.fillText(shown, 2, 0);
        at.font = this.font(10.5, strong ? 700 : 400);
        at.fillStyle = strong ? theme.text : theme.muted; at.fillText(number, wide + 7, 0);
      }
    }
    at.restore();
  }

  arcLabel(at, plot, kind, i, strong) {
    const { theme } = this, count = kind === "query" ? this.layer.queries : this.layer.keys, side = kind === "query" ? -1 : 1;
    const y = plot.y + ((i + 0.5) * plot.h) / count, x = side < 0 ? plot.x - 6 : plot.x + plot.w + 6;
    at.textBaseline = "middle"; at.textAlign = side < 0 ? "right" : "left";
    at.font = this.font(12.5, strong ? 700 : 400);
    const shown = fitted(at, this.labels(kind)[i], 96), wide = at.measureText(shown).width;
    if (strong) {
      const w = (side < 0 ? plot.queryLabel : plot.keyLabel) + 8;
      at.fillStyle = theme.background; at.fillRect(side < 0 ? x - w + 3 : x - 3, y - 9, w, 18);
    }
    at.fillStyle = theme.text; at.fillText(shown, x, y);
    at.font = this.font(10.5, strong ? 700 : 400);
    at.fillStyle = strong ? theme.text : theme.muted; at.fillText(String(this.position(i)), x + side * (wide + 5), y);
  }
}
