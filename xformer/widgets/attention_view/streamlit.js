import { mounted } from "../streamlit.js";
import { boxIn, close, land } from "../zoom.js";
import { connect } from "./messages.js";
import { element, pen } from "../shared.js";
import { AttentionView } from "./view.js";

const main = () => document.querySelector('[data-testid="stMain"]');

class ConnectedView extends AttentionView {
  /** @type {(() => void) | undefined} */ disconnect;
  /** @type {DOMRect | null} */ shown = null;
  /** @type {{ x: number, y: number, width: number, height: number }} */ part;
  /** @type {import("./parts.js").Pane} */ pane;

  constructor(parent) {
    super(parent);
    for (const part of [main(), main()?.querySelector('[data-testid="stMainBlockContainer"]')]) if (part) this.resizing.observe(part);
  }

  get scrolled() { return main()?.scrollTop ?? 0; }

  update(bytes) {
    if (!bytes || bytes.length < 8) return;
    this.disconnect ??= connect(this, bytes);
    super.update(bytes);
  }

  drawHead() {
    super.drawHead();
    if (!this.shown) land(() => this.shownBox());
    this.shown = this.shownBox();
  }

  /** The box of the enlarged head, or of its locked cell, in the window. */
  shownBox() {
    const pane = this.parts.matrices.find(({ node }) => !node.hidden);
    if (!pane) return null;
    const { x, y, w, h } = pane.plot, { lock, layer } = this.state, [wide, high] = [w / layer.keys, h / layer.queries];
    const isCell = lock?.kind === "cell" && lock.query !== null && lock.key !== null;
    this.part = isCell ? { x: x + lock.key * wide, y: y + lock.query * high, width: wide, height: high } : { x, y, width: w, height: h };
    this.pane = pane;
    return boxIn(pane.layered.base, this.part);
  }

  picture() {
    const { base, dpr } = this.pane.layered, { x, y, width, height } = this.part, picture = element("canvas");
    Object.assign(picture, { width: Math.max(1, width * dpr), height: Math.max(1, height * dpr) });
    pen(picture).drawImage(base, -x * dpr, -y * dpr);
    return picture;
  }

  destroy() {
    if (this.shown) close({ name: this.state.current.map((at) => at + 1).join("."), picture: this.picture(), box: this.shown });
    this.disconnect?.();
    super.destroy();
  }
}

export default mounted(ConnectedView, "choice");
