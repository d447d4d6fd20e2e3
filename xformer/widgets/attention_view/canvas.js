// Canvas helpers: layered canvases, drawing of codes, truncated text, and the spacing of labels.

import { LEVELS, MASKED, NAN, element, pen } from "../shared.js";

/** @typedef {import("./patterns.js").Codes} Codes */

export class Layered { // two stacked canvases: the plot, and an overlay that follows the pointer
  base = element("canvas", "base");
  over = element("canvas", "over");
  width = 0;
  height = 0;
  dpr = 0;

  /** @param {string} className */
  constructor(className) {
    this.node = element("div", `stack ${className}`);
    this.over.setAttribute("aria-hidden", "true");
    this.node.append(this.base, this.over);
  }

  /** @param {number} width @param {number} height @param {number} dpr */
  resize(width, height, dpr) {
    if (this.width === width && this.height === height && this.dpr === dpr) return; // resizing reallocates the canvas
    for (const canvas of [this.base, this.over]) {
      canvas.width = Math.round(width * dpr); canvas.height = Math.round(height * dpr);
      canvas.style.width = `${width}px`; canvas.style.height = `${height}px`;
    }
    [this.width, this.height, this.dpr] = [width, height, dpr];
  }

  /** @param {HTMLCanvasElement} canvas */
  clear(canvas) {
    const at = pen(canvas);
    at.setTransform(this.dpr, 0, 0, this.dpr, 0, 0);
    at.clearRect(0, 0, this.width, this.height);
    return at;
  }
}

/**
 * Max-pool to at most `tallest` × `widest` cells, so that isolated peaks survive; a block is masked only if all of it is.
 * @param {Codes} source @param {number} tallest @param {number} widest @param {boolean} signed
 * @returns {Codes}
 */
function pooled(source, tallest, widest, signed) {
  const tall = Math.ceil(source.rows / Math.max(1, tallest)), wide = Math.ceil(source.cols / Math.max(1, widest));
  if (tall === 1 && wide === 1) return source;
  const rows = Math.ceil(source.rows / tall), cols = Math.ceil(source.cols / wide);
  const codes = new Uint8Array(rows * cols).fill(MASKED);
  for (let r = 0, i = 0; r < source.rows; r++) {
    const to = Math.floor(r / tall) * cols;
    for (let c = 0; c < source.cols; c++, i++) {
      const code = source.codes[i], at = to + Math.floor(c / wide), had = codes[at];
      if (code === MASKED) continue;
      if (had === MASKED || (signed && code !== NAN && had !== NAN
        ? Math.abs(code - LEVELS / 2) > Math.abs(had - LEVELS / 2) : code > had)) codes[at] = code;
    }
  }
  return { codes, rows, cols, pool: [source.pool[0] * tall, source.pool[1] * wide] };
}

/**
 * Draw codes into a box.
 * @param {CanvasRenderingContext2D} at @param {Codes} source @param {import("../shared.js").Palette} colours
 * @param {{ x: number, y: number, w: number, h: number }} box @param {CanvasPattern} hatch where cells are masked
 * @param {number} dpr @param {boolean} signed @param {number} rows @param {number} cols before pooling @param {number} finest
 */
export function drawCodes(at, source, colours, box, hatch, dpr, signed, rows, cols, finest = Infinity) {
  const shown = pooled(source, Math.min(finest, box.h * dpr), Math.min(finest, box.w * dpr), signed);
  const canvas = Object.assign(element("canvas"), { width: shown.cols, height: shown.rows }); // a shared one is copied at each use
  const to = pen(canvas), image = to.createImageData(shown.cols, shown.rows);
  const words = new Uint32Array(image.data.buffer);
  for (let i = 0; i < words.length; i++) words[i] = colours.words[shown.codes[i]];
  to.putImageData(image, 0, 0);
  at.save();
  at.beginPath(); at.rect(box.x, box.y, box.w, box.h); at.clip();
  at.setTransform(1, 0, 0, 1, 0, 0); // hatching in device pixels
  at.fillStyle = hatch; at.fillRect(box.x * dpr, box.y * dpr, box.w * dpr, box.h * dpr);
  at.setTransform(dpr, 0, 0, dpr, 0, 0);
  at.imageSmoothingEnabled = false;
  // The last block may cover fewer cells than the others; it is drawn in full and clipped.
  at.drawImage(canvas, box.x, box.y, (box.w * shown.cols * shown.pool[1]) / cols,
    (box.h * shown.rows * shown.pool[0]) / rows);
  at.restore();
}

/**
 * Stroke the current path in the accent colour with a rim in the background colour, since the scale has similar colours.
 * @param {CanvasRenderingContext2D} at @param {{ background: string, mark: string }} theme @param {number} width
 */
export function markOut(at, theme, width, rim = 1.5) {
  at.strokeStyle = theme.background; at.lineWidth = width + 2 * rim; at.stroke();
  at.strokeStyle = theme.mark; at.lineWidth = width; at.stroke();
}

/** Text truncated to a width, with an ellipsis. @param {CanvasRenderingContext2D} at @param {string} text @param {number} width */
export function fitted(at, text, width) {
  if (at.measureText(text).width <= width) return text;
  const letters = Array.from(text);
  while (letters.length > 1 && at.measureText(`${letters.join("")}…`).width > width) letters.pop();
  return `${letters.join("")}…`;
}

/** The smallest round step at which labels `need` pixels apart do not touch. @param {number} room @param {number} need */
export function everyNth(room, need) {
  for (let ten = 1; ; ten *= 10) for (const n of [1, 2, 5]) if (room * n * ten >= need) return n * ten;
}
