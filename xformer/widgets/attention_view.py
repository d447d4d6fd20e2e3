"""The attention view in a notebook: all heads of a run, one enlarged, linked by hovering, its selection readable from Python.

    view = xformer.attention_view(reading)                    # a run of our model or of any other
    view = xformer.attention_view(attentions, tokens)         # what any other library returns
    view.layer, view.head, view.query, view.key

It runs wherever anywidget does: Jupyter, VS Code, Colab, marimo.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from xformer.errors import InputError
from xformer.files import write_atomically
from xformer.installed import needed
from xformer.reading import Reading
from xformer.viz.packing import (
    AnyLayer,
    PatternLayer,
    exact_weights,
    head_message,
    is_causal,
    pack,
    pattern_layers,
    rider,
)
from xformer.widgets.page import about, recipe_of, view_page_of
from xformer.widgets.scripts import script, style, themes

with needed("anywidget", "The attention view in a notebook"):
    import anywidget
    import traitlets


class AttentionView(anywidget.AnyWidget):
    """The interactive view of all heads in a notebook, made by `attention_view`.

    Attributes:
        layer: The enlarged head's layer, from 0. Setting it enlarges another one.
        head: The enlarged head, from 0. Setting it enlarges another one.
        query: The query of the locked cell, None where no cell is locked. Read only.
        key: The key of the locked cell, None where no cell is locked. Read only.

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
        _check(self._runs[0], layer, head)
        packed = pack(layers, changed, selected=(layer, head))
        self._content = packed.content
        light, dark = themes()
        super().__init__(
            layer=layer,
            head=head,
            _planes=packed.message("view") + rider((layer, head), height=height),
            _exact=packed.head("view"),
            _page_class=f"xformer-{secrets.token_hex(6)}",
            _style=f".ground {{ {light} padding: 8px 4px; }} .ground.dark {{ {dark} }} {style('attention_view')}",
        )

    @traitlets.validate("layer", "head")
    def _there(self, proposal: dict[str, Any]) -> int:
        value, name = proposal["value"], proposal["trait"].name
        n = len(self._runs[0]) if name == "layer" else max(one.shape[0] for one in self._runs[0])
        if not 0 <= value < n:
            raise InputError(f"This view has {name}s 0 to {n - 1}, got {value}.")
        return value

    @traitlets.observe("layer", "head")
    def _sharpen(self, _change: dict[str, Any]) -> None:
        """Send the exact weights of the head that is enlarged now."""
        if self.head >= self._runs[0][self.layer].shape[0]:  # half of a move to a layer with fewer heads
            return
        blocks = np.stack([exact_weights(run[self.layer], self.head) for run in self._runs])  # [run, query, key]
        exact = head_message(blocks, (self.layer, self.head), view="view", content=self._content)
        if exact != self._exact:
            self._exact = exact

    def _ipython_display_(self) -> None:
        """The widget, and below it the same as a page, which the widget hides; an export has no kernel and keeps the page.

        Where each output has a frame of its own, the widget could not hide it, so there it stands alone.
        """
        from IPython.display import HTML, display

        bundle = self._repr_mimebundle_()
        if bundle is not None:
            display(bundle[0], metadata=bundle[1], raw=True)
        if "COLAB_RELEASE_TAG" not in os.environ:
            frame = "width:100%;height:720px;border:0;color-scheme:light dark"
            page = f'<iframe title="Attention" style="{frame}" srcdoc="{escape(self.html())}"></iframe>'
            display(HTML(f'<div class="{self._page_class}">{page}</div>'))

    def html(self) -> str:
        """The view as a page that stands alone; see `xformer.widgets.page`."""
        cell = self.query, self.key
        return view_page_of(*self._runs, layer=self.layer, head=self.head, cell=cell, caption=self._caption)

    def save_html(self, path: str | Path) -> None:
        """Write the view into one file that opens anywhere, with the network off."""
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
        what: A reading, or weights of any model as a list of arrays [batch, head, query, key], one for each layer.
        tokens: The labels of the positions, for arrays.
        query_tokens: The labels of the queries, where queries and keys differ (cross-attention).
        key_tokens: The labels of the keys, where queries and keys differ.
        changed: A second run, a reading or arrays, drawn beside the first with their difference.
        layer: The layer of the head that is enlarged first, from 0.
        head: The head that is enlarged first, from 0.
        height: The largest height of the enlarged picture, in CSS pixels; 0 for no limit.

    Returns:
        The widget.

    Raises:
        InputError: Arrays, tokens or the two runs do not fit together.

    Example:
        >>> import torch, xformer
        >>> attentions = [torch.rand(1, 2, 3, 3).softmax(-1) for _ in range(4)]  # 4 layers of 2 heads
        >>> view = xformer.attention_view(attentions, ["the", "cat", "sat"], layer=3)
    """
    names = (tokens if query_tokens is None else query_tokens, tokens if key_tokens is None else key_tokens)

    def layers(source: Any) -> Sequence[AnyLayer]:
        return pattern_layers(source) if isinstance(source, Reading) else layers_of(source, *names)

    changes = recipe_of(changed) if isinstance(changed, Reading) else ""
    caption = [about(what, changes)] if isinstance(what, Reading) else []
    other = None if changed is None else layers(changed)
    try:
        return AttentionView(layers(what), other, layer=layer, head=head, height=height, caption=caption)
    except ValueError as error:
        raise error if isinstance(error, InputError) else InputError(str(error)) from None


def _check(layers: Sequence[AnyLayer], layer: int, head: int) -> None:
    if not 0 <= layer < len(layers):
        raise InputError(f"There are layers 0 to {len(layers) - 1}, got layer={layer}.")
    if not 0 <= head < layers[layer].shape[0]:
        raise InputError(f"Layer {layer} has heads 0 to {layers[layer].shape[0] - 1}, got head={head}.")


def layers_of(
    attentions: Any, query_tokens: Sequence[str] | None = None, key_tokens: Sequence[str] | None = None
) -> list[PatternLayer]:
    """Layers of the attention view from one array [layer, (batch,) head, query, key], or a list of one a layer.

    Of a batch the first example is drawn. Tokens that are not given are numbered. Where every weight above the diagonal is
    exactly 0 in all heads of a layer, its mask was causal, and those cells are drawn as masked.

    Raises `InputError` with one plain sentence where the arrays or tokens do not fit.
    """
    layers = []
    for number, given in enumerate(_one_by_one(attentions), start=1):
        pattern = _plain(given)
        if pattern.ndim == 4:
            pattern = pattern[0] if len(pattern) else pattern[:, 0]
        if pattern.ndim != 3 or 0 in pattern.shape:
            raise InputError(
                f"The attention of a layer has the axes [batch, head, query, key] or [head, query, key], none of them empty; "
                f"layer {number} has the shape {list(np.shape(given))}."
            )
        queries, keys = pattern.shape[1:]
        query_names = _names(query_tokens, queries, "queries", number)
        key_names = _names(key_tokens, keys, "keys", number)
        allowed = np.tri(queries, dtype=bool)[None] if is_causal(pattern) else np.ones((1, 1, 1), dtype=bool)
        layers.append(PatternLayer(f"layer {number}", f"layer {number}", pattern, allowed, query_names, key_names))
    if not layers:
        raise InputError("There is no attention to draw: got no layers; give the attentions that a model returns.")
    return layers


def _one_by_one(attentions: Any) -> list[Any]:
    if isinstance(attentions, list | tuple):
        return list(attentions)
    return [attentions] if getattr(attentions, "ndim", 0) == 3 else list(attentions)


def _plain(value: Any) -> np.ndarray:
    """Weights as float32, from an array, a tensor on any device and of any kind of float, or nested lists."""
    if value is None:
        raise InputError(
            "One of the layers is None: the model was run without its attention. Load it with attn_implementation='eager' "
            "and call it with output_attentions=True."
        )
    detached = value.detach().float().cpu().numpy() if hasattr(value, "detach") else value
    try:
        return np.asarray(detached, dtype=np.float32)
    except (TypeError, ValueError):
        raise InputError(f"Attention is given as arrays of numbers, got {type(value).__name__}.") from None


def _names(tokens: Sequence[str] | None, size: int, axis: str, layer: int) -> tuple[str, ...]:
    if tokens is None:
        return tuple(map(str, range(size)))
    if len(tokens) != size:
        raise InputError(f"Layer {layer} has {size} {axis}, but {len(tokens)} tokens were given; give one for each.")
    return tuple(map(str, tokens))
