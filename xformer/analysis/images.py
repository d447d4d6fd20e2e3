"""What a model of images predicts, for one image and for all test images."""

from __future__ import annotations

import pandas as pd
import torch

from xformer.memory import rows_that_fit
from xformer.model import Transformer
from xformer.reading import Reading
from xformer.subjects import own_model
from xformer.tasks.digit_images import digit_images


@torch.no_grad()
def predict_test_images(model: Transformer) -> pd.DataFrame:
    """One row per test image, in their order: image, digit, predicted, probability (of that), of_digit (the right one's)."""
    _, test = digit_images()
    parts = test.pixels.to(model.device).split(rows_that_fit(model.config, model.config.max_len))
    p = torch.cat([model(part)[:, 0] for part in parts]).softmax(dim=-1).cpu()  # [image, digit]
    best = p.max(dim=-1)
    return pd.DataFrame(
        {
            "image": range(len(test)),
            "digit": test.digits.tolist(),
            "predicted": best.indices.tolist(),
            "probability": best.values.tolist(),
            "of_digit": p.gather(1, test.digits[:, None])[:, 0].tolist(),
        }
    )


def wrong_ones(predictions: pd.DataFrame) -> pd.DataFrame:
    """The rows of `predict_test_images` that are wrong, the surest first."""
    return predictions.loc[predictions["predicted"] != predictions["digit"]].sort_values("probability", ascending=False)


def mistakes(reading: Reading) -> pd.DataFrame:
    """The test images that the model of a reading gets wrong by itself, the surest first: see `predict_test_images`."""
    return wrong_ones(predict_test_images(own_model(reading.subject)))


def classes(reading: Reading) -> pd.DataFrame:
    """How probable each digit is to be in the image, one row a digit: digit, probability, right (where somebody knows)."""
    labels, right = reading.subject.labels, reading.answer[0] if reading.has_right_answer else None
    p = reading.probabilities[0].tolist()  # [digit]
    return pd.DataFrame({"digit": labels, "probability": p, "right": [place == right for place in range(len(p))]})
