"""Predictions of image models for one image and for all test images, their attention over the image, and patch filters."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from xformer.adapters import own_model
from xformer.adapters.inputs import PatchedImage
from xformer.analysis.attention_patterns import rollout_matrices
from xformer.analysis.embeddings import cosine_matrix, pca
from xformer.analysis.positions import added_positions
from xformer.analysis.tables import array_table
from xformer.errors import EditError, InputError, UnavailableError
from xformer.formatting import check_index, check_option, percent
from xformer.layers.embedding import PatchEmbedding
from xformer.memory import rows_that_fit
from xformer.model import Transformer
from xformer.reading import Reading
from xformer.tasks.images import digit_images


@torch.no_grad()
def predict_test_images(model: Transformer) -> pd.DataFrame:
    """Return a row per test image: image, digit, predicted, probability (of predicted), of_digit (probability of the digit)."""
    _, test = digit_images()
    parts = test.pixels.to(model.device).split(rows_that_fit(model.config, model.config.max_len))
    p = torch.cat([model(part)[:, 0] for part in parts]).softmax(dim=-1).cpu()  # [image, digit]
    of_digit = p.gather(1, test.digits[:, None])[:, 0].tolist()
    table = pd.DataFrame({"image": range(len(test)), "digit": test.digits.tolist(), "predicted": p.argmax(-1).tolist()})
    return table.assign(probability=p.amax(dim=-1).tolist(), of_digit=of_digit)


def misclassified(predictions: pd.DataFrame) -> pd.DataFrame:
    """Return the wrong rows of `predict_test_images`, the most confident first."""
    return predictions.loc[predictions["predicted"] != predictions["digit"]].sort_values("probability", ascending=False)


def mistakes(reading: Reading) -> pd.DataFrame:
    """List the test images that the unedited model of a reading gets wrong, the most confident mistake first.

    Args:
        reading: Any run of the model.

    Returns:
        A row per mistake: image (its number), digit (the right one), predicted, probability (of the predicted digit) and
        of_digit (of the right one).

    Example:
        >>> import xformer
        >>> digit = xformer.read("checkpoints/digits", "test 3")
        >>> table = xformer.analysis.mistakes(digit)
        >>> list(table.columns)
        ['image', 'digit', 'predicted', 'probability', 'of_digit']
    """
    return misclassified(predict_test_images(own_model(reading.adapter)))


WHOLE_CLASSES = ("sequence_class", "next_sentence", "image_class", "audio_class")
"""The output kinds of external models that classify a whole input."""


def classes(reading: Reading) -> pd.DataFrame:
    """Return the probability of each class for the image (or the text, or the sound) of a run.

    Args:
        reading: The run.

    Returns:
        A row per class: digit (its label), probability, and right (all False without a right answer).

    Raises:
        UnavailableError: If the model does not classify its input as a whole.

    Example:
        >>> import xformer
        >>> digit = xformer.read("checkpoints/digits", "test 3")
        >>> table = xformer.analysis.classes(digit)
        >>> list(table.columns)
        ['digit', 'probability', 'right']
    """
    if not (reading.adapter.shape.image or reading.output in WHOLE_CLASSES):
        raise UnavailableError(
            f"{reading.adapter.name} does not classify its input as a whole, so there are no classes; its predictions are in "
            "analysis.lens."
        )
    labels, right = reading.adapter.token_labels, reading.answer[0] if reading.has_right_answer else None
    p = reading.probabilities[0].tolist()  # [digit]
    return pd.DataFrame({"digit": labels, "probability": p, "right": [place == right for place in range(len(p))]})


CROWDED = 6
"""From this many heads, panels have short titles: “2.3” for layer 2, head 3."""


def over_image(
    reading: Reading, *, query: int = 0, what: str = "heads", layer: int | None = None, head: int | None = None
) -> pd.DataFrame:
    """Show the attention of one position of a vision model over the image, panel by panel.

    Args:
        reading: A run on an image.
        query: The query position, from 0: the class token if there is one.
        what: "heads" for a row per layer with a panel for each head and for their mean, or "rollout" for a panel per layer.
        layer: Only this attention layer, from 0.
        head: Only this head of each layer, from 0.

    Returns:
        A row per panel and key: row and panel (the title) in the figure, place (the class token or a patch) and weight.

    Raises:
        UnavailableError: If the model does not read an image in patches.
        EditError: If there is no such layer or head.

    Example:
        >>> import xformer
        >>> digit = xformer.read("checkpoints/digits", "test 3")
        >>> table = xformer.analysis.over_image(digit, query=0)
        >>> list(table.columns)
        ['row', 'panel', 'place', 'weight']
    """
    patch_grid(reading)
    check_option("what", what, ("heads", "rollout"))
    check_index("query", query, len(reading.tokens))
    if what == "rollout":
        reached = rollout_matrices(reading.trace)[:, query].tolist()  # [layer, key]
        panels = [(0, f"after layer {layer}", weights) for layer, weights in enumerate(reached, start=1)]
    else:
        panels = _head_panels(reading, query, layer, head)
    if any(len(weights) != len(reading.tokens) for _, _, weights in panels):
        raise UnavailableError(
            f"{reading.adapter.name} attends over windows or stages of its image, not over all patches."
        )
    rows = [(row, title, *cell) for row, title, weights in panels for cell in zip(reading.tokens, weights, strict=True)]
    return pd.DataFrame(rows, columns=["row", "panel", "place", "weight"])


def patch_grid(reading: Reading) -> tuple[int, int]:
    """Return the number of rows and columns of an image's patches, which are the last positions of the input.

    Raises:
        UnavailableError: If the model does not read an image in patches.
    """
    shape, kind, n = reading.adapter.shape, reading.adapter.input, len(reading.ids())
    if shape.image:
        return shape.image // shape.patch, shape.image // shape.patch
    pixels = (reading.example.arguments or {}).get("pixel_values")
    if isinstance(kind, PatchedImage) and isinstance(pixels, Tensor):
        rows, columns = (side // patch for side, patch in zip(pixels.shape[-2:], kind.patch, strict=True))
        if rows * columns <= n:
            return rows, columns
    raise UnavailableError(f"{reading.adapter.name} reads no image that is cut into patches.")


def _head_panels(
    reading: Reading, query: int, layer: int | None, head: int | None
) -> list[tuple[int, str, list[float]]]:
    panels = []
    for at, site in enumerate(reading.layer_paths):
        if layer is not None and at != layer:
            continue
        rows = reading[f"{site.path}.pattern"][0, :, query].float()  # [head, key]
        if head is not None and not 0 <= head < len(rows):
            raise EditError(f"Layer {at} has heads 0 to {len(rows) - 1}, got {head}.")
        of_layer = f"layer {at + 1} · head " if len(rows) < CROWDED or head is not None else f"{at + 1}."
        panels += [(at, f"{of_layer}{one + 1}", row.tolist()) for one, row in enumerate(rows) if head in (None, one)]
        if len(rows) > 1 and head is None:
            panels.append((at, f"{of_layer.removesuffix('head ')}mean", rows.mean(dim=0).tolist()))
    if not panels:
        raise EditError(f"This model has attention layers 0 to {len(reading.layer_paths) - 1}, got {layer}.")
    return panels


def patch_weights(model: Transformer) -> Float[Tensor, "d_model y x"]:
    """Return the pixel weights of each dimension of the patch embedding. Raises `InputError` for a model without patches."""
    if not isinstance(model.embedding, PatchEmbedding):
        raise InputError("Only a model of images has patch filters, and this one reads tokens.")
    side = model.config.patch
    return model.embedding.weight.detach().view(-1, side, side)


def patch_filters(reading: Reading) -> pd.DataFrame:
    """Tabulate the filters of the patch embedding, those with the largest norm first.

    Args:
        reading: Any run of the model.

    Returns:
        A row per filter and pixel: filter ("dimension 5"), pixel_y, pixel_x (from 0) and weight.

    Raises:
        InputError: If the model reads tokens.

    Example:
        >>> import xformer
        >>> digit = xformer.read("checkpoints/digits", "test 3")
        >>> table = xformer.analysis.patch_filters(digit)
        >>> list(table.columns)
        ['filter', 'pixel_y', 'pixel_x', 'weight']
    """
    filters = patch_weights(own_model(reading.adapter))
    order = filters.flatten(1).norm(dim=1).argsort(descending=True)
    return _table(filters[order], [f"dimension {index}" for index in order.tolist()])


def filter_components(reading: Reading) -> pd.DataFrame:
    """Compute the principal components of the patch filters.

    Args:
        reading: Any run of the model.

    Returns:
        The columns of `patch_filters`; filter is the component with its share of the variance ("component 1: 40%").

    Raises:
        InputError: If the model reads tokens.

    Example:
        >>> import xformer
        >>> digit = xformer.read("checkpoints/digits", "test 3")
        >>> table = xformer.analysis.filter_components(digit)
        >>> list(table.columns)
        ['filter', 'pixel_y', 'pixel_x', 'weight']
    """
    filters = patch_weights(own_model(reading.adapter))
    found = pca(filters.flatten(1))
    names = [f"component {axis + 1}: {percent(share, 0)}" for axis, share in enumerate(found.explained.tolist())]
    return _table(found.axes.view(-1, *filters.shape[1:]), names)


def _table(filters: Float[Tensor, "filter y x"], names: Sequence[str]) -> pd.DataFrame:
    _, n_y, n_x = filters.shape
    return array_table({"filter": names}, {"pixel_y": range(n_y)}, {"pixel_x": range(n_x)}, weight=filters.double())


def place_cosines(reading: Reading) -> Float[Tensor, "patch patch"]:
    """Return the cosines of all pairs of patches' position vectors. Raises `InputError` if no position vectors are added."""
    return cosine_matrix(added_positions(reading)[1:])  # without the class token


def patch_cosines(reading: Reading) -> pd.DataFrame:
    """Compare the position vectors of every pair of patches.

    Args:
        reading: Any run of the model.

    Returns:
        A row per pair: patch and other (row and column, "r1 c3"), cosine, and itself (whether both are the same patch).

    Raises:
        UnavailableError: If the model does not read an image in patches.
        InputError: If the model adds no position vectors.

    Example:
        >>> import xformer
        >>> digit = xformer.read("checkpoints/digits", "test 3")
        >>> table = xformer.analysis.patch_cosines(digit)
        >>> list(table.columns)
        ['patch', 'other', 'cosine', 'itself']
    """
    patch_grid(reading)
    names, is_itself = reading.tokens[1:], torch.eye(len(reading.tokens) - 1, dtype=torch.bool)
    return array_table({"patch": names}, {"other": names}, cosine=place_cosines(reading), itself=is_itself)
