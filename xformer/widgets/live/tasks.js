// Converts a text to the input of a model: its tokens, their layout for an architecture, and the right answer. Mirrors
// xformer/tasks. `task` is the header's: { name, symbols, max_len, architecture, alphabet, labels, typedLabels, pad, end, start,
// example, unit, separator, longestTyped, images }.
//
//   encoder            in   s₁ … s_L (end)          out  a₁ … a_L (end)
//   encoder-decoder    in   s₁ … s_L end  and  start a₁ … a_A      out  a₁ … a_A end
//   decoder            in   s₁ … s_L start a₁ … a_A                out  – … – a₁ … a_A end     one stream

export const NONE = -100; // the label of outputs without a target
const PLUS = 11, OPEN = 1; // the tokens of "+" and "("
const MOST_DIGITS = 18, MAX_INK = 16, INK = "0123456789abcdefg";
const SIGNS = { "\n": "↵", "\t": "⇥", " ": "·" }; // visible signs of invisible characters
const SPACE = "[\\t-\\r\\x1c-\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000]"; // white space as Python defines it
const spaces = (pattern, flags) => new RegExp(pattern.replaceAll("\\s", SPACE), flags);
const strip = (text) => text.replace(spaces("^\\s+|\\s+$", "g"), "");

/** @param {string} sentence @returns {never} */
function refuse(sentence) { throw new Error(sentence); }

function shown(word) { // typed text, shortened and made printable for a message
  const letters = Array.from(word), start = letters.slice(0, 20).map((letter) => (/[\p{C}\p{Z}]/u.test(letter) && letter !== " " ? "\ufffd" : letter)).join("");
  return letters.length <= 20 ? start : `${start}…`;
}

// ── from a text to tokens

function readNumbers(text, low, high, example) {
  const words = text.split(spaces("(?:\\s|[,;\\[\\]()])+", "")).filter(Boolean);
  if (!words.length) refuse(`Type some numbers from ${low} to ${high}, for example ${example}.`);
  for (const word of words) {
    if (!/^[0-9]{1,9}$/.test(word) || Number(word) < low || Number(word) > high) {
      refuse(`This model reads numbers from ${low} to ${high}, and “${shown(word)}” is not one; try ${example}.`);
    }
  }
  return words.map(Number);
}

function readCharacters(text, characters, what, example) {
  const found = Array.from(text).filter((character) => !spaces("^\\s$", "").test(character) && character !== ",");
  if (!found.length) refuse(`Type some ${what}, for example ${example}.`);
  for (const character of found) if (!characters.includes(character)) refuse(`This model reads ${what}, and “${shown(character)}” is not one; try ${example}.`);
  return found.map((character) => characters.indexOf(character));
}

function readSum(task, text) {
  const compact = text.replace(spaces("(?:\\s|,)+", "g"), "").replace(/=$/, ""), parts = /^([0-9]+)\+([0-9]+)$/.exec(compact);
  if (!parts) refuse(`This model reads a sum of two numbers, and ${strip(text) ? `“${shown(strip(text))}” is not one` : "nothing was typed"}; try ${task.example}.`);
  const k = Math.max(parts[1].length, parts[2].length);
  if (k > MOST_DIGITS) refuse(`This model reads numbers of at most ${MOST_DIGITS} digits, got ${k}; take some away.`);
  const [a, b] = parts.slice(1).map((part) => Array.from(part.padStart(k, "0"), (digit) => 1 + Number(digit)));
  return [...a, PLUS, ...b];
}

function readBrackets(task, text) {
  const source = readCharacters(text, ["(", ")"], "brackets, ( or )", task.example).map((place) => 1 + place);
  let depth = 0, deepest = 0;
  for (const token of source) {
    depth += token === OPEN ? 1 : -1;
    deepest = Math.max(deepest, depth);
  }
  if (deepest > task.max_len) refuse(`This model can say depths up to ${task.max_len}, and these brackets go down to ${deepest}; close some earlier.`);
  return source;
}

function readText(task, text) {
  const alphabet = Array.from(task.alphabet), place = new Map();
  for (const [character, sign] of Object.entries(SIGNS)) if (alphabet.includes(character)) place.set(sign, 1 + alphabet.indexOf(character));
  alphabet.forEach((character, at) => place.set(character, 1 + at));
  const letters = Array.from(text);
  for (const letter of letters) if (!place.has(letter)) refuse(`This model knows ${alphabet.length} characters, and “${shown(letter)}” is not one of them; try ${task.example}.`);
  return letters.map((letter) => place.get(letter));
}

