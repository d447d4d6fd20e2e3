// Shows the tokens as chips, filled by how much the token under the pointer looks at each.

class Strips {
  fillStrips() {
    for (const strip of this.strips) {
      strip.node.hidden = this.same && strip.kind === "key"; // one strip where queries and keys are the same tokens
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
        const code = w === Infinity ? -2 : w !== w ? -1 : w < 0 ? 0 : Math.round(shareOf(w, top, this.scale) * 200);
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

  revealChips() { // a strip longer than the screen scrolls to what is locked, without moving the page
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
}
