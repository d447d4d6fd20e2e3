// Helpers shared by the widgets: elements, the encoding of weights, and colours.

export const LEVELS = 253, NAN = 254, MASKED = 255; // a code is 0…253 on a scale, or one of these

/**
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {string} [className]
 * @param {string} [text]
 */
export function element(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

/** @param {string} text @param {(event: MouseEvent) => void} act @param {string} [className] */
export function button(text, act, className) {
  const node = element("button", className, text);
  node.type = "button";
  node.onclick = act;
  return node;
}

/** A button with a tooltip, which a symbol also has as its name. @param {string} text @param {string} label @param {(event: MouseEvent) => void} act */
export function labelled(text, label, act, className = "") {
  const node = Object.assign(button(text, act, className), { title: label });
  if (!/[a-z]/i.test(text)) node.setAttribute("aria-label", label); // a symbol means nothing to a screen reader
  return node;
}

/** @param {Element} node @param {Record<string, string | number>} attributes */
export function setAttributes(node, attributes) {
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, String(value));
}

/** @param {string} tag @param {Record<string, string | number>} attributes @param {string} [text] */
export function svg(tag, attributes, className = "", text) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  setAttributes(node, attributes);
  if (className) node.setAttribute("class", className);
  if (text !== undefined) node.textContent = text;
  return node;
}

/**
 * The JSON header of packed bytes, and the bytes after it.
 * @param {Uint8Array<ArrayBuffer>} bytes
 * @returns {[any, Uint8Array<ArrayBuffer>]}
 */
export function headerOf(bytes) {
  const length = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength).getUint32(4, true);
  return [JSON.parse(new TextDecoder().decode(bytes.subarray(8, 8 + length))), bytes.subarray(8 + length)];
}

