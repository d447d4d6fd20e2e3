"""The Compare screen of several models: kinds of pairs, valid and invalid links and inputs, findings and panels."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow
import pytest
import torch
from streamlit.testing.v1 import AppTest

from pages.compare.comparison import ModelSettings, incompatibility_reason, names_of, read_variant
from pages.compare.texts import usual_other
from tests.pages.code_and_picture import left_by
from tests.pages.conftest import ROOT, Open, complaints, components, in_link, text, with_weights
from xformer import Checkpoint, Transformer, load
from xformer.checkpoints import to_bytes
from xformer.config import ModelConfig, TaskConfig
from xformer.decoding import Sampling
from xformer.errors import InputError
from xformer.tasks import Task
from xformer.tasks.batch import IGNORED
from xformer.training.card import from_file
from xformer.training.run_store import RunStore

COMPARE = "pages/compare/page.py"
INPUT = "3 7 12 9 4 11"


def ruler(app: AppTest) -> dict[str, Any]:
    """Return the data sent to the ruler."""
    [sent] = components(app, "step_ruler")
    return json.loads(sent.json) if sent.json else json.loads(sent.mixed.json)


@pytest.mark.parametrize(
    ("a", "b", "panel"),
    [
        ("reverse-decoder", "reverse-decoder~temperature-3~top_k-5~top_p-0.9~seed-3", "steps"),
        ("reverse-small", "reverse-small~token:2.5", "lens"),
        ("characters", "characters~positions:off", "attention"),
    ],
)
def test_a_pair_opens_at_its_first_divergence(open_page: Open, a: str, b: str, panel: str) -> None:
    app = open_page(COMPARE, a=a, b=b, panel=panel, **({} if a == "characters" else {"input": INPUT}))
    assert complaints(app) == []
    assert (in_link(app, "a"), in_link(app, "b")) == (a, b)
    sent = ruler(app)
    predicted = [[sent["labels"][token] for token in player["predicted"]] for player in sent["models"]]
    differences = [step for step, (x, y) in enumerate(zip(*predicted, strict=False)) if x != y]
    assert sent["divergence"] == (differences[0] if differences else None)
    assert sent["start"] == (differences[0] if differences else 0)
    if panel == "steps":  # the code reproduces the predictions
        [code] = app.code
        scope = left_by(code.value)
        assert len(scope["picture"]) == 4
        assert [[run.labels[token] for token in run.predicted] for run in (scope["r1"], scope["r2"])] == predicted
    if panel == "attention":  # a continuation is neither right nor wrong
        assert not re.search("right(?! answer)|✗", text(app))
        assert not any(player["has_right_answer"] or player["answer"] for player in sent["models"])


def test_the_ruler_shows_the_predictions_of_the_models(open_page: Open) -> None:
    """Compare with a direct call of the model, without a trace, a cache or `xformer.analysis`."""
    app = open_page(COMPARE, a="reverse-small", b="reverse-decoder", input=INPUT)
    encoder, _ = ruler(app)["models"]
    small = load(ROOT / "checkpoints/reverse-small")
    assert small.task is not None
    example = small.task.example([int(word) for word in INPUT.split()])
    with torch.no_grad():
        p = small.model(example.tokens).softmax(-1)[0, example.labels[0] != IGNORED]
    labels, own = ruler(app)["labels"], small.task.vocabulary.labels
    assert [labels[token] for token in encoder["predicted"]] == [own[token] for token in p.argmax(-1).tolist()]
    assert encoder["probability"] == pytest.approx(p.max(-1).values.tolist(), abs=2e-6)


def test_a_run_is_compared_with_an_earlier_step(open_page: Open, runs: Path) -> None:
    run = with_weights(RunStore(runs), "![x](http://evil/x.png)")
    app = open_page(COMPARE, model=run)
    last, early = in_link(app, "a"), in_link(app, "b")
    assert last == f"{run}@12"
    assert early == f"{run}@8"  # of 0, 4 and 8, the nearest to step 200
    names = [player["name"] for player in ruler(app)["models"]]
    assert names[0] == "A · step 12"
    assert "](http" not in text(app)


def test_each_invalid_part_of_a_link_shows_one_warning(open_page: Open) -> None:
    link = {"a": "nonsense", "b": "digits", "c": "reverse~<b>x</b>", "d": "reverse-decoder", "mode": "gas", "step": "²"}
    messages = ("There is no model", "reads images", "is not an edit", "asks for a mode", "asks for a step")
    app = open_page(COMPARE, **link)
    assert len(app.warning) == len(messages)
    assert [message in text(app).replace("\\", "") for message in messages] == [True] * len(messages)
    assert len(ruler(app)["models"]) == 2


def test_an_invalid_input_shows_an_error_and_the_last_valid_one_stays(open_page: Open) -> None:
    app = open_page(COMPARE, a="reverse-small", b="reverse-small~causal", input="5 6 7")
    for typed in ("", "99", "3 7 " * 60):
        app.text_input(key="compare_input").set_value(typed).run()
        assert not app.exception
        assert len(app.error) == 1
        assert ruler(app)["reads"] == ["5", "6", "7"]


def test_many_heads_and_long_inputs_are_summarised(open_page: Open, runs: Path) -> None:
    model = ModelConfig(architecture="encoder", vocab_size=20, d_model=24, n_layers=2, n_heads=12, d_ff=8, max_len=130)
    task = Task(TaskConfig(name="reverse", architecture="encoder", min_len=3, max_len=128))
    big = from_file(RunStore(runs), to_bytes(Checkpoint(Transformer(model), task, {"name": "big"})), owner="").run
    source = " ".join(str(1 + place % 19) for place in range(128))
    app = open_page(COMPARE, a=big, b=f"{big}~causal", input=source, panel="rows")
    for panel, n_cells in (("rows", 12 * 43), ("attention", 32 * 32)):
        if panel == "attention":
            app.button_group(key="compare_panel").set_value(panel).run()
        assert not app.exception
        data = [chart.proto.datasets[0].data.data for chart in app.get("vega_lite_chart")]
        assert [pyarrow.ipc.open_stream(one).read_all().num_rows for one in data] == [n_cells] * len(data)
        assert data


def test_models_are_added_changed_and_removed(open_page: Open) -> None:
    app = open_page(COMPARE, a="reverse-small", b="reverse-small~causal")
    app.button(key="compare_add").click().run()
    app.selectbox(key="compare_model_2").set_value("reverse-mirror").run()
    app.button(key="compare_add").click().run()
    names = [player["name"] for player in ruler(app)["models"]]
    assert names == ["A · reverse-small", "B · reverse-small, causal mask", "C · reverse-mirror", "D · reverse-small"]
    assert "compare_add" not in [button.key for button in app.button]
    app.button(key="compare_remove_0").click().run()
    app.button(key="compare_remove_2").click().run()
    assert not app.exception
    assert [in_link(app, letter) for letter in "ab"] == ["reverse-small~causal", "reverse-mirror"]
    assert not [button for button in app.button if str(button.key).startswith("compare_remove")]


def test_only_a_model_that_generalises_beyond_its_training_lengths_is_named(open_page: Open) -> None:
    app = open_page(COMPARE, a="reverse-mirror", b="reverse-long~causal", c="reverse-long", panel="lengths")
    [sentence] = [one.value for one in app.markdown if "right at every length" in one.value]
    pattern = r"At least 99% right at every length from its training lengths on: \*\*C\*\* up to (\d+)\."
    found = re.fullmatch(pattern, sentence)
    assert found is not None, sentence  # B fails at its training lengths, A beyond them
    assert int(found[1]) > 15


def test_the_first_variant_follows_the_model_of_the_other_screens(open_page: Open) -> None:
    link = {"model": "reverse-small", "edits": "positions:off", "input": "1 2 3 4", "mask": "as trained"}
    app = open_page("pages/attention/page.py", **link)
    app.switch_page(COMPARE).run()
    assert (in_link(app, "a"), in_link(app, "b")) == ("reverse-small~positions:off", "reverse-small")
    assert ruler(app)["reads"] == ["1", "2", "3", "4"]
    assert {name: in_link(app, name) for name in link} == link
    app.selectbox(key="compare_model_1").set_value("reverse-mirror").run()
    app.text_input(key="compare_input").set_value("5 6 7").run()
    app.switch_page("pages/attention/page.py").run()
    assert {name: in_link(app, name) for name in link} == link | {"input": "5 6 7"}
    app.button_group(key="mask").set_value("causal").run()
    app.switch_page(COMPARE).run()
    assert (in_link(app, "a"), in_link(app, "b")) == ("reverse-small~causal~positions:off", "reverse-mirror")


def test_read_variant_inverts_text() -> None:
    changes, sampling = ("ablate:encoder.1.attn.2", "positions:off"), Sampling(temperature=0.75, top_k=3, top_p=0.5)
    variant = ModelSettings("reverse", "causal", changes, sampling, 11)
    assert variant.text == f"reverse~causal~{','.join(changes)}~temperature-0.75~top_k-3~top_p-0.5~seed-11"
    assert read_variant(variant.text) == variant
    assert read_variant("reverse").text == "reverse"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("../../etc", "There is no model"),
        ("reverse~ablate:encoder.9.attn.0", "no attention layer"),
        ("reverse~temperature-nan", "temperature must be from 0"),
        ("reverse~temperature-hot", "temperature must be a number"),
        ("reverse~top_k-" + "9" * 400, "top_k must be from 0"),
        ("reverse~" + "x" * 5000, "characters in a link"),
    ],
)
def test_a_variant_that_cannot_be_read_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_variant(text)


def test_the_headline_counts_right_tokens_and_names_the_first_difference(open_page: Open) -> None:
    app = open_page(COMPARE, a="reverse-small", b="reverse-small~causal", input=INPUT)
    pairs = [zip(model["predicted"], model["answer"], strict=True) for model in ruler(app)["models"]]
    right = [sum(a == b for a, b in pair) for pair in pairs]
    assert right[0] == 7 > right[1]
    assert f"A · as trained: **7 of 7** right; B · causal mask: **{right[1]} of 7** right." in text(app)
    assert f"They first differ at position **{ruler(app)['divergence']}**." in text(app)
    same = text(open_page(COMPARE, a="reverse-small", b="reverse-small", input=INPUT))
    assert "All models predict the same tokens at every" in same
    assert "Their probabilities are equal" in same
    assert "first differ" not in same


def test_names_show_only_the_settings_that_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    own, masked, other = ModelSettings("reverse"), ModelSettings("reverse", "causal"), ModelSettings("sort")
    assert names_of([own, masked]) == ("A · as trained", "B · causal mask")
    assert names_of([own, other, masked]) == ("A · reverse", "B · sort", "C · reverse, causal mask")
    assert len(set(names_of([own, own, own, own]))) == 4
    assert incompatibility_reason([own, other]) is None
    reads = lambda task: ("a", "b") if task.config.name == "sort" else ("1", "2")  # noqa: E731
    monkeypatch.setattr("pages.compare.comparison.symbols_of", reads)
    reason = incompatibility_reason([own, other]) or ""
    assert reason.startswith("A reads tokens like 1 and 2, but B reads tokens like a and b")
    assert usual_other("characters", ["reverse-small", "characters"]) == "characters"
    assert usual_other("characters", ["reverse-small", "sort"]) == "reverse-small"


def test_another_model_keeps_the_changes_that_fit_it(open_page: Open) -> None:
    app = open_page(COMPARE, a="reverse", b="reverse~causal~ablate:encoder.3.attn.0,ablate:encoder.0.ffn~temperature-2")
    app.selectbox(key="compare_model_1").set_value("reverse-small").run()
    assert not app.exception
    assert in_link(app, "b") == "reverse-small~causal~ablate:encoder.0.ffn~temperature-2"
    app = open_page(COMPARE, a="reverse~positions:off")  # a single variant gets a contrast
    assert [player["name"] for player in ruler(app)["models"]] == ["A · positions off", "B · as trained"]


def test_a_search_enters_an_input_on_which_models_differ(open_page: Open) -> None:
    app = open_page(COMPARE, a="reverse-mirror", b="reverse-mirror~causal", input="5")
    assert "All models predict the same tokens at every" in text(app)
    app.button(key="compare_find").click().run()
    assert not app.exception
    assert len(ruler(app)["reads"]) > 1
    assert ruler(app)["divergence"] is not None
    app = open_page(COMPARE, a="reverse-mirror", b="reverse-mirror~temperature-1", input="5 6 7")
    app.button(key="compare_find").click().run()
    assert "All models predict the same tokens on 2,500 new inputs." in text(app)
    assert ruler(app)["reads"] == ["5", "6", "7"]


def test_accuracy_is_counted_over_many_inputs_and_by_the_code(open_page: Open) -> None:
    app = open_page(COMPARE, a="reverse-mirror", b="reverse-mirror~causal", panel="many")
    assert "Exact match on 1,000 new inputs: **A** 100%" in text(app)
    assert len(app.get("vega_lite_chart")) == 5
    [code] = app.code
    assert len(left_by(re.sub(r"samples=\d+", "samples=20", code.value))["picture"]) == 5
    app = open_page(COMPARE, a="modular", b="modular~ablate:decoder.0.attn.0", panel="lengths")
    assert "have the same length" in text(app)


def test_a_change_that_does_not_fit_shorter_inputs_is_refused_in_words(open_page: Open) -> None:
    changed = "reverse-small~cut:encoder.0.attn.0.3-2"
    app = open_page(COMPARE, a="reverse-small", b=changed, input="3 7 12 9", panel="lengths")
    assert "A change is at positions that shorter inputs do not have" in app.info[0].value


def test_a_deep_link_restores_step_panel_models_and_mode(open_page: Open) -> None:
    others = {"b": "reverse-seq2seq~ablate:decoder.0.cross_attn.0~temperature-0.5~seed-3", "c": "reverse-decoder"}
    link = {"a": "reverse-seq2seq", **others, "mode": "forced", "step": "4", "panel": "lens", "pair": "AC"}
    app = open_page(COMPARE, **link, input=INPUT)
    assert not app.warning
    assert {name: in_link(app, name) for name in link} == link
    assert ruler(app)["start"] == 4
    assert [model["name"][0] for model in ruler(app)["models"]] == ["A", "B", "C"]
