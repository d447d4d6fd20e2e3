"""Every screen with tiny Transformers models: its picture or the reason for having none, and no false statement."""

from __future__ import annotations

import io
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

import xformer
from pages.attention import long_text
from pages.compute import models
from pages.home import language_model
from pages.residual.page import similarity_notes
from pages.state import session
from tests.adapters.test_huggingface import folder_of
from tests.adapters.zoo import ZOO
from tests.pages.conftest import Open, complaints, components, everything, n_charts, plain, strip_lanes
from xformer.adapters import ModelAdapter, opening
from xformer.adapters.inputs import keep_upload
from xformer.adapters.load import open_model
from xformer.errors import ModelFileError
from xformer.model_files.store import LoadProgress

MEMBERS = {member.name: member for member in ZOO}
FAMILIES = ["Llama", "GPT-2", "Mixtral", "BERT", "T5"]
READ_ONLY = "Read-only"
"""A Llama of which only the attention weights that it returns are read."""
ENCODER, CLASSIFIER, TOKENS, SPAN = WITHOUT_LOGITS = (
    "BertModel",
    "DistilBertForSequenceClassification",
    "DistilBertForTokenClassification",
    "BertForQuestionAnswering",
)
VISION, HEADLESS = OF_IMAGES = ("ViTForImageClassification", "ViTModel")
NAMES = (*FAMILIES, READ_ONLY, *WITHOUT_LOGITS, *OF_IMAGES)
OPENED: dict[str, ModelAdapter] = {}
TEXT = "the cat sat on the mat"
EDIT = "ablate:encoder.0.attn.1"


