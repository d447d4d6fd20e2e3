// One row of tokens a lane. Text is set as textContent only.
function element(className, text) {
  const node = document.createElement("div");
  node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

function cell(lane, index) {
  const right = lane.right[index], share = lane.probability[index];
  const node = element("token", lane.tokens[index]);
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
  node.setAttribute("role", "listitem");
  return node;
}

function draw(root, lanes) {
  const columns = Math.max(...lanes.map((lane) => lane.offset + lane.tokens.length));
  const short = lanes.every((lane) => lane.tokens.every((token) => [...token].length <= 1 || token === "start"));
  root.classList.toggle("narrow", columns > 20 && short);
  root.style.gridTemplateColumns = `repeat(${columns + 1}, max-content)`;
  root.replaceChildren(
    ...lanes.map((lane) => {
      const row = element("lane"), name = element("name", lane.name), list = lane.tokens.map((_, index) => cell(lane, index));
      name.title = lane.name;
      name.setAttribute("role", "presentation");
      row.setAttribute("role", "list");
      row.setAttribute("aria-label", lane.name);
      row.append(name, ...list);
      return row;
    }),
  );
  const scrolls = root.scrollWidth > root.clientWidth; // then the keyboard has to reach it
  root.tabIndex = scrolls ? 0 : -1;
  root.setAttribute("role", "group");
  root.setAttribute("aria-label", "Tokens");
}

export default function ({ data, parentElement }) {
  const root = parentElement.querySelector(".strip") ?? parentElement.appendChild(element("strip"));
  draw(root, data);
}
