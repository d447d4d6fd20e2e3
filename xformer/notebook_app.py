"""Open a model in memory in the app: `xformer.show(model, "3 7 12 9")` prints a link to it.

The server runs in a thread of this process and ends with it. Nothing is saved or copied, so any module can be shown, including
one defined in a notebook.
"""

from __future__ import annotations

import builtins
import re
import secrets
import sys
import threading
import time
from importlib import import_module
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlencode

from torch import Tensor, nn

from xformer.adapters import ModelAdapter, TaskModel
from xformer.adapters.huggingface import HuggingFaceModel
from xformer.adapters.load import keep_in_memory
from xformer.errors import InputError, MissingLibraryError
from xformer.installed import APP
from xformer.reading import Readable, adapter_of

_START_SECONDS = 60
_lock = threading.Lock()
_SECRET = secrets.token_urlsafe(16)
_base = ""
"""The address of the server; empty until it is started."""


def show(
    model: Readable,
    inputs: Any = None,
    *,
    tokenizer: Any = None,
    name: str = "",
    screen: str = "attention",
    wait: bool | None = None,
) -> str:
    """Open a loaded model in the app and print the link.

    The app uses the given module itself, not a copy, and does not change it. After further training, call `show` again. The
    link works only on this machine, and contains a secret that keeps its other accounts out.

    Args:
        model: Any model that `xformer.read` accepts: an xformer model or its checkpoint, a `PreTrainedModel`, another torch
            module, or a path.
        inputs: The first input: a text or token ids. Required for a plain module, which is shown with these inputs only: a
            tensor, a tuple of positional arguments, or a dictionary of keyword arguments.
        tokenizer: The tokenizer of a loaded Hugging Face model. Without it, inputs are typed as token ids.
        name: The name on screen; by default the name of the class or the task.
        screen: The first screen: "" (Home), "attention", "embeddings", "residual", …
        wait: Whether to wait for Ctrl-C, because the link works only while this process runs. By default a script waits, and a
            notebook or an interactive session does not.

    Returns:
        The link.

    Raises:
        InputError: The model cannot be shown, or cannot read these inputs.
        MissingLibraryError: The app is not installed.

    Example:
        >>> import xformer
        >>> xformer.show(xformer.load("checkpoints/reverse"), "3 7 12 9")  # doctest: +SKIP
        Open http://127.0.0.1:40613/attention?model=memory%3Areverse&input=3+7+12+9&secret=…
    """
    if missing := [library for library in ("streamlit", "plotly", "altair") if find_spec(library) is None]:
        raise MissingLibraryError(f"The app needs {', '.join(missing)}: pip install 'xformer-studio[app]'")
    if isinstance(model, nn.Module) and not hasattr(model, "config") and inputs is None:
        name = type(model).__name__
        raise InputError(f"{name} can be shown only with the inputs of a call; pass them: show(model, x).")
    adapter = adapter_of(model, inputs, tokenizer)
    typed, base = _typed(adapter, inputs), _served()
    is_external, screens = isinstance(adapter, HuggingFaceModel), "pages.compute.models"
    if is_external and (why := import_module(screens).unsupported_reason(adapter)):
        raise InputError(why)
    usual = type(model).__name__ if isinstance(model, nn.Module) else adapter.name
    usual = adapter.task.config.name if isinstance(adapter, TaskModel) else usual
    title = re.sub(r"[^\w.-]+", "-", name or usual)[:80] or "model"  # safe in a link
    kept = keep_in_memory(adapter, title)
    url = f"{base}/{screen}?{urlencode({'model': kept, 'input': typed, 'secret': _SECRET})}"
    print(f"Open {url}", flush=True)
    is_interactive = hasattr(sys, "ps1") or hasattr(builtins, "get_ipython")
    if not is_interactive if wait is None else wait:
        print("The link works until you press Ctrl-C.", flush=True)
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            print()
    return url


def _typed(adapter: ModelAdapter, inputs: Any) -> str:
    """Return the input as text for the app's input box. Raises `InputError` if it has no such form."""
    kind = adapter.input
    if inputs is None or kind.kind == "given":
        return kind.default
    if isinstance(inputs, Tensor) and (inputs.dim() == 1 or len(inputs) == 1):
        inputs = tuple(inputs.flatten().tolist())
    plain: Any = inputs
    example = adapter.to_example(plain)
    if len(example.input_ids) > 1:
        raise InputError(f"The app shows one input at a time, got {len(example.input_ids)}; pass only one.")
    text = inputs if isinstance(inputs, str) else kind.text(example.source)
    adapter.to_example(kind.read(text))
    return text


def _served() -> str:
    """Return the address of the server, starting it on first use."""
    global _base
    with _lock:
        _base = _base or _start()
    return _base


def _start() -> str:
    """Start the server on a free port of this machine, and return its address."""
    if str(APP) not in sys.path:
        sys.path.append(str(APP))  # last, so that it shadows no other module
    found = find_spec("pages")
    if found is None or str(APP / "pages") not in map(str, found.submodule_search_locations or ()):
        raise InputError("Another package called `pages` hides the screens of the app; start Python without it.")
    import uvicorn

    app = import_module("pages.server.startup").guest_app(_SECRET)
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_config=None))
    thread = threading.Thread(target=server.run, name="xformer app", daemon=True)
    thread.start()
    deadline = time.monotonic() + _START_SECONDS
    while not server.started:
        if not thread.is_alive() or time.monotonic() > deadline:
            raise InputError("The app did not start in this process.")
        time.sleep(0.02)
    return f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
