// A live page: a model that runs in the browser. Everything shown follows from one state (state.js); changing it runs the model.
//
//   const page = new LivePage(element, live, { colours, lesson });
//   page.show({ mask: "causal" });

import { AttentionView } from "../attention_view/view.js";
import { Pad } from "../digit_pad/pad.js";
import { Matrices } from "../matrices/matrices.js";
import { Scene } from "../scene/scene.js";
import { button, element } from "../shared.js";
import { rowData } from "./arithmetic.js";
import { Activations, Decoding, Layers, likeliest, menu } from "./panels.js";
import { attentionBytes, sceneBytes, visible } from "./pictures.js";
import { START, bare, fragmentOf, isChanged, requestOf, stateOf, unchanged } from "./state.js";

const TABS = { attention: "Attention", scene: "Whole run", arithmetic: "One head, step by step", feed_forward: "Feed-forward", lens: "Layer by layer", decode: "Word by word" };
const MASKS = { trained: "as trained", causal: "causal", full: "full", drawn: "drawn" };
const TASK_HEIGHT = 260; // height of a matrix above the task of a lesson on a phone, in pixels
const MOST_CELLS = 24; // largest side of a mask that is drawn by hand

class FittedView extends AttentionView { // next to a lesson, the picture fits the window
  get scrolled() { return this.parts.root.closest(".live")?.querySelector(".lesson:not(:empty)") ? scrollY : null; }
}

export class LivePage {
  changes = []; // called with the state and the result after every change
  cells = []; // called with the cell that is clicked
  order = 0;
  life = new AbortController();
  /** @type {any} */ result; // the shown run, and the one without changes of the model
  /** @type {any} */ original;
  /** @type {any} */ request;
  originalKey = "";
  /** @type {any[]} */ runs;
  /** @type {(layer: number, head: number) => Uint8Array<ArrayBuffer>} */ exact;
  /** @type {AttentionView | null} */ view = null;
  /** @type {Scene | null} */ scene = null;
  /** @type {Matrices | null} */ matrices = null;
  /** @type {Record<string, { tab: HTMLElement, panel: HTMLElement }>} */ panels = {};
  /** @type {ReturnType<typeof setInterval> | null} */ playing = null;

  field = element("input");
  mask = element("select");
  positions = element("input");
  range = element("input");
  aside = element("aside", "lesson");
  main = element("main");
  asks = element("div", "asks");
  problem = element("p", "problem");
  strip = element("div", "tokens");
  answers = element("div", "answers");
  controls = element("div", "changes");
  maskEditor = element("div", "mask");
  tabs = element("div", "tabs");
  foot = element("p", "foot");
  ablate = button("Ablate this head", () => this.toggle("ablate", this.headName));
  cut = button("Cut a connection", () => this.toggle("cut", this.cellName));
  reset = button("Undo all changes", () => this.show(unchanged(this.state)));
  timeline = element("div", "timeline");
  play = button("Play the training", () => this.playTraining());
  stepSays = element("output");

