"""`make gallery`: write docs/gallery.md, with every picture of `xformer.viz`, its description and the call that draws it.

The pictures are drawn by the calls that the page shows. Pictures drawn by scripts need Chromium, and external models need their
folder (`make models`); without them, existing images are kept.
"""

from __future__ import annotations

import argparse
import inspect
import re
import shutil
import tempfile
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from PIL import Image

import xformer
from xformer.viz.export import png_of, svg

DOCS = Path(__file__).parents[1] / "docs"
LARGEST = 60_000
"""Largest SVG in bytes; larger pictures are saved as PNG."""
WIDEST = 1_200
"""Largest width of a PNG in pixels."""
PICTURE = re.compile(r"(?:viz\.)?(\w+)\(")
IMPORTS = """import xformer
from xformer import analysis, attention_view, masks, viz

"""
INTRODUCTION = """Every picture of the app is one call on a reading. This page shows each picture with the call that drew it.
If a picture has a table, it has the same name in `xformer.analysis`; `viz.save(picture, "name.pdf")` writes a file.
"""
SCREENS = {
    "Attention": (
        """
reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
ablated = xformer.read("checkpoints/reverse", "3 7 12 9 1", edits=[xformer.edits.ablate_head("encoder.2.attn", 1)])
digit = xformer.read("checkpoints/digits", "test 3")
packed = masks.causal() & masks.window(4) & masks.documents([0, 5, 9])
""",
        (
            "attention_view(reading, layer=2, head=1)",
            "viz.attention_grid(reading)",
            "viz.attention(reading, layer=2, head=1)",
            "viz.attention_arcs(reading, layer=2, heads=[1])",
            "viz.attention_steps(reading, layer=2, head=1, query=0, key=4)",
            "viz.score_attribution(reading, layer=2, head=1, query=0, key=4)",
            'viz.head_effects(reading, score="anti_diagonal")',
            "viz.attention_moved(ablated, before=reading)",
            "viz.rollout(reading)",
            "viz.over_image(digit, query=0)",
            "viz.mask(packed, n_query=14)",
        ),
    ),
    "Long inputs": (
        """
summary = xformer.attention_summary("checkpoints/characters", "The list of the king, and of the king.")
""",
        (
            "viz.attention_map(summary, layer=1, head=2)",
            'viz.head_sums(summary, measure="previous")',
            "viz.attention_by_distance(summary, layer=1)",
            "viz.attention_received(summary, layer=1, head=2)",
        ),
    ),
    "Embeddings": (
        """
modular = xformer.read("checkpoints/modular", "7 12")
""",
        (
            "viz.vectors(reading)",
            "viz.cosines(reading)",
            "viz.projection(reading)",
            "viz.spectrum(modular)",
            "viz.circle(modular, frequency=4)",
            "viz.patch_filters(digit)",
            "viz.filter_components(digit)",
        ),
    ),
    "Positions": (
        "",
        (
            "viz.position_values(reading)",
            "viz.position_curves(reading, dimensions=[0, 1, 6, 7])",
            "viz.position_offsets(reading)",
            "viz.patch_cosines(digit)",
        ),
    ),
    "Feed-forward": (
        "",
        (
            "viz.neurons(reading, layer=3, n=8)",
            "viz.activations(reading, layer=1)",
            "viz.firing(reading)",
            "viz.promotion(reading, layer=3, position=0, n=6)",
            "viz.neuron(reading, layer=1, neuron=7)",
        ),
    ),
    "Residual and Home": (
        """
story = xformer.read("checkpoints/characters", "The list of ")
""",
        (
            "viz.model_diagram(reading)",
            "viz.lens(reading)",
            "viz.answer_path(reading, position=0)",
            "viz.norms(reading)",
            "viz.attribution(reading, position=0)",
            "viz.classes(digit)",
            "viz.next_tokens(story)",
            'viz.similarity("checkpoints/characters", ["import os", "import sys", "return None"])',
        ),
    ),
    "Train": (
        """
import numpy as np
import pandas as pd
from xformer.viz.training_curves import metrics_frame

card = xformer.load("checkpoints/reverse").card
metrics = metrics_frame(card["curve"])

several = xformer.sweep("reverse-mirror", peak_lr=[0.001, 0.003, 0.01, 0.03], seed=range(3))
reports = [one for one in xformer.iter_train_many(several) if one.progress]  # in the app: StoredSweep(…).rows()
rows = pd.DataFrame([{"member": one.number, **one.progress.row()} for one in reports])
won = rows[rows["held_out_exact_match"] >= 0.99].groupby("member")["step"].min()
outcomes = pd.DataFrame({"rate": [one.train.peak_lr for one in several], "seed": [one.train.seed for one in several]})
outcomes = outcomes.assign(solved=outcomes.index.isin(won.index), steps_to_solve=won.reindex(outcomes.index))
maps = np.rint(253 * reading["encoder.2.attn.pattern"][0].numpy()).astype("uint8")  # of a run of the app: its maps()
""",
        (
            'viz.timeline_still({card["step"]: reading})',
            'viz.metric_curves(metrics, what="loss", steps=card["step"])',
            "viz.training_fan(rows)",
            'viz.sweep_outcome(outcomes, x="seed", y="rate", measure="steps_to_solve")',
            'viz.map_grid(maps, ["head 1", "head 2", "head 3", "head 4"], [False, True, False, False])',
        ),
    ),
    "Compare": (
        """
variants = [
    analysis.Variant.load("checkpoints/reverse-decoder", "as trained"),
    analysis.Variant.load("checkpoints/reverse-decoder", "one head ablated", edits="ablate:decoder.0.attn.0"),
]
runs = [analysis.decode_steps(variant, (3, 7, 12, 9)) for variant in variants]
readings = [run[1] for run in runs]  # at the second step
counted = analysis.agreement(variants, samples=200)
other = xformer.read("checkpoints/reverse", "3 7 5 9 1")
names = ("reverse", "reverse-mirror", "reverse-long")
others = [analysis.Variant.load(f"checkpoints/{name}", name) for name in names]
texts = [xformer.read("checkpoints/characters", "import os", edits=edits) for edits in ("", "ablate:decoder.0.attn.1")]
towards, away = (xformer.read("checkpoints/characters", text) for text in ("return x", "import x"))
""",
        (
            "viz.step_lanes(runs, step=1)",
            "viz.predictions_by_step(runs)",
            "viz.divergence_by_step(runs)",
            "viz.likeliest_tokens(runs, 1)",
            "viz.decision_lens(readings)",
            "viz.decision_rows(readings)",
            "viz.pattern_difference(readings, 1, 1)",
            "viz.patching(readings)",
            "viz.patching_map(reading, other)",
            "viz.prediction_difference(texts)",
            "viz.steering_by_scale(texts[0], towards, away, layer=1, scale=1)",
            "viz.accuracy(counted)",
            "viz.accuracy_by_length(reading)",
            "viz.lengths_compared(others, samples=50)",
            'viz.confusion(counted, "one head ablated")',
        ),
    ),
    "First principles and Bug lab": (
        """
from xformer.doctor.faults.lab import train_both

sentence = analysis.principles.Sentence("the cat saw the dog", d=4)
training = train_both("checkpoints/reverse-small", "init_too_large", steps=200)
""",
        (
            'viz.matrix(sentence.attention(), what="weights")',
            "viz.product_variances()",
            "viz.softmax_row(d=64)",
            "viz.softmax_saturation()",
            "viz.attention_costs(n_tokens=128, d_model=512, n_heads=8)",
            'viz.paired_training_curves(training, what="loss")',
        ),
    ),
    "External models": (
        """
from transformers import AutoTokenizer, MixtralConfig, MixtralForCausalLM

smol = xformer.read("models/SmolLM2-135M-Instruct", "When Mary and John went to the store, John gave a drink to")
tokenizer = AutoTokenizer.from_pretrained("models/SmolLM2-135M-Instruct")
size = dict(hidden_size=32, intermediate_size=16, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
mixtral = MixtralForCausalLM(MixtralConfig(vocab_size=len(tokenizer), num_local_experts=4, **size))  # untrained
mixture = xformer.read(mixtral, "Each token goes to two experts", tokenizer=tokenizer)
both = [xformer.read(path, "import os, sys") for path in ("checkpoints/characters", "models/SmolLM2-135M-Instruct")]
""",
        (
            "attention_view(smol, layer=18, head=6)",
            "viz.expert_weights(mixture, layer=1)",
            "viz.surprise_by_character(both)",
        ),
    ),
}


