// The scene: an animation of one run of a model, from its tokens to its answers.
//
//   const scene = new Scene(element);
//   scene.send = (event) => …;        // { open: { screen, head } } after a click, { edit: { at, was, text } } after an edited token
//   scene.update(bytes);              // packed by `scene_data`
//
// All numbers are from the run. `partsOf` defines the timing, `layOut` the layout, and `paint` draws one frame.

import { Animation } from "../animation.js";
import { element, headerOf, LEVELS, palette, pen, theme } from "../shared.js";

const SECONDS = { tokens: 0.6, embed: 0.9, position: 0.9, attention: 1.1, feed: 0.7, answer: 0.9 };
const WHOLE = 5; // longest duration of a run, in seconds
const NARROW = 640, CONTROLS = 90; // px
const AHEAD = 0.7; // opacity of parts that the run has not reached

function read(bytes) {
  const [header, packed] = headerOf(bytes);
  const body = packed.slice(); // a copy, for alignment
  for (const stack of header.stacks) {
    for (const column of [...stack.columns, ...stack.layers.map((layer) => layer.after).filter(Boolean)]) {
      column.values = new Float32Array(body.buffer, column.at, stack.tokens.length * column.dimensions.length);
    }
    for (const part of stack.layers.flatMap((layer) => layer.attention)) {
      const [rows, keys] = part.shape;
      part.weights = body.subarray(part.at, part.at + part.drawn * rows * keys);
    }
  }
  return header;
}

// The parts of a run in order, with their durations in seconds.
function partsOf(scene) {
  const parts = [];
  scene.stacks.forEach((stack, s) => {
    parts.push({ kind: "tokens", s, says: stack.name === "decoder" && s > 0 ? "The decoder reads the tokens written so far" : "The input is cut into tokens" });
    if (stack.columns.length) parts.push({ kind: "embed", s, says: `Each token becomes a vector of ${stack.columns[0].width} numbers` });
    if (stack.columns.length > 1) parts.push({ kind: "position", s, says: "The vector of its position is added" });
    stack.layers.forEach((layer, l) => {
      layer.attention.forEach((part, a) => {
        const across = part.kind === "cross_attn" ? " over the encoder output" : "";
        const heads = `${part.heads} head${part.heads > 1 ? "s" : ""}`;
        parts.push({ kind: "attention", s, l, a, says: `Layer ${l + 1} · attention${across}: ${heads} move${part.heads > 1 ? "" : "s"} information between tokens` });
      });
      if (layer.fed) parts.push({ kind: "feed", s, l, says: `Layer ${l + 1} · feed-forward: each vector is updated separately` });
    });
  });
  if (scene.answers.length) parts.push({ kind: "answer", s: scene.stacks.length - 1, says: "The last vectors become probabilities" });
  const total = parts.reduce((sum, part) => sum + SECONDS[part.kind], 0);
  const faster = Math.min(1, WHOLE / total);
  let at = 0;
  for (const part of parts) {
    part.from = at;
    part.takes = SECONDS[part.kind] * faster;
    at += part.takes;
  }
  return parts;
}

// The layout, in CSS pixels of the canvas.
function layOut(scene, width) {
  const usual = placed(scene, width, width < NARROW ? 1 : Math.max(1, Math.min(1.8, innerHeight / 720))); // of a projector
  if (!document.documentElement.hasAttribute("data-stage-view")) return usual;
  return placed(scene, width, Math.max(1, (innerHeight - CONTROLS) / placed(scene, width, 1).height));
}

