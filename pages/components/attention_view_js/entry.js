// Puts the view together from its parts and hands it to Streamlit, one view an element.
// attention_view.py joins the files of this folder into one module, so they share its scope. A part that is a class
// holds methods of the view: they are moved to it here, with their getters, and none may hide another.

for (const part of [Theme, Building, Update, Legends, Grid, Layout, Labels, Matrix, Arcs, Strips, Readout, Pointing, Choosing, Keyboard]) {
  const { constructor, ...methods } = Object.getOwnPropertyDescriptors(part.prototype);
  for (const name of Object.keys(methods)) if (name in AttentionView.prototype) throw new Error(`Two parts of the view have ${name}.`);
  Object.defineProperties(AttentionView.prototype, methods);
}

const instances = new WeakMap(); // the element that holds a view -> its view, so a rerun finds what was locked

export default function ({ data, parentElement, setTriggerValue }) {
  let view = instances.get(parentElement);
  if (!view) instances.set(parentElement, (view = new AttentionView(parentElement)));
  const call = ++view.calls;
  view.send = (choice) => setTriggerValue("choice", choice);
  view.update(data);
  // An outdated call is cleaned up too: only the latest one may take the view down.
  return () => {
    if (view.calls !== call) return;
    view.destroy();
    instances.delete(parentElement);
  };
}
