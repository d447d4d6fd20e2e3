// One row of token chips a lane. Text is set as textContent only.
function element(className, text) {
  const node = document.createElement("div");
  node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

function chip(lane, index) {
  const judged = index < lane.right.length;
  const right = lane.right[index];
  const classes = ["token"];
  if (judged) classes.push(right ? "right" : "wrong");
  if (lane.moved[index]) classes.push("moved");
  if (lane.tokens[index].length > 2) classes.push("long");
  if ([...lane.tokens[index]].length > 6) classes.push("longest");
  const node = element(classes.join(" "), lane.tokens[index]);
  let spoken = `position ${index + lane.offset}: ${lane.tokens[index]}`;
  if (judged) {
    node.appendChild(element("mark", right ? "✓" : "✗"));
    spoken += right ? ", right" : ", wrong";
  }
  if (lane.probability.length) {
    const share = lane.probability[index];
    const bar = element("bar");
    bar.style.width = `${(100 * share).toFixed(1)}%`;
    node.appendChild(bar);
    spoken += `, probability ${share.toFixed(4)}`;
  }
  node.title = spoken;
  node.setAttribute("aria-label", spoken);
  node.setAttribute("role", "listitem");
  return node;
}

function draw(root, lanes) {
  const all = lanes.flatMap((lane) => lane.tokens);
  const longest = Math.max(...lanes.map((lane) => lane.offset + lane.tokens.length));
  root.classList.toggle("narrow", longest > 20 && all.every((token) => [...token].length <= 1 || token === "start"));
  root.replaceChildren();
  for (const lane of lanes) {
    root.appendChild(element("name", lane.name));
    const row = element("lane");
    row.setAttribute("role", "list");
    row.setAttribute("aria-label", lane.name);
    for (let i = 0; i < lane.offset; i++) row.appendChild(element("token gap"));
    lane.tokens.forEach((_, index) => row.appendChild(chip(lane, index)));
    root.appendChild(row);
  }
}

export default function ({ data, parentElement }) {
  const root = parentElement.querySelector(".strip") ?? parentElement.appendChild(element("strip"));
  draw(root, data);
}