function placed(scene, width, tall) { // `tall`: how much higher than usual
  const isNarrow = width < NARROW;
  const rows = Math.max(...scene.stacks.map((stack) => stack.tokens.length), 1);
  const row = Math.max(13, Math.min(38 * tall, (270 * tall) / rows));
  const top = 26;
  const place = { width, row, top, bottom: top + rows * row, stacks: /** @type {object[]} */ ([]), isNarrow, type: 0 };
  place.type = isNarrow ? 11 : Math.max(12.5, Math.min(12.5 * tall, 17, row * 0.6)); // px of the font
  const larger = isNarrow ? 1 : place.type / 12.5;
  const longest = Math.max(...scene.stacks.flatMap((stack) => stack.tokens.map((token) => token.length)), 2);
  const chip = larger * Math.min(isNarrow ? 60 : 92, Math.max(46, 18 + longest * 7.4));
  const answers = scene.answers.length ? (isNarrow ? (scene.continues ? 106 : 74) : 150 * larger) : 10;
  const layers = scene.stacks.reduce((sum, stack) => sum + stack.layers.length, 0);
  const isDeep = layers > 8;
  const strip = isNarrow ? 22 : isDeep ? 56 : 72;
  const areFew = isNarrow || (scene.stacks.length > 1 && width < 1200); // only the input of the first layer
  const stripsOf = (stack) => (isNarrow && isDeep ? [] : areFew ? stack.columns.slice(-1) : stack.columns);
  let fixed = answers + 8;
  for (const stack of scene.stacks) fixed += chip + 10 + stripsOf(stack).length * (strip + 14);
  const each = Math.max(4, (width - fixed) / Math.max(1, layers));
  const inner = isDeep || isNarrow ? 0 : Math.min(64, each * 0.36); // room for the vectors between two layers
  const pitch = each < 12 ? (width - 4) / Math.max(1, layers) : each; // of heads: below a deep model on a phone, the whole width
  let x = 2, before = 0;
  scene.stacks.forEach((stack) => {
    const at = { chip: x, chipWidth: chip, columns: /** @type {object[]} */ ([]), layers: /** @type {object[]} */ ([]) };
    x += chip + 10;
    stack.columns.forEach((column) => {
      const isShown = stripsOf(stack).includes(column);
      at.columns.push({ x, width: isShown ? strip : 0 });
      if (isShown) x += strip + 14;
    });
    stack.layers.forEach(() => {
      const headsAt = pitch > each ? 2 + before * pitch : x + 2;
      at.layers.push({ x, width: each - inner, stripAt: x + each - inner + 2, stripWidth: Math.max(0, inner - 8), headsAt });
      x += each;
      before += 1;
    });
    place.stacks.push(at);
  });
  place.answers = x + 8;
  // The heads of a layer are in the number of columns that makes them largest.
  const heads = Math.max(...scene.stacks.flatMap((stack) => stack.layers.map((layer) => sum(layer.attention, (part) => part.drawn))), 1);
  let columns = 1;
  const sizeIn = (n) => Math.min(56 * tall, (pitch - (n > 1 ? 6 : 0)) / n - 3, (170 * tall) / Math.ceil(heads / n) - 3);
  while (columns < heads && sizeIn(columns + 1) >= Math.max(1, sizeIn(columns))) columns += 1;
  const lines = Math.ceil(heads / columns);
  place.thumb = Math.max(1, sizeIn(columns));
  place.thumbColumns = columns;
  place.headsTop = place.bottom + 24;
  place.height = place.headsTop + lines * (place.thumb + 3) + 4;
  place.every = Math.ceil((isDeep ? 26 : 50) / each); // distance between numbered layers
  place.isDeep = isDeep;
  return place;
}

const sum = (list, of) => list.reduce((total, one) => total + of(one), 0);
const ease = (p) => 1 - (1 - p) ** 3;

