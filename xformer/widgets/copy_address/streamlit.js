// Copies the address of the current view, or an iframe with it. If the browser forbids this, a text field shows the text to copy.
// Two more buttons add the view to the playlist, and open the playlist (../playlist).

import { button, element, theme } from "../shared.js";
import { mounted } from "../streamlit.js";

const SIZE = [1280, 720];
const KINDS = { link: "Copy link", frame: "Copy as iframe" };
const PLAYLIST = { add: "Add this view", open: "Open the playlist" };
const THIS_MACHINE = /^(localhost|127\.|\[::1\])/.test(location.hostname) ? " It works on this machine only." : "";
const DONE = {
  link: `The link is copied.${THIS_MACHINE}`,
  frame: `The iframe is copied.${THIS_MACHINE} It needs this server; for slides without one, save the picture as a file with “⋯”.`,
};
const escaped = (text) => text.replaceAll("&", "&amp;").replaceAll('"', "&quot;").replaceAll("<", "&lt;");

/** @param {string} kind @param {{ title: string, usual: object }} data @param {boolean} isDark */
function addressOf(kind, data, isDark) {
  const address = new URL(location.href),
    said = address.searchParams;
  for (const name of ["embed", "embed_options"]) said.delete(name);
  if (kind === "link") return address.href;
  for (const [name, value] of Object.entries(data.usual)) if (said.get(name) === value) said.delete(name);
  said.set("embed", "true");
  said.set("embed_options", isDark ? "dark_theme" : "light_theme");
  const [width, height] = SIZE,
    title = escaped(`xformer: ${data.title}`);
  return `<iframe src="${escaped(address.href)}" title="${title}" width="${width}" height="${height}" style="border: 0"></iframe>`;
}

class CopyAddress {
  root = element("div", "copy");
  said = element("span", "said");
  words = element("textarea");
  /** @type {any} */ data;

  /** @param {HTMLElement} parent */
  constructor(parent) {
    const row = element("div", "row");
    this.said.setAttribute("role", "status");
    Object.assign(this.words, { readOnly: true, hidden: true, rows: 4 });
    this.words.setAttribute("aria-label", "Text to copy");
    for (const [kind, label] of Object.entries(KINDS)) {
      const node = button(label, () => this.copy(kind));
      node.dataset.kind = kind;
      row.append(node);
    }
    for (const [act, label] of Object.entries(PLAYLIST)) row.append(button(label, () => this.ask(act)));
    this.root.append(row, this.said, this.words);
    parent.append(this.root);
  }

  update(data) {
    this.data = data ?? this.data;
  }
  destroy() {
    this.root.remove();
  }

  async copy(kind) {
    const { said, words } = this;
    words.value = addressOf(kind, this.data, theme(this.root).isDark === 1);
    try {
      await navigator.clipboard.writeText(words.value);
      words.hidden = true;
      said.textContent = DONE[kind];
    } catch {
      // not allowed here, for example on a server without TLS
      words.hidden = false;
      words.select();
      said.textContent = `Press Ctrl+C.${THIS_MACHINE}`;
    }
  }

  ask(act) {
    const wish = new CustomEvent("xformer-playlist", { cancelable: true, detail: { act, said: "" } });
    const ask = () => {
      if (dispatchEvent(wish))
        setTimeout(ask, 100); // the browser has not drawn the playlist yet
      else this.said.textContent = wish.detail.said;
    };
    this.words.hidden = true;
    this.said.textContent = "";
    ask();
  }
}

export default mounted(CopyAddress);
