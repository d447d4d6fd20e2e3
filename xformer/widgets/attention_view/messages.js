// The exact weights of a head and the planes of the original run arrive in separate messages, before or after the view exists.

import { headerOf } from "../shared.js";

// By view name. Global, since the elements that receive messages run in another script than the view.
const byView = (globalThis.xformerAttention ??= new Map());

function of(name) {
  if (!byView.has(name)) byView.set(name, { view: null, head: null, original: null });
  return byView.get(name);
}

const nameIn = (bytes) => headerOf(bytes)[0].view;

export function receive(bytes) { // "XATH" is a head, "XATO" an original run
  const known = of(nameIn(bytes)), kind = String.fromCharCode(bytes[3]);
  if (kind === "H") { known.head = bytes; known.view?.updateHead(bytes); }
  if (kind === "O") { known.original = bytes; known.view?.updateOriginal(bytes); }
}

export function connect(view, bytes) { // `view` receives the messages for the view named in `bytes`; returns a function that disconnects it
  const known = of(nameIn(bytes));
  known.view = view;
  if (known.original) view.updateOriginal(known.original);
  if (known.head) view.updateHead(known.head);
  return () => { if (known.view === view) known.view = null; };
}