  constructor(root, live, { colours, lesson, state: first = {} }) {
    this.root = root;
    this.live = live;
    this.colours = colours;
    this.hasLesson = Boolean(lesson);
    const { model } = live;
    this.usual = { ...START, input: model.defaultInput, ...sharpest(model, this.originalOf({ ...START, input: model.defaultInput })), ...first };
    const { state, lesson: step } = stateOf(location.hash, this.usual);
    this.state = state;
    this.build();
    this.lesson = lesson?.(this.aside, this, step);
    addEventListener("hashchange", () => {
      if (location.hash.slice(1) !== this.address) this.show(stateOf(location.hash, this.usual).state, { isOther: true });
    }, this.life);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw(), this.life);
    this.show({}, { isOther: true });
  }

  // ---- elements

  build() {
    const { model } = this.live, root = this.root;
    root.className = "live";
    root.append(this.aside, this.main);

    const title = element("header", "title");
    title.append(element(this.hasLesson ? "h2" : "h1", "", this.hasLesson ? model.name : document.title), element("p", "", model.instruction));
    if (model.isImage) this.buildPad();
    else this.buildField();
    this.problem.setAttribute("role", "alert");
    this.buildControls();

    this.tabs.setAttribute("role", "tablist");
    const titles = Object.entries(TABS).filter(([name]) => name !== "decode" || model.config.architecture !== "encoder");
    const panels = element("div", "panels");
    for (const [name, title] of titles) {
      const tab = element("button", "", title), panel = element("div", `panel ${name}`);
      Object.assign(tab, { type: "button", id: `tab-${name}`, onclick: () => this.show({ tab: name }) });
      tab.setAttribute("role", "tab");
      tab.setAttribute("aria-controls", `panel-${name}`);
      panel.id = `panel-${name}`;
      panel.setAttribute("role", "tabpanel");
      panel.setAttribute("aria-labelledby", tab.id);
      this.tabs.append(tab);
      this.panels[name] = { tab, panel };
      panels.append(panel);
    }
    this.tabs.addEventListener("keydown", (event) => {
      const names = titles.map(([name]) => name), by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!by) return;
      const next = names[(names.indexOf(this.state.tab) + by + names.length) % names.length];
      this.show({ tab: next });
      this.panels[next].tab.focus();
    });
    const exact = model.precision === "float16" ? `rounded to float16 (no logit or weight moves by more than ${model.difference.toExponential(0)} on the first input)` : model.precision;
    this.foot.textContent = `The model runs in this page, with its weights as ${exact}. Nothing is sent anywhere.`;
    this.main.append(title, this.asks, this.problem, this.strip, this.answers, this.controls, this.maskEditor, this.tabs, panels, this.foot);
  }

  buildField() {
    const label = element("label", "field"), { field } = this;
    label.append(element("span", "", "Input"), field);
    Object.assign(field, { autocomplete: "off", spellcheck: false });
    field.addEventListener("input", () => this.show({ input: field.value, replace: {}, query: null, key: null }));
    this.asks.append(label);
  }

  buildPad() {
    const pad = (this.pad = new Pad(this.asks));
    pad.send = (pixels) => this.show({ input: `drawn ${pixels.replace(/0+$/, "")}`.trim() });
    const at = () => Number(/^test (\d+)$/.exec(this.state.input)?.[1] ?? -1);
    const other = button("Another digit", () => this.show({ input: `test ${(at() + 1) % this.live.model.nImages}` }));
    other.hidden = !this.live.model.nImages;
    this.asks.append(other);
  }

  buildControls() {
    const { model } = this.live;
    const mask = element("label", "choice", "Mask "), select = this.mask;
    for (const [value, text] of Object.entries(MASKS)) select.append(new Option(text, value));
    select.onchange = () => this.show({ mask: select.value, drawn: select.value === "drawn" ? this.state.drawn : [] });
    mask.append(select);
    const positions = element("label", "choice"), box = this.positions;
    box.type = "checkbox";
    box.onchange = () => this.show({ positions: box.checked });
    positions.append(box, " positions");
    this.controls.append(mask, positions, this.ablate, this.cut, this.reset);
    positions.hidden = !model.canDropPositions;
    if (!model.steps.length) return;
    const { range } = this;
    Object.assign(range, { type: "range", min: 0, max: model.steps.length - 1, step: 1 });
    range.setAttribute("aria-label", "Step of the training");
    range.oninput = () => this.stepTo(Number(range.value));
    this.timeline.append(this.play, range, this.stepSays);
    this.controls.append(this.timeline);
  }

  // Return the controls of these kinds of changes, for the task of a lesson; all others go back to their places.
  lend(kinds) {
    const controls = { ablate: this.ablate, cut: this.cut, step: this.timeline };
    this.controls.append(this.ablate, this.cut, this.reset, ...(this.live.model.steps.length ? [this.timeline] : []));
    this.root.dataset.task = kinds.join(" ");
    return kinds.flatMap((kind) => controls[kind] ?? []);
  }

  // ---- the state

  get site() { return this.live.model.sites[this.state.layer]; }
  get headName() { return `${this.site.path}.${this.state.head}`; }
  get cellName() { return this.state.query === null || this.state.key === null ? null : `${this.headName}.${this.state.query}.${this.state.key}`; }

  toggle(list, name) {
    if (!name) return;
    const rest = this.state[list].filter((one) => one !== name);
    this.show({ [list]: rest.length < this.state[list].length ? rest : [...rest, name] });
  }

  stepTo(at) { const { steps } = this.live.model; this.show({ step: at === steps.length - 1 ? null : steps[at] }); }

  playTraining() {
    if (this.playing) return this.stopTraining();
    const last = this.live.model.steps.length - 1;
    let at = Number(this.range.value) === last ? 0 : Number(this.range.value);
    this.playing = setInterval(() => {
      this.stepTo(at);
      if (at++ === last) this.stopTraining();
    }, 180);
  }

  stopTraining() {
    clearInterval(this.playing ?? undefined);
    this.playing = null;
    this.drawControls();
  }

  destroy() { // before another model replaces this one
    clearInterval(this.playing ?? undefined);
    this.life.abort();
    this.view?.destroy();
    this.root.replaceChildren();
  }

  onChange(call) { this.changes.push(call); }
  onCell(call) { this.cells.push(call); }
  hide(isHidden) { // hides the result before a reveal
    this.isHidden = isHidden;
    for (const { panel } of Object.values(this.panels)) panel.replaceChildren();
    this.view?.destroy();
    this.view = this.scene = this.matrices = this.activations = this.layers = this.decoding = null;
    this.draw();
  }

  // Change the state, run the model, and draw. `isOther`: not a user action in the view, so the view moves to the selected head.
  show(part, { isOther = false } = {}) {
    const started = performance.now(), next = { ...this.state, ...part };
    if (!(next.tab in this.panels)) next.tab = START.tab;
    const { sites } = this.live.model;
    next.layer = Math.min(next.layer, sites.length - 1);
    next.head = Math.min(next.head, sites[next.layer].heads - 1);
    this.state = next;
    if (isOther) this.order += 1;
    try {
      this.run();
      this.problem.textContent = "";
    } catch (error) {
      this.problem.textContent = error.message; // keep the last result
      this.drawControls();
      this.write();
      return;
    }
    this.draw();
    this.write();
    for (const call of this.changes) call(this.state, this.result);
    this.root.dataset.ms = (performance.now() - started).toFixed(1);
  }

  write() {
    this.address = fragmentOf(this.state, this.usual, this.lesson?.step ?? null);
    history.replaceState(null, "", `#${this.address}`);
  }

  originalOf(state) { // the run without changes of the model, cached per input and step
    const request = requestOf(bare(state), this.live.model), key = JSON.stringify(request);
    if (key !== this.originalKey) [this.original, this.originalKey] = [this.live.trace(request), key];
    return this.original;
  }

  run() {
    const { live, state } = this, original = this.originalOf(state), isOther = isChanged({ ...state, replace: {} });
    this.request = requestOf(state, live.model, () => original);
    this.result = isOther ? live.trace(this.request) : original;
    this.runs = isOther ? [original, this.result] : [original];
    for (const name of ["query", "key"]) { // a cell outside this input
      const [, , queries, keys] = this.result.trace.get(`${this.site.path}.pattern`).shape;
      if (state[name] !== null && state[name] >= (name === "query" ? queries : keys)) state[name] = null;
    }
  }

  labels(site, side) { return this.tokens(side === "key" && site.kind === "cross_attn" ? "encoder" : site.stack); }
  tokens(stack) { return this.result.labelsOf(stack).map(visible); }

  // ---- drawing

  draw() {
    if (!this.result) return;
    this.drawInput();
    this.drawAnswers();
    this.drawControls();
    this.drawMask();
    for (const [name, { tab, panel }] of Object.entries(this.panels)) {
      const isShown = name === this.state.tab;
      tab.setAttribute("aria-selected", String(isShown));
      tab.tabIndex = isShown ? 0 : -1;
      panel.hidden = !isShown;
    }
    const { panel } = this.panels[this.state.tab];
    this[`draw_${this.state.tab}`](panel);
  }

  drawInput() {
    if (this.pad) this.pad.update({ pixels: this.result.tokens });
    else if (document.activeElement !== this.field) this.field.value = this.state.input;
    this.strip.hidden = this.live.model.isImage;
    if (this.strip.hidden) return;
    const words = this.result.labels;
    const chips = words.map((word, at) => {
      const chip = element("input", at in this.state.replace ? "chip other" : "chip");
      chip.value = visible(word);
      chip.size = Math.max(2, chip.value.length);
      chip.setAttribute("aria-label", `Token ${at}: ${visible(word)}. Type another one.`);
      chip.onchange = () => {
        const replace = { ...this.state.replace }, text = chip.value.replace("·", " ");
        if (text === "" || text === this.result.typed?.[at]) delete replace[at];
        else replace[at] = text;
        this.show({ replace });
      };
      return chip;
    });
    this.strip.replaceChildren(...row("Tokens", chips));
  }

  drawAnswers() { // the predictions, as trained and with the changes
    const lines = this.runs.map((run, at) => {
      const line = element("div", "answer"), chips = [], judged = run.right && run.predicted.filter((token, i) => token === run.right[i]).length;
      const shown = run.predicted.slice(-24);
      shown.forEach((token, i) => {
        const place = run.predicted.length - shown.length + i, isRight = run.right ? token === run.right[place] : null;
        const isOther = at > 0 && token !== this.original.predicted[place];
        const chip = element("span", `predicted${isRight === null ? "" : isRight ? " right" : " wrong"}${isOther ? " other" : ""}`, visible(this.live.model.labels[token]));
        chip.title = `${(100 * run.probability(place)).toFixed(1)}%${isRight === false ? `; right: ${visible(this.live.model.labels[run.right[place]])}` : ""}`;
        chips.push(chip);
      });
      if (run.right && run.right.length > 1) chips.push(element("span", "score", `${judged} of ${run.right.length} right`));
      else if (run.predicted.length === 1) chips.push(element("span", "score", `${(100 * run.probability(0)).toFixed(1)}%`));
      line.append(...row(this.runs.length === 1 ? "Prediction" : at ? "Changed" : "As trained", chips));
      return line;
    });
    this.answers.replaceChildren(...lines);
    if (this.isHidden) this.answers.replaceChildren(element("div", "answer", "The result is hidden until you have answered."));
  }

  drawControls() {
    const { state } = this, { model } = this.live;
    this.mask.value = state.mask;
    this.positions.checked = state.positions;
    this.ablate.setAttribute("aria-pressed", String(state.ablate.includes(this.headName)));
    this.ablate.textContent = `${state.ablate.includes(this.headName) ? "Restore" : "Ablate"} ${this.site.title}, head ${state.head + 1}`;
    const isCut = this.cellName && state.cut.includes(this.cellName);
    this.cut.disabled = !this.cellName;
    this.cut.textContent = this.cellName ? `${isCut ? "Restore" : "Cut"} query ${state.query} → key ${state.key}` : "Click a cell to cut it";
    this.cut.setAttribute("aria-pressed", String(Boolean(isCut)));
    const n = state.ablate.length + state.cut.length + Object.keys(state.replace).length + Number(state.mask !== "trained") + Number(!state.positions);
    this.reset.disabled = !n;
    this.reset.textContent = n > 1 ? `Undo ${n} changes` : "Undo";
    if (!model.steps.length) return;
    const at = state.step === null ? model.steps.length - 1 : model.steps.indexOf(state.step);
    this.range.value = String(at);
    this.range.setAttribute("aria-valuetext", `step ${model.steps[at]}`);
    this.stepSays.textContent = `step ${model.steps[at]?.toLocaleString("en")} of ${model.steps.at(-1).toLocaleString("en")}`;
    this.play.textContent = this.playing ? "Pause" : "Play the training";
  }

  drawMask() { // a table of cells that can be shown or hidden
    const allowed = this.request.mask, n = allowed.length;
    this.maskEditor.hidden = !Array.isArray(allowed);
    if (this.maskEditor.hidden) return;
    if (n > MOST_CELLS) {
      this.maskEditor.replaceChildren(element("p", "", `A mask can be drawn cell by cell for up to ${MOST_CELLS} tokens; this input has ${n}.`));
      return;
    }
    const site = this.live.model.sites.findLast(({ kind }) => kind !== "cross_attn"), words = this.labels(site, "key");
    const table = cellTable(words, words, (q, k) => {
      const isAllowed = allowed[q][k], cell = button("", () => this.toggle("drawn", `${q}.${k}`), isAllowed ? "open" : "shut");
      cell.setAttribute("aria-pressed", String(!isAllowed));
      cell.setAttribute("aria-label", `Query ${q} · ${words[q]}, key ${k} · ${words[k]}: ${isAllowed ? "shown" : "hidden"}`);
      return cell;
    });
    this.maskEditor.replaceChildren(element("p", "note", "Rows are queries, columns are keys. Click a cell to hide it or show it."), table);
  }

  draw_attention(panel) {
    if (this.isHidden) return this.drawBlank(panel);
    if (!this.view) {
      const view = (this.view = new FittedView(panel));
      view.send = (choice) => {
        const { layer, head, query, key } = choice;
        const cell = { layer, head, query, key: key ?? null };
        view.updateHead(this.exact(layer, head));
        if (query !== null && cell.key !== null) for (const call of this.cells) call(cell);
        this.state = { ...this.state, ...cell };
        this.drawControls();
        this.write();
        for (const call of this.changes) call(this.state, this.result);
      };
    }
    const { layer, head, query, key } = this.state;
    const labels = (site, side) => this.labels(site, side), height = this.hasLesson && innerWidth <= 900 ? TASK_HEIGHT : 0;
    const { packed, exact } = attentionBytes(this.runs, this.live.model, labels, this.colours, { layer, head, query, key, order: this.order, height });
    this.exact = exact;
    this.view.updateHead(exact(layer, head)); // before the planes, so that the head is drawn once
    this.view.update(packed);
  }

  drawBlank(panel) { // an empty map whose cells can be clicked as a guess
    const { site } = this, [queries, keys] = [this.labels(site, "query"), this.labels(site, "key")];
    const table = cellTable(queries, keys, (query, key) => {
      const cell = button("", () => {
        for (const one of table.querySelectorAll("[aria-pressed=true]")) one.setAttribute("aria-pressed", "false");
        cell.setAttribute("aria-pressed", "true");
        for (const call of this.cells) call({ layer: this.state.layer, head: this.state.head, query, key });
      });
      cell.setAttribute("aria-pressed", "false");
      cell.setAttribute("aria-label", `Query ${query} · ${queries[query]}, key ${key} · ${keys[key]}`);
      return cell;
    });
    table.className = "blank";
    panel.replaceChildren(element("p", "note", `${site.title}, head ${this.state.head + 1}: rows are queries, columns are keys.`), table);
  }

  draw_scene(panel) {
    if (this.isHidden) return panel.replaceChildren();
    if (!this.scene) {
      this.scene = new Scene(panel);
      this.scene.send = ({ open, edit }) => {
        if (edit) return this.replaceToken(edit);
        const tab = { attention: "attention", residual: "lens", feed_forward: "feed_forward" }[open.screen];
        if (!tab) return;
        const [layer, head] = (open.head ?? "").split(".").map((n) => Number(n) - 1);
        this.show({ tab, ...(open.head ? { layer, head, query: null, key: null } : {}) }, { isOther: true });
      };
    }
    const { model } = this.live, run = this.result;
    const edit = model.isImage ? null : { texts: [...this.words(), ""], first: 0 };
    const isEach = run.trace.get("logits").shape[1] === this.tokens(model.sites.at(-1).stack).length && !model.isImage;
    const answers = run.outputs.map((row, at) => ({ row: isEach ? row : null, said: likeliest(run.probabilities(at)).map(([token, p]) => [visible(model.labels[token]), p]),
      answer: run.right ? visible(model.labels[run.right[at]]) : null, isRight: run.right ? run.predicted[at] === run.right[at] : null }));
    this.scene.update(sceneBytes(run, model, (stack) => this.tokens(stack), answers, this.colours, edit));
  }

  words() { // the input as words or characters
    const { live, state } = this, { source } = live.parse(state.input), text = live.textOf(source), words = live.model.continues ? Array.from(text) : text.split(" ");
    return words.length === source.length ? words : [];
  }

  replaceToken({ at, text }) { // replace a word of the input; an empty text removes it
    const words = this.words();
    words.splice(at, 1, ...(text ? [text] : []));
    this.show({ input: words.join(this.live.model.continues ? "" : " "), replace: {}, query: null, key: null });
  }

  draw_arithmetic(panel) {
    if (this.isHidden) return panel.replaceChildren();
    const { site, state } = this, labels = (side) => this.labels(site, side);
    const keys = labels("key").length, query = state.query ?? labels("query").length - 1, pattern = this.result.trace.get(`${site.path}.pattern`).data;
    const from = (state.head * labels("query").length + query) * keys, weights = pattern.subarray(from, from + keys);
    const key = state.key ?? weights.indexOf(Math.max(...weights));
    const data = rowData(this.result, site, state.head, query, Math.max(0, key), labels, this.colours);
    if (!this.matrices) {
      this.picker = panel.appendChild(element("div", "picker"));
      this.matrices = new Matrices(panel);
    }
    this.drawPicker(labels, query, Math.max(0, key));
    this.matrices.root.hidden = !data;
    if (data) this.matrices.update(data);
    else this.picker.append(element("p", "", `A row of ${keys} keys is too long to be shown; use a shorter input.`));
  }

  drawPicker(labels, query, key) { // menus for the head and the cell
    const { sites } = this.live.model, { layer, head } = this.state;
    const heads = Array.from({ length: sites[layer].heads }, (_, at) => `head ${at + 1}`);
    const numbered = (side) => labels(side).map((word, at) => `${at} · ${word}`), show = (part) => this.show(part, { isOther: true });
    this.picker.replaceChildren(
      menu("Layer", sites.map(({ title }) => title), (at) => show({ layer: at, query: null, key: null }), layer),
      menu("Head", heads, (at) => show({ head: at, query, key: null }), head),
      menu("Query", numbered("query"), (at) => show({ query: at, key: null }), query),
      menu("Key", numbered("key"), (at) => show({ query, key: at }), key),
    );
  }

  draw_feed_forward(panel) { this.drawPanel("activations", Activations, panel); }
  draw_lens(panel) { this.drawPanel("layers", Layers, panel); }
  draw_decode(panel) { this.drawPanel("decoding", Decoding, panel); }

  drawPanel(name, Panel, panel) {
    if (this.isHidden) return panel.replaceChildren();
    this[name] ??= new Panel(panel, this);
    this[name].update();
  }
}

