// The lecturer's view of a room: the number of students, a running vote, or a lesson with the progress of the students.
//
//   data = { code, base, view }     view: "count", "question" or "work"
//   view.send({ step })             the lecturer has moved the lesson

import { button, element, theme } from "../shared.js";
import { Connection } from "./connection.js";
import { answers, result, total } from "./questions.js";

const minutes = (seconds) => (seconds < 90 ? `${Math.round(seconds)} s` : `${Math.round(seconds / 60)} min`);

export class HostView {
  isShowingVotes = false;
  students = new Map();
  /** @type {any} */ data;
  /** @type {any} */ message;
  /** @type {HTMLIFrameElement | null} */ frame = null; // the page of the lesson
  /** @type {number | null} */ pending = null; // the step that the server has not confirmed
  /** @type {(change: object) => void} */ send = () => {};
  top = element("div");
  body = element("div");

  constructor(parent) {
    this.root = parent.appendChild(element("div", "room ui host"));
    this.root.append(this.top, this.body);
  }

  update(data) {
    const key = `${data.base}/room/${data.code}/host`;
    if (this.data?.view !== data.view) this.drawn = null;
    this.data = data;
    if (this.key !== key) {
      this.connection?.close();
      this.key = key;
      this.connection = new Connection(key, (message) => this.take(message), (text, isOpen) => {
        if (isOpen) this.students = new Map(); // a new connection begins with all of them
        this.problem = isOpen ? "" : text;
        this.draw();
      });
    }
    this.draw();
  }

  take(message) { // of the students, it has those who have changed
    if (message.type !== "host") return;
    for (const id of message.work?.gone ?? []) this.students.delete(id);
    for (const [id, student] of Object.entries(message.work?.students ?? {})) this.students.set(id, student);
    this.message = message;
    this.draw();
  }

  destroy() {
    this.connection?.close();
    this.root.remove();
  }

  draw() {
    const { message, data } = this;
    if (!message) return void this.body.replaceChildren(element("p", "hint", this.problem || "Connecting …"));
    const now = JSON.stringify([message, [...this.students], data.view, this.problem, this.isShowingVotes]);
    if (now === this.drawn) return;
    this.drawn = now;
    const here = `${message.present} student${message.present === 1 ? "" : "s"} here`;
    const parts = this[`draw_${data.view}`](message, here);
    this.root.classList.toggle("dark", Boolean(theme(this.root).isDark));
    this.body.replaceChildren(...parts, ...(this.problem ? [element("p", "hint", this.problem)] : []));
  }

  draw_count({ present }) {
    const here = element("p", "counted");
    here.append(element("strong", "", String(present)), present === 1 ? " student here" : " students here");
    return [here];
  }

  draw_question({ question }) {
    if (!question) return [];
    const { round, votes, truth, isRevealed } = question, now = votes[round] ?? {}, n = total(now);
    /** @type {HTMLElement[]} */
    const parts = [
      element("p", "kicker", isRevealed ? "Result" : round > 1 ? "Second vote, after the discussion" : "Vote"),
      element("h2", "", question.text),
    ];
    if (question.about) parts.push(element("p", "about", question.about));
    const counted = element("p", "counted");
    counted.append(element("strong", "", String(n)), ` of ${question.asked} answered`);
    if (!isRevealed) {
      counted.append(button(this.isShowingVotes ? "Hide the votes" : "Show the votes", () => { this.isShowingVotes = !this.isShowingVotes; this.draw(); }));
    }
    parts.push(counted);
    const isSeen = isRevealed || this.isShowingVotes;
    parts.push(answers(question, { truth: truth ?? [], votes: isSeen ? now : undefined }));
    if (isRevealed && truth.length) parts.push(element("p", "shares", result(question)));
    return parts;
  }

  draw_work({ work, present }, here) {
    if (!work) return [];
    const { exercises, title } = this.data, { name, step } = work.lesson, box = element("div", "map"), table = element("table", "work");
    const head = table.createTHead().insertRow(), body = table.createTBody(), isExercise = exercises.some((one) => one.step === step + 1);
    const order = [...this.students.values()].sort((a, b) => a.number - b.number).filter(({ isHere, work: done }) => isHere || Object.keys(done).length);
    const counted = element("p", "counted"), n = isExercise ? order.filter((student) => student.work[step + 1]?.solved).length : present;
    counted.append(element("strong", "", String(n)), isExercise ? ` of ${order.length} solved step ${step + 1}` : here.replace(/^\d+/, ""));
    this.top.className = "lesson-head";
    this.top.replaceChildren(element("h2", "", title), counted);
    this.showLesson(name, step);
    head.append(element("th", "", here), ...exercises.map(({ step, title: words }) => element("th", "", `${step}. ${words}`)), element("td"));
    for (const student of order) {
      const line = body.insertRow();
      line.append(element("th", student.isHere ? "" : "away", student.name));
      for (const { step } of exercises) {
        const done = student.work[step], cell = line.insertCell();
        if (!done) cell.append(element("span", "none", "–"));
        else if (done.solved) cell.append(element("span", "solved", `✓ ${minutes(done.seconds)}`));
        else cell.append(element("span", done.stuck ? "stuck" : "trying", `${done.stuck ? "stuck " : ""}${minutes(done.seconds)}`));
      }
      line.insertCell().append(element("span", "hint", student.mayShow ? "may be shown" : ""));
    }
    if (!order.length) box.append(element("p", "hint", "Nobody has joined yet."));
    else box.append(table);
    return [box];
  }

  // The page of the lesson. Its own buttons move the lesson for all; a step that was chosen elsewhere moves it here.
  showLesson(name, step) {
    const address = `${this.data.base}/lesson/${name}?room`;
    if (!this.frame?.src.includes(`/lesson/${name}?`)) {
      this.frame?.remove();
      this.frame = Object.assign(element("iframe", "lesson-frame"), { title: this.data.title, src: `${address}#lesson=${step}` });
      this.frame.onload = () => this.follow();
      this.top.after(this.frame);
    }
    if (this.pending === step) this.pending = null;
    if (this.pending !== null) return;
    this.step = step;
    const lesson = this.lesson();
    if (lesson && lesson.step !== step) lesson.go(step);
  }

  lesson() { return /** @type {any} */ (this.frame?.contentWindow)?.xformerLive?.page.lesson; }

  follow() {
    const page = /** @type {any} */ (this.frame?.contentWindow), lesson = this.lesson();
    if (!lesson) return void setTimeout(() => this.frame && this.follow(), 50); // its model is being read
    if (lesson.step !== this.step) lesson.go(this.step);
    lesson.onStep = (step) => {
      if (step === this.step) return;
      this.step = this.pending = step;
      this.send({ step });
    };
    page.addEventListener("keydown", ({ key, target }) => { // the keys of the stage view
      if (["f", "F", "Escape"].includes(key) && !target.matches?.("input, textarea, select")) dispatchEvent(new KeyboardEvent("keydown", { key }));
    });
  }
}
