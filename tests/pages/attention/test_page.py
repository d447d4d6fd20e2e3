"""The Attention screen: the data sent to its view, its panels and its code, checked against the library."""

from __future__ import annotations

import json
import struct

import numpy as np
from streamlit.testing.v1 import AppTest

import xformer
from pages.components.attention_view import Selection
from tests.pages.code_and_picture import left_by
from tests.pages.conftest import ROOT, Open, components

PAGE = "pages/attention/page.py"


def sent(app: AppTest, magic: bytes) -> bytes:
    """Return one message of the attention view: original run (XATO), everything else (XATT) or the exact head (XATH)."""
    [message] = [proto.bytes for proto in components(app, "") if proto.bytes[:4] == magic]
    return message


def original_of(app: AppTest) -> tuple[dict, bytes]:
    """Return the header and the planes of the original run."""
    message = sent(app, b"XATO")
    (length,) = struct.unpack_from("<I", message, 4)
    return json.loads(message[8 : 8 + length]), message[8 + length :]


def exact_head(app: AppTest) -> np.ndarray:
    """Return the weights of the chosen head; masked cells are +inf."""
    message = sent(app, b"XATH")
    (length,) = struct.unpack_from("<I", message, 4)
    header, numbers = json.loads(message[8 : 8 + length]), np.frombuffer(message[8 + length :], "<f4")
    weights = np.full(header["exactSize"], np.inf, np.float32)
    cells = np.tril_indices(len(weights)) if header["isTriangle"] else np.indices(weights.shape).reshape(2, -1)
    weights[*cells] = numbers
    return weights


def test_the_enlarged_head_has_the_weights_of_the_run(open_page: Open) -> None:
    app = open_page(PAGE, model="reverse-decoder", input="4 9 2 9 5", head="2.1")
    run, exact = xformer.read(ROOT / "checkpoints/reverse-decoder", "4 9 2 9 5"), exact_head(app)
    pattern, allowed = (run[f"decoder.1.attn.{name}"][0, 0].numpy() for name in ("pattern", "mask"))
    np.testing.assert_array_equal(exact[allowed], pattern[allowed])
    assert np.isinf(exact[~allowed]).all()


def test_a_masked_edge_is_opened_and_closed_again(open_page: Open) -> None:
    edge = "open:decoder.0.attn.0.0-3"
    app = open_page(PAGE, model="reverse-decoder", input="4 9 2 11 5", head="1.1.0-3", panel="change")
    switches(app, edge)[0].click().run()
    assert app.session_state["edits"] == edge
    [back] = switches(app, edge)
    assert back.label.startswith("Close again")
    back.click().run()
    assert app.session_state["edits"] == ""


def switches(app: object, text: str) -> list:
    return [button for button in app.button if button.key == f"switch_{text}"]  # type: ignore[attr-defined]


def test_each_rerun_sends_only_changed_messages(open_page: Open) -> None:
    app = open_page(PAGE, model="reverse", input="4 9 2 9 5", head="2.1")
    sizes = [len(one.js_content + one.css_content) for one in components(app, "message")]
    assert [size < 1000 for size in sizes] == [True, True]  # not the code of the whole view
    original, alone, head = (sent(app, magic) for magic in (b"XATO", b"XATT", b"XATH"))
    app.session_state["attention:choice"] = Selection(0, 2)
    app.run()
    assert sent(app, b"XATT") == alone
    assert sent(app, b"XATH") != head
    assert b'"selected":[0,2]' in sent(app, b"XATH")
    assert len(head) < len(original)
    app.segmented_control(key="mask").set_value("causal").run()
    assert sent(app, b"XATO") == original
    (length,) = struct.unpack_from("<I", alone, 4)
    assert len(alone) == 8 + length + 32  # a header without planes: there is no changed run
    (length,) = struct.unpack_from("<I", sent(app, b"XATT"), 4)
    assert len(sent(app, b"XATT")) == 8 + length + 32 + len(original_of(app)[1])
    app.text_input(key="input").set_value("4 9 2 9 6").run()
    assert sent(app, b"XATO") != original


def test_the_code_reproduces_the_comparison_on_screen(open_page: Open) -> None:
    app = open_page(PAGE, model="reverse", input="4 9 2", head="3.2", mask="causal")
    [code] = [block.value for block in app.code if "viz.attention(" in block.value]
    assert "xformer.viz.attention(changed, layer=2, head=1, before=original)" in code
    _, matrix, _ = left_by(code)["picture"]  # all heads, the matrix, the arcs
    drawn = matrix.to_dict()
    sets = [drawn["datasets"][one["data"]["name"]] for one in drawn["hconcat"]]
    for found, edits in zip(sets[:2], ([], [xformer.edits.set_causal(True)]), strict=True):
        expected = xformer.read("checkpoints/reverse", "4 9 2", edits=edits)["encoder.2.attn.pattern"][0, 1]
        assert [cell["weight"] or 0.0 for cell in found] == expected.flatten().tolist()
