// Follows the app's theme: colours, palettes, hatching and fonts of the view.

class Theme {
  hue(head) { const pair = this.patterns.hues[head % this.patterns.hues.length]; return pair[this.theme.dark ? 1 : 0]; }

  readTheme() {
    const style = getComputedStyle(this.root), get = (name, fallback) => style.getPropertyValue(name).trim() || fallback;
    return ["background-color:#ffffff", "text-color:#1a1c24", "font:sans-serif", "base-font-size:16px", "primary-color:#2557d6"]
      .map((pair) => { const [name, fallback] = pair.split(":"); return get(`--st-${name}`, fallback); }).join("|");
  }

  applyTheme() {
    const key = this.readTheme(), dpr = window.devicePixelRatio || 1;
    if (key === this.themeKey && this.theme.dpr === dpr) return;
    this.themeKey = key;
    const [background, text, font, base, primary] = key.split("|"), ground = parse(background), letters = parse(text);
    const accent = parse(primary), mark = contrast(accent, ground) >= 4.5 ? accent : letters; // words stand on it, too
    const dark = luminance(ground) < 0.25;
    this.theme = {
      dark, dpr, font, mark: mix(mark, mark, 0), zoom: Math.max(0.9, Math.min(1.3, parseFloat(base) / 16 || 1)),
      background: mix(ground, ground, 0), text: mix(letters, letters, 0),
      muted: mix(ground, letters, 0.66), line: mix(ground, letters, 0.22), faint: mix(ground, letters, 0.09), veil: `rgba(${ground.join(",")},0.5)`,
      sequential: palette(this.patterns.sequential[dark ? 1 : 0]), diverging: palette(this.patterns.diverging[dark ? 1 : 0]),
      hatch: hatching(dpr, mix(ground, letters, dark ? 0.16 : 0.11), mix(ground, letters, dark ? 0.34 : 0.3)),
    };
    this.root.style.setProperty("--av-mark", this.theme.mark);
  }

  font(size, weight = 400) { return `${weight} ${(size * this.theme.zoom).toFixed(2)}px ${this.theme.font || "sans-serif"}`; }
}
