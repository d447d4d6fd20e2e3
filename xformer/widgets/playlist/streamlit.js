// The playlist: a panel for collecting and ordering views and, during playback, a bar and the keys of a presenter remote.
// The browser stores the list, so that it survives a reload and never reaches the server; Python opens links and reads files.
// The Share menu sends the event xformer-playlist. Text is only set as textContent and value, never as HTML.

import { element, labelled } from "../shared.js";
import { mounted } from "../streamlit.js";

const LIST = "xformer_playlist", PLACE = "xformer_playlist_place", ANSWERED = "xformer_playlist_answered";
const MOST = { items: 100, title: 200, note: 5000, file: 1e6 }; // xformer/playlist.py has the same limits
const FORWARD = ["PageDown", "ArrowRight"], BACK = ["PageUp", "ArrowLeft"];
const PATIENCE = 5000; // milliseconds to wait for the server before the next link is sent anyway
const TYPED = "input, textarea, select, [contenteditable]";
const NOTES = "body{margin:1.5rem;font:1.2rem/1.5 system-ui,sans-serif;background:#10141c;color:#eef1f7}" +
  "h1{font-size:1.4rem}p{white-space:pre-wrap}small{color:#a9b3c7}";

/**
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag @param {Record<string, any>} properties @param {Node[]} children
 */
function make(tag, properties = {}, ...children) {
  const node = Object.assign(element(tag), properties);
  node.append(...children);
  return node;
}

const text = (value, most) => (typeof value === "string" ? value.slice(0, most) : "");

function stored() {
  try {
    const found = JSON.parse(localStorage.getItem(LIST) ?? "");
    const items = found.items.filter((item) => typeof item.link === "string").slice(0, MOST.items);
    return { title: text(found.title, MOST.title), items: items.map(({ link, title, note }) => (
      { link, title: text(title, MOST.title), note: text(note, MOST.note) })) };
  } catch { // nothing was stored, or something invalid
    return { title: "", items: [] };
  }
}

class Playlist {
  list = stored();
  opened = new WeakSet(); // the views whose notes are open
  busy = 0; // while the server draws a view: when to stop waiting, as of performance.now()
  asked = 0; // the id of the last request
  /** @type {string | null} */ sent = null; // its link
  /** @type {string | null} */ wanted = null; // the link to follow next
  /** @type {Window | null} */ notes = null;
  /** @type {number | null} */ dragged = null;
  /** @type {any} */ data;
  /** @type {(event: string, value: object) => void} */ send = () => {};
  bar = make("div", { className: "bar", popover: "manual" });
  panel = make("section", { className: "panel", popover: "manual" });
  back = labelled("◀", "Previous view (Page Up)", () => this.go((this.place ?? 0) - 1));
  next = labelled("▶", "Next view (Page Down)", () => this.go((this.place ?? 0) + 1));
  count = make("span", { className: "count" });
  name = labelled("", "Show this view again", () => this.go(this.place ?? 0));
  title = make("input", { className: "title", placeholder: "Title of the playlist", maxLength: MOST.title });
  play = labelled("▶ Play", "Play from the first view", () => { this.show(false); this.go(0); });
  add = labelled("+ Add this view", "Add the current view of the screen", () => this.say(this.handle("add")));
  rows = make("ol");
  said = make("p", { className: "said" });
  file = make("input", { type: "file", accept: ".json", hidden: true });
  lessons = make("select");
  saver = labelled("Save", "Save the playlist as a file", () => this.save());
  clearer = labelled("Clear", "Remove all views", () => this.replace({ title: "", items: [] }, "The playlist is now empty."));

  constructor(parent) {
    this.bar.setAttribute("role", "toolbar");
    this.bar.setAttribute("aria-label", "Playlist");
    this.panel.setAttribute("aria-label", "Playlist");
    this.root = parent.appendChild(make("div", { className: "playlist" }, this.bar, this.panel));
    this.buildBar();
    this.buildPanel();
    this.handlers = {
      "xformer-playlist": (event) => {
        if (event.defaultPrevented) return;
        event.preventDefault();
        event.detail.said = this.handle(event.detail.act);
      },
      keydown: (event) => this.key(event),
      popstate: () => this.find(),
      storage: (event) => {
        if (event.key !== LIST || this.panel.matches(":focus-within")) return;
        this.list = stored();
        this.draw();
      },
    };
    for (const [name, handler] of Object.entries(this.handlers)) addEventListener(name, handler);
  }

