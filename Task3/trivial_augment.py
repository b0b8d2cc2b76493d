"""TrivialAugment on a whole batch: each picture gets one of 14 operations at one of 31 magnitudes.

Müller & Hutter, "TrivialAugment: Tuning-free Yet State-of-the-Art Data Augmentation", ICCV 2021 (arXiv:2103.10158), in
its wide search space. The operations give what torchvision's `TrivialAugmentWide` gives on uint8 tensors, within one
grey level: nearest neighbour, black where a picture moves away. Pictures are grouped by what their operations have in
common, so a batch costs a few array operations rather than a few hundred.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import torch

MAX_LEVEL = 30
"""Magnitudes are whole numbers 0 to 30 (31 bins); operations that have two directions take -30 to 30."""

Operation = IntEnum(
    "Operation",
    "IDENTITY SHEAR_X SHEAR_Y TRANSLATE_X TRANSLATE_Y ROTATE BRIGHTNESS COLOR CONTRAST SHARPNESS "
    "POSTERIZE SOLARIZE AUTO_CONTRAST EQUALIZE",
    start=0,
)

GEOMETRIC = (
    Operation.SHEAR_X,
    Operation.SHEAR_Y,
    Operation.TRANSLATE_X,
    Operation.TRANSLATE_Y,
    Operation.ROTATE,
)

GREY_LEVELS = np.arange(256, dtype=np.int16)  # int16 and float32 make float32, wider integers would make float64


def trivial_augment(batch: torch.Tensor, operation: np.ndarray, level: np.ndarray) -> torch.Tensor:
    """Return a new batch in which picture i has gone through `operation[i]` at `level[i]`.

    `batch` is (B, C, H, W) uint8 on the CPU with C = 1 or 3, `operation` (B,) holds values of `Operation` and `level`
    (B,) whole numbers from -30 to 30; operations without a direction ignore the sign.
    """
    pictures = batch.numpy()
    result = pictures.copy()

    picked = np.flatnonzero(np.isin(operation, GEOMETRIC))
    if picked.size:
        result[picked] = _warp(pictures[picked], operation[picked], level[picked])

    picked = np.flatnonzero(np.isin(operation, list(TABLES)))
    if picked.size:
        result[picked] = _look_up(pictures[picked], operation[picked], level[picked])

    for blended, blend in ((Operation.COLOR, _color), (Operation.SHARPNESS, _sharpness)):
        picked = np.flatnonzero(operation == blended)
        if picked.size:
            result[picked] = blend(pictures[picked], level[picked])
    return torch.from_numpy(result)


# Geometric operations: all are affine, so one resampling serves them.


def _warp(pictures: np.ndarray, operation: np.ndarray, level: np.ndarray) -> np.ndarray:
    height, width = pictures.shape[-2:]
    centre_x, centre_y = (width - 1) / 2, (height - 1) / 2
    x, y = np.arange(width) - centre_x, (np.arange(height) - centre_y)[:, None]
    matrix = _inverse_affine(operation, level, height, width)[..., None, None]  # (M, 2, 3, 1, 1) against (H, W)
    # float64 keeps ties (a centre line turned by 45 degrees) apart from rounding errors: rint takes them all alike.
    source_x = np.rint(matrix[:, 0, 0] * x + matrix[:, 0, 1] * y + matrix[:, 0, 2] + centre_x).astype(np.int64)
    source_y = np.rint(matrix[:, 1, 0] * x + matrix[:, 1, 1] * y + matrix[:, 1, 2] + centre_y).astype(np.int64)
    inside = (source_x >= 0) & (source_x < width) & (source_y >= 0) & (source_y < height)
    index = np.where(inside, source_y * width + source_x, 0)
    return _gather(pictures, index[:, None]) * inside[:, None]


def _inverse_affine(operation: np.ndarray, level: np.ndarray, height: int, width: int) -> np.ndarray:
    """Matrices (M, 2, 3) that take a pixel of the result, measured from the picture's centre, to its source."""
    matrix = np.tile(np.eye(2, 3), (len(operation), 1, 1))

    shear = 0.99 * level / MAX_LEVEL
    picked = operation == Operation.SHEAR_X  # the top edge stays where it is
    matrix[picked, 0, 1], matrix[picked, 0, 2] = shear[picked], shear[picked] * height / 2
    picked = operation == Operation.SHEAR_Y  # the left edge stays where it is
    matrix[picked, 1, 0], matrix[picked, 1, 2] = shear[picked], shear[picked] * width / 2

    pixels = np.trunc(32 * level / MAX_LEVEL)
    picked = operation == Operation.TRANSLATE_X
    matrix[picked, 0, 2] = -pixels[picked]
    picked = operation == Operation.TRANSLATE_Y
    matrix[picked, 1, 2] = -pixels[picked]

    picked = operation == Operation.ROTATE  # anticlockwise for positive levels
    angle = np.deg2rad(135 * level[picked] / MAX_LEVEL)
    cosine, sine = np.cos(angle), np.sin(angle)
    matrix[picked, :, :2] = np.stack([cosine, -sine, sine, cosine], axis=-1).reshape(-1, 2, 2)
    return matrix


# Operations on grey levels: each maps the 256 levels of a channel to others, so one look-up serves them.
# A table is made from pictures (M, C, H, W) and levels (M,), and broadcasts to (M, C, 256).