// Draw the run up to the current time and return the interactive regions.
function paint(context, scene, place, clock, look, pointed) {
  const regions = [];
  const { row, top } = place;
  const middle = (r) => top + (r + 0.5) * row;
  const doneOf = (kind, s, l, a) => {
    const part = clock.parts.find((one) => one.kind === kind && one.s === s && one.l === l && one.a === a);
    return part ? clock.done(part) : 1;
  };
  context.clearRect(0, 0, place.width, place.height);
  context.font = `${place.type}px ${look.font}`;
  context.textBaseline = "middle";
  const text = (words, x, y, { align = "left", colour = look.text, alpha = 1, most = 1e9 } = {}) => {
    context.globalAlpha = alpha;
    context.fillStyle = colour;
    context.textAlign = align;
    let shown = words;
    while (shown.length > 1 && context.measureText(shown).width > most) shown = `${shown.replace(/…$/, "").slice(0, -1)}…`;
    context.fillText(shown, x, y);
    context.globalAlpha = 1;
  };
  const title = (words, x, width, alpha) => text(words, x + width / 2, 11, { align: "center", colour: look.faint, alpha, most: width + 12 });
  const cells = (column, x, width, r, alpha, region) => {
    const n = column.dimensions.length;
    const size = width / n;
    const high = Math.min(row - 4, 22);
    context.globalAlpha = alpha;
    for (let d = 0; d < n; d += 1) {
      const value = column.values[r * n + d];
      context.fillStyle = look.signed(value / (column.largest || 1));
      context.fillRect(x + d * size, middle(r) - high / 2, Math.max(1, size - (size > 3 ? 0.6 : 0)), high);
    }
    context.globalAlpha = 1;
    regions.push({ x, y: middle(r) - high / 2, width, height: high, column, r, ...region });
  };

  scene.stacks.forEach((stack, s) => {
    const at = place.stacks[s];
    const read = doneOf("tokens", s);
    stack.tokens.forEach((token, r) => {
      const alpha = Math.max(AHEAD, ease(Math.min(1, Math.max(0, read * stack.tokens.length - r))));
      const edit = s === 0 ? editOf(scene, stack.first + r) : null;
      context.globalAlpha = alpha;
      context.fillStyle = look.chip;
      context.beginPath();
      context.roundRect(at.chip, middle(r) - Math.min(row - 3, 24) / 2, at.chipWidth, Math.min(row - 3, 24), 5);
      context.fill();
      text(token, at.chip + at.chipWidth / 2, middle(r) + 0.5, { align: "center", alpha, most: at.chipWidth - 8 });
      regions.push({ x: at.chip, y: middle(r) - row / 2, width: at.chipWidth, height: row, edit, target: { screen: "embeddings" }, says: `Token ${stack.first + r}: ${token}${edit ? ". Click to change it." : ""}` });
    });
    const added = s === 0 && stack.tokens.length === stack.n ? editOf(scene, scene.edit?.first + scene.edit?.texts.length - 1) : null;
    if (added) {
      text("+ add", at.chip + at.chipWidth / 2, place.bottom + 12, { align: "center", colour: look.faint });
      regions.push({ x: at.chip, y: place.bottom, width: at.chipWidth, height: 24, edit: added, says: "Click to add a token." });
    }
    title(scene.stacks.length > 1 ? stack.name : "tokens", at.chip, at.chipWidth, read);

    // The stream: one line per token, from its vector to its answer.
    const last = at.layers.at(-1);
    const from = at.columns.length ? at.columns.at(-1).x : at.chip + at.chipWidth;
    const reached = streamEnd(place, clock, s), end = last ? last.x + last.width : from;
    context.strokeStyle = look.stream;
    context.lineWidth = 1.5;
    for (const [to, alpha] of [[Math.max(end, reached), 0.4], [reached, 1]]) {
      context.globalAlpha = alpha;
      stack.tokens.forEach((_, r) => {
        if (to <= from) return;
        context.beginPath();
        context.moveTo(from, middle(r));
        context.lineTo(to, middle(r));
        context.stroke();
      });
    }
    context.globalAlpha = 1;

    const embedded = doneOf("embed", s);
    const placed = stack.columns.length > 1 ? doneOf("position", s) : 1;
    stack.columns.forEach((column, c) => {
      const spot = at.columns[c];
      if (!spot.width) return;
      const isOwn = c === 0;
      const shown = isOwn ? embedded : c === 1 ? Math.min(1, placed * 2) : Math.max(0, placed * 2 - 1);
      const alpha = Math.max(AHEAD, shown);
      const title_ = column.name === "token" ? "vector" : column.name === "position" ? "+ position" : "= sum";
      title(stack.columns.length > 1 || !isOwn ? title_ : "vector", spot.x, spot.width, Math.max(0.5, alpha));
      const slide = !shown ? 0 : isOwn ? (1 - ease(embedded)) * -26 : c === 2 ? (1 - ease(shown)) * -40 : 0;
      const screen = column.name === "position" ? "positions" : "embeddings";
      stack.tokens.forEach((token, r) => cells(column, spot.x + slide, spot.width, r, alpha, { target: { screen }, token }));
    });

    stack.layers.forEach((layer, l) => {
      const spot = at.layers[l];
      let n = 0;
      const fed = doneOf("feed", s, l);
      layer.attention.forEach((part, a) => {
        const done = doneOf("attention", s, l, a);
        arcs(context, place, part, spot, done, look, pointed, a / layer.attention.length);
        if (part.added) dots(context, place, part.added, spot.x + spot.width * 0.62, Math.max(0.35, done), look.attention, false, done ? 0.9 : AHEAD);
        const [rows, keys] = part.shape;
        for (let head = 0; head < part.drawn; head += 1, n += 1) {
          const x = spot.headsAt + (n % place.thumbColumns) * (place.thumb + 3);
          const y = place.headsTop + Math.floor(n / place.thumbColumns) * (place.thumb + 3);
          const lit = ease(Math.min(1, Math.max(0, done * 1.6 - (0.6 * head) / part.drawn)));
          context.globalAlpha = AHEAD + (1 - AHEAD) * lit;
          context.imageSmoothingEnabled = false;
          context.drawImage(look.picture(part, head), x, y, place.thumb, place.thumb);
          const isPointed = pointed?.part === part && pointed.head === head;
          if (isPointed || place.thumb > 8) {
            context.globalAlpha = isPointed ? 1 : 0.35 * lit + 0.15;
            context.strokeStyle = isPointed ? look.text : look.hues[head % look.hues.length];
            context.lineWidth = isPointed ? 2 : 1;
            context.strokeRect(x, y, place.thumb, place.thumb);
          }
          context.globalAlpha = 1;
          const name = part.drawn < part.heads ? `mean of ${part.heads} heads` : `head ${head + 1}`;
          regions.push({
            x, y, width: place.thumb + 3, height: place.thumb + 3, part, head, rows, keys,
            target: { screen: "attention", head: `${part.site + 1}.${head + 1}` },
            says: `Layer ${l + 1} · ${part.kind === "cross_attn" ? "cross-attention · " : ""}${name}.${scene.isRecorded ? "" : " Click to enlarge it."}`,
          });
        }
      });
      if (layer.fed) {
        const x = spot.x + spot.width * 0.86;
        dots(context, place, layer.fed, x, Math.max(0.35, fed), look.feed, true, fed ? 0.9 : AHEAD);
        regions.push({ x: x - 8, y: top, width: 16, height: place.bottom - top, target: { screen: "feed_forward" }, says: `Layer ${l + 1} · feed-forward. Click to see its neurons.` });
      }
      if (layer.after && spot.stripWidth > 12) {
        stack.tokens.forEach((token, r) => cells(layer.after, spot.stripAt, spot.stripWidth, r, Math.max(AHEAD, fed), { target: { screen: "residual" }, token, layer: l + 1 }));
      }
      if (l % place.every === 0) title(place.isDeep ? `${l + 1}` : `layer ${l + 1}`, spot.x, spot.width, 1);
    });
    if (last) {
      const words = scene.stacks.length > 1 ? `${stack.name} heads` : "heads: attention patterns";
      text(words, at.layers[0].x + 2, place.bottom + 12, { colour: look.faint });
    }
  });

  const said = doneOf("answer", scene.stacks.length - 1);
  if (scene.answers.length) { // an answer is an empty bar until the run reaches it
    const wide = place.width - place.answers - 4;
    title(scene.continues ? "next token" : "answer", place.answers, wide, Math.max(0.5, said));
    for (const answer of answersShown(scene)) {
      const lines = answer.isList ? answer.said : answer.said.slice(0, 1);
      const high = Math.min(row - 3, 22);
      lines.forEach(([token, p], index) => {
        const y = answer.isList ? Math.max(top + high / 2, middle(Math.max(0, (answer.row ?? 0) - lines.length + 1))) + index * (high + 3) : middle(answer.row ?? 0);
        const colour = answer.is_right === null ? look.attention : answer.is_right ? look.right : look.wrong;
        context.globalAlpha = Math.max(0.5, said);
        context.fillStyle = look.chip;
        context.fillRect(place.answers, y - high / 2, wide, high);
        if (!said) return;
        context.fillStyle = colour;
        context.globalAlpha *= 0.55;
        context.fillRect(place.answers, y - high / 2, wide * p * ease(said), high);
        const mark = answer.is_right === null || index ? "" : answer.is_right ? " ✓" : " ✗";
        const share = `${p >= 0.9995 ? "100" : (100 * p).toFixed(p < 0.1 ? 1 : 0)}%`;
        const hasShare = wide > 90 || answer.isList;
        text(`${token}${mark}`, place.answers + 5, y + 0.5, { alpha: said, most: wide - (hasShare ? 3.5 * place.type : 8) });
        if (hasShare) text(share, place.answers + wide - 4, y + 0.5, { align: "right", alpha: said });
        regions.push({ x: place.answers, y: y - high / 2, width: wide, height: high, target: { screen: "residual" }, says: sentenceOf(answer, token, share) });
      });
    }
  }
  return regions;
}