  destroy() {
    for (const [name, handler] of Object.entries(this.handlers)) removeEventListener(name, handler);
    this.root.remove();
  }

  update(data) {
    this.data = data;
    if (this.busy && data.followed === this.asked) {
      this.busy = 0;
      this.follow();
    }
    const { answer } = data;
    if (answer && sessionStorage.getItem(ANSWERED) !== answer.id) {
      sessionStorage.setItem(ANSWERED, answer.id);
      if (answer.problem) this.say(answer.problem);
      else {
        this.place = null;
        this.replace(answer.playlist, `“${answer.playlist.title}” has ${answer.playlist.items.length} views.`);
      }
    }
    this.draw();
  }

  get place() {
    const at = sessionStorage.getItem(PLACE);
    return at === null || !this.list.items.length ? null : Math.min(Number(at), this.list.items.length - 1);
  }

  set place(at) {
    if (at === null) sessionStorage.removeItem(PLACE);
    else sessionStorage.setItem(PLACE, String(at));
  }

  keep() {
    this.say("");
    try {
      localStorage.setItem(LIST, JSON.stringify(this.list));
    } catch {
      this.say("The browser has no more storage; save the playlist as a file.");
    }
  }

  replace(list, words) { // offers to undo
    const before = this.list;
    this.list = { title: list.title, items: [...list.items] };
    this.keep();
    this.draw();
    this.say(words, () => this.replace(before, ""));
  }

  handle(act) {
    if (act === "open") {
      this.show(true);
      return "";
    }
    if (this.list.items.length === MOST.items) return `A playlist has at most ${MOST.items} views.`;
    const values = new URLSearchParams(location.search);
    for (const name of ["embed", "embed_options"]) values.delete(name);
    const finding = document.querySelector(".st-key-headline p")?.textContent.trim();
    const title = text(finding || this.data.title, 120), query = values.size ? `?${values}` : "";
    this.list.items.push({ link: `/${this.data.screen}${query}`, title, note: "" });
    this.keep();
    this.draw();
    return `Added to the playlist as view ${this.list.items.length}.`;
  }

  // Playing

  go(at) {
    if (!(at >= 0 && at < this.list.items.length)) return;
    this.place = at;
    this.say("");
    this.draw();
    this.wanted = this.list.items[at].link;
    if (performance.now() > this.busy) this.follow();
    else if (this.wanted === this.sent) this.wanted = null; // the server is drawing it already
  }

  follow() { // sends one link at a time: after quick steps only the last, once the server has drawn the previous one
    if (!this.wanted) return;
    this.sent = this.wanted;
    this.send("go", { id: (this.asked = crypto.getRandomValues(new Uint32Array(1))[0]), link: this.sent });
    this.wanted = null;
    this.busy = performance.now() + PATIENCE;
    setTimeout(() => { if (performance.now() >= this.busy) this.follow(); }, PATIENCE + 1);
  }

  key(event) {
    const target = event.composedPath()[0], way = FORWARD.includes(event.key) ? 1 : BACK.includes(event.key) ? -1 : 0;
    if (event.key === "Escape" && this.panel.matches(":focus-within")) this.show(false);
    if (!way || this.place === null || event.defaultPrevented || target.matches?.(TYPED)) return;
    if (event.ctrlKey || event.altKey || event.metaKey || event.shiftKey) return;
    const free = !target.closest || target === document.body || this.root.contains(target);
    if (event.key.startsWith("Arrow") && !free) return; // arrow keys belong to the focused widget
    event.preventDefault();
    this.go(this.place + way);
  }

  find() { // after Back and Forward: the nearest view that matches the address
    const { place } = this;
    if (place === null) return;
    const screen = location.pathname.split("/").pop(), shown = new URLSearchParams(location.search);
    const fits = ({ link }) => {
      const [path, query = ""] = link.split("?");
      return path === `/${screen}` && [...new URLSearchParams(query)].every(([name, value]) => shown.get(name) === value);
    };
    const found = [...this.list.items.keys()].filter((at) => fits(this.list.items[at]));
    if (found.length) this.place = found.sort((a, b) => Math.abs(a - place) - Math.abs(b - place))[0];
    this.draw();
  }

