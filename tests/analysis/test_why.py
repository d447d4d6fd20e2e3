"""A head's score split by who wrote what its query and its key are made of: the sum is exact, and the story can be false."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
import torch

import xformer
from tests.real_models import real_model
from tests.subjects.families import FAMILIES
from tests.subjects.test_language_models import tokenizer
from xformer import edits
from xformer.analysis.score_parts import score_parts, why
from xformer.analysis.score_summary import without_source
from xformer.analysis.stream_parts import stream_parts
from xformer.errors import InputError, UnavailableError
from xformer.reading import Reading
from xformer.trace import record

SHIPPED = {
    "reverse": "3 7 12 5", "reverse-small": "3 7 12 5", "reverse-seq2seq": "3 7 12 5", "reverse-decoder": "3 7 12 5",
    "reverse-mirror": "3 7 12 5", "sort": "3 7 12 5", "induction": "3 7 12 5 3 7 12", "addition": "27+58", "parity": "1 0 1 1",
    "brackets": "( ( ) )", "modular": "3 5", "characters": "The list of", "digits": "test 3",
}  # fmt: skip


def cells(reading: Reading) -> list[tuple[int, int, int, int]]:
    """For each attention layer a head, a query, and two keys that it may look at."""
    found = []
    for layer, site in enumerate(reading.attention):
        scores = reading[f"{site.path}.scores"][0]
        head, query = scores.shape[0] - 1, scores.shape[1] - 1
        keys = torch.isfinite(scores[head, query]).nonzero()[:, 0].tolist()
        found.append((layer, head, query, keys[0]))
    return found


def check_sums(reading: Reading) -> None:
    """The parts sum to the score, and their advantages to the difference from the mean of the other keys."""
    for layer, head, query, key in cells(reading):
        row = reading[f"{reading.attention[layer].path}.scores"][0, head, query]
        frame = why(reading, layer=layer, head=head, query=query, key=key)
        largest = max(1.0, row[torch.isfinite(row)].abs().max().item())
        assert frame["score"].sum() == pytest.approx(row[key].item(), abs=1e-4 * largest)
        others = torch.isfinite(row)
        others[key] = False
        if others.any():
            assert frame["advantage"].sum() == pytest.approx((row[key] - row[others].mean()).item(), abs=1e-4 * largest)


@pytest.mark.parametrize("name", SHIPPED)
def test_the_parts_sum_to_the_score_of_every_shipped_model(name: str) -> None:
    check_sums(xformer.read(f"checkpoints/{name}", SHIPPED[name]))


INPUTS = {
    "ViT": {"pixel_values": torch.rand(1, 3, 12, 12, generator=torch.Generator().manual_seed(0))},
    "Whisper": {
        "input_features": torch.rand(1, 8, 26, generator=torch.Generator().manual_seed(0)),
        "decoder_input_ids": torch.tensor([[1, 5, 6, 7]]),
        "use_cache": False,
    },
}
SUMS = [name for name, family in FAMILIES.items() if family.rung == 1 and name not in ("Qwen3", *INPUTS)]


@pytest.mark.xdist_group("transformers")
@pytest.mark.parametrize("name", SUMS)
def test_the_parts_sum_to_the_score_of_models_of_others(name: str) -> None:
    typed = (
        "the cat sat on the mat >> a bird then flew" if name in ("T5", "BART", "Marian") else "the cat sat on the mat"
    )
    check_sums(xformer.read(FAMILIES[name].make(), typed, tokenizer=tokenizer()))


@pytest.mark.xdist_group("transformers")
@pytest.mark.parametrize("name", INPUTS)
def test_so_they_do_of_models_that_read_images_or_sounds(name: str) -> None:
    check_sums(xformer.read(FAMILIES[name].make(), INPUTS[name]))


@pytest.mark.xdist_group("transformers")
@pytest.mark.parametrize(
    ("name", "sentence"), [("Qwen3", "normalises its queries"), ("BLOOM", "read from outside, at rung 2")]
)
def test_where_the_score_is_no_sum_it_says_so(name: str, sentence: str) -> None:
    reading = xformer.read(FAMILIES[name].make(), "the cat sat on the mat", tokenizer=tokenizer())
    with pytest.raises(UnavailableError, match=sentence):
        why(reading, layer=1, head=0, query=4, key=2)


@pytest.mark.parametrize("name", ["reverse", "induction", "characters"])
def test_who_wrote_the_stream_sums_to_it(name: str) -> None:
    reading = xformer.read(f"checkpoints/{name}", SHIPPED[name])
    for site in reading.attention:
        parts = stream_parts(reading, site.stack, site)
        wanted = reading[f"{site.stack}.{site.layer}.resid_pre"][0].double()
        assert torch.allclose(parts.total().double(), wanted, rtol=0, atol=1e-4 * float(wanted.abs().max()))


def test_the_first_layers_parts_are_what_anyone_computes_by_hand() -> None:
    """reverse-small adds a table of places to its tokens: q and k of both, and their four products."""
    reading = xformer.read("checkpoints/reverse-small", "3 7 12 5")
    model = xformer.load("checkpoints/reverse-small").model
    attention = model.encoder.blocks[0].attn
    with torch.no_grad():
        token, place = reading["embed"][0], reading["pos_embed"]
        product = (place[0] @ attention.W_Q[0]) @ (token[3] @ attention.W_K[0]) / attention.d_head**0.5
    frame = why(reading, layer=0, head=0, query=0, key=3).set_index(["query_source", "key_source"])
    assert frame.loc[("position", "token"), "score"] == pytest.approx(product.item(), abs=1e-5)


def test_on_induction_the_head_before_carries_the_choice_and_taking_it_out_moves_the_pattern() -> None:
    """Over 200 cells: where a token stood before, the key after it is preferred for what layer 1's head wrote there."""
    shares, kept, weights = [], 0.0, 0.0
    n = 0
    for seed in range(26):
        task = xformer.load("checkpoints/induction").task
        assert task is not None
        source = task.draw(seed)
        reading = xformer.read("checkpoints/induction", source)
        pattern = reading["decoder.1.attn.pattern"][0, 0]
        ids = reading.ids()
        without = xformer.read("checkpoints/induction", source, edits=[edits.ablate_head("decoder.0.attn", 0)])
        for query in range(3, len(ids)):
            earlier = [key for key in range(1, query) if ids[key - 1] == ids[query]]
            if not earlier or int(pattern[query].argmax()) != earlier[-1]:
                continue
            frame = why(reading, layer=1, head=0, query=query, key=earlier[-1])
            through = frame[(frame["key_layer"] == 0) & (frame["key_head"] == 0)]["advantage"].sum()
            shares.append(through / frame["advantage"].sum())
            weights += float(pattern[query, earlier[-1]])
            kept += float(without["decoder.1.attn.pattern"][0, 0][query, earlier[-1]])
            n += 1
    assert n >= 200
    assert sum(shares) / n >= 0.8
    assert kept <= 0.2 * weights


