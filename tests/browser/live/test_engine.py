"""The engine of live pages in Chromium equals PyTorch: activations, decoding, and the parsing of inputs."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from playwright.sync_api import Browser

import xformer
from tests.browser.live.engine import Engine, arrays
from xformer import edits
from xformer.adapters.own_models import BareModel, TaskModel
from xformer.checkpoints import Checkpoint
from xformer.components import FEED_FORWARDS, MASKS, NORMS
from xformer.config import ModelConfig, TaskConfig
from xformer.edits import Edit
from xformer.errors import ConfigError, InputError, XformerError
from xformer.layers.attention import Attention
from xformer.live.export import KNOWN, KNOWN_TASKS, TOLERANCE, live_page, pack_model
from xformer.model import Transformer
from xformer.positions import POSITION_KINDS
from xformer.reading import prepare_inputs
from xformer.task_limits import TASK_LIMITS
from xformer.tasks import Task
from xformer.tasks.batch import IGNORED
from xformer.trace import Trace, record
from xformer.viz.packing import header_of

pytestmark = pytest.mark.browser
SHIPPED = sorted(path.parent.name for path in Path("checkpoints").glob("*/model.safetensors"))
Request = dict[str, Any]


@pytest.fixture(scope="module")
def engine(browser: Browser) -> Iterator[Engine]:
    tab = Engine(browser)
    yield tab
    tab.page.close()


@cache
def shipped(name: str) -> TaskModel:
    """Return a shipped model with the weights that its page contains."""
    checkpoint = xformer.load(f"checkpoints/{name}")
    assert checkpoint.task is not None
    model = checkpoint.model
    if header_of(packed(name), b"XLIV")["precision"] == "float16":
        model = copy.deepcopy(model)
        for parameter in model.parameters():
            parameter.copy_(parameter.half().float())
    return TaskModel(model, checkpoint.task, name)


@cache
def packed(name: str) -> bytes:
    return pack_model(xformer.load(f"checkpoints/{name}"), name=name)


@cache
def in_double(adapter: BareModel) -> BareModel:
    """The same model in double precision."""
    model = copy.deepcopy(adapter.model).double()
    return TaskModel(model, adapter.task) if isinstance(adapter, TaskModel) else BareModel(model)


def edits_of(adapter: BareModel, request: Request) -> list[Edit]:
    """Return the edits of a request."""
    mask, attention = request.get("mask", "trained"), adapter.shape.attention
    made: list[Edit] = []
    if isinstance(mask, list):
        own = [site.path for site in attention if site.stack == attention[-1].stack and not site.is_cross]
        made += [edits.set_mask(path, torch.tensor(mask)) for path in own]
    elif mask != "trained":
        made.append(edits.set_causal(mask == "causal"))
    made += [edits.ablate_head(path, head) for path, head in request.get("ablate", ())]
    made += [
        edits.mask_edges(path, [(query, key)], None if head is None else [head])
        for path, head, query, key in request.get("cut", ())
    ]
    return made if request.get("positions", True) else [*made, edits.zero_positions()]


def run_of(adapter: BareModel, request: Request) -> tuple[Trace, list[int]]:
    """Return the trace of PyTorch, and the label of each output."""
    if adapter.shape.image and not isinstance(adapter, TaskModel):
        return record(adapter.model, torch.tensor([request["input"]]), edits=edits_of(adapter, request)), []
    changes = ",".join(f"token:{at}.{token}" for at, token in request.get("replace", ()))
    _, example, _ = prepare_inputs(adapter, request["input"], changes)
    tokens = torch.tensor([request["tokens"]]) if "tokens" in request else example.input_ids
    target = torch.tensor([request["target"]]) if "target" in request else example.target
    return record(adapter.model, tokens, target, edits=edits_of(adapter, request)), example.labels[0].tolist()


def assert_same(adapter: BareModel, request: Request, made: Mapping[str, Any]) -> None:
    """Assert that each activation from the browser equals PyTorch's. `keep` in a request names the activations to send."""
    assert "error" not in made, made["error"]
    expected, labels = run_of(adapter, request)
    found = arrays(made["trace"])
    sent = request.get("keep") or {name.rpartition(".")[2] for name in expected} - {"causal"}
    assert set(found) == {name for name in expected if name.rpartition(".")[2] in sent}
    for name, value in found.items():
        wanted = expected[name].float().numpy()
        assert value.shape == wanted.shape, name
        is_number = np.isfinite(wanted)
        assert np.array_equal(is_number, np.isfinite(value)), name
        wanted, value = wanted[is_number], value[is_number]
        apart = float(np.abs(value - wanted).max(initial=0.0))
        is_weight = name == "logits" or name.endswith(".pattern")
        allowed = TOLERANCE * (1.0 if is_weight else max(1.0, float(np.abs(wanted).max(initial=0.0))))
        if apart > allowed:  # PyTorch's own rounding comes near the tolerance far from the training data
            exact = run_of(in_double(adapter), request)[0][name].numpy()[is_number]
            allowed += float(np.abs(wanted - exact).max())
        assert apart <= allowed, f"{name} of {request} is {apart:.2e} away, and {allowed:.2e} is allowed"
    outputs = [at for at, label in enumerate(labels) if label != IGNORED]
    if outputs and "tokens" not in request and "target" not in request:
        assert made["outputs"] == outputs
        likeliest = expected.logits[0, outputs].topk(2).values
        if bool((likeliest[:, 0] - likeliest[:, 1] > 2 * TOLERANCE).all()):
            assert made["predicted"] == expected.logits[0, outputs].argmax(dim=-1).tolist()