def first_sentence(what: Any) -> str:
    """Return the first sentence of a docstring."""
    text = " ".join((inspect.getdoc(what) or "").split("\n\n")[0].split())
    found = re.match(r".+?[.](?= [A-Z`]|$)", text)
    return found[0] if found else text


def title_of(call: str) -> str:
    """Return the name of the picture that a call draws."""
    found = PICTURE.match(call)
    assert found is not None, call
    return found[1]


def file_of(call: str, screen: str) -> str:
    """Return the file name of a picture without its suffix. The attention view appears twice."""
    return f"{title_of(call)}{'-others' if call.startswith('attention_view') and screen == 'External models' else ''}"


def page() -> str:
    """Return the text of the page, with the existing images."""
    parts = [f"# Gallery\n\n<!-- {(__doc__ or '').splitlines()[0]} -->\n\n{INTRODUCTION}"]
    for screen, (setup, calls) in SCREENS.items():
        parts.append(f"## {screen}\n")
        if setup:
            parts.append(f"```python\n{IMPORTS if screen == 'Attention' else ''}{setup.strip()}\n```\n")
        for call in calls:
            name, file = title_of(call), file_of(call, screen)
            image = next(iter(sorted(DOCS.glob(f"gallery/{file}.*"))), None)
            what = getattr(xformer.viz, name, None) or getattr(xformer, name)
            shown = f"\n![{name}](gallery/{image.name})\n" if image else ""
            parts.append(f"### {name}\n\n{first_sentence(what)}\n\n```python\n{call}\n```\n{shown}")
    return "\n".join(parts)


