"""What a model and a training run are made of: frozen, typed, validated at birth, with a JSON round trip.

Every choice that the paper (Vaswani et al. 2017, "Attention Is All You Need", arXiv:1706.03762) and its descendants make
differently is a field here, under the name the field uses.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self, get_args, get_type_hints

from xformer.alphabet import check_alphabet, check_text_name
from xformer.errors import ConfigError
from xformer.positions import POSITION_KINDS, PositionKind
from xformer.task_limits import TASK_LIMITS, Architecture

Norm = Literal["pre", "post", "none"]
Positions = Annotated[str, POSITION_KINDS]
"""The name of one of the kinds in `xformer.positions`."""
Activation = Literal["relu", "gelu"]
Init = Literal["xavier", "normal"]
DropoutSite = Literal["embed", "attention", "ffn", "residual"]
TaskName = Annotated[str, TASK_LIMITS]
"""The name of one of the tasks in `xformer.task_limits`."""
Decay = Literal["linear", "cosine", "none"]

DROPOUT_SITES: tuple[DropoutSite, ...] = get_args(DropoutSite)
"""After the positions are added · on the attention weights · inside the feed-forward · before each residual sum."""

LIMITS = {
    "vocab_size": 1_000_000,
    "d_model": 16_384,
    "n_layers": 256,
    "n_heads": 256,
    "d_head": 16_384,
    "d_value": 16_384,
    "d_ff": 131_072,
    "max_len": 65_536,
}
"""The largest value of each size: beyond it a config is a mistake or an attack, not a model."""


MOST_SIDE = 256
"""The largest side of an image, in pixels."""
MOST_INK = 16
"""A pixel is a whole number from 0 (paper) to this (full ink), as in scikit-learn's digits."""


