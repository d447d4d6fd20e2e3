import { mounted } from "../streamlit.js";
import { connect } from "./messages.js";
import { AttentionView } from "./view.js";

const main = () => document.querySelector('[data-testid="stMain"]');

class ConnectedView extends AttentionView {
  /** @type {(() => void) | undefined} */ disconnect;

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

  destroy() {
    this.disconnect?.();
    super.destroy();
  }
}

export default mounted(ConnectedView, "choice");
