"""The two trained models that packages carry, as they were fetched: their description before opening holds."""

from __future__ import annotations

import pytest

from tests.real_models import real_model
from xformer.model_files import inspect


@pytest.mark.parametrize(
    ("name", "kind", "n_parameters", "most_needed"),
    [("SmolLM2-135M-Instruct", "llama", 134_515_008, 1.1e9), ("rxnmapper", "albert", 801_359, 0.2e9)],
)
def test_fetched_models_have_their_known_size_and_licence(
    name: str, kind: str, n_parameters: int, most_needed: float
) -> None:
    found = inspect(real_model(name))
    assert (found.model_type, found.n_parameters, found.has_tokenizer) == (kind, n_parameters, True)
    assert 4 * n_parameters < found.needed < most_needed
    assert (found.folder / "LICENSE").is_file()
