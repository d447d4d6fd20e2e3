// The student's page: the model that the lecturer shows, questions, and the exercises of a lesson.
//
//   new StudentPage(element, "KWXPTA", colours)

import { AttentionView } from "../attention_view/view.js";
import { button, element } from "../shared.js";
import { whole } from "../live/exercises.js";
import { Lesson } from "../live/lesson.js";
import { makeLive } from "../live/run.js";
import { visible } from "../live/pictures.js";
import { LivePage } from "../live/view.js";
import { Connection, httpBase } from "./connection.js";
import { answers, result, wordOf } from "./questions.js";

const MODELS = 3; // number of models kept in memory
const OFFER_MS = 1000; // interval between states sent to the lecturer

export class StudentPage {
  isFollowing = true;
  isApplying = 0; // above 0, a change of the page is not the student's
  mayShow = false;
  models = new Map();
  votes = new Map();
  tries = new Map();
  /** @type {any} */ message;
  /** @type {any} */ pending = null; // the answer that the server has not confirmed
  /** @type {LivePage | null} */ page = null;
  /** @type {AttentionView | null} */ view = null;
  /** @type {string | null} */ opened = null;
  nickname = element("input");
  dot = element("span", "dot");
  status = element("span", "status", "Connecting …");
  follow = button("Explore on my own", () => this.setFollowing(!this.isFollowing), "follow");
  card = element("section", "ui card");
  note = element("p", "note");
  stage = element("div", "stage");

  constructor(root, code, colours) {
    this.root = root;
    this.code = code;
    this.colours = colours;
    this.base = `${httpBase()}/room/${code}`;
    this.build();
    this.connection = new Connection(this.base, (message) => this.take(message), (text, isOpen) => this.say(text, isOpen));
  }

  build() {
    this.root.className = "room";
    const bar = element("header", "ui top");
    this.status.setAttribute("role", "status");
    const me = element("details", "me"), box = element("div", "sheet");
    me.append(element("summary", "", "Me"), box);
    const name = this.nickname;
    Object.assign(name, { maxLength: 24, placeholder: "A nickname", autocomplete: "off", value: sessionStorage.getItem("nickname") ?? "" });
    name.setAttribute("aria-label", "Nickname");
    name.onchange = () => { sessionStorage.setItem("nickname", name.value); this.connection.send({ type: "nickname", name: name.value }); };
    const consent = element("label", "consent"), check = element("input");
    check.type = "checkbox";
    check.onchange = () => { this.mayShow = check.checked; this.offer(); };
    consent.append(check, " The lecturer may show what I do");
    const forget = button("Delete my data", () => this.connection.send({ type: "forget" }));
    box.append(name, element("p", "hint", "Only the lecturer sees it. No account, no other data; everything is deleted after a day."), consent, forget);
    bar.append(this.dot, element("strong", "code", `${this.code.slice(0, 3)} ${this.code.slice(3)}`), this.status, this.follow, me);
    this.card.setAttribute("aria-live", "polite");
    this.root.append(bar, this.card, this.note, this.stage);
  }

  say(text, isOpen) {
    this.dot.classList.toggle("on", isOpen);
    this.problem = text;
    if (isOpen) {
      if (this.nickname.value) this.connection.send({ type: "nickname", name: this.nickname.value });
      if (this.pending) this.connection.send(this.pending);
      this.offer();
    }
    this.drawBar();
    if (isOpen || !this.connection?.isOver) return;
    this.stage.replaceChildren();
    this.card.replaceChildren(element("p", "big", text));
  }

  drawBar() {
    const isAsked = this.message?.question && !this.message.question.truth;
    this.status.textContent = this.problem || (this.message?.lesson ? "Lesson" : this.isFollowing ? "You are following the lecture." : "You are exploring on your own.");
    this.follow.textContent = this.isFollowing ? "Explore on my own" : "Back to the lecture";
    this.follow.hidden = Boolean(isAsked || this.message?.lesson || !this.page);
    this.follow.classList.toggle("back", !this.isFollowing);
  }

  // ── messages ──