def random_cell(sites: Sequence[Any], draw: random.Random) -> list[Any]:
    """A cell of one head: path, head, query, key."""
    path, heads, queries, keys = draw.choice(sites)
    return [path, draw.randrange(heads), draw.randrange(queries), draw.randrange(keys)]


def requests_for(adapter: BareModel, inputs: Sequence[str], seed: int) -> list[Request]:
    """Return a request for each input as it is, and for each kind of change."""
    draw = random.Random(seed)
    requests: list[Request] = []
    for text in inputs:
        plain: Request = {"input": text}
        trace, _ = run_of(adapter, plain)
        sites: list[Any] = [(path, *map(int, pattern.shape[1:4])) for path, pattern in trace.patterns().items()]

        cell = partial(random_cell, sites, draw)
        everywhere = cell()
        everywhere[1] = None
        own = [site for site in sites if not site[0].endswith("cross_attn")][-1]
        drawn = [[draw.random() < 0.6 for _ in range(own[3])] for _ in range(own[2])]
        drawn[draw.randrange(own[2])] = [False] * own[3]  # a query that attends to no key
        ablate = [[path, draw.randrange(heads)] for path, heads, _, _ in sites[:2]]
        changes: list[Request] = [
            {"mask": "causal"}, {"mask": "full"}, {"mask": drawn}, {"ablate": ablate}, {"cut": [cell(), cell(), everywhere]},
            {"mask": "full", "ablate": ablate[:1], "cut": [cell()]},
        ]  # fmt: skip
        if adapter.shape.can_drop_positions:
            nowhere: Request = {"positions": False}
            changes += [nowhere, nowhere | {"mask": drawn, "ablate": ablate[:1], "cut": [everywhere]}]
        if isinstance(adapter, TaskModel):
            n = 64 if adapter.shape.image else len(adapter.to_example(text).source)
            symbols = 16 if adapter.shape.image else adapter.task.config.symbols
            replaced = [[at, draw.randrange(1, symbols)] for at in draw.sample(range(n), min(2, n))]
            is_sum = adapter.task.config.name == "addition"
            changes.append({"replace": [[0, 1 + draw.randrange(10)]] if is_sum else replaced})
        read = [draw.randrange(adapter.shape.n_inputs) for _ in range(trace.tokens.shape[1])]
        changes.append({"tokens": read})
        if trace.target is not None:
            target = [draw.randrange(adapter.shape.vocab_size) for _ in range(trace.target.shape[1])]
            changes.append({"target": target})
        requests += [plain, *({**plain, **change} for change in changes)]
    return requests


