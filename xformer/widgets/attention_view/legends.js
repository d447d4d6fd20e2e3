// Says what is shown: the name of the chosen head, and what the colours mean.

class Legends {
  drawTitle() {
    const [layer, head] = this.current, it = this.layer;
    this.dot.style.background = this.hue(head);
    this.title.textContent = `${it.title} · ${this.headName(head)}`;
    this.path.textContent = `${it.name} [${head}]`;
    const exact = this.patterns.isExact(layer, head);
    const [tall, wide] = this.patterns.exactPool;
    this.precision.textContent = exact ? (tall * wide > 1 ? `largest of ${tall} × ${wide} cells` : "exact values") : it.pool[0] * it.pool[1] > 1 ? "pooled preview" : "8-bit preview";
    const silenced = this.patterns.isSilenced(layer, head);
    const before = this.changed ? this.patterns.zSize(0, layer, head) : null;
    this.silence.hidden = !silenced;
    this.silence.textContent = `silenced · |z| ${before ? `${before.toFixed(2)} → ` : ""}0`;
    this.silence.title = "It still computes where to look, which is what the picture shows; but what it read there, its z, is replaced by 0, so it writes nothing. |z| is its length, averaged over the queries.";
    this.title.classList.toggle("struck", silenced);
    const label = `${it.title}, ${this.headName(head)}${silenced ? ", silenced" : ""}: ${it.queries} queries by ${it.keys} keys. Arrow keys move the cell.`;
    for (const pane of [...this.matrices, ...this.arcs]) pane.layered.base.setAttribute("aria-label", `${pane.kind}, ${pane.role}: ${label}`);
    const count = this.patterns.layers.reduce((sum, l) => sum + l.heads, 0);
    this.grid.base.setAttribute("aria-label", `All ${count} heads, one row per layer, one column per head. Chosen: ${it.title}, ${this.headName(head)}.`);
  }

  drawLegends() {
    const shown = [this.themeKey, this.theme.dpr, this.scale, this.changed].join("|");
    if (shown === this.legends) return;
    this.legends = shown;
    const { theme } = this, bar = (colours, width) => {
      const canvas = element("canvas"), dpr = theme.dpr;
      canvas.width = Math.round(width * dpr); canvas.height = Math.round(12 * dpr);
      canvas.style.width = `${width}px`; canvas.style.height = "12px";
      const at = canvas.getContext("2d");
      for (let x = 0; x < canvas.width; x++) {
        at.fillStyle = `rgb(${colours.rgb[Math.round((x / (canvas.width - 1)) * LEVELS)].join(",")})`;
        at.fillRect(x, 0, 1, canvas.height);
      }
      return canvas;
    };
    const [least, most] = {
      fixed: ["0", "1"], own: ["0", "the head's largest"], log: ["0.0001", "1, logarithmic"],
      rest: ["0", "the head's largest without the first token"],
    }[this.scale];
    this.legend.replaceChildren(`weight ${least}`, bar(theme.sequential, 120), most);
    const hatch = element("canvas");
    hatch.width = Math.round(22 * theme.dpr); hatch.height = Math.round(12 * theme.dpr);
    hatch.style.width = "22px"; hatch.style.height = "12px";
    const at = hatch.getContext("2d");
    at.fillStyle = theme.hatch; at.fillRect(0, 0, hatch.width, hatch.height);
    this.maskedLegend.replaceChildren(hatch, this.scale === "rest" ? "masked, or the first token" : "masked");
    this.signedLegend.hidden = this.movedLegend.hidden = !this.changed;
    if (!this.changed) return;
    this.signedLegend.replaceChildren(this.isOwn ? "difference −largest" : "difference −1", bar(theme.diverging, 120), this.isOwn ? "+largest" : "+1");
    this.movedLegend.replaceChildren(" · small heads: the changed run; the bar below each: how far it moved");
  }
}