  take(message) {
    if (message.type === "room") { this.message = message; this.update(); }
    if (message.type === "voted") {
      const key = `${message.question}.${message.round}`;
      if (this.pending && `${this.pending.question}.${this.pending.round}` === key && message.answer === this.pending.answer) this.pending = null;
      if (!this.pending) this.votes.set(key, message.answer);
      this.drawCard();
    }
    if (message.type === "problem") { this.pending = null; this.drawCard(message.text); }
    if (message.type === "forgotten") {
      sessionStorage.clear();
      this.connection.close();
      this.stage.replaceChildren();
      this.say("Your data has been deleted. Reload the page to join again.", false);
    }
  }

  async update() { // one at a time; of messages received meanwhile, only the newest
    if (this.isUpdating) return;
    this.isUpdating = true;
    for (let done; done !== this.message;) {
      done = this.message;
      try {
        await this.show(done);
        this.failed = "";
      } catch (error) {
        this.note.textContent = error.message;
      }
    }
    this.isUpdating = false;
  }

  async show({ shown, lesson, question }) {
    this.drawCard();
    this.drawBar();
    const isAsked = question && !question.truth;
    this.stage.hidden = Boolean(isAsked);
    if (isAsked) return void (this.note.textContent = "");
    if (lesson && !question) return this.showLesson(lesson);
    const wanted = question?.shown?.model ? question.shown : shown; // a question about a picture brings its own screen
    this.note.textContent = wanted.note ?? (wanted.model || wanted.picture ? "" : "The lecturer has not shown a model yet.");
    if (wanted.model) {
      await this.open(wanted.model, async () => this.live(wanted.model));
      if (question && this.revealed !== question.id) { this.revealed = question.id; this.isFollowing = true; }
      if (this.isFollowing) this.apply(wanted.state);
    } else if (wanted.picture) await this.showPicture(wanted);
    else if (!wanted.note) this.clear();
    this.drawBar();
  }

  async live(name) {
    if (!this.models.has(name)) {
      this.note.textContent = "Loading the model …";
      const answer = await fetch(`${this.base}/model?name=${encodeURIComponent(name)}`);
      if (!answer.ok) throw new Error(await answer.text());
      this.models.set(name, await makeLive(new Uint8Array(await answer.arrayBuffer())));
      if (this.models.size > MODELS) this.models.delete(this.models.keys().next().value);
      this.note.textContent = "";
    }
    return this.models.get(name);
  }

  clear() {
    this.page?.destroy();
    this.view?.destroy();
    this.page = this.view = this.opened = null;
    this.stage.replaceChildren();
  }

  async open(name, load, lesson = null) { // replace the content of the stage by a model's page
    if (this.opened === name && this.page) return;
    const live = await load();
    this.clear();
    const place = this.stage.appendChild(element("div"));
    this.isApplying += 1;
    document.title = live.model.name;
    this.page = new LivePage(place, live, { colours: this.colours, lesson: lesson && ((parent, page, step) => new Lesson(parent, lesson, page, step)) });
    this.isApplying -= 1;
    this.opened = name;
    this.page.onChange(() => {
      if (!this.isApplying && !this.message?.lesson) this.setFollowing(false);
      this.offer();
    });
    this.page.foot.textContent = "The model runs in this page. The lecturer sees the votes of the class and your progress on exercises; everything else stays here unless you allow it to be shown.";
  }

  apply(state) {
    if (!this.page) return;
    this.isApplying += 1;
    this.page.show(whole(state, state.input ?? this.page.live.model.defaultInput), { isOther: true });
    this.isApplying -= 1;
  }

  setFollowing(isFollowing) {
    if (isFollowing === this.isFollowing) return;
    this.isFollowing = isFollowing;
    this.drawBar();
    if (isFollowing) this.update();
  }

