"""The errors this library raises on purpose, one class for each kind of mistake a caller can make.

    XformerError
    ├── ConfigError       a configuration breaks one of its rules
    ├── InputError        tokens, text or a prompt do not fit the model
    │   └── UnavailableError  what was asked for cannot be had of this kind of model
    ├── EditError         an edit names an activation that the run does not have, or does not fit it
    │   └── ActivationError   there is no activation of this name; it is a KeyError as well
    │       └── MissingError      the activation was not found in an external model; it is an UnavailableError as well
    ├── CheckpointError   a file is not a model that can be trusted
    ├── ModelFileError    a folder or a file holds no model that can be opened here
    ├── MissingLibraryError  a library is not installed that only a part of this one needs
    ├── TrainingError     a run cannot go on
    ├── RunStoreError     the run store cannot be used, or a run is not in the state for what is asked of it
    ├── ClassroomError    a room has ended, or does not take what is sent to it
    └── QuotaExceededError       what is to be written does not fit into what may be kept here, or on the disk

Each message is one plain sentence that can be shown to a visitor as it is.
"""


class XformerError(Exception):
    """Base of every error raised on purpose by this library."""


class ConfigError(XformerError, ValueError):
    """A configuration breaks a rule; the message states the rule, the value received and one that works."""


class InputError(XformerError, ValueError):
    """Tokens, text or a prompt do not fit the model or the task."""


class UnavailableError(InputError):
    """What was asked for cannot be had of this kind of model; a screen shows the sentence in its place."""


class EditError(XformerError, ValueError):
    """An edit names an activation that the run never produced, or its value has the wrong shape."""


class ActivationError(EditError, KeyError):
    """A trace or a reading has no activation of this name; the message suggests similar names."""

    def __str__(self) -> str:
        """The plain sentence; `KeyError` would put it in quotes."""
        return Exception.__str__(self)


class MissingError(ActivationError, UnavailableError):
    """The activation was not found in an external model, or the model does not expose it."""


class CheckpointError(XformerError):
    """A file is not a checkpoint that can be trusted and loaded."""


class ModelFileError(XformerError):
    """An external folder or file has no model that can be opened here; the message says what would work."""


class NotEnoughMemoryError(ModelFileError):
    """Opening the model would take more memory than is free; nothing of it was loaded."""


class MissingLibraryError(XformerError, ModuleNotFoundError):
    """A library that only a part of this one needs is not installed; the message says what to type."""


class TrainingError(XformerError):
    """A training run cannot start or cannot go on."""


class RunStoreError(XformerError):
    """The run store cannot be used, or what was asked of a run is not possible in its state."""


class QuotaExceededError(RunStoreError, InputError):
    """What is to be written does not fit into what may be kept here, or on the disk; nothing of it was written."""


class ClassroomError(XformerError):
    """A room of a class has ended, or does not take what is sent to it."""