  buildBar() {
    this.name.className = "name";
    this.name.removeAttribute("aria-label"); // its text is the title of the view
    this.bar.append(this.back, this.count, this.next, this.name,
      labelled("Notes", "Speaker notes in a separate window", () => this.openNotes()),
      labelled("List", "Open the playlist", () => this.show(true)),
      labelled("✕", "Stop playing", () => { this.place = null; this.draw(); }));
  }

  openNotes() {
    this.notes = open("", "xformer_notes", "popup,width=560,height=640");
    if (!this.notes) {
      this.show(true);
      this.say("The browser blocked the window; the notes are in this list.");
      return;
    }
    this.notes.onkeydown = (event) => this.key(event); // the presenter keys work in both windows
    this.drawNotes();
    this.notes.focus();
  }

  drawNotes() {
    if (!this.notes || this.notes.closed) return;
    const page = this.notes.document, at = this.place ?? -1, item = this.list.items[at], next = this.list.items[at + 1];
    page.title = "Speaker notes";
    page.head.replaceChildren(make("style", { textContent: NOTES }));
    page.body.replaceChildren(...(at < 0 ? [make("p", { textContent: "The playlist is not playing." })] : [
      make("small", { textContent: `${at + 1} / ${this.list.items.length}` }),
      make("h1", { textContent: item.title }),
      make("p", { textContent: item.note || "No note." }),
      make("small", { textContent: next ? `Next: ${next.title}` : "The last view." }),
    ]));
  }

  draw() {
    const { items } = this.list, at = this.place;
    document.documentElement.toggleAttribute("data-playing", at !== null); // page.css leaves space for the bar
    if (at === null) {
      this.bar.togglePopover(false);
    } else {
      this.count.textContent = `${at + 1} / ${items.length}`;
      this.name.textContent = items[at].title;
      this.name.title = `${items[at].title}: show this view again`;
      this.back.disabled = at === 0;
      this.next.disabled = at === items.length - 1;
      this.bar.togglePopover(true);
    }
    this.drawNotes();
    this.drawList();
  }

  // Collecting

  buildPanel() {
    this.title.setAttribute("aria-label", "Title of the playlist");
    this.title.addEventListener("input", () => { this.list.title = this.title.value; this.keep(); });
    this.rows.addEventListener("dragover", (event) => this.drag(event));
    this.rows.addEventListener("drop", (event) => this.drop(event));
    this.said.setAttribute("role", "status");
    this.file.setAttribute("aria-label", "A playlist file");
    this.file.addEventListener("change", () => this.read());
    this.lessons.setAttribute("aria-label", "Open the views of a lesson");
    this.lessons.addEventListener("change", () => {
      this.send("open", { shipped: this.lessons.value });
      this.lessons.value = "";
    });
    this.panel.append(
      make("header", {}, this.title, labelled("✕", "Close the playlist", () => this.show(false))),
      make("div", { className: "tools" }, this.play, this.add), this.said, this.rows,
      make("footer", {}, this.saver, labelled("Open…", "Open a playlist file", () => this.file.click()), this.file,
        this.lessons, this.clearer));
  }

  show(isOpen) {
    this.say("");
    this.panel.togglePopover(isOpen);
    if (isOpen) this.add.focus();
  }

  /** @param {string} words @param {() => void} [undo] */
  say(words, undo) {
    this.said.replaceChildren(words);
    if (undo && words) this.said.append(" ", labelled("Undo", "Undo", undo));
  }

  drawList() {
    if (this.title.value !== this.list.title) this.title.value = this.list.title;
    const { items } = this.list, none = !items.length;
    for (const node of [this.play, this.saver, this.clearer]) node.disabled = none;
    if (this.data && this.lessons.options.length === 0) {
      this.lessons.append(new Option("Lessons…", ""), ...Object.entries(this.data.shipped).map(([name, title]) => new Option(title, name)));
    }
    const drawn = JSON.stringify([items, this.data?.screens]);
    if (drawn !== this.drawn) { // otherwise keep the rows, with the focus and the text being typed
      this.drawn = drawn;
      this.rows.replaceChildren(...items.map((item, at) => this.row(item, at)));
    }
    [...this.rows.children].forEach((row, at) => row.classList.toggle("now", at === this.place));
    if (none) this.rows.replaceChildren(make("li", { className: "none", textContent:
      "No views yet. Show something on any screen, then press “Add this view” here or in the Share menu." }));
  }

