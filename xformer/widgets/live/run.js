// A model that runs in the page:
//
//   const live = await makeLive(bytes);                               // packed by xformer.live.export.pack_model
//   const { logits, patterns, predicted } = live.run({ input: "3 7 12 9", mask: "causal", ablate: [["encoder.1.attn", 2]] });
//
// A request has `input` (a text, or the pixels of an image), and optionally
//   replace    [[position, token], …]: tokens to replace; replacing one of the source changes the right answer, too
//   tokens     tokens that are read instead of the input (of an encoder-decoder: of the source)
//   target     tokens that the decoder of an encoder-decoder reads instead of the right answer
//   mask       "trained", "causal", "full", or [query][key] for the whole mask of self-attention (of the decoder, if there are
//              two stacks)
//   ablate     [[path, head], …]: z is set to 0        cut   [[path, head | null, query, key], …]: connections to mask
//   positions  false: position vectors, angles and biases are set to 0
//   step       a training step; null: the trained weights

import { continueText, decode } from "./decoding.js";
import { openModel } from "./model_file.js";
import { POSITIONS } from "./positions.js";
import { argmax, softmax, tensor } from "./tensors.js";
import { BareInput, NONE, TaskInput } from "./tasks.js";
import { attentionKinds, forward, stacksOf, unembed } from "./transformer.js";

/**
 * @typedef {object} Request
 * @property {string | number[]} [input]
 * @property {[number | string, number | string][] | Record<string, string>} [replace]
 * @property {number[]} [tokens]
 * @property {number[]} [target]
 * @property {string | boolean[][]} [mask]
 * @property {[string, number][]} [ablate]
 * @property {[string, number | null, number, number][]} [cut]
 * @property {boolean} [positions]
 * @property {number | null} [step]
 */

const TEXT_STEPS = 40; // default number of tokens by which a text is continued
const KINDS = { attn: "", self_attn: " · self", cross_attn: " · cross" };

function nested({ shape, data }, skip = 0) { // -> nested arrays, without the first `skip` axes
  const [n, ...rest] = shape.slice(skip);
  if (!rest.length) return Array.from(data);
  const width = data.length / n;
  return Array.from({ length: n }, (_, i) => nested(tensor(rest, data.subarray(i * width, (i + 1) * width))));
}

class Live {
  constructor(file) {
    this.file = file;
    const { config, task, name, instruction, precision, difference, defaultInput, labels } = this.file.header;
    const isEncoderDecoder = config.architecture === "encoder-decoder", sites = [];
    for (const stack of stacksOf(config)) {
      for (let layer = 0; layer < config.n_layers; layer++) {
        for (const kind of attentionKinds(config, stack)) {
          const title = isEncoderDecoder ? `${stack} ${layer + 1}${KINDS[kind]}` : `layer ${layer + 1}`;
          sites.push({ path: `${stack}.${layer}.${kind}`, title, kind, stack, layer, heads: config.n_heads });
        }
      }
    }
    this.input = task ? new TaskInput(this.imagesOf(task), config) : new BareInput(config);
    this.model = {
      name, instruction, config, task: task?.name ?? null, labels, typedLabels: task?.typedLabels ?? labels, steps: this.file.steps, precision, difference, defaultInput, sites,
      isImage: config.image > 0, nImages: task?.images?.n ?? 0, isEncoderDecoder, continues: task?.name === "characters", canDropPositions: POSITIONS[config.positions].actsOn !== "nothing",
    };
  }

  imagesOf(task) { // the test images as sources: the pixels, then the digit
    const { at, n } = task.images ?? { n: 0 }, width = this.file.header.config.image ** 2 + 1;
    return { ...task, images: Array.from({ length: n }, (_, i) => Array.from(this.file.body.subarray(at + i * width, at + (i + 1) * width))) };
  }

  // ── input

  parse(input) { return this.framed({ input }); }
  textOf(tokens) { return this.input.textOf(tokens); }

