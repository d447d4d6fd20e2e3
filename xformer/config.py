"""Configurations of models, tasks and training runs: frozen, validated on construction, with a JSON round trip.

Every choice on which the paper (Vaswani et al. 2017, "Attention Is All You Need", arXiv:1706.03762) and its descendants
differ is a field here, under its usual name.

A field declares its title, its description, its limits and an example value:

    d_ff: Annotated[int, setting("Feed-forward width", "0 leaves it out.", 0, 131_072, 16)]

The error messages and the form of the Train screen are generated from these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, get_args, get_origin

from pydantic import BaseModel, Field, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from xformer.components import FEED_FORWARDS, KEY_VALUE_HEADS, MASKS, NORMS, FeedForward, KeyValueHeads, Mask, Norm
from xformer.errors import ConfigError
from xformer.positions import POSITION_KINDS, PositionKind
from xformer.task_limits import TASK_LIMITS, Architecture, check_alphabet, check_text_name


def setting(
    title: str,
    description: str = "",
    at_least: float | None = None,
    at_most: float | None = None,
    example: Any = None,
    *,
    below: float | None = None,
    rule: str = "",
) -> Any:
    """Declare a field's title, description, limits and example; `rule` words limits that are hard to read as numbers."""
    limits = {"ge": at_least, "le": at_most, "lt": below}
    examples = None if example is None else [example]
    return Field(title=title, description=description, examples=examples, json_schema_extra={"rule": rule}, **limits)  # pyright: ignore


class Config(BaseModel, frozen=True, strict=True, extra="forbid", allow_inf_nan=False):
    """Base of all configurations. The constructor, `from_json` and `replace` raise `ConfigError` for an invalid value."""

    if not TYPE_CHECKING:  # type checkers derive the signature from the fields

        def __init__(self, /, **values: Any) -> None:
            try:
                super().__init__(**values)
            except ValidationError as error:
                raise ConfigError(_sentence(type(self), error.errors(include_url=False))) from None

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain JSON values, in the order they are declared."""
        return self.model_dump(mode="json")

    @classmethod
    def from_json(cls, values: Any) -> Self:
        """Restore a configuration from `to_json`. Raises `ConfigError` on an unknown, missing or mistyped field."""
        if not isinstance(values, dict):
            raise ConfigError(f"{cls.__name__} must be a JSON object, got {type(values).__name__}; for example {{}}.")
        return cls(**{name: _frozen(value) for name, value in values.items()})

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some fields changed, validated again."""
        return type(self)(**(dict(self) | changes))

    def _derive(self, name: str, value: Any) -> None:
        """Fill in a field whose value follows from others, during construction: afterwards the config is frozen."""
        vars(self)[name] = value  # pyright: ignore[reportIndexIssue]

    @classmethod
    def largest(cls, name: str) -> float:
        """Return the upper limit of a field."""
        return next(end.le for end in cls.model_fields[name].metadata if hasattr(end, "le"))


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def _sentence(kind: type[Config], problems: list[ErrorDetails]) -> str:
    """Describe the first problem: the rule, the value received and a valid one. Unknown and missing fields come first."""
    order = ("extra_forbidden", "missing")
    problem = min(problems, key=lambda one: order.index(one["type"]) if one["type"] in order else len(order))
    what, got = problem["type"], problem["input"]
    if what == "value_error":  # raised by a model validator, for rules across several fields
        return str(problem.get("ctx", {})["error"])
    name = str(problem["loc"][0] if problem["loc"] else got)  # there is no location if the name is not a string
    if what == "extra_forbidden" or not problem["loc"]:
        return f"{kind.__name__} has no field {name!r}; its fields are {', '.join(kind.model_fields)}."
    if what == "missing" and len(problem["loc"]) == 1:
        return f"{kind.__name__} needs the field {name!r}, which is missing."
    field = kind.model_fields[name]
    options = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
    if what == "literal_error" or (options and what == "string_unicode"):
        return f"{name} must be one of {', '.join(map(repr, options))}, got {got!r}."
    example = field.examples[0] if field.examples else options[0] if field.is_required() and options else field.default
    rule = _TYPES.get(what) or (field.json_schema_extra or {}).get("rule") or limits(field)  # pyright: ignore
    return f"{name} must be {rule}, got {got!r}; for example {name}={example!r}."


