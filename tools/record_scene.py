"""Record the run of the language model that Home shows while the model is being loaded: `make recorded`."""

from __future__ import annotations

import argparse

from pages.home.language_model import RECORDED
from xformer import read
from xformer.adapters.load import open_model
from xformer.model_files.models_here import LANGUAGE_MODEL, PREFIX, catalogue
from xformer.widgets.scene_data import scene_data


def main() -> None:
    """Write the scene of the model's default input."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    model = open_model(catalogue().entry(f"{PREFIX}{LANGUAGE_MODEL}").path)
    reading = read(model, model.input.default)
    RECORDED.write_bytes(scene_data(reading, is_recorded=True))
    print(f"{RECORDED}: {RECORDED.stat().st_size:,} bytes, “{model.input.default}”")


if __name__ == "__main__":
    main()
