// The elements of the player and their event handlers: playback, speed, ruler, keyboard and heads.

import { button, element } from "../shared.js";

/** @typedef {ReturnType<typeof buildParts>} Parts */

/** @param {import("./player.js").Player} player */
export function buildParts(player) {
  const root = element("div", "tp"), strip = element("div", "strip"), grid = element("canvas", "grid"), large = element("canvas", "large");
  grid.setAttribute("role", "img");
  large.setAttribute("role", "img");
  const title = element("div", "title"), dot = element("span", "dot"), name = element("span", "headname"), score = element("span", "score");
  const telling = element("span", "telling");
  title.append(dot, name, score, telling);
  const stage = element("div", "stage");
  stage.append(large);
  const readout = element("div", "readout");

  const bar = element("div", "controls"), play = button("", () => player.toggle(), "play"), step = element("span", "step");
  step.setAttribute("aria-live", "off");
  const back = button("‹", () => player.go(player.state.at - 1), "small"), next = button("›", () => player.go(player.state.at + 1), "small");
  back.title = "previous snapshot (←)"; next.title = "next snapshot (→)";
  const pace = button("", () => player.changeSpeed(), "pace"), live = button("● live", () => player.followAgain(), "live");
  pace.title = "speed";
  live.title = "follow the newest snapshot";
  const legend = element("div", "legend"), legendBest = element("span", "key"), legendExact = element("span", "key", "exact match");
  legend.append(legendBest, legendExact);
  bar.append(play, back, next, pace, step, live, legend);

  const ruler = element("canvas", "ruler");
  ruler.tabIndex = 0;
  ruler.setAttribute("role", "slider");
  ruler.setAttribute("aria-label", "training step that is shown");
  ruler.setAttribute("aria-valuemin", "0");
  const side = element("div", "side");
  side.append(strip, title, grid, readout, bar, ruler);
  root.append(stage, side);

  grid.addEventListener("click", (event) => player.enlarge(event));
  large.addEventListener("pointermove", (event) => player.point(event));
  large.addEventListener("pointerleave", () => player.point(null));
  let dragging = false;
  ruler.addEventListener("pointerdown", (event) => {
    ruler.setPointerCapture(event.pointerId);
    dragging = true;
    player.goTo(event);
  });
  ruler.addEventListener("pointermove", (event) => { if (dragging) player.goTo(event); });
  for (const end of ["pointerup", "pointercancel"]) ruler.addEventListener(end, () => { dragging = false; });
  root.addEventListener("keydown", (event) => player.key(event));
  return { root, strip, grid, large, dot, name, score, telling, readout, play, back, next, pace, step, live, legendBest, legendExact, ruler,
    said: /** @type {HTMLElement[]} */ ([]), lanes: "" }; // the predicted tokens, and what the strip shows
}