  /** @param {Request} request */
  framed({ input = this.model.defaultInput, replace = [], tokens, target }) { // -> the example, with tokens replaced
    const { config } = this.model;
    let example = this.input.frame(this.input.read(input));
    const typed = this.labelsOf(example.stream), pairs = (Array.isArray(replace) ? replace : Object.entries(replace)).map(([at, token]) => ({ at: Number(at), id: this.tokenOf(at, token) }));
    if (pairs.length) {
      const source = [...example.source], n = source.length - (config.image ? 1 : 0), beyond = pairs.filter(({ at }) => at >= n);
      for (const { at, id } of pairs) if (at < n) source[at] = id;
      example = this.input.frame(this.model.task ? source : [source, example.target]);
      for (const { at, id } of beyond) if (at < example.stream.length) example.stream = example.stream.with(at, id);
    }
    if (tokens) example = this.withTokens(example, Array.from(tokens, Number));
    if (target) example = { ...example, target: Array.from(target, Number), labels: example.labels.length === target.length ? example.labels : Array(target.length).fill(NONE) };
    this.check(example.stream);
    if (example.target) this.check(example.target, false);
    return { ...example, typed };
  }

  withTokens(example, tokens) { // read other tokens; the right answer is that of their source, if it has one
    const n = example.source.length, whole = { ...example, stream: tokens, tokens: tokens.slice(0, example.tokens.length) };
    if (this.model.isImage) return { ...whole, tokens, labels: example.labels, hasAnswer: example.hasAnswer && tokens.every((ink, at) => ink === example.source[at]) };
    if (!this.model.task) return { ...this.input.frame([tokens, example.target]) };
    if (tokens.length !== example.stream.length) return { ...whole, tokens, labels: (example.target ?? tokens).map(() => NONE), hasAnswer: false };
    const source = tokens.slice(0, n), { symbols } = this.file.header.task;
    if (!source.every((token) => token >= 1 && token <= symbols)) return { ...whole, hasAnswer: false };
    return { ...whole, labels: this.input.frame(source).labels, source };
  }

  tokenOf(at, token) {
    const { config, labels, typedLabels, task } = this.model, values = config.image ? 17 : config.vocab_size, most = config.image ? config.image ** 2 : config.max_len;
    let id = Number(token);
    if (typeof token === "string" && !config.image) {
      const place = typedLabels.indexOf(token);
      id = task && place >= 0 ? place + 1 : labels.indexOf(token);
    }
    if (!(Number(at) < most && id >= 0 && id < values)) {
      const [what, of] = config.image ? ["pixels", "ink"] : ["positions", "tokens"];
      throw new Error(`This model has ${what} 0 to ${most - 1} and ${of} 0 to ${values - 1}, got ${at} and ${token}.`);
    }
    return id;
  }

  check(tokens, mayBeImage = true) {
    const { config } = this.model, isImage = mayBeImage && config.image, n_inputs = isImage ? 17 : config.vocab_size;
    if (!tokens.length) throw new Error("Tokens must be integers, at least one of them, got none; for example 3 7 12.");
    if (isImage && tokens.length !== config.image ** 2) throw new Error(`This model reads images of ${config.image}×${config.image} = ${config.image ** 2} pixels, got ${tokens.length}.`);
    if (!isImage && tokens.length > config.max_len) throw new Error(`This model reads at most ${config.max_len} tokens, got ${tokens.length}.`);
    for (const token of tokens) {
      if (!(Number.isInteger(token) && token >= 0 && token < n_inputs)) throw new Error(`This model's ${isImage ? "pixels" : "tokens"} are 0 to ${n_inputs - 1}, got ${token}.`);
    }
  }

  labelsOf(tokens) { // the label of each position
    const { config, labels } = this.model, side = config.image / config.patch;
    if (!config.image) return tokens.map((token) => labels[token]);
    return ["class", ...Array.from({ length: side * side }, (_, i) => `r${Math.floor(i / side) + 1} c${(i % side) + 1}`)];
  }

  // ── runs

