"""Step-by-step decoding: an iterator that yields one `Step` per predicted token.

    p = softmax(logits)                          the prediction
    q = filter(softmax(logits / temperature))    the sampling distribution: over all tokens, the top k, or the top p
                                                 (Holtzman et al. 2020, arXiv:1904.09751)

An encoder predicts all positions at once, so its steps are its positions. Decoders predict one token at a time with a
key/value cache, so each step computes only the new position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from xformer.edits import Edit
from xformer.errors import InputError
from xformer.layers.attention import Cache
from xformer.model import Transformer
from xformer.tasks.batch import IGNORED, Batch
from xformer.trace import Trace, record


@dataclass(frozen=True, eq=False)
class Step:
    """One step of decoding: one predicted token.

    Attributes:
        position: The index of the output, from 0.
        token: The token appended to the input: the predicted one, or the given one with `forced`.
        predicted: The token chosen by the sampling rule.
        probabilities: The softmax of the logits, [vocab].
        drawn_from: The sampling distribution after temperature, top-k and top-p, [vocab].

    Example:
        >>> import xformer
        >>> step = next(xformer.decode(xformer.load("checkpoints/reverse").model, [3, 7, 12, 9]))
        >>> step.token, step.trace()["encoder.0.attn.pattern"].shape
        (9, torch.Size([1, 4, 4, 4]))
    """

    position: int
    token: int
    predicted: int
    probabilities: Float[Tensor, " vocab"]
    drawn_from: Float[Tensor, " vocab"]
    run: Callable[[], Trace] = field(repr=False)

    def trace(self) -> Trace:
        """Record a run over the input from which this token was predicted."""
        return self.run()


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """The rule by which a token is chosen from the logits.

    Attributes:
        temperature: Divisor of the logits; 0 takes the likeliest token (greedy).
        top_k: Draw from the k likeliest tokens; 0 draws from all.
        top_p: Draw from the smallest set of tokens whose total probability reaches this value (Holtzman et al. 2020,
            https://arxiv.org/abs/1904.09751).

    Raises:
        InputError: A number is out of bounds.

    Example:
        >>> import torch, xformer
        >>> sampling = xformer.Sampling(temperature=0.8, top_k=5)
        >>> model = xformer.load("checkpoints/reverse-decoder").model
        >>> steps = xformer.decode(model, [5, 3, 9, 1, 20], sampling=sampling, generator=torch.Generator().manual_seed(0))
        >>> tokens = [step.token for step in steps]
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if self.temperature != 0 and not 0.001 <= self.temperature <= 100:  # smaller temperatures overflow the softmax
            raise InputError(
                f"temperature must be 0 (greedy) or from 0.001 to 100, got {self.temperature}; for example 1.0."
            )
        if not isinstance(self.top_k, int) or self.top_k < 0:
            raise InputError(f"top_k must be 0 (all tokens) or more, got {self.top_k}; for example 5.")
        if not 0 < self.top_p <= 1:
            raise InputError(f"top_p must be above 0 and at most 1, got {self.top_p}; for example 0.9.")

    def distribution(self, logits: Float[Tensor, " vocab"]) -> Float[Tensor, " vocab"]:
        """Return the sampling distribution; a temperature of 0 puts all probability on the likeliest token."""
        if self.temperature == 0:
            return torch.nn.functional.one_hot(logits.argmax(), len(logits)).to(logits.dtype)
        q = (logits / self.temperature).softmax(dim=-1)
        if self.top_k:
            kept = q.topk(min(self.top_k, len(q))).indices
            q = torch.zeros_like(q).scatter(0, kept, q[kept])
        if self.top_p < 1:
            likeliest = q.sort(descending=True)
            before = likeliest.values.cumsum(0) - likeliest.values  # the probability of all likelier tokens
            q = torch.zeros_like(q).scatter(0, likeliest.indices, likeliest.values * (before < self.top_p))
        return q / q.sum()

    def choose(self, q: Float[Tensor, " vocab"], generator: torch.Generator | None) -> int:
        if self.temperature == 0:
            return int(q.argmax())
        return int(torch.multinomial(q, 1, generator=generator))


GREEDY = Sampling()


def decode(
    model: Transformer,
    prompt: Int[Tensor, "1 pos"] | Sequence[int],
    *,
    sampling: Sampling = GREEDY,
    forced: Sequence[int] | None = None,
    max_steps: int | None = None,
    edits: Sequence[Edit] = (),
    generator: torch.Generator | None = None,
) -> Iterator[Step]:
    """Predict token by token, until the end token, `max_steps`, or the model's context length.

    Args:
        model: An xformer model. The steps of an encoder are its positions; decoders compute only the new position in each step.
        prompt: Token ids, [pos] or [1, pos]: an encoder's input, an encoder-decoder's source, or a decoder's prompt.
        sampling: The sampling rule; greedy by default.
        forced: Tokens to append in place of the predicted ones (teacher forcing). Decoding ends after the last of them.
        max_steps: The maximum number of steps.
        edits: Edits of activations. With edits every step runs the whole input, because an edit may change any position.
        generator: The source of randomness, for a temperature above 0.

    Returns:
        An iterator of `Step`.

    Raises:
        InputError: The prompt does not fit the model.

    Example:
        >>> import xformer
        >>> model = xformer.load("checkpoints/reverse").model
        >>> [step.token for step in xformer.decode(model, [3, 7, 12, 9])]
        [9, 12, 7, 3]
    """
    if not isinstance(model, Transformer):
        raise InputError(
            f"xformer.decode takes an xformer.Transformer, such as xformer.load('checkpoints/reverse').model, got a "
            f"{type(model).__name__}; any other model generates with reading.adapter.steps(reading.example)."
        )
    tokens = prompt if isinstance(prompt, Tensor) else torch.tensor([list(prompt)], dtype=torch.long)
    if tokens.dim() != 2 or tokens.shape[0] != 1:
        raise InputError(
            f"Decoding takes one prompt at a time, shaped [1, pos], got {list(tokens.shape)}; call it once for each."
        )
    if max_steps is not None and max_steps < 0:
        raise InputError(f"max_steps must be 0 or more, got {max_steps}; for example 10.")
    n_tokens = model.config.vocab_size
    if wrong := [token for token in forced or () if not 0 <= token < n_tokens]:
        raise InputError(f"This model's tokens are 0 to {n_tokens - 1}, got {wrong[0]} in forced.")
    tokens = tokens.to(model.device)
    choose = Choice(sampling, generator, forced, max_steps)
    work = _positions if model.config.architecture == "encoder" else _tokens
    return work(model, tokens, choose, tuple(edits))


@dataclass(frozen=True, eq=False)
class Choice:
    """The sampling rule and the number of steps; `forced` tokens replace the predicted ones."""

    sampling: Sampling
    generator: torch.Generator | None = None
    forced: Sequence[int] | None = None
    max_steps: int | None = None

    def n_steps(self, limit: int) -> int:
        """Return the number of steps: the requested number, at most `limit`."""
        requested = (self.max_steps, None if self.forced is None else len(self.forced))
        return min([limit, *(n for n in requested if n is not None)])

    def step(self, logits: Float[Tensor, " vocab"], position: int, run: Callable[[], Trace]) -> Step:
        if bool(logits.isnan().any() | logits.isposinf().any()):
            raise InputError("The logits contain NaN or infinity, so no token is the likeliest; remove the last edit.")
        q = self.sampling.distribution(logits)
        predicted = self.sampling.choose(q, self.generator)
        token = predicted if self.forced is None else int(self.forced[position])
        return Step(position, token, predicted, logits.softmax(dim=-1), q, run)


def _positions(model: Transformer, tokens: Tensor, choose: Choice, edits: tuple[Edit, ...]) -> Iterator[Step]:
    def run() -> Trace:
        return record(model, tokens, edits=edits)

    logits = record(model, tokens, edits=edits, keep=("logits",)).logits
    # an image's class is predicted at the class token, which comes first
    for position in range(choose.n_steps(1 if model.config.image else tokens.shape[1])):
        yield choose.step(logits[0, position], position, run)


def _tokens(model: Transformer, prompt: Tensor, choose: Choice, edits: tuple[Edit, ...]) -> Iterator[Step]:
    read = first_read(model, prompt)
    limit = model.config.max_len - read.shape[1] + 1
    if limit < 1:
        raise InputError(f"This model reads at most {model.config.max_len} tokens, got {read.shape[1]}.")
    next_logits = reader(model, prompt, edits)
    for position in range(choose.n_steps(limit)):

        def run(so_far: Tensor = read) -> Trace:
            return record(model, *_inputs(model, prompt, so_far), edits=edits)

        step = choose.step(next_logits(read)[0], position, run)
        yield step
        if choose.forced is None and step.token == model.config.end_token:
            return
        read = torch.cat((read, read.new_tensor([[step.token]])), dim=1)


def first_read(model: Transformer, prompt: Int[Tensor, "batch pos"]) -> Int[Tensor, "batch read"]:
    """Return the first tokens that a decoder reads: the prompt, or a start token if an encoder reads the prompt."""
    if model.config.architecture == "decoder":
        return prompt
    if model.config.start_token is None:
        raise InputError("This encoder-decoder has no start token, so it cannot begin an answer.")
    return prompt.new_full((len(prompt), 1), model.config.start_token)


def reader(
    model: Transformer, prompt: Int[Tensor, "batch pos"], edits: Sequence[Edit] = ()
) -> Callable[[Tensor], Float[Tensor, "batch vocab"]]:
    """Return a function from the tokens so far to the next logits, with a key/value cache.

    With `edits` every call runs the whole input, because an edit may change any earlier position.
    """
    if edits:
        return lambda read: record(model, *_inputs(model, prompt, read), edits=edits, keep=("logits",)).logits[:, -1]
    cache = Cache.empty(model.config.n_layers)
    with torch.no_grad():
        memory = model.encode(prompt) if model.config.architecture == "encoder-decoder" else None

    @torch.no_grad()
    def cached(read: Tensor) -> Tensor:
        return model.extend(read[:, cache.length :], cache, memory)[:, -1]

    return cached


def _inputs(model: Transformer, prompt: Tensor, read: Tensor) -> tuple[Tensor, ...]:
    return (prompt, read) if model.config.architecture == "encoder-decoder" else (read,)


MAX_TOKENS = 10_000
"""Largest number of tokens that one call of `continue_text` generates."""


def continue_text(
    model: Transformer,
    prompt: Int[Tensor, "1 pos"] | Sequence[int],
    n: int,
    *,
    sampling: Sampling = GREEDY,
    edits: Sequence[Edit] = (),
    generator: torch.Generator | None = None,
) -> Iterator[Step]:
    """Generate n tokens after a prompt of any length, or fewer if the model predicts its end token.

    The model reads a window of at most `max_len` tokens. A step's position counts the generated tokens, from 0; its `trace()`
    records the window.

    Raises `InputError` for an encoder, an empty prompt, or an n that is out of bounds.
    """
    config = model.config
    if config.architecture == "encoder":
        raise InputError("An encoder predicts all positions at once, so it cannot continue a text; use a decoder.")
    if not 0 <= n <= MAX_TOKENS:
        raise InputError(f"n must be from 0 to {MAX_TOKENS:,} tokens, got {n}; for example 100.")
    tokens = [int(token) for token in (prompt[0] if isinstance(prompt, Tensor) else prompt)]
    if not tokens:
        raise InputError("The prompt is empty; give at least one token.")

    def windows(n_generated: int = 0) -> Iterator[Step]:
        while n_generated < n:
            window = tokens[-config.max_len :]
            for step in decode(
                model, window, sampling=sampling, max_steps=n - n_generated, edits=edits, generator=generator
            ):
                tokens.append(step.token)
                yield replace(step, position=n_generated)
                n_generated += 1
                if step.token == config.end_token:
                    return

    return windows()


SAME_LOGITS = 1e-4
"""Logits that differ by at most this fraction of the largest count as equal: other shapes sum in another order."""


@dataclass(frozen=True, eq=False)
class PromptBatch:
    """Prompts of equal length (sources of an encoder-decoder) and their right answers, end token included."""

    prompt: Int[Tensor, "row pos"]
    answer: Int[Tensor, "row out"]
    rows: Int[Tensor, " row"]
    """The indices of these rows in the batch."""


@torch.no_grad()
def greedy(
    model: Transformer, prompt: Int[Tensor, "batch pos"], n: int, *, edits: Sequence[Edit] = ()
) -> Int[Tensor, "batch n"]:
    """Decode n tokens greedily after each prompt. Tokens after an end token are meaningless.

    With `edits` every step runs the whole input, because an edit may change any earlier position.

    Raises `InputError` for an encoder.
    """
    if model.config.architecture == "encoder":
        raise InputError("An encoder predicts all positions at once, so there is nothing to decode; use a decoder.")
    was_training = model.training
    model.eval()
    read, next_logits = first_read(model, prompt), reader(model, prompt, edits)
    start = read.shape[1]
    for _ in range(n):
        read = torch.cat((read, next_logits(read).argmax(dim=-1, keepdim=True)), dim=1)
    model.train(was_training)
    return read[:, start:]


def questions(batch: Batch) -> Iterator[PromptBatch]:
    """Split a batch into prompts and answers, grouped by length. Raises `InputError` for rows that pack several examples."""
    segments = batch.layout.segments
    if segments is not None and int(segments.max()) > 1:
        raise InputError("Packed rows contain several examples and cannot be decoded; sample with packed=False.")
    labelled = batch.labels != IGNORED  # [batch, out]
    if batch.target is None:
        lengths = labelled.long().argmax(dim=1) + 1  # the first label is at the last token of the prompt
    elif segments is None:
        lengths = labelled.new_full((len(labelled),), batch.tokens.shape[1], dtype=torch.long)
    else:
        lengths = segments.sum(dim=1)
    sizes = torch.stack((lengths, labelled.sum(dim=1)), dim=1)  # [batch, 2]
    for length, n in sizes.unique(dim=0).tolist():
        rows = (sizes == sizes.new_tensor((length, n))).all(dim=1).nonzero()[:, 0]
        answer = batch.labels[rows][labelled[rows]].view(len(rows), n)
        yield PromptBatch(batch.tokens[rows, :length], answer, rows)


def is_right(model: Transformer, question: PromptBatch) -> Bool[Tensor, " row"]:
    """Return, for each prompt, whether greedy decoding gives exactly its answer, end token included."""
    return (greedy(model, question.prompt, question.answer.shape[1]) == question.answer).all(dim=1)


@torch.no_grad()
def reads_ahead(model: Transformer, batch: Batch, *, places: int | None = None) -> bool:
    """Return whether any labelled output of a decoder changes when the tokens after it are cut off.

    At most `places` evenly spaced outputs of each answer are compared. If none changes, teacher forcing and greedy decoding
    find the same answers right: they agree up to the first mistake. An encoder's input does not contain the answer, so it
    cannot read ahead.
    """
    if model.config.architecture == "encoder":
        return False
    labelled = batch.labels != IGNORED
    whole = batch.logits(model)  # [batch, out, vocab]
    scale = float(whole[labelled].abs().max())
    for rows, place, read in prefixes(batch, places):
        if float((model(*read)[:, -1] - whole[rows, place]).abs().max()) > SAME_LOGITS * scale:
            return True
    return False


def prefixes(
    batch: Batch, places: int | None = None
) -> Iterator[tuple[Int[Tensor, " row"], int, tuple[Int[Tensor, "row pos"], ...]]]:
    """Yield, for each labelled output of a decoder, its rows, its position, and the input cut off after that position.

    With `places`, only as many evenly spaced outputs of each answer.
    """
    for question in questions(batch):
        rows, first = question.rows, question.prompt.shape[1] - 1 if batch.target is None else 0
        each = range(first, first + question.answer.shape[1])
        for place in each[:: 1 if places is None else max(1, -(-len(each) // places))]:
            if batch.target is None:
                yield rows, place, (batch.tokens[rows, : place + 1],)
            else:
                yield rows, place, (question.prompt, batch.target[rows, : place + 1])