def _look_up(pictures: np.ndarray, operation: np.ndarray, level: np.ndarray) -> np.ndarray:
    tables = np.empty((*pictures.shape[:2], 256), dtype=np.uint8)
    for mapped, make_table in TABLES.items():
        picked = np.flatnonzero(operation == mapped)
        if picked.size:
            tables[picked] = make_table(pictures[picked], level[picked])
    return _gather(tables, pictures)


def _brightness_table(pictures: np.ndarray, level: np.ndarray) -> np.ndarray:
    return _blend(GREY_LEVELS, 0, _per_picture(level, 3))


def _contrast_table(pictures: np.ndarray, level: np.ndarray) -> np.ndarray:
    mean = _greyscale(pictures).mean(axis=(1, 2, 3), dtype=np.float64)
    return _blend(GREY_LEVELS, _per_picture(mean, 3), _per_picture(level, 3))


def _posterize_table(pictures: np.ndarray, level: np.ndarray) -> np.ndarray:
    dropped_bits = np.rint(6 * np.abs(level) / MAX_LEVEL).astype(np.int64)
    return GREY_LEVELS & _per_picture(-1 << dropped_bits, 3)


def _solarize_table(pictures: np.ndarray, level: np.ndarray) -> np.ndarray:
    threshold = 255 - 255 / MAX_LEVEL * np.abs(level)
    return np.where(_per_picture(threshold, 3) > GREY_LEVELS, GREY_LEVELS, 255 - GREY_LEVELS)


def _auto_contrast_table(pictures: np.ndarray, level: np.ndarray) -> np.ndarray:
    """Stretch each channel to 0..255; one of a single level stays as it is."""
    darkest = pictures.min(axis=(2, 3)).astype(np.int64)[..., None]
    span = pictures.max(axis=(2, 3))[..., None] - darkest
    stretched = np.clip((GREY_LEVELS - darkest) * 255 // np.maximum(span, 1), 0, 255)
    return np.where(span == 0, GREY_LEVELS, stretched)


def _equalize_table(pictures: np.ndarray, level: np.ndarray) -> np.ndarray:
    """Spread each channel's histogram evenly, with Pillow's rounding (`ImageOps.equalize`)."""
    count, channels, height, width = pictures.shape
    channel_start = np.arange(count * channels)[:, None] * 256
    levels = pictures.reshape(count * channels, -1) + channel_start
    histogram = np.bincount(levels.ravel(), minlength=count * channels * 256).reshape(count, channels, 256)
    brightest = pictures.max(axis=(2, 3)).astype(np.int64)[..., None]
    others = height * width - np.take_along_axis(histogram, brightest, axis=2)
    step = others // 255
    below = np.cumsum(histogram, axis=2) - histogram
    equalized = np.clip((below + step // 2) // np.maximum(step, 1), 0, 255)
    return np.where(step == 0, GREY_LEVELS, equalized)


TABLES = {
    Operation.BRIGHTNESS: _brightness_table,
    Operation.CONTRAST: _contrast_table,
    Operation.POSTERIZE: _posterize_table,
    Operation.SOLARIZE: _solarize_table,
    Operation.AUTO_CONTRAST: _auto_contrast_table,
    Operation.EQUALIZE: _equalize_table,
}


# Operations that mix a picture with another one made from it.


def _color(pictures: np.ndarray, level: np.ndarray) -> np.ndarray:
    if pictures.shape[1] == 1:  # has no colour to take away
        return pictures
    return _blend(pictures, _greyscale(pictures), _per_picture(level, 4))


def _sharpness(pictures: np.ndarray, level: np.ndarray) -> np.ndarray:
    """Mix with a 3x3 blur whose centre weighs 5 and its 8 neighbours 1; the outermost pixels stay as they are."""
    values = pictures.astype(np.float32)
    inner = values[:, :, 1:-1, 1:-1]
    columns = values[:, :, :-2] + values[:, :, 1:-1] + values[:, :, 2:]
    box = columns[..., :-2] + columns[..., 1:-1] + columns[..., 2:]
    blurred = np.rint((box + 4 * inner) / 13)
    result = pictures.copy()
    result[:, :, 1:-1, 1:-1] = _blend(inner, blurred, _per_picture(level, 4))
    return result


def _greyscale(pictures: np.ndarray) -> np.ndarray:
    """ITU-R 601 luma (M, 1, H, W) in whole grey levels, rounded down, with torchvision's weights."""
    if pictures.shape[1] == 1:
        return pictures
    red, green, blue = pictures.astype(np.float32).transpose(1, 0, 2, 3)
    return np.floor(0.2989 * red + 0.587 * green + 0.114 * blue)[:, None]


def _blend(image: np.ndarray, degenerate: np.ndarray, level: np.ndarray) -> np.ndarray:
    """Level -30 is almost `degenerate`, 0 is `image`, 30 goes as far beyond it again; cut to 0..255, rounded down."""
    factor = (1 + 0.99 * level / MAX_LEVEL).astype(np.float32)
    mixed = degenerate + factor * (image - degenerate)
    return np.clip(mixed, 0, 255).astype(np.uint8)


def _per_picture(values: np.ndarray, ndim: int) -> np.ndarray:
    return values.reshape(-1, *(1,) * (ndim - 1))


def _gather(values: np.ndarray, index: np.ndarray) -> np.ndarray:
    """`values` (M, C, ...) at `index` (M, C or 1, H, W), which counts through all axes after the channel's."""
    count, channels = values.shape[:2]
    flat_index = torch.from_numpy(index).long().flatten(2).expand(-1, channels, -1)
    gathered = torch.from_numpy(values).flatten(2).gather(2, flat_index)
    return gathered.view(count, channels, *index.shape[2:]).numpy()
