import { place, whenThemeChanges, embedded } from "../page.js";
import { ExactHead } from "./patterns.js";
import { AttentionView } from "./view.js";

const view = new AttentionView(place("view"));
const parts = embedded("exact"), exact = new Map(); // "layer.head" -> its exact weights, for the heads that are included
for (let from = 0; from < parts.length;) {
  const length = new DataView(parts.buffer, from).getUint32(0, true), bytes = parts.slice(from + 4, from + 4 + length);
  exact.set(new ExactHead(bytes).selected.join("."), bytes);
  from += 4 + length;
}
const sharpen = ({ layer, head }) => { const bytes = exact.get(`${layer}.${head}`); if (bytes) view.updateHead(bytes); };
view.send = sharpen;
view.update(embedded("planes"));
const [layer, head] = view.state.current;
sharpen({ layer, head });
whenThemeChanges(() => view.draw());
