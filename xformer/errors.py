"""The errors that this library raises, one class for each kind of mistake a caller can make.

    XformerError
    ├── ConfigError         a configuration is invalid
    ├── InputError          tokens, text or a prompt do not fit the model
    │   └── UnavailableError    this kind of model does not provide the requested value
    ├── EditError           an edit names an activation that the run does not have, or does not fit it
    │   └── ActivationError     there is no activation of this name; also a KeyError
    │       └── MissingError        the activation was not found in an external model; also an UnavailableError
    ├── CheckpointError     a file is not a checkpoint that can be trusted
    ├── ModelFileError      a folder or file contains no model that can be opened
    │   └── NotEnoughMemoryError    opening the model would take more memory than is free
    ├── MissingLibraryError an optional dependency is not installed; also a ModuleNotFoundError
    ├── TrainingError       a training run cannot start or continue
    ├── RunStoreError       the run store cannot be used, or a run is in the wrong state for the operation
    │   └── QuotaExceededError  a write would exceed the quota or the free disk space; also an InputError
    ├── ClassroomError      a classroom has ended, or rejects the message
    └── AssignmentError     a solution cannot be used as its task says, or nothing can be checked

Each message is one plain sentence that can be shown to a visitor as it is.
"""


class XformerError(Exception):
    """Base class of the errors that this library raises."""


class ConfigError(XformerError, ValueError):
    """A configuration is invalid; the message states the rule, the value received and a valid one."""


class InputError(XformerError, ValueError):
    """Tokens, text or a prompt do not fit the model or the task."""


class UnavailableError(InputError):
    """This kind of model does not provide the requested value; screens show the message in its place."""


class EditError(XformerError, ValueError):
    """An edit names an activation that the run did not produce, or its value has the wrong shape."""


class ActivationError(EditError, KeyError):
    """A trace or a reading has no activation of this name; the message suggests similar names."""

    def __str__(self) -> str:
        """Return the message itself; `KeyError` would quote it."""
        return Exception.__str__(self)


class MissingError(ActivationError, UnavailableError):
    """The activation was not found in an external model, or the model does not expose it."""


class CheckpointError(XformerError):
    """A file is not a checkpoint that can be trusted and loaded."""


class ModelFileError(XformerError):
    """An external folder or file contains no model that can be opened; the message says what would work."""


class NotEnoughMemoryError(ModelFileError):
    """Opening the model would take more memory than is free; nothing was loaded."""


class MissingLibraryError(XformerError, ModuleNotFoundError):
    """An optional dependency is not installed; the message has the install command."""


class TrainingError(XformerError):
    """A training run cannot start or continue."""


class RunStoreError(XformerError):
    """The run store cannot be used, or a run is in the wrong state for the operation."""


class QuotaExceededError(RunStoreError, InputError):
    """A write would exceed the quota or the free disk space; nothing was written."""


class ClassroomError(XformerError):
    """A classroom has ended, or rejects the message."""


class AssignmentError(XformerError):
    """A solution cannot be used as its task says, or the process that checks it does not start."""