  /** @param {Request} request */
  changesOf({ mask = "trained", ablate = [], cut = [], positions = true }, isLenient = false) {
    const { sites, config, canDropPositions } = this.model, heads = new Map(sites.map((site) => [site.path, site.heads]));
    for (const [path, head] of [...ablate, ...cut]) {
      if (!heads.has(path)) throw new Error(`This model has no attention layer ${path}; it has ${[...heads.keys()].join(", ")}.`);
      if (head !== null && !(Number.isInteger(head) && head >= 0 && head < heads.get(path))) throw new Error(`This model has heads 0 to ${heads.get(path) - 1}, got ${head}.`);
    }
    for (const [, , ...edge] of cut) if (!(Math.max(...edge) < config.max_len)) throw new Error(`This model's positions are 0 to ${config.max_len - 1}, got ${Math.max(...edge)}.`);
    if (!positions && !canDropPositions) throw new Error("This model has no positions that could be switched off.");
    const causal = { trained: null, causal: true, full: false }[mask] ?? null;
    if (typeof mask === "string" && causal === null && mask !== "trained") throw new Error(`A mask is trained, causal, full, or a table of true and false, got ${mask}.`);
    return { causal, drawn: typeof mask === "string" ? null : this.drawn(mask, isLenient), ablate, cut, positions, lenient: isLenient };
  }

  drawn(mask, isLenient) {
    const last = this.model.sites.at(-1).stack;
    return (path, n) => {
      if (!path.startsWith(last) || path.endsWith("cross_attn")) return null;
      if (!isLenient && (mask.length !== n || mask.some((row) => row.length !== n))) {
        throw new Error(`${path}.mask has ${n} queries and ${n} keys, which a mask of ${mask.length} × ${mask[0]?.length ?? 0} does not fit.`);
      }
      return (query, key) => mask[query]?.[key];
    };
  }

  /** @param {Request} request */
  trace(request = {}) { // a run with all activations, under their names in a Python trace
    const { config, isImage } = this.model, example = this.framed(request), weights = this.file.weights(request.step ?? null);
    const trace = forward(config, weights, { tokens: example.stream, target: example.target }, this.changesOf(request));
    const asked = example.labels.flatMap((label, at) => (label === NONE ? [] : [at])), n = trace.get("logits").shape[1];
    const outputs = isImage ? [0] : asked.length || this.model.task ? asked : Array.from({ length: n }, (_, at) => at);
    const row = (at) => trace.get("logits").data.subarray(at * config.vocab_size, (at + 1) * config.vocab_size);
    const predicted = outputs.map((at) => argmax(row(at))), isKnown = example.hasAnswer || this.model.continues;
    const isOpen = config.architecture === "decoder" && example.labels.at(-1) === NONE; // the token after the input is unknown
    return {
      source: example.source, open: isOpen ? n - 1 : null, continues: isOpen, tokens: example.stream, labels: this.labelsOf(example.stream), typed: example.typed, target: example.target, outputs, predicted,
      right: isKnown && asked.length ? outputs.map((at) => example.labels[at]) : null, hasAnswer: example.hasAnswer, trace, weights,
      labelsOf: (stack) => this.labelsOf(stack === "decoder" && example.target ? example.target : example.stream),
      probabilities: (place) => softmax(tensor([1, config.vocab_size], row(outputs[place]))).data,
      probability: (place, token = predicted[place]) => softmax(tensor([1, config.vocab_size], row(outputs[place]))).data[token],
    };
  }

  /** @param {Request} request */
  run(request = {}) { // as `trace`, with logits [output][vocab] and patterns { path: [head][query][key] } as arrays
    const result = this.trace(request);
    const patterns = Object.fromEntries(this.model.sites.map(({ path }) => [path, nested(result.trace.get(`${path}.pattern`), 1)]));
    return { ...result, logits: nested(result.trace.get("logits"), 1), patterns };
  }

  unembed(rows, step = null) { return unembed(this.model.config, this.file.weights(step), rows); }

  /** @param {Request} request @param {number} [most] */
  decode(request = {}, most) { // greedy, token by token; cells outside the given mask are as trained
    const { config, continues } = this.model, example = this.framed(request), weights = this.file.weights(request.step ?? null);
    const changes = this.changesOf(request, true), run = (tokens, target) => forward(config, weights, { tokens, target }, changes);
    if (continues) return continueText(config, config.architecture === "decoder" ? example.stream : example.tokens, run, most ?? TEXT_STEPS);
    return decode(config, example, run, most);
  }
}

export async function makeLive(bytes) {
  const live = new Live(await openModel(bytes)), { model } = live, bound = (name) => (...given) => live[name](...given);
  return { model, ...Object.fromEntries(["run", "trace", "parse", "textOf", "unembed", "decode"].map((name) => [name, bound(name)])) };
}
