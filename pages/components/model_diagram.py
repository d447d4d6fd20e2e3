"""Show a model as a picture whose parts can be pointed at and opened; the tokens flow through it.

target = model_diagram(diagram(config, n_tokens=9), available=frozenset({"attention"}), key="diagram")
if target == "attention":
    st.switch_page("pages/attention/page.py")
"""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from streamlit.components.v2 import component

from xformer.viz.diagram import Diagram
from xformer.viz.theme import HEAD_HUES, PART_HUES

_HERE = Path(__file__).parent
_EVENT = "open"
_component = component(
    "xformer_model_diagram",
    css=(_HERE / "model_diagram.css").read_text(encoding="utf-8"),
    js=(_HERE / "model_diagram.js").read_text(encoding="utf-8"),
)


def model_diagram(diagram: Diagram, *, available: frozenset[str], key: str) -> str | None:
    """Draw the diagram and return the screen that was just asked for, or None.

    Only the screens in `available` can be asked for; a part that leads elsewhere explains itself and is not clickable.
    """
    result = _component(key=key, data=picture(diagram, available), on_open_change=lambda: None)
    return checked(result.get(_EVENT), diagram, available)


def picture(diagram: Diagram, available: frozenset[str]) -> dict[str, Any]:
    """What the browser needs to draw the diagram, as JSON values."""
    boxes = [
        asdict(box)
        | {"shape": box.shape_text, "hue": PART_HUES[box.kind], "open": box.target if box.target in available else None}
        for box in diagram.boxes
    ]
    return {
        "title": diagram.title,
        "norm": diagram.norm,
        "parameters": diagram.n_parameters,
        "stacks": [asdict(stack) for stack in diagram.stacks],
        "boxes": boxes,
        "arrows": [asdict(arrow) for arrow in diagram.arrows],
        "hues": HEAD_HUES,
        "moving": PART_HUES["attention"],
    }


def checked(sent: Any, diagram: Diagram, available: frozenset[str]) -> str | None:
    """What a browser sent, if it is a screen that this diagram leads to; None otherwise."""
    return sent if isinstance(sent, str) and sent in diagram.targets & available else None
