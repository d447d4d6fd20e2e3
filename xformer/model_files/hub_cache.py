"""The models that huggingface_hub has fetched on this machine, read from its folders: nothing is imported, nothing fetched.

hub/models--ORG--NAME/refs/main             the commit that "main" was when it was fetched
hub/models--ORG--NAME/snapshots/COMMIT/…    its files, as links to hub/models--ORG--NAME/blobs
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from xformer.model_files.contents import PICKLES


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Where the cache is, or would be."""
    if set_to := environment.get("HF_HUB_CACHE") or environment.get("HUGGINGFACE_HUB_CACHE"):
        return Path(set_to).expanduser()
    home = environment.get("HF_HOME")
    base = Path(home) if home else Path(environment.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface"
    return base.expanduser() / "hub"


def cached_models(folder: Path) -> Iterator[tuple[str, Path]]:
    """The name of each model ("org/name") and its snapshot, where that has weights of any kind; sorted by name."""
    for repository in sorted(folder.glob("models--*")):
        snapshot = _snapshot(repository)
        if snapshot and _has_weights(snapshot):
            yield repository.name.removeprefix("models--").replace("--", "/"), snapshot


def _snapshot(repository: Path) -> Path | None:
    """That of "main", else the newest."""
    try:
        commit = (repository / "refs" / "main").read_text(encoding="ascii", errors="replace")[:100].strip()
        chosen = repository / "snapshots" / commit
        if commit and commit == Path(commit).name and commit != ".." and chosen.is_dir():
            return chosen
    except OSError:  # fetched by its commit alone
        pass
    try:
        return max((repository / "snapshots").iterdir(), key=lambda path: path.stat().st_mtime, default=None)
    except OSError:
        return None


def _has_weights(snapshot: Path) -> bool:
    try:
        names = [entry.name for entry in snapshot.iterdir() if entry.exists()]  # a link to a blob that is gone is none
    except OSError:
        return False
    return any(name.endswith((".safetensors", ".gguf", *PICKLES)) for name in names)