def draw(names: dict[str, Any], call: str, screen: str) -> None:
    """Draw a picture and save it."""
    target = DOCS / "gallery" / file_of(call, screen)
    drawn = eval(call, names)  # from SCREENS
    if call.startswith("attention_view"):
        image = (".png", small(screenshot(drawn.html(), 400)))
    elif hasattr(drawn, "write_html"):
        image = (".png", small(screenshot(drawn.to_html(include_plotlyjs=True), int(drawn.layout.height) + 20)))
    else:
        text = svg(drawn if isinstance(drawn, list) else [drawn])
        image = (".svg", text.encode()) if len(text) <= LARGEST else (".png", small(png_of(text)))
    for old in DOCS.glob(f"gallery/{target.name}.*"):
        old.unlink()
    target.with_suffix(image[0]).write_bytes(image[1])
    print(f"{target.name}{image[0]}: {len(image[1]):,} bytes")


def small(png: bytes) -> bytes:
    """Return the image at most `WIDEST` pixels wide and with a palette, so that the file stays small."""
    image = Image.open(BytesIO(png)).convert("RGB")
    image.thumbnail((WIDEST, 10 * WIDEST), Image.Resampling.LANCZOS)
    file = BytesIO()
    image.quantize(256, kmeans=2, dither=Image.Dither.NONE).save(file, "PNG", optimize=True)
    return file.getvalue()


def screenshot(html: str, height: int) -> bytes:
    """Return a screenshot of an HTML page in Chromium as PNG bytes."""
    from playwright.sync_api import sync_playwright

    with tempfile.NamedTemporaryFile("w", suffix=".html") as file, sync_playwright() as running:
        file.write(html)
        file.flush()
        options = {"executable_path": shutil.which("chromium"), "args": ["--no-sandbox", "--disable-gpu"]}
        browser = running.chromium.launch(**options)  # type: ignore[arg-type]
        tab = browser.new_page(viewport={"width": 960, "height": height})
        tab.goto(Path(file.name).as_uri())
        tab.wait_for_timeout(2500)
        image = tab.screenshot(full_page=True)
        browser.close()
    return image


def main() -> None:
    """Draw the pictures and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "models", nargs="?", default="", help="folder of external models; without it their images are kept"
    )
    parser.add_argument("which", nargs="?", default="all", choices=("all", "missing"), help="which images to draw")
    arguments = parser.parse_args()
    models, which = arguments.models, arguments.which
    torch.set_num_threads(1)  # the last digits of sums depend on the number of threads, and files should not
    (DOCS / "gallery").mkdir(exist_ok=True)
    names: dict[str, Any] = {"viz": xformer.viz, "analysis": xformer.analysis, "masks": xformer.masks}
    names["attention_view"] = xformer.attention_view
    for screen, (setup, calls) in SCREENS.items():
        if screen == "External models" and not models:
            print("Images of external models were kept; to draw them: python -m tools.gallery FOLDER_OF_MODELS")
            continue
        exec(f"import xformer\n{setup.replace('models/', f'{models}/')}", names)
        for call in calls:
            if which == "all" or not list(DOCS.glob(f"gallery/{file_of(call, screen)}.*")):
                draw(names, call, screen)
    (DOCS / "gallery.md").write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
