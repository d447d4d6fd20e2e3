// The lessons as cards in their order, with the visitor's progress from the browser's storage (../live/progress.js).

import { readProgress, summary } from "../live/progress.js";
import { MASKED, element, palette, pen, theme } from "../shared.js";
import { mounted } from "../streamlit.js";

/** @typedef {import("../shared.js").Palette} Palette */
/** @typedef {{ name: string, title: string, summary: string, minutes: number, steps: number, exercises: number[], heads: number[][][][] }} Given */

/** The patterns of all heads, one column per layer. @param {number[][][][]} layers @param {Palette} colours */
function picture(layers, { words }) {
  const node = element("span", "heads");
  node.append(...layers.map((heads) => {
    const column = element("span", "layer");
    column.style.setProperty("--heads", String(heads.length));
    column.append(...heads.map((cells) => {
      const canvas = element("canvas"), at = pen(canvas);
      [canvas.width, canvas.height] = [cells[0].length, cells.length];
      canvas.style.aspectRatio = `${canvas.width} / ${canvas.height}`;
      const image = at.createImageData(canvas.width, canvas.height);
      new Uint32Array(image.data.buffer).set(cells.flat().map((code) => (code === MASKED ? 0 : words[code])));
      at.putImageData(image, 0, 0);
      return canvas;
    }));
    return column;
  }));
  node.ariaHidden = "true";
  return node;
}

class LessonCards {
  root = element("section", "lessons");
  life = new AbortController();
  /** @type {{ base: string, colours: string[][], lessons: Given[] }} */ data = { base: "", colours: [], lessons: [] };

  /** @param {HTMLElement} parent */
  constructor(parent) {
    parent.append(this.root);
    const draw = () => this.draw();
    for (const event of ["storage", "pageshow", "focus"]) addEventListener(event, draw, this.life); // after a lesson in this or another tab
  }

  update(data) {
    this.data = data ?? this.data;
    this.draw();
  }

  destroy() {
    this.life.abort();
    this.root.remove();
  }

  draw() {
    if (!this.data.lessons.length) return;
    const known = this.data.lessons.map((lesson) => {
      const shape = { ...lesson, predictions: {} };
      return { lesson, shape, progress: readProgress(lesson.name, shape) };
    });
    const done = known.filter(({ progress }) => progress.done).length, next = known.find(({ progress }) => !progress.done);
    const list = element("ol");
    const { isDark } = theme(this.root), colours = palette(this.data.colours[isDark]);
    this.root.classList.toggle("dark", isDark === 1);
    list.append(...known.map((one, at) => this.card(one, at, one === next, colours)));
    const says = done ? `${done} of ${known.length} lessons done.` : `${known.length} lessons, each of which builds on those before.`;
    this.root.replaceChildren(element("p", "about", `${says} Each shows a model that runs in the page, and asks before it shows. Your progress stays in this browser.`), list);
  }

  card({ lesson, shape, progress }, at, isNext, colours) {
    const { text, solved, share } = summary(progress, shape), item = element("li"), link = element("a", isNext ? "card next" : "card");
    link.href = `${this.data.base}/lesson/${lesson.name}`;
    link.dataset.lesson = lesson.name;
    link.classList.toggle("done", progress.done);
    const n = lesson.exercises.length, about = `${lesson.minutes} minutes · ${n} exercise${n === 1 ? "" : "s"}`;
    const track = element("span", "track"), state = element("span", "state");
    track.append(element("span", "fill"));
    track.style.setProperty("--share", share.toFixed(3));
    state.append(element("span", "text", progress.done ? `✓ ${text}` : text), element("span", "solved", solved));
    if (isNext) state.append(element("span", "go", share || solved ? "Continue →" : "Start →"));
    link.append(element("span", "number", String(at + 1)), element("span", "title", lesson.title), element("span", "summary", lesson.summary),
      picture(lesson.heads, colours), element("span", "about", about), track, state);
    item.append(link);
    return item;
  }
}

export default mounted(LessonCards);