_TYPES = {
    "int_type": "of type int",
    "bool_type": "of type bool",
    "string_type": "of type str",
    "string_unicode": "text that can be written as UTF-8",
    "float_type": "a number",
    "tuple_type": "a tuple",
}


def limits(field: FieldInfo) -> str:
    """Describe the range of a field's values."""
    ends = {name: getattr(end, name) for end in field.metadata for name in ("ge", "le", "lt") if hasattr(end, name)}
    words = {name: f"{end:,}" if isinstance(end, int) else f"{end:g}" for name, end in ends.items()}
    if "lt" in words:
        return f"at least {words['ge']} and below {words['lt']}"
    return f"from {words['ge']} to {words['le']}" if words else "valid"


DropoutSite = Literal["embed", "attention", "ffn", "residual"]
DROPOUT_SITES: tuple[DropoutSite, ...] = get_args(DropoutSite)
"""After adding positions · on the attention weights · inside the feed-forward layer · before each residual sum."""
if TYPE_CHECKING:
    Positions = NormKind = Activation = MaskName = str
else:
    Positions, NormKind = Literal[tuple(POSITION_KINDS)], Literal[tuple(NORMS)]
    Activation, MaskName = Literal[tuple(FEED_FORWARDS)], Literal[tuple(MASKS)]
MAX_IMAGE_SIDE = 256
MAX_INK = 16
"""Largest value of a pixel (full ink); 0 is blank paper, as in scikit-learn's digits."""
MAX_POSITION_CELLS = 2**24
"""Largest position table, max_len × d_model."""


