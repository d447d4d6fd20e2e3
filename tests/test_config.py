"""Configurations: derived defaults, validation and its messages, and the JSON round trip."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from tests.layers.reference import SIZES, model_config
from xformer.config import DROPOUT_SITES, Config, ModelConfig, TaskConfig, TrainConfig
from xformer.errors import ConfigError

SIZED = ("vocab_size", "d_model", "n_layers", "n_heads", "d_head", "d_value", "d_ff", "max_len")
LIMITS = {name: int(ModelConfig.largest(name)) for name in SIZED}
NAN, INF = float("nan"), float("inf")
TASK: dict[str, Any] = {"name": "reverse", "architecture": "encoder"}
TRAIN: dict[str, Any] = {"steps": 100}
BASE: dict[type[Config], dict[str, Any]] = {ModelConfig: SIZES, TaskConfig: TASK, TrainConfig: TRAIN}


def test_derived_defaults() -> None:
    plain = {k: v for k, v in SIZES.items() if k not in ("d_head", "d_value")} | {"d_model": 15}
    assert (ModelConfig(**plain).d_head, ModelConfig(**plain).d_value) == (5, 5)
    assert ModelConfig(**plain, d_head=7).d_value == 7
    assert ModelConfig(**plain, d_value=7).d_head == 5
    causal = [model_config(architecture=a).causal for a in ("encoder", "decoder", "encoder-decoder")]
    assert causal == [False, True, True]
    assert model_config(causal=True).causal
    assert [model_config(norm=norm).final_norm for norm in ("pre", "post", "none")] == [True, False, False]
    assert not model_config(norm="pre", final_norm=False).final_norm
    assert model_config(norm="post", final_norm=True).final_norm
    assert DROPOUT_SITES == ("embed", "attention", "ffn", "residual")


MODEL_RULES: list[tuple[dict[str, Any], str]] = [
    *(({name: LIMITS[name] + 1}, f"{LIMITS[name] + 1}") for name in LIMITS),
    *(({name: 0}, "got 0") for name in ("vocab_size", "d_model", "n_layers", "n_heads", "max_len")),
    *(({"n_heads": value}, repr(value)) for value in ("3", True, 3.0)),
    ({"d_head": 0}, "13 is not divisible by 3"),
    ({"max_len": 65_521, "d_model": 257}, "× d_model must be at most 16777216, got 65521 × 257"),
    ({"positions": "rotary", "d_head": 7}, "d_head must be even, got 7"),
    ({"architecture": "encoder-decoder", "causal": False}, "causal must be true, got false"),
    ({"see_self": False}, "causal=False"),
    ({"architecture": "decoder", "positions": "mirror"}, "got 'decoder'; use positions='sinusoidal'"),
    ({"tied_source": True}, "'encoder'"),
    *(({"dropout": value}, repr(value)) for value in (-0.1, 1.0, NAN, "0.1", True)),
    *(({name: 0.0}, "got 0") for name in ("norm_eps", "position_base", "init_scale", "embed_std")),
    *(({"norm_eps": value}, f"got {value}") for value in (-1.0, NAN, INF, 10**400)),
    *(({"dropout_sites": value}, repr(value)) for value in (("embed", "embed"), "embed", None)),
    ({"dropout_sites": ("head",)}, "'head'"),
    *(({name: n}, f"got {n}") for name in ("pad_token", "start_token", "end_token") for n in (-1, 23, 1.0)),
    *(({name: "Other"}, "'Other'") for name in ("architecture", "norm", "norm_kind", "positions", "mask", "init")),
    *(({"activation": value}, repr(value)) for value in ("", None, 3, ["relu"])),
    *(({"see_self": value}, f"got {value!r}") for value in (1, None, "yes")),
    ({"final_norm": "no"}, "got 'no'"),
]
TASK_RULES: list[tuple[dict[str, Any], str]] = [
    *(({"symbols": value}, str(value)) for value in (0, 100_001)),
    *(({"min_len": value}, str(value)) for value in (0, 16)),
    *(({"max_len": value}, str(value)) for value in (2, 10_001)),
    ({"name": "Reverse"}, "'Reverse'"),
]
TRAIN_RULES: list[tuple[dict[str, Any], str]] = [
    *(({"steps": value}, str(value)) for value in (0, 10_000_001, 1.5)),
    *(({name: value}, str(value)) for name in ("batch_size", "held_out") for value in (0, 65_537)),
    *(({"log_every": value}, str(value)) for value in (0, 1_000_001)),
    ({"snapshot_every": -1}, "-1"),
    *(({name: -0.5}, "-0.5") for name in ("peak_lr", "final_lr", "weight_decay", "clip_norm")),
    *(({name: 1.5}, "1.5") for name in ("warmup", "adam_eps", "target")),
    *(({name: value}, str(value)) for name in ("beta1", "beta2") for value in (-0.1, 1.0)),
    *(({"lr_changes": ((2, value),)}, str(value)) for value in (-0.5, NAN, INF, "high", 10**400)),
    *(({"lr_changes": (value,)}, f"got {value}") for value in (1, (1,), (1, 2, 3))),
    ({"lr_changes": ((2.0, 0.1),)}, "got 2.0"),
    *(({"seed": value}, str(value)) for value in (-1, 2**63)),
    ({"decay": "exponential"}, "'exponential'"),
]
RULES = {ModelConfig: MODEL_RULES, TaskConfig: TASK_RULES, TrainConfig: TRAIN_RULES}


@pytest.mark.parametrize("kind", RULES)
def test_errors_name_the_field_and_the_value_received(kind: type[Config]) -> None:
    for changes, words in RULES[kind]:
        message = "it was accepted"
        try:
            kind(**(BASE[kind] | changes))
        except ConfigError as error:
            message = str(error).replace(",", "")
        assert next(iter(changes)) in message, (changes, message)
        assert words.replace(",", "") in message, (changes, message)


@pytest.mark.parametrize(
    "config",
    [
        model_config(architecture="decoder", norm="pre", see_self=False, dropout_sites=("ffn",), end_token=3),
        model_config(architecture="encoder-decoder", tied_source=True, positions="rotary", d_ff=0, norm_eps=1),
        TaskConfig(**TASK),
        TrainConfig(steps=7, seed=2**63 - 1, decay="cosine", warmup=0, peak_lr=1e-4),
    ],
)
def test_json_round_trip(config: Config) -> None:
    text = json.dumps(config.to_json())
    again = type(config).from_json(json.loads(text))
    assert again == config
    assert hash(again) == hash(config)
    assert json.dumps(again.to_json()) == text
    assert ModelConfig.from_json(SIZES) == model_config()  # fields left out take their defaults


@pytest.mark.parametrize("kind", BASE)
def test_json_with_unknown_missing_or_mistyped_fields(kind: type[Config]) -> None:
    good = kind(**BASE[kind]).to_json()
    required = next(iter(BASE[kind]))
    with pytest.raises(ConfigError, match=r"has no field 'd_modle'; its fields are .*" + required):
        kind.from_json(good | {required: [], "d_modle": 16})
    with pytest.raises(ConfigError, match=f"needs the field '{required}', which is missing"):
        kind.from_json({name: value for name, value in good.items() if name != required})
    for name in good:
        with pytest.raises(ConfigError, match=name):
            kind.from_json(good | {name: {"nested": 1}})
    for wrong in (None, [], "{}", 3):
        with pytest.raises(ConfigError, match=f"must be a JSON object, got {type(wrong).__name__}"):
            kind.from_json(wrong)


def test_replace_validates_again_and_configs_are_frozen() -> None:
    config = model_config()
    assert config.replace(n_layers=5) == model_config(n_layers=5)
    assert config.n_layers == 2
    with pytest.raises(ConfigError, match="got 0"):
        config.replace(n_layers=0)
    with pytest.raises(ValidationError, match="frozen"):
        config.n_layers = 3  # pyright: ignore[reportAttributeAccessIssue]


def test_text_that_is_not_utf8_is_refused() -> None:
    for name, rule in (("positions", "must be one of 'sinusoidal'"), ("architecture", "must be one of 'encoder'")):
        with pytest.raises(ConfigError, match=rule):
            model_config(**{"architecture": "encoder", name: "\ud800"})
    with pytest.raises(ConfigError, match="has no field"):
        model_config(**{"\ud800": 1})
