// Draws one frame: the token strip, thumbnails of all heads, and one enlarged head with its tokens.

import { LEVELS, MASKED, NAN, element } from "../shared.js";

export function fit(canvas, width, height, dpr) {
  if (canvas.dataset.size !== `${width}x${height}x${dpr}`) {
    canvas.width = Math.round(width * dpr); canvas.height = Math.round(height * dpr);
    canvas.style.width = `${width}px`; canvas.style.height = `${height}px`;
    canvas.dataset.size = `${width}x${height}x${dpr}`;
  }
  const at = canvas.getContext("2d");
  at.setTransform(dpr, 0, 0, dpr, 0, 0);
  at.clearRect(0, 0, width, height);
  return at;
}

const STANDS_OUT = 0.5; // score from which a head is marked as the best; lower scores can be chance

export const Picture = (Base) => class extends Base {
  // The layout for this window and these layers; it does not depend on the frame, so that nothing jumps. The enlarged head is at
  // the left with everything else next to it, or below it in a narrow window.
  layOut() {
    const { film, width } = this, most = Math.max(...film.layers.map((layer) => layer.heads)), n = film.layers.length;
    const gap = 6, few = most * n <= 1, wide = width >= 640;
    const framed = getComputedStyle(this.root).getPropertyValue("--in-frame").trim(); // there it fills the window
    const high = Math.max(240, window.innerHeight - (framed ? 90 : 285));
    const large = wide ? Math.min(high, 760, Math.round(width * 0.5)) : Math.min(width, 420);
    const room = wide ? width - large - 28 : width;
    this.root.classList.toggle("wide", wide);
    const pen = this.large.getContext("2d");
    pen.font = this.font(11.5, 600);
    const names = Math.ceil(Math.max(...film.layers.map((layer) => pen.measureText(layer.title).width))) + 10;
    const lanes = 38 * (film.reads.length + 1);
    const free = wide ? Math.max(60, large - lanes - 210) : 102 * n; // for the thumbnails
    let side = 0, across = 1; // number of layers side by side: the one that makes the heads largest
    for (let columns = 1; columns <= n; columns++) {
      const fits = Math.min(150, (room / columns - names) / most - gap, free / Math.ceil(n / columns) - gap);
      if (fits > side + 1) { side = Math.floor(fits); across = columns; }
    }
    side = Math.max(18, side);
    const down = Math.ceil(n / across), group = names + most * (side + gap);
    const ruler = { width: room, height: wide ? Math.max(96, Math.min(220, large - lanes - (few ? 0 : down * (side + gap)) - 118)) : 110 };
    this.at_ = { large, side, gap, names, few, across, down, group, ruler };
    this.grid.hidden = few;
  }

  drawStatic() { // what only changes with the timeline: the input lanes
    const { film } = this;
    const words = JSON.stringify([film.reads, film.offset, film.frames[0].says.length]);
    if (this.lanesFor !== words) {
      this.lanesFor = words;
      this.strip.replaceChildren();
      const lane = (name, tokens, offset) => {
        this.strip.append(element("div", "name", name));
        const row = element("div", "lane");
        row.setAttribute("role", "list");
        row.setAttribute("aria-label", name);
        for (let i = 0; i < offset; i++) row.append(element("div", "chip gap"));
        const chips = tokens.map((token) => {
          const chip = element("div", "chip");
          chip.setAttribute("role", "listitem");
          chip.append(element("span", "word", token));
          row.append(chip);
          return chip;
        });
        this.strip.append(row);
        return chips;
      };
      for (const [name, tokens] of film.reads) lane(name, tokens, 0);
      this.said = lane("predicts", film.frames[0].says, film.offset);
      for (const chip of this.said) chip.append(element("span", "sign"), element("span", "bar"));
    }
  }

  drawStrip() {
    const frame = this.film.frames[this.at];
    this.said.forEach((chip, i) => {
      const right = frame.right[i], p = frame.probability[i];
      const { judged } = this.film; // the continuation of a text is neither right nor wrong
      chip.className = judged ? `chip ${right ? "right" : "wrong"}` : "chip";
      chip.children[0].textContent = frame.says[i];
      chip.children[1].textContent = !judged ? "" : right ? "✓" : "✗";
      chip.children[2].style.width = `${(100 * p).toFixed(1)}%`;
      chip.title = `${frame.says[i]}: probability ${p.toFixed(4)}${!judged ? "" : right ? ", right" : ", wrong"}`;
    });
  }

  paint(at, layer, head, x, y, w, h) { // draw the weights of one head into a box
    const it = this.film.layers[layer], codes = this.film.plane(this.at, layer, head), { theme } = this;
    const scratch = this.scratch ?? (this.scratch = document.createElement("canvas"));
    if (scratch.width !== it.cols || scratch.height !== it.rows) { scratch.width = it.cols; scratch.height = it.rows; }
    const to = scratch.getContext("2d"), image = to.createImageData(it.cols, it.rows), words = new Uint32Array(image.data.buffer);
    for (let i = 0; i < words.length; i++) words[i] = theme.colours.words[codes[i]];
    to.putImageData(image, 0, 0);
    at.save();
    at.fillStyle = theme.hatch;
    at.fillRect(x, y, w, h);
    at.imageSmoothingEnabled = false;
    at.drawImage(scratch, x, y, w, h);
    at.restore();
  }

  drawHeads() {
    const { film, theme } = this, { side, gap, names, large, few, across, down, group } = this.at_, [layer, head] = this.head;
    const best = this.bestNow();
    if (!few) {
      const at = fit(this.grid, across * group, down * (side + gap), theme.dpr);
      film.layers.forEach((it, l) => {
        const left = (l % across) * group, y = Math.floor(l / across) * (side + gap) + 1;
        at.fillStyle = theme.muted; at.font = this.font(11.5, 600); at.textBaseline = "middle"; at.textAlign = "left";
        at.fillText(it.title, left, y + side / 2);
        for (let h = 0; h < it.heads; h++) {
          const x = left + names + h * (side + gap) + 1;
          this.paint(at, l, h, x, y, side - 2, side - 2);
          const isLarge = l === layer && h === head;
          at.strokeStyle = isLarge ? this.hue(h) : theme.line; at.lineWidth = isLarge ? 3 : 1;
          at.strokeRect(x - 0.5, y - 0.5, side - 1, side - 1);
          if (best.score >= STANDS_OUT && best.layer === l && best.head === h) this.star(at, x + side - 12, y + 10);
        }
      });
      this.grid.setAttribute("aria-label", `All heads at step ${film.frames[this.at].step}; click one to enlarge it.`);
    }
    this.drawLarge(layer, head, large);
    const score = film.scoreOf(this.at, layer, head);
    this.name.textContent = film.headName(layer, head);
    this.dot.style.background = this.hue(head);
    this.score.textContent = score === undefined ? "" : `${film.score}: ${score.toFixed(2)}`;
    this.telling.textContent = best.score < STANDS_OUT ? "" : best.layer === layer && best.head === head
      ? "★ best of all heads" : `★ ${film.headName(best.layer, best.head)}, ${best.score.toFixed(2)}`;
  }

  star(at, x, y) {
    at.fillStyle = this.theme.background;
    at.beginPath(); at.arc(x, y, 9, 0, 7); at.fill();
    at.fillStyle = this.theme.text;
    at.font = this.font(13, 700); at.textAlign = "center"; at.textBaseline = "middle";
    at.fillText("★", x, y + 0.5);
  }

  drawLarge(layer, head, size) {
    const { film, theme } = this, it = film.layers[layer];
    const left = it.queryLabels.some((text) => text.length > 3) ? 76 : 62, top = 50, inner = size - left - 4;
    const aspect = it.queryLabels.length / it.keyLabels.length, w = inner, h = Math.min(inner * 1.05, Math.max(60, inner * aspect));
    this.box = { x: left, y: top, w, h, layer, head };
    const at = fit(this.large, size, Math.ceil(top + inner + 4), theme.dpr);
    this.paint(at, layer, head, left, top, w, h);
    at.strokeStyle = theme.line; at.lineWidth = 1; at.strokeRect(left - 0.5, top - 0.5, w + 1, h + 1);
    const { queryLabels: q, keyLabels: k } = it, short = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
    at.textBaseline = "middle";
    const tall = h / q.length, wide = w / k.length;
    at.font = this.font(Math.min(13, 10 + wide / 12));
    const widest = Math.max(...k.map((text) => at.measureText(short(text, 4)).width));
    const everyRow = Math.max(1, Math.ceil(13 / tall)), everyColumn = Math.max(1, Math.ceil((widest + 1) / wide));
    q.forEach((text, i) => { // the token and its position, small and muted, so that repeated tokens stay distinct
      if (i % everyRow) return;
      const y = top + (i + 0.5) * tall;
      at.textAlign = "right";
      at.font = this.font(Math.min(13, 10 + tall / 12)); at.fillStyle = theme.text; at.fillText(short(text, 5), left - 6, y);
      const edge = left - 11 - at.measureText(short(text, 5)).width;
      at.font = this.font(9.5); at.fillStyle = theme.muted; at.fillText(String(i), edge, y);
    });
    at.textAlign = "center";
    k.forEach((text, i) => {
      if (i % everyColumn) return;
      const x = left + (i + 0.5) * wide;
      at.font = this.font(Math.min(13, 10 + wide / 12)); at.fillStyle = theme.text; at.fillText(short(text, 4), x, top - 9);
      at.font = this.font(9.5); at.fillStyle = theme.muted; at.fillText(String(i), x, top - 23);
    });
    at.fillStyle = theme.muted; at.font = this.font(11);
    at.textAlign = "left"; at.fillText("key: position attended to →", left, top - 41);
    at.save(); at.translate(8, top + h); at.rotate(-Math.PI / 2); at.fillText("query: attending position →", 0, 0); at.restore();
    this.large.setAttribute("aria-label",
      `Attention of ${film.headName(layer, head)} at step ${film.frames[this.at].step}: ${q.length} queries by ${k.length} keys.`);
    if (this.pointer) this.point();
  }

  bestNow() {
    let found = { layer: 0, head: 0, score: -1 };
    this.film.frames[this.at].scores.forEach((heads, layer) => heads.forEach((score, head) => {
      if (score > found.score) found = { layer, head, score };
    }));
    return found;
  }

  point() { // read out the cell under the pointer
    const { box, film } = this, it = film.layers[box.layer], { x, y } = this.pointer;
    const col = Math.floor(((x - box.x) / box.w) * it.cols), row = Math.floor(((y - box.y) / box.h) * it.rows);
    if (row < 0 || col < 0 || row >= it.rows || col >= it.cols) { this.readout.textContent = this.hint; return; }
    const code = film.plane(this.at, box.layer, box.head)[row * it.cols + col];
    const pooled = it.rows < it.queryLabels.length || it.cols < it.keyLabels.length;
    const q = Math.floor((row * it.queryLabels.length) / it.rows), k = Math.floor((col * it.keyLabels.length) / it.cols);
    const weight = code === MASKED ? "masked" : code === NAN ? "not a number" : (code / LEVELS).toFixed(2);
    this.readout.textContent = `${pooled ? "near " : ""}position ${q} (${it.queryLabels[q]}) → ${k} (${it.keyLabels[k]}): ${weight}`;
  }
};