// A source is the pixels, then the digit; 0 for a drawn image, whose digit is unknown.
function readImage(task, text) {
  const words = strip(text), test = /^test ([0-9]{1,4})$/.exec(words), images = task.images;
  if (test && images.length) {
    if (Number(test[1]) >= images.length) refuse(`The test images are 0 to ${images.length - 1}, got ${Number(test[1])}; for example test 17.`);
    return images[Number(test[1])];
  }
  const drawn = new RegExp(`^(?:drawn ?|[0-9]-)([${INK}]{0,64})$`).exec(words);
  if (!drawn) refuse(`This model reads images of digits; choose one, draw one, or type one, for example ${images.length ? task.default : "drawn"}.`);
  return drawnImage(task, Array.from(drawn[1].padEnd(64, "0"), (letter) => INK.indexOf(letter)));
}

const isSame = (a, b) => a.length === b.length && a.every((value, at) => value === b[at]);
const drawnImage = (task, pixels) => task.images.find((image) => isSame(image.slice(0, -1), pixels)) ?? [...pixels, 0];

// ── the tasks: `read` returns a source, `answer` its right answer, and `check` rejects a source without one

const plain = {
  read: (task, text) => readNumbers(text, 1, task.symbols, task.example),
  check: (_task, source) => { if (!source.length) refuse("An example needs at least one number, got none; for example [3, 1, 2]."); },
  size: (source) => source.length,
};
export const TASKS = {
  reverse: { ...plain, answer: (source) => [...source].reverse() },
  sort: { ...plain, answer: (source) => [...source].sort((a, b) => a - b) },
  copy: { ...plain, answer: (source) => source },
  "copy-twice": { ...plain, answer: (source) => [...source, ...source] },
  induction: { ...plain, answer: (source) => source },
  addition: {
    read: readSum, size: (source) => (source.length - 1) >> 1,
    check: (task, source) => {
      if (source.length < 3 || source.length % 2 === 0 || (source.length - 1) / 2 > MOST_DIGITS) {
        refuse(`A sum has two numbers of as many digits, at most ${MOST_DIGITS}, and + between them, got ${source.length} tokens; at least one digit each, for example ${task.example}.`);
      }
    },
    answer: (source) => { // column by column, the last digit first, with a carry of 1 to the next column
      const k = (source.length - 1) / 2, value = (from) => source.slice(from, from + k).reduce((sum, token) => sum * 10n + BigInt(token - 1), 0n);
      return Array.from((value(0) + value(k + 1)).toString().padStart(k + 1, "0")).slice(-(k + 1)).reverse().map((digit) => 1 + Number(digit));
    },
  },
  parity: {
    ...plain, read: (task, text) => readCharacters(text, ["0", "1"], "bits, 0 or 1", task.example).map((bit) => 1 + bit),
    answer: (source) => { let odd = 0; return source.map((token) => 1 + (odd ^= token === 2 ? 1 : 0)); },
  },
  brackets: {
    ...plain, read: readBrackets,
    answer: (source, task) => { // the depth so far, and ✗ once it was below 0
      let depth = 0, isLost = false;
      return source.map((token) => { depth += token === OPEN ? 1 : -1; isLost ||= depth < 0; return 3 + (isLost ? task.max_len + 1 : Math.min(depth, task.max_len)); });
    },
  },
  modular: {
    size: (source) => source.length,
    read: (task, text) => {
      const numbers = readNumbers(strip(text.replaceAll("+", " ")).replace(/=$/, ""), 0, task.symbols - 1, task.example);
      TASKS.modular.check(task, numbers);
      return numbers.map((number) => 1 + number);
    },
    check: (task, source) => { if (source.length !== 2) refuse(`This model adds two numbers, got ${source.length}; try ${task.example}.`); },
    answer: ([a, b], task) => [1 + ((a - 1 + b - 1) % task.symbols)],
  },
  characters: {
    read: readText, size: (source) => source.length,
    check: (task, source) => { if (source.length < 2) refuse(`Type at least two characters, got ${source.length}; for example ${task.example}.`); },
    answer: (source, task) => source.slice(task.architecture === "encoder-decoder" ? (source.length + 1) >> 1 : 1), // the actual continuation
  },
  digits: {
    read: readImage, size: () => 8,
    check: (_task, source) => {
      if (source.length !== 65 || !source.slice(0, -1).every((ink) => Number.isInteger(ink) && ink >= 0 && ink <= MAX_INK)) {
        refuse(`An image has 64 pixels from 0 to ${MAX_INK}, and then the digit that it is, got ${source.length} numbers; for example [0] * 64 + [7].`);
      }
    },
    answer: (source) => source.slice(-1),
  },
};

// ── the input of a model: { source, answer, tokens (prompt), stream, target, labels (NONE without a target), hasAnswer }

