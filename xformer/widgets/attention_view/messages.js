// The exact weights of a head and the planes of the original run come in messages of their own, before the view or after it.

import { headerOf } from "../shared.js";

// By the view's name. In the page, since the elements that bring messages run another script than the one with the view.
const byView = (globalThis.xformerAttention ??= new Map());

function of(name) {
  if (!byView.has(name)) byView.set(name, { view: null, head: null, original: null });
  return byView.get(name);
}

const nameIn = (bytes) => headerOf(bytes)[0].view;

export function receive(bytes) { // "ATTH…" is a head, "ATTO…" an original run
  const known = of(nameIn(bytes)), kind = String.fromCharCode(bytes[3]);
  if (kind === "H") { known.head = bytes; known.view?.updateHead(bytes); }
  if (kind === "O") { known.original = bytes; known.view?.updateOriginal(bytes); }
}

export function connect(view, bytes) { // `view` takes the messages for the view that `bytes` name; returns what ends it
  const known = of(nameIn(bytes));
  known.view = view;
  if (known.original) view.updateOriginal(known.original);
  if (known.head) view.updateHead(known.head);
  return () => { if (known.view === view) known.view = null; };
}