// The index and text of an editable token, or null.
function editOf({ edit }, token) {
  const at = edit ? token - edit.first : -1;
  return at >= 0 && at < edit.texts.length ? { at, text: edit.texts[at] } : null;
}

// For a text to continue, a list of the likeliest next tokens; for other inputs, one answer per output.
function answersShown(scene) {
  if (!scene.continues) {
    return scene.answers.map((answer) => ({ ...answer, isList: answer.row === null }));
  }
  const open = scene.answers.at(-1);
  return open ? [{ ...open, isList: true }] : [];
}

function sentenceOf(answer, token, share) {
  const right = answer.answer === null || answer.is_right ? "" : ` The right answer is ${answer.answer}.`;
  return `${token}: ${share}.${answer.is_right === null ? "" : right} Click to see at which layer it is decided.`;
}

// The x that the vectors of a stack have reached.
function streamEnd(place, clock, s) {
  const at = place.stacks[s];
  let x = 0;
  for (const part of clock.parts) {
    if (part.s !== s) continue;
    const done = clock.done(part);
    if (!done) break;
    const ends = { tokens: at.chip + at.chipWidth, embed: at.columns[0]?.x + at.columns[0]?.width, position: at.columns.at(-1)?.x + at.columns.at(-1)?.width };
    let end = ends[part.kind];
    if (part.kind === "attention") end = at.layers[part.l].x + at.layers[part.l].width * 0.7;
    if (part.kind === "feed") end = at.layers[part.l].x + at.layers[part.l].width;
    if (part.kind === "answer") end = place.answers;
    x += Math.max(0, end - x) * done;
  }
  return x;
}

