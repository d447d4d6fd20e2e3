// Inflate (RFC 1951): what zlib's raw deflate has packed, as bytes. At once, as a page draws with what it has read.

const LENGTHS = [3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 15, 17, 19, 23, 27, 31, 35, 43, 51, 59, 67, 83, 99, 115, 131, 163, 195, 227, 258];
const DISTANCES = [1, 2, 3, 4, 5, 7, 9, 13, 17, 25, 33, 49, 65, 97, 129, 193, 257, 385, 513, 769, 1025, 1537, 2049, 3073, 4097, 6145, 8193, 12289, 16385, 24577];
const ORDER = [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15];
const MOST = 15; // bits of a code
const moreOfLength = (i) => (i < 4 || i === 28 ? 0 : (i - 4) >> 2), moreOfDistance = (i) => (i < 2 ? 0 : (i - 2) >> 1);

function codesOf(lengths) { // canonical Huffman codes as a table: the next 15 bits -> symbol · 16 + length
  const table = new Uint16Array(1 << MOST);
  let code = 0;
  for (let length = 1; length <= MOST; length++, code <<= 1) {
    for (let symbol = 0; symbol < lengths.length; symbol++) {
      if (lengths[symbol] !== length) continue;
      let reversed = 0; // codes are written from their highest bit on
      for (let i = 0; i < length; i++) if (code & (1 << i)) reversed |= 1 << (length - 1 - i);
      for (let i = reversed; i < table.length; i += 1 << length) table[i] = (symbol << 4) | length;
      code++;
    }
  }
  return table;
}

export function inflate(source, size) {
  const out = new Uint8Array(size);
  let at = 0, bits = 0, held = 0, n = 0;
  const fill = (count) => { for (; held < count; held += 8) bits |= source[at++] << held; };
  const take = (count) => { fill(count); const value = bits & ((1 << count) - 1); bits >>>= count; held -= count; return value; };
  const next = (table) => { fill(MOST); const found = table[bits & ((1 << MOST) - 1)], length = found & 15; bits >>>= length; held -= length; return found >> 4; };
  for (let isLast = 0; !isLast;) {
    isLast = take(1);
    const kind = take(2);
    if (kind === 0) { // as it is
      take(held & 7);
      const length = take(16);
      take(16);
      for (let i = 0; i < length; i++) out[n++] = take(8);
      continue;
    }
    let symbols = Array.from({ length: 288 }, (_, i) => (i < 144 ? 8 : i < 256 ? 9 : i < 280 ? 7 : 8)), distances = Array(30).fill(5);
    if (kind === 2) { // the lengths of the codes come first, in a code of their own
      const n_symbols = take(5) + 257, n_distances = take(5) + 1, n_lengths = take(4) + 4, lengths = Array(19).fill(0);
      for (let i = 0; i < n_lengths; i++) lengths[ORDER[i]] = take(3);
      const table = codesOf(lengths), all = [];
      while (all.length < n_symbols + n_distances) {
        const found = next(table);
        if (found < 16) all.push(found);
        else for (let i = found === 16 ? 3 + take(2) : found === 17 ? 3 + take(3) : 11 + take(7), value = found === 16 ? all.at(-1) : 0; i > 0; i--) all.push(value);
      }
      symbols = all.slice(0, n_symbols);
      distances = all.slice(n_symbols);
    }
    const literal = codesOf(symbols), far = codesOf(distances);
    for (let symbol = next(literal); symbol !== 256; symbol = next(literal)) {
      if (symbol < 256) { out[n++] = symbol; continue; }
      const length = LENGTHS[symbol - 257] + take(moreOfLength(symbol - 257)), code = next(far), back = DISTANCES[code] + take(moreOfDistance(code));
      for (let i = 0; i < length; i++, n++) out[n] = out[n - back];
    }
  }
  return out;
}
