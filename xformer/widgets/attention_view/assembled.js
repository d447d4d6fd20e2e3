// Puts the view together from its parts. scripts.py joins the files of this folder into one module, so they share its scope.
// A part that is a class holds methods of the view: they are moved to it here, with their getters, and none may hide another.

for (const part of [Theme, Building, Update, Legends, Grid, Layout, Labels, Matrix, Arcs, Strips, Readout, Pointing, Choosing, Keyboard]) {
  const { constructor, ...methods } = Object.getOwnPropertyDescriptors(part.prototype);
  for (const name of Object.keys(methods)) if (name in AttentionView.prototype) throw new Error(`Two parts of the view have ${name}.`);
  Object.defineProperties(AttentionView.prototype, methods);
}
