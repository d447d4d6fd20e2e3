// Reads a packed film (xformer/viz/film.py): every weight of every head at every step, as codes to draw.
// A code is 0..253 on the scale from 0 to 1, 254 not a number, 255 masked.

const LEVELS = 253, NAN = 254, MASKED = 255;

class Film {
  constructor(bytes) {
    const length = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength).getUint32(4, true);
    Object.assign(this, JSON.parse(new TextDecoder().decode(bytes.subarray(8, 8 + length))));
    this.body = bytes.subarray(8 + length);
    let offset = 0;
    for (const layer of this.layers) { layer.offset = offset; offset += layer.heads * layer.rows * layer.cols; }
    this.frameSize = offset;
    this.last = this.frames.length - 1;
  }

  plane(frame, layer, head) {
    const it = this.layers[layer], from = frame * this.frameSize + it.offset + head * it.rows * it.cols;
    return this.body.subarray(from, from + it.rows * it.cols);
  }

  scoreOf(frame, layer, head) { return this.frames[frame].scores[layer]?.[head]; }
  headName(layer, head) { return `${this.layers[layer].title} · head ${head + 1}`; }
  nearest(step) { // the frame that shows the last weights at or before a step, or the first frame
    let found = 0;
    this.frames.forEach((frame, i) => { if (frame.step <= step) found = i; });
    return found;
  }
}
