// Hands the view to Streamlit, one view an element.

const instances = new WeakMap(); // the element that holds a view -> its view, so a rerun finds what was locked
// By the view's name, for the elements that bring the exact weights of a head and the original run: each may run a copy of this.
const shared = (globalThis.xformerAttention ??= { views: new Map(), heads: new Map(), originals: new Map() });
const nameIn = (bytes) => JSON.parse(new TextDecoder().decode(bytes.subarray(8, 8 + new DataView(bytes.buffer, bytes.byteOffset).getUint32(4, true)))).view;

export default function ({ data, parentElement, setTriggerValue }) {
  if (!data || data.length < 8) return undefined;
  const name = nameIn(data);
  if (data[3] === "H".charCodeAt(0)) {
    shared.heads.set(name, data);
    shared.views.get(name)?.updateHead(data);
    return undefined;
  }
  if (data[3] === "O".charCodeAt(0)) {
    shared.originals.set(name, data);
    shared.views.get(name)?.updateOriginal(data);
    return undefined;
  }
  let view = instances.get(parentElement);
  if (!view) instances.set(parentElement, (view = new AttentionView(parentElement)));
  const call = ++view.calls;
  view.send = (choice) => setTriggerValue("choice", choice);
  shared.views.set(name, view);
  if (shared.originals.has(name)) view.updateOriginal(shared.originals.get(name));
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
