"""First principle, the end: the same steps with the real numbers of one head of a trained model, and the way to that head."""

from __future__ import annotations

import math

import streamlit as st
import torch

from pages.first_principles.show import Picture, show_matrices
from pages.shared import models, resources, screens
from pages.shared.ask import seed
from pages.shared.link import asked, carry
from pages.shared.literal import literal
from pages.shared.notebook import code_and_data
from pages.shared.typed import typed
from xformer import Checkpoint
from xformer.analysis import principles
from xformer.errors import InputError
from xformer.reading import Reading

TITLE = "Model"
MODEL, USUAL = "reverse-decoder", "3 7 12"
MOST = 4
"""Numbers that it reads: with the answer behind them that makes nine rows, each of which can be read."""
SHOWN = 4
"""Columns of Z that are drawn."""


def model_panel() -> tuple[dict[str, str], list[str]]:
    """Draw the step; returns what the link keeps, and what to notice."""
    if MODEL not in models.shipped():
        st.info(f"This step needs the shipped model {MODEL}; `make checkpoints` trains it.")
        return {}, []
    checkpoint = models.checkpoint(MODEL)
    config = checkpoint.config
    st.latex(
        r"S = Q K^\top / \sqrt{d} \quad S_{ij} = -\infty \text{ for } j > i \quad A = \mathrm{softmax}(S) \quad Z = A\,V "
        r"\quad \mathrm{out} = \mathrm{concat}(Z_1 \ldots Z_h)\, W_O"
    )
    with st.container(horizontal=True, gap="small", vertical_alignment="bottom"):
        source, problem = _ask_source(checkpoint)
        seed("layer", range(config.n_layers), 0, key="principle_layer")
        seed("head", range(config.n_heads), 0, key="principle_head")
        layer = _pick("Layer", config.n_layers, "principle_layer")
        head = _pick("Head", config.n_heads, "principle_head")
        run = resources.run(MODEL, source)
        names = principles.numbered(checkpoint.task.position_names(run.ids()) if checkpoint.task else [])
        seed("row", range(len(names)), len(source), key="principle_model_row")
        row = st.selectbox(
            "Row",
            range(len(names)),
            format_func=names.__getitem__,
            key="principle_model_row",
            persist_state="session",
            width=110,
        )
        st.page_link(
            screens.file_of("attention"),
            label="Open this head on Attention",
            icon=":material/grid_view:",
            query_params={"model": MODEL, "input": _written(source), "head": f"{layer + 1}.{head + 1}"},
        )
    if problem:
        st.error(literal(problem), icon=":material/edit:")
    mixed, raw = head_of(run, layer, head)
    width = mixed.v.shape[1]
    table = show_matrices(
        [
            Picture("Q Kᵀ", raw, names, names, about="one score per pair"),
            Picture("S", mixed.scores, names, names, about=f"÷ √{config.d_head}, later keys −∞"),
            Picture("A", mixed.weights, names, names, "share", "softmax of each row", struck=True),
            Picture("Z = A V", mixed.out[:, :SHOWN], names, [f"z{i + 1}" for i in range(min(SHOWN, width))],
                    about=f"{min(SHOWN, width)} of {width}"),
        ],
        "model",
        chosen=names[row],
    )  # fmt: skip
    path = f"decoder.{layer}.attn"
    code = [
        "import torch, xformer",
        "from xformer.analysis import principles",
        "from xformer.viz.principles import *",
        f'checkpoint = xformer.load("checkpoints/{MODEL}")',
        f"trace = xformer.record(checkpoint.model, torch.tensor({run.example.stream.tolist()}))",
        f"names = {names!r}",
        f'q, k, v = (trace[f"{path}.{{name}}"][0, {head}] for name in "qkv")',
        "mixed = principles.attend(q, k, v, causal=True)",
        f"z = [f'z{{i + 1}}' for i in range({min(SHOWN, width)})]",
        'signed, share = {"kind": "signed", "dark": False}, {"kind": "share", "dark": False, "struck": True}',
        "matrix_chart(principles.matrix_frame(q @ k.T, names, names), **signed) | "
        "matrix_chart(principles.matrix_frame(mixed.scores, names, names), **signed) | "
        "matrix_chart(principles.matrix_frame(mixed.weights, names, names), **share) | "
        "matrix_chart(principles.matrix_frame(mixed.out[:, : len(z)], names, z), **signed)",
    ]
    code_and_data(code, table, "model", "first-principles")
    link = {"input": _written(source), "layer": str(layer), "head": str(head), "row": str(row)}
    return link, notes(checkpoint, run, mixed, raw, layer, head, row, names)


