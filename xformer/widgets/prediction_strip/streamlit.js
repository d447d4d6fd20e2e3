// One row of tokens per lane. The tokens of the first lane can be edited in place: click or Enter to edit, arrow keys to move,
// Delete to remove. Text is only set as textContent, never as HTML.
import { element } from "../shared.js";
import { mounted } from "../streamlit.js";

/** @param {string} className @param {string} [text] @param {string} [role] */
function part(className, text, role) {
  const node = element("div", className, text);
  if (role) node.setAttribute("role", role);
  return node;
}

function cell(lane, index, role) {
  const right = lane.right[index],
    share = lane.probability[index];
  const node = part("token", lane.tokens[index], role);
  node.style.gridColumn = String(index + lane.offset + 2);
  node.classList.toggle("moved", Boolean(lane.moved[index]));
  let spoken = `position ${index + lane.offset}: ${lane.tokens[index]}`;
  if (right !== undefined) {
    node.classList.add(right ? "right" : "wrong");
    node.append(part("mark", right ? "✓" : "✗"));
    spoken += right ? ", right" : ", wrong";
  }
  if (share !== undefined && share !== null) {
    const bar = part("bar");
    bar.style.width = `${(100 * share).toFixed(1)}%`;
    node.append(bar);
    spoken += `, probability ${share.toFixed(4)}`;
  }
  node.title = spoken;
  node.setAttribute("aria-label", spoken);
  return node;
}

class PredictionStrip {
  /** @type {{ node: HTMLElement, text: string }[]} */ places = []; // the editable tokens, and the one for a new token
  at = 0; // the focused place
  columns = 0;
  drawn = ""; // the data as text
  /** @type {{ place: number, input: HTMLInputElement } | null} */ typing = null; // the open input field
  /** @type {(edit: { at: number, was: string, text: string }) => void} */ send = () => {};
  root = element("div", "strip");

  /** @param {HTMLElement} parent */
  constructor(parent) {
    parent.append(this.root);
  }
  destroy() {
    this.root.remove();
  }

  update(data) {
    const text = JSON.stringify(data);
    const { typing, places } = this;
    if (this.drawn === text && typing) return;
    this.drawn = text;
    this.typing = null; // before the field leaves the page, which takes its focus
    this.draw(data);
    if (!typing || this.typing) return;
    // The visitor may have begun to type before the answer to an earlier edit arrived. Another token may stand there now.
    const isNew = typing.place === places.length - 1,
      place = isNew ? this.places.length - 1 : typing.place;
    if (isNew || this.places[place]?.text === places[place].text) this.type(place, typing.input.value);
  }

  get focused() {
    return /** @type {Document | ShadowRoot} */ (this.root.getRootNode()).activeElement;
  }

  // Opens an input field in a cell. Enter and leaving the field apply its value, Escape discards it.
  type(place, start) {
    const { node, text } = this.places[place],
      input = element("input"),
      shown = [...node.childNodes];
    const close = (takes) => {
      if (this.typing?.input !== input) return;
      this.typing = null;
      const hadFocus = this.focused === input,
        value = input.value.trim() || input.value;
      if (takes && value !== text) {
        node.replaceChildren(value || "…");
        this.send({ at: place, was: text, text: value });
      } else {
        node.replaceChildren(...shown);
        this.root.querySelector(".problem")?.remove();
      }
      if (hadFocus) this.focus(place);
    };
    input.value = start;
    input.size = Math.max(2, start.length);
    input.setAttribute("aria-label", node.getAttribute("aria-label") ?? "");
    input.spellcheck = false;
    input.addEventListener("input", () => (input.size = Math.max(2, input.value.length)));
    input.addEventListener("blur", () => close(true));
    input.addEventListener("keydown", (event) => {
      event.stopPropagation();
      if (event.key === "Enter" || event.key === "Escape") close(event.key === "Enter");
    });
    this.typing = { place, input };
    node.replaceChildren(input);
    input.focus();
    if (start === text) input.select();
  }

  focus(place) {
    this.at = Math.max(0, Math.min(place, this.places.length - 1));
    this.places.forEach(({ node }, index) => {
      node.tabIndex = index === this.at ? 0 : -1;
    });
    this.places[this.at].node.focus();
  }

  remove(place) {
    if (place < this.places.length - 1) this.send({ at: place, was: this.places[place].text, text: "" });
  }

  key(event, place) {
    const to = { ArrowLeft: place - 1, ArrowRight: place + 1, Home: 0, End: this.places.length - 1 }[event.key];
    if (to !== undefined) this.focus(to);
    else if (event.key === "Enter" || event.key === "F2") this.type(place, this.places[place].text);
    else if (event.key === "Delete" || event.key === "Backspace") this.remove(place);
    else if ([...event.key].length === 1 && !event.ctrlKey && !event.metaKey && !event.altKey) this.type(place, event.key);
    else return;
    event.preventDefault();
  }

  makeEditable(row, { texts, first, problem }) {
    const cells = [...row.querySelectorAll(".token")].slice(first, first + texts.length - 1);
    const add = part("token add", "+", "gridcell");
    add.title = "Add a token";
    add.setAttribute("aria-label", add.title);
    row.append(add);
    this.places = [...cells, add].map((node, place) => ({ node, text: node === add ? "" : texts[place] }));
    this.places.forEach(({ node, text }, place) => {
      node.classList.add("editable");
      node.tabIndex = place === this.at ? 0 : -1;
      node.addEventListener("click", () => node.querySelector("input") ?? this.type(place, text));
      node.addEventListener("keydown", (event) => this.key(event, place));
      if (node === add) return;
      node.title += ". Click to change it.";
      const cross = part("remove");
      cross.title = "Remove this token";
      cross.addEventListener("click", (event) => {
        event.stopPropagation();
        this.remove(place);
      });
      node.append(cross);
    });
    if (!problem) return;
    this.root.append(part("problem", problem.why, "alert"));
    this.type(problem.at, problem.text);
  }

  draw({ lanes, edit }) {
    const { root } = this,
      columns = Math.max(...lanes.map((lane) => lane.offset + lane.tokens.length)),
      isLonger = columns !== this.columns;
    const short = lanes.every((lane) => lane.tokens.every((token) => [...token].length <= 1 || token === "start"));
    const hadFocus = root.contains(this.focused);
    root.classList.toggle("narrow", columns > 20 && short);
    root.style.gridTemplateColumns = `repeat(${columns + 2}, max-content)`;
    root.setAttribute("role", edit ? "grid" : "table");
    root.setAttribute("aria-label", "Tokens");
    const rows = lanes.map((lane) => {
      const row = part("lane", undefined, "row"),
        name = part("name", lane.name, "rowheader");
      name.title = lane.name;
      row.append(name, ...lane.tokens.map((_, index) => cell(lane, index, edit ? "gridcell" : "cell")));
      return row;
    });
    root.replaceChildren(...rows);
    if (edit) this.makeEditable(rows[0], edit);
    if (edit && hadFocus && !edit.problem) this.focus(this.at);
    this.columns = columns;
    if (isLonger && !hadFocus && lanes.some((lane) => lane.continues)) root.scrollLeft = root.scrollWidth;
    if (!edit) root.tabIndex = root.scrollWidth > root.clientWidth ? 0 : -1; // a scrollable strip must be reachable by keyboard
  }
}

export default mounted(PredictionStrip, "edit");
