"""The attention view in a notebook: all heads of a run, one of them enlarged, with a selection that Python can read.

    view = xformer.attention_view(reading)                    # a run of any model
    view = xformer.attention_view(attentions, tokens)         # attention weights from any library
    view.layer, view.head, view.query, view.key

It runs wherever anywidget does. JupyterLab, Notebook 7 and marimo are tested in a browser; VS Code and Colab are simulated.
"""

from __future__ import annotations

import os
import secrets
from base64 import b64encode
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from xformer.errors import InputError
from xformer.files import write_atomically
from xformer.formatting import check_index
from xformer.installed import needed
from xformer.reading import Reading
from xformer.viz.packing import (
    AnyLayer,
    PatternLayer,
    exact_weights,
    head_message,
    heads_png,
    is_causal,
    pack,
    pack_selection,
    pattern_layers,
)
from xformer.widgets.page import about, edits_of, view_page_of
from xformer.widgets.scripts import script, style, themes

with needed("anywidget", "The attention view in a notebook"):
    import anywidget
    import traitlets


class AttentionView(anywidget.AnyWidget):
    """The interactive view of all heads in a notebook, made by `attention_view`.

    Attributes:
        layer: The layer of the enlarged head, from 0. Set it to enlarge another head.
        head: The enlarged head, from 0. Set it to enlarge another head.
        query: The query of the locked cell, None if no cell is locked. Read-only.
        key: The key of the locked cell, None if no cell is locked. Read-only.

    Example:
        >>> import xformer
        >>> view = xformer.attention_view(xformer.read("checkpoints/reverse", "3 7 12 9"), layer=2)
        >>> view.layer, view.head, view.query
        (2, 0, None)
    """

    _esm = script("attention_view", "notebook")
    _style = traitlets.Unicode().tag(sync=True)
    _planes = traitlets.Bytes().tag(sync=True)
    _exact = traitlets.Bytes().tag(sync=True)
    _page_class = traitlets.Unicode().tag(sync=True)
    layer = traitlets.Int(0).tag(sync=True)
    head = traitlets.Int(0).tag(sync=True)
    query = traitlets.Int(None, allow_none=True).tag(sync=True)
    key = traitlets.Int(None, allow_none=True).tag(sync=True)

    def __init__(
        self,
        layers: Sequence[AnyLayer],
        changed: Sequence[AnyLayer] | None = None,
        *,
        layer: int = 0,
        head: int = 0,
        height: int = 0,
        caption: Sequence[str] = (),
    ) -> None:
        self._runs = [list(layers)] if changed is None else [list(layers), list(changed)]
        self._caption = tuple(caption)
        packed = pack(layers, changed, selected=(layer, head))
        self._content = packed.content
        light, dark = themes()
        super().__init__(
            layer=layer,
            head=head,
            _planes=packed.message("view") + pack_selection((layer, head), height=height),
            _exact=packed.head("view"),
            _page_class=f"xformer-{secrets.token_hex(6)}",
            _style=f".ground {{ {light} padding: 8px 4px; }} .ground.dark {{ {dark} }} {style('attention_view')}",
        )

    @traitlets.validate("layer", "head")
    def _in_range(self, proposal: dict[str, Any]) -> int:
        value, name = proposal["value"], proposal["trait"].name
        check_index(name, value, len(self._runs[0]) if name == "layer" else max(one.shape[0] for one in self._runs[0]))
        return value

    @traitlets.observe("layer", "head")
    def _send_exact(self, _change: dict[str, Any]) -> None:
        """Send the exact weights of the enlarged head."""
        if self.head >= self._runs[0][self.layer].shape[0]:  # `layer` has changed, `head` not yet
            return
        blocks = np.stack([exact_weights(run[self.layer], self.head) for run in self._runs])  # [run, query, key]
        exact = head_message(blocks, (self.layer, self.head), view="view", content=self._content)
        if exact != self._exact:
            self._exact = exact

    def _ipython_display_(self) -> None:
        """Display the widget, and below it the view as a page. The widget hides the page; exports, without a kernel, show it.

        A preview that removes scripts and frames shows a picture of the heads.

        In Colab each output has its own frame, so the widget could not hide the page, and only the widget is displayed.
        """
        from IPython.display import HTML, display

        bundle = self._repr_mimebundle_()
        if bundle is not None:
            display(bundle[0], metadata=bundle[1], raw=True)
        if "COLAB_RELEASE_TAG" not in os.environ:
            display(HTML(f'<div class="{self._page_class}">{self._page()}</div>'))

    def _page(self) -> str:
        """The view as a page in a frame, over a picture of all heads: where scripts are not trusted, the frame is removed."""
        picture = b64encode(heads_png(self._runs[-1])).decode()
        alt = "All heads: a row for each layer. Trust the notebook to explore them."
        still = f'<img alt="{alt}" src="data:image/png;base64,{picture}">'
        frame = "position:absolute;inset:0;width:100%;height:100%;border:0;color-scheme:light dark"
        page = f'<iframe title="Attention" style="{frame}" srcdoc="{escape(self.html())}"></iframe>'
        return f'<div style="position:relative;height:720px;overflow:hidden">{still}{page}</div>'

    def html(self) -> str:
        """Return the view as a stand-alone page; see `xformer.widgets.page`."""
        cell = self.query, self.key
        return view_page_of(*self._runs, layer=self.layer, head=self.head, cell=cell, caption=self._caption)

    def save_html(self, path: str | Path) -> None:
        """Save the view as one HTML file that works offline."""
        write_atomically(Path(path), self.html().encode())


