// A picture that goes on from one widget to the next. It grows out of what was clicked, and lands where the next widget shows it.
//
//   grow({ name, picture, box }, room)    // it is clicked: what the picture is, the picture, its box, and the box in which it grows
//   close({ name, picture, box })         // a widget that shows it is closed
//   land((name) => box)                   // the next widget shows it in this box, or null if it does not
//
// The state is global, since the script of each widget is a bundle of its own.

/** @typedef {{ name: string, picture: HTMLCanvasElement, box: DOMRect }} Shown */

const GROWS = 350, LANDS = 280, WAITS = 4000, FRESH = 1500; // ms
export const SOFTLY = { duration: GROWS, easing: "ease-in-out" };

/** @type {{ grown: (Shown & { node: HTMLElement }) | null, closed: (Shown & { at: number }) | null }} */
const state = (globalThis.xformerZoom ??= { grown: null, closed: null });
const isStill = () => matchMedia("(prefers-reduced-motion: reduce)").matches;
const inBox = (/** @type {DOMRect} */ { left, top, width, height }) => `translate(${left}px, ${top}px) scale(${width}, ${height})`;

/** @param {Shown} shown */
function copied({ picture, box }) { // above the page; only its transform changes, so that a busy page does not stop it
  const node = document.createElement("canvas");
  Object.assign(node, { width: picture.width, height: picture.height, ariaHidden: "true" });
  node.getContext("2d")?.drawImage(picture, 0, 0);
  Object.assign(node.style, { position: "fixed", left: "0", top: "0", width: "1px", height: "1px", transformOrigin: "0 0", zIndex: "99",
    imageRendering: "pixelated", pointerEvents: "none", transform: inBox(box) });
  document.body.append(node);
  return node;
}

/** @param {Shown} shown @param {DOMRect} room */
export function grow(shown, room) {
  if (isStill()) return;
  state.grown?.node.remove();
  const { box } = shown, node = copied(shown), scale = Math.min(room.width / box.width, room.height / box.height);
  const [width, height] = [box.width * scale, box.height * scale];
  const to = new DOMRect(room.left + (room.width - width) / 2, room.top + (room.height - height) / 2, width, height);
  node.animate({ transform: [inBox(box), inBox(to)] }, { ...SOFTLY, fill: "forwards" });
  state.grown = { ...shown, node };
  setTimeout(() => node.remove(), WAITS); // the next widget has not come
}

/** @param {Shown} shown */
export function close(shown) { state.closed = { ...shown, at: performance.now() }; }

/** @param {(name: string) => DOMRect | null} boxOf */
export function land(boxOf) {
  const grown = state.grown?.node.isConnected ? state.grown : null, closed = state.closed;
  const shown = grown ?? (closed && performance.now() - closed.at < FRESH && !isStill() ? closed : null);
  const to = shown && boxOf(shown.name);
  state.grown = state.closed = null;
  if (!shown || !to) return grown?.node.remove();
  const node = grown?.node ?? copied(shown), from = node.getBoundingClientRect();
  const frames = { transform: [inBox(from), inBox(to), inBox(to)], opacity: [1, 1, 0], offset: [0, 0.75, 1] };
  node.animate(frames, { duration: LANDS, easing: "ease-out", fill: "forwards" }).finished.then(() => node.remove());
}

/** @param {Element} canvas @param {{ x: number, y: number, width: number, height: number }} part of it, in CSS pixels */
export function boxIn(canvas, { x, y, width, height }) {
  const { left, top } = canvas.getBoundingClientRect();
  return new DOMRect(left + x, top + y, width, height);
}
