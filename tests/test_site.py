"""Where a layer sits: read from a path, written as one, and which streams its queries and keys come from."""

from __future__ import annotations

import pytest

from xformer.errors import InputError
from xformer.site import Site


def test_a_path_is_read_and_written_alike_and_other_text_is_refused() -> None:
    for path in ("decoder.2.cross_attn", "encoder.117.ffn"):
        assert Site.parse(path).path == path
        assert Site.parse(f"{path}.out") == Site.parse(path)
    for text in ("", "encoder.x.attn", "encoder.0.attnn", "a.encoder.0.attn"):
        with pytest.raises(InputError, match=r"'encoder\.0\.attn'"):
            Site.parse(text)


def test_only_cross_attention_looks_into_another_stack() -> None:
    cross, own = Site("decoder", 3, "cross_attn"), Site("decoder", 3, "self_attn")
    assert (cross.query_stack, cross.key_stack, cross.is_cross) == ("decoder", "encoder", True)
    assert (own.query_stack, own.key_stack, own.is_cross) == ("decoder", "decoder", False)
    assert (Site("encoder", 0, "attn").key_stack, Site("encoder", 0, "ffn").is_attention) == ("encoder", False)
