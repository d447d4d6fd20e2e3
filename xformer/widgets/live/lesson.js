// The lesson panel: steps, predictions whose outcome is revealed after an answer, and exercises checked by running the model.
//
//   new Lesson(parent, lesson, page, step)   `page` has live, state, show, onChange, onCell, hide and lend
//
// A learner alone (`isAlone`) has an end card after the last step, and progress that the browser stores; in a classroom, the
// lecturer moves the steps.

import { button, element } from "../shared.js";
import { START } from "./state.js";
import { judged, outcome, ran, verdict, whole } from "./exercises.js";
import { isBegun, linksOf, notBegun, readProgress, shapeOf, writeProgress } from "./progress.js";

const VIEW = ["layer", "head", "query", "key", "tab"]; // parts of a state that do not change the result

export class Lesson {
  about = element("p", "lesson-about");
  bar = element("div", "lesson-bar");
  body = element("section", "lesson-body");
  says = element("div", "lesson-says");
  back = button("← Back", () => this.go(this.step - 1), "lesson-back");
  progress = element("span", "lesson-progress");
  next = button("Next →", () => this.go(this.step + 1), "lesson-next");
  again = button("Start again", () => this.startAgain(), "lesson-restart");
  /** @type {HTMLElement} */ verdictLine; // of the exercise of this step
  /** @type {((step: number, solved: boolean) => void) | null} */ onCheck = null; // in a classroom, reported to the lecturer
  /** @type {((step: number) => void) | null} */ onStep = null; // in the lecturer's frame, the step of all students

  constructor(parent, lesson, page, step = null, isAlone = false) {
    this.parent = parent;
    this.lesson = lesson;
    this.page = page;
    this.isAlone = isAlone;
    const { live } = page;
    this.shape = shapeOf(lesson, ({ ask, choices }) => (ask === "choice" ? choices.length : ask === "token" ? live.model.labels.length : live.model.config.max_len));
    this.links = isAlone ? linksOf(location, lesson) : {};
    this.begun = isAlone ? readProgress(lesson.name, this.shape) : notBegun();
    this.last = isAlone ? lesson.steps.length : lesson.steps.length - 1; // the end card follows the last step
    this.begun.step = Math.min(step ?? this.begun.step, this.last);
    this.titles = live.model.sites.map((site) => site.title);
    this.build();
    page.onChange((state) => this.changed(state));
    page.onCell((cell) => this.guessedCell(cell));
    const isShared = step !== null && new URLSearchParams(location.hash.slice(1)).size > 1; // a link with its own state
    this.draw({ keepsState: isShared });
  }

  // ── elements ──

  build() {
    const { lesson, parent } = this;
    this.about.textContent = `${lesson.summary} About ${lesson.minutes} minutes.`;
    parent.setAttribute("aria-label", `Lesson: ${lesson.title}`);
    this.bar.setAttribute("aria-hidden", "true");
    this.body.tabIndex = -1;
    this.says.setAttribute("aria-live", "polite");
    const steps = element("nav", "lesson-steps");
    steps.setAttribute("aria-label", "Steps of the lesson");
    steps.append(this.back, this.progress, this.next);
    const top = element("div", "lesson-top");
    if (this.links.learn) top.append(link("← Learn", this.links.learn, "lesson-learn"));
    top.append(element("h1", "lesson-title", lesson.title), this.again);
    parent.replaceChildren(top, this.about, this.bar, this.body, this.says, steps);
    addEventListener("keydown", (event) => {
      const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key], at = document.activeElement;
      const isElsewhere = at && at !== document.body && !parent.contains(at);
      if (!by || isElsewhere || event.defaultPrevented || event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
      if (at?.matches("select, input, textarea")) return;
      event.preventDefault();
      this.go(this.step + by);
    }, this.page.life);
  }

  // ── steps ──

  get step() { return this.begun.step; }
  get answers() { return this.begun.answers; }
  get solved() { return this.begun.solved; }
  get current() { return this.lesson.steps[this.step]; }
  part(kind) { return this.current?.parts.find((one) => one.kind === kind); }

  go(step) {
    if (step < 0 || step > this.last) return;
    this.begun.step = step;
    this.draw();
    this.onStep?.(step);
    this.body.focus({ preventScroll: true });
    this.parent.scrollTop = 0;
    if (this.isAlone) scrollTo({ top: 0 });
  }

  startAgain() {
    this.begun = notBegun();
    this.go(0);
  }

  save() {
    this.begun.done ||= this.step === this.shape.steps;
    this.again.hidden = !this.isAlone || !isBegun(this.begun);
    if (this.isAlone) writeProgress(this.lesson.name, this.shape, this.begun);
  }

