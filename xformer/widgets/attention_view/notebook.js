// Mounts the view in a notebook (Jupyter, VS Code, Colab or marimo) through anywidget.
// It is rendered in a shadow root, so that the styles of view and notebook do not interfere.

import { isOnDark } from "./ground.js";
import { AttentionView } from "./view.js";

const bytesOf = (model, name) => {
  const sent = model.get(name);
  return new Uint8Array(sent.buffer ?? sent, sent.byteOffset ?? 0, sent.byteLength);
};

export default {
  render({ model, el }) {
    const shadow = el.shadowRoot ?? el.attachShadow({ mode: "open" }), style = document.createElement("style");
    const place = document.createElement("div");
    style.textContent = model.get("_style");
    el.dataset.lmSuppressShortcuts = "true"; // otherwise JupyterLab handles arrow keys and brackets
    const hidden = document.createElement("style"); // hides the static page, which is shown without a kernel
    hidden.textContent = `.${model.get("_page_class")} { display: none; }`;
    document.head.append(hidden);
    const paint = () => { place.className = isOnDark(el) ? "ground dark" : "ground light"; };
    shadow.replaceChildren(style, place);
    paint();

    const view = new AttentionView(place);
    view.send = ({ layer, head, query, key }) => {
      for (const [name, value] of Object.entries({ layer, head, query, key })) model.set(name, value);
      model.save_changes();
    };
    const planes = () => { paint(); view.update(bytesOf(model, "_planes")); };
    const exact = () => view.updateHead(bytesOf(model, "_exact"));
    const chosen = () => { // from Python
      const [layer, head] = ["layer", "head"].map((name) => model.get(name));
      if (String([layer, head]) !== String(view.state.current)) view.choose(layer, head);
    };
    const watched = { "change:_planes": planes, "change:_exact": exact, "change:layer": chosen, "change:head": chosen };
    planes();
    exact();
    if (!el.isConnected) requestAnimationFrame(() => { paint(); view.draw(); }); // the notebook adds it to the page after this
    for (const [event, handler] of Object.entries(watched)) model.on(event, handler);
    const themes = new MutationObserver(() => { paint(); view.draw(); });
    for (const node of [document.documentElement, document.body]) {
      themes.observe(node, { attributes: true, attributeFilter: ["class", "data-jp-theme-light", "data-theme", "data-vscode-theme-kind", "style", "theme"] });
    }
    return () => {
      for (const [event, handler] of Object.entries(watched)) model.off(event, handler);
      themes.disconnect();
      hidden.remove();
      view.destroy();
    };
  },
};