function cellTable(queries, keys, cellOf) { // a table of queries by keys; `cellOf(query, key)` returns the content of a cell
  const table = element("table"), body = table.createTBody();
  table.createTHead().insertRow().append(element("td"), ...keys.map((word) => element("th", "", word)));
  queries.forEach((word, query) => {
    const line = body.insertRow();
    line.append(element("th", "", word));
    keys.forEach((_, key) => line.insertCell().append(cellOf(query, key)));
  });
  return table;
}

function row(name, parts) {
  const box = element("div", "parts");
  box.append(...parts);
  return [element("span", "whose", name), box];
}

// The head that is selected first: the one with the largest mean of each query's largest weight, without the first key.
function sharpest({ sites }, { trace }) {
  let best = { layer: 0, head: 0, share: -1 };
  sites.forEach(({ path }, layer) => {
    const { shape: [, heads, queries, keys], data } = trace.get(`${path}.pattern`);
    for (let head = 0; head < heads; head++) {
      let sum = 0;
      for (let query = 0; query < queries; query++) {
        const from = (head * queries + query) * keys, row = data.subarray(from + 1, from + keys);
        sum += row.reduce((most, weight) => Math.max(most, weight), 0);
      }
      if (sum / queries > best.share + 1e-3) best = { layer, head, share: sum / queries };
    }
  });
  return { layer: best.layer, head: best.head };
}