@pytest.mark.parametrize("name", ["reverse-seq2seq", "reverse-modern", "induction", "digits", "characters"])
def test_a_shipped_model_computes_what_pytorch_computes(engine: Engine, name: str) -> None:
    adapter = shipped(name)
    texts = [adapter.input.text(adapter.input.shortest()), adapter.input.random(0)]
    requests = requests_for(adapter, list(dict.fromkeys(texts)), seed=1)
    requests = [{**request, "keep": ["logits", "pattern", "scores", "resid_post"]} for request in requests]
    answers = engine.calls([packed(name)], [(0, "trace", one) for one in requests])
    for request, made in zip(requests, answers, strict=True):
        assert_same(adapter, request, made)


# ── generated models: every pair of choices occurs together in one of them

CHOICES: dict[str, tuple[Any, ...]] = {
    "architecture": ("encoder", "causal encoder", "decoder", "encoder-decoder", "image"),
    "norm": ("pre", "post", "none"),
    "norm_kind": tuple(NORMS),
    "final_norm": (True, False),
    "positions": tuple(POSITION_KINDS),
    "activation": (*FEED_FORWARDS, None),
    "n_kv_heads": (6, 2, 1),
    "mask": tuple(MASKS),
    "see_self": (True, False),
    "attention_bias": (True, False),
    "ffn_bias": (True, False),
    "output_bias": (True, False),
    "tied_output": (True, False),
    "scale_embeddings": (True, False),
    "tied_source": (True, False),
}


def config_of(choice: Mapping[str, Any]) -> ModelConfig | None:
    """Return the configuration of a choice; None if it breaks a rule."""
    of = dict(choice)
    kind, activation = of.pop("architecture"), of.pop("activation")
    is_image = kind == "image"
    try:
        return ModelConfig(
            architecture="encoder" if is_image else kind.removeprefix("causal "),
            causal=True if kind == "causal encoder" else None,
            vocab_size=13, d_model=11, n_layers=2, n_heads=6, d_head=4 if of["positions"] == "rotary" else 5, d_value=3,
            d_ff=17 if activation else 0, activation=activation or "relu", max_len=10 if is_image else 19,
            window=3 if of["mask"] == "sliding_window" else 0, image=6 if is_image else 0, patch=2 if is_image else 0,
            start_token=11, end_token=12, norm_eps=1e-3, position_base=50.0, **of,
        )  # fmt: skip
    except ConfigError:
        return None


@cache
def covering_array() -> list[ModelConfig]:
    """Return configurations in which each compatible pair of choices occurs."""
    draw = random.Random(0)
    candidates: list[tuple[ModelConfig, set[Any]]] = []
    while len(candidates) < 600:
        choice = {name: draw.choice(values) for name, values in CHOICES.items()}
        if (config := config_of(choice)) is not None:
            candidates.append((config, set(combinations(choice.items(), 2))))
    waiting = set().union(*(pairs for _, pairs in candidates))
    chosen: list[ModelConfig] = []
    while waiting:
        config, pairs = max(candidates, key=lambda one: len(one[1] & waiting))
        chosen.append(config)
        waiting -= pairs
    return chosen


def random_model(config: ModelConfig, seed: int) -> Transformer:
    """Return a model in which all weights, norms and biases differ from their initial values."""
    generator = torch.Generator().manual_seed(seed)
    model = Transformer(config, generator).eval().requires_grad_(False)
    for name, parameter in model.named_parameters():
        around = 1.0 if name.endswith("norm.weight") else 0.0
        width = parameter.shape[1] if parameter.dim() == 2 else 6
        parameter.copy_(around + 0.8 / width**0.5 * torch.randn(parameter.shape, generator=generator))
    return model


def test_generated_models_of_every_kind_compute_what_pytorch_computes(engine: Engine) -> None:
    configs, draw = covering_array(), random.Random(1)
    assert {config.positions for config in configs} == set(POSITION_KINDS)
    subjects = [BareModel(random_model(config, seed)) for seed, config in enumerate(configs)]
    models = [pack_model(Checkpoint(adapter.model)) for adapter in subjects]
    requests: list[tuple[int, Request]] = []
    for index, adapter in enumerate(subjects):
        config = adapter.model.config

        def numbers(n: int, most: int) -> str:
            return " ".join(str(draw.randrange(most)) for _ in range(n))

        if config.image:
            pixels = [draw.randrange(17) for _ in range(36)]
            changes: list[Request] = [{}, {"mask": "causal"}, {"ablate": [["encoder.1.attn", 5]]}]
            requests += [(index, {"input": pixels, **more}) for more in changes]
            continue
        for n in (1, 7, 19)[:: 1 if index % 2 else 2]:
            text = numbers(n, 13)
            if config.architecture == "encoder-decoder":
                text += f" > {numbers(max(1, n - 2), 13)}"
            requests += [(index, one) for one in draw.sample(requests_for(adapter, [text], seed=n), 2)]
    calls = [(index, "trace", request) for index, request in requests]
    for (index, request), made in zip(requests, engine.calls(models, calls), strict=True):
        assert_same(subjects[index], request, made)


