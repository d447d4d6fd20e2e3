// Copies the address of the current view, or an iframe with it. If the browser forbids this, a text field shows the text to copy.
// Two more buttons add the view to the playlist, and open the playlist (playlist.js).

const SIZE = [1280, 720];
const KINDS = { link: "Copy link", frame: "Copy as iframe" };
const PLAYLIST = { add: "Add this view", open: "Open the playlist" };
const HERE = /^(localhost|127\.|\[::1\])/.test(location.hostname) ? " It works on this machine only." : "";
const DONE = {
  link: `The link is copied.${HERE}`,
  frame: `The iframe is copied.${HERE} It needs this server; for slides without one, save the picture as a file with “⋯”.`,
};
const escaped = (text) => text.replaceAll("&", "&amp;").replaceAll('"', "&quot;").replaceAll("<", "&lt;");

function isDark(element) {
  const ground = getComputedStyle(element).getPropertyValue("--st-background-color").trim();
  return /^#[0-7]/.test(ground);
}

function addressOf(kind, data, element) {
  const address = new URL(location.href), said = address.searchParams;
  for (const name of ["embed", "embed_options"]) said.delete(name);
  if (kind === "link") return address.href;
  for (const [name, value] of Object.entries(data.usual)) if (said.get(name) === value) said.delete(name);
  said.set("embed", "true");
  said.set("embed_options", isDark(element) ? "dark_theme" : "light_theme");
  const [width, height] = SIZE, title = escaped(`xformer: ${data.title}`);
  return `<iframe src="${escaped(address.href)}" title="${title}" width="${width}" height="${height}" style="border: 0"></iframe>`;
}

export default function ({ data, parentElement }) {
  if (!data || parentElement.querySelector(".copy")) { // already drawn: only the title may have changed
    if (data) parentElement.querySelector(".copy").data = data;
    return;
  }
  const box = Object.assign(document.createElement("div"), { className: "copy", data });
  const row = Object.assign(document.createElement("div"), { className: "row" });
  const said = Object.assign(document.createElement("span"), { className: "said" });
  said.setAttribute("role", "status");
  const words = Object.assign(document.createElement("textarea"), { readOnly: true, hidden: true, rows: 4 });
  words.setAttribute("aria-label", "Text to copy");
  for (const [kind, label] of Object.entries(KINDS)) {
    const button = Object.assign(document.createElement("button"), { type: "button", textContent: label });
    button.dataset.kind = kind;
    button.addEventListener("click", async () => {
      words.value = addressOf(kind, box.data, parentElement.host ?? parentElement);
      try {
        await navigator.clipboard.writeText(words.value);
        words.hidden = true;
        said.textContent = DONE[kind];
      } catch { // not allowed here, for example on a server without TLS
        words.hidden = false;
        words.select();
        said.textContent = `Press Ctrl+C.${HERE}`;
      }
    });
    row.append(button);
  }
  for (const [act, label] of Object.entries(PLAYLIST)) {
    const button = Object.assign(document.createElement("button"), { type: "button", textContent: label });
    button.addEventListener("click", () => {
      const wish = new CustomEvent("xformer-playlist", { cancelable: true, detail: { act, said: "" } });
      const ask = () => {
        if (dispatchEvent(wish)) setTimeout(ask, 100); // the browser has not drawn the playlist yet
        else said.textContent = wish.detail.said;
      };
      words.hidden = true;
      said.textContent = "";
      ask();
    });
    row.append(button);
  }
  box.append(row, said, words);
  parentElement.append(box);
}