@pytest.fixture(autouse=True)
def _known(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Save and open each model when a test first requests it."""

    def external(name: str) -> ModelAdapter | None:
        if name in NAMES and name not in OPENED:
            folder: Path = tmp_path_factory.mktemp("models") / name
            if name in MEMBERS:
                MEMBERS[name].save(folder)
            else:
                folder_of("Llama" if name == READ_ONLY else name, folder)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(opening, "BACKENDS", ("returned_weights",) if name == READ_ONLY else opening.BACKENDS)
                OPENED[name] = open_model(folder)
        return OPENED.get(name)

    monkeypatch.setattr(models, "external", external)
    monkeypatch.setattr(models, "external_titles", lambda: {name: name for name in NAMES})


SCREENS = [
    ("Llama", "feed_forward", {"picture": "map", "stage": "up"}, 1, "multiplied with the nonlinearity"),
    ("Llama", "compare", {"with": "GPT-2"}, 0, "KL(A ‖ B) of the predicted distributions"),
    ("GPT-2", "embeddings", {"show": "cosines"}, 3, "Positions"),
    ("T5", "positions", {"show": "own"}, 1, "The bias added to a score"),
    ("Mixtral", "feed_forward", {"edits": "ablate:decoder.0.attn.1"}, 2, "4 experts, 2 of them per token"),
    ("BERT", "home", {"input": "the [MASK] sat"}, 0, "likeliest tokens at each gap"),
    ("BERT", "residual", {"picture": "parts"}, 0, "not a sum of contributions to the stream"),
    (READ_ONLY, "attention", {"panel": "why here?"}, 0, "This run has no activation 'decoder.1.attn.scores'"),
    ("Llama", "attention", {"panel": "long_text"}, 0, "No pattern of a long text is kept"),
    ("BERT", "attention", {"panel": "long_text"}, 0, "A long text needs a language model"),
    (ENCODER, "home", {}, 0, "it outputs a vector of 24 numbers for each of the 6 positions"),
    (ENCODER, "residual", {"pooling": "first", "after": "1"}, 1, "for this model is the mean over all positions"),
    (ENCODER, "compare", {"edits": EDIT}, 0, "outputs vectors and no predictions"),
    (CLASSIFIER, "home", {}, 0, "LABEL_0 33"),
    (CLASSIFIER, "attention", {"panel": "change the run", "edits": "token:4.10"}, 0, "instead of LABEL_0"),
    (CLASSIFIER, "residual", {}, 1, "returns a class of the text, so there are no logits at each position"),
    (TOKENS, "compare", {"edits": EDIT}, 0, "The most likely options of each"),
    (SPAN, "home", {"input": "the cat >> the cat sat on the mat"}, 0, "nswer"),
    (HEADLESS, "attention", {"panel": "score_attribution"}, 2, "This model makes no predictions"),
    (VISION, "attention", {"laid": "rollout", "panel": "steps"}, 1, "could have reached class"),
    (VISION, "embeddings", {}, 0, "become vectors by a convolution"),
    (VISION, "residual", {}, 1, "returns a class of the image"),
    (VISION, "compare", {"edits": EDIT}, 0, "reads pictures"),
]
FALSE: dict[str, str] = dict.fromkeys(
    WITHOUT_LOGITS, "goes on with|token by token|likeliest token|comes next|what is missing|Gap 1"
)
FALSE |= dict.fromkeys(OF_IMAGES, "Type a text|this text|what is missing|right answer|average token|become others")
"""Statements that hold for models of texts that predict tokens, and not for these."""


@pytest.mark.parametrize(("name", "screen", "link", "charts", "quote"), SCREENS)
def test_a_screen_shows_its_picture_or_the_reason_for_having_none(
    open_page: Open, name: str, screen: str, link: dict[str, str], charts: int, quote: str
) -> None:
    link = {"input": "flower" if name in OF_IMAGES else TEXT} | link
    app = open_page(f"pages/{screen}/page.py", model=name, **link)
    assert complaints(app) == []
    shown_text = everything(app).replace("**", "")
    assert quote in shown_text
    assert n_charts(app) >= charts
    assert name not in FALSE or not re.search(FALSE[name], shown_text, re.IGNORECASE)


def test_a_long_continuation_is_generated_on_a_click(open_page: Open) -> None:
    app = open_page("pages/home/page.py", model="Llama", input="the cat sat")
    assert not [block for block in app.code if block.value.startswith("the cat sat")]
    app.button(key="story_write").click().run()
    [story] = [block.value for block in app.code if block.value.startswith("the cat sat")]
    assert len(story) > len("the cat sat")
    app.button(key="story_again").click().run()
    assert story not in [block.value for block in app.code]


def test_a_long_text_is_read_on_a_click(open_page: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    app = open_page("pages/attention/page.py", model="Llama", input=TEXT, panel="long_text")
    before = n_charts(app)
    app.text_area(key="long_text").set_value("the dog sat on the bird and the cat").run()
    app.button(key="long_text_read").click().run()
    assert complaints(app) == []
    assert n_charts(app) == before + 3
    assert "finds the needle" not in everything(app)
    assert len(components(app, "attention_map")) == 1
    monkeypatch.setattr(long_text, "budget", lambda: 1000)
    app.text_area(key="long_text").set_value("the bird and the cat").run()
    app.button(key="long_text_read").click().run()
    assert any("fit into memory; use a shorter one" in one for one in complaints(app))


def test_a_token_is_drawn_at_the_chosen_temperature_and_added_to_the_text(open_page: Open) -> None:
    app = open_page("pages/home/page.py", model="Llama", input="the cat sat")
    assert n_charts(app) >= 1
    reading = xformer.read(OPENED["Llama"], "the cat sat")
    app.slider(key="next_temperature").set_value(0.0).run()
    app.button(key="next_add").click().run()
    likeliest = int(reading.logits[0, -1].argmax())
    assert app.session_state["input"] == reading.adapter.input.decode([*reading.ids(), likeliest])
    assert complaints(app) == []


def test_the_recorded_run_stands_until_the_model_is_open(open_page: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []
    job = SimpleNamespace(title="Opening Llama", progress=LoadProgress(1, 2, "reading weights"), error=None)
    waits = iter([False, False])
    job.ended = lambda seconds: next(waits, True)
    monkeypatch.setattr(language_model, "scene", lambda data, **_: drawn.append(len(data)))
    monkeypatch.setattr(language_model, "LANGUAGE_MODEL", "Llama")
    monkeypatch.setattr(language_model, "PREFIX", "")
    store = SimpleNamespace(start=lambda name: job, open_ids=lambda: ["Llama"])
    opening_slowly = vars(models) | {"is_external": lambda name: True, "external_store": store}
    monkeypatch.setattr(session, "models", SimpleNamespace(**opening_slowly))
    app = open_page("pages/home/page.py", model="Llama")
    assert drawn == [language_model.RECORDED.stat().st_size]
    assert complaints(app) == []
    assert "Recorded run" not in everything(app)
    assert components(app, "scene")
    waits = iter([False])
    open_page("pages/home/page.py", model="Llama", input="the cat sat")
    assert len(drawn) == 1  # another input has no recording


def test_a_read_only_model_offers_no_changes_of_the_run(open_page: Open) -> None:
    link = {"input": "the cat sat", "mask": "full", "edits": "ablate:decoder.0.attn.1", "panel": "change the run"}
    app = open_page("pages/attention/page.py", model=READ_ONLY, **link)
    assert "A change was ignored" in app.warning[0].value
    assert app.session_state["mask"] == "as trained"
    assert not [button for button in app.button if "blate" in str(button.label)]
    assert "Set the mask" not in everything(app)
    app.selectbox(key="replace_token").set_value(5)
    app.button(key="replace").click().run()
    assert not app.exception
    assert app.session_state["edits"] == "token:0.5"


def test_a_new_input_replaces_only_the_first_text(open_page: Open) -> None:
    app = open_page("pages/residual/page.py", model=ENCODER, input=TEXT, texts=f"{TEXT}\na dog\na bird")
    assert app.text_area(key="similar_texts").value == f"{TEXT}\na dog\na bird"
    app.text_input(key="input").set_value("the dog saw a cat").run()
    assert app.text_area(key="similar_texts").value == "the dog saw a cat\na dog\na bird"
    app.text_area(key="similar_texts").set_value("one").run()
    assert not app.exception
    assert "Type 2 to 8 texts" in app.error[0].value


def layer(*cosines: float) -> pd.DataFrame:
    """Build one layer of `analysis.similarity` for three texts, from the cosines of 1 and 2, 1 and 3, 2 and 3."""
    pairs = dict(zip(((0, 1), (0, 2), (1, 2)), cosines, strict=True))
    rows = [(2, i, j, 1.0 if i == j else pairs[min(i, j), max(i, j)]) for i in range(3) for j in range(3)]
    return pd.DataFrame(rows, columns=["layer", "first", "second", "cosine"])


def test_the_most_similar_texts_are_named_only_where_that_is_clear() -> None:
    texts = ["a", "b", "c"]
    [note] = similarity_notes(layer(0.31, -0.2, 0.28), texts)
    assert "Texts **1** and **2** are most similar: 0.31. The next pair has 0.28." in note
    assert not similarity_notes(layer(0.31, -0.2, 0.295), texts)
    assert not similarity_notes(layer(0.999, 0.998, 0.999), texts)
    assert not similarity_notes(layer(1.0, 0.2, 0.2), ["a", "a", "c"])  # equal texts are not worth a note


def test_overall_similarity_is_noted_only_where_it_is_high() -> None:
    texts = ["a", "b", "c"]
    assert "Even the least similar pair has 0.61" in similarity_notes(layer(0.9, 0.7, 0.61), texts)[-1]
    assert not any("Even the least" in note for note in similarity_notes(layer(0.9, 0.7, 0.4), texts))


def test_a_class_is_shown_with_its_probability_and_not_judged(open_page: Open) -> None:
    reading = xformer.read(models.adapter(VISION), "flower")  # pyright: ignore
    module, pixels = reading.adapter.opened.module, reading.example.arguments["pixel_values"]  # pyright: ignore
    with torch.no_grad():
        p = module(pixel_values=pixels).logits[0].softmax(dim=-1)
    (first, second, third), order = p.topk(3).values.tolist(), p.topk(3).indices.tolist()
    app = open_page("pages/attention/page.py", model=VISION, input="flower")
    labels = [module.config.id2label[at] for at in order]
    verdict = f"**{labels[0]}** {first:.2%}"
    assert verdict in [plain(one.value) for one in app.markdown]
    lane = strip_lanes(app)[1]
    assert (lane["tokens"], lane["right"]) == (labels, [])
    assert lane["probability"] == pytest.approx([first, second, third], abs=1e-4)
    changed = open_page("pages/attention/page.py", model=VISION, input="flower", edits=EDIT)
    assert any(plain(one.value).endswith(f" instead of {verdict}") for one in changed.markdown)


def test_an_upload_is_read_by_name_and_a_deleted_one_is_reported(open_page: Open) -> None:
    file, pixels = io.BytesIO(), np.random.default_rng(0).integers(0, 255, (40, 30, 3), np.uint8)
    Image.fromarray(pixels).save(file, "PNG")
    name = keep_upload(file.getvalue())
    app = open_page("pages/home/page.py", model=VISION, input=name)
    assert not app.warning
    assert ["upload"] in [lane["tokens"] for lane in strip_lanes(app)]
    app.button(key="picture_temple").click().run()
    assert app.session_state["input"] == "temple"
    gone = open_page("pages/home/page.py", model=VISION, input="upload-000000000000")
    [warning] = gone.warning
    assert "upload it again" in warning.value
    assert gone.session_state["input"] == "flower"
    gone.query_params["model"] = "reverse"  # a model that reads numbers
    assert not gone.run().exception


def test_a_model_whose_inputs_no_screen_can_ask_for_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XFORMER_MODELS", str(tmp_path))
    for name in ("Wav2Vec2ForCTC", "CLIPModel", "CLIPVisionModel"):
        MEMBERS[name].save(tmp_path / name)
    for name in ("Wav2Vec2ForCTC", "CLIPModel"):
        with pytest.raises(ModelFileError, match=f"^The screens have no input field for what {name} reads; in Python"):
            models._load(f"hf:{name}", lambda done, of, what: None)
    assert models._load("hf:CLIPVisionModel", lambda done, of, what: None) is not None
