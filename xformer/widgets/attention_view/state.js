// The state of an attention view: what is selected and how it is drawn. Everything that is drawn is a function of it.

import { canvasTheme, density, palette, theme } from "../shared.js";

/** @typedef {"query" | "key"} Side */
/**
 * A cell, a token of both sides, or one of a side; without a query or a key, it is a whole column or row.
 * @typedef {{ query: number, key: number, kind: "cell" | "token" } | { query: number, key: null, kind: "query" }
 *   | { query: null, key: number, kind: "key" }} Focus
 */
/** @typedef {ReturnType<typeof themeOf>} Theme */

const VARIABLES = ["background-color", "text-color", "font", "base-font-size", "primary-color"];

export class State {
  show = "both";                // matrix | arcs | both
  scale = "fixed";              // the colour scale, one of SCALES in patterns.js
  current = [0, 0];             // layer, head
  active = new Set([0]);        // heads whose arcs are drawn
  /** @type {Focus | null} */ hover = null;
  /** @type {Focus | null} */ lock = null;
  /** @type {import("./layout.js").Thumb | null} */ thumb = null; // the thumbnail under the pointer
  /** @type {import("./patterns.js").Patterns} */ patterns;
  /** @type {Theme} */ theme;
  /** @type {import("./layout.js").Grid} */ grid; // where the thumbnails stand
  width = 0;                    // of the view
  room = 0;                     // its height in a window or a slide frame; 0 for no limit
  framed = false;

  get layer() { return this.patterns.layers[this.current[0]]; }
  get focus() { return this.lock || this.hover; }
  get changed() { return this.patterns.runs > 1; }
  get moved() { return this.changed && this.layer.moved[this.current[1]] > 1e-6; } // whether the attention of this head changed
  get flows() { // the layers with a recorded change of the residual stream at these queries
    return this.patterns.layers.filter((layer) => layer.stream && layer.queryLabels === this.layer.queryLabels);
  }
  get same() { return this.layer.queryLabels === this.layer.keyLabels; } // queries and keys are the same tokens
  get isOwn() { return this.scale === "own" || this.scale === "without_first_token"; } // whether the scale ends at the head's largest weight

  /** @param {Side} kind */
  labels(kind) { return this.patterns.labels[kind === "query" ? this.layer.queryLabels : this.layer.keyLabels]; }
  /** @param {Side} kind */
  count(kind) { return kind === "query" ? this.layer.queries : this.layer.keys; }

  /** The weight at the end of the scale, common to both runs. @param {number} layer @param {number} head */
  top(layer, head) {
    if (!this.isOwn) return 1;
    const peak = this.scale === "without_first_token" ? "restPeak" : "peak";
    return Math.max(...this.patterns.layers[layer].runs.map((_, run) => this.patterns[peak](run, layer, head)));
  }

  /**
   * The weight as drawn; the scale may leave out the first key.
   * @param {number} run @param {number} layer @param {number} head @param {number} query @param {number} key
   */
  seen(run, layer, head, query, key) {
    return this.scale === "without_first_token" && key === 0 ? Infinity : this.patterns.weight(run, layer, head, query, key);
  }

  /** @param {Side} kind @param {number} i @returns {Focus} */
  tokenFocus(kind, i) {
    if (this.same) return { query: i, key: i, kind: "token" };
    return kind === "query" ? { query: i, key: null, kind } : { query: null, key: i, kind };
  }

  headName(/** @type {number} */ head) { return `head ${head + this.patterns.firstHead}`; }
  position(/** @type {number} */ i) { return i + this.patterns.firstPosition; }
  headHue(/** @type {number} */ head) { return this.patterns.hues[head % this.patterns.hues.length][this.theme.dark ? 1 : 0]; }
  font(/** @type {number} */ size, weight = 400) { return `${weight} ${(size * this.theme.zoom).toFixed(2)}px ${this.theme.font || "sans-serif"}`; }
}

/** What a theme depends on, as text. @param {Element} root */
export function themeKey(root) {
  const style = getComputedStyle(root);
  return [...VARIABLES.map((name) => style.getPropertyValue(`--st-${name}`)), density()].join("|");
}

/** @param {Element} root @param {{ sequential: string[][], diverging: string[][] }} colours */
export function themeOf(root, { sequential, diverging }) {
  const base = canvasTheme(root), size = parseFloat(theme(root).variable("--st-base-font-size", "16px"));
  return { ...base, key: themeKey(root), zoom: Math.max(0.9, Math.min(1.3, size / 16 || 1)),
    sequential: palette(sequential[base.dark ? 1 : 0]), diverging: palette(diverging[base.dark ? 1 : 0]) };
}
