"""From a data set to batches: the split into training and validation, and the loaders of each view."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import augment
from datasets import Split, load_dataset
from pictures import read_picture
from utils import UserError, random_stream

PICTURES_IN_DIGEST = 16  # of each view
VALIDATION_SHARE = 10  # one picture in ten is held out: 5,000 of CIFAR-10's 50,000


@dataclass
class Data:
    """A data set, split and ready to be read in batches."""

    name: str
    classes: tuple[str, ...]
    channels: int
    image_size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    train: Loader
    train_plain: Loader
    """The pictures of `train`, in their order and without augmentation."""
    val: Loader
    test: Loader

    def digest(self) -> str:
        """Changes with the labels, and with most changes of the pictures to train and to validate: some are looked at.

        The test split is not, which a run leaves alone until its end.
        """
        digest = hashlib.sha256()
        for loader in (self.train_plain, self.val):
            digest.update(loader.split.labels[loader.indices].numpy().tobytes())
            shown = np.linspace(0, len(loader.indices) - 1, PICTURES_IN_DIGEST).astype(int)
            digest.update(loader.raw_pictures(shown).tobytes())
        return digest.hexdigest()

    def read(self, file: Path) -> Tensor:
        """A picture of the user's, (1, C, H, W), prepared like the data set's own."""
        picture = read_picture(file, self.image_size, self.channels)
        return augment.normalise(torch.from_numpy(picture.transpose(2, 0, 1)[None].copy()), self.mean, self.std)


def load_data(name: str, data_dir: Path, image_size: int | None = None, *, batch_size: int,
              augmentation: str = "standard", seed: int = 0, workers: int = 0, progress: bool = True) -> Data:
    """Load a data set, and cut the validation pictures out of it if it has none of its own.

    Training batches are of `batch_size` pictures, those of the other views of twice as many.
    """
    dataset = load_dataset(name, data_dir, image_size, progress=progress)
    train_split, val_split = dataset.train, dataset.val
    if val_split is None:
        train_indices, val_indices = split_indices(len(train_split.labels), seed)
        val_split = train_split
    else:
        train_indices, val_indices = np.arange(len(train_split.labels)), np.arange(len(val_split.labels))
    common = {"mean": dataset.mean, "std": dataset.std, "seed": seed, "workers": workers}
    evaluation = {**common, "batch_size": 2 * batch_size}
    return Data(
        dataset.name, dataset.classes, dataset.channels, dataset.image_size, dataset.mean, dataset.std,
        train=Loader(train_split, train_indices, batch_size=batch_size, training=True,
                     augmentation=augmentation, flip=dataset.flip, **common),
        train_plain=Loader(train_split, train_indices, **evaluation),
        val=Loader(val_split, val_indices, **evaluation),
        test=Loader(dataset.test, np.arange(len(dataset.test.labels)), **evaluation),
    )


def split_indices(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Which pictures train and which validate: two disjoint sorted lists, a function of count and seed alone."""
    if count < 2:
        raise UserError(f"there are too few training pictures ({count}) to hold one out; give at least 2")
    order = random_stream(seed, "split").permutation(count)
    held_out = max(1, count // VALIDATION_SHARE)
    return np.sort(order[held_out:]), np.sort(order[:held_out])


class Loader:
    """Some of a split's pictures as batches of (float32 (B, C, H, W), int64 (B,)), normalised.

    A `training` loader goes through them in an order, and with an augmentation, that are functions of seed and epoch;
    so an epoch can be entered at any batch. The others keep the order given, and change nothing in the pictures.
    """

    def __init__(self, split: Split, indices: np.ndarray, batch_size: int, mean: tuple[float, ...],
                 std: tuple[float, ...], *, training: bool = False, augmentation: str = "none", flip: bool = True,
                 seed: int = 0, workers: int = 0) -> None:
        self.split, self.indices = split, indices
        self.mean, self.std = mean, std
        self.training, self.augmentation, self.flip = training, augmentation, flip
        self.seed, self.workers = seed, workers
        self.bounds = batch_bounds(len(indices), batch_size, lone_last=not training)

    def __len__(self) -> int:
        """The number of batches."""
        return len(self.bounds)

    def batches(self, epoch: int = 0, first_batch: int = 0,
                max_batches: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of an epoch (counted from 0) from `first_batch` on, up to number `max_batches`."""
        order, parameters = self.indices, None
        if self.training:
            order = order[random_stream(self.seed, "order", epoch).permutation(len(order))]
            parameters = augment.draw(self.augmentation, len(order), random_stream(self.seed, "augment", epoch),
                                      self.flip)
        bounds = self.bounds[first_batch:max_batches]
        index_batches = [order[start:stop] for start, stop in bounds]
        for (start, stop), pictures, index in zip(bounds, self._read(index_batches), index_batches, strict=True):
            if parameters is not None:
                pictures = augment.apply(pictures, parameters[start:stop])
            yield augment.normalise(pictures, self.mean, self.std), self.split.labels[index]

    def raw_pictures(self, positions: np.ndarray) -> np.ndarray:
        """The pictures at these positions of the plain order, uint8 (M, C, H, W)."""
        if not len(positions):
            return np.empty((0, self.split.channels, self.split.size, self.split.size), np.uint8)
        return next(iter(self.split.read([self.indices[positions]], workers=0))).numpy()

    def _read(self, index_batches: list[np.ndarray]) -> Iterator[Tensor]:
        return self.split.read(index_batches, self.workers)


def batch_bounds(count: int, batch_size: int, lone_last: bool = True) -> list[tuple[int, int]]:
    """(start, stop) of each batch; every position is in one of them.

    Unless `lone_last`, a last batch of one picture joins the batch before it: batch-norm has no variance to take of one
    picture whose features are a single number a channel.
    """
    starts = list(range(0, count, batch_size))
    if not lone_last and len(starts) > 1 and count - starts[-1] == 1 and batch_size > 1:
        starts.pop()
    return list(zip(starts, [*starts[1:], count], strict=True))
