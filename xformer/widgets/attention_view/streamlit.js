import { mounted } from "../streamlit.js";
import { connect } from "./messages.js";
import { AttentionView } from "./view.js";

class ConnectedView extends AttentionView {
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
