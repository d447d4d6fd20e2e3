// Holds the state of one attention view, and says in which order its parts draw.
// The view draws all heads from the bytes it has, and answers every hover without asking the server.

class AttentionView {
  constructor(parent) {
    this.calls = 0;
    this.show = "both";           // matrix | arcs | both
    this.scale = "fixed";         // what the colours mean: see SCALES
    this.current = [0, 0];        // layer, head
    this.active = new Set([0]);   // heads whose arcs are drawn
    this.hover = this.lock = null; // {query, key, kind: cell | token | query | key}
    this.exact = null;            // the exact weights of a head, once they are there
    this.build();
    parent.append(this.root);
    this.resizing = new ResizeObserver(() => {
      if (this.patterns && Math.abs(this.root.clientWidth - this.width) > 0.5) this.draw();
    });
    this.resizing.observe(this.root);
    this.watchDensity();
  }

  destroy() {
    this.resizing.disconnect();
    this.density?.removeEventListener("change", this.onDensity);
    clearTimeout(this.timer);
    cancelAnimationFrame(this.frame);
    this.root.remove();
  }

  watchDensity() { // a window dragged to another screen, or zoomed
    this.density?.removeEventListener("change", this.onDensity);
    this.density = matchMedia(`(resolution: ${devicePixelRatio}dppx)`);
    this.onDensity = () => { this.watchDensity(); if (this.patterns) this.draw(); };
    this.density.addEventListener("change", this.onDensity);
  }

  findRoom() { // in a frame for slides, which nobody scrolls: the height that it has below the top of this view; else 0
    const framed = getComputedStyle(this.root).getPropertyValue("--in-frame").trim();
    this.root.classList.toggle("framed", Boolean(framed));
    this.root.style.setProperty("--av-room", framed ? `${innerHeight - this.root.getBoundingClientRect().top}px` : "");
    return framed ? innerHeight - this.root.getBoundingClientRect().top : 0;
  }

  draw() { // everything: new data, theme, size or switch
    this.width = this.root.clientWidth;
    this.room = this.findRoom();
    if (!this.width) return; // hidden: the observer calls again
    this.applyTheme();
    this.drawLegends();
    this.drawGrid();
    this.drawHead();
  }

  drawHead() { // the chosen head, enlarged
    this.drawTitle();
    this.revealThumb();
    this.fillStrips();
    this.layOut();
    for (const pane of this.matrices) if (!pane.node.hidden) this.drawMatrix(pane);
    for (const pane of this.arcs) if (!pane.node.hidden) { this.fillHeads(pane); this.drawArcs(pane); }
    this.drawFocus();
  }

  drawFocus() {
    for (const pane of this.matrices) if (!pane.node.hidden) this.focusMatrix(pane);
    for (const pane of this.arcs) if (!pane.node.hidden) this.focusArcs(pane);
    this.focusGrid();
    this.focusStrips();
    this.locked.hidden = !this.lock;
    this.read();
  }
}
