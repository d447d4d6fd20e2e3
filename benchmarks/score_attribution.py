"""How often the Attention screen names the source of a head's preference, and whether measurements agree.

    .venv/bin/python benchmarks/score_attribution.py [--cells 80] [MODEL ...]

The cells are random queries with the key that gets the most weight from a random head. For each cell: is a source named, does
removing it from this head's queries (or keys) in a run lower the advantage, and does it lower it most? It is compared with the
`COMPARED` sources of largest contribution and the `COMPARED` sources of largest computed removal.
"""

from __future__ import annotations

import argparse
import random

import torch

import xformer
from xformer.analysis.score_decomposition import (
    check,
    contributions,
    deciding_sources,
    has_choice_to_explain,
    score_parts,
    without_source,
)

INPUTS = {
    "checkpoints/induction": "3 7 12 5 9 3 7 12",
    "checkpoints/reverse": "3 7 12 9 1 4",
    "checkpoints/characters": "The list of the best",
    "models/SmolLM2-135M-Instruct": "The cat sat on the mat. The dog ran in the park. The cat sat on the",
}
COMPARED = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("models", nargs="*", default=list(INPUTS), metavar="MODEL")
    parser.add_argument("--cells", type=int, default=80, help="total number of cells over all models")
    arguments = parser.parse_args()
    torch.set_num_threads(2)
    draw = random.Random(0)
    for model in arguments.models:
        print(f"{model}: {_of_model(model, arguments.cells // len(arguments.models), draw)}")


def _of_model(model: str, n: int, draw: random.Random) -> str:
    reading = xformer.read(model, INPUTS[model])
    named = pairs = agree = largest = worth = above = 0
    for _ in range(n):
        layer = draw.randrange(len(reading.attention))
        pattern = reading[f"{reading.attention[layer].path}.pattern"][0]  # [head, query, key]
        head, query = draw.randrange(pattern.shape[0]), draw.randrange(1, pattern.shape[1])
        cell = {"layer": layer, "head": head, "query": query, "key": int(pattern[head, query].argmax())}
        parts = score_parts(reading, **cell)
        worth += has_choice_to_explain(parts)
        deciding_parts, found = deciding_sources(parts), contributions(parts)
        if not deciding_parts:
            continue
        named += len(deciding_parts) == 1
        pairs += len(deciding_parts) == 2
        above += any(one.adds > parts.total_advantage for one in deciding_parts)
        tried = {one.title: one for one in [*found[:COMPARED], *sorted(found, key=lambda one: -one.removal)[:COMPARED]]}
        measured = {}
        for title, one in tried.items():
            without = without_source(
                reading, layer=layer, head=head, side=one.side, source=one.writer.name, parts=parts
            )
            table = check(reading, without, **cell).set_index("what").loc["advantage"]
            measured[title] = table["before"] - table["after"]
        agree += all(measured[one.title] > 0 for one in deciding_parts)
        largest += set(sorted(measured, key=lambda title: -measured[title])[: len(deciding_parts)]) == {
            one.title for one in deciding_parts
        }
    return (
        f"{n} cells, {worth} with a preference; {named} name one source, {pairs} name one at the query and one at the key; "
        f"in measurements, {agree} of {named + pairs} agree in sign and {largest} are the largest; {above} contribute more "
        "than the whole advantage"
    )


if __name__ == "__main__":
    main()