def test_the_logit_lens_reads_the_stream_as_pytorch_does(engine: Engine) -> None:
    models = [random_model(config, seed) for seed, config in enumerate(covering_array()[:8]) if not config.image]
    for model in models:
        stack = "encoder" if model.config.architecture == "encoder" else "decoder"
        name = f"{stack}.0.resid_post"
        text = "3 7 > 1 2" if model.config.architecture == "encoder-decoder" else "3 7 12"
        trace, _ = run_of(BareModel(model), {"input": text})
        [made] = engine.calls([pack_model(Checkpoint(model))], [(0, "unembed", {"input": text, "of": name})])
        np.testing.assert_allclose(arrays(made)["logits"], model.unembed(trace[name])[0].numpy(), atol=TOLERANCE)


# ── decoding

DECODED = ["reverse", "reverse-decoder", "reverse-seq2seq", "addition", "parity", "digits"]
OF_EACH_TASK = [*DECODED[2:], "sort", "brackets", "modular", "characters", "induction"]


@pytest.mark.parametrize("name", DECODED)
def test_decoding_goes_step_by_step_as_in_python(engine: Engine, name: str) -> None:
    adapter = shipped(name)
    path = adapter.shape.attention[0].path
    most = 12
    requests: list[Request] = [{"input": adapter.input.random(seed), "most": most} for seed in range(2)]
    requests += [{**requests[0], "ablate": [[path, 0]]}, {**requests[0], "positions": False}]
    requests += [{**requests[0], "cut": [[path, None, 1, 0]]}, {**requests[0], "mask": "full"}]
    answers = engine.calls([packed(name)], [(0, "decode", one) for one in requests])
    for request, made in zip(requests, answers, strict=True):
        example = adapter.to_example(request["input"])
        steps = list(adapter.steps(example, request["most"], edits=edits_of(adapter, request)))
        assert [step["token"] for step in made] == [step.token for step in steps]
        for one, step in zip(made, steps, strict=True):
            assert one["position"] == step.position
            np.testing.assert_allclose(one["probabilities"], step.probabilities.numpy(), atol=TOLERANCE)


# ── texts and right answers

TEXTS = (
    "", " ", "3 7 12 9", "3,7;12 [9] (4)", "1", "0", "20 3", "19 1 1", "-3 4", "3.5", "1e3", "９ 3", "abc",
    "3 7 x\u200by", "1" * 30, "\t3\n7 ", "1 " * 80, "0\u00a00\u20281", "\ufeff3", "1011", "0 1,1", "012", "(()", "())(",
    "(" * 16, "[]", "( ) ,(", "347+586", "9+9=", "12 + 3", "1+2+3", "+3", "4-8", "1" * 19 + "+1", "7+8 9", "29 39",
    "58+58 =", "3", "3 4 5", "59 1", "The list", "a", "ab", "a\nb\tc", "a·b↵c", "naïve ☃", "x" * 65, "x" * 64, "test 0",
    "test 17", "test 359", "test 360", "test 17 ", "drawn", "drawn 0123g", "drawn h", "7-00f", "drawn " + "g" * 64,
    "drawn " + "g" * 65, "TEST 1", "😀😀", "'quoted' “words”", "\x85 4", "\x1c5",
)  # fmt: skip


def meaning(adapter: TaskModel, text: str) -> dict[str, Any]:
    """Return what Python parses from a text, in the form of `live.parse`."""
    try:
        example = adapter.to_example(text)
    except XformerError as error:
        return {"error": str(error)}
    return {
        "source": list(example.source), "answer": list(example.answer), "tokens": example.tokens[0].tolist(),
        "stream": example.input_ids[0].tolist(), "target": None if example.target is None else example.target[0].tolist(),
        "labels": example.labels[0].tolist(), "hasAnswer": adapter.has_right_answer(example),
    }  # fmt: skip


