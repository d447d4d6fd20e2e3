"""The link that `xformer.show` prints; tests/browser/test_shown_models.py opens such links."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

import pytest
import torch
import transformers
from torch import nn

import xformer
from tests.adapters.test_attachment import preserve_state
from xformer import notebook_app
from xformer.adapters import load
from xformer.adapters.load import in_memory, titles_in_memory
from xformer.errors import InputError


@pytest.fixture(autouse=True)
def _no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notebook_app, "_served", lambda: "http://127.0.0.1:1")
    monkeypatch.setattr(load, "_in_memory", {})
    monkeypatch.setattr(load, "_n_kept", 0)


@pytest.fixture(scope="module")
def gpt2() -> nn.Module:
    config = transformers.GPT2Config(n_layer=2, n_head=2, n_embd=16, vocab_size=50, n_positions=32)
    return transformers.GPT2LMHeadModel(config)


def shown(*arguments: object, **options: object) -> dict[str, str]:
    """Return the parameters of the link."""
    url = xformer.show(*arguments, wait=False, **options)  # type: ignore[arg-type]
    parameters = {name: value for name, [value] in parse_qs(urlsplit(url).query).items()}
    assert len(parameters.pop("secret")) > 20
    return parameters


def test_link_has_the_model_and_the_input(gpt2: nn.Module, capsys: pytest.CaptureFixture[str]) -> None:
    reverse = xformer.load("checkpoints/reverse")
    assert shown(reverse, "3 7 12 9") == {"model": "memory:reverse", "input": "3 7 12 9"}
    link = "http://127.0.0.1:1/attention?model=memory%3Areverse&input=3+7+12+9&secret="
    assert capsys.readouterr().out.startswith(f"Open {link}")
    assert shown(reverse.model, torch.tensor([[3, 7]]), name="my model")["input"] == "3 7"
    assert shown(gpt2, [1, 2, 3])["input"] == "1 2 3"
    assert shown(nn.MultiheadAttention(8, 2), (torch.randn(3, 1, 8),) * 3)["input"] == "as given"
    titles = ["MultiheadAttention", "GPT2LMHeadModel", "my-model", "reverse"]
    assert list(titles_in_memory().values()) == titles


def test_model_that_is_shown_again_gets_a_new_name(gpt2: nn.Module) -> None:
    first, second = (shown(gpt2, [1, 2])["model"] for _ in range(2))
    assert first != second
    assert in_memory(first) is None
    assert list(titles_in_memory()) == [second]
    assert torch.equal(xformer.read(second, "4 5").logits, xformer.read(gpt2, [4, 5]).logits)


def test_show_does_not_change_the_module(gpt2: nn.Module) -> None:
    gpt2.train()
    with preserve_state(gpt2):
        shown(gpt2, [1, 2, 3])


def test_error_for_a_model_that_cannot_be_shown(gpt2: nn.Module) -> None:
    for model, inputs, reason in (
        (nn.TransformerEncoderLayer(8, 2), None, "can be shown only with the inputs of a call"),
        (nn.Linear(3, 3), torch.randn(1, 2, 3), "attention"),
        (gpt2, [[1, 2], [3, 4]], "one input"),
        (gpt2, [99], "0 to 49"),
    ):
        with pytest.raises(InputError, match=reason):
            shown(model, inputs)
    assert titles_in_memory() == {}
