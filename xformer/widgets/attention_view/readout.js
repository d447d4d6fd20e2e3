// Puts the number under the pointer into words, for the eye and for a screen reader.

class Readout {
  number(w, exact) { return w === Infinity ? "masked" : w !== w ? "not a number" : (exact ? "" : "≈ ") + w.toFixed(exact ? 4 : 3); }
  token(kind, i) { return `${kind} ${this.position(i)} '${this.labels(kind)[i]}'`; }

  words(query, key) { // "0.9731", or with a changed run "original 0.9731, changed 0.1200, difference −0.8531"
    const { patterns } = this, [l, h] = this.current, exact = patterns.isSharp(l, h);
    const before = patterns.weight(0, l, h, query, key);
    if (!this.changed) return this.number(before, exact);
    const after = patterns.weight(1, l, h, query, key), d = patterns.difference(l, h, query, key);
    const moved = d === Infinity || d !== d ? "" : ` (${d > 0 ? "+" : d < 0 ? "−" : "±"}${Math.abs(d).toFixed(exact ? 4 : 3)})`;
    return `original ${this.number(before, exact)} · changed ${this.number(after, exact)}${moved}`;
  }

  read() {
    const { focus, patterns, layer } = this, [l, h] = this.current, run = patterns.runs - 1;
    if (this.thumb) {
      const it = patterns.layers[this.thumb.layer], t = this.thumb, peak = patterns.peak(run, t.layer, t.head);
      const moved = this.changed ? ` · moved by ${it.moved[t.head].toFixed(3)} (0 the same, 1 wholly other)` : "";
      return this.print(`${it.title} · ${this.headName(t.head)} (${it.name} [${t.head}]): ${patterns.isSilenced(t.layer, t.head) ? "silenced, its z is 0; " : ""}largest weight ${peak.toFixed(3)}${moved}`, "");
    }
    if (!focus) return this.print("Point at a cell or a token to read its weight; click to lock it.", "", true);
    if (focus.kind === "cell") return this.print(`${this.token("query", focus.query)} → ${this.token("key", focus.key)}:`, this.words(focus.query, focus.key));
    // A whole row or column: its largest weight.
    const byKey = focus.kind === "key", count = byKey ? layer.queries : layer.keys;
    let best = -1, most = -Infinity;
    for (let i = 0; i < count; i++) {
      const w = byKey ? patterns.weight(run, l, h, i, focus.key) : patterns.weight(run, l, h, focus.query, i);
      if (w !== Infinity && w > most) { most = w; best = i; }
    }
    const who = byKey ? this.token("key", focus.key) : this.token("query", focus.query);
    if (best < 0) return this.print(`${who}: everything is masked or not a number.`, "");
    const [query, key] = byKey ? [best, focus.key] : [focus.query, best];
    return this.print(byKey ? `${who} is looked at most by ${this.token("query", best)}:` : `${who} looks most at ${this.token("key", best)}:`, this.words(query, key));
  }

  print(text, value, muted = false) {
    this.spoken = `${text} ${value}`.trim();
    this.text.classList.toggle("muted", muted);
    this.text.replaceChildren(value ? `${text} ` : text, value ? element("b", "", value) : "");
    this.readout.title = this.spoken;
  }

  say(text = this.spoken) { this.live.textContent = text; }
}
