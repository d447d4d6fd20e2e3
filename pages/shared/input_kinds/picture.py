"""The sidebar's picture for a vision model: a sample or an upload, and what the model says it is."""

from __future__ import annotations

import streamlit as st

from pages.components.prediction_strip import Lane
from pages.shared import frame, resources
from pages.shared.escape_markdown import escape_markdown
from pages.shared.input_kinds.classes import class_sentence
from pages.shared.input_kinds.kind import InputKind, begin
from pages.shared.widgets import file_box
from xformer.adapters import ModelAdapter
from xformer.adapters.inputs import SAMPLES, keep_upload, picture
from xformer.errors import InputError
from xformer.formatting import percent
from xformer.reading import Reading

TYPES = ["png", "jpg", "jpeg", "webp", "gif", "bmp"]
MAX_MEGABYTES = 16
"""The largest file that is taken as a picture."""
MOST_CLASSES = 3
"""So many of the likeliest classes are named."""


class _Picture(InputKind):
    is_tall = True

    def ask(self, subject: ModelAdapter, model: str) -> tuple[int, ...]:
        """The name of the picture that it reads: a sample, or an upload. A name of none gets a sentence and the usual one."""
        of = subject.input
        begin(of)
        source, name = _source(subject)
        with st.container(horizontal=True, gap="small", vertical_alignment="center"):
            st.image(picture(source), caption="Your picture" if name not in SAMPLES else name.capitalize(), width=130)
            with st.container(gap="small", width="stretch"):
                for sample in SAMPLES:
                    st.button(
                        sample.capitalize(),
                        on_click=_show,
                        args=(sample,),
                        disabled=sample == name,
                        width="stretch",
                        key=f"picture_{sample}",
                    )
        with st.expander("Upload a picture", icon=":material/upload:"):
            file_box("A picture of your own", TYPES, MAX_MEGABYTES, _take, key="picture_file")
        resources.check_memory(model, source)
        return source

    def read_rows(self, run: Reading) -> list[Lane]:
        """The picture; its patches are too many to stand in a lane."""
        name = run.subject.input.text(run.example.source)
        return [Lane("reads", (name if name in SAMPLES else "upload",))]

    def rows(self, run: Reading, changed: Reading | None = None, name: str = "") -> list[Lane]:
        """The picture, and the likeliest classes with their probabilities, the likeliest first."""
        if not run.has_logits:
            return self.read_rows(run)
        says = _likeliest(run, "says")
        return [*self.read_rows(run), says, *([] if changed is None else [_likeliest(changed, name, says)])]

    def sentence(self, original: Reading, changed: Reading | None, what: str) -> str:
        """The likeliest class with its probability and the next two; with changes also what it was without them."""
        said = class_sentence(original, changed, what)
        lane = _likeliest(changed or original, "")
        pairs = list(zip(lane.tokens, lane.probability, strict=True))[1:]
        if not pairs:
            return said
        return f"{said} Next: {', '.join(f'{escape_markdown(label)} {percent(p)}' for label, p in pairs)}."


KIND = _Picture()


def _likeliest(run: Reading, name: str, before: Lane | None = None) -> Lane:
    """The likeliest classes of a picture, those that `before` has not at the same place marked."""
    p = run.probabilities[0]  # [vocab]
    top = p.topk(min(MOST_CLASSES, len(p)))
    tokens = tuple(run.subject.labels[at] for at in top.indices.tolist())
    moved = () if before is None else tuple(a != b for a, b in zip(tokens, before.tokens, strict=True))
    return Lane(name, tokens, probability=tuple(top.values.tolist()), moved=moved)


def _source(subject: ModelAdapter) -> tuple[tuple[int, ...], str]:
    """The source and the name of the picture that is chosen."""
    name = str(st.session_state["input"]).strip()
    try:
        return subject.input.read(name), name
    except InputError as error:
        st.warning(escape_markdown(str(error)), icon=":material/link_off:")
        frame.say(str(error))
        _show(subject.input.default)
        return subject.input.read(subject.input.default), subject.input.default


def _show(name: str) -> None:
    st.session_state["input"] = name


def _take(content: bytes, file_name: str) -> str:
    _show(keep_upload(content))
    return "This is the input now. It stays on this server for a while only."
