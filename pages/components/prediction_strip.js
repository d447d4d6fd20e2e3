// One row of tokens per lane. The tokens of the first lane can be edited in place: click or Enter to edit, arrow keys to move,
// Delete to remove. Text is only set as textContent, never as HTML.
function element(className, text, role) {
  const node = document.createElement("div");
  node.className = className;
  if (text !== undefined) node.textContent = text;
  if (role) node.setAttribute("role", role);
  return node;
}

function cell(lane, index, role) {
  const right = lane.right[index], share = lane.probability[index];
  const node = element("token", lane.tokens[index], role);
  node.style.gridColumn = index + lane.offset + 2;
  node.classList.toggle("moved", Boolean(lane.moved[index]));
  let spoken = `position ${index + lane.offset}: ${lane.tokens[index]}`;
  if (right !== undefined) {
    node.classList.add(right ? "right" : "wrong");
    node.append(element("mark", right ? "✓" : "✗"));
    spoken += right ? ", right" : ", wrong";
  }
  if (share !== undefined && share !== null) {
    const bar = element("bar");
    bar.style.width = `${(100 * share).toFixed(1)}%`;
    node.append(bar);
    spoken += `, probability ${share.toFixed(4)}`;
  }
  node.title = spoken;
  node.setAttribute("aria-label", spoken);
  return node;
}

// Opens an input field in a cell. Enter and leaving the field apply its value, Escape discards it.
function type(root, place, start) {
  const { node, text } = root.places[place], input = document.createElement("input"), shown = [...node.childNodes];
  let open = true;
  const close = (take) => {
    if (!open) return;
    open = false;
    const focused = root.getRootNode().activeElement === input, value = input.value.trim() || input.value;
    if (take && value !== text) {
      node.replaceChildren(value || "…");
      root.send("edit", { at: place, text: value });
    } else {
      node.replaceChildren(...shown);
      root.querySelector(".problem")?.remove();
    }
    if (focused) focus(root, place);
  };
  input.value = start;
  input.size = Math.max(2, start.length);
  input.setAttribute("aria-label", node.getAttribute("aria-label"));
  input.spellcheck = false;
  input.addEventListener("input", () => (input.size = Math.max(2, input.value.length)));
  input.addEventListener("blur", () => close(true));
  input.addEventListener("keydown", (event) => {
    event.stopPropagation();
    if (event.key === "Enter" || event.key === "Escape") close(event.key === "Enter");
  });
  node.replaceChildren(input);
  input.focus();
  if (start === text) input.select();
}

function focus(root, place) {
  root.at = Math.max(0, Math.min(place, root.places.length - 1));
  root.places.forEach(({ node }, index) => (node.tabIndex = index === root.at ? 0 : -1));
  root.places[root.at].node.focus();
}

function remove(root, place) {
  if (place < root.places.length - 1) root.send("edit", { at: place, text: "" });
}

function pressed(event, root, place) {
  const to = { ArrowLeft: place - 1, ArrowRight: place + 1, Home: 0, End: root.places.length - 1 }[event.key];
  if (to !== undefined) focus(root, to);
  else if (event.key === "Enter" || event.key === "F2") type(root, place, root.places[place].text);
  else if (event.key === "Delete" || event.key === "Backspace") remove(root, place);
  else if ([...event.key].length === 1 && !event.ctrlKey && !event.metaKey && !event.altKey) type(root, place, event.key);
  else return;
  event.preventDefault();
}

function makeEditable(root, row, { texts, first, problem }) {
  const cells = [...row.querySelectorAll(".token")].slice(first, first + texts.length - 1);
  const add = element("token add", "+", "gridcell");
  add.title = "Add a token";
  add.setAttribute("aria-label", add.title);
  row.append(add);
  root.places = [...cells, add].map((node, place) => ({ node, text: node === add ? "" : texts[place] }));
  root.places.forEach(({ node, text }, place) => {
    node.classList.add("editable");
    node.tabIndex = place === (root.at ?? 0) ? 0 : -1;
    node.addEventListener("click", () => node.querySelector("input") ?? type(root, place, text));
    node.addEventListener("keydown", (event) => pressed(event, root, place));
    if (node === add) return;
    node.title += ". Click to change it.";
    const cross = element("remove");
    cross.title = "Remove this token";
    cross.addEventListener("click", (event) => (event.stopPropagation(), remove(root, place)));
    node.append(cross);
  });
  if (!problem) return;
  root.append(element("problem", problem.why, "alert"));
  type(root, problem.at, problem.text);
}

function draw(root, { lanes, edit }) {
  const columns = Math.max(...lanes.map((lane) => lane.offset + lane.tokens.length)), isLonger = columns !== root.columns;
  const short = lanes.every((lane) => lane.tokens.every((token) => [...token].length <= 1 || token === "start"));
  const hadFocus = root.contains(root.getRootNode().activeElement);
  root.classList.toggle("narrow", columns > 20 && short);
  root.style.gridTemplateColumns = `repeat(${columns + 2}, max-content)`;
  root.setAttribute("role", edit ? "grid" : "table");
  root.setAttribute("aria-label", "Tokens");
  const rows = lanes.map((lane) => {
    const row = element("lane", undefined, "row"), name = element("name", lane.name, "rowheader");
    name.title = lane.name;
    row.append(name, ...lane.tokens.map((_, index) => cell(lane, index, edit ? "gridcell" : "cell")));
    return row;
  });
  root.replaceChildren(...rows);
  if (edit) makeEditable(root, rows[0], edit);
  if (edit && hadFocus && !edit.problem) focus(root, root.at ?? 0);
  root.columns = columns;
  if (isLonger && !hadFocus && lanes.some((lane) => lane.continues)) root.scrollLeft = root.scrollWidth;
  if (!edit) root.tabIndex = root.scrollWidth > root.clientWidth ? 0 : -1; // a scrollable strip must be reachable by keyboard
}

export default function ({ data, parentElement, setTriggerValue }) {
  const root = parentElement.querySelector(".strip") ?? parentElement.appendChild(element("strip"));
  const said = JSON.stringify(data);
  root.send = setTriggerValue;
  if (root.said === said && root.querySelector("input")) return; // redrawn while the visitor is typing
  root.said = said;
  draw(root, data);
}
