// Draws a model from its description (xformer/viz/diagram.py): parts on a residual stream that runs from left to right.
// Order of the file: layout (what stands where) -> shapes -> arrows and flow -> the view.

const RISE = { pre: 62, post: 54, none: 54 };      // from a sublayer down to the stream
const ABOVE = 102, ON = 88, SUM = 11, PILL = { w: 54, h: 26 }, HEAD = 30, BELOW = 50, LANE = 34, CARD = 6;
const SPEED = 430, SPACING = 10, MOST_DOTS = 12;   // of the flow: pixels a second, pixels between tokens
const instances = new WeakMap(); // the element that holds a view -> its view

export default function ({ data, parentElement, setTriggerValue }) {
  let view = instances.get(parentElement);
  if (!view) instances.set(parentElement, (view = new DiagramView(parentElement)));
  const call = ++view.calls;
  view.send = (target) => setTriggerValue("open", target);
  view.update(data);
  // An outdated call is cleaned up too: only the latest one may take the view down.
  return () => {
    if (view.calls !== call) return;
    view.destroy();
    instances.delete(parentElement);
  };
}

// ── layout ──────────────────────────────────────────────────────────────────────────────────────────────────────────

// The columns of a stack from left to right: [name, smallest width, largest width].
function columns(stack, data) {
  const has = (name) => data.boxes.some((box) => box.id === `${stack.name}.${name}`);
  const inside = data.arrows.some((arrow) => arrow.flow === "inside" && arrow.source === `${stack.name}.positions`);
  const list = [["", 2, 2], ["tokens", 58, 76], ["", 14, 30], ["embed", 110, 150]];
  if (has("pos_sum")) list.push(["", 11, 22], ["pos_sum", 2 * SUM, 2 * SUM]);
  list.push(["", inside ? 32 : 16, inside ? 56 : 34], ["frame", 10, 20]);
  for (let i = 0; i < stack.n_sublayers; i++) list.push(...(i ? [["", 12, 26]] : []), [`sub${i}`, 150, 250]);
  list.push(["frameEnd", 10, 20], ["", 22, 34]);
  if (has("final_norm")) list.push(["final_norm", PILL.w, PILL.w], ["", 18, 30]);
  if (has("output")) list.push(["output", 110, 150], ["tail", 20, 24]);
  else list.push(["tail", 20, 20]);
  return list;
}
const total = (list, which) => list.reduce((sum, column) => sum + column[which], 0);

// How much a picture is enlarged to fit a width, and the width it then has in its own units.
function fit(data, width) {
  const lists = data.stacks.map((stack) => columns(stack, data)), two = lists.length > 1;
  const least = Math.max(...lists.map((list) => total(list, 1))), most = Math.max(...lists.map((list) => total(list, 2)));
  const scale = Math.max(0.78, Math.min(two ? 1.16 : 1.42, width / (least * (two ? 1.0 : 1.1))));
  const room = Math.max(least, width / scale);
  const stretch = Math.min(1, (room - least) / Math.max(1, most - least));
  return { lists, scale, room, stretch, used: least + stretch * (most - least) };
}

function layout(data, width) {
  const { lists, scale, room, stretch, used } = fit(data, width);
  const places = new Map(), frames = [], rows = [];
  let top = 2 * CARD + 4;
  data.stacks.forEach((stack, row) => {
    const above = top + HEAD, stream = above + ABOVE + RISE[data.norm];
    let x = (room - used) / 2;
    const at = {};
    for (const [name, least, most] of lists[row]) {
      const w = least + stretch * (most - least);
      if (name) at[name] = { x, w };
      x += w;
    }
    rows.push({ above, stream, end: x, lane: stream + BELOW + LANE / 2 });
    frames.push({ stack, x: at.frame.x, y: top, w: at.frameEnd.x + at.frameEnd.w - at.frame.x, h: stream + BELOW - top });
    for (const box of data.boxes.filter((one) => one.stack === stack.name)) places.set(box.id, place(box, at, above, stream, data.norm));
    top = stream + BELOW + LANE;
  });
  return { places, frames, rows, scale, width: room, height: top - LANE + 4 };
}

