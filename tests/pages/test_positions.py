"""The Positions screen: every shipped model, every kind of positions, off and on again, links, and code that runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import xformer
from pages.shared import models
from tests.layers.reference import FITTING
from tests.pages.conftest import ROOT, Open
from tests.training.tiny import tiny_model, tiny_task

PAGE = "pages/explore/positions.py"
MODELS = sorted(path.parent.name for path in (ROOT / "checkpoints").glob("*/model.safetensors"))
KINDS = ["sinusoidal", "learned", "mirror", "rotary", "alibi", "none"]
NAMES = {"sinusoidal": "Sinusoidal", "learned": "Learned", "mirror": "Mirror", "rotary": "Rotary", "alibi": "ALiBi"}


def text(app: Any) -> str:
    return " ".join(element.value for kind in ("caption", "markdown", "info", "text") for element in getattr(app, kind))


def complaints(app: Any) -> list[str]:
    return [element.value for kind in ("error", "warning", "exception") for element in getattr(app, kind)]


@pytest.fixture
def kinds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of fresh models, one for each kind and architecture, in place of the shipped ones."""
    for architecture in ("encoder", "decoder", "encoder-decoder"):
        for kind in KINDS:
            if kind == "mirror" and architecture != "encoder":
                continue
            task = tiny_task(architecture)
            model = xformer.Transformer(tiny_model(task, positions=kind), torch.Generator().manual_seed(0)).eval()
            xformer.save(xformer.Checkpoint(model, task), tmp_path / f"{architecture}-{kind}")
    monkeypatch.setattr(models, "FOLDER", tmp_path)
    models.shipped.clear()
    yield
    models.shipped.clear()


@pytest.mark.parametrize("model", MODELS)
def test_every_model_opens_and_loses_its_way_without_positions(open_page: Open, model: str) -> None:
    app = open_page(PAGE, model=model)
    assert complaints(app) == []
    assert "What to notice" in text(app)
    app.button(key="positions_off").click().run()
    assert complaints(app) == []
    assert app.query_params["edits"] == "positions:off"
    checkpoint = xformer.load(ROOT / "checkpoints" / model)
    assert checkpoint.task is not None
    example = checkpoint.task.example(checkpoint.task.vocabulary.read(app.query_params["input"]))
    losses = []
    for edits in ([], [xformer.edits.zero_positions()]):
        logits = xformer.record(checkpoint.model, example.stream, example.target, edits=edits).logits
        losses.append(torch.nn.functional.cross_entropy(logits[0], example.labels[0], ignore_index=-100).item())
    shown = re.search(r"the loss goes from ([\d.]+) to ([\d.]+) nats", text(app))
    assert shown is not None
    # Four decimals are shown, and −log softmax rounds a little otherwise than cross_entropy does in float32.
    assert [float(number) for number in shown.groups()] == pytest.approx(losses, rel=1e-5, abs=1e-4)
    app.button(key="positions_off").click().run()
    assert "edits" not in app.query_params
    assert "With positions off" not in text(app)


@pytest.mark.parametrize(("architecture", "kind"), FITTING)
@pytest.mark.usefixtures("kinds")
def test_every_kind_of_positions_has_its_own_picture(open_page: Open, kind: str, architecture: str) -> None:
    app = open_page(PAGE, model=f"{architecture}-{kind}", input="3 1 2")
    assert complaints(app) == []
    shown = [element.value for element in app.subheader]
    assert f"How this model does it: {NAMES.get(kind, 'None')}" in shown
    assert sum("this model" in element.value for element in app.markdown if "badge" in element.value) == 1
    assert ("has learned no table" in text(app)) == (kind != "learned")
    assert ("has learned no such tables" in text(app)) == (kind != "mirror")
    off = [button for button in app.button if button.key == "positions_off"]
    assert len(off) == (kind != "none")
    if off:
        off[0].click().run()
        assert complaints(app) == []
        assert "With positions off" in text(app)
    else:
        assert "no positions that could be switched off" in text(app)


def test_another_head_and_other_waves_by_link(open_page: Open) -> None:
    app = open_page(PAGE, model="reverse", watch="2.3", waves="3-0")
    assert complaints(app) == []
    assert "**layer 2 · head 3**" in text(app)
    assert app.multiselect(key="waves").value == [3, 0]
    assert app.query_params["waves"] == "3-0"
    app.selectbox(key="watch").set_value("most").run()
    assert app.query_params["watch"] == "most"


@pytest.mark.parametrize(("name", "value"), [("watch", "9.9"), ("watch", "x"), ("waves", "3-99"), ("waves", "²")])
def test_a_link_to_what_is_not_here_says_so(open_page: Open, name: str, value: str) -> None:
    app = open_page(PAGE, model="reverse", **{name: value})
    assert not app.exception
    assert len(app.warning) == 1


def test_going_to_a_smaller_model_keeps_the_screen_alive(open_page: Open) -> None:
    app = open_page(PAGE, model="reverse-decoder", waves="63-1", watch="2.2")
    assert complaints(app) == []
    app.sidebar.selectbox(key="model").set_value("reverse-mirror").run()
    assert complaints(app) == []


@pytest.mark.parametrize("edits", ["", "positions:off", "positions:off,token:1.9"])
@pytest.mark.parametrize("model", ["reverse", "reverse-mirror", "reverse-seq2seq"])
def test_the_code_under_each_picture_runs(
    open_page: Open, monkeypatch: pytest.MonkeyPatch, model: str, edits: str
) -> None:
    monkeypatch.chdir(ROOT)
    app = open_page(PAGE, model=model, **({"edits": edits} if edits else {}))
    codes = [element.value for element in app.code]
    assert len(codes) == (6 if edits else 5)
    for code in codes:
        exec(compile(code, "footer", "exec"), {})
