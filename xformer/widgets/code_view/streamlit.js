import { mounted } from "../streamlit.js";
import { CodeView } from "./view.js";

class AppCodeView extends CodeView {
  /** @param {HTMLElement} parent */
  constructor(parent) {
    super(parent);
    this.root.classList.add("app"); // whose navigation covers the top of the window
  }
}

export default mounted(AppCodeView, "act");
