// The lecturer's view of a room: the number of students, a running vote, or the progress on a lesson.
//
//   data = { code, base, view }     view: "count", "question" or "work"

import { button, element, theme } from "../shared.js";
import { Connection } from "./connection.js";
import { answers, result, total } from "./questions.js";

const minutes = (seconds) => (seconds < 90 ? `${Math.round(seconds)} s` : `${Math.round(seconds / 60)} min`);

export class HostView {
  isShowingVotes = false;
  students = new Map();
  /** @type {any} */ data;
  /** @type {any} */ message;

  constructor(parent) {
    this.root = parent.appendChild(element("div", "room ui host"));
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
    if (!message) return void this.root.replaceChildren(element("p", "hint", this.problem || "Connecting …"));
    const now = JSON.stringify([message, [...this.students], data.view, this.problem, this.isShowingVotes]);
    if (now === this.drawn) return;
    this.drawn = now;
    const here = `${message.present} student${message.present === 1 ? "" : "s"} here`;
    const parts = this[`draw_${data.view}`](message, here);
    this.root.classList.toggle("dark", Boolean(theme(this.root).isDark));
    this.root.replaceChildren(...parts, ...(this.problem ? [element("p", "hint", this.problem)] : []));
  }

  draw_count(_, here) { return [element("p", "here", here)]; }

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

  draw_work({ work }, here) {
    if (!work) return [];
    const { exercises, title } = this.data, box = element("div", "map"), table = element("table", "work");
    const head = table.createTHead().insertRow(), body = table.createTBody();
    head.append(element("th", "", here), ...exercises.map(({ step, title: words }) => element("th", "", `${step}. ${words}`)), element("td"));
    const order = [...this.students.values()].sort((a, b) => a.number - b.number).filter(({ isHere, work: done }) => isHere || Object.keys(done).length);
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
    return [element("p", "kicker", "Exercises"), element("h2", "", title), box];
  }
}