class Config:
    """What all configurations share: checking of plain values and the JSON round trip."""

    def to_json(self) -> dict[str, Any]:
        """The fields as plain JSON values, in the order they are declared."""
        return {f.name: _plain(getattr(self, f.name)) for f in dataclasses.fields(self)}  # pyright: ignore[reportArgumentType]

    @classmethod
    def from_json(cls, values: Any) -> Self:
        """The configuration that `to_json` described. Raises `ConfigError` on an unknown, missing or mistyped field."""
        if not isinstance(values, dict):
            raise ConfigError(f"{cls.__name__} must be a JSON object, got {type(values).__name__}; for example {{}}.")
        fields = {f.name: f for f in dataclasses.fields(cls)}  # pyright: ignore[reportArgumentType]
        if unknown := sorted(set(values) - set(fields)):
            raise ConfigError(f"{cls.__name__} has no field {unknown[0]!r}; its fields are {', '.join(fields)}.")
        missing = [
            name
            for name, field in fields.items()
            if name not in values
            and field.default is dataclasses.MISSING
            and field.default_factory is dataclasses.MISSING
        ]
        if missing:
            raise ConfigError(f"{cls.__name__} needs the field {missing[0]!r}, which is missing.")
        return cls(**{name: _frozen(value) for name, value in values.items()})

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields changed, validated again."""
        return dataclasses.replace(self, **changes)  # pyright: ignore[reportArgumentType, reportReturnType]

    def _check_types(self) -> None:
        """Each field holds what its annotation says: an int is not a bool, a Literal is one of its values."""
        for name, hint in get_type_hints(type(self), include_extras=True).items():
            _check_type(name, getattr(self, name), hint)


@dataclass(frozen=True, kw_only=True)
class ModelConfig(Config):
    """The shape of one transformer. See DESIGN's vocabulary: d_head is the paper's d_k, d_value its d_v.

    An encoder-decoder has `n_layers` layers in each of its two stacks.
    """

    architecture: Architecture
    vocab_size: int
    d_model: int
    n_layers: int
    n_heads: int
    d_ff: int
    """Width of the feed-forward layer; 0 leaves it out."""
    max_len: int
    d_head: int = 0
    """Width of a query and key; 0 means d_model / n_heads."""
    d_value: int = 0
    """Width of a value; 0 means d_head."""
    causal: bool | None = None
    """May a position see later ones? None means: a decoder may not, an encoder may."""
    see_self: bool = True
    """With a causal mask: may a position see itself? (False leaves the first one nothing to see.)"""
    norm: Norm = "post"
    norm_eps: float = 1e-5
    final_norm: bool | None = None
    """A last normalisation after each stack; None means: with pre-norm, yes; otherwise no."""
    positions: Positions = "sinusoidal"
    position_base: float = 10_000.0
    """The base of the sinusoidal and rotary wavelengths (the paper's 10000, §3.5)."""
    scale_embeddings: bool = False
    """Multiply token embeddings by √d_model (§3.4)."""
    activation: Activation = "relu"
    attention_bias: bool = False
    ffn_bias: bool = True
    output_bias: bool = True
    tied_output: bool = False
    """Read the logits with the (target) embedding matrix (§3.4)."""
    tied_source: bool = False
    """Encoder-decoder: one embedding matrix for source and target (§3.4)."""
    dropout: float = 0.0
    dropout_sites: tuple[DropoutSite, ...] = DROPOUT_SITES
    init: Init = "xavier"
    init_scale: float = 1.0
    """Gain of the Xavier-uniform bound, or the standard deviation with `init="normal"`."""
    embed_std: float = 0.1
    """Standard deviation of fresh token (and learned position) embeddings."""
    pad_token: int = 0
    start_token: int | None = None
    """The token a decoder is started with."""
    end_token: int | None = None
    """The token that ends an answer."""
    image: int = 0
    """The side of the square images that it reads, in pixels; 0 reads tokens (Dosovitskiy et al. 2021)."""
    patch: int = 0
    """The side of the square patches that an image is cut into, in pixels."""

    def __post_init__(self) -> None:
        self._check_types()
        for name in ("vocab_size", "d_model", "n_layers", "n_heads", "max_len"):
            self._check_size(name, at_least=1)
        for name in ("d_ff", "d_head", "d_value"):
            self._check_size(name, at_least=0)
        if self.d_head == 0:
            if self.d_model % self.n_heads:
                raise ConfigError(
                    f"d_head is d_model / n_heads unless it is given, and {self.d_model} is not divisible by "
                    f"{self.n_heads}; give d_head, for example d_head={max(1, self.d_model // self.n_heads)}."
                )
            object.__setattr__(self, "d_head", self.d_model // self.n_heads)
        if self.d_value == 0:
            object.__setattr__(self, "d_value", self.d_head)
        if self.causal is None:
            object.__setattr__(self, "causal", self.architecture != "encoder")
        if self.final_norm is None:
            object.__setattr__(self, "final_norm", self.norm == "pre")
        self._check_rules()
        self._check_image()

    def _check_size(self, name: str, at_least: int) -> None:
        value = getattr(self, name)
        if not at_least <= value <= LIMITS[name]:
            raise ConfigError(
                f"{name} must be from {at_least} to {LIMITS[name]:,}, got {value}; for example {name}=16."
            )

    def _check_rules(self) -> None:
        self.position_kind.check(self)
        if self.max_len * self.d_model > 2**24:
            raise ConfigError(
                f"max_len × d_model must be at most 16,777,216, got {self.max_len} × {self.d_model}; "
                f"for example max_len={2**24 // self.d_model}."
            )
        if self.architecture != "encoder" and not self.causal:
            raise ConfigError(
                f"A {self.architecture} is trained to predict what comes next, so causal must be true, got false; "
                "use architecture='encoder', or lift the mask of one run with the edit set_causal(False)."
            )
        if not (self.see_self or self.causal):
            raise ConfigError("see_self=False narrows a causal mask, so it needs causal=True, got causal=False.")
        if self.tied_source and self.architecture != "encoder-decoder":
            raise ConfigError(
                f"tied_source shares the source's embeddings with the target's, so it needs "
                f"architecture='encoder-decoder', got {self.architecture!r}; use tied_source=False."
            )
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"dropout must be at least 0 and below 1, got {self.dropout}; for example dropout=0.1.")
        for name in ("norm_eps", "position_base", "init_scale", "embed_std"):
            if not 1e-12 <= getattr(self, name) <= 1e12:  # also false for NaN; what is drawn from it must fit a float32
                raise ConfigError(
                    f"{name} must be from 1e-12 to 1e12, got {getattr(self, name)}; for example {name}=1.0."
                )
        if len(set(self.dropout_sites)) != len(self.dropout_sites):
            raise ConfigError(f"dropout_sites must name each place once, got {self.dropout_sites}.")
        for name in ("pad_token", "start_token", "end_token"):
            token = getattr(self, name)
            if token is not None and not 0 <= token < self.vocab_size:
                raise ConfigError(
                    f"{name} must be a token from 0 to vocab_size - 1 = {self.vocab_size - 1}, got {token}; "
                    f"for example {name}=0."
                )

    def _check_image(self) -> None:
        if not self.image and not self.patch:
            return
        if not 1 <= self.patch <= self.image <= MOST_SIDE or self.image % self.patch:
            raise ConfigError(
                f"An image is cut into whole patches, so patch must divide image, which is at most {MOST_SIDE}, got "
                f"image={self.image} and patch={self.patch}; for example image=8, patch=2."
            )
        if self.architecture != "encoder" or self.tied_output or self.scale_embeddings:
            raise ConfigError(
                "Images are read by an encoder without an embedding table that could be tied or scaled, got "
                f"architecture={self.architecture!r}, tied_output={self.tied_output}, "
                f"scale_embeddings={self.scale_embeddings}; for example architecture='encoder', False, False."
            )
        if self.max_len != 1 + self.n_patches:
            raise ConfigError(
                f"An image of {self.n_patches} patches takes 1 + {self.n_patches} positions, the class token's first, got "
                f"max_len={self.max_len}; use max_len={1 + self.n_patches}."
            )

    @property
    def position_kind(self) -> PositionKind:
        """How it knows where a token stands."""
        return POSITION_KINDS[self.positions]

    def looks_back_only(self, stack: str) -> bool:
        """Whether self-attention in the "encoder" or the "decoder" is masked so that nothing sees what comes later."""
        return stack == "decoder" or (self.architecture == "encoder" and bool(self.causal))

    @property
    def n_patches(self) -> int:
        """How many patches an image is cut into; 0 for a model of tokens."""
        return (self.image // self.patch) ** 2 if self.patch else 0

    @property
    def n_inputs(self) -> int:
        """What it reads are whole numbers from 0 to `n_inputs` - 1: tokens, or the ink of a pixel."""
        return 1 + MOST_INK if self.image else self.vocab_size

    def n_positions(self, n: int) -> int:
        """How many positions the stream has for an input of `n` numbers: as many, or one for each patch and the class token."""
        return 1 + self.n_patches if self.image else n


@dataclass(frozen=True, kw_only=True)
class TaskConfig(Config):
    """What a model is trained to do, and how the sequences it sees are made."""

    name: TaskName
    architecture: Architecture
    symbols: int = 19
    """How many different symbols a sequence is made of: 1 to `symbols`. For modular addition, the modulus p."""
    min_len: int = 3
    max_len: int = 15
    """The shortest and the longest sequence; for addition, how many digits each number has."""
    end_token: bool = False
    """Encoder only: close every input with an end token (the other architectures always have one)."""
    patch: int = 0
    """Images only: the side of the patches that the model cuts them into, in pixels."""
    text: str = ""
    """Characters only: the name of the text; see `xformer.tasks.texts`."""
    alphabet: str = ""
    """Characters only: its different characters. A checkpoint carries them, so it reads on where the text is not."""

    def __post_init__(self) -> None:
        self._check_types()
        limits = TASK_LIMITS[self.name]
        low, high = limits.symbols
        if not low <= self.symbols <= high:
            rule = f"from {low} to {high:,}" if low < high else f"{low} for the task {self.name}"
            raise ConfigError(
                f"symbols must be {rule}, got {self.symbols}; for example symbols={min(max(low, 19), high)}."
            )
        low, high = limits.lengths
        if not low <= self.min_len <= self.max_len <= high:
            raise ConfigError(
                f"Lengths must satisfy {low} ≤ min_len ≤ max_len ≤ {high:,}, got min_len={self.min_len} and "
                f"max_len={self.max_len}; for example min_len={min(3, high)}, max_len={min(15, high)}."
            )
        if self.architecture not in limits.architectures:
            raise ConfigError(
                f"The task {self.name} is for architecture={' or '.join(map(repr, limits.architectures))}, "
                f"got {self.architecture!r}; for example architecture={limits.architectures[0]!r}."
            )
        if limits.is_image != (self.patch > 0) or (self.patch and self.max_len % self.patch):
            raise ConfigError(
                f"patch is for images alone and divides their side, 8, got patch={self.patch} for the task {self.name}; "
                f"for example patch={2 if limits.is_image else 0}."
            )
        if limits.is_image and self.end_token:
            raise ConfigError(
                f"An image has no end, so end_token must be false for the task {self.name}, got true; use False."
            )
        if limits.is_distinct and self.symbols < self.max_len:
            raise ConfigError(
                f"The symbols of a sequence are all different in the task {self.name}, so symbols must be at least "
                f"max_len, got symbols={self.symbols} and max_len={self.max_len}; for example symbols={self.max_len}."
            )
        self._check_text(limits.is_text)

    def _check_text(self, is_text: bool) -> None:
        if not is_text:
            if self.text or self.alphabet:
                raise ConfigError(
                    f"text and alphabet are for the task characters alone, got them for the task {self.name}; leave them empty."
                )
            return
        check_text_name(self.text)
        check_alphabet(self.alphabet)
        if self.symbols != len(self.alphabet):
            raise ConfigError(
                f"Each character of the alphabet is a symbol, so symbols must be {len(self.alphabet)}, got {self.symbols}; "
                f"use symbols={len(self.alphabet)}."
            )
        if self.min_len != self.max_len:
            raise ConfigError(
                f"Windows of a text all have the same length, so min_len must be max_len, got min_len={self.min_len} and "
                f"max_len={self.max_len}; for example both {self.max_len}."
            )


@dataclass(frozen=True, kw_only=True)
class TrainConfig(Config):
    """How a model is trained: optimiser, schedule, and when to look at it."""

    steps: int
    batch_size: int = 32
    """Sequences per step."""
    peak_lr: float = 3e-3
    warmup: float = 0.2
    """Share of the steps over which the learning rate rises from 0 to its peak."""
    decay: Decay = "linear"
    """How it falls afterwards: to `final_lr` along a line or half a cosine, or not at all."""
    final_lr: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.98
    adam_eps: float = 1e-8
    weight_decay: float = 0.0
    clip_norm: float = 1.0
    """Gradients longer than this are shortened to it; 0 leaves them as they are."""
    seed: int = 0
    log_every: int = 20
    """Steps between two reports, each with a held-out score."""
    held_out: int = 256
    """Unseen sequences that each report is scored on."""
    snapshot_every: int = 100
    target: float = 0.0
    """Stop early once this exact match is reached on the held-out sequences; 0 never does."""
    lr_changes: tuple[tuple[int, float], ...] = ()
    """New peaks chosen while it ran, as (step, peak): from that step on the schedule is that of a run with this `peak_lr`.
    They belong to the settings, so that the same settings give the same run again."""

    def __post_init__(self) -> None:
        self._check_types()
        for name, most in (
            ("steps", 10_000_000),
            ("batch_size", 65_536),
            ("log_every", 1_000_000),
            ("held_out", 65_536),
        ):
            if not 1 <= getattr(self, name) <= most:
                raise ConfigError(
                    f"{name} must be from 1 to {most:,}, got {getattr(self, name)}; for example {name}=100."
                )
        if self.snapshot_every < 0:
            raise ConfigError(f"snapshot_every must be 0 (never) or more, got {self.snapshot_every}; for example 100.")
        for name, low, high in (
            ("peak_lr", 0.0, 1e12),
            ("final_lr", 0.0, 1e12),
            ("warmup", 0.0, 1.0),
            ("weight_decay", 0.0, 100.0),
            ("clip_norm", 0.0, 1e12),
            ("adam_eps", 0.0, 1.0),
            ("target", 0.0, 1.0),
        ):
            if not low <= getattr(self, name) <= high:  # also false for NaN
                raise ConfigError(f"{name} must be from {low:g} to {high:g}, got {getattr(self, name)}.")
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 0 and below 1, got {getattr(self, name)}; for example 0.9.")
        steps = [step for step, _ in self.lr_changes]
        if steps != sorted(steps) or not all(step >= 1 and 0 <= lr <= 1e12 for step, lr in self.lr_changes):
            raise ConfigError(
                f"lr_changes must be pairs (step, peak) in the order of their steps, from step 1 on, with peaks from 0 to "
                f"1e+12, got {self.lr_changes}; for example ((200, 0.001),)."
            )
        if not 0 <= self.seed < 2**63:
            raise ConfigError(f"seed must be from 0 to 2^63 - 1, got {self.seed}; for example seed=0.")


def _plain(value: Any) -> Any:
    if isinstance(value, Config):
        return value.to_json()
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def _frozen(value: Any) -> Any:
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value


def _check_type(name: str, value: Any, hint: Any) -> None:
    options = get_args(hint)
    origin = getattr(hint, "__origin__", None)
    if known := getattr(hint, "__metadata__", None):  # Annotated: the names of a registry
        origin, options = Literal, tuple(known[0])
    if origin is Literal:
        if not isinstance(value, str) or value not in options:
            raise ConfigError(f"{name} must be one of {', '.join(map(repr, options))}, got {value!r}.")
    elif origin is tuple:
        if not isinstance(value, tuple):
            raise ConfigError(f"{name} must be a tuple, got {value!r}; for example {name}=().")
        kinds = options[:1] * len(value) if Ellipsis in options else options
        if len(kinds) != len(value):
            raise ConfigError(f"{name} must hold {len(kinds)} values each, got {value!r}.")
        for item, kind in zip(value, kinds, strict=True):
            _check_type(name, item, kind)
    elif options:  # a union: `int | None`
        if value is None and type(None) in options:
            return
        _check_type(name, value, next(option for option in options if option is not type(None)))
    elif hint is float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigError(f"{name} must be a number, got {value!r}; for example {name}=0.1.")
    elif type(value) is not hint:
        example = {int: 16, bool: True, str: "reverse"}.get(hint, hint)
        raise ConfigError(f"{name} must be of type {hint.__name__}, got {value!r}; for example {name}={example!r}.")
