"""“One neuron”: where it fires on this input, which sampled inputs excite it most, and the switch that silences it."""

from __future__ import annotations

from collections.abc import Mapping

import streamlit as st

from pages.shared.ask import seed
from pages.shared.components.prediction_strip import Lane, prediction_strip
from pages.shared.layout import is_dark
from pages.shared.panels.activations import layer_reads
from pages.shared.panels.exciting_images import exciting_images
from pages.shared.panels.neuron_activity import BEST
from pages.shared.resources import Run
from pages.shared.session import toggle_intervention
from pages.shared.view import ORIGINAL, View
from xformer.analysis.survey import Survey
from xformer.viz.feed_forward import neuron_chart

BESIDE = 12
"""Up to so many positions, the neuron's bars have room beside the inputs that excite it; more stand above them."""


def seed_neuron(view: View, path: str) -> int:
    """The neuron that is looked at: the visitor's or the link's, else the most active one of the layer."""
    post = view.original().trace[f"{path}.post"][0]  # [pos, d_ff]
    seed("neuron", range(post.shape[1]), int(post.mean(dim=0).argmax()), key="ff_neuron")
    return st.session_state["ff_neuron"]


def one_neuron_panel(view: View, runs: Mapping[str, Run], path: str, found: Survey) -> None:
    """Ask for a neuron and show it; `seed_neuron` comes first."""
    st.subheader("One neuron", anchor=False)
    neuron = _ask_neuron(view, path, found)
    reads = layer_reads(view, runs[ORIGINAL], path)
    left, right = st.columns([3, 4]) if len(reads) <= BESIDE else (st.container(), st.container())
    with left:
        values = {name: run.trace[f"{path}.post"][0, :, neuron].numpy(force=True) for name, run in runs.items()}
        st.markdown(f"**#{neuron} on this input**")
        chart = neuron_chart(values, reads, dark=is_dark())
        st.altair_chart(chart, theme="streamlit", width="stretch", key="neuron_here")
    with right:
        st.markdown(f"**The {BEST} sampled inputs that excite #{neuron} most**, the position outlined")
        _exciting(view, path, neuron, found)


def _ask_neuron(view: View, path: str, found: Survey) -> int:
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
        fired, total = int(found.fired[path][neuron]), found.n_positions[path]
        st.markdown(
            f"fires at **{fired / total:.1%}** of the {total:,} tokens of the sample, "
            f"at most with **{found.peak[path][0, neuron].item():.3f}**"
        )
    return neuron


def _exciting(view: View, path: str, neuron: int, found: Survey) -> None:
    if view.task.rule.is_image:
        exciting_images(view, path, neuron, found)
        return
    label = view.task.vocabulary.labels
    texts = found.targets if found.targets and path.startswith("decoder") else found.inputs
    shown = []
    for value, (index, position) in zip(
        found.peak[path][:, neuron].tolist(), found.where[path][:, neuron].tolist(), strict=True
    ):
        if value <= 0:
            continue
        tokens = tuple(label[token] for token in texts[index])
        shown.append(Lane(f"{value:.3f}", tokens, moved=tuple(at == position for at in range(len(tokens)))))
    if not shown:
        st.info("No sampled input excites it: this neuron is dead on the sample.", icon=":material/do_not_disturb_on:")
        return
    prediction_strip(shown, key="exciting")
    which = " The tokens are those that the decoder reads." if texts is found.targets else ""
    st.caption(f"Searched {found.n_inputs:,} inputs of the task, seed {found.seed}; each input counts once.{which}")