def test_on_reverse_small_positions_carry_the_anti_diagonal_through_the_first_feed_forward() -> None:
    """Positions as they were added carry 6 % of it; with what the first feed-forward layer made of them it is 89 %, and what
    that layer wrote is of the position alone: its mean over other inputs does as well."""
    model = xformer.load("checkpoints/reverse-small").model
    tokens = torch.randint(1, 20, (64, 9), generator=torch.Generator().manual_seed(0))
    tokens[:, 8] = 20
    mean = record(model, tokens)["encoder.0.ffn.out"].mean(dim=0, keepdim=True)
    text = " ".join(map(str, tokens[0, :8].tolist()))
    reading = xformer.read("checkpoints/reverse-small", text)
    cells = pd.concat([why(reading, layer=1, head=0, query=query, key=7 - query) for query in range(8)])
    shares = cells.groupby(["query_source", "key_source"])["advantage"].sum() / cells["advantage"].sum()
    carriers = ["position", "layer 1 · feed-forward"]
    assert shares["position", "position"] < 0.15
    assert sum(shares[query, key] for query in carriers for key in carriers) >= 0.8

    def on_anti_diagonal(*changed: edits.AnyEdit) -> float:
        run = xformer.read("checkpoints/reverse-small", text, edits=changed)
        return float(run["encoder.1.attn.pattern"][0, 0, :8, :8].flip(-1).diagonal().mean())

    assert on_anti_diagonal() > 0.95
    assert on_anti_diagonal(edits.replace("encoder.0.ffn.out", mean)) > 0.95
    assert on_anti_diagonal(edits.scale("encoder.0.ffn.out", 0.0)) < 0.3


def test_the_check_on_induction_is_the_same_change_made_by_hand() -> None:
    """Layer 1's head out of the keys of layer 2's: normalised, projected and turned by hand, handed to `record`."""
    reading = xformer.read("checkpoints/induction", "3 7 12 5 3 7 12")
    model = xformer.load("checkpoints/induction").model
    before, block = model.decoder.blocks[0].attn, model.decoder.blocks[1]
    with torch.no_grad():
        wrote = reading["decoder.0.attn.z"][0, 0] @ before.W_O[0]  # [pos, d_model]
        stream, norm = reading["decoder.1.resid_pre"][0], block.attn_residual.norm
        read = (wrote - wrote.mean(-1, keepdim=True)) / stream.std(-1, correction=0, keepdim=True) * norm.weight
        k = (read @ block.attn.W_K[0])[None, None]
        k = block.attn.positions.turn(k, reading["decoder.1.attn.pos_angles"])
    keys = reading["decoder.1.attn.k"] - k
    by_hand = record(model, reading.trace.tokens, reading.trace.target, edits=[edits.replace("decoder.1.attn.k", keys)])
    without = without_source(reading, layer=1, head=0, side="key", source="layer 1 · head 1")
    assert (without.logits - reading.logits).abs().max() > 1
    torch.testing.assert_close(without.logits, by_hand.logits, rtol=0, atol=1e-3)