// The attention of a layer: a curve from each key to each query, weighted by attention; of the hovered head, or else the mean
// of all heads.
function arcs(context, place, part, spot, done, look, pointed, shift) {
  if (!done) return;
  const [rows, keys] = part.shape;
  const isOne = pointed?.part === part;
  const others = pointed?.part && !isOne;
  const [from, to] = [spot.x + 2 + spot.width * 0.1 * shift, spot.x + spot.width * 0.62];
  const middle = (r) => place.top + (r + 0.5) * place.row;
  const after = done < 1 || isOne ? 1 : others ? 0.12 : place.isDeep ? 0.4 : 0.6;
  context.strokeStyle = isOne ? look.hues[pointed.head % look.hues.length] : look.attention;
  for (let query = 0; query < rows; query += 1) {
    for (let key = 0; key < keys; key += 1) {
      let weight = 0;
      if (isOne) weight = part.weights[(pointed.head * rows + query) * keys + key] / 255;
      else for (let head = 0; head < part.drawn; head += 1) weight += part.weights[(head * rows + query) * keys + key] / 255 / part.drawn;
      if (weight < 0.04) continue;
      context.globalAlpha = Math.min(1, weight * 1.1) * after;
      context.lineWidth = Math.max(0.6, weight * Math.min(4, place.row / 4));
      context.beginPath();
      const [y0, y1, x1] = [middle(key), middle(query), from + (to - from) * ease(done)];
      context.moveTo(from, y0);
      context.bezierCurveTo(from + (x1 - from) * 0.5, y0, from + (x1 - from) * 0.5, y0 + (y1 - y0) * ease(done), x1, y0 + (y1 - y0) * ease(done));
      context.stroke();
    }
  }
  context.globalAlpha = 1;
}