  async showPicture(wanted) {
    if (this.opened === `picture ${wanted.picture}`) return;
    const answer = await fetch(`${this.base}/picture?n=${wanted.picture}`);
    if (!answer.ok) return; // a newer one is on its way
    const bytes = new Uint8Array(await answer.arrayBuffer()), length = new DataView(bytes.buffer).getUint32(0, true);
    this.clear();
    const lanes = element("div", "lanes");
    for (const [name, tokens] of wanted.lanes) {
      const line = element("p", "lane");
      line.append(element("span", "whose", name), ...tokens.map((token) => element("span", "token", visible(token))));
      lanes.append(line);
    }
    const place = element("div", "pattern");
    this.stage.append(element("h1", "", wanted.title), lanes, place);
    this.view = new AttentionView(place);
    this.view.send = () => {};
    this.view.update(bytes.slice(4, 4 + length));
    this.view.updateHead(bytes.slice(4 + length));
    this.opened = `picture ${wanted.picture}`;
  }

  // ── lessons ──

  async showLesson({ name, step }) {
    const opened = `lesson ${name}`;
    if (this.opened !== opened) {
      const answer = await fetch(`${this.base}/lesson`);
      if (!answer.ok) throw new Error(await answer.text());
      const lesson = await answer.json();
      await this.open(opened, () => this.live(`lesson:${name}`), lesson);
      if (this.page) this.page.lesson.onCheck = (at, isSolved) => this.report(name, at, isSolved);
      this.lessonStep = null;
    }
    if (this.lessonStep !== step) this.page?.lesson.go(step);
    this.lessonStep = step;
    this.drawBar();
  }

  report(lesson, step, solved) {
    const key = `${lesson}.${step}`, before = this.tries.get(key) ?? { tries: 0, solved: false, sent: 0 };
    const now = { tries: before.tries + 1, solved: before.solved || solved, sent: before.sent };
    const isNews = !before.tries || now.solved !== before.solved || Date.now() - before.sent > 5000;
    if (isNews && this.connection.send({ type: "work", lesson, step, tries: now.tries, solved: now.solved })) now.sent = Date.now();
    else if (now.solved && !before.solved) now.solved = false; // not sent; retried with the next check
    this.tries.set(key, now);
  }

  offer() { // send the state of this page, if the student allows it
    clearTimeout(this.offering);
    const state = this.mayShow && this.page ? { ...this.page.state, model: this.page.live.model.name } : null;
    if (state === null && !this.hasOffered) return;
    this.offering = setTimeout(() => { this.hasOffered = state !== null; this.connection.send({ type: "state", state }); }, state ? OFFER_MS : 0);
  }

  // ── questions ──

  vote(answer) {
    const { id, round } = this.message.question;
    this.pending = { type: "vote", question: id, round, answer };
    this.votes.set(`${id}.${round}`, answer);
    this.connection.send(this.pending);
    this.drawCard();
  }

  drawCard(problem = "") {
    const question = this.message?.question;
    this.card.hidden = !question;
    if (!question) return;
    const { id, round, truth, votes } = question, mine = this.votes.get(`${id}.${round}`), focused = /** @type {HTMLElement | null} */ (this.card.querySelector(":focus"))?.dataset.answer;
    const kicker = truth ? "Result" : round > 1 ? "Once more, after your discussion" : "Question";
    const card = /** @type {HTMLElement[]} */ ([element("p", "kicker", kicker), element("h2", "", question.text)]);
    if (question.about) card.push(element("p", "about", question.about));
    if (!truth) {
      const waiting = this.pending ? "Sending …" : mine === undefined ? (question.kind === "cell" ? "Tap a cell." : "Choose an answer.") : "Your answer is in. You can change it until the result is revealed.";
      card.push(answers(question, { choose: (answer) => this.vote(answer), mine }), element("p", "says", problem || waiting));
    } else {
      const isKnown = truth.length > 0;
      if (isKnown && mine !== undefined) {
        const isRight = truth.includes(mine);
        card.push(element("p", `verdict ${isRight ? "right" : "wrong"}`, isRight ? "Your answer is right." : `Your answer was ${wordOf(question, mine)}.`));
      }
      card.push(answers(question, { mine, truth, votes: votes[round] ?? {} }));
      if (isKnown) card.push(element("p", "says", result(question)));
      if (question.shown?.model) card.push(element("p", "hint", "Below, the model runs in your page."));
    }
    this.card.replaceChildren(...card);
    if (focused) /** @type {HTMLElement | null} */ (this.card.querySelector(`[data-answer="${focused}"]`))?.focus();
  }
}
