// The elements of the view, and what each does when it is pointed at, clicked or typed into.

import { button, element } from "../shared.js";
import { Layered } from "./canvas.js";

/** @typedef {import("./state.js").Side} Side */
/** @typedef {ReturnType<typeof buildParts>} Parts */
/** @typedef {ReturnType<typeof buildPane>} Pane */
/** @typedef {ReturnType<typeof buildStrip>} Strip */

/** @param {import("./view.js").AttentionView} view */
export function buildParts(view) {
  const { state } = view, root = element("div", "av");
  root.setAttribute("role", "group");
  root.setAttribute("aria-label", "Attention of every layer and head");

  const legend = element("div", "key"), signedLegend = element("div", "key"), maskedLegend = element("div", "key"), movedLegend = element("span", "muted");
  const menus = {
    show: menu("View", [["matrix and arcs", "both"], ["matrix", "matrix"], ["arcs", "arcs"]], (value) => view.set({ show: value })),
    scale: menu("Colour scale", [["scale 0 to 1", "fixed"], ["scale per head", "own"], ["logarithmic", "log"], ["hide first token", "without_first_token"]],
      (value) => view.set({ scale: value })),
  };
  const precision = element("span", "tag"), bar = element("div", "bar");
  bar.append(menus.scale, legend, signedLegend, maskedLegend, precision);

  const grid = new Layered("grid"), scroll = element("div", "scroll");
  scroll.append(grid.node);
  focusable(grid.base);
  grid.base.addEventListener("pointermove", (event) => view.setThumb(view.thumbAt(event)));
  grid.base.addEventListener("pointerleave", () => view.setThumb(null));
  grid.base.addEventListener("click", (event) => { const t = view.thumbAt(event); if (t) view.choose(t.layer, t.head); });

  const line = element("div", "head"), dot = element("span", "dot"), title = element("span", "name"), silence = element("span", "tag silenced");
  const locked = button("locked — Esc unlocks", () => view.setLock(null), "tag locked");
  const readout = element("div", "readout"), text = element("span", "text");
  readout.append(text);
  line.append(dot, title, silence, locked, readout);

  const strips = [buildStrip(view, "query"), buildStrip(view, "key")];
  const stage = element("div", "stage");
  const matrices = ["original", "changed", "difference"].map((role) => buildPane(view, role, "matrix"));
  const arcs = ["original", "changed"].map((role) => buildPane(view, role, "arcs"));
  const flow = buildPane(view, "change of the residual stream", "flow");
  stage.append(...[...matrices, flow, ...arcs].map((pane) => pane.node));

  const live = element("div", "quiet");
  live.setAttribute("aria-live", "polite");
  const help = element("details", "help");
  help.append(element("summary", "", "View and keys"), menus.show, " Hovering highlights a row, a column and the tokens; clicking locks them. ");
  for (const [key, action] of [["Esc", "unlock"], ["← ↑ → ↓", "move the cell"], ["[ ]", "change the head"], [", .", "change the layer"]]) {
    help.append(element("kbd", "", key), ` ${action} · `);
  }
  help.append("small numbers are positions", movedLegend);
  const body = element("div", "body"), detail = element("div", "detail");
  detail.append(line, stage, bar, ...strips.map((strip) => strip.node), help);
  body.append(scroll, detail);
  root.append(body, live);
  root.addEventListener("keydown", (event) => view.key(event));
  menus.show.value = state.show;
  menus.scale.value = state.scale;
  return { root, body, menus, legend, signedLegend, maskedLegend, movedLegend, precision, grid, scroll, dot, title, silence, locked, readout, text,
    strips, matrices, arcs, flow, live, drawn: { legends: "", revealed: "" } };
}

/** @param {HTMLCanvasElement} canvas */
function focusable(canvas) {
  canvas.tabIndex = 0;
  canvas.setAttribute("role", "application");
}

/** @param {string} label @param {[string, string][]} options @param {(value: string) => void} set */
function menu(label, options, set) {
  const node = element("select");
  node.setAttribute("aria-label", label);
  node.append(...options.map(([text, value]) => new Option(text, value)));
  node.addEventListener("change", () => set(node.value));
  return node;
}

/** @param {import("./view.js").AttentionView} view @param {Side} kind */
function buildStrip(view, kind) {
  const node = element("div", "strip"), what = element("span", "what"), chips = element("div", "chips");
  node.append(what, chips);
  chips.tabIndex = 0; // so that it can be scrolled
  chips.setAttribute("role", "group");
  chips.setAttribute("aria-label", kind === "query" ? "Tokens of the queries" : "Tokens of the keys");
  const focusOf = (/** @type {Event} */ event) => {
    const chip = event.target instanceof Element && event.target.closest(".chip");
    return chip ? view.state.tokenFocus(kind, Number(chip.getAttribute("data-i"))) : null;
  };
  chips.addEventListener("pointerover", (event) => { const focus = focusOf(event); if (focus) view.setHover(focus); });
  chips.addEventListener("pointerleave", () => view.setHover(null));
  chips.addEventListener("click", (event) => view.toggleLock(focusOf(event)));
  return { kind, node, what, chips, nodes: /** @type {HTMLElement[]} */ ([]), labels: /** @type {string[] | null} */ (null),
    shown: /** @type {number[]} */ ([]), colour: "" };
}

/** @param {import("./view.js").AttentionView} view @param {string} role @param {"matrix" | "arcs" | "flow"} kind */
function buildPane(view, role, kind) {
  const node = element("div", `pane ${kind}`), caption = element("h4"), name = element("span"), layered = new Layered("plot");
  const pick = element("details", "pick"), pickTitle = element("summary", "", "heads"), heads = element("div", "heads");
  caption.append(name);
  if (kind === "arcs") {
    pick.append(pickTitle, heads);
    heads.setAttribute("role", "group");
    heads.setAttribute("aria-label", "Heads whose arcs are drawn; double-click to show only one");
    caption.append(pick);
  }
  node.append(caption, layered.node);
  focusable(layered.base);
  const pane = { role, kind, run: role === "changed" ? 1 : 0, node, name, layered, pick, pickTitle, heads, size: [0, 0],
    plot: /** @type {import("./layout.js").Plot} */ ({}), source: /** @type {import("./patterns.js").Codes | null} */ (null) };
  layered.base.addEventListener("pointermove", (event) => view.setHover(view.focusAt(pane, event)));
  layered.base.addEventListener("pointerleave", () => view.setHover(null));
  layered.base.addEventListener("click", (event) => view.toggleLock(view.focusAt(pane, event)));
  return pane;
}
