"""Where a layer sits: read from a path, written as one, and which streams its queries and keys come from."""

from __future__ import annotations

import pytest

from xformer.errors import InputError
from xformer.site import Site


@pytest.mark.parametrize("path", ["encoder.0.attn", "decoder.13.self_attn", "decoder.2.cross_attn", "encoder.117.ffn"])
def test_a_path_is_read_and_written_alike(path: str) -> None:
    assert Site.parse(path).path == path
    assert Site.parse(f"{path}.out") == Site.parse(path)


@pytest.mark.parametrize(
    "path", ["", "encoder", "encoder.0", "middle.0.attn", "encoder.x.attn", "encoder.0.attnn", "a.encoder.0.attn"]
)
def test_what_names_no_layer_is_refused_with_what_would(path: str) -> None:
    with pytest.raises(InputError, match=r"'encoder\.0\.attn'"):
        Site.parse(path)


def test_only_cross_attention_looks_into_another_stack() -> None:
    cross, own = Site("decoder", 3, "cross_attn"), Site("decoder", 3, "self_attn")
    assert (cross.query_stack, cross.key_stack, cross.is_cross) == ("decoder", "encoder", True)
    assert (own.query_stack, own.key_stack, own.is_cross) == ("decoder", "decoder", False)
    assert (Site("encoder", 0, "attn").key_stack, Site("encoder", 0, "ffn").is_attention) == ("encoder", False)