export class TaskInput {
  constructor(task, config) {
    this.task = task;
    this.config = config;
    this.kind = TASKS[task.name];
  }

  read(input) { // a text, or the pixels of an image -> a source
    if (typeof input === "string") return this.kind.read(this.task, input);
    return this.config.image && input.length === this.config.image ** 2 ? drawnImage(this.task, Array.from(input)) : Array.from(input);
  }

  frame(source) {
    const { task, config, kind } = this, { architecture } = config;
    kind.check(task, source);
    if (config.image) {
      const pixels = source.slice(0, -1), blank = Array((config.image / config.patch) ** 2).fill(NONE);
      return { source, answer: source.slice(-1), tokens: pixels, stream: pixels, target: null, labels: [source.at(-1), ...blank], hasAnswer: task.images.some((image) => isSame(image, source)) };
    }
    const answer = kind.answer(source, task), laid = (stream, target, labels, n_prompt = stream.length) => ({ source, answer, tokens: stream.slice(0, n_prompt), stream, target, labels, hasAnswer: task.name !== "characters" });
    let example;
    if (task.name === "characters") {
      const n_read = source.length - answer.length;
      example = architecture === "decoder" ? laid(source, null, [...source.slice(1), NONE], 1) : laid(source.slice(0, n_read), [task.start, ...answer.slice(0, -1)], answer);
    } else if (architecture === "encoder") {
      const end = task.end === null ? [] : [task.end];
      example = laid([...source, ...end], null, [...answer, ...end]);
    } else if (architecture === "decoder") {
      example = laid([...source, task.start, ...answer], null, [...source.map(() => NONE), ...answer, task.end], source.length + 1);
    } else example = laid([...source, task.end], [task.start, ...answer], [...answer, task.end]);
    const longest = Math.max(example.stream.length, example.target?.length ?? 0);
    if (longest > config.max_len) refuse(`This model reads at most ${config.max_len} tokens, and these ${kind.size(source)} ${task.unit} need ${longest}; take some away.`);
    return example;
  }

  textOf(tokens) { // the text of a source, as typed
    const { task, config } = this, first = config.image ? 0 : 1;
    if (config.image && tokens.length === 65) {
      const number = task.images.findIndex((image) => isSame(image, tokens));
      return number >= 0 ? `test ${number}` : `drawn ${tokens.slice(0, -1).map((ink) => INK[ink]).join("").replace(/0+$/, "")}`.trimEnd();
    }
    const isSymbol = (token) => token >= 1 && token <= task.symbols;
    return tokens.map((token, at) => (at ? (isSymbol(tokens[at - 1]) && isSymbol(token) ? task.separator : " ") : "") + (task.typedLabels[token - first] ?? task.labels[token])).join("");
  }
}

// The input of a model without a task: token ids; for an encoder-decoder, of both sides: "3 7 12 > 1 12 7".
export class BareInput {
  constructor(config) { this.config = config; }

  read(input) {
    const isEncoderDecoder = this.config.architecture === "encoder-decoder";
    if (typeof input !== "string") return this.config.image || !isEncoderDecoder ? [Array.from(input), null] : input.map((side) => Array.from(side));
    const at = input.indexOf(">"), [source, target] = isEncoderDecoder && at >= 0 ? [input.slice(0, at), input.slice(at + 1)] : [input, ""];
    if (isEncoderDecoder && !strip(target)) refuse("An encoder-decoder reads two sequences, written like '3 7 12 > 1 12 7', got one.");
    return [this.numbers(source), isEncoderDecoder ? this.numbers(target) : null];
  }

  numbers(text) {
    const words = strip(text).split(spaces("\\s+", "")).filter(Boolean);
    if (!words.every((word) => /^[+-]?[0-9]+$/.test(word))) refuse(`This model reads numbers with spaces between them, like '3 7 12', got '${text}'.`);
    const numbers = words.map(Number), { vocab_size, max_len } = this.config;
    if (!numbers.length || numbers.length > max_len || !numbers.every((number) => number >= 0 && number < vocab_size)) {
      refuse(`This model reads 1 to ${max_len} tokens from 0 to ${vocab_size - 1}, like '0 1', got '${text}'.`);
    }
    return numbers;
  }

  /** @param {any[]} sides the tokens of the source, and of the target or null */
  frame([source, target]) {
    const n = this.config.image ? 1 + (this.config.image / this.config.patch) ** 2 : (target ?? source).length;
    return { source, answer: [], tokens: source, stream: source, target, labels: Array(n).fill(NONE), hasAnswer: false };
  }

  textOf(tokens) { return tokens.join(" "); }
}
