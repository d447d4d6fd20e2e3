// @ts-check
// The ground of a widget in a notebook: dark or light.

import { element, pen } from "../shared.js";

/**
 * Whether an element lies on dark ground: the first opaque background around it, or what a notebook with a transparent page says of
 * its theme (VS Code, Colab), or what the system prefers.
 * @param {Element} node
 */
export function isOnDark(node) {
  const context = pen(element("canvas"), { willReadFrequently: true });
  for (let at = /** @type {Element | undefined} */ (node); at; at = at.parentElement ?? /** @type {ShadowRoot} */ (at.getRootNode()).host) {
    context.clearRect(0, 0, 1, 1);
    context.fillStyle = "transparent"; // of an element outside the page, which has no colour
    context.fillStyle = getComputedStyle(at).backgroundColor; // in any notation, as marimo's color(srgb 1 1 1)
    context.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = context.getImageData(0, 0, 1, 1).data;
    if (a > 127) return 0.299 * r + 0.587 * g + 0.114 * b < 110;
  }
  const { documentElement: root, body } = document;
  const said = body.dataset.vscodeThemeKind ?? root.getAttribute("theme") ?? getComputedStyle(root).colorScheme;
  const isDark = /dark|contrast$/.test(said), isLight = said.includes("light");
  return isDark === isLight ? matchMedia("(prefers-color-scheme: dark)").matches : isDark;
}