  draw({ keepsState = false } = {}) {
    const { lesson, step } = this, total = lesson.steps.length;
    this.about.hidden = step > 0;
    this.progress.textContent = step === total ? "End" : `${step + 1} / ${total}`;
    this.back.disabled = step === 0;
    this.next.disabled = step === this.last;
    this.next.classList.toggle("gone", step === total);
    this.next.textContent = step === total - 1 && this.isAlone ? "Finish →" : "Next →";
    this.save();
    this.bar.replaceChildren(...lesson.steps.map((one, at) => {
      const isAsked = one.parts.some(({ kind }) => kind === "predict" || kind === "exercise");
      return element("span", [at === step ? "here" : "", this.isDone(at) ? "done" : "", isAsked ? "asked" : at < step ? "read" : ""].join(" ").trim());
    }));
    this.says.replaceChildren();
    this.page.lend([]);
    if (step === total) return this.drawEnd();
    this.body.replaceChildren(element("h2", "", this.current.title));
    this.body.setAttribute("aria-label", `Step ${step + 1} of ${total}: ${this.current.title}`);
    for (const part of this.current.parts) this[`draw_${part.kind}`](part);
    this.begin(keepsState);
  }

  isDone(at) {
    return this.solved.has(at) || this.answers.has(at);
  }

  begin(keepsState) { // set the page to the initial state of the step
    const shown = this.part("show")?.state, asked = this.part("predict"), exercise = this.part("exercise");
    const isOpen = asked && !this.answers.has(this.step);
    const begins = shown ?? exercise?.start ?? (asked && this.stateOf(asked)) ?? {};
    this.page.hide(Boolean(isOpen && !this.differs(shown, asked)));
    if (keepsState) return this.changed(this.page.state);
    this.show(asked && !isOpen ? this.stateOf(asked) : begins);
  }

  show(state) {
    const { layer, head } = this.page.state, { query, key } = START;
    this.page.show({ ...whole(state, this.lesson.input), layer, head, query, key, ...state }, { isOther: true });
  }

  stateOf(asked) { // the state that is shown with the outcome
    const { site, head, query, state } = asked;
    if (asked.ask !== "cell") return state;
    const view = { layer: this.layerOf(site), head, tab: "attention", ...state };
    if (!this.answers.has(this.step)) return view;
    return { ...view, query, key: outcome({ ...asked, input: this.lesson.input }, this.page.live).truth };
  }

  layerOf(site) { return Math.max(0, this.page.live.model.sites.findIndex((one) => one.path === site)); }

  differs(shown, asked) { // whether the state shown beforehand gives another result than the one in question
    if (!shown) return false;
    const bare = (state) => {
      const of = whole(state, this.lesson.input);
      for (const name of VIEW) delete of[name];
      return JSON.stringify(of);
    };
    const states = asked.best ? asked.choices.map((one) => one.state) : [asked.state];
    return states.every((state) => bare(state) !== bare(shown));
  }

  drawEnd() { // what was solved, and where it goes on
    const { lesson, shape, links, solved, answers } = this, open = shape.exercises.filter((at) => !solved.has(at));
    const right = [...answers].filter(([at, given]) => {
      const asked = lesson.steps[at].parts.find((one) => one.kind === "predict");
      return judged({ ...asked, input: lesson.input }, given, this.page.live).right;
    }).length;
    const lines = [countOf(solved.size, shape.exercises.length, "exercise", "solved"), countOf(right, Object.keys(shape.predictions).length, "prediction", "right")];
    const on = element("div", "lesson-on");
    if (links.next) on.append(link(`Next lesson: ${lesson.next.title} →`, links.next, "lesson-go"));
    if (links.app) on.append(link(`Go on in the app: ${lesson.app.title}, with the last step's model and input`, links.app));
    if (links.learn) on.append(link("Back to Learn", links.learn));
    const left = element("ul", "lesson-left");
    left.append(...open.map((at) => {
      const item = element("li");
      item.append(button(`Step ${at + 1}: ${lesson.steps[at].title}`, () => this.go(at)));
      return item;
    }));
    this.body.replaceChildren(element("h2", "", `You have reached the end of “${lesson.title}”`), ...lines.filter(Boolean).map((words) => element("p", "lesson-count", words)),
      ...(open.length ? [element("p", "", "Not solved yet:"), left] : []), on);
    this.body.setAttribute("aria-label", "End of the lesson");
    this.page.hide(false);
  }

  // ── parts ──

  draw_text({ html }) {
    const text = element("div", "lesson-text");
    text.innerHTML = html; // rendered from the author's Markdown with HTML disabled
    this.body.append(text);
  }

  draw_show() {} // done by `begin`