@pytest.mark.xdist_group("transformers")
def test_the_check_on_a_model_of_others_is_the_same_change_made_in_it() -> None:
    """A hook on a stock Llama takes what a head of layer 1 wrote out of the queries of one head of layer 2."""
    stock = FAMILIES["Llama"].make()
    reading = xformer.read(FAMILIES["Llama"].make(), "the cat sat on the mat", tokenizer=tokenizer())
    first, second, head = stock.model.layers[0].self_attn, stock.model.layers[1], 3
    width = first.head_dim
    z = reading["decoder.0.attn.z"][0, 1]  # [pos, d_head]
    wrote = z @ first.o_proj.weight[:, width : 2 * width].T
    stream = reading["decoder.1.resid_pre"][0]
    read = wrote * stream.square().mean(-1, keepdim=True).add(1e-6).rsqrt() * second.input_layernorm.weight
    rows = slice(head * width, (head + 1) * width)

    def without_it(module: Any, taken: Any, given: torch.Tensor) -> torch.Tensor:
        changed = given.clone()
        changed[..., rows] -= read @ second.self_attn.q_proj.weight[rows].T
        return changed

    second.self_attn.q_proj.register_forward_hook(without_it)
    without = without_source(reading, layer=1, head=head, side="query", source="layer 1 · head 2")
    with torch.no_grad():
        by_hand = stock(input_ids=reading.trace.tokens).logits
    assert (without.logits - reading.logits).abs().max() > 1e-3
    torch.testing.assert_close(without.logits, by_hand, rtol=0, atol=1e-4)


def test_what_takes_too_much_room_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    reading = xformer.read("checkpoints/reverse", "3 7 12 5")
    monkeypatch.setattr("xformer.analysis.stream_parts.free_bytes", lambda: 20_000)
    stream_parts(reading, "encoder", reading.attention[0])
    with pytest.raises(UnavailableError, match="choose an earlier layer, or type a shorter input"):
        why(reading, layer=3, head=0, query=0, key=0)


def test_against_another_key_it_is_the_difference_of_two_scores() -> None:
    reading = xformer.read("checkpoints/induction", "3 7 12 5 3 7 12")
    found = score_parts(reading, layer=1, head=0, query=4, key=1, against=2)
    row = reading["decoder.1.attn.scores"][0, 0, 4]
    assert float(found.advantage.sum()) == pytest.approx((row[1] - row[2]).item(), abs=1e-4)


CELLS = [((0, 1, 3), "may not look at"), ((0, 9, 0), "queries 0 to"), ((5, 1, 0), "heads 0 to")]


@pytest.mark.parametrize(("cell", "sentence"), CELLS)
def test_a_cell_that_is_not_there_is_refused(cell: tuple[int, int, int], sentence: str) -> None:
    reading = xformer.read("checkpoints/induction", "3 7 12 5")
    with pytest.raises(InputError, match=sentence):
        why(reading, layer=1, head=cell[0], query=cell[1], key=cell[2])


def test_a_run_whose_stream_was_changed_is_no_sum() -> None:
    reading = xformer.read("checkpoints/induction", "3 7 12 5 3 7", edits=[edits.scale("decoder.1.attn.q", 2.0)])
    with pytest.raises(UnavailableError, match="something was changed on the way"):
        why(reading, layer=1, head=0, query=4, key=1)


@pytest.mark.xdist_group("transformers")
def test_a_trained_models_induction_head_finds_its_key_through_the_head_that_looks_one_back() -> None:
    """SmolLM2's layer 18 head 6, from 0: what a head that looks one back wrote at the key is most of the choice."""
    text = "The cat sat on the mat. The dog ran in the park. The cat sat on the"
    reading = xformer.read(real_model("SmolLM2-135M-Instruct"), text)
    frame = why(reading, layer=18, head=6, query=15, key=2)
    by_key = frame.groupby(["key_layer", "key_head"])["advantage"].sum()
    (layer, head), share = by_key.idxmax(), by_key.max() / frame["advantage"].sum()
    assert head >= 0
    assert share > 0.5
    before = reading[f"decoder.{layer}.attn.pattern"][0, head]
    assert float(before.diagonal(-1).mean()) > 0.5
