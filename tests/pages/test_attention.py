"""The Attention screen: its panels on every architecture, its code, and its pictures' data against the library."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from streamlit.testing.v1 import AppTest

import xformer
from pages.components.attention_view import Selection
from tests.pages.code_and_picture import assert_code_draws_what_is_shown, left_by
from tests.pages.conftest import ROOT, Open
from xformer.viz.packing import header_of

PAGE = "pages/attention/page.py"
PANELS = ["scores", "steps", "change", "rollout"]


@pytest.mark.parametrize(
    ("model", "panel"),
    [
        *(("reverse-seq2seq", panel) for panel in PANELS),
        *zip(["reverse-decoder", "reverse-mirror", "sort", "reverse-decoder"], PANELS, strict=True),
    ],
)
def test_every_panel_opens_and_its_code_runs(
    open_page: Open, model: str, panel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = "" if model == "sort" else "positions:off"
    app = open_page(PAGE, model=model, panel=panel, input="4 9 2 9", mask="causal", edits=changes)
    assert not app.exception
    assert [element.value for element in app.warning] == []
    assert app.code
    monkeypatch.chdir(ROOT)
    assert all(left_by(block.value)["picture"] is not None for block in app.code)


def sent(app: object, magic: bytes) -> bytes:
    """One of the messages of the attention view: the planes of the original run, the rest of them, or the exact weights of one
    head."""
    [proto] = [
        element.proto
        for element in app.get("bidi_component")  # type: ignore[attr-defined]
        if getattr(element.proto, "bytes", b"")[:4] == magic
    ]
    return proto.bytes


def test_the_numbers_of_a_head_do_not_bring_the_script_of_the_view(open_page: Open) -> None:
    elements = [one.proto for one in open_page(PAGE).get("bidi_component")]  # type: ignore[attr-defined]
    [view] = [one for one in elements if one.component_name == "xformer_attention_view"]
    messages = [one for one in elements if one.component_name == "xformer_attention_message"]
    assert "ConnectedView" in view.js_content
    assert len(messages) == 2
    assert all(one.bytes and len(one.js_content + one.css_content) < 1000 for one in messages)


def drawn(app: object) -> dict:
    """The data of all heads in the attention view."""
    header, original = header_of(sent(app, b"XATT")), original_of(app)[0]
    assert header["original"] == original["content"]
    for layer, own in zip(header["layers"], original["runs"], strict=True):
        layer["runs"].insert(0, own)
    return {**header, **original["common"]}


def original_of(app: object) -> tuple[dict, bytes]:
    """The header and the planes of the original run."""
    message = sent(app, b"XATO")
    (length,) = struct.unpack_from("<I", message, 4)
    return json.loads(message[8 : 8 + length]), message[8 + length :]


def exact_head(app: object) -> np.ndarray:
    """The weights of the chosen head: masked cells are +inf."""
    message = sent(app, b"XATH")
    (length,) = struct.unpack_from("<I", message, 4)
    header, numbers = json.loads(message[8 : 8 + length]), np.frombuffer(message[8 + length :], "<f4")
    whole = np.full(header["exactSize"], np.inf, np.float32)
    cells = np.tril_indices(len(whole)) if header["isTriangle"] else np.indices(whole.shape).reshape(2, -1)
    whole[*cells] = numbers
    return whole


@pytest.mark.parametrize("model", ["reverse", "reverse-decoder"])
def test_the_picture_holds_the_numbers_of_record(open_page: Open, model: str) -> None:
    app = open_page(PAGE, model=model, input="4 9 2 9 5", head="2.1")
    checkpoint = xformer.load(ROOT / "checkpoints" / model)
    assert checkpoint.task is not None
    trace = xformer.record(checkpoint.model, checkpoint.task.example([4, 9, 2, 9, 5]).stream)
    path = trace.attention_layers()[1]
    n = trace.tokens.shape[1]
    exact = exact_head(app)
    assert exact.shape == (n, n)
    allowed = trace[f"{path}.mask"][0, 0].numpy()
    np.testing.assert_array_equal(exact[allowed], trace[f"{path}.pattern"][0, 0].numpy()[allowed])
    assert np.isinf(exact[~allowed]).all()
    header, (_, body) = drawn(app), original_of(app)
    layer = header["layers"][1]
    planes = np.frombuffer(body, np.uint8, layer["heads"] * n * n, offset=layer["runs"][0]["offset"])
    weights = (planes.reshape(-1, n, n) / 253) ** 2 * np.array(layer["runs"][0]["peaks"])[:, None, None]
    everywhere = trace[f"{path}.mask"][0].numpy()
    shown, true = weights[everywhere], trace[f"{path}.pattern"][0].numpy()[everywhere]
    assert np.abs(shown - true).max() <= 1 / 253  # half a step of 8 bits, on a scale of roots
    assert (planes.reshape(-1, n, n)[~everywhere] == 255).all()


def test_an_edge_cut_in_the_panel_changes_the_prediction(open_page: Open) -> None:
    app = open_page(PAGE, model="reverse-mirror", input="4 9 2 11 5", head="1.1.0-4", panel="change the run")
    [cut] = [button for button in app.button if button.key == "switch_cut:encoder.0.attn.0.0-4"]
    cut.click().run()
    assert not app.exception
    assert any("4 of 5 right** instead of 5" in element.value for element in app.markdown)
    checkpoint = xformer.load(ROOT / "checkpoints/reverse-mirror")
    edits = [xformer.edits.mask_edges("encoder.0.attn", [(0, 4)], [0])]
    trace = xformer.record(checkpoint.model, torch.tensor([[4, 9, 2, 11, 5]]), edits=edits)
    assert (trace.logits[0].argmax(-1) == torch.tensor([5, 11, 2, 9, 4])).sum() == 4


def test_a_replaced_token_takes_the_place_of_an_earlier_one(open_page: Open) -> None:
    before = "ablate:encoder.0.attn.1,token:1.3"
    app = open_page(PAGE, model="reverse", input="4 9 2", panel="change the run", edits=f"{before},token:0.7")
    app.selectbox(key="replace_token").set_value(8)
    app.button(key="replace").click().run()
    assert not app.exception
    assert app.session_state["edits"] == f"{before},token:0.8"


@pytest.mark.parametrize("head", ["9.9", "0.1", "x", "1.1.999-0"])
def test_a_head_that_is_not_there_is_said_or_forgotten(open_page: Open, head: str) -> None:
    app = open_page(PAGE, model="reverse", head=head)
    assert not app.exception
    assert len(app.warning) == (0 if head == "1.1.999-0" else 1)


def switches(app: object, text: str) -> list:
    return [button for button in app.button if button.key == f"switch_{text}"]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("model", "head", "edge", "undo"),
    [
        ("reverse-mirror", "1.1.0-4", "cut:encoder.0.attn.0.0-4", "Restore 0 “4” → 4 “5”"),
        ("reverse-mirror", "1.1.0-4", "cut:encoder.0.attn.*.0-4", "Restore 0 “4” → 4 “5”"),
        ("reverse-decoder", "1.1.0-3", "open:decoder.0.attn.0.0-3", "Close again"),
    ],
)
def test_a_changed_edge_is_changed_back(open_page: Open, model: str, head: str, edge: str, undo: str) -> None:
    app = open_page(PAGE, model=model, input="4 9 2 11 5", head=head, panel="change the run")
    switches(app, edge)[0].click().run()
    assert app.session_state["edits"] == edge
    [back] = switches(app, edge)
    assert back.label.startswith(undo)
    back.click().run()
    assert app.session_state["edits"] == ""


def test_an_ablated_head_is_marked(open_page: Open) -> None:
    app = open_page(PAGE, model="reverse", input="4 9 2 9", head="3.2", panel="step by step")
    assert switches(app, "ablate:encoder.2.attn.1")[0].label == "Ablate 3.2"
    switches(app, "ablate:encoder.2.attn.1")[0].click().run()
    assert switches(app, "ablate:encoder.2.attn.1")[0].label == "Ablated: 3.2"
    own, changed = drawn(app)["layers"][2]["runs"]
    assert (own["silenced"], changed["silenced"]) == ([], [1])
    assert changed["z"][1] == 0 < own["z"][1]


def test_a_head_alone_has_ablated_neighbours(open_page: Open) -> None:
    app = open_page(PAGE, model="reverse", input="4 9 2 9", edits="solo:encoder.0.attn.1")
    assert drawn(app)["layers"][0]["runs"][1]["silenced"] == [0, 2, 3]


def test_a_click_on_a_head_sends_that_head_and_nothing_else_again(open_page: Open) -> None:
    app = open_page(PAGE, model="reverse", input="4 9 2 9 5", head="2.1")
    planes, head = sent(app, b"XATT"), sent(app, b"XATH")
    app.session_state["attention:choice"] = Selection(0, 2)
    app.run()
    assert sent(app, b"XATT") == planes
    assert sent(app, b"XATH") != head
    assert b'"selected":[0,2]' in sent(app, b"XATH")
    assert len(head) < len(planes)


def test_a_change_sends_the_changed_run_and_not_the_original_again(open_page: Open) -> None:
    app = open_page(PAGE, model="reverse", input="4 9 2 9 5")
    original, alone = sent(app, b"XATO"), sent(app, b"XATT")
    app.segmented_control(key="mask").set_value("causal").run()
    assert sent(app, b"XATO") == original
    (length,) = struct.unpack_from("<I", alone, 4)
    assert len(alone) == 8 + length + 32  # of one run there is nothing besides the original and what is chosen
    (length,) = struct.unpack_from("<I", sent(app, b"XATT"), 4)
    assert len(sent(app, b"XATT")) == 8 + length + 32 + len(original_of(app)[1])
    app.text_input(key="input").set_value("4 9 2 9 6").run()
    assert sent(app, b"XATO") != original


def test_the_link_says_how_the_picture_is_drawn(open_page: Open) -> None:
    asks = {"scale": "own", "view": "arcs", "arcs": "1.2", "look": "source", "panel": "scores"}
    app = open_page(PAGE, model="reverse-decoder", head="2.1", **asks)
    assert asks.items() <= dict(app.query_params.items()).items()
    assert not app.warning
    [code] = [block.value for block in app.code if "viz.attention(" in block.value]
    assert "scale='own'" in code
    app = open_page(PAGE, model="reverse-decoder")
    assert not {"scale", "view", "arcs"} & set(app.query_params)


@pytest.mark.parametrize("asks", [{"scale": "x"}, {"view": "film"}, {"arcs": "0"}, {"arcs": "1.x"}])
def test_an_unknown_view_setting_in_the_link_shows_a_warning(open_page: Open, asks: dict[str, str]) -> None:
    app = open_page(PAGE, model="reverse", **asks)
    assert not app.exception
    assert len(app.warning) == 1


def test_a_row_of_a_larger_model_is_no_row_of_a_smaller_one(open_page: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    from types import SimpleNamespace

    import streamlit

    whole = streamlit.dataframe

    def chosen(*arguments: object, **options: object) -> object:
        shown = whole(*arguments, **options)  # type: ignore[arg-type]
        return SimpleNamespace(selection=SimpleNamespace(rows=[15])) if options.get("key") == "scores" else shown

    monkeypatch.setattr(streamlit, "dataframe", chosen)
    app = open_page(PAGE, model="reverse-mirror", input="4 9 2")  # one head
    assert not app.exception
    app = open_page(PAGE, model="reverse", input="4 9 2")
    assert app.query_params["head"] == "4.4"


@pytest.mark.parametrize(
    ("model", "panel"), [("reverse-small", "step by step"), ("reverse-seq2seq", "rollout"), ("digits", "rollout")]
)
def test_the_code_draws_the_pictures(open_page: Open, monkeypatch: pytest.MonkeyPatch, model: str, panel: str) -> None:
    link = {"model": model, "panel": panel, "mask": "causal"}
    app = assert_code_draws_what_is_shown(open_page, monkeypatch, PAGE, link)
    assert len(app.code) >= 2


def test_the_code_compares_both_runs_as_the_screen_does(open_page: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    app = open_page(PAGE, model="reverse", input="4 9 2", head="3.2", mask="causal")
    [code] = [block.value for block in app.code if "viz.attention(" in block.value]
    assert "xformer.viz.attention(changed, layer=2, head=1, before=original)" in code
    monkeypatch.chdir(ROOT)
    scope = left_by(code)
    assert scope["original"].recipe.causal is None
    checkpoint = xformer.load(ROOT / "checkpoints/reverse")
    own, causal = (
        xformer.record(checkpoint.model, torch.tensor([[4, 9, 2]]), edits=edits)["encoder.2.attn.pattern"][0, 1]
        for edits in ([], [xformer.edits.set_causal(True)])
    )
    drawn = scope["picture"].to_dict()
    sets = [drawn["datasets"][one["data"]["name"]] for one in drawn["hconcat"]]
    for found, expected in zip(sets[:2], (own, causal), strict=True):
        assert [cell["weight"] or 0.0 for cell in found] == expected.flatten().tolist()


def test_what_the_benchmark_of_toggles_clicks_is_there(runs: Path) -> None:
    app = AppTest.from_file(str(ROOT / "benchmarks/apps/toggles.py"), default_timeout=60)
    for name, value in {"model": "reverse", "panel": "change the run"}.items():
        app.query_params[name] = value
    app.run()
    keys = [button.key for button in app.button if button.key]
    assert "switch_positions:off" in keys
    assert any(key.startswith("switch_ablate") for key in keys)
    assert app.toggle(key="yardstick").value is False


def test_the_benchmark_of_the_grid_draws_one() -> None:
    app = AppTest.from_file(str(ROOT / "benchmarks/apps/grid.py"), default_timeout=60)
    for name, value in {"tokens": "8", "layers": "2", "heads": "2"}.items():
        app.query_params[name] = value
    app.run()
    assert not app.exception
    assert any(" bytes" in str(text.value) for text in (*app.text, *app.caption, *app.markdown))