// The norm of what a part adds to each vector, relative to the vector's, as the size of a dot.
function dots(context, place, shares, x, done, colour, isSquare, alpha) {
  const { row, top, isDeep } = place;
  const middle = (r) => top + (r + 0.5) * row;
  context.fillStyle = colour;
  shares.forEach((share, r) => {
    const size = Math.min(row * 0.36, isDeep ? 5 : 8, (isDeep ? 0.8 : 2) + (isDeep ? 2 : 3.4) * Math.sqrt(share)) * Math.min(1, done * 1.4);
    context.globalAlpha = alpha;
    context.beginPath();
    if (isSquare) context.roundRect(x - size, middle(r) - size, 2 * size, 2 * size, 2);
    else context.arc(x, middle(r), size, 0, 7);
    context.fill();
  });
  context.globalAlpha = 1;
}

// The cached thumbnail of each head.
function pictures({ words }) {
  const made = new Map();
  return (part, head) => {
    const known = made.get(part)?.[head];
    if (known) return known;
    const [rows, keys] = part.shape;
    const picture = element("canvas");
    [picture.width, picture.height] = [keys, rows];
    const context = pen(picture), image = context.createImageData(keys, rows);
    const weights = part.weights.subarray(head * rows * keys, (head + 1) * rows * keys);
    new Uint32Array(image.data.buffer).set(Array.from(weights, (weight) => words[Math.round((LEVELS * weight) / 255)]));
    context.putImageData(image, 0, 0);
    if (!made.has(part)) made.set(part, []);
    made.get(part)[head] = picture;
    return picture;
  };
}

function lookOf(root, scene) {
  const { variable, isDark } = theme(root);
  const { sequential, diverging, heads, parts, right, wrong } = scene.colours;
  const { rgb } = palette(diverging[isDark]);
  const colours = rgb.map((colour) => `rgb(${colour.join(" ")})`);
  return {
    text: variable("--st-text-color", "#131722"),
    faint: isDark ? "#a5afc2" : "#5a6376",
    stream: isDark ? "#4a5468" : "#c3cbd9",
    chip: variable("--st-secondary-background-color", "#f1f3f8"),
    font: variable("--st-font", "system-ui, sans-serif"),
    attention: parts.attention[isDark],
    feed: parts.feed_forward[isDark],
    right: right[isDark],
    wrong: wrong[isDark],
    hues: heads.map((pair) => pair[isDark]),
    signed: (value) => colours[Math.round(LEVELS * Math.min(1, Math.max(0, 0.5 + 0.5 * value)))],
    picture: pictures(palette(sequential[isDark])),
  };
}

const FIELD = `<input class="edit" autocomplete="off" spellcheck="false" aria-label="Text of the token" hidden>`;
const TIME = `<input class="time" type="range" min="0" max="1000" value="0" aria-label="Progress of the run">`;

export class Scene extends Animation {
  least = 280;
  read = read;
  partsOf = partsOf;
  layOut = layOut;
  lookOf = lookOf;