def assert_texts_mean_the_same(engine: Engine, adapter: TaskModel, texts: Sequence[str], model: bytes) -> None:
    made = engine.calls([model], [(0, "parse", text) for text in texts])
    for text, found in zip(texts, made, strict=True):
        found.pop("typed", None)
        assert found == meaning(adapter, text), repr(text)
    read = [one["source"] for one in made if "error" not in one]
    texts = engine.calls([model], [(0, "textOf", source) for source in read])
    assert texts == [adapter.input.text(source) for source in read]


@pytest.mark.parametrize("name", OF_EACH_TASK)
def test_a_text_means_what_it_means_in_python(engine: Engine, name: str) -> None:
    adapter, draw = shipped(name), random.Random(name)
    letters = "0123456789 ,;+=()[]abcgTedrawn-·↵"
    texts = [adapter.input.random(seed) for seed in range(20)]
    texts += ["".join(draw.choice(letters) for _ in range(draw.randrange(1, 12))) for _ in range(60)]
    texts += [" ".join(str(draw.randrange(22)) for _ in range(draw.randrange(1, 70))) for _ in range(30)]
    texts += ["".join(draw.choice("()01") for _ in range(draw.randrange(1, 30))) for _ in range(20)]
    long = [draw.randrange(10 ** draw.randrange(1, 18)) for _ in range(40)]
    texts += [f"{one}+{other}" for one, other in zip(long[::2], long[1::2], strict=True)]
    assert_texts_mean_the_same(engine, adapter, [*TEXTS, *texts], packed(name))


UNSHIPPED = [
    ("copy", "encoder", {}), ("copy-twice", "encoder-decoder", {}),
    ("addition", "encoder-decoder", {"symbols": 11, "min_len": 1, "max_len": 3}),
    ("brackets", "encoder", {"symbols": 2, "max_len": 6, "end_token": True}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "architecture", "sizes"), UNSHIPPED)
def test_an_unshipped_task_is_read_too(engine: Engine, name: str, architecture: Any, sizes: dict[str, Any]) -> None:
    task = Task(TaskConfig(name=name, architecture=architecture, **sizes))
    special = task.vocabulary.special
    config = ModelConfig(
        architecture=architecture, vocab_size=len(task.vocabulary), d_model=8, n_layers=1, n_heads=2, d_ff=8, max_len=64,
        causal=True if task.rule.needs_causal else None, end_token=special.end, start_token=special.start,
    )  # fmt: skip
    adapter = TaskModel(random_model(config, 0), task)
    draw = random.Random(name)
    texts = [" ".join(str(draw.randrange(8)) for _ in range(draw.randrange(1, 12))) for _ in range(20)]
    texts += ["".join(draw.choice("ab· é↵\n") for _ in range(draw.randrange(1, 12))) for _ in range(20)]
    model = pack_model(Checkpoint(adapter.model, task), input=adapter.input.default)
    assert_texts_mean_the_same(engine, adapter, [*TEXTS, *texts], model)


REFUSED: dict[str, Request] = {
    "This model has no attention layer encoder.9.attn; it has encoder.0.attn, ": {"ablate": [["encoder.9.attn", 0]]},
    "encoder.0.attn.mask has queries 0 to 5 and keys 0 to 5, so there is no ": {"cut": [["encoder.0.attn", 0, 6, 0]]},
    "encoder.0.attn.mask has 6 queries and 6 keys, which a mask of 1 × 1 does not fit.": {"mask": [[True]]},
    "This model's tokens are 0 to 19, got 25.": {"tokens": [3, 25]},
    "This model reads at most 64 tokens, got 65.": {"tokens": [1] * 65},
    "This page has the training steps of the trained model alone, got 7.": {"step": 7},
}


def test_a_request_that_cannot_be_met_is_refused_in_a_sentence(engine: Engine) -> None:
    made = engine.calls([packed("reverse")], [(0, "run", request) for request in REFUSED.values()])
    for sentence, answer in zip(REFUSED, made, strict=True):
        assert answer["error"].startswith(sentence)


