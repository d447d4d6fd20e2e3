// Everything around the enlarged head: the thumbnails of all heads, the legends and the token chips.

import { LEVELS, element, ink, parse } from "../shared.js";
import { drawCodes, fitted, markOut } from "./canvas.js";
import { shareOf } from "./patterns.js";

export const Overview = (Base) => class extends Base {
  gridGeometry() {
    const { layers } = this.patterns, at = this.grid.base.getContext("2d");
    at.font = this.font(12.5, 500);
    const titles = Math.ceil(Math.min(180, Math.max(...layers.map((l) => at.measureText(l.title).width)))) + 14;
    const columns = Math.max(...layers.map((l) => l.heads)), below = !this.changed ? 0 : layers.length > 12 ? 3 : 7;
    const sideIn = (width, height, gap) => Math.floor(Math.min((width - titles - 4) / columns - gap, height / layers.length - gap - below, 124));
    // Place the thumbnails next to the enlarged head if both stay large enough, else above it. With many layers, the thumbnails
    // are small and stay next to it; the grid scrolls if it is still too high.
    const room = this.room ? this.room - 26 : 560, rest = this.width - 28 - 520;
    const wide = columns > 8 ? 5 : 8, narrow = sideIn(this.width - 28 - 570, room, wide);
    const deep = narrow < 40 && sideIn(rest, 1e6, 2) >= 10, beside = narrow >= 40 || deep;
    const gap = deep ? 2 : wide;
    const above = Math.max(30, sideIn(this.width, 340, wide), Math.min(44, sideIn(this.width, 1e6, wide)));
    const side = deep ? Math.min(sideIn(rest, 1e6, 2), Math.max(this.room ? 8 : 12, sideIn(rest, this.room ? room : 430, 2)), 44) : beside ? Math.min(narrow, 104) : above;
    const longest = (l) => Math.max(l.queries, l.keys), thumbs = [];
    let y = 24;
    const rows = layers.map((l, layer) => {
      const w = Math.round(side * Math.max(0.4, l.keys / longest(l))), h = Math.round(side * Math.max(0.4, l.queries / longest(l)));
      const row = { y, h };
      for (let head = 0; head < l.heads; head++) thumbs.push({ layer, head, x: titles + head * (side + gap) + 2, y, w, h });
      y += h + gap + below;
      return row;
    });
    return { titles, columns, gap, side, rows, thumbs, beside, width: titles + columns * (side + gap) + 2, height: y + 2, below, deep };
  }

  drawGrid() {
    const { theme, patterns } = this, g = (this.gridAt = this.gridGeometry());
    this.body.classList.toggle("beside", g.beside);
    this.body.classList.toggle("deep", g.deep);
    this.detail = g.beside ? this.width - g.width - 28 - (g.deep ? 14 : 0) : this.width;
    this.grid.resize(g.width, g.height, theme.dpr);
    const at = this.grid.clear(this.grid.base);
    at.textBaseline = "middle";
    for (let head = 0; head < g.columns; head++) { // one hue per head
      const x = g.titles + head * (g.side + g.gap) + 2, label = g.side >= 62 ? this.headName(head) : String(head + patterns.firstHead);
      const hue = this.hue(head);
      at.font = this.font(11.5, 650);
      const w = Math.min(g.side, at.measureText(label).width + 12);
      at.fillStyle = hue;
      at.beginPath(); at.roundRect(x, 2, w, 17, 5); at.fill();
      at.fillStyle = ink(parse(hue));
      at.textAlign = "center";
      at.fillText(label, x + w / 2, 11);
    }
    at.textAlign = "left";
    at.font = this.font(g.side + g.gap + g.below < 15 ? 11 : 12.5, 500);
    g.rows.forEach((row, layer) => {
      at.fillStyle = theme.text;
      at.fillText(fitted(at, patterns.layers[layer].title, g.titles - 8), 0, row.y + row.h / 2);
    });
    const run = patterns.runs - 1; // the changed run, if there is one
    for (const t of g.thumbs) {
      const it = patterns.layers[t.layer];
      const source = patterns.codes(run, t.layer, t.head, this.top(t.layer, t.head), this.scale, true);
      drawCodes(at, source, theme.sequential, t, theme.hatch, theme.dpr, false, it.queries, it.keys, patterns.thumbnail);
      at.strokeStyle = theme.line; at.lineWidth = 1;
      at.strokeRect(t.x - 0.5, t.y - 0.5, t.w + 1, t.h + 1);
      if (patterns.isSilenced(t.layer, t.head)) this.strike(at, t);
      if (!this.changed) continue;
      const thick = g.below > 3 ? 3 : 2, y = t.y + t.h + (g.below > 3 ? 3 : 1); // how far the pattern moved
      at.fillStyle = theme.line; at.fillRect(t.x, y, t.w, thick);
      at.fillStyle = theme.text; at.fillRect(t.x, y, Math.max(it.moved[t.head] > 1e-6 ? 1 : 0, t.w * Math.min(1, it.moved[t.head])), thick);
    }
  }

  strike(at, t) { // an ablated head: dimmed and crossed out, with a label if it fits
    const { theme } = this;
    at.fillStyle = theme.veil; at.fillRect(t.x, t.y, t.w, t.h);
    at.beginPath();
    at.moveTo(t.x, t.y); at.lineTo(t.x + t.w, t.y + t.h); at.moveTo(t.x + t.w, t.y); at.lineTo(t.x, t.y + t.h);
    markOut(at, theme, 1.5, 1);
    at.font = this.font(11, 650);
    const wide = at.measureText("ablated").width + 8;
    if (wide > t.w || t.h < 34) return;
    at.fillStyle = theme.background; at.fillRect(t.x + (t.w - wide) / 2, t.y + t.h / 2 - 8, wide, 16);
    at.fillStyle = theme.text; at.textAlign = "center"; at.textBaseline = "middle";
    at.fillText("ablated", t.x + t.w / 2, t.y + t.h / 2 + 0.5);
    at.textAlign = "left";
  }

  focusGrid() {
    const { theme, patterns, focus, layer } = this, at = this.grid.clear(this.grid.over);
    for (const t of this.gridAt.thumbs) {
      if (focus) { // thin lines, in every layer with the same tokens on that side
        const it = patterns.layers[t.layer];
        at.beginPath();
        if (focus.query !== null && it.queryLabels === layer.queryLabels) {
          const y = t.y + ((focus.query + 0.5) * t.h) / it.queries;
          at.moveTo(t.x, y); at.lineTo(t.x + t.w, y);
        }
        if (focus.key !== null && it.keyLabels === layer.keyLabels) {
          const x = t.x + ((focus.key + 0.5) * t.w) / it.keys;
          at.moveTo(x, t.y); at.lineTo(x, t.y + t.h);
        }
        markOut(at, theme, 1.25, 0.75);
      }
      const chosen = t.layer === this.current[0] && t.head === this.current[1];
      const under = this.thumb && t.layer === this.thumb.layer && t.head === this.thumb.head;
      if (!chosen && !under) continue;
      at.strokeStyle = chosen ? theme.mark : theme.text; at.lineWidth = chosen ? 3 : 1.5;
      at.beginPath(); at.roundRect(t.x - 2, t.y - 2, t.w + 4, t.h + 4, 3); at.stroke();
    }
  }

  revealThumb() { // scroll the grid to the selected layer, once per selection, without moving the page
    const row = this.gridAt.rows[this.current[0]], box = this.scroll, chosen = String(this.current);
    if (!row || chosen === this.revealed) return;
    this.revealed = chosen;
    if (row.y < box.scrollTop || row.y + row.h > box.scrollTop + box.clientHeight) box.scrollTop = row.y - box.clientHeight / 2;
  }

  thumbAt(event) {
    const box = this.grid.base.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
    return this.gridAt.thumbs.find((t) => x >= t.x - 3 && x < t.x + t.w + 3 && y >= t.y - 3 && y < t.y + t.h + 3 + this.gridAt.below) || null;
  }

  overGrid(event) { this.setThumb(this.thumbAt(event)); }

  drawTitle() {
    const [layer, head] = this.current, it = this.layer;
    this.dot.style.background = this.hue(head);
    this.title.textContent = `${it.title} · ${this.headName(head)}`;
    this.title.title = `${it.name} [${head}]`;
    const exact = this.patterns.isExact(layer, head);
    const [tall, wide] = this.patterns.exactPool;
    this.precision.textContent = exact ? (tall * wide > 1 ? `largest of ${tall} × ${wide} cells` : "exact values") : it.pool[0] * it.pool[1] > 1 ? "pooled preview" : "8-bit preview";
    const silenced = this.patterns.isSilenced(layer, head);
    const before = this.changed ? this.patterns.zSize(0, layer, head) : null;
    this.silence.hidden = !silenced;
    this.silence.textContent = `ablated · |z| ${before ? `${before.toFixed(2)} → ` : ""}0`;
    this.silence.title = "The head still computes its attention pattern, which is shown, but its z is set to 0, so it writes nothing to the residual stream. |z| is the norm of z, averaged over the queries.";
    this.title.classList.toggle("struck", silenced);
    this.flow.layered.base.setAttribute("aria-label", "Change of the residual stream after each layer.");
    const label = `${it.title}, ${this.headName(head)}${silenced ? ", ablated" : ""}: ${it.queries} queries by ${it.keys} keys. Arrow keys move the cell.`;
    for (const pane of [...this.matrices, ...this.arcs]) pane.layered.base.setAttribute("aria-label", `${pane.kind}, ${pane.role}: ${label}`);
    const count = this.patterns.layers.reduce((sum, l) => sum + l.heads, 0);
    this.grid.base.setAttribute("aria-label", `All ${count} heads, one row per layer, one column per head. Selected: ${it.title}, ${this.headName(head)}.`);
  }

  drawLegends() {
    const shown = [this.themeKey, this.theme.dpr, this.scale, this.changed, this.moved].join("|");
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
      fixed: ["0", "1"], own: ["0", "the head’s largest"], log: ["0.0001", "1, logarithmic"],
      without_first_token: ["0", "the head’s largest without the first token"],
    }[this.scale];
    this.legend.replaceChildren(`weight ${least}`, bar(theme.sequential, 120), most);
    const hatch = element("canvas");
    hatch.width = Math.round(22 * theme.dpr); hatch.height = Math.round(12 * theme.dpr);
    hatch.style.width = "22px"; hatch.style.height = "12px";
    const at = hatch.getContext("2d");
    at.fillStyle = theme.hatch; at.fillRect(0, 0, hatch.width, hatch.height);
    this.maskedLegend.replaceChildren(hatch, this.scale === "without_first_token" ? "masked, or the first token" : "masked");
    this.signedLegend.hidden = !this.moved;
    this.movedLegend.hidden = !this.changed;
    if (!this.changed) return;
    this.signedLegend.replaceChildren(this.isOwn ? "difference −largest" : "difference −1", bar(theme.diverging, 120), this.isOwn ? "+largest" : "+1");
    this.movedLegend.replaceChildren(" · thumbnails show the changed run; the bar below each, how far its pattern moved");
  }

  fillStrips() {
    for (const strip of this.strips) {
      strip.node.hidden = this.same && strip.kind === "key"; // one strip if queries and keys are the same tokens
      strip.what.textContent = this.same ? "tokens" : strip.kind === "query" ? "queries" : "keys";
      const labels = this.labels(strip.kind);
      if (strip.node.hidden || strip.labels === labels || (strip.labels && JSON.stringify(strip.labels) === JSON.stringify(labels))) continue;
      strip.labels = labels;
      strip.nodes = labels.map((text, i) => {
        const chip = element("span", "chip");
        chip.dataset.i = i;
        chip.append(element("span", "at", String(this.position(i))), element("span", "tok", text));
        return chip;
      });
      strip.chips.replaceChildren(...strip.nodes);
      strip.shown = [];
    }
  }

  focusStrips() {
    const { focus } = this, [l, h] = this.current, run = this.patterns.runs - 1;
    const hue = this.hue(h), top = this.top(l, h) || 1;
    for (const strip of this.strips) {
      if (strip.node.hidden) continue;
      if (strip.hue !== hue) strip.chips.style.setProperty("--hue", (strip.hue = hue));
      // Keys are weighted by the row of the hovered query, queries by the column of the hovered key.
      const byKey = focus && (this.same ? focus.kind === "key" : strip.kind === "query");
      const known = focus && (byKey ? focus.key !== null : focus.query !== null);
      strip.nodes.forEach((chip, i) => {
        const w = !known ? -1 : byKey ? this.seen(run, l, h, i, focus.key) : this.seen(run, l, h, focus.query, i);
        const code = w === Infinity ? -2 : Number.isNaN(w) ? -1 : w < 0 ? 0 : Math.round(shareOf(w, top, this.scale) * 200);
        const asQuery = focus && focus.query === i && (this.same || strip.kind === "query");
        const asKey = focus && focus.key === i && (this.same || strip.kind === "key") && !(asQuery && this.same);
        const state = code * 4 + (asQuery ? 1 : 0) + (asKey ? 2 : 0);
        if (strip.shown[i] === state) return;
        strip.shown[i] = state;
        chip.className = `chip${asQuery ? " q" : ""}${asKey ? " k" : ""}${code === -2 ? " masked" : ""}`;
        chip.style.setProperty("--w", Math.max(0, code) / 200);
      });
    }
  }

  revealChips() { // scroll a long strip to the locked token, without moving the page
    for (const strip of this.strips) {
      const i = this.focus && (this.same ? this.focus.key ?? this.focus.query : this.focus[strip.kind]), chip = strip.nodes[i];
      if (strip.node.hidden || !chip) continue;
      const from = chip.offsetLeft - strip.chips.offsetLeft, box = strip.chips;
      if (from < box.scrollLeft || from + chip.offsetWidth > box.scrollLeft + box.clientWidth) box.scrollLeft = from - box.clientWidth / 2;
    }
  }

  tokenFocus(kind, i) {
    if (this.same) return { query: i, key: i, kind: "token" };
    return kind === "query" ? { query: i, key: null, kind } : { query: null, key: i, kind };
  }
};
