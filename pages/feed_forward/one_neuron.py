"""“One neuron”: where it fires on this input, which sampled inputs excite it most, and the switch that silences it."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from pages.components.prediction_strip import Lane, prediction_strip
from pages.feed_forward.activations import layer_reads
from pages.feed_forward.activity import surveyed
from pages.feed_forward.exciting_images import exciting_images
from pages.shared.ask import seed
from pages.shared.layout import is_dark
from pages.shared.notebook import footer, heading, recording
from pages.shared.position_window import ask_window, shown_of
from pages.shared.session import toggle_intervention
from pages.shared.view import ORIGINAL, View
from xformer.analysis.survey import Survey
from xformer.reading import Reading
from xformer.site import Site
from xformer.viz.feed_forward import neuron_chart
from xformer.words import percent

AROUND = 12
"""Of a long exciting input, so many tokens before the position and as many from it on are shown."""
BESIDE = 12
"""Up to so many positions, the neuron's bars have room beside the inputs that excite it; more stand above them."""


def seed_neuron(view: View, path: str) -> int:
    """The neuron that is looked at: the visitor's or the link's, else the most active one of the layer."""
    post = view.original().trace[f"{path}.post"][0]  # [pos, d_ff]
    seed("neuron", range(post.shape[1]), int(post.mean(dim=0).argmax()), key="ff_neuron")
    return st.session_state["ff_neuron"]


def one_neuron_panel(view: View, runs: Mapping[str, Reading], path: str) -> None:
    """Ask for a neuron and show it; `seed_neuron` comes first."""
    heading("One neuron")
    neuron, fires = _ask_neuron(view, path)
    reads = layer_reads(view, runs[ORIGINAL], path)
    shown = ask_window(range(len(reads)), "ff_from")
    left, right = st.columns([3, 4]) if len(shown) <= BESIDE else (st.container(), st.container())
    with left:
        values = {name: run.trace[f"{path}.post"][0, :, neuron].numpy(force=True)[shown] for name, run in runs.items()}
        st.markdown(f"**#{neuron} on this input**")
        names = [reads[at] for at in shown]
        chart = neuron_chart(values, names, dark=is_dark(), first=shown[0])
        st.altair_chart(chart, theme="streamlit", width="stretch", key="neuron_here")
        if more := shown_of(range(len(reads)), shown):
            st.caption(more.strip())
    table = pd.DataFrame({"position": shown, "reads": names, **values})
    footer(view, _code(view, runs, path, neuron, names, shown), table, "neuron")
    with right:
        st.markdown(f"**Which sampled inputs excite #{neuron} most**, the position outlined")
        found = surveyed(view)
        if found is None:
            return
        _exciting(view, path, neuron, found)
    fired, total = int(found.fired[path][neuron]), found.n_positions[path]
    peak = found.peak[path][0, neuron].item()
    most = f", at most with **{peak:.3f}**" if fired else ""
    fires.markdown(
        f"fires at **{percent(fired / total, 1)}** of the {total:,} tokens of {found.n_inputs:,} sampled inputs{most}"
    )


def _code(
    view: View, runs: Mapping[str, Reading], path: str, neuron: int, names: list[str], shown: list[int]
) -> list[str]:
    values = ", ".join(
        f"{name!r}: {recording(run) if view.is_changed and name == ORIGINAL else 'trace'}"
        f'["{path}.post"][0, {shown[0]} : {shown[-1] + 1}, {neuron}].numpy()'
        for name, run in runs.items()
    )
    return [
        "from xformer.viz.feed_forward import neuron_chart",
        f"neuron_chart({{{values}}}, {names!r}, dark={is_dark()}, first={shown[0]})",
    ]


def _ask_neuron(view: View, path: str) -> tuple[int, DeltaGenerator]:
    """The neuron, and where to write how often it fires."""
    d_ff = view.checkpoint.config.d_ff
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        neuron = int(
            st.number_input(
                f"Neuron (0 to {d_ff - 1})", min_value=0, max_value=d_ff - 1, step=1, key="ff_neuron",
                persist_state="session", width=180,
            )
        )  # fmt: skip
        text = f"neuron:{path}.{neuron}"
        silent = text in view.on
        st.button(
            f"Let #{neuron} speak again" if silent else f"Silence #{neuron}",
            icon=":material/volume_up:" if silent else ":material/volume_off:",
            on_click=toggle_intervention,
            args=(text,),
            key="silence_neuron",
            help="It stays at 0 at every position; the model runs again.",
        )
        return neuron, st.empty()


def _exciting(view: View, path: str, neuron: int, found: Survey) -> None:
    if view.task.rule.is_image:
        exciting_images(view, path, neuron, found)
        return
    label = view.task.vocabulary.labels
    texts = found.targets if found.targets and Site.parse(path).stack == "decoder" else found.inputs
    shown, cut = [], False
    for value, (index, position) in zip(
        found.peak[path][:, neuron].tolist(), found.where[path][:, neuron].tolist(), strict=True
    ):
        if value <= 0:
            continue
        whole = texts[index]
        start = max(0, min(position - AROUND, len(whole) - 2 * AROUND))
        piece = range(start, min(len(whole), start + 2 * AROUND))
        cut = cut or len(piece) < len(whole)
        tokens = tuple(label[whole[at]] for at in piece)
        shown.append(Lane(f"{value:.3f}", tokens, moved=tuple(at == position for at in piece)))
    if not shown:
        st.info("No sampled input excites it: this neuron is dead on the sample.", icon=":material/do_not_disturb_on:")
        return
    prediction_strip(shown, key="exciting")
    which = " The tokens are those that the decoder reads." if texts is found.targets else ""
    which += f" Of long inputs the {2 * AROUND} tokens around that position are shown." if cut else ""
    st.caption(f"Searched {found.n_inputs:,} inputs of the task, seed {found.seed}; each input counts once.{which}")