# fmt: off
class ModelConfig(Config, frozen=True):
    """The shape of a transformer. `d_head` is the paper's d_k, `d_value` its d_v.

    A config is frozen, validated on construction, and has `replace`, `to_json` and `from_json`. An encoder-decoder has
    `n_layers` layers in each of its two stacks.

    Raises:
        ConfigError: A setting is invalid; the message states the rule and a valid value.

    Example:
        >>> import xformer
        >>> config = xformer.ModelConfig(
        ...     architecture="decoder", vocab_size=20, d_model=16, n_layers=2, n_heads=4, d_ff=32, max_len=8
        ... )
        >>> config.d_head, config.causal, config.replace(positions="rotary").positions
        (4, True, 'rotary')
    """

    architecture: Architecture
    vocab_size: Annotated[int, setting("Vocabulary", "", 1, 1_000_000, 16)]
    d_model: Annotated[int, setting("Stream width", "d_model: the width of the residual stream.", 1, 16_384, 16)]
    n_layers: Annotated[int, setting("Layers", "n_layers; in an encoder-decoder, of each of its two stacks.", 1, 256, 16)]
    n_heads: Annotated[int, setting("Heads", "n_heads: attention heads in each layer.", 1, 256, 16)]
    d_ff: Annotated[int, setting("Feed-forward width", "d_ff: 0 leaves the feed-forward layers out.", 0, 131_072, 16)]
    max_len: Annotated[int, setting("Context length", "max_len, in tokens; at least what the task needs.", 1, 65_536, 16)]
    d_head: Annotated[int, setting("Query width", "d_head: 0 means d_model / n_heads.", 0, 16_384, 16)] = 0
    d_value: Annotated[int, setting("Value width", "d_value: 0 means d_head.", 0, 16_384, 16)] = 0
    n_kv_heads: Annotated[int, setting("Key/value heads", "n_kv_heads: heads that share keys and values form a group; 0 means "
                                       "n_heads, one each.", 0, 256, 4)] = 0
    mask: Annotated[MaskName, setting("Mask", "Which keys self-attention may see, besides causality.")] = "full"
    window: Annotated[int, setting("Window", "With a sliding window: attend to keys fewer than this many positions away.",
                                   0, 65_536, 8)] = 0
    causal: Annotated[bool | None, setting("Causal", "May a position only see earlier ones? auto: only in a decoder.",
                                           example=True)] = None
    see_self: Annotated[bool, setting("Sees itself", "With a causal mask: may a position see itself?")] = True
    norm: Annotated[Literal["pre", "post", "none"],
                    setting("Normalisation", "A norm before each sublayer, after it, or none.")] = "post"
    norm_kind: Annotated[NormKind, setting("Norm type", "LayerNorm, or RMSNorm without mean and shift.")] = "layer"
    norm_eps: Annotated[float, setting("Norm ε", "Added to the variance to avoid division by zero.",
                                       1e-12, 1e12, 1.0)] = 1e-5
    final_norm: Annotated[bool | None, setting("Final norm", "After each stack; auto: with pre-norm.", example=True)] = None
    positions: Annotated[Positions, setting("Positions", "How positions are encoded.")] = "sinusoidal"
    position_base: Annotated[float,
                             setting("Position base", "Of sinusoidal and rotary wavelengths: 10,000 in the paper, §3.5.",
                                     1e-12, 1e12, 1.0)] = 10_000.0
    scale_embeddings: Annotated[bool, setting("Scale embeddings", "Multiply them by √d_model (§3.4).")] = False
    activation: Annotated[Activation, setting("Activation", "The nonlinearity of the feed-forward layer; SwiGLU has a gate and "
                                              "a third matrix.")] = "relu"
    attention_bias: Annotated[bool,
                              setting("Attention bias", "Added to queries, keys, values and the output of attention.")] = False
    ffn_bias: Annotated[bool, setting("Feed-forward bias", "Added after both matrices of the feed-forward layer.")] = True
    output_bias: Annotated[bool, setting("Output bias", "Added to the logits, one per token of the vocabulary.")] = True
    tied_output: Annotated[bool, setting("Tied output", "Use the embedding matrix as the output layer (§3.4).")] = False
    tied_source: Annotated[bool, setting("Tied source", "Encoder-decoder: one embedding matrix for both sides.")] = False
    dropout: Annotated[float, setting("Dropout", "Probability of zeroing an activation in training: 0 to below 1.",
                                      0, None, 0.1, below=1)] = 0.0
    dropout_sites: Annotated[tuple[DropoutSite, ...], setting("Dropout at", "Where dropout is applied.",
                                                              example=())] = DROPOUT_SITES
    init: Annotated[Literal["xavier", "normal"], setting("Initialisation", "Xavier-uniform, or normal.")] = "xavier"
    init_scale: Annotated[float, setting("Init scale", "Gain of the Xavier bound, or the standard deviation.",
                                         1e-12, 1e12, 1.0)] = 1.0
    embed_std: Annotated[float,
                         setting("Embedding std", "Of initial embeddings: 1 drowns out the positions, 0.1 to 0.3 learns fast.",
                                 1e-12, 1e12, 1.0)] = 0.1
    pad_token: Annotated[int, setting("Padding")] = 0
    start_token: Annotated[int | None, setting("Start token", "The first token that a decoder reads.", example=0)] = None
    end_token: Annotated[int | None, setting("End token", "The token that ends an answer.", example=0)] = None
    image: Annotated[int, setting("Image", "The side of the square input images, in pixels; 0: the input is tokens.")] = 0
    patch: Annotated[int, setting("Patch", "The side of the square patches that an image is cut into, in pixels.")] = 0
    # fmt: on

    @model_validator(mode="after")
    def _complete(self) -> Self:
        """Derive the fields that follow from others, and check the rules across fields."""
        if self.d_head == 0:
            if self.d_model % self.n_heads:
                raise ConfigError(
                    f"d_head defaults to d_model / n_heads, and {self.d_model} is not divisible by "
                    f"{self.n_heads}; give d_head, for example d_head={max(1, self.d_model // self.n_heads)}."
                )
            self._derive("d_head", self.d_model // self.n_heads)
        if self.d_value == 0:
            self._derive("d_value", self.d_head)
        if self.causal is None:
            self._derive("causal", self.architecture != "encoder")
        if self.final_norm is None:
            self._derive("final_norm", self.norm == "pre")
        self.position_kind.check(self)
        for component in (self.norm_component, self.ffn_component, self.mask_component, self.kv_component):
            component.check(self)
        self._check_rules()
        if self.image or self.patch:
            self._check_image()
        return self

    def _check_rules(self) -> None:
        if self.max_len * self.d_model > MAX_POSITION_CELLS:
            raise ConfigError(
                f"max_len × d_model must be at most {MAX_POSITION_CELLS:,}, got {self.max_len} × {self.d_model}; "
                f"for example max_len={MAX_POSITION_CELLS // self.d_model}."
            )
        if self.architecture != "encoder" and not self.causal:
            raise ConfigError(
                f"A {self.architecture} is trained to predict what comes next, so causal must be true, got false; "
                "use architecture='encoder', or remove the mask for one run with the edit set_causal(False)."
            )
        if not (self.see_self or self.causal):
            raise ConfigError("see_self=False narrows a causal mask, so it needs causal=True, got causal=False.")
        if self.tied_source and self.architecture != "encoder-decoder":
            raise ConfigError(
                f"tied_source shares one embedding matrix between source and target, so it needs "
                f"architecture='encoder-decoder', got {self.architecture!r}; use tied_source=False."
            )
        if len(set(self.dropout_sites)) != len(self.dropout_sites):
            raise ConfigError(f"dropout_sites must not repeat a site, got {self.dropout_sites}.")
        for name in ("pad_token", "start_token", "end_token"):
            token = getattr(self, name)
            if token is not None and not 0 <= token < self.vocab_size:
                raise ConfigError(
                    f"{name} must be a token from 0 to vocab_size - 1 = {self.vocab_size - 1}, got {token}; "
                    f"for example {name}=0."
                )

    def _check_image(self) -> None:
        if not 1 <= self.patch <= self.image <= MAX_IMAGE_SIDE or self.image % self.patch:
            raise ConfigError(
                f"An image is cut into whole patches, so patch must divide image, which is at most {MAX_IMAGE_SIDE}, got "
                f"image={self.image} and patch={self.patch}; for example image=8, patch=2."
            )
        if self.architecture != "encoder" or self.tied_output or self.scale_embeddings:
            raise ConfigError(
                "Images need an encoder, which then has no embedding table to tie or scale, got "
                f"architecture={self.architecture!r}, tied_output={self.tied_output}, "
                f"scale_embeddings={self.scale_embeddings}; for example architecture='encoder', False, False."
            )
        if self.max_len != 1 + self.n_patches:
            raise ConfigError(
                f"An image of {self.n_patches} patches takes 1 + {self.n_patches} positions, including the class token, got "
                f"max_len={self.max_len}; use max_len={1 + self.n_patches}."
            )

    @property
    def position_kind(self) -> PositionKind:
        """The registered position encoding of `positions`."""
        return POSITION_KINDS[self.positions]

    @property
    def norm_component(self) -> Norm:
        """The registered norm of `norm_kind`."""
        return NORMS[self.norm_kind]

    @property
    def ffn_component(self) -> FeedForward:
        """The registered feed-forward network of `activation`."""
        return FEED_FORWARDS[self.activation]

    @property
    def mask_component(self) -> Mask:
        """The registered attention mask of `mask`."""
        return MASKS[self.mask]

    @property
    def kv_component(self) -> KeyValueHeads:
        """How query heads share key/value heads: not at all, or in groups."""
        return KEY_VALUE_HEADS["multi_head" if self.n_kv_heads in (0, self.n_heads) else "grouped_query"]

    def looks_back_only(self, stack: str) -> bool:
        """Whether self-attention in the "encoder" or the "decoder" is causal."""
        return stack == "decoder" or (self.architecture == "encoder" and bool(self.causal))

    @property
    def n_patches(self) -> int:
        """The number of patches per image; 0 for a model of tokens."""
        return (self.image // self.patch) ** 2 if self.patch else 0

    @property
    def n_inputs(self) -> int:
        """The number of distinct input values, 0 to `n_inputs` - 1: tokens, or ink levels of a pixel."""
        return 1 + MAX_INK if self.image else self.vocab_size

    def n_positions(self, n: int) -> int:
        """Return the number of positions of an input of `n` values: `n`, or one per patch plus the class token."""
        return 1 + self.n_patches if self.image else n


_CHANGES = "pairs (step, peak) in ascending order of steps, from step 1, with peaks from 0 to 1e+12"


# fmt: off
class TrainConfig(Config, frozen=True):
    """A training recipe: AdamW, the learning-rate schedule, and how often to report and to save snapshots.

    Raises:
        ConfigError: A setting is invalid; the message states the rule and a valid value.

    Source: Loshchilov and Hutter 2019, Decoupled Weight Decay Regularization, https://arxiv.org/abs/1711.05101

    Example:
        >>> import xformer
        >>> recipe = xformer.TrainConfig(steps=500, batch_size=64, peak_lr=1e-3)
        >>> recipe.steps, recipe.seed
        (500, 0)
    """

    steps: Annotated[int, setting("Steps", "Number of weight updates, one per batch.", 1, 10_000_000, 100)]
    batch_size: Annotated[int, setting("Batch size", "Sequences per step.", 1, 65_536, 100)] = 32
    peak_lr: Annotated[float, setting("Peak learning rate", "The highest learning rate of the schedule.", 0, 1e12)] = 3e-3
    warmup: Annotated[float, setting("Warm-up", "Fraction of the steps over which the rate rises.", 0, 1)] = 0.2
    decay: Annotated[Literal["linear", "cosine", "none"],
                     setting("Decay", "How the rate falls after the warm-up.")] = "linear"
    final_lr: Annotated[float, setting("Final learning rate", "The learning rate at the end of the decay.", 0, 1e12)] = 0.0
    beta1: Annotated[float, setting("β₁", "Adam: decay rate of the running mean of gradients.", 0, below=1)] = 0.9
    beta2: Annotated[float, setting("β₂", "Adam: decay rate of the running mean of squared gradients.",
                                    0, example=0.9, below=1)] = 0.98
    adam_eps: Annotated[float, setting("Adam ε", "Adam: added to the denominator to avoid division by zero.", 0, 1)] = 1e-8
    weight_decay: Annotated[float,
                            setting("Weight decay", "AdamW: each step shrinks every weight by this × the learning rate.",
                                    0, 100)] = 0.0
    clip_norm: Annotated[float, setting("Clip norm", "Gradients are clipped to this norm; 0 does not clip.", 0, 1e12)] = 1.0
    seed: Annotated[int, setting("Seed", "The same settings and seed give the same run.", 0, 2**63 - 1,
                                 rule="from 0 to 2^63 - 1")] = 0
    log_every: Annotated[int, setting("Report every", "Steps between two points on the curves.", 1, 1_000_000, 100)] = 20
    held_out: Annotated[int,
                        setting("Held-out examples", "Unseen sequences that each report scores.", 1, 65_536, 100)] = 256
    snapshot_every: Annotated[int, setting("Snapshot every", "Steps between two snapshots of the timeline; 0 keeps none.",
                                           0, rule="0 (never) or more")] = 100
    random_positions: Annotated[bool, setting("Random positions",
                                              "Train on position numbers with gaps, so that longer inputs contain no unseen "
                                              "positions.")] = False
    target: Annotated[float, setting("Stop at exact match", "Stop early once it is reached; 0 never stops early.", 0, 1)] = 0.0
    lr_changes: Annotated[tuple[tuple[int, float], ...],
                          setting("Peak changes", "New peak learning rates set during the run, as (step, peak).",
                                  example=((200, 0.001),), rule=_CHANGES)] = ()
    # fmt: on
    # From its step on, a change gives the schedule of a run with that `peak_lr`. It is part of the settings, so that the same
    # settings reproduce the run.

    @model_validator(mode="after")
    def _check_changes(self) -> Self:
        steps = [step for step, _ in self.lr_changes]
        if steps != sorted(steps) or not all(step >= 1 and 0 <= lr <= 1e12 for step, lr in self.lr_changes):
            raise ConfigError(f"lr_changes must be {_CHANGES}, got {self.lr_changes}; for example ((200, 0.001),).")
        return self

if TYPE_CHECKING:
    TaskName = str
else:
    TaskName = Literal[tuple(TASK_LIMITS)]


# fmt: off
class TaskConfig(Config, frozen=True):
    """A task and its sizes. In modular addition `symbols` is the modulus; in addition, lengths count the digits of one number.

    Raises:
        ConfigError: A setting is invalid; the message states the rule and a valid value.

    Example:
        >>> import xformer
        >>> task = xformer.Task(xformer.TaskConfig(name="reverse", architecture="encoder", symbols=10, max_len=8))
        >>> len(task.vocabulary) >= 10
        True
    """

    name: Annotated[TaskName, setting("Task", "What the model learns to do.")]
    architecture: Annotated[Architecture, setting("Architecture", "An encoder predicts all positions at once.")]
    symbols: Annotated[int, setting("Symbols", "The number of different symbols.")] = 19
    min_len: Annotated[int, setting("Shortest", "Length of the shortest sequence.")] = 3
    max_len: Annotated[int, setting("Longest", "Length of the longest sequence.")] = 15
    end_token: Annotated[bool, setting("End token", "Encoder: end every input with an end token.")] = False
    patch: Annotated[int,
                     setting("Patch", "Images only: the side of the patches that the model cuts them into, in pixels.")] = 0
    train_share: Annotated[float, setting("Training share", "Modular addition only: fraction of all pairs used in training; "
                                          "the model is scored on the rest.", 0.05, 0.95)] = 0.75
    text: Annotated[str, setting("Text", "Characters only: the name of the text; see `xformer.tasks.texts`.")] = ""
    alphabet: Annotated[str,
                        setting("Alphabet", "Characters only: all of them, so that a checkpoint works without the text.")] = ""
    # fmt: on

    @model_validator(mode="after")
    def _check_rules(self) -> Self:
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
                f"patch is only for images and must divide their side, 8, got patch={self.patch} for the task {self.name}; "
                f"for example patch={2 if limits.is_image else 0}."
            )
        if limits.is_image and self.end_token:
            raise ConfigError(f"Images take no end token: end_token must be false for the task {self.name}, got true.")
        if limits.is_distinct and self.symbols < self.max_len:
            raise ConfigError(
                f"The symbols of a sequence are all different in the task {self.name}, so symbols must be at least "
                f"max_len, got symbols={self.symbols} and max_len={self.max_len}; for example symbols={self.max_len}."
            )
        if limits.is_text:
            self._check_text()
        elif self.text or self.alphabet:
            raise ConfigError(
                f"text and alphabet are only for the task characters, got them for the task {self.name}; leave them empty."
            )
        return self

    def _check_text(self) -> None:
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