function place(box, at, above, stream, norm) {
  const centred = (x, w, h, extra) => ({ x: x - w / 2, y: stream - h / 2, w, h, cx: x, stream, ...extra });
  const sub = box.sublayer === null ? null : at[`sub${box.sublayer}`];
  const up = sub && sub.x + (norm === "pre" ? 38 : 30);
  const down = sub && sub.x + sub.w - (norm === "post" ? PILL.w + 12 + SUM : 38);
  switch (box.kind) {
    case "tokens": return centred(at.tokens.x + at.tokens.w / 2, at.tokens.w, ON);
    case "embedding": return centred(at.embed.x + at.embed.w / 2, at.embed.w, ON);
    case "output": return centred(at.output.x + at.output.w / 2, at.output.w, ON);
    case "positions": {
      const right = at.pos_sum ? at.pos_sum.x + at.pos_sum.w + 4 : at.embed.x + at.embed.w;
      const left = at.pos_sum ? at.embed.x : at.tokens.x + at.tokens.w * 0.45;
      return { x: left, y: above, w: right - left, h: ABOVE, cx: (left + right) / 2, stream };
    }
    case "sum": return centred(sub ? down : at.pos_sum.x + SUM, 2 * SUM, 2 * SUM);
    case "norm":
      if (box.place === "rise") return { x: up - PILL.w / 2, y: stream - RISE.pre / 2 - PILL.h / 2 - 1, ...PILL, cx: up, stream, up };
      return centred((sub ? sub.x + sub.w : at.final_norm.x + PILL.w) - PILL.w / 2, PILL.w, PILL.h);
    default: return { x: sub.x, y: above, w: sub.w, h: ABOVE, cx: sub.x + sub.w / 2, stream, up, down };
  }
}

// ── shapes ──────────────────────────────────────────────────────────────────────────────────────────────────────────

const number = (n) => n.toLocaleString("en-GB");
function short(n) {
  if (n < 100_000) return number(n);
  return n < 999_500 ? `${Math.round(n / 1000)} k` : `${Number((n / 1e6).toPrecision(3))} M`;
}
const screen = (target) => (target.charAt(0).toUpperCase() + target.slice(1)).replaceAll("_", "-");