def head_of(run: Reading, layer: int, head: int) -> tuple[principles.Mixed, torch.Tensor]:
    """One head's steps, computed again from its q, k and v; and its products before they are scaled."""
    q, k, v = (run.trace[f"decoder.{layer}.attn.{name}"][0, head] for name in "qkv")
    return principles.attend(q, k, v, causal=True), q @ k.T


def notes(
    checkpoint: Checkpoint,
    run: Reading,
    mixed: principles.Mixed,
    raw: torch.Tensor,
    layer: int,
    head: int,
    row: int,
    rows: list[str],
) -> list[str]:
    """What is to be seen in the row, in this run's numbers."""
    task, path = checkpoint.task, f"decoder.{layer}.attn"
    assert task is not None
    names = [literal(name) for name in rows]
    own = run.trace[f"{path}.pattern"][0, head]
    apart = (own - mixed.weights).abs().max().item()
    same = "the same to the last digit" if apart == 0 else f"within {apart:.1g} of each other"
    found = [
        "These are the numbers of a trained model: q, k and v are read from its run, and the steps on this screen are done "
        f"with them. The model’s own pattern and the one drawn here are {same}.",
    ]
    best = int(mixed.weights[row].argmax())
    root = math.sqrt(checkpoint.config.d_head)
    found.append(
        f"“{names[row]}” gives most of its weight, {mixed.weights[row, best].item():.3f}, to “{names[best]}”: "
        f"q · k = {raw[row, best].item():.2f}, divided by √{checkpoint.config.d_head} = {root:.3g} that is "
        f"{mixed.scores[row, best].item():.2f}."
    )
    lost = (raw[row] / root).softmax(dim=-1)[row + 1 :].sum().item()
    if lost >= 0.001:
        found.append(f"Without the mask {lost:.3f} of this row’s weight would lie on tokens to come.")
    others = run.trace[f"{path}.pattern"][0, :, row].argmax(dim=-1).tolist()  # [head]
    if len(set(others)) > 1:
        looks = ", ".join(f"head {i + 1} most at “{names[at]}”" for i, at in enumerate(others))
        found.append(
            f"The heads of this layer look at different tokens: {looks}. Their Z stand side by side before W_O."
        )
    labelled = (run.example.labels[0] >= 0).nonzero().flatten().tolist()
    if row in labelled:
        at = labelled.index(row)
        said, right = (literal(task.vocabulary.labels[token]) for token in (run.predicted[at], run.answer[at]))
        found.append(
            f"After all layers the model says “{said}” here, with a probability of {run.probability[at]:.3f}; "
            + ("that is right." if said == right else f"right is “{right}”.")
        )
    return found


def _pick(label: str, n: int, key: str) -> int:
    st.segmented_control(
        label,
        range(n),
        format_func=lambda i: str(i + 1),
        required=True,
        key=key,
        persist_state="session",
        width="content",
    )
    return int(st.session_state[key])


def _ask_source(checkpoint: Checkpoint) -> tuple[tuple[int, ...], str]:
    """The numbers that it reads: those typed, or the last that could be read, with what is wrong."""
    if (wanted := asked("input")) is not None:
        st.session_state["principle_input"] = wanted[:60]
    st.session_state.setdefault("principle_input", USUAL)
    carry("principle_input")
    text = st.text_input(f"Up to {MOST} numbers", key="principle_input", persist_state="session", width=200)
    task = checkpoint.task
    assert task is not None
    try:
        source = task.vocabulary.read(typed(text, 60))
        if len(source) > MOST:
            raise InputError(
                f"Here it reads at most {MOST} numbers, so that each can be seen; these are {len(source)}."
            )
        task.example(source, max_len=checkpoint.config.max_len)
    except InputError as error:
        return st.session_state.get("principle_input_last", (3, 7, 12)), str(error)
    st.session_state["principle_input_last"] = tuple(source)
    return tuple(source), ""


def _written(source: tuple[int, ...]) -> str:
    return " ".join(str(number) for number in source)
