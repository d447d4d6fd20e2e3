// The forward pass of the library's transformers. Mirrors xformer/model.py and xformer/layers: equation, then code.
//
//   const run = forward(config, weights, { tokens, target }, changes);   // Map(name -> { shape, data: Float32Array })
//
// The names and shapes are those of a trace in Python, with a batch of 1: "encoder.0.attn.pattern" [1, head, query, key].
// `changes` are { causal: null | true | false, drawn: null | (n) => boolean(query, key), ablate: [[path, head]],
// cut: [[path, head | null, query, key]], positions: true | false, lenient: whether to skip missing cells }.

import { POSITIONS, turn } from "./positions.js";
import { add, concat, erf, linear, map, multiply, size, softmax, split, tensor, zeros } from "./tensors.js";

const MAX_INK = 16; // largest value of a pixel

// LayerNorm(x) = γ · (x − mean(x)) / √(var(x) + ε) + β        RMSNorm(x) = γ · x / √(mean(x²) + ε)
const standardise = (isCentred) => (x, weight, bias, eps) => {
  const width = weight.data.length, y = zeros(x.shape);
  for (let at = 0; at < x.data.length; at += width) {
    let mean = 0, square = 0;
    for (let i = at; isCentred && i < at + width; i++) mean += x.data[i] / width;
    for (let i = at; i < at + width; i++) square += (x.data[i] - mean) ** 2 / width;
    const spread = Math.sqrt(square + eps);
    for (let i = 0; i < width; i++) y.data[at + i] = (weight.data[i] * (x.data[at + i] - mean)) / spread + (bias ? bias.data[i] : 0);
  }
  return y;
};
export const NORMS = { layer: standardise(true), rms: standardise(false) };

export const ACTIVATIONS = {
  relu: { act: (x) => Math.max(0, x), isGated: false },
  gelu: { act: (x) => (x / 2) * (1 + erf(x / Math.SQRT2)), isGated: false }, // x · Φ(x)
  swiglu: { act: (x) => x / (1 + Math.exp(-x)), isGated: true }, // SiLU(x) = x · sigmoid(x)
};

export const MASKS = { // whether a query may attend to a key, apart from causality
  full: (_config, _query, _key) => true,
  sliding_window: (config, query, key) => Math.abs(query - key) < config.window,
};

const isEncoderDecoder = (config) => config.architecture === "encoder-decoder";
const isCausal = (config, stack) => stack === "decoder" || (config.architecture === "encoder" && config.causal);

// The attention and feed-forward layers of a stack's block, in the order of the stream.
export const attentionKinds = (config, stack) => (isEncoderDecoder(config) && stack === "decoder" ? ["self_attn", "cross_attn"] : ["attn"]);
export const stacksOf = (config) => (isEncoderDecoder(config) ? ["encoder", "decoder"] : [config.architecture]);

class Run { // one forward pass, with weights by name and its trace
  constructor(config, weights, changes) {
    this.config = config;
    /** @type {import("./tensors.js").Tensors} */
    this.weights = weights;
    this.changes = changes;
    this.trace = /** @type {import("./tensors.js").Tensors} */ (new Map());
  }

  keep(name, value, shape) {
    this.trace.set(name, tensor(shape ?? [1, ...value.shape], value.data));
    return value;
  }

  norm(name, x) { return NORMS[this.config.norm_kind](x, this.weights.get(`${name}.weight`), this.weights.get(`${name}.bias`), this.config.norm_eps); }

  // x = E[token], times √d_model if `scale_embeddings`
  embed(name, tokens) {
    const { data, shape: [, width] } = this.weights.get(`${name}.token`), x = zeros([tokens.length, width]);
    const scale = this.config.scale_embeddings ? Math.sqrt(width) : 1;
    tokens.forEach((token, at) => { for (let i = 0; i < width; i++) x.data[at * width + i] = data[token * width + i] * scale; });
    return x;
  }

  // x₀ = [class; p¹W + b; …; pᴺW + b]        patches and their pixels in row-major order; ink is scaled to 0…1
  embedPatches(pixels) {
    const { image, patch, d_model } = this.config, side = image / patch, patches = zeros([side * side, patch * patch]);
    let i = 0;
    for (let row = 0; row < side; row++) for (let column = 0; column < side; column++) {
      for (let y = 0; y < patch; y++) for (let x = 0; x < patch; x++) patches.data[i++] = pixels[(row * patch + y) * image + column * patch + x] / MAX_INK;
    }
    const mapped = linear(patches, this.weights.get("embedding.weight"), this.weights.get("embedding.bias")), x = zeros([1 + side * side, d_model]);
    x.data.set(this.weights.get("embedding.class_token").data);
    x.data.set(mapped.data, d_model);
    return x;
  }