  constructor(parent) {
    super(parent, "scene", FIELD, TIME);
    this.pointed = null;
    this.find(".time").oninput = (event) => {
      this.clock.isPlaying = false;
      this.clock.now = (this.clock.end * event.target.value) / 1000;
      this.draw();
    };
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    const field = this.find(".edit");
    field.onkeydown = (event) => {
      if (event.key === "Escape") this.editing = null;
      if (event.key === "Enter" || event.key === "Escape") field.blur();
    };
    field.onblur = () => {
      field.hidden = true;
      const { at, text: was } = this.editing ?? {};
      if (this.editing && field.value !== was) this.send({ edit: { at, was, text: field.value } });
      this.editing = null;
    };
  }

  title() {
    return `The run of the model, from its tokens to its answers. ${summary(this.data)}. Left and right step through it, up and down choose a head, Enter enlarges it.`;
  }

  goesOn(before) { // from the recorded run of a model to that of the model itself
    const tokens = (scene) => JSON.stringify(scene.stacks.map((stack) => [stack.tokens, stack.layers.length]));
    return before.isRecorded && tokens(before) === tokens(this.data);
  }

  says() {
    return this.clock.isOver ? summary(this.data) : this.clock.part.says;
  }

  paint() {
    const { clock } = this;
    this.find(".time").value = clock.end ? Math.round((1000 * clock.now) / clock.end) : 0;
    return paint(this.context, this.data, this.place, clock, this.look, this.pointed);
  }

  click(region) {
    if (region.edit) this.edit(region);
    else if (region.target) this.send({ open: region.target });
  }

  key(event) { // ↑ and ↓ go from head to head, Enter enlarges one
    const heads = this.regions.filter((region) => region.part), by = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    const at = heads.findIndex(({ part, head }) => part === this.pointed?.part && head === this.pointed?.head);
    if (event.key === "Enter" && at >= 0) this.click(heads[at]);
    if (!by || !heads.length) return;
    event.preventDefault();
    const region = heads[at < 0 ? (by > 0 ? 0 : heads.length - 1) : (at + by + heads.length) % heads.length];
    this.pointed = { part: region.part, head: region.head };
    this.pause();
    this.tell({ ...region, at: [region.x, region.y] }, region.says);
    this.find(".says").textContent = region.says;
  }

  edit(region) { // edit a token in place
    const field = this.find(".edit");
    this.pause();
    this.find(".tip").hidden = true;
    this.editing = region.edit;
    field.value = region.edit.text;
    Object.assign(field.style, { left: `${region.x}px`, top: `${region.y}px`, width: `${Math.max(64, region.width)}px`, height: `${Math.max(24, region.height - 4)}px` });
    field.hidden = false;
    field.select();
  }

  point(event) {
    const region = event && this.regionAt(event);
    const pointed = region?.part ? { part: region.part, head: region.head } : null;
    if (pointed?.part !== this.pointed?.part || pointed?.head !== this.pointed?.head) {
      this.pointed = pointed;
      if (!this.clock.isPlaying) this.draw();
    }
    this.canvas.style.cursor = region?.edit ? "text" : region?.target ? "pointer" : "default";
    this.tell(region, region && (region.column ? valueAt(region) : region.says));
  }
}

function valueAt(region) {
  const { column, r, token } = region;
  const n = column.dimensions.length;
  const d = Math.min(n - 1, Math.max(0, Math.floor(((region.at[0] - region.x) / region.width) * n)));
  const where = region.layer ? `after layer ${region.layer}` : { token: "token vector", position: "position vector", sum: "sum" }[column.name];
  return `${token} · ${where} · dimension ${column.dimensions[d]} of ${column.width}: ${column.values[r * n + d].toFixed(3)}`;
}

function summary(scene) {
  if (!scene.answers.length) return "This model returns vectors, no predictions.";
  if (scene.continues) {
    const [token, p] = scene.answers.at(-1).said[0];
    return `Likeliest next token: ${token} with ${(100 * p).toFixed(0)}%`;
  }
  const judged = scene.answers.filter((answer) => answer.is_right !== null);
  if (!judged.length) return "The run is complete.";
  return `${judged.filter((answer) => answer.is_right).length} of ${judged.length} answers right`;
}