const linear = (c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
const gamma = (c) => (c <= 0.0031308 ? c * 12.92 : 1.055 * c ** (1 / 2.4) - 0.055);

/** @typedef {[number, number, number]} RGB  each 0 to 255 */
/** @typedef {{ rgb: RGB[], words: Uint32Array }} Palette */

/**
 * Canvas pixels of one CSS pixel. The stage view (pages/controls/stage_view.js) enlarges the whole page, `zoom` an element.
 * @param {Element} [node] @returns {number}
 */
export const density = (node) => (window.devicePixelRatio || 1) * (/** @type {any} */ (window).xformerScale ?? 1) * (/** @type {any} */ (node)?.currentCSSZoom ?? 1);
/** @param {HTMLCanvasElement} canvas */
export const pen = (canvas, options = {}) => /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d", options));

/** @type {CanvasRenderingContext2D} */
let onePixel;

/** @param {string} colour any CSS colour @returns {RGB} */
export function parse(colour) {
  onePixel ??= pen(element("canvas"), { willReadFrequently: true });
  const context = onePixel;
  context.clearRect(0, 0, 1, 1);
  context.fillStyle = "#888";
  context.fillStyle = colour;
  context.fillRect(0, 0, 1, 1);
  const [r, g, b] = context.getImageData(0, 0, 1, 1).data;
  return [r, g, b];
}
/** @param {RGB} rgb */
export const luminance = (rgb) => { const [r, g, b] = rgb.map((c) => linear(c / 255)); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
/** @param {RGB} a @param {RGB} b */
export const contrast = (a, b) => { const [dark, light] = [luminance(a), luminance(b)].sort((x, y) => x - y); return (light + 0.05) / (dark + 0.05); };
/** @param {RGB} rgb */
export const ink = (rgb) => (luminance(rgb) > 0.3 ? "#0b0e14" : "#ffffff");
/** @param {RGB} a @param {RGB} b @param {number} t */
export const mix = (a, b, t) => `rgb(${a.map((c, i) => Math.round(c + (b[i] - c) * t)).join(",")})`;

/** @param {RGB} rgb */
function oklab([r, g, b]) {
  const [R, G, B] = [r, g, b].map((c) => linear(c / 255));
  const l = Math.cbrt(0.4122214708 * R + 0.5363325363 * G + 0.0514459929 * B);
  const m = Math.cbrt(0.2119034982 * R + 0.6806995451 * G + 0.1073969566 * B);
  const s = Math.cbrt(0.0883024619 * R + 0.2817188376 * G + 0.6299787005 * B);
  return [0.2104542553 * l + 0.793617785 * m - 0.0040720468 * s, 1.9779984951 * l - 2.428592205 * m + 0.4505937099 * s,
    0.0259040371 * l + 0.7827717662 * m - 0.808675766 * s];
}

/** @param {number[]} lab @returns {RGB} */
function fromOklab([L, a, b]) {
  const l = (L + 0.3963377774 * a + 0.2158037573 * b) ** 3, m = (L - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (L - 0.0894841775 * a - 1.291485548 * b) ** 3;
  const rgb = [4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s, -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s].map((c) => Math.round(255 * gamma(Math.max(0, Math.min(1, c)))));
  return /** @type {RGB} */ (rgb);
}

/** The host's CSS variables; isDark is 1 in a dark theme, else 0. @param {Element} root */
export function theme(root) {
  const style = getComputedStyle(root);
  const variable = (/** @type {string} */ name, otherwise) => style.getPropertyValue(name).trim() || otherwise;
  return { variable, isDark: luminance(parse(variable("--st-background-color", "#ffffff"))) < 0.3 ? 1 : 0 };
}

/** The colours, the font and the density of the host, for a canvas. @param {Element} root */
export function canvasTheme(root) {
  const { variable } = theme(root), dpr = density();
  const ground = parse(variable("--st-background-color", "#ffffff")), letters = parse(variable("--st-text-color", "#1a1c24"));
  const accent = parse(variable("--st-primary-color", "#2557d6")), mark = contrast(accent, ground) >= 4.5 ? accent : letters; // also the background of text
  const dark = luminance(ground) < 0.25;
  return {
    dark, dpr, font: variable("--st-font", "sans-serif"), background: mix(ground, ground, 0), text: mix(letters, letters, 0), primary: mix(accent, accent, 0),
    mark: mix(mark, mark, 0), muted: mix(ground, letters, 0.66), line: mix(ground, letters, 0.22), faint: mix(ground, letters, 0.08),
    veil: `rgba(${ground.join(",")},0.5)`, hatch: hatching(dpr, mix(ground, letters, dark ? 0.16 : 0.11), mix(ground, letters, dark ? 0.34 : 0.3)),
  };
}

/**
 * 256 colours: 0…253 along the stops (in OKLab), then not-a-number (magenta) and masked (transparent, over the hatching).
 * @param {string[]} stops
 * @returns {Palette}
 */
export function palette(stops) {
  const labs = stops.map((stop) => oklab(parse(stop))), rgb = /** @type {RGB[]} */ ([]), words = new Uint32Array(256);
  for (let c = 0; c <= LEVELS; c++) {
    const at = (c / LEVELS) * (labs.length - 1), i = Math.min(labs.length - 2, Math.floor(at)), t = at - i;
    rgb.push(fromOklab(labs[i].map((v, n) => v + (labs[i + 1][n] - v) * t)));
  }
  rgb.push([214, 0, 110]);
  rgb.forEach(([r, g, b], c) => { words[c] = (255 << 24) | (b << 16) | (g << 8) | r; });
  return { rgb, words };
}

/** @param {number} dpr @param {string} ground @param {string} line */
export function hatching(dpr, ground, line) {
  const tile = element("canvas");
  tile.width = tile.height = Math.round(6 * dpr);
  const at = pen(tile), s = tile.width;
  at.fillStyle = ground; at.fillRect(0, 0, s, s);
  at.strokeStyle = line; at.lineWidth = dpr;
  at.beginPath();
  for (const x of [-s, 0, s]) { at.moveTo(x - 1, s + 1); at.lineTo(x + s + 1, -1); }
  at.stroke();
  return /** @type {CanvasPattern} */ (at.createPattern(tile, "repeat"));
}