  draw_predict(asked) {
    const box = element("div", "lesson-ask"), given = this.answers.get(this.step);
    box.setAttribute("role", "group");
    box.setAttribute("aria-label", "Your prediction");
    box.append(element("p", "lesson-question", asked.question));
    const options = element("div", "lesson-options");
    box.append(options);
    if (asked.ask === "token") this.drawTokens(asked, options, given);
    else this.optionsOf(asked).forEach((words, at) => {
      const node = button(words, () => this.guess(at));
      node.disabled = given !== undefined;
      node.setAttribute("aria-pressed", String(given === at));
      options.append(node);
    });
    this.body.append(box);
    if (given !== undefined) this.reveal(asked, given, box);
  }

  optionsOf(asked) {
    if (asked.ask === "choice") return asked.choices.map((one) => one.text);
    const result = ran(whole(asked.state, asked.state.input ?? this.lesson.input), this.page.live);
    const site = asked.site, n = result.patterns[site][0][0].length, words = site.endsWith("self_attn") ? null : result.labels;
    return Array.from({ length: n }, (_, key) => (words ? `${key}: ${words[key]}` : `key ${key}`));
  }

  drawTokens(asked, options, given) {
    const choose = element("select"), { labels } = this.page.live.model;
    choose.setAttribute("aria-label", asked.question);
    choose.append(new Option("choose a token", ""));
    labels.forEach((label, id) => { if (!["pad", "start"].includes(label)) choose.append(new Option(label === " " ? "space" : label, String(id))); });
    choose.value = given ?? "";
    choose.disabled = given !== undefined;
    choose.onchange = () => { if (choose.value !== "") this.guess(Number(choose.value)); };
    options.append(choose);
  }

  guessedCell({ query, key, layer, head }) { // a click on the map before the reveal
    const asked = this.part("predict");
    if (asked?.ask !== "cell" || this.answers.has(this.step)) return;
    const isThere = query === asked.query && layer === this.layerOf(asked.site) && head === asked.head;
    if (isThere) this.guess(key);
    else this.says.replaceChildren(element("p", "", `The question is about query ${asked.query} of ${this.titles[this.layerOf(asked.site)]}, head ${asked.head + 1}.`));
  }

  guess(value) {
    this.answers.set(this.step, value);
    this.draw();
    this.body.querySelector(".lesson-outcome")?.scrollIntoView({ block: "nearest" });
  }

  reveal(asked, given, box) { // the guess and what the model does
    const full = { ...asked, input: this.lesson.input };
    const { right, sentence, truth, row } = judged(full, given, this.page.live);
    const result = element("div", `lesson-outcome ${right ? "right" : "wrong"}`);
    result.append(element("p", "lesson-sentence", sentence));
    const why = element("div", "lesson-text");
    why.innerHTML = asked.reveal; // trusted, as above
    result.append(why, button("Answer again", () => { this.answers.delete(this.step); this.draw(); }, "lesson-again"));
    const buttons = [...box.querySelectorAll(".lesson-options button")];
    buttons.forEach((node, at) => {
      node.classList.toggle("is-truth", at === truth);
      if (at === truth) node.setAttribute("aria-label", `${node.textContent}: what the model does`);
      if (row) node.style.setProperty("--weight", row[at].toFixed(3));
      if (row) node.append(element("span", "lesson-weight", row[at].toFixed(2)));
    });
    box.append(result);
    queueMicrotask(() => this.says.replaceChildren(element("p", "quiet", sentence)));
  }

  draw_exercise(exercise) {
    const box = element("div", "lesson-exercise");
    box.setAttribute("role", "group");
    box.setAttribute("aria-label", "Exercise");
    this.verdictLine = element("p", "lesson-verdict");
    this.verdictLine.setAttribute("aria-live", "polite");
    const hint = element("details", "lesson-hint");
    hint.append(element("summary", "", "Hint"), element("p", "", exercise.hint));
    const acts = element("div", "lesson-acts");
    acts.append(...this.page.lend(exercise.allow), button("Start over", () => this.show(exercise.start)), hint);
    box.append(element("p", "lesson-question", exercise.task), this.verdictLine, acts);
    this.body.append(box);
  }

  check(exercise, state) {
    const { solved, sentence } = verdict({ ...exercise, input: this.lesson.input }, state, this.page.live);
    this.verdictLine.textContent = `${solved ? "Solved. " : this.solved.has(this.step) ? "Solved before. " : "Not yet. "}${sentence}`;
    this.verdictLine.classList.toggle("solved", solved);
    this.onCheck?.(this.step, solved);
    if (!solved || this.solved.has(this.step)) return;
    this.solved.add(this.step);
    this.save();
    this.bar.children[this.step].classList.add("done");
  }

  changed(state) { // check after every change of the page
    const exercise = this.part("exercise");
    if (exercise) this.check(exercise, state);
  }
}

function link(words, href, className = "") {
  const node = element("a", className, words);
  node.href = href;
  return node;
}

const countOf = (n, of, what, done) => (of ? `${n} of ${of} ${what}${of === 1 ? "" : "s"} ${done}.` : "");
