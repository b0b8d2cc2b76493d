"""Random crops, flips and TrivialAugment on a whole uint8 batch, and its normalisation to float32.

Random numbers are drawn apart from their use: `draw` makes the parameters of a whole epoch at once, `apply` uses any
slice of them. What happens to the picture at a position is thus the same for every batch size and number of processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch

from trivial_augment import MAX_LEVEL, Operation, trivial_augment

Index = tuple[slice, ...]

PADDING = 4
KINDS = ("standard", "trivial", "none")


@dataclass(frozen=True, eq=False)
class Parameters:
    """What to do to each of N pictures; `parameters[start:stop]` or `parameters[indices]` selects some of them."""

    kind: str
    offset: np.ndarray
    """(N, 2): top and left corner of the crop in the padded picture, 0 to 8; 4 leaves the picture where it is."""
    flip: np.ndarray
    """(N,) bool: mirror left and right."""
    operation: np.ndarray
    """(N,): a `trivial_augment.Operation`."""
    level: np.ndarray
    """(N,): its magnitude with its sign, -30 to 30."""

    def __len__(self) -> int:
        return len(self.flip)

    def __getitem__(self, index: slice | np.ndarray) -> Parameters:
        return Parameters(self.kind, self.offset[index], self.flip[index], self.operation[index], self.level[index])


def draw(kind: str, count: int, rng: np.random.Generator, flip: bool = True) -> Parameters:
    """Draw the parameters of `count` pictures.

    Kinds: "none" changes nothing; "standard" adds a black border of 4 pixels, crops at random to the old size and flips
    with probability 1/2; "trivial" does the same and then applies TrivialAugment, in the order of its paper's CIFAR
    experiments (which end with a cutout that is left out here). `flip=False` is for pictures whose mirror image is
    another thing, such as digits.
    """
    if kind not in KINDS:
        raise ValueError(f"augmentation must be one of {', '.join(KINDS)}, not {kind!r}")
    offset = np.full((count, 2), PADDING)
    flipped = np.zeros(count, dtype=bool)
    operation = np.full(count, Operation.IDENTITY)
    level = np.zeros(count, dtype=np.int64)
    if kind != "none":
        offset = rng.integers(2 * PADDING, size=(count, 2), endpoint=True)
        if flip:
            flipped = rng.integers(2, size=count).astype(bool)
    if kind == "trivial":
        operation = rng.integers(len(Operation), size=count)
        level = rng.integers(MAX_LEVEL, size=count, endpoint=True) * rng.choice([-1, 1], size=count)
    return Parameters(kind, offset, flipped, operation, level)


def apply(batch: torch.Tensor, parameters: Parameters) -> torch.Tensor:
    """Return the augmented batch, a new tensor; for kind "none" it is `batch` itself.

    `batch` is (B, C, H, W) uint8 on the CPU with C = 1 or 3, and `parameters` holds B entries.
    """
    if batch.dtype != torch.uint8 or batch.ndim != 4 or batch.shape[1] not in (1, 3):
        raise ValueError(f"need a uint8 batch (B, 1 or 3, H, W), not {batch.dtype} {tuple(batch.shape)}")
    if len(batch) != len(parameters):
        raise ValueError(f"{len(batch)} pictures but parameters of {len(parameters)}")
    if parameters.kind == "none":
        return batch
    batch = _crop_and_flip(batch, parameters)
    if parameters.kind == "trivial":
        batch = trivial_augment(batch, parameters.operation, parameters.level)
    return batch


def _crop_and_flip(batch: torch.Tensor, parameters: Parameters) -> torch.Tensor:
    """Copy from each picture the part that its crop shows onto black, so that no padded batch is ever made.

    A loop beats torch's and NumPy's batched indexing here: it copies whole rows instead of single pixels.
    """
    windows = _windows(*batch.shape[2:])
    result = np.zeros(batch.shape, dtype=np.uint8)
    for picture, cropped, (top, left), flip in zip(
        batch.numpy(), result, parameters.offset.tolist(), parameters.flip.tolist(), strict=True
    ):
        source, target = windows[top][left][flip]
        cropped[target] = picture[source]
    return torch.from_numpy(result)


@cache
def _windows(height: int, width: int) -> list[list[list[tuple[Index, Index]]]]:
    """For each crop offset down and to the right (0 to 8), and without and with the flip: which part of the picture
    (C, H, W) stays, and where it lies in the crop."""
    rows, columns = _visible_parts(height), _visible_parts(width)

    def window(row: tuple[slice, slice], column: tuple[slice, slice], flip: bool) -> tuple[Index, Index]:
        target = column[1]
        if flip and target.start < target.stop:  # the same columns, written from right to left
            end = width - 1 - target.stop
            target = slice(width - 1 - target.start, end if end >= 0 else None, -1)
        return (slice(None), row[0], column[0]), (slice(None), row[1], target)

    return [[[window(row, column, flip) for flip in (False, True)] for column in columns] for row in rows]


def _visible_parts(size: int) -> list[tuple[slice, slice]]:
    """For each crop offset 0 to 8 along an axis: which slice of the picture stays, and where it lies in the crop."""
    shifts = [min(max(shift, -size), size) for shift in range(-PADDING, PADDING + 1)]
    return [(slice(max(s, 0), size + min(s, 0)), slice(max(-s, 0), size - max(s, 0))) for s in shifts]


def normalise(batch: torch.Tensor, mean: Sequence[float], std: Sequence[float]) -> torch.Tensor:
    """Return (batch / 255 - mean) / std as float32 (B, C, H, W).

    `batch` is uint8 (B, C, H, W) on the CPU; `mean` and `std` hold C values on the scale of 0 to 1.
    """
    offset, scale = _offset_and_scale(tuple(mean), tuple(std))
    return batch.float().sub_(offset).mul_(scale)


@cache
def _offset_and_scale(mean: tuple[float, ...], std: tuple[float, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """What is taken from each value of a channel, 0 to 255, and by what the rest is multiplied: (C, 1, 1) each."""
    return (torch.tensor([255 * value for value in mean]).view(-1, 1, 1),
            torch.tensor([1 / (255 * value) for value in std]).view(-1, 1, 1))