  // One stack: positions, n_layers blocks, the final norm.
  stack(stack, embed, memory) {
    const { config, changes } = this, n = embed.shape[0], prefix = isEncoderDecoder(config) ? `${stack}.` : "", kind = POSITIONS[config.positions];
    const tables = {};
    for (const [name, value] of this.weights) if (name.startsWith(`${stack}.positions.table.`)) tables[name.split(".").at(-1)] = value;
    const off = (value) => (changes.positions ? value : zeros(value.shape));
    let x = this.keep(`${prefix}embed`, embed);
    if (kind.add) {
      const vectors = off(kind.add(config, tables, n));
      x = add(x, this.keep(`${prefix}pos_embed`, vectors, vectors.shape)); // embed + pos_embed
    }
    const causal = isCausal(config, stack), own = {
      causal: causal ? (query, key) => key <= query - (config.see_self ? 0 : 1) : () => true,
      angles: kind.angles && off(kind.angles(config, n)),
      bias: kind.bias && off(kind.bias(config, tables, n, causal)),
    };
    for (let layer = 0; layer < config.n_layers; layer++) x = this.block(stack, layer, x, own, memory);
    return config.final_norm ? this.keep(`${prefix}final_norm`, this.norm(`${stack}.norm`, x)) : x;
  }

  // One layer: attention (in the decoder of an encoder-decoder, also to the source), then feed-forward, each with a residual connection.
  block(stack, layer, x, own, memory) {
    const { config } = this, path = `${stack}.${layer}`, name = `${stack}.blocks.${layer}`, kinds = attentionKinds(config, stack);
    this.keep(`${path}.resid_pre`, x);
    for (const kind of kinds) {
      const isCross = kind === "cross_attn";
      x = this.residual(`${name}.${kind}_residual.norm`, x, (y) => this.attention(`${path}.${kind}`, `${name}.${kind}`, y, isCross ? memory : y, isCross ? null : own));
      this.keep(`${path}.${isCross ? "resid_cross" : "resid_mid"}`, x);
    }
    if (config.d_ff) x = this.residual(`${name}.ffn_residual.norm`, x, (y) => this.feedForward(`${path}.ffn`, `${name}.ffn`, y));
    return this.keep(`${path}.resid_post`, x);
  }

  // post-norm   Norm(x + f(x))        pre-norm   x + f(Norm(x))        no norm   x + f(x)
  residual(norm, x, f) {
    if (this.config.norm === "pre") return add(x, f(this.norm(norm, x)));
    const sum = add(x, f(x));
    return this.config.norm === "post" ? this.norm(norm, sum) : sum;
  }

  // Attention from x [query, d_model] to y [key, d_model]; `own` holds the mask and positions of self-attention.
  attention(path, name, x, y, own) {
    const { config, weights } = this, { n_heads, d_head, d_value } = config, n_kv = config.n_kv_heads || n_heads;
    const keep = (part, value) => this.keep(`${path}.${part}`, value);
    keep("in", x);
    // project    Q, K, V = X W_Q, Y W_K, Y W_V        the rows of weight_in are those of q, k and v
    const W = weights.get(`${name}.weight_in`), b = weights.get(`${name}.bias_in`), toK = n_heads * d_head, toV = toK + n_kv * d_head;
    let q = split(linear(x, W, b, 0, toK), n_heads), k = split(linear(y, W, b, toK, toV), n_kv), v = split(linear(y, W, b, toV), n_kv);
    if (own?.angles) {
      this.keep(`${path}.pos_angles`, own.angles, own.angles.shape);
      q = turn(q, own.angles);
      k = turn(k, own.angles);
    }
    // share      K, V of a group for each of its query heads
    q = keep("q", q);
    k = keep("k", shared(k, n_heads));
    v = keep("v", shared(v, n_heads));
    // score      S = Q Kᵀ / √d_head        (+ bias of the positions)
    let scores = this.scores(q, k, Math.sqrt(d_head));
    if (own?.bias) scores = add(scores, keep("pos_bias", own.bias));
    // mask       S = −∞ where attention is not allowed
    const allowed = this.allowed(path, scores.shape, own);
    for (let i = 0; i < scores.data.length; i++) if (!allowed.data[i]) scores.data[i] = -Infinity;
    keep("scores", scores);
    // softmax    A = softmax(S) over the keys
    const pattern = keep("pattern", softmax(scores));
    // mix        Z = A V
    const z = this.mix(pattern, v);
    for (const [at, head] of this.changes.ablate) if (at === path) z.data.fill(0, head * x.shape[0] * d_value, (head + 1) * x.shape[0] * d_value);
    keep("z", z);
    // out        Y = concat(Z₁ … Zₕ) W_O
    return keep("out", linear(concat(z), weights.get(`${name}.weight_out`), weights.get(`${name}.bias_out`)));
  }

  scores(q, k, root) {
    const [heads, n, width] = q.shape, keys = k.shape[1], scores = zeros([heads, n, keys]), left = q.data, right = k.data;
    for (let head = 0, at = 0; head < heads; head++) {
      for (let query = 0; query < n; query++) {
        for (let key = 0; key < keys; key++, at++) {
          let sum = 0;
          for (let i = 0, a = (head * n + query) * width, b = (head * keys + key) * width; i < width; i++) sum += left[a + i] * right[b + i];
          scores.data[at] = sum / root;
        }
      }
    }
    return scores;
  }

