// Three panels of a live page: feed-forward activations, the logit lens, and step-by-step decoding.

import { button, element, ink, palette, pen, theme } from "../shared.js";
import { visible } from "./pictures.js";
import { argmax, softmax, tensor } from "./tensors.js";

const share = (p) => `${p >= 0.9995 ? "100" : (100 * p).toFixed(p < 0.1 ? 1 : 0)}%`;
const FEW = 5;

export function likeliest(p, n = FEW) { // [[token, probability]] of the likeliest tokens
  return Array.from(p.keys()).sort((a, b) => p[b] - p[a]).slice(0, n).map((token) => [token, p[token]]);
}

function scale(root, stops) { // a value from 0 to 1 -> [r, g, b]
  const { rgb } = palette(stops[theme(root).isDark]);
  return (part) => rgb[Math.round(253 * Math.min(1, Math.max(0, part)))];
}

export function menu(name, words, take, chosen = 0) {
  const label = element("label", "choice", `${name} `), select = element("select");
  words.forEach((word, at) => { select.append(new Option(word, String(at))); });
  select.value = String(chosen);
  select.onchange = () => take(Number(select.value));
  label.append(select);
  return label;
}

// The activation of every neuron of a layer at every token, after the nonlinearity.
export class Activations {
  /** @type {number[]} */ shape;
  /** @type {Float32Array} */ data;
  /** @type {string[]} */ words;

  constructor(parent, page) {
    this.page = page;
    this.layer = 0;
    this.row = /** @type {number | null} */ (null);
    this.names = [...page.result.trace.keys()].filter((name) => name.endsWith(".ffn.post"));
    this.root = parent.appendChild(element("div", "activations"));
    const title = (name) => { const [stack, layer] = name.split("."); return page.live.model.isEncoderDecoder ? `${stack} ${Number(layer) + 1}` : `layer ${Number(layer) + 1}`; };
    const layers = menu("Layer", this.names.map(title), (at) => { this.layer = at; this.row = null; this.update(); });
    this.says = element("p", "finding");
    this.canvas = element("canvas");
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "img");
    this.told = element("p", "told");
    this.list = element("ol", "neurons");
    this.canvas.onpointermove = (event) => this.tell(event);
    this.canvas.onclick = (event) => { this.row = this.at(event)?.row ?? null; this.update(); };
    this.canvas.onkeydown = (event) => {
      const by = { ArrowUp: -1, ArrowDown: 1 }[event.key];
      if (!by) return;
      event.preventDefault();
      this.row = Math.max(0, Math.min(this.shape[0] - 1, (this.row ?? -by) + by));
      this.update();
    };
    if (!this.names.length) this.root.append(element("p", "", "This model has no feed-forward layers."));
    else this.root.append(layers, this.says, this.canvas, this.told, this.list);
  }

  update() {
    if (!this.names.length) return;
    const { page, canvas } = this, name = this.names[this.layer], { shape: [, n, width], data } = page.result.trace.get(name);
    this.shape = [n, width];
    this.data = data;
    this.words = page.tokens(name.split(".")[0]);
    if (this.row !== null && this.row >= n) this.row = null;
    let active = 0, most = 0;
    const used = new Uint8Array(width);
    data.forEach((value, i) => {
      if (Math.abs(value) > 1e-6) { active += 1; used[i % width] = 1; }
      most = Math.max(most, Math.abs(value));
    });
    const silent = used.filter((one) => !one).length;
    this.says.textContent = `${share(active / data.length)} of the activations are not 0; ${silent} of ${width} neurons are 0 at every token of this input.`;
    const colour = scale(page.root, page.colours.diverging), cell = Math.max(2, Math.min(18, Math.floor(360 / n)));
    [canvas.width, canvas.height] = [width, n];
    Object.assign(canvas.style, { width: "100%", height: `${n * cell}px`, imageRendering: "pixelated" });
    canvas.setAttribute("aria-label", `Activations: ${n} tokens in rows, ${width} neurons in columns. Arrow up and down choose a token.`);
    const context = pen(canvas), picture = context.createImageData(width, n);
    data.forEach((value, i) => picture.data.set([...colour(0.5 + value / (most || 1) / 2), 255], 4 * i));
    context.putImageData(picture, 0, 0);
    const row = this.row ?? n - 1, order = Array.from({ length: width }, (_, at) => at).sort((a, b) => Math.abs(data[row * width + b]) - Math.abs(data[row * width + a]));
    this.told.textContent = `Strongest neurons at token ${row}, “${this.words[row]}” (click another row):`;
    this.list.replaceChildren(...order.slice(0, FEW).map((at) => element("li", "", `neuron ${at}: ${data[row * width + at].toFixed(3)}`)));
  }

  at(event) {
    const box = this.canvas.getBoundingClientRect(), [n, width] = this.shape;
    const column = Math.floor(((event.clientX - box.left) / box.width) * width), row = Math.floor(((event.clientY - box.top) / box.height) * n);
    return column >= 0 && column < width && row >= 0 && row < n ? { row, column } : null;
  }

  tell(event) {
    const at = this.at(event);
    if (at) this.canvas.title = `${at.row} · ${this.words[at.row]}, neuron ${at.column}: ${this.data[at.row * this.shape[1] + at.column].toFixed(4)}`;
  }
}

