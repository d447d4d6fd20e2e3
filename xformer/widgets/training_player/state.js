// The state of a player: its packed timeline (xformer/viz/timeline.py), the shown frame, and whether it plays or follows a run.

import { canvasTheme, headerOf, palette } from "../shared.js";

/** @typedef {{ title: string, heads: number, rows: number, cols: number, queryLabels: string[], keyLabels: string[], offset: number }} Layer */
/** @typedef {{ step: number, scores: number[][], says: string[], right: boolean[], probability: number[] }} Frame */
/** @typedef {{ layer: number, head: number, score: number }} Best */
/** @typedef {ReturnType<typeof themeOf>} Theme */

/** @type {[string, number][]} */
export const SPEEDS = [["½×", 3], ["1×", 6], ["2×", 12], ["4×", 24]]; // frames per second

// Weights are encoded as 0…253 on the scale from 0 to 1; 254 is not a number, 255 masked.
export class Timeline {
  /** @type {Layer[]} */ layers;
  /** @type {Frame[]} */ frames;
  /** @type {[string, string[]][]} */ reads; // the lanes of the input
  /** @type {[number, number][]} */ exact; // the step and the share of exact answers
  /** @type {[number, string][]} */ marks;
  /** @type {[number, number]} */ best; // the head that is enlarged first
  /** @type {string[][]} */ hues;
  /** @type {string[][]} */ sequential;
  /** @type {number | null} */ target; // the step that Python sets; null for the newest
  /** @type {string} */ score; // the name of the measure
  /** @type {number} */ steps;
  /** @type {number} */ order;
  /** @type {number} */ offset;
  /** @type {boolean} */ judged; // the continuation of a text is neither right nor wrong
  /** @type {boolean} */ live;
  frameSize = 0;

  /** @param {Uint8Array<ArrayBuffer>} bytes */
  constructor(bytes) {
    const [header, body] = headerOf(bytes);
    Object.assign(this, header);
    this.body = body;
    for (const layer of this.layers) { layer.offset = this.frameSize; this.frameSize += layer.heads * layer.rows * layer.cols; }
    this.last = this.frames.length - 1;
  }

  /** @param {number} frame @param {number} layer @param {number} head */
  plane(frame, layer, head) {
    const it = this.layers[layer], from = frame * this.frameSize + it.offset + head * it.rows * it.cols;
    return this.body.subarray(from, from + it.rows * it.cols);
  }

  /** The last frame at or before a step, or the first frame. @param {number} step */
  nearest(step) { return Math.max(0, this.frames.findLastIndex((frame) => frame.step <= step)); }

  /** The head with the highest score; −1 without scores. @param {number} frame */
  bestAt(frame) {
    let found = { layer: 0, head: 0, score: -1 };
    this.frames[frame].scores.forEach((heads, layer) => heads.forEach((score, head) => {
      if (score > found.score) found = { layer, head, score };
    }));
    return found;
  }

  /** @param {number} layer @param {number} head */
  headName(layer, head) { return `${this.layers[layer].title} · head ${head + 1}`; }
}

export class State {
  at = 0;            // the shown frame
  follows = true;    // whether it moves to the newest frame automatically
  playing = false;
  speed = 1;         // an index of SPEEDS
  width = 0;
  /** @type {[number, number] | null} */ chosen = null; // [layer, head] enlarged by the user
  /** @type {number | null} */ order = null;
  /** @type {number | null} */ want = null; // the step requested by Python, until the user moves
  /** @type {{ x: number, y: number } | null} */ pointer = null; // over the enlarged head
  /** @type {Timeline} */ timeline;
  /** @type {Theme} */ theme;
  /** @type {import("./picture.js").Place} */ place;
  /** @type {{ x: number, y: number, w: number, h: number, layer: number, head: number }} */ box; // of the enlarged head

  get frame() { return this.timeline.frames[this.at]; }
  get head() { return this.chosen ?? this.timeline.best; }
  headHue(/** @type {number} */ head) { return this.timeline.hues[head % this.timeline.hues.length][this.theme.dark ? 1 : 0]; }
  font(/** @type {number} */ size, weight = 400) { return `${weight} ${size}px ${this.theme.font}`; }
}

/** @param {Element} root @param {string[][]} sequential */
export function themeOf(root, sequential) {
  const base = canvasTheme(root);
  return { ...base, colours: palette(sequential[base.dark ? 1 : 0]) };
}
