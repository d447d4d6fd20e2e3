"""A run that learns a text, on the screen: bits per character in place of exact matches, and how it goes on at each step."""

from __future__ import annotations

import streamlit as st
import torch

from pages.shared import run_store
from xformer import load
from xformer.continuation import continue_text
from xformer.decoding import Sampling
from xformer.errors import XformerError
from xformer.tasks.task import Example
from xformer.training.entry import Entry
from xformer.training.snapshots import snapshot_file

LENGTH, TEMPERATURE = 120, 0.8


def sample_panel(entry: Entry, alphabet: str, example: Example, step: int | None) -> None:
    """What the snapshot of that step goes on with after the probe: always the same draw, so that steps can be compared."""
    if step is None:
        return
    prompt = tuple((example.stream if example.target is None else example.tokens)[0].tolist())
    try:
        written = snapshot_file(run_store.store().folder_of(entry.id), step).stat().st_mtime_ns
        said = _said(entry.id, step, written, prompt)
    except (XformerError, OSError):  # removed just now, by a run that goes on from an earlier step
        return
    text = "".join(alphabet[token - 1] for token in (*prompt, *said) if 1 <= token <= len(alphabet))
    st.caption(f"At step {step:,} it goes on like this (temperature {TEMPERATURE}, always the same draw):")
    st.code(text, language=None, wrap_lines=True)


@st.cache_data(max_entries=256, show_spinner=False)
def _said(run: str, step: int, written: int, prompt: tuple[int, ...]) -> tuple[int, ...]:
    model = load(snapshot_file(run_store.store().folder_of(run), step)).model
    draw = torch.Generator().manual_seed(0)
    sampling = Sampling(temperature=TEMPERATURE)
    return tuple(one.token for one in continue_text(model, prompt, LENGTH, sampling=sampling, generator=draw))
