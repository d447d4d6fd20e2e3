"""A picture in the browser whose script is sent once, however often what it shows changes.

    _picture = SentOnce("xformer_step_ruler", css=…, js=…)
    _picture(key="ruler", data=data, on_rest_change=remember)

Streamlit sends a component's script and style along with every change of its data. Here an element of its own brings them: it
never changes, so that Streamlit sends it once. The element with the data brings a line that calls them, or waits for them.
"""

from __future__ import annotations

import json
from typing import Any
from zlib import crc32

from streamlit.components.v2 import component

_ENTRY = "export default function"
_BRINGS = """
const sheet = new CSSStyleSheet();
sheet.replaceSync(STYLE);
const script = ((globalThis.xformerScripts ??= {})[NAME] ??= { waiting: [] });
script.draw ??= (given) => {
  const root = given.parentElement.getRootNode();
  if (!root.adoptedStyleSheets.includes(sheet)) root.adoptedStyleSheets.push(sheet);
  return draw(given);
};
for (const go of script.waiting.splice(0)) go();
export default function () {}
"""
_CALLS = """
const script = ((globalThis.xformerScripts ??= {})[NAME] ??= { waiting: [] });
export default function (given) {
  if (script.draw) return script.draw(given);
  let undo, isOver = false;
  script.waiting.push(() => { if (!isOver) undo = script.draw(given); });
  return () => { isOver = true; undo?.(); };
}
"""


class SentOnce:
    """A component of Streamlit, in two: what draws, and what is drawn."""

    def __init__(self, name: str, *, css: str, js: str) -> None:
        known = json.dumps(f"{name} {crc32((css + js).encode()):08x}")  # another version is another script
        brings = _BRINGS.replace("NAME", known).replace("STYLE", json.dumps(css))
        self._script = component(f"{name}_script", js=js.replace(_ENTRY, "const draw = function", 1) + brings)
        self._data = component(name, js=_CALLS.replace("NAME", known))

    def __call__(self, *, key: str, data: Any, **callbacks: Any) -> Any:
        """Draw `data` and return what Streamlit does; `callbacks` are those of Streamlit, `on_NAME_change`."""
        self._script(key=f"script_of_{key}")
        return self.more(key=key, data=data, **callbacks)

    def more(self, *, key: str, data: Any, **callbacks: Any) -> Any:
        """Hand further data to the same script, through an element beside that which shows it."""
        return self._data(key=key, data=data, **callbacks)
