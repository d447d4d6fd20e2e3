"""Record a forward pass as a straight-line program: every PyTorch function that runs, in order.

    program = record(module, lambda: module(x), {"x": x})
    [operation.name for operation in program.operations]        ["linear", "view", "transpose", "matmul", "softmax", ...]

A `torch.overrides.TorchFunctionMode` sees each function. For each, the program keeps its inputs' producers, the module in which
it ran, and the line of source that called it: the first frame outside PyTorch.
"""

from __future__ import annotations

import inspect
import linecache
import os
import threading
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

UNSEEN = "unseen"
"""The name of what no PyTorch function shows: the operation of a scripted module, or a tensor computed out of sight."""
_TORCH = os.path.dirname(torch.__file__) + os.sep
_HERE = os.path.dirname(__file__) + os.sep
_DOCTOR = os.path.join(os.path.dirname(os.path.dirname(__file__)), "doctor") + os.sep


class SourceLine(NamedTuple):
    """A line of source code."""

    file: str
    number: int
    function: str

    @property
    def text(self) -> str:
        """The line itself, without indentation; empty if the file cannot be read."""
        return linecache.getline(self.file, self.number).strip()

    def __str__(self) -> str:
        return f"{os.path.basename(self.file)}:{self.number}"


class Address(NamedTuple):
    """The place of an operation in a forward pass."""

    module: str
    """The path of the innermost module."""
    call: int
    """The number of earlier calls of that module."""
    name: str
    """The name of the function."""
    number: int
    """The number of earlier operations of that name in that call."""


@dataclass(eq=False, repr=False, slots=True)
class Value:
    """One tensor of a program: an input, a weight, or the result of an operation."""

    shape: torch.Size
    dtype: torch.dtype
    operation: Operation | None = None
    """The producer; None for inputs, weights and tensors of unknown origin."""
    name: str = ""
    """The name of an input or a weight."""
    is_from_inputs: bool = False
    """Whether it depends on the inputs."""
    is_weight: bool = False
    before: Value | None = None
    """For a view: its value before an operation changed the shared memory in place."""
    tensor: Tensor | None = None
    """The tensor itself, if the program keeps it."""

    def __repr__(self) -> str:
        return f"<{self.name or 'result'} {list(self.shape)}>"


@dataclass(eq=False, repr=False, slots=True)
class Operation:
    """One call of a PyTorch function."""

    index: int
    function: Callable[..., Any]
    args: tuple[Any, ...]
    """Its arguments, with a `Value` in place of each tensor."""
    kwargs: dict[str, Any]
    address: Address
    line: SourceLine | None
    inputs: tuple[Value, ...]
    """Its tensor arguments, in order."""
    running: tuple[tuple[str, int], ...] = ()
    """The running modules, outermost first: the path of each, and the number of its earlier calls."""
    is_in_place: bool = False
    results: tuple[Value, ...] = ()
    site: int = 0
    """The place in the code of this call and of those around it, as a number: turns of one loop have the same."""
    callers: tuple[SourceLine, ...] = ()
    """Its line and those that called the function of each, innermost first, if asked for; functions by qualified names."""

    @property
    def name(self) -> str:
        """The function's name without underscores: "softmax", "matmul", "getitem", "add"."""
        return self.address.name

    def __repr__(self) -> str:
        return f"<{self.name} {self.line or ''} → {', '.join(str(list(value.shape)) for value in self.results)}>"

    @property
    def result(self) -> Value:
        """Its first result."""
        return self.results[0]


@dataclass
class Program:
    """A recorded pass."""

    operations: list[Operation] = field(default_factory=list)
    inputs: dict[str, Value] = field(default_factory=dict)
    """By argument name and place within it, as "0", "mask" or "0.1"."""
    outputs: tuple[Value, ...] = ()
    """The returned tensors, in order."""


def source_of(value: Value) -> Value:
    """A value before it took the type, the device or the shape of another."""
    while value.operation is not None and value.operation.name in ("type_as", "to", "expand_as", "view_as"):
        value = value.operation.inputs[0]
    return value


def tensors_in(value: Any) -> list[Tensor]:
    """The tensors in nested tuples, lists and dictionaries, in order."""
    return [one for _, one in named_tensors(value)]


