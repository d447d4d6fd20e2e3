"""The data of the scene has the numbers of the run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import xformer
from pages.components.elements import ClickedScreen, opened
from xformer.reading import Reading
from xformer.viz.packing import header_of
from xformer.widgets.scene_data import MAGIC, MAX_TOKENS, scene_data


def body(data: bytes) -> bytes:
    return data[8 + int.from_bytes(data[4:8], "little") :]


def values(data: bytes, column: dict[str, Any], n_rows: int) -> torch.Tensor:
    n = n_rows * len(column["dimensions"])
    return torch.from_numpy(np.frombuffer(body(data), "<f4", n, column["at"]).copy()).view(n_rows, -1)


def weights(data: bytes, part: dict[str, Any]) -> torch.Tensor:
    shape = (part["drawn"], *part["shape"])
    found = np.frombuffer(body(data), np.uint8, int(np.prod(shape)), part["at"]).reshape(shape)
    return torch.from_numpy(found.astype(np.float32)) / 255


@pytest.fixture(scope="module")
def reading() -> Reading:
    return xformer.read("checkpoints/reverse", "3 7 12 9 1")


def test_vectors_and_patterns_match_the_run(reading: Reading) -> None:
    data = scene_data(reading)
    [stack] = header_of(data, MAGIC)["stacks"]

    assert stack["tokens"] == ["3", "7", "12", "9", "1"]
    token, position, entering = (values(data, column, 5) for column in stack["columns"])
    torch.testing.assert_close(token + position, entering)
    torch.testing.assert_close(entering, reading["encoder.0.resid_pre"][0])
    torch.testing.assert_close(position, reading["pos_embed"])
    for number, layer in enumerate(stack["layers"]):
        [part] = layer["attention"]
        pattern = reading[f"encoder.{number}.attn.pattern"][0]
        torch.testing.assert_close(weights(data, part), pattern, atol=0.5 / 255 + 1e-6, rtol=0)
        torch.testing.assert_close(values(data, layer["after"], 5), reading[f"encoder.{number}.resid_post"][0])
        before = reading[f"encoder.{number}.resid_pre"][0].norm(dim=-1)
        share = reading[f"encoder.{number}.ffn.out"][0].norm(dim=-1) / before
        torch.testing.assert_close(torch.tensor(layer["fed"]), share, atol=1e-4, rtol=0)


def test_answers_are_the_likeliest_tokens_with_verdicts(reading: Reading) -> None:
    answers = header_of(scene_data(reading), MAGIC)["answers"]
    assert [answer["said"][0][0] for answer in answers] == ["1", "9", "12", "7", "3"]
    assert all(answer["is_right"] for answer in answers)
    assert answers[0]["said"][0][1] == pytest.approx(reading.probability[0], abs=1e-4)

    causal = xformer.read("checkpoints/reverse", "3 7 12 9 1", edits=[xformer.edits.set_causal(True)])
    judged = [answer["is_right"] for answer in header_of(scene_data(causal), MAGIC)["answers"]]
    assert judged == list(causal.right)
    assert not all(judged)


def test_long_text_shows_its_last_tokens_with_an_open_output() -> None:
    reading = xformer.read("checkpoints/characters", "To be, or not to be, that is the question")
    header = header_of(scene_data(reading), MAGIC)
    [stack] = header["stacks"]

    assert stack["n"] == len(reading.tokens) > MAX_TOKENS == len(stack["tokens"])
    assert stack["first"] == stack["n"] - MAX_TOKENS
    last = header["answers"][-1]
    assert (header["continues"], last["is_right"], last["row"]) == (True, None, MAX_TOKENS - 1)


def test_messages_of_the_browser_are_validated() -> None:
    wrong = ("attention", {"screen": "../x"}, {"screen": ["attention"]})
    for sent in (None, 3, "attention", {}, *({"open": one} for one in wrong)):
        assert opened(sent) is None, sent
    assert opened({"open": {"screen": "attention", "head": "3.2"}}) == ClickedScreen("attention", "3.2")
    assert opened({"open": {"screen": "attention", "head": "3.2&model=x"}}) == ClickedScreen("attention")


def test_editable_tokens_are_sent_with_their_position(reading: Reading) -> None:
    assert header_of(scene_data(reading), MAGIC)["edit"] is None
    assert header_of(scene_data(reading, (("3", "7", ""), 1)), MAGIC)["edit"] == {"texts": ["3", "7", ""], "first": 1}
