// Position encodings; mirrors xformer/positions. An encoding acts at one of three places:
//
//   stream               x = E[token] + add(position)
//   queries and keys     q, k = turn(q, angles(position)), turn(k, angles(position))
//   scores               S = Q Kᵀ / √d_head + bias(query's position, key's position)
//
// `tables` are the learned tables of one stack, n is the number of positions, which are 0 … n − 1.

import { add, tensor, zeros } from "./tensors.js";

const first = (table, n) => tensor([n, table.shape[1]], table.data.slice(0, n * table.shape[1])); // rows 0 … n − 1
const last = (table, n) => { // row n − 1 − i at position i
  const width = table.shape[1], rows = zeros([n, width]);
  for (let i = 0; i < n; i++) rows.data.set(table.data.subarray((n - 1 - i) * width, (n - i) * width), i * width);
  return rows;
};

// PE(pos, 2i) = sin(pos / base^(2i/d_model)),  PE(pos, 2i+1) = cos(pos / base^(2i/d_model))
function sinusoidal(config, n) {
  const d = config.d_model, table = zeros([n, d]);
  for (let at = 0; at < n; at++) {
    for (let i = 0; i < d; i++) {
      const angle = at / config.position_base ** ((i - (i % 2)) / d);
      table.data[at * d + i] = i % 2 ? Math.cos(angle) : Math.sin(angle);
    }
  }
  return table;
}

// θ(pos, i) = pos / base^(2i/d_head)
function rotaryAngles(config, n) {
  const half = config.d_head / 2, angles = zeros([n, half]);
  for (let at = 0; at < n; at++) {
    for (let i = 0; i < half; i++) angles.data[at * half + i] = at / config.position_base ** ((2 * i) / config.d_head);
  }
  return angles;
}

// Rotate each pair (x₂ᵢ, x₂ᵢ₊₁) by θᵢ: (x₂ᵢ cos θ − x₂ᵢ₊₁ sin θ, x₂ᵢ sin θ + x₂ᵢ₊₁ cos θ)        x [heads, n, d_head]
export function turn(x, angles) {
  const [heads, n, width] = x.shape, half = width / 2, turned = zeros(x.shape);
  for (let head = 0; head < heads; head++) {
    for (let at = 0; at < n; at++) {
      for (let i = 0; i < half; i++) {
        const angle = angles.data[at * half + i], cos = Math.cos(angle), sin = Math.sin(angle), pair = (head * n + at) * width + 2 * i;
        const even = x.data[pair], odd = x.data[pair + 1];
        turned.data[pair] = even * cos - odd * sin;
        turned.data[pair + 1] = even * sin + odd * cos;
      }
    }
  }
  return turned;
}

function biasOf(heads, n, value) { // -> [heads, query, key]
  const bias = zeros([heads, n, n]);
  for (let head = 0, at = 0; head < heads; head++) {
    for (let query = 0; query < n; query++) for (let key = 0; key < n; key++) bias.data[at++] = value(head, query, key);
  }
  return bias;
}

// One slope per head: 2^(−8/n), 2^(−16/n), …; if n is not a power of two, every other slope of twice the power below is added.
function slopes(heads) {
  const power = 2 ** Math.floor(Math.log2(heads));
  const whole = Array.from({ length: power }, (_, i) => 2 ** ((-8 * (i + 1)) / power));
  const between = Array.from({ length: power }, (_, i) => 2 ** ((-8 * (2 * i + 1)) / (2 * power)));
  return [...whole, ...between.slice(0, heads - power)];
}

const BUCKETS = 32, FURTHEST = 128; // T5: keys from this distance on share one bucket

// The smallest distance of each of n buckets except the first: 1 … m for m = n/2, then m · (128 / m)^(j / m), rounded up exactly.
function starts(n) {
  const near = n / 2, wide = n - near, least = Array.from({ length: near }, (_, i) => i + 1);
  for (let j = 1; j < wide; j++) {
    let distance = near;
    while (BigInt(distance) ** BigInt(wide) < BigInt(near) ** BigInt(wide - j) * BigInt(FURTHEST) ** BigInt(j)) distance++;
    least.push(distance);
  }
  return least;
}

// offset = key − query; if causal, all later keys are in bucket 0, otherwise they have half of the buckets.
function bucketing(causal) {
  const n = causal ? BUCKETS : BUCKETS / 2, least = starts(n);
  return (offset) => {
    const distance = causal ? Math.max(0, -offset) : Math.abs(offset), found = least.filter((start) => start <= distance).length;
    return causal ? found : found + (offset > 0 ? n : 0);
  };
}

const nothing = { actsOn: "nothing" };

export const POSITIONS = {
  sinusoidal: { actsOn: "stream", add: (config, _tables, n) => sinusoidal(config, n) },
  learned: { actsOn: "stream", add: (_config, tables, n) => first(tables.table, n) }, // P[position]
  mirror: { actsOn: "stream", add: (_config, tables, n) => add(first(tables.from_start, n), last(tables.from_end, n)) }, // P[from the start] + Q[from the end]
  rotary: { actsOn: "queries and keys", angles: rotaryAngles },
  alibi: { // score − mₕ · distance
    actsOn: "scores",
    bias: (config, _tables, n) => { const m = slopes(config.n_heads); return biasOf(config.n_heads, n, (head, query, key) => -m[head] * Math.abs(query - key)); },
  },
  t5: { // score + Bₕ[bucket(distance)]
    actsOn: "scores",
    bias: (config, { table }, n, causal) => {
      const bucket = bucketing(causal);
      return biasOf(config.n_heads, n, (head, query, key) => table.data[bucket(key - query) * config.n_heads + head]);
    },
  },
  none: nothing,
};