  row(item, at) {
    const grip = make("span", { className: "grip", textContent: "⠿", title: "Drag to reorder", draggable: true });
    const title = make("input", { value: item.title, maxLength: MOST.title });
    title.setAttribute("aria-label", `Title of view ${at + 1}`);
    title.addEventListener("input", () => this.type(item, "title", title.value));
    const note = make("textarea", { value: item.note, maxLength: MOST.note, rows: 4, placeholder: "What you want to say" });
    note.setAttribute("aria-label", `Speaker note of view ${at + 1}`);
    note.addEventListener("input", () => { this.type(item, "note", note.value); label(); });
    const screen = item.link.slice(1).split("?")[0], summary = make("summary");
    const label = () => {
      summary.textContent = `${this.data?.screens[screen] ?? screen} · ${item.note ? "note ✎" : "add a note"}`;
    };
    label();
    const up = labelled("↑", `Move view ${at + 1} up`, () => this.move(at, at - 1, ".up"));
    const down = labelled("↓", `Move view ${at + 1} down`, () => this.move(at, at + 1, ".down"));
    up.className = "up";
    down.className = "down";
    up.disabled = at === 0;
    down.disabled = at === this.list.items.length - 1;
    const show = labelled(String(at + 1), `Show view ${at + 1} and play from there`, () => this.go(at));
    show.className = "number";
    const remove = labelled("✕", `Remove view ${at + 1}`, () => {
      if (this.place !== null && this.place > at) this.place -= 1;
      this.replace({ ...this.list, items: this.list.items.toSpliced(at, 1) }, `“${item.title}” was removed.`);
    });
    const details = make("details", {}, summary, note);
    const row = make("li", {}, make("div", { className: "row" }, grip, show, title),
      details, make("div", { className: "tools" }, up, down, remove));
    details.open = this.opened.has(item);
    details.addEventListener("toggle", () => this.opened[details.open ? "add" : "delete"](item));
    grip.addEventListener("dragstart", (event) => {
      this.dragged = at;
      if (!event.dataTransfer) return;
      event.dataTransfer.effectAllowed = "move";
      event.dataTransfer.setDragImage(row, 10, 10);
    });
    grip.addEventListener("dragend", () => {
      this.dragged = null;
      for (const one of this.rows.children) one.classList.remove("before", "after");
    });
    return row;
  }

  type(item, name, value) {
    item[name] = value;
    this.drawn = JSON.stringify([this.list.items, this.data?.screens]);
    this.keep();
    this.draw();
  }

  move(from, to, focus = "") {
    const { items } = this.list, at = this.place, playing = at === null ? null : items[at];
    items.splice(to, 0, ...items.splice(from, 1));
    if (playing) this.place = items.indexOf(playing);
    this.keep();
    this.draw();
    const moved = this.rows.children[to];
    const part = focus && (moved.querySelector(`${focus}:enabled`) ?? moved.querySelector(".number"));
    if (part instanceof HTMLElement) part.focus();
  }

  over(event) { // the index at which the pointer would insert a row
    const rows = [...this.rows.children], box = (row) => row.getBoundingClientRect();
    const below = rows.findIndex((row) => event.clientY < box(row).top + box(row).height / 2);
    return below === -1 ? rows.length : below;
  }

  drag(event) {
    if (this.dragged === null) return;
    event.preventDefault();
    const at = this.over(event);
    [...this.rows.children].forEach((row, index) => {
      row.classList.toggle("before", index === at);
      row.classList.toggle("after", index === at - 1 && at === this.rows.children.length);
    });
  }

  drop(event) {
    if (this.dragged === null) return;
    event.preventDefault();
    const from = this.dragged, at = this.over(event);
    this.dragged = null;
    this.move(from, at > from ? at - 1 : at);
  }

  save() {
    const content = `${JSON.stringify({ version: 1, ...this.list }, null, 1)}\n`;
    const name = this.list.title.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "") || "playlist";
    const address = URL.createObjectURL(new Blob([content], { type: "application/json" }));
    make("a", { href: address, download: `${name}.json` }).click();
    setTimeout(() => URL.revokeObjectURL(address), 10_000);
  }

  async read() {
    const [file] = this.file.files ?? [];
    this.file.value = "";
    if (!file) return;
    if (file.size > MOST.file) this.say(`A playlist has at most ${MOST.file.toLocaleString("en")} bytes.`);
    else this.send("open", { text: await file.text() });
  }
}

export default mounted(Playlist);
