// Puts the view together from its parts and hands it to Streamlit, one view an element.
// attention_view.py joins the files of this folder into one module, so they share its scope. A part that is a class
// holds methods of the view: they are moved to it here, with their getters, and none may hide another.

for (const part of [Theme, Building, Update, Legends, Grid, Layout, Labels, Matrix, Arcs, Strips, Readout, Pointing, Choosing, Keyboard]) {
  const { constructor, ...methods } = Object.getOwnPropertyDescriptors(part.prototype);
  for (const name of Object.keys(methods)) if (name in AttentionView.prototype) throw new Error(`Two parts of the view have ${name}.`);
  Object.defineProperties(AttentionView.prototype, methods);
}

const instances = new WeakMap(); // the element that holds a view -> its view, so a rerun finds what was locked
// By the view's name, for the second element that brings the exact weights of a head: each element may run a copy of this script.
const shared = (globalThis.xformerAttention ??= { views: new Map(), heads: new Map() });
const nameIn = (bytes) => JSON.parse(new TextDecoder().decode(bytes.subarray(8, 8 + new DataView(bytes.buffer, bytes.byteOffset).getUint32(4, true)))).view;

export default function ({ data, parentElement, setTriggerValue }) {
  if (!data || data.length < 8) return undefined;
  const name = nameIn(data);
  if (data[3] === "H".charCodeAt(0)) {
    shared.heads.set(name, data);
    shared.views.get(name)?.updateHead(data);
    return undefined;
  }
  let view = instances.get(parentElement);
  if (!view) instances.set(parentElement, (view = new AttentionView(parentElement)));
  const call = ++view.calls;
  view.send = (choice) => setTriggerValue("choice", choice);
  shared.views.set(name, view);
  if (shared.heads.has(name)) view.updateHead(shared.heads.get(name));
  view.update(data);
  // An outdated call is cleaned up too: only the latest one may take the view down.
  return () => {
    if (view.calls !== call) return;
    view.destroy();
    instances.delete(parentElement);
    if (shared.views.get(name) === view) shared.views.delete(name);
  };
}
