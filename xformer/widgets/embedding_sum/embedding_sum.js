// Animation of token + position = sum: how each token of an input becomes the vector that enters layer 1.
//
//   const picture = new EmbeddingSum(element);
//   picture.update(bytes);            // the JSON of `embedding_sum_data`
//
// At the top, one token: its vector, its position vector, and their sum. Below, one row per token. All numbers are from the run.

import { Animation } from "../animation.js";
import { ink, palette, theme } from "../shared.js";

const SECONDS = { tokens: 0.8, positions: 0.7, sum: 1.5 };
const LATER = 0.3; // duration of later tokens, relative to the first
const WHOLE = 10; // longest duration, in seconds
const NARROW = 640; // px
const STRIP = 36, GAP = 8; // px: height of the numbers of a token, and the gap between them

const clamp = (x) => Math.min(1, Math.max(0, x));
const ease = (p) => 1 - (1 - p) ** 3;

function partsOf({ rows, columns }) {
  const once = columns.reduce((all, { name }) => all + SECONDS[name], 0);
  const later = Math.min(LATER, (WHOLE / once - 1) / Math.max(1, rows.length - 1));
  let at = 0;
  return rows.flatMap((_, r) => columns.map(({ name }, c) => {
    const part = { r, c, from: at, takes: SECONDS[name] * (r ? later : 1) };
    at += part.takes;
    return part;
  }));
}

// The layout, in CSS pixels of the canvas.
function layOut({ rows, columns }, width) {
  const isNarrow = width < NARROW;
  const label = isNarrow ? 76 : 128;
  const apart = isNarrow ? 16 : 34;
  const strips = 20;
  const top = strips + columns.length * (STRIP + GAP) + 34;
  const row = Math.max(13, Math.min(26, 300 / rows.length));
  const cells = Math.min(Math.max(1, Math.floor((width - label) / (isNarrow ? 42 : 46))), columns[0].dimensions.length);
  const across = (width - 2 - label - apart * (columns.length - 1)) / columns.length;
  const place = { width, isNarrow, label, apart, strips, top, row, cells, across, bottom: top + row * rows.length };
  place.cell = Math.min(64, (width - 2 - label) / cells);
  place.height = place.bottom + 50;
  return place;
}

const number = (value, limit) => value.toFixed(limit < 0.1 ? 3 : Math.abs(value) < 9.995 ? 2 : 1).replace("-", "−");

// Draw one frame and return its interactive regions.
function paint(context, data, place, doneOf, shown, look) {
  const { rows, columns, limit } = data;
  const { label, strips, top, row, across, apart, cell } = place;
  const regions = [];
  context.clearRect(0, 0, place.width, place.height);
  context.textBaseline = "middle";
  const text = (words, x, y, { align = "left", colour = look.text, alpha = 1, most = 1e9, size = 13, weight = "" } = {}) => {
    context.font = `${weight} ${size}px ${look.font}`;
    context.globalAlpha = alpha;
    context.fillStyle = colour;
    context.textAlign = align;
    let fits = words;
    while (fits.length > 1 && context.measureText(fits).width > most) fits = `${fits.replace(/…$/, "").slice(0, -1)}…`;
    context.fillText(fits, x, y);
    context.globalAlpha = 1;
  };
  const box = (rgb, x, y, width, height, alpha = 1) => {
    context.globalAlpha = alpha;
    context.fillStyle = `rgb(${rgb.join(" ")})`;
    context.fillRect(x, y, width, height);
    context.globalAlpha = 1;
  };
  const small = place.isNarrow ? 10.5 : 12;
  const signs = ["", "+", data.is_sum ? "=" : "→"];

  // One token: its vector, its position vector and their sum.
  const at = rows[shown];
  const names = { tokens: at.token, positions: `${place.isNarrow ? "pos." : "position"} ${at.position}`, sum: data.is_sum ? "sum" : "layer 1" };
  const middle = (c) => strips + c * (STRIP + GAP) + STRIP / 2;
  text("dimension", label - 12, 8, { align: "right", size: small, colour: look.faint });
  columns.forEach((column, c) => {
    const [done, y] = [doneOf(shown, c), middle(c)];
    text(signs[c], 0, y, { size: 18, colour: look.faint });
    text(names[column.name], c ? 20 : 0, y, { weight: c ? "" : "bold", size: c ? 13 : 15, most: label - 26 - (c ? 6 : 0), alpha: c && !done ? 0.35 : 1 });
    for (let i = 0; i < place.cells; i += 1) {
      const x = label + i * cell;
      if (!c) text(String(column.dimensions[i]), x + cell / 2, 8, { align: "center", size: small, colour: look.faint });
      const value = column.values[shown][i];
      const rgb = look.colour(value);
      const isSum = column.name === "sum";
      const arrived = ease(clamp((done * (place.cells + 3) - i) / 3));
      context.strokeStyle = look.line;
      context.strokeRect(x + 1.5, y - STRIP / 2 + 0.5, cell - 3, STRIP - 1);
      const seen = isSum ? arrived ** 4 : arrived;
      box(rgb, x + 1, y - STRIP / 2, cell - 2, STRIP, seen);
      text(number(value, limit), x + cell / 2, y, { align: "center", size: small, colour: ink(rgb), alpha: seen });
      if (isSum && arrived > 0 && arrived < 0.999) { // both numbers move down to their sum
        for (const from of [0, 1]) {
          const falling = middle(from) + (y - middle(from)) * arrived;
          text(number(columns[from].values[shown][i], limit), x + cell / 2, falling, { align: "center", size: small, alpha: 0.9 * (1 - arrived ** 3), weight: "bold" });
        }
      }
    }
    regions.push({ x: label, y: y - STRIP / 2, width: cell * place.cells, height: STRIP, r: shown, c, n: place.cells });
  });
  const width = columns[0].width;
  if (place.cells < width) text(`${place.cells} of ${width} numbers`, label + cell * place.cells, strips + columns.length * (STRIP + GAP) + 2, { align: "right", size: small, colour: look.faint });

  // All tokens, one row each.
  columns.forEach((column, c) => {
    const x = label + c * (across + apart);
    const n = column.dimensions.length;
    text(place.isNarrow ? column.name : data.titles[c], x + across / 2, top - 12, { align: "center", most: across + apart - 4, size: 13, weight: "bold" });
    if (c) text(signs[c], x - apart / 2, (top + place.bottom) / 2, { align: "center", size: 20, colour: look.faint });
    context.strokeStyle = look.line;
    context.strokeRect(x - 0.5, top - 0.5, across + 1, place.bottom - top + 1);
    rows.forEach((_, r) => {
      const done = doneOf(r, c);
      if (done) column.values[r].forEach((value, i) => box(look.colour(value), x + (i * across) / n, top + r * row, across / n + 0.4, row - 1, done));
    });
    regions.push(...rows.map((_, r) => ({ x, y: top + r * row, width: across, height: row, r, c, n })));
    text("0", x, place.bottom + 12, { size: small, colour: look.faint });
    text(String(column.width - 1), x + across, place.bottom + 12, { align: "right", size: small, colour: look.faint });
    if (across > 130) text("dimension", x + across / 2, place.bottom + 12, { align: "center", size: small, colour: look.faint });
  });
  rows.forEach(({ position, token }, r) => {
    const y = top + (r + 0.5) * row;
    text(String(position), 18, y, { align: "right", size: small, colour: look.faint });
    text(token, 26, y, { most: label - 32, size: Math.min(13, row - 1), weight: r === shown ? "bold" : "" });
    regions.push({ x: 0, y: top + r * row, width: label, height: row, r });
  });
  context.strokeStyle = look.primary;
  context.lineWidth = 2;
  context.strokeRect(label - 2, top + shown * row - 1.5, place.width - label, row + 2);
  context.lineWidth = 1;

  const [long, end, y] = [120, place.width - 40, place.bottom + 36];
  for (let i = 0; i < long; i += 1) box(look.colour(limit * ((2 * i) / (long - 1) - 1)), end - long + i, y - 5, 1.2, 10);
  text(number(-limit, limit), end - long - 6, y, { align: "right", size: small, colour: look.faint });
  text(number(limit, limit), end + 6, y, { size: small, colour: look.faint });
  return regions;
}