// The logit lens: the prediction of the output layer from the stream after each layer (nostalgebraist 2020).
export class Layers {
  constructor(parent, page) {
    this.page = page;
    this.root = parent.appendChild(element("div", "lens"));
  }

  update() {
    const { page } = this, { live, result, state } = page, { model } = live;
    const stack = result.trace.has("decoder.0.resid_pre") ? "decoder" : "encoder", words = page.tokens(stack);
    const names = [`${stack}.0.resid_pre`, ...[...result.trace.keys()].filter((name) => name.startsWith(`${stack}.`) && name.endsWith(".resid_post"))];
    const colour = scale(page.root, page.colours.sequential), table = element("table");
    const top = table.createTHead().insertRow();
    top.append(element("td"), ...words.map((word, at) => { const node = element("th", "", word); node.title = `position ${at}`; return node; }));
    const rows = names.map((name) => {
      const { shape: [, n, width], data } = result.trace.get(name), logits = live.unembed({ shape: [n, width], data }, state.step), vocab = logits.shape[1];
      return Array.from({ length: n }, (_, at) => {
        const p = softmax(tensor([vocab], logits.data.subarray(at * vocab, (at + 1) * vocab))).data, token = argmax(p);
        return { token, p: p[token] };
      });
    });
    const body = table.createTBody();
    rows.forEach((cells, at) => {
      const line = body.insertRow();
      line.append(element("th", "", at ? `after layer ${at}` : "at the start"));
      cells.forEach(({ token, p }, column) => {
        const cell = line.insertCell(), rgb = colour(p), isFinal = token === rows[rows.length - 1][column].token;
        cell.textContent = visible(model.labels[token]);
        cell.style.background = `rgb(${rgb.join(" ")})`;
        cell.style.color = ink(rgb);
        cell.className = isFinal ? "final" : "";
        cell.title = `${visible(model.labels[token])}: ${share(p)}`;
      });
    });
    const decided = rows[rows.length - 1].map((last, column) => rows.findIndex((_, at) => rows.slice(at).every((row) => row[column].token === last.token)));
    const asked = result.outputs.map((output) => decided[output]).filter((at) => at !== undefined), latest = Math.max(...asked);
    const isLast = latest === rows.length - 1, from = latest ? `after layer ${latest}` : "at the start";
    const finding = !asked.length ? "" : isLast ? "At least one answer is decided only in the last layer." : `All answers are decided ${from}: from there on, the likeliest token is the final one.`;
    const box = element("div", "wide");
    box.append(table);
    this.root.replaceChildren(element("p", "finding", finding), box,
      element("p", "note", "Each cell is the token that the output layer would predict from the stream at that point; darker is likelier. Bold: the final prediction."));
  }
}

// The answer of a decoder, token by token.
export class Decoding {
  constructor(parent, page) {
    this.page = page;
    this.at = 0;
    this.root = parent.appendChild(element("div", "decoding"));
    this.bar = element("div", "changes");
    this.back = button("‹", () => this.go(-1));
    this.back.setAttribute("aria-label", "One token back");
    this.next = button("›", () => this.go(1));
    this.next.setAttribute("aria-label", "One token forward");
    this.says = element("span", "finding");
    this.says.setAttribute("role", "status");
    this.bar.append(this.back, this.next, this.says);
    this.words = element("div", "tokens");
    this.bars = element("div", "bars");
    this.root.append(this.bar, this.words, this.bars);
  }

  update() {
    const { page } = this, key = JSON.stringify(page.request);
    if (key !== this.key) {
      this.key = key;
      try {
        this.steps = page.live.decode(page.request, 24);
        this.at = Math.min(this.at, this.steps.length - 1);
        this.why = "";
      } catch (error) {
        this.steps = [];
        this.why = error.message;
      }
    }
    this.draw();
  }

  go(by) {
    this.at = Math.max(0, Math.min(this.steps.length - 1, this.at + by));
    this.draw();
  }

  draw() {
    const { labels } = this.page.live.model, step = this.steps[this.at];
    this.back.disabled = !step || this.at === 0;
    this.next.disabled = !step || this.at === this.steps.length - 1;
    this.says.textContent = step ? `Token ${this.at + 1} of ${this.steps.length}: “${visible(labels[step.token])}” with ${share(step.probabilities[step.token])}` : this.why;
    this.words.replaceChildren(...this.steps.map((one, at) => {
      const chip = button(visible(labels[one.token]), () => { this.at = at; this.draw(); });
      chip.className = `chip${at === this.at ? " chosen" : ""}${at > this.at ? " later" : ""}`;
      chip.setAttribute("aria-pressed", String(at === this.at));
      return chip;
    }));
    if (!step) return this.bars.replaceChildren();
    this.bars.replaceChildren(...likeliest(step.probabilities).map(([token, p]) => {
      const line = element("div", "guess"), fill = element("span", "fill");
      fill.style.width = `${100 * p}%`;
      line.append(element("span", "word", visible(labels[token])), element("span", "track"), element("span", "share", share(p)));
      line.children[1].append(fill);
      return line;
    }));
  }
}