function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}
function html(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

class Pen { // writes text that fits
  constructor(style) {
    this.fonts = { sans: style.getPropertyValue("--st-font") || "sans-serif", mono: style.getPropertyValue("--st-code-font") || "monospace" };
    this.context = document.createElement("canvas").getContext("2d");
  }

  measure(text, size, { weight = 400, mono = false } = {}) {
    this.context.font = `${weight} ${size}px ${mono ? this.fonts.mono : this.fonts.sans}`;
    return this.context.measureText(text).width;
  }

  // A line of text: smaller, then cut, where it would be wider than `room`.
  write(text, x, y, size, room, { className = "", anchor = "start", weight = 400, mono = false } = {}) {
    let wide = this.measure(text, size, { weight, mono });
    if (wide > room) {
      const smaller = Math.max(size * 0.78, (size * room) / wide);
      wide *= smaller / size;
      size = smaller;
    }
    const letters = Array.from(text);
    while (wide > room + 0.5 && letters.length > 1) {
      letters.pop();
      wide = this.measure(letters.join("") + "…", size, { weight, mono });
    }
    const node = svg("text", { x, y, "font-size": size.toFixed(2), "text-anchor": anchor, class: `${className}${mono ? " mono" : ""}` });
    if (weight !== 400) node.setAttribute("font-weight", weight);
    node.textContent = letters.length < Array.from(text).length ? letters.join("") + "…" : text;
    return node;
  }
}

// Who may look at whom, as a small square of cells: query downwards, key to the right.
function maskIcon(mask, x, y) {
  const group = svg("g", { "aria-hidden": "true" }), n = 4, step = 4.6;
  for (let q = 0; q < n; q++) {
    for (let k = 0; k < n; k++) {
      const near = !mask.endsWith("window") || Math.abs(q - k) < 2;
      const on = near && (mask === "full" || mask === "window" || k < q || (mask !== "strict" && k === q));
      group.append(svg("rect", { x: x + k * step, y: y + q * step, width: 3.8, height: 3.8, rx: 0.8, class: on ? "cell" : "cell off" }));
    }
  }
  return group;
}

function tokensGlyph(n, cx, cy) { // one square a token, at most nine
  const group = svg("g", { "aria-hidden": "true" }), shown = Math.min(n, 9), wide = Math.min(shown, 3), tall = Math.ceil(shown / 3), step = 9;
  for (let i = 0; i < shown; i++) {
    group.append(svg("rect", {
      x: cx - (wide * step - 2) / 2 + (i % 3) * step, y: cy - (tall * step - 2) / 2 + Math.floor(i / 3) * step, width: 7, height: 7, rx: 1.6, class: "glyph",
    }));
  }
  return group;
}

function drawBox(box, at, pen, hues, dark) {
  const group = svg("g", { class: `box ${box.kind}`, tabindex: "0", role: box.open ? "link" : "img", "data-id": box.id });
  group.style.setProperty("--hue", box.hue[dark ? 1 : 0]);
  const pad = at.w < 130 ? 9 : 11, { x, y, w, h, cx } = at, room = w - 2 * pad, left = x + pad, muted = "muted";
  const params = (space) => {
    const words = `${short(box.parameters)} ${box.parameters === 1 ? "parameter" : "parameters"}`;
    return [words, words.replace("parameter", "param"), short(box.parameters)].find((text, i) => pen.measure(text, i < 2 ? 12 : 9.9) <= space) ?? "";
  };
  if (box.kind === "sum") {
    group.append(svg("circle", { cx, cy: at.stream, r: 20, class: "hit" }), svg("circle", { cx, cy: at.stream, r: SUM, class: "shape" }));
    group.append(svg("path", { d: `M${cx - 5} ${at.stream}h10M${cx} ${at.stream - 5}v10`, class: "plus" }));
    return group;
  }
  const radius = box.kind === "norm" ? h / 2 : 11;
  group.append(svg("rect", { x, y, width: w, height: h, rx: radius, class: "shape" }));
  if (box.kind === "norm") group.append(pen.write(box.title, cx, y + 17.5, 12.5, w - 8, { anchor: "middle", weight: 600 }));
  else if (box.kind === "tokens") {
    group.append(pen.write(box.title, cx, y + 21, 13.5, w - 8, { className: "title", anchor: "middle", weight: 650 }));
    group.append(tokensGlyph(box.length, cx, y + 45));
    group.append(pen.write(box.shape, cx, y + 77, 12, w - 8, { className: muted, anchor: "middle", mono: true }));
  } else if (at.h === ON) { // on the stream
    group.append(pen.write(box.title, left, y + 22, 14.5, room, { className: "title", weight: 650 }));
    group.append(pen.write(box.equation, left, y + 41, 13, room));
    group.append(pen.write(box.shape, left, y + 60, 12, room, { className: muted, mono: true }));
    group.append(pen.write(box.parameters ? params(room) : box.note.startsWith("shares") ? "shared" : "", left, y + 77, 12, room, { className: muted }));
  } else { // above the stream
    const icon = box.mask ? 24 : 0;
    group.append(pen.write(box.title, left, y + 23, 14.5, room - icon, { className: "title", weight: 650 }));
    if (box.mask) group.append(maskIcon(box.mask, x + w - pad - 18, y + 10));
    group.append(pen.write(box.equation, left, y + 44, 13, room));
    group.append(...detail(box, left, y + 66, room, pen, hues, dark));
    const wide = pen.measure(box.shape, 12, { mono: true });
    group.append(pen.write(box.shape, left, y + 89, 12, room, { className: muted, mono: true }));
    if (box.parameters && room - wide > 24) group.append(pen.write(params(room - wide - 7), x + w - pad, y + 89, 12, room - wide - 7, { className: muted, anchor: "end" }));
  }
  return group;
}

function detail(box, x, y, room, pen, hues, dark) { // heads as chips in their hues, then words
  const chips = [];
  if (box.heads && box.heads <= 16) {
    const pitch = Math.min(12, (room - pen.measure(box.detail, 12.5) - 8) / box.heads), size = Math.max(3, pitch - 2.5);
    for (let i = 0; i < box.heads; i++) {
      chips.push(svg("rect", { x: x + i * pitch, y: y - 4.5 - size / 2, width: size, height: size, rx: 2, fill: hues[i % hues.length][dark ? 1 : 0] }));
    }
    x += box.heads * pitch + 5;
    room -= box.heads * pitch + 5;
  }
  return [...chips, pen.write(box.detail, x, y, 12.5, room, { className: "muted" })];
}

// ── arrows and flow ─────────────────────────────────────────────────────────────────────────────────────────────────

// The corners of an arrow, and how far along the stream it begins and ends (the flow keeps time by that).
function route(arrow, places, boxes, rows) {
  const a = places.get(arrow.source), b = places.get(arrow.target), source = boxes.get(arrow.source), target = boxes.get(arrow.target);
  if (arrow.flow === "stream" || arrow.flow === "residual") return { points: [[a.x + a.w, a.stream], [b.x, b.stream]], from: a.x + a.w, to: b.x };
  if (arrow.flow === "add") return { points: [[b.cx, a.y + a.h], [b.cx, b.y]], from: b.cx - 40, to: b.cx };
  if (arrow.flow === "inside") {
    const y = a.y + a.h / 2;
    return { points: [[a.x + a.w, y], [b.x, y]], from: b.up + 12, to: b.up + 52 };
  }
  if (arrow.flow === "memory") {
    const out = a.x + a.w + 34, lane = rows[0].lane - 4;
    return { points: [[a.x + a.w, a.stream], [out, a.stream], [out, lane], [b.cx, lane], [b.cx, b.y]], from: a.x + a.w, to: a.x + a.w + 0.7 * (lane - a.stream + out - b.cx) };
  }
  const up = b.up ?? a.up, sublayer = source.place === "above" ? a : b, span = sublayer.down ? sublayer.down - up : 60;
  if (source.place === "above") return { points: [[b.cx, a.y + a.h], [b.cx, b.y]], from: b.cx - 0.3 * (b.cx - a.up), to: b.cx };
  if (source.place === "rise") return { points: [[up, a.y], [up, b.y + b.h]], from: up + 0.2 * span, to: up + 0.34 * span };
  return { points: [[up, a.stream], [up, b.y + b.h]], from: up, to: up + (target.place === "rise" ? 12 : 0.3 * span), fork: true };
}

function pathOf(points, radius = 10) { // a polyline with rounded corners
  let d = `M${points[0].join(" ")}`;
  for (let i = 1; i < points.length - 1; i++) {
    const [px, py] = points[i - 1], [x, y] = points[i], [nx, ny] = points[i + 1];
    const before = Math.hypot(x - px, y - py), after = Math.hypot(nx - x, ny - y), r = Math.min(radius, before / 2, after / 2);
    if (r < 0.5) { d += `L${x} ${y}`; continue; }
    d += `L${x - ((x - px) / before) * r} ${y - ((y - py) / before) * r}Q${x} ${y} ${x + ((nx - x) / after) * r} ${y + ((ny - y) / after) * r}`;
  }
  return d + `L${points.at(-1).join(" ")}`;
}

function arrowHead(points, size) {
  const [x, y] = points.at(-1), [px, py] = points.at(-2), length = Math.hypot(x - px, y - py) || 1;
  const [ux, uy] = [(x - px) / length, (y - py) / length], [bx, by] = [x - ux * size, y - uy * size], half = size * 0.55;
  return `M${x} ${y}L${bx - uy * half} ${by + ux * half}L${bx + uy * half} ${by - ux * half}Z`;
}

// A train of dots that runs along `d` while the tokens are between `from` and `to`, once every `period`. The path only
// changes while a dot is on it, so the browser has nothing to paint elsewhere, nor between two trains.
function flow(d, from, to, dots, period, hue, quiet) {
  const span = Math.max(1, to - from), n = Math.min(dots, MOST_DOTS), reach = 4;
  const dashes = [0.01, 2 * period];
  for (let i = 1; i < n; i++) dashes.push(0.01, SPACING - 0.01);
  const node = svg("path", { d, class: quiet ? "flow quiet" : "flow", pathLength: span, "stroke-dasharray": dashes.join(" "), "aria-hidden": "true" });
  node.style.setProperty("--hue", hue);
  const begin = Math.max(0, from - reach), finish = Math.min(period, to + SPACING * (n - 1) + reach);
  const at = (time) => ({ strokeDashoffset: String(from - time), offset: time / period });
  const frames = [{ ...at(begin), offset: 0 }, at(begin), at(finish), { ...at(finish), offset: 1 }];
  return { node, frames, timing: { duration: (1000 * period) / SPEED, iterations: Infinity } };
}

// ── the view ────────────────────────────────────────────────────────────────────────────────────────────────────────

class DiagramView {
  constructor(parent) {
    this.calls = 0;
    this.root = html("div", "dg");
    this.scroll = html("div", "scroll");
    this.readout = html("div", "readout");
    this.words = html("div", "words");
    this.pause = html("button", "pause", "Pause");
    this.pause.type = "button";
    this.pause.addEventListener("click", () => this.toggle());
    this.pause.setAttribute("aria-label", "Pause or play the flow of the tokens");
    this.readout.append(this.words, this.pause);
    this.root.append(this.scroll, this.readout);
    parent.append(this.root);
    this.resizing = new ResizeObserver(() => { if (this.data) this.draw(); });
    this.resizing.observe(this.root);
    for (const name of ["pointerover", "focusin"]) this.scroll.addEventListener(name, (event) => this.point(this.boxOf(event)));
    for (const name of ["pointerleave", "focusout"]) this.scroll.addEventListener(name, () => this.point(null));
    this.scroll.addEventListener("click", (event) => this.choose(this.boxOf(event)));
    this.scroll.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      this.choose(this.boxOf(event));
    });
  }

  destroy() {
    this.resizing.disconnect();
    this.root.remove();
  }

  update(data) {
    this.data = data;
    this.boxes = new Map(data.boxes.map((box) => [box.id, { ...box, length: this.tokensOf(box.stack) }]));
    this.key = JSON.stringify(data);
    this.draw();
  }

  tokensOf(stack) { // "[1, 9]" -> 9
    const box = this.data.boxes.find((one) => one.stack === stack && one.kind === "tokens");
    return Number(box.shape.slice(1, -1).split(",").at(-1));
  }

  boxOf(event) {
    const node = event.target.closest?.(".box");
    return node ? this.boxes.get(node.dataset.id) : null;
  }

  choose(box) { if (box?.open) this.send(box.open); }

  draw() {
    const width = this.root.clientWidth, style = getComputedStyle(this.root);
    const [r, g, b] = style.backgroundColor.match(/[\d.]+/g)?.map(Number) ?? [255, 255, 255];
    const dark = 0.2126 * r + 0.7152 * g + 0.0722 * b < 110;
    const key = [width, dark, style.getPropertyValue("--st-font"), this.key].join("|");
    if (!width || key === this.drawn) return;
    this.drawn = key;
    this.root.classList.toggle("narrow", width < 1000);
    const focused = this.root.getRootNode().activeElement?.dataset?.id;
    const data = this.data, plan = layout(data, width), pen = new Pen(style);
    const { places, frames, rows, scale } = plan;
    const picture = svg("svg", {
      width: Math.floor(plan.width * scale), height: Math.ceil(plan.height * scale), viewBox: `0 0 ${plan.width} ${plan.height}`,
      role: "group", "aria-label": `Diagram of the model: ${data.title}${data.parameters ? `, ${number(data.parameters)} parameters` : ""}`,
    });
    for (const frame of frames) picture.append(...this.frame(frame, pen));
    const wires = svg("g"), flows = svg("g"), boxes = svg("g");
    this.wires = [];
    const trains = this.drawArrows(wires, flows, places, rows, dark, pen);
    for (const box of this.boxes.values()) {
      const node = drawBox(box, places.get(box.id), pen, data.hues, dark);
      if (box.open) node.setAttribute("data-open", box.open);
      node.setAttribute("aria-label", this.spoken(box));
      boxes.append(node);
    }
    picture.append(wires, flows, boxes);
    this.scroll.replaceChildren(picture);
    this.run(trains);
    if (focused) picture.querySelector(`[data-id="${CSS.escape(focused)}"]`)?.focus();
    this.dark = dark;
    this.point(null);
  }

  frame({ stack, x, y, w, h }, pen) {
    const nodes = [], many = stack.n_layers > 1;
    for (const i of many ? [2, 1] : []) nodes.push(svg("rect", { x: x + i * CARD, y: y - i * CARD, width: w, height: h, rx: 16, class: "frame" }));
    const ground = svg("rect", { x, y, width: w, height: h, rx: 16, class: "frame" });
    nodes.push(ground, pen.write(stack.title, x + 14, y + 20, 13, w / 2, { className: "muted", weight: 600 }));
    if (!many) return nodes;
    const text = `× ${stack.n_layers} layers`, wide = pen.measure(text, 13, { weight: 650 }) + 18;
    nodes.push(svg("rect", { x: x + w - wide - 10, y: y + 5, width: wide, height: 20, rx: 10, class: "badge" }));
    nodes.push(pen.write(text, x + w - wide / 2 - 10, y + 19.5, 13, wide, { className: "badge-text", anchor: "middle", weight: 650 }));
    return nodes;
  }

  drawArrows(wires, flows, places, rows, dark, pen) {
    const { arrows, stacks, moving } = this.data, hue = (pair) => pair[dark ? 1 : 0];
    const routes = arrows.map((arrow) => ({ arrow, ...route(arrow, places, this.boxes, rows) }));
    const start = Object.fromEntries(stacks.map((stack) => [stack.name, places.get(`${stack.name}.tokens`).x]));
    for (const stack of stacks) { // the way out
      const last = places.get(`${stack.name}.output`);
      if (last) routes.push({ arrow: { source: `${stack.name}.output`, target: "", flow: "stream" }, points: [[last.x + last.w, last.stream], [last.x + last.w + 19, last.stream]], from: last.x + last.w, to: last.x + last.w + 19 });
    }
    // A decoder starts so that its tokens meet the memory at the cross-attention.
    const meets = routes.find((one) => one.arrow.flow === "memory");
    const late = meets ? Math.max(0, meets.to - start.encoder - (places.get(meets.arrow.target).up - start.decoder)) : 0;
    const when = (stack, x) => x - start[stack] + (meets && stack === "decoder" ? late : 0);
    const end = Math.max(...routes.map((one) => when(this.boxes.get(one.arrow.source).stack, one.to)));
    const period = end + SPACING * MOST_DOTS + Math.max(500, 0.5 * end);
    const labels = [], trains = [];
    for (const { arrow, points, from, to, fork } of routes) {
      const source = this.boxes.get(arrow.source), target = this.boxes.get(arrow.target), thick = arrow.flow === "stream" || arrow.flow === "residual";
      const part = ["attention", "feed_forward", "positions"].includes(source.kind) ? source : target?.place === "above" ? target : source;
      const tint = arrow.flow === "memory" ? hue(moving) : arrow.flow === "inside" || arrow.flow === "add" ? hue(source.hue) : hue(part.hue);
      // The line ends inside the arrow head, so that its blunt end does not show.
      const size = thick ? 9 : 8, [x, y] = points.at(-1), [px, py] = points.at(-2), length = Math.hypot(x - px, y - py) || 1;
      const short = [...points.slice(0, -1), [x - ((x - px) / length) * (size - 2), y - ((y - py) / length) * (size - 2)]];
      const wire = svg("path", { d: pathOf(short), class: `wire ${arrow.flow}` }), tip = svg("path", { d: arrowHead(points, size), class: `tip ${arrow.flow}` });
      for (const node of [wire, tip]) node.style.setProperty("--hue", tint);
      wires.append(wire, tip);
      if (fork) wires.append(svg("circle", { cx: points[0][0], cy: points[0][1], r: 3.4, class: "fork" }));
      this.wires.push({ arrow, nodes: [wire, tip] });
      const stack = source.stack, tokens = this.tokensOf(stack);
      const embedded = source.kind !== "tokens";
      const colour = thick ? (embedded ? hue(moving) : hue(source.hue)) : tint;
      trains.push(flow(pathOf(points), when(stack, from), when(stack, to), tokens, period, colour, !thick));
      if (arrow.flow === "memory") labels.push(pen.write("keys and values", Math.max(points[3][0], points[2][0]) + 10, points[2][1] + 4, 12.5, 160, { className: "muted" }));
    }
    for (const stack of stacks) {
      const first = this.data.boxes.find((box) => box.stack === stack.name && box.sublayer === 0 && box.place === "above");
      const at = places.get(first.id);
      labels.push(pen.write("residual stream", at.up - 4, at.stream + 33, 12.5, at.w, { className: "muted" }));
    }
    wires.append(...labels);
    flows.append(...trains.map((train) => train.node));
    return trains;
  }

  // Set off all trains together; a picture drawn anew goes on at the moment the old one had reached.
  run(trains) {
    if (matchMedia("(prefers-reduced-motion: reduce)").matches) return;
    const reached = this.trains?.[0]?.currentTime ?? 0;
    this.trains = trains.map(({ node, frames, timing }) => node.animate(frames, timing));
    for (const train of this.trains) {
      train.currentTime = reached;
      if (this.still) train.pause();
    }
  }

  toggle() {
    this.still = !this.still;
    for (const train of this.trains ?? []) if (this.still) train.pause(); else train.play();
    this.pause.textContent = this.still ? "Play" : "Pause";
  }

  incoming(box) { // the shapes that flow into a part
    const shapes = this.data.arrows.filter((arrow) => arrow.target === box.id && arrow.flow !== "inside").map((arrow) => this.boxes.get(arrow.source).shape);
    return [...new Set(shapes)];
  }

  counted(box) {
    if (!box.parameters) return box.note || "no parameters";
    const words = box.parameters === 1 ? "1 parameter" : `${number(box.parameters)} parameters`;
    return box.repeats > 1 ? `${words} × ${box.repeats} layers` : words;
  }

  spoken(box) {
    const opens = box.open ? ` Opens the screen ${screen(box.open)}.` : "";
    return `${box.title}: ${box.what} Output shape ${box.shape}, ${this.counted(box)}.${opens}`;
  }

  point(box) { // what is under the pointer or has the focus
    for (const { arrow, nodes } of this.wires ?? []) {
      for (const node of nodes) node.classList.toggle("on", !!box && (arrow.source === box.id || arrow.target === box.id));
    }
    const line = html("div"), facts = html("div", "facts");
    if (box) {
      this.words.style.setProperty("--hue", box.hue[this.dark ? 1 : 0]);
      line.append(html("b", "", box.title), box.what);
      if (box.open) line.append(" ", html("span", "go", `Click opens ${screen(box.open)}.`));
      const into = this.incoming(box);
      facts.append(html("span", "mono", into.length ? `${into.join(" + ")} → ${box.shape}` : box.shape), html("span", "", this.counted(box)));
      if (box.activation) facts.append(html("span", "mono", box.activation));
    } else {
      this.words.style.removeProperty("--hue");
      line.append(html("b", "", this.data.title), this.data.parameters ? `${number(this.data.parameters)} parameters` : "");
      const click = this.data.boxes.some((one) => one.open) ? "; click it to open its screen" : "";
      facts.append(html("span", "", `Point at a part to read what it does${click}. Shapes are those of this input.`));
    }
    this.words.replaceChildren(line, facts);
  }
}