function lookOf(root, { colours, limit }) {
  const { variable, isDark } = theme(root);
  const { rgb } = palette(colours[isDark]);
  return {
    text: variable("--st-text-color", "#131722"),
    primary: variable("--st-primary-color", "#2557d6"),
    faint: isDark ? "#a5afc2" : "#5a6376",
    line: isDark ? "#333c4d" : "#dfe3eb",
    font: variable("--st-font", "system-ui, sans-serif"),
    colour: (value) => rgb[Math.round(253 * clamp(0.5 + (0.5 * value) / limit))],
  };
}

function sentence(data, part) {
  const { token, id, position } = data.rows[part.r];
  const name = data.columns[part.c].name;
  if (name === "tokens") return id === null ? `${token} becomes a vector` : `“${token}” is token ${id}: it looks up row ${id} of the embedding matrix`;
  if (name === "positions") return `The vector of position ${position} is added`;
  return data.is_sum ? "The sum enters layer 1" : "The combined vector enters layer 1";
}

export class EmbeddingSum extends Animation {
  labels = { play: "▶ Play", again: "↻ Again" };
  partsOf = partsOf;
  layOut = layOut;
  lookOf = lookOf;

  constructor(parent) {
    super(parent, "embedding-sum");
  }

  read(bytes) {
    this.chosen = null; // the selected row
    return JSON.parse(new TextDecoder().decode(bytes));
  }

  title() {
    return `${this.data.titles.join(", ")}: the vectors of ${this.data.rows.map((row) => row.token).join(" ")}`;
  }

  says() {
    const { data, clock } = this;
    return clock.isOver ? `${data.rows.length} of ${data.n} ${data.what}, ${data.columns[0].width} numbers each` : sentence(data, clock.part);
  }

  paint() {
    const { data, clock } = this, n = data.columns.length;
    const doneOf = (r, c) => clock.done(clock.parts[r * n + c]);
    return paint(this.context, data, this.place, doneOf, this.chosen ?? clock.part.r, this.look);
  }

  play() {
    this.chosen = null;
    super.play();
  }

  step(by) {
    this.chosen = null;
    super.step(by);
  }

  // Select the row of a region, and complete the animation up to it.
  click(region) {
    const { r } = region, last = this.clock.parts.findLast((part) => part.r === r);
    if (last) this.clock.now = Math.max(this.clock.now, last.from + last.takes);
    this.chosen = r;
    this.pause();
  }

  point(event) {
    const region = event && this.regionAt(event);
    this.canvas.style.cursor = region ? "pointer" : "default";
    this.tell(region, region?.c === undefined ? "" : this.valueAt(region));
  }

  valueAt(region) {
    const { columns, titles, rows } = this.data;
    const i = Math.min(region.n - 1, Math.floor(((region.at[0] - region.x) / region.width) * region.n));
    const { dimensions, values } = columns[region.c];
    const { position, token } = rows[region.r];
    return `${titles[region.c]}, ${position} · ${token}, dimension ${dimensions[i]}: ${values[region.r][i]}`;
  }
}