def attention_view(
    what: Any,
    tokens: Sequence[str] | None = None,
    *,
    query_tokens: Sequence[str] | None = None,
    key_tokens: Sequence[str] | None = None,
    changed: Any = None,
    layer: int = 0,
    head: int = 0,
    height: int = 0,
) -> AttentionView:
    """Draw the attention of all heads as an interactive view in a notebook.

    Args:
        what: A reading, or the attention weights of any model as a list of arrays [batch, head, query, key], one per layer.
        tokens: The token labels, if `what` is a list of arrays.
        query_tokens: The labels of the queries, if queries and keys differ (cross-attention).
        key_tokens: The labels of the keys, if queries and keys differ.
        changed: A second run, as a reading or arrays, drawn next to the first with the difference.
        layer: The layer of the head that is enlarged first, from 0.
        head: The head that is enlarged first, from 0.
        height: The largest height of the enlarged picture, in CSS pixels; 0 for no limit.

    Returns:
        The widget.

    Raises:
        InputError: The shapes of arrays, tokens or the two runs do not match.

    Example:
        >>> import torch, xformer
        >>> attentions = [torch.rand(1, 2, 3, 3).softmax(-1) for _ in range(4)]  # 4 layers of 2 heads
        >>> view = xformer.attention_view(attentions, ["the", "cat", "sat"], layer=3)
    """
    names = (tokens if query_tokens is None else query_tokens, tokens if key_tokens is None else key_tokens)

    def layers(source: Any) -> Sequence[AnyLayer]:
        return pattern_layers(source) if isinstance(source, Reading) else layers_of(source, *names)

    edits = edits_of(changed) if isinstance(changed, Reading) else ""
    caption = [about(what, edits)] if isinstance(what, Reading) else []
    other = None if changed is None else layers(changed)
    try:
        return AttentionView(layers(what), other, layer=layer, head=head, height=height, caption=caption)
    except ValueError as error:
        raise error if isinstance(error, InputError) else InputError(str(error)) from None


def layers_of(
    attentions: Any, query_tokens: Sequence[str] | None = None, key_tokens: Sequence[str] | None = None
) -> list[PatternLayer]:
    """Convert attention weights to layers of the attention view.

    If every weight above the diagonal is exactly 0 in all heads of a layer, its mask is taken as causal, and those cells are
    drawn as masked.

    Args:
        attentions: An array [layer, (batch,) head, query, key], or one array per layer; of a batch, the first example is drawn.
        query_tokens: The labels of the queries; their positions by default.
        key_tokens: The labels of the keys; their positions by default.

    Raises:
        InputError: The shapes of the arrays or the number of tokens do not match.
    """
    layers = []
    for number, weights in enumerate(_by_layer(attentions), start=1):
        pattern = _as_array(weights)
        if pattern.ndim == 4:
            pattern = pattern[0] if len(pattern) else pattern[:, 0]
        if pattern.ndim != 3 or 0 in pattern.shape:
            raise InputError(
                f"The attention of a layer has the axes [batch, head, query, key] or [head, query, key], none of them empty; "
                f"layer {number} has the shape {list(np.shape(weights))}."
            )
        queries, keys = pattern.shape[1:]
        query_names = _names(query_tokens, queries, "queries", number)
        key_names = _names(key_tokens, keys, "keys", number)
        allowed = np.tri(queries, dtype=bool)[None] if is_causal(pattern) else np.ones((1, 1, 1), dtype=bool)
        layers.append(PatternLayer(f"layer {number}", f"layer {number}", pattern, allowed, query_names, key_names))
    if not layers:
        raise InputError("There is no attention to draw: got no layers; pass the attentions that a model returns.")
    return layers


def _by_layer(attentions: Any) -> list[Any]:
    if isinstance(attentions, list | tuple):
        return list(attentions)
    return [attentions] if getattr(attentions, "ndim", 0) == 3 else list(attentions)


def _as_array(value: Any) -> np.ndarray:
    """Convert weights to float32: an array, a tensor of any device and dtype, or nested lists."""
    if value is None:
        raise InputError(
            "One of the layers is None: the model did not return its attention. Load it with attn_implementation='eager' "
            "and call it with output_attentions=True."
        )
    detached = value.detach().float().cpu().numpy() if hasattr(value, "detach") else value
    try:
        return np.asarray(detached, dtype=np.float32)
    except (TypeError, ValueError):
        raise InputError(f"Attention weights must be arrays of numbers, got {type(value).__name__}.") from None


def _names(tokens: Sequence[str] | None, size: int, axis: str, layer: int) -> tuple[str, ...]:
    if tokens is None:
        return tuple(map(str, range(size)))
    if len(tokens) != size:
        raise InputError(f"Layer {layer} has {size} {axis}, but {len(tokens)} tokens were given; give one for each.")
    return tuple(map(str, tokens))