  mix(pattern, v) {
    const [heads, n, keys] = pattern.shape, width = v.shape[2], z = zeros([heads, n, width]), sum = new Float64Array(width);
    for (let head = 0; head < heads; head++) {
      for (let query = 0; query < n; query++) {
        sum.fill(0);
        for (let key = 0; key < keys; key++) {
          const weight = pattern.data[(head * n + query) * keys + key];
          if (weight) for (let i = 0, at = (head * keys + key) * width; i < width; i++) sum[i] += weight * v.data[at + i];
        }
        z.data.set(sum, (head * n + query) * width);
      }
    }
    return z;
  }

  // allow      causality and the registered mask, or a drawn mask instead, and then the cut cells
  allowed(path, shape, own) {
    const { changes, config } = this, [heads, n, keys] = shape, allowed = zeros(shape);
    const causal = own && (changes.causal === null ? own.causal : changes.causal ? (query, key) => key <= query : () => true);
    const drawn = own && changes.drawn?.(path, n);
    for (let head = 0, at = 0; head < heads; head++) {
      for (let query = 0; query < n; query++) for (let key = 0; key < keys; key++, at++) {
        const isSeen = !own || (causal(query, key) && MASKS[config.mask](config, query, key));
        allowed.data[at] = drawn ? (drawn(query, key) ?? isSeen) : isSeen;
      }
    }
    for (const [at, only, query, key] of changes.cut) {
      if (at !== path || (changes.lenient && (query >= n || key >= keys))) continue;
      if (!(query < n && key < keys)) {
        throw new Error(`${path}.mask has queries 0 to ${n - 1} and keys 0 to ${keys - 1}, so there is no edge (${query}, ${key}); for example (0, 0).`);
      }
      for (let head = 0; head < heads; head++) if (only === null || only === head) allowed.data[(head * n + query) * keys + key] = 0;
    }
    return this.keep(`${path}.mask`, allowed);
  }

  // FFN(x) = act(x W₁ + b₁) W₂ + b₂                  gated: (act(x W_gate + b) ∘ (x W₁ + b₁)) W₂ + b₂
  feedForward(path, name, x) {
    const { act, isGated } = ACTIVATIONS[this.config.activation], of = (part) => this.weights.get(`${name}.${part}`);
    const keep = (part, value) => this.keep(`${path}.${part}`, value);
    keep("in", x);
    const first = isGated ? "gate" : "in", pre = keep("pre", linear(x, of(`weight_${first}`), of(`bias_${first}`)));
    let post = map(pre, act);
    if (isGated) post = multiply(keep("gate", post), keep("up", linear(x, of("weight_in"), of("bias_in"))));
    return keep("out", linear(keep("post", post), of("weight_out"), of("bias_out")));
  }

  // logits = x W + b; with a tied output W is the embedding matrix
  logits(x) { return linear(x, this.weights.get(this.config.tied_output ? "embedding.token" : "unembedding.weight"), this.weights.get("unembedding.bias")); }
}

function shared(x, heads) { // [kv_head, pos, width] -> [head, pos, width]
  const [groups, n, width] = x.shape, each = heads / groups, all = zeros([heads, n, width]);
  if (each === 1) return x;
  for (let head = 0; head < heads; head++) all.data.set(x.data.subarray(Math.floor(head / each) * n * width, (Math.floor(head / each) + 1) * n * width), head * n * width);
  return all;
}

export function forward(config, weights, { tokens, target }, changes) { // -> the trace
  const run = new Run(config, weights, changes);
  const read = (stack) => (config.image ? run.embedPatches(tokens) : run.embed(stack === "encoder" && isEncoderDecoder(config) && !config.tied_source ? "source_embedding" : "embedding", stack === "decoder" && isEncoderDecoder(config) ? target : tokens));
  let x = null;
  for (const stack of stacksOf(config)) x = run.stack(stack, read(stack), x);
  run.keep("logits", run.logits(x));
  return run.trace;
}

// The logits of rows [n, d_model] of the stream: the final norm, then the output layer.
export function unembed(config, weights, rows) {
  const run = new Run(config, weights, {}), x = tensor([size(rows.shape) / config.d_model, config.d_model], rows.data);
  return run.logits(config.final_norm ? run.norm(`${stacksOf(config).at(-1)}.norm`, x) : x);
}

export function headOutput(weights, { stack, layer, kind, heads }, head) { // W_O of a head: [d_value][d_model]
  const { shape: [rows, columns], data } = weights.get(`${stack}.blocks.${layer}.${kind}.weight_out`), width = columns / heads;
  return Array.from({ length: width }, (_, i) => Array.from({ length: rows }, (_, row) => data[row * columns + head * width + i]));
}