def test_a_run_has_plain_arrays_and_a_token_may_be_replaced_by_its_text(engine: Engine) -> None:
    [made] = engine.calls([packed("reverse")], [(0, "run", {"input": "3 7 12 9", "replace": [[2, "5"]]})])
    assert (made["tokens"], made["right"], made["typed"][2]) == ([3, 7, 5, 9], [9, 5, 7, 3], "12")
    assert np.shape(made["logits"]) == (4, 20)
    assert {np.shape(pattern) for pattern in made["patterns"].values()} == {(4, 4, 4)}
    assert made["predicted"] == made["right"]


# ── snapshots of a training


def test_snapshots_without_room_are_differences_and_the_trained_weights_stay_exact(engine: Engine) -> None:
    adapter = shipped("sort")
    generator = torch.Generator().manual_seed(0)
    snapshots: list[tuple[int, Checkpoint]] = []
    for step in range(60):
        earlier = copy.deepcopy(adapter.model)
        for parameter in earlier.parameters():
            parameter.add_((59 - step) / 59 * 0.05 * torch.randn(parameter.shape, generator=generator))
        snapshots.append((step, Checkpoint(earlier, adapter.task)))
    model = pack_model(snapshots[-1][1], snapshots)
    header = header_of(model, b"XLIV")
    steps = [one["step"] for one in header["snapshots"]]
    assert len(model) * 4 / 3 < 3_000_000
    assert {one["kind"] for one in header["snapshots"]} == {"delta8", "float32"}
    assert (steps[0], steps[-1]) == (0, 59)
    text = {"input": "3 7 12 9 4 11"}
    made = engine.calls([model], [(0, "trace", {**text, "step": step}) for step in steps])
    apart = []
    for step, run in zip(steps, made, strict=True):
        trace, _ = run_of(TaskModel(snapshots[step][1].model, adapter.task), text)
        found = arrays(run["trace"])
        gaps = [np.abs(found[f"{path}.pattern"] - one.numpy()).max() for path, one in trace.patterns().items()]
        apart.append(float(max(gaps)))
    assert apart[-1] <= TOLERANCE
    assert max(apart) < 0.1


# ── what is exported, and what is not


def test_the_export_knows_what_the_script_computes_and_every_registered_component(engine: Engine) -> None:
    found = engine.page.evaluate(
        """async () => {
          const [{ POSITIONS }, { NORMS, ACTIVATIONS, MASKS }, { TASKS }] = await Promise.all(
            ["positions", "transformer", "tasks"].map((name) => import(`/live/${name}.js`)));
          return [POSITIONS, NORMS, ACTIVATIONS, MASKS, TASKS].map((table) => Object.keys(table).sort());
        }"""
    )
    assert found == [sorted(names) for names in (*KNOWN.values(), KNOWN_TASKS)]
    registered = (POSITION_KINDS, NORMS, FEED_FORWARDS, MASKS, TASK_LIMITS)
    assert found == [sorted(names) for names in registered], "a new component needs an equation in the live script"


def test_what_cannot_run_in_a_page_is_refused_beforehand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Other(Attention):
        """Attention with a step of its own."""

    model = copy.deepcopy(shipped("reverse-mirror").model)
    model.encoder.blocks[0].attn = Other(model.config)  # type: ignore[union-attr,index]
    external = tmp_path / "SmolLM2"
    external.mkdir()
    (external / "config.json").write_text("{}")
    for one, name in ((torch.nn.Linear(2, 2), "Linear"), (external, "SmolLM2"), (model, "Other")):
        with pytest.raises(InputError, match=f"Only xformer's own models can run in a live page, got {name}"):
            live_page(one)
    monkeypatch.setitem(KNOWN, "norm_kind", ("rms",))
    with pytest.raises(InputError, match="cannot compute norm_kind='layer' yet; it supports rms"):
        live_page("checkpoints/reverse-mirror")


def test_the_page_of_every_shipped_model_has_at_most_a_megabyte() -> None:
    exact = [name for name in SHIPPED if header_of(packed(name), b"XLIV")["precision"] == "float32"]
    # 810,240 weights, of which no page of a megabyte can have 16 bits each
    assert set(SHIPPED) - set(exact) == {"characters"}
    for name in sorted(exact, key=lambda name: len(packed(name)))[-2:]:
        assert len(live_page(f"checkpoints/{name}").encode()) <= 1_000_000
