// The elements of the view, what each does when it is pointed at, clicked or typed into, and where the panes stand.

import { element } from "../shared.js";
import { Layered } from "./canvas.js";

export const Building = (Base) => class extends Base {
  build() {
    const root = (this.root = element("div", "av"));
    root.setAttribute("role", "group");
    root.setAttribute("aria-label", "Attention of every layer and head");

    this.bar = element("div", "bar");
    this.legend = element("div", "key"); this.signedLegend = element("div", "key"); this.maskedLegend = element("div", "key");
    this.movedLegend = element("span", "muted");
    const views = this.menu("View", [["matrix and arcs", "both"], ["matrix", "matrix"], ["arcs", "arcs"]], () => this.show, (value) => { this.show = value; });
    const scales = this.menu("Colour scale", [["scale 0 to 1", "fixed"], ["scale per head", "own"], ["logarithmic", "log"], ["hide first token", "without_first_token"]],
      () => this.scale, (value) => { this.scale = value; });
    this.precision = element("span", "tag");
    this.bar.append(scales, this.legend, this.signedLegend, this.maskedLegend, this.precision);

    this.grid = new Layered("grid");
    this.scroll = element("div", "scroll");
    this.scroll.append(this.grid.node);
    this.focusable(this.grid.base);
    this.grid.base.addEventListener("pointermove", (event) => this.overGrid(event));
    this.grid.base.addEventListener("pointerleave", () => this.setThumb(null));
    this.grid.base.addEventListener("click", (event) => { const t = this.thumbAt(event); if (t) this.choose(t.layer, t.head); });

    const line = element("div", "head");
    this.dot = element("span", "dot"); this.title = element("span", "name");
    this.silence = element("span", "tag silenced"); this.locked = element("button", "tag locked", "locked — Esc unlocks");
    this.locked.addEventListener("click", () => this.setLock(null));
    this.readout = element("div", "readout");
    this.text = element("span", "text");
    this.readout.append(this.text);
    line.append(this.dot, this.title, this.silence, this.locked, this.readout);

    this.strips = ["query", "key"].map((kind) => {
      const node = element("div", "strip"), what = element("span", "what"), chips = element("div", "chips");
      node.append(what, chips);
      chips.tabIndex = 0; // so that it can be scrolled
      chips.setAttribute("role", "group"); chips.setAttribute("aria-label", kind === "query" ? "Tokens of the queries" : "Tokens of the keys");
      const index = (event) => { const chip = event.target.closest?.(".chip"); return chip ? Number(chip.dataset.i) : null; };
      chips.addEventListener("pointerover", (event) => { const i = index(event); if (i !== null) this.setHover(this.tokenFocus(kind, i)); });
      chips.addEventListener("pointerleave", () => this.setHover(null));
      chips.addEventListener("click", (event) => { const i = index(event); if (i !== null) this.toggleLock(this.tokenFocus(kind, i)); });
      return { kind, node, what, chips, nodes: [] };
    });

    this.stage = element("div", "stage");
    this.matrices = ["original", "changed", "difference"].map((role) => this.pane(role, "matrix"));
    this.arcs = ["original", "changed"].map((role) => this.pane(role, "arcs"));
    this.flow = this.pane("change of the residual stream", "flow");
    this.stage.append(...this.matrices.map((p) => p.node), this.flow.node, ...this.arcs.map((p) => p.node));

    this.live = element("div", "quiet");
    this.live.setAttribute("aria-live", "polite");
    const help = element("details", "help");
    help.append(element("summary", "", "View and keys"), views, " Hovering highlights a row, a column and the tokens; clicking locks them. ");
    for (const [key, action] of [["Esc", "unlock"], ["← ↑ → ↓", "move the cell"], ["[ ]", "change the head"], [", .", "change the layer"]]) {
      help.append(element("kbd", "", key), ` ${action} · `);
    }
    help.append("small numbers are positions", this.movedLegend);
    this.body = element("div", "body");
    const detail = element("div", "detail");
    detail.append(line, this.stage, this.bar, ...this.strips.map((s) => s.node), help);
    this.body.append(this.scroll, detail);
    root.append(this.body, this.live);
    root.addEventListener("keydown", (event) => this.onKey(event));
  }

  focusable(canvas) {
    canvas.tabIndex = 0;
    canvas.setAttribute("role", "application");
  }

  menu(label, options, get, set) {
    const node = element("select");
    node.setAttribute("aria-label", label);
    node.append(...options.map(([text, value]) => new Option(text, value)));
    const paint = () => { node.value = get(); };
    (this.painters ||= []).push(paint);
    node.addEventListener("change", () => { set(node.value); this.draw(); this.report(); });
    paint();
    return node;
  }

  pane(role, kind) {
    const node = element("div", `pane ${kind}`), caption = element("h4"), name = element("span"), layered = new Layered("plot");
    const pane = { role, kind, run: role === "changed" ? 1 : 0, node, caption, name, layered, heads: null };
    caption.append(name);
    if (kind === "arcs") {
      const pick = (pane.pick = element("details", "pick"));
      pick.append(element("summary", "", "heads"), (pane.heads = element("div", "heads")));
      pane.heads.setAttribute("role", "group");
      pane.heads.setAttribute("aria-label", "Heads whose arcs are drawn; double-click to show only one");
      caption.append(pick);
    }
    node.append(caption, layered.node);
    this.focusable(layered.base);
    const focusAt = (event) => this[{ arcs: "arcFocus", matrix: "cellFocus", flow: "flowFocus" }[kind]](pane, event);
    layered.base.addEventListener("pointermove", (event) => { const f = focusAt(event); this.setHover(f); });
    layered.base.addEventListener("pointerleave", () => this.setHover(null));
    layered.base.addEventListener("click", (event) => this.toggleLock(focusAt(event)));
    return pane;
  }

  layOut() { // which panes are shown, and their positions and sizes
    const { detail: width, theme, layer } = this, gap = 14;
    const isSame = this.changed && !this.moved, flow = isSame && this.flows.length > 0;
    const matrices = this.show === "arcs" && !flow ? 0 : this.moved ? 3 : 1;
    let arcs = this.show === "matrix" || flow ? 0 : 1;

    const at = this.grid.base.getContext("2d");
    at.font = this.font(12.5);
    const longest = (kind) => Math.ceil(Math.min(96, Math.max(...this.labels(kind).slice(0, 600).map((text) => at.measureText(text).width))));
    const digits = at.measureText(String(this.position(Math.max(layer.queries, layer.keys) - 1))).width * 0.82 + 6;
    const queryLabel = longest("query") + digits, keyLabel = longest("key") + digits;
    const left = 20 + queryLabel + 8, close = 6;

    const arcsRoom = 2 * 26 + queryLabel + keyLabel + 150, wide = longest("key") + 6;
    const fixed = left + (matrices - 1) * (close + gap) + 2 * matrices; // everything but the plots
    const arcsWidth = Math.max(arcsRoom, Math.min(460, width * 0.36)), beside = (width - fixed - arcsWidth - gap) / Math.max(1, matrices);
    const wrap = Boolean(matrices && arcs && beside < Math.min(220, layer.keys * 72));
    if (wrap && this.show === "both" && this.room && (this.framed ? this.room < 540 : this.gridAt.beside)) arcs = 0; // no room for them
    const fitsWindow = this.room && (this.framed || this.gridAt.beside);
    const tallestBelow = (top) => this.patterns.height // everything but the plot: the head's name, captions and legend
      || (fitsWindow ? Math.max(110, this.framed && wrap && arcs ? (this.room - 330) / 2 : this.room - top - 116) : 520);
    if (arcs && this.changed && (wrap || !matrices)) arcs = 2; // on a line of their own, both runs fit
    this.matrices.forEach((pane, i) => { pane.node.hidden = i >= matrices; });
    this.flow.node.hidden = !flow;
    this.arcs.forEach((pane) => { pane.node.hidden = !arcs || (arcs === 1 && pane.run !== this.patterns.runs - 1); });
    const fit = (spill, top) => {
      const room = Math.max(90, (arcs && !wrap ? beside : (width - fixed) / Math.max(1, matrices)) - spill);
      const cell = Math.min(this.room ? 110 : 72, room / layer.keys, tallestBelow(top) / layer.queries);
      return [Math.round(Math.max(Math.min(room, 48), cell * layer.keys)), Math.round(Math.max(48, cell * layer.queries))];
    };
    let right = 2, top = 52, [plotWidth, plotHeight] = fit(right, top);
    const flat = plotWidth / layer.keys >= Math.max(18, wide); // key labels are horizontal if they fit, else tilted
    if (!flat) {
      right = Math.max(2, Math.ceil(keyLabel / 2 + 8 - Math.min(10, plotWidth / layer.keys / 2)));
      top = 20 + Math.ceil(Math.sin(Math.PI / 3) * keyLabel + 14);
      [plotWidth, plotHeight] = fit(right, top);
    }
    const tilt = flat ? 0 : -Math.PI / 3;

    this.matrices.forEach((pane, i) => {
      pane.plot = { x: i ? close : left, y: top, w: plotWidth, h: plotHeight, flat, tilt, queryLabel, keyLabel, first: !i };
      pane.size = [pane.plot.x + plotWidth + right, top + plotHeight + 3];
      pane.name.textContent = isSame ? "attention, unchanged" : this.changed ? { original: "original", changed: "changed", difference: "changed − original" }[pane.role] : "matrix";
    });
    const used = fixed + matrices * (plotWidth + right);
    this.arcs.forEach((pane) => {
      let w = matrices && !wrap ? width - used - gap - 2 : arcs === 2 ? (width - gap) / 2 - 2 : width;
      w = Math.floor(Math.max(Math.min(arcsRoom, width), Math.min(w, 620)));
      const most = Math.max(layer.queries, layer.keys);
      // Next to a matrix, the rows of both are aligned.
      const h = matrices && !wrap ? Math.max(plotHeight, Math.min(240, 26 * most)) : Math.min(tallestBelow(24), Math.max(most * 26, 150));
      const before = Math.max(46, queryLabel + 14), after = Math.max(34, keyLabel + 14); // wide enough for the headings
      pane.plot = { x: before, y: matrices && !wrap ? top : 24, w: w - before - after, h, pitch: h / most, queryLabel, keyLabel };
      pane.size = [w, pane.plot.y + h + 4];
      pane.name.textContent = this.changed ? `arcs, ${pane.role}` : "arcs";
    });
    const columns = Math.max(1, this.flows.length), left0 = this.flow.node.hidden ? 0 : used + gap;
    this.flow.plot = { x: 6, y: top, w: Math.max(60, Math.min(Math.max(290, 56 * columns), width - left0 - 22)), h: plotHeight };
    this.flow.size = [this.flow.plot.w + 12, top + plotHeight + 3];
    this.flow.name.textContent = "change of the residual stream";
    for (const pane of [...this.matrices, this.flow, ...this.arcs]) {
      if (pane.node.hidden) continue;
      pane.node.style.width = `${pane.size[0]}px`;
      pane.layered.resize(pane.size[0], pane.size[1], theme.dpr);
    }
  }
};
