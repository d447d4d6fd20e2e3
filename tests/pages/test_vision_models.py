"""Every screen with tiny vision models of the Transformers library, and the refusal of models that no screen can ask for."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import xformer
from pages.shared import models
from tests.adapters.zoo import ZOO
from tests.pages.conftest import Open, everything, n_charts, plain, strip_lanes
from tests.pages.test_digits import tables
from xformer.adapters import ModelAdapter
from xformer.adapters.inputs import keep_upload
from xformer.adapters.load import open_model
from xformer.errors import ModelFileError

MEMBERS = {member.name: member for member in ZOO}
CLASSIFIER, HEADLESS = "ViTForImageClassification", "ViTModel"
NAMES = (CLASSIFIER, HEADLESS, "Dinov2Model", "CLIPVisionModel", "SiglipVisionModel")
OPENED: dict[str, ModelAdapter] = {}


@pytest.fixture(autouse=True)
def _known(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    def external(name: str) -> ModelAdapter | None:
        if name in NAMES and name not in OPENED:
            OPENED[name] = open_model(MEMBERS[name].save(tmp_path_factory.mktemp("models") / name))
        return OPENED.get(name)

    monkeypatch.setattr(models, "external", external)
    monkeypatch.setattr(models, "external_titles", lambda: {name: name for name in NAMES})


NO_HEAD = "This model has no output head"
SCREENS = [
    (HEADLESS, "home", {}, 0, NO_HEAD),
    (CLASSIFIER, "attention", {"laid": "rollout", "panel": "steps"}, 1, "could have reached **class**"),
    ("CLIPVisionModel", "attention", {"laid": "heads"}, 1, "Where **class** looks"),
    ("SiglipVisionModel", "attention", {}, 1, "Where **r1 c1** looks"),
    (HEADLESS, "attention", {"panel": "score_attribution"}, 2, "This model makes no predictions"),
    ("Dinov2Model", "attention", {"panel": "rollout"}, 2, "multiplied through the layers"),
    (CLASSIFIER, "embeddings", {}, 0, "become vectors by a convolution"),
    (CLASSIFIER, "positions", {}, 0, "Nothing was found that tells this model where a token is"),
    (HEADLESS, "feed_forward", {"picture": "neuron"}, 1, "not drawn at random"),
    ("Dinov2Model", "feed_forward", {"picture": "firing"}, 1, "at an average patch"),
    (CLASSIFIER, "residual", {}, 0, "gives a class of the image"),
    (HEADLESS, "residual", {"picture": "norms"}, 1, "the length of the residual stream"),
    (CLASSIFIER, "compare", {"edits": "ablate:encoder.0.attn.1"}, 0, "reads pictures"),
    (CLASSIFIER, "bug_lab", {}, 0, "it was not trained here"),
]
FALSE = re.compile(
    r"Type a text|missing from this text|says what is missing|right answer|average token|become others", re.I
)


@pytest.mark.parametrize(("name", "screen", "link", "charts", "says"), SCREENS)
def test_a_screen_shows_a_picture_or_says_why_not(
    open_page: Open, name: str, screen: str, link: dict[str, str], charts: int, says: str
) -> None:
    app = open_page(f"pages/{screen}/page.py", model=name, input="flower", **link)
    assert not app.error
    assert not app.warning
    shown_text = everything(app)
    assert says in shown_text
    assert n_charts(app) >= charts
    assert not FALSE.search(shown_text)


def test_the_class_is_said_with_its_probability_and_never_judged(open_page: Open) -> None:
    reading = xformer.read(models.subject(CLASSIFIER), "temple")  # pyright: ignore
    module, pixels = reading.subject.opened.module, reading.example.arguments["pixel_values"]  # pyright: ignore
    with torch.no_grad():
        p = module(pixel_values=pixels).logits[0].softmax(dim=-1)
    (first, second, third), order = p.topk(3).values.tolist(), p.topk(3).indices.tolist()
    app = open_page("pages/attention/page.py", model=CLASSIFIER, input="temple")
    labels = [module.config.id2label[at] for at in order]
    verdict = f"**{labels[0]}** {first:.2%}"
    assert verdict in [plain(one.value) for one in app.markdown]
    says = strip_lanes(app)[1]
    assert (says["tokens"], says["right"]) == (labels, [])
    assert says["probability"] == pytest.approx([first, second, third], abs=1e-4)
    changed = open_page("pages/attention/page.py", model=CLASSIFIER, input="temple", edits="ablate:encoder.0.attn.1")
    assert any(plain(one.value).endswith(f", before {verdict}") for one in changed.markdown)


def test_the_enlarged_head_lies_over_the_picture(open_page: Open) -> None:
    app = open_page("pages/attention/page.py", model=CLASSIFIER, input="flower", head="2.5.3-4")
    pattern = xformer.read(models.subject(CLASSIFIER), "flower")["encoder.1.attn.pattern"]  # pyright: ignore
    [table] = [found for found in tables(app) if "left" in found and {"special", "patch"} == set(found["kind"])]
    assert table["where"].tolist() == ["class", *(f"r{row} c{column}" for row in (1, 2, 3) for column in (1, 2, 3))]
    assert table["value"].tolist() == pattern[0, 4, 3].tolist()


def test_two_runs_over_a_picture_have_one_scale(open_page: Open) -> None:
    link = {"input": "flower", "head": "2.1", "edits": "ablate:encoder.0.attn.1"}
    app = open_page("pages/attention/page.py", model=CLASSIFIER, **link)
    specs = [json.loads(element.proto.spec) for element in app.get("vega_lite_chart")]
    scales = [
        layer["encoding"]["color"]["scale"]["domain"]
        for spec in specs
        for layer in spec.get("layer", [])
        if "scale" in layer.get("encoding", {}).get("color", {})
    ]
    of = [xformer.read(models.subject(CLASSIFIER), "flower", changes=changes) for changes in ("", link["edits"])]  # pyright: ignore
    largest = [run["encoder.1.attn.pattern"][0, 0, 0, 1:].max().item() for run in of]
    assert largest[0] != largest[1]
    assert scales == [[0.0, pytest.approx(max(largest))]] * 2


def test_an_upload_is_read_by_its_name_and_one_that_is_gone_is_said(open_page: Open) -> None:
    file, pixels = io.BytesIO(), np.random.default_rng(0).integers(0, 255, (40, 30, 3), np.uint8)
    Image.fromarray(pixels).save(file, "PNG")
    name = keep_upload(file.getvalue())
    app = open_page("pages/home/page.py", model=CLASSIFIER, input=name)
    assert not app.warning
    assert ["upload"] in [lane["tokens"] for lane in strip_lanes(app)]
    app.button(key="picture_temple").click().run()
    assert app.session_state["input"] == "temple"
    gone = open_page("pages/home/page.py", model=CLASSIFIER, input="upload-000000000000")
    [warning] = gone.warning
    assert "upload it again" in warning.value
    assert gone.session_state["input"] == "flower"
    gone.query_params["model"] = "reverse"  # a model of texts
    assert not gone.run().exception


def _nothing(done: float, of: float, what: str) -> None:
    """No progress is shown."""


@pytest.mark.parametrize("name", ["Wav2Vec2ForCTC", "CLIPModel"])
def test_a_model_that_no_screen_can_ask_for_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    MEMBERS[name].save(tmp_path / name)
    MEMBERS["CLIPVisionModel"].save(tmp_path / "tower")
    monkeypatch.setenv("XFORMER_MODELS", str(tmp_path))
    with pytest.raises(ModelFileError, match=f"^The screens cannot ask for what {name} reads; in Python, "):
        models._load(f"hf:{name}", _nothing)
    assert models._load("hf:tower", _nothing) is not None