def named_tensors(value: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """All tensors in nested arguments, with their places ("0.1", "mask")."""
    if isinstance(value, Tensor):
        yield path, value
    elif isinstance(value, Mapping):
        for name, one in value.items():
            yield from named_tensors(one, f"{path}.{name}" if path else str(name))
    elif isinstance(value, list | tuple):
        for index, one in enumerate(value):
            yield from named_tensors(one, f"{path}.{index}" if path else str(index))


def function_name(function: Callable[..., Any]) -> str:
    """The name of a function, method, operator or property: "softmax", "matmul", "getitem", "T"."""
    name = getattr(function, "__name__", type(function).__name__)
    if name == "__get__":  # a property of tensors, such as x.mT
        name = getattr(getattr(function, "__self__", None), "__name__", name)
    name = name.strip("_").removeprefix("special_")
    return name[1:] if name in _REFLECTED else _SAME.get(name, name)


_REFLECTED = {"radd", "rmul", "rsub", "rdiv", "rtruediv", "rmatmul", "rpow"}
_SAME = {
    "iadd": "add",
    "isub": "sub",
    "imul": "mul",
    "itruediv": "div",
    "idiv": "div",
    "ipow": "pow",
    "truediv": "div",
    "true_divide": "div",
    "divide": "div",
    "multiply": "mul",
    "subtract": "sub",
}


class Watcher(TorchFunctionMode):
    """Sees every function that returns or changes a tensor on this thread, with its address, while a module runs.

    A subclass defines `on_operation`. Use it as `with watched(module, watcher): module(...)`.
    """

    def __init__(self) -> None:
        super().__init__()
        self._thread = threading.get_ident()
        self._modules: list[tuple[str, int, Counter[str]]] = [("", 0, Counter())]
        """The path, call number and operations by name of each running module."""
        self._calls: Counter[str] = Counter()

    @property
    def is_mine(self) -> bool:
        """Whether this thread is the one that is watched; others may run the same module meanwhile."""
        return threading.get_ident() == self._thread

    @property
    def is_paused(self) -> bool:
        """Whether what runs now is not the module's."""
        return False

    def enters(self, path: str, given: Any) -> None:
        """A module's call begins, with these arguments."""
        self._modules.append((path, self._calls[path], Counter()))
        self._calls[path] += 1

    def leaves(self, args: tuple[Any, ...], output: Any) -> None:
        """The innermost module's call ends."""
        self._modules.pop()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.is_paused or not makes_tensors(func, args, kwargs):
            return func(*args, **kwargs)
        path, call, names = self._modules[-1]
        name = function_name(func)
        names[name] += 1
        return self.on_operation(Address(path, call, name, names[name] - 1), func, args, kwargs)

    def on_operation(self, address: Address, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
        """Call a function and return its result."""
        raise NotImplementedError


@contextmanager
def watched(module: nn.Module, watcher: Watcher) -> Iterator[None]:
    """Let a watcher see the calls of a module's submodules and every function inside; the hooks are removed afterwards."""

    def entering(path: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> None:
            if watcher.is_mine:  # a call in another thread may come before PyTorch knows that the hook takes kwargs
                watcher.enters(path, (args, kwargs or {}))

        return hook

    def leaving(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if watcher.is_mine:
            watcher.leaves(args, output)

    handles = []
    for path, part in module.named_modules():
        if path and not isinstance(part, torch.jit.ScriptModule):
            handles.append(part.register_forward_pre_hook(entering(path), with_kwargs=True))
            handles.append(part.register_forward_hook(leaving, always_call=True))
    try:
        with watcher:
            yield
    finally:
        for handle in handles:
            handle.remove()


_NO_TENSORS = {
    "dim", "size", "stride", "numel", "item", "tolist", "is_floating_point", "is_complex", "is_contiguous",
    "data_ptr", "type", "element_size", "ndimension", "nelement", "get_device", "is_same_size", "storage_offset",
    "is_pinned", "__len__", "__bool__", "__float__", "__int__", "__index__", "__format__", "__repr__", "__contains__",
    "__hash__", "is_inference", "is_nonzero", "equal", "allclose", "requires_grad_", "untyped_storage", "numpy",
    "__array__", "__reduce_ex__", "__dlpack__", "backward", "register_hook", "is_shared",
}  # fmt: skip
_TENSOR_PROPERTIES = {"T", "mT", "H", "mH", "real", "imag", "data"}


def makes_tensors(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a function is an operation: one that returns or changes a tensor, rather than asking for a property."""
    name = getattr(func, "__name__", "")
    if name in ("__get__", "__set__", "__delete__"):
        return name == "__get__" and getattr(getattr(func, "__self__", None), "__name__", "") in _TENSOR_PROPERTIES
    return name not in _NO_TENSORS or (name == "type" and len(args) > 1)


class Recorder(Watcher):
    """Records the operations that run.

    Args:
        module: The module that is called; its weights are known by name.
        inputs: Its inputs, by name.
        keep_bytes: The limit of the tensors that the program keeps.
        keep_of: The functions whose arguments and results it keeps in any case.
        with_callers: Whether to note the lines that called the function of each operation.
    """

    def __init__(
        self,
        module: nn.Module,
        inputs: Any,
        *,
        keep_bytes: int = 0,
        keep_of: Collection[str] = (),
        with_callers: bool = False,
    ) -> None:
        super().__init__()
        self.program = Program()
        self._keep_of, self._with_callers = keep_of, with_callers
        self._left = keep_bytes
        self._kept: dict[int, list[Value]] = defaultdict(list)
        """By the address of a storage, the values whose tensors are kept."""
        self._known: dict[int, tuple[weakref.ref[Tensor], Value]] = {}
        self._written: dict[int, Operation] = {}
        """By the address of a storage, the last operation that changed it in place."""
        self._constants: list[tuple[weakref.ref[Tensor], Value]] = []
        """The tensors that no operation made."""
        for name, weight in (*module.named_parameters(), *module.named_buffers()):
            self._add(weight, Value(weight.shape, weight.dtype, name=name, is_weight=True))
        for name, tensor in named_tensors(inputs):
            value = Value(tensor.shape, tensor.dtype, name=name, is_from_inputs=True)
            self.program.inputs[name] = value
            self._add(tensor, value)

    def leaves(self, args: tuple[Any, ...], output: Any) -> None:
        """The innermost module's call ends. What it returns without a known operation was computed out of sight."""
        path, call, _ = self._modules[-1]
        super().leaves(args, output)
        used: list[Value] = []
        given = self._replaced(args, used)
        self._see_output(Address(path, call, UNSEEN, 0), given, used, output)

    def _see_output(self, address: Address, given: Any, used: Sequence[Value], output: Any) -> None:
        unseen = [one for one in tensors_in(output) if not self._is_known(one)]
        if unseen:
            self._append(Operation(0, _unseen, given, {}, address, calling_line(), tuple(used)), unseen)

    def on_operation(self, address: Address, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
        """Call a function, and add it to the program."""
        used: list[Value] = []
        given, options = self._replaced(args, used), self._replaced(kwargs, used)
        is_in_place = address.name == "setitem" or _ends_in_place(func) or kwargs.get("inplace") is True
        changed = args[0] if is_in_place else kwargs.get("out")
        if address.name in self._keep_of:
            self.keep(used, tensors_in((args, kwargs)))
        if isinstance(changed, Tensor):
            self._keep_copies(_address(changed))
        returned = func(*args, **kwargs)
        running = tuple((path, call) for path, call, _ in self._modules)
        operation = Operation(0, func, given, options, address, calling_line(), tuple(used), running)
        operation.site = _calling_site()
        if self._with_callers:
            operation.callers = tuple(_calling_lines())
        found = tensors_in(returned)
        if isinstance(changed, Tensor) and (not found or found[0] is changed):
            operation.is_in_place = True
            found = found or [changed]
        self._append(operation, found)
        if address.name in self._keep_of:
            self.keep(operation.results, found)
        return returned

    def _append(self, operation: Operation, found: Sequence[Tensor]) -> None:
        operation.index = len(self.program.operations)
        is_from_inputs = any(value.is_from_inputs for value in operation.inputs)
        results = (Value(one.shape, one.dtype, operation, is_from_inputs=is_from_inputs) for one in found)
        operation.results = tuple(results)
        for one, value in zip(found, operation.results, strict=True):
            self._add(one, value)
            if operation.is_in_place:
                self._written[_address(one)] = operation
        if operation.results:
            self.program.operations.append(operation)

    def _replaced(self, given: Any, used: list[Value]) -> Any:
        """A copy of nested arguments with a value in place of each tensor; the values are added to `used`."""
        if isinstance(given, Tensor):
            used.append(self.value_of(given))
            return used[-1]
        if given is None or type(given) in (int, float, bool, str):
            return given
        if isinstance(given, slice):
            return slice(*(self._replaced(one, used) for one in (given.start, given.stop, given.step)))
        if isinstance(given, (list, tuple)) and not isinstance(given, torch.Size):
            return tuple([self._replaced(one, used) for one in given])
        if isinstance(given, dict):
            return {name: self._replaced(one, used) for name, one in given.items()}
        return given

    def value_of(self, tensor: Tensor) -> Value:
        """The value that a tensor holds now."""
        if not self._is_known(tensor):  # a constant that the module keeps outside its buffers, or computed out of sight
            value = Value(tensor.shape, tensor.dtype, name="constant")
            self._add(tensor, value)
            self._constants.append((self._known[id(tensor)][0], value))
        value = self._known[id(tensor)][1]
        written = self._written.get(_address(tensor)) if self._written else None
        made = -1 if value.operation is None else value.operation.index
        if written is not None and written.index > made and value not in written.results:
            is_from_inputs = value.is_from_inputs or written.result.is_from_inputs
            return Value(tensor.shape, tensor.dtype, written, value.name, is_from_inputs, before=value)
        return value

    def finish(self, returned: Any) -> Program:
        """Complete the program. A tensor that no operation made, and that nobody keeps, was computed out of sight."""
        inputs = tuple(self.program.inputs.values())
        self._see_output(Address("", 0, UNSEEN, 0), inputs, inputs, returned)
        self.program.outputs = tuple(self.value_of(one) for one in tensors_in(returned))
        for (
            address
        ) in self._written:  # the module may hold the tensor, as a cache, and change it again in its next call
            self._keep_copies(address)
        unseen = [value for tensor, value in self._constants if tensor() is None]
        for value in unseen:
            value.name, value.is_from_inputs = UNSEEN, True
        for operation in self.program.operations if unseen else ():
            if any(value.is_from_inputs for value in operation.inputs):
                for value in operation.results:
                    value.is_from_inputs = True
        return self.program

    def _is_known(self, tensor: Tensor) -> bool:
        known = self._known.get(id(tensor))
        return known is not None and known[0]() is tensor

    def _add(self, tensor: Tensor, value: Value) -> None:
        self._known[id(tensor)] = weakref.ref(tensor), value
        n = tensor.numel() * tensor.element_size()
        if n <= self._left:
            self._left -= n if _address(tensor) not in self._kept else 0
            self.keep([value], [tensor])

    def keep(self, values: Sequence[Value], tensors: Sequence[Tensor]) -> None:
        """Keep what these tensors hold now, each in its value."""
        for value, tensor in zip(values, tensors, strict=True):
            if value.tensor is None:
                self._kept[_address(tensor)].append(value)
                value.tensor = tensor.detach()

    def _keep_copies(self, address: int) -> None:
        """Keep copies of what the tensors in a storage hold now, before they are changed in place."""
        for value in self._kept.pop(address, []):
            if value.tensor is not None:
                value.tensor = value.tensor.clone()


def record(
    module: nn.Module,
    call: Callable[[], Any],
    inputs: Mapping[str, Any],
    *,
    keep_bytes: int = 0,
    keep_of: Collection[str] = (),
) -> Program:
    """Record one call of a module.

    Args:
        module: The module.
        call: Calls it with `inputs`.
        inputs: Its inputs, by name.
        keep_bytes: The limit of the tensors that the program keeps.
        keep_of: The functions whose arguments and results it keeps in any case.
    """
    recorder = Recorder(module, inputs, keep_bytes=keep_bytes, keep_of=keep_of)
    with watched(module, recorder):
        returned = call()
    return recorder.finish(returned)


def _unseen() -> None:
    """Stands for a computation that no PyTorch function shows, as in a scripted module or a compiled kernel."""


def _ends_in_place(func: Callable[..., Any]) -> bool:
    name = getattr(func, "__name__", "")
    return (name.endswith("_") and not name.endswith("__")) or name.startswith("__i")


def _address(tensor: Tensor) -> int:
    """The address of a tensor's memory, which its views share; 0 for tensors without memory of their own."""
    try:
        return tensor.untyped_storage().data_ptr() if tensor.layout == torch.strided else 0
    except (NotImplementedError, RuntimeError):  # a tensor of torch.func.vmap
        return 0


def calling_line() -> SourceLine | None:
    """The innermost line of source outside PyTorch and this package that is running now."""
    line = next(_calling_lines(), None)
    return None if line is None else line._replace(function=line.function.rpartition(".")[2])


def _calling_site() -> int:
    """The place in the code of every call that is running now, as a number."""
    frame, places = inspect.currentframe(), []
    while frame is not None:
        places.append((frame.f_code, frame.f_lasti))
        frame = frame.f_back
    return hash(tuple(places))


def _calling_lines() -> Iterator[SourceLine]:
    """The lines of the model outside PyTorch and this package that are running now, innermost first."""
    frame = inspect.currentframe()
    while frame is not None and not frame.f_code.co_filename.startswith(_DOCTOR):  # what called the model
        code = frame.f_code
        if not code.co_filename.startswith((_TORCH, _HERE)):
            yield SourceLine(code.co_filename, frame.f_lineno, code.co_qualname)
        frame = frame.f_back
