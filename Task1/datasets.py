"""The data sets by name: where their pictures come from, their classes and their mean and deviation."""

from __future__ import annotations

import contextlib
import io
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision import datasets as torchvision_datasets
from torchvision.transforms.v2 import functional as transforms

import synthetic
from folders import PictureFiles, find_splits
from pictures import CACHE_FOLDER, decode_all, read_picture
from utils import UserError

LARGEST_IN_MEMORY = 64  # pixels a side; bigger pictures stream from their files
DOWNLOAD_TIMEOUT = 30  # seconds without a byte
CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

# Mean and standard deviation of each channel over the training split, on the scale of 0 to 1. CIFAR's and MNIST's are
# the usual figures, taken over all pixels of the lossless training pictures; Tiny ImageNet's likewise. ImageNet's
# (those of torchvision's pretrained models) serve for picture trees. The synthetic ones were measured the same way.
STATISTICS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar100": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    "mnist": ((0.1307,), (0.3081,)),
    "tiny-imagenet": ((0.4802, 0.4481, 0.3975), (0.2770, 0.2691, 0.2821)),
    "imagefolder": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "synthetic": ((0.5, 0.5, 0.5), (0.25, 0.25, 0.25)),
    "synthetic-digits": ((0.13,), (0.3,)),
}


class Split:
    """The pictures of a split, decoded in memory; `labels` is int64 (N,)."""

    def __init__(self, pictures: Tensor, labels: Tensor) -> None:
        self.pictures, self.labels = pictures, labels
        self.channels, self.size = pictures.shape[1], pictures.shape[2]

    def read(self, index_batches: list[np.ndarray], workers: int) -> Iterator[Tensor]:
        """For each list of indices its pictures, uint8 (B, C, H, W)."""
        for index in index_batches:
            yield self.pictures[torch.from_numpy(index)]


class StreamedSplit:
    """The same for pictures that are decoded when they are asked for, by worker processes."""

    def __init__(self, files: PictureFiles, size: int) -> None:
        self.files, self.size, self.channels = files, size, 3
        self.labels = torch.tensor(files.labels)

    def read(self, index_batches: list[np.ndarray], workers: int) -> Iterator[Tensor]:
        loader = DataLoader(_FileDataset(self.files.paths, self.size), num_workers=workers, collate_fn=_stack,
                            batch_sampler=[index.tolist() for index in index_batches])
        try:
            for batch in loader:
                if isinstance(batch, str):
                    raise UserError(batch)
                yield batch
        except RuntimeError as error:
            if "DataLoader worker" not in str(error):
                raise
            raise UserError("a process that decodes pictures died, most likely for want of shared memory (/dev/shm); "
                            "use --workers 0") from None


class _FileDataset(Dataset):
    def __init__(self, paths: list[str], size: int) -> None:
        self.paths, self.size = paths, size

    def __getitem__(self, index: int) -> Tensor | str:
        try:
            return torch.from_numpy(read_picture(self.paths[index], self.size).transpose(2, 0, 1).copy())
        except UserError as error:
            return str(error)  # an exception would reach the main process wrapped in the worker's traceback


def _stack(pictures: list[Tensor | str]) -> Tensor | str:
    """A batch, or the first error in it."""
    return next((picture for picture in pictures if isinstance(picture, str)), None) or torch.stack(pictures)


@dataclass
class LoadedDataset:
    """What `load_dataset` finds: `val` is None where the data set has no validation split of its own."""

    name: str
    classes: tuple[str, ...]
    train: Split | StreamedSplit
    val: Split | StreamedSplit | None
    test: Split | StreamedSplit
    mean: tuple[float, ...]
    std: tuple[float, ...]
    flip: bool = True
    """Whether a mirrored picture is of the same class: not so for digits."""

    @property
    def channels(self) -> int:
        return self.train.channels

    @property
    def image_size(self) -> int:
        return self.train.size


def load_dataset(name: str, data_dir: Path, image_size: int | None = None, progress: bool = False) -> LoadedDataset:
    """Load a data set by the name that `--dataset` gives it.

    `image_size` brings the pictures to another side than their own. Raises `UserError` for data that are missing or
    damaged; other data never take their place.
    """
    if name in ("synthetic", "synthetic-digits"):
        return _load_synthetic(name, image_size)
    if name == "tiny-imagenet" and (data_dir / "val" / "val_annotations.txt").exists():
        raise UserError(f"{data_dir.absolute()} has Tiny ImageNet as it is published, all validation pictures in one "
                        "folder; wanted: train/<wnid>/* and val/<wnid>/*, sorted by val/val_annotations.txt")
    if name in ("imagefolder", "tiny-imagenet") or (name == "cifar10" and _is_cifar_tree(data_dir)):
        return _load_folders(name, data_dir, image_size or {"cifar10": 32}.get(name, 64), progress)
    return _load_torchvision(name, data_dir, image_size)


def _load_synthetic(name: str, image_size: int | None) -> LoadedDataset:
    if name == "synthetic":
        draw, size, classes = synthetic.synthetic_pictures, image_size or 32, synthetic.picture_classes()
        drawn = [draw(split, count, len(classes), size)
                 for split, count in (("train", synthetic.TRAIN_COUNT), ("test", synthetic.TEST_COUNT))]
    else:
        draw, size, classes = synthetic.synthetic_digits, image_size or 28, synthetic.DIGIT_CLASSES
        drawn = [draw(split, count, size)
                 for split, count in (("train", synthetic.TRAIN_COUNT), ("test", synthetic.TEST_COUNT))]
    train, test = (Split(torch.from_numpy(pictures), torch.from_numpy(labels)) for pictures, labels in drawn)
    return LoadedDataset(name, tuple(classes), train, None, test, *STATISTICS[name], flip=name == "synthetic")


def _is_cifar_tree(data_dir: Path) -> bool:
    return all((data_dir / split / name).is_dir() for split in ("train", "test") for name in CIFAR10_CLASSES)


def _load_folders(name: str, data_dir: Path, size: int, progress: bool) -> LoadedDataset:
    found = find_splits(data_dir)
    splits: dict[str, Split | StreamedSplit] = {}
    for split, files in found.items():
        if size > LARGEST_IN_MEMORY:
            splits[split] = StreamedSplit(files, size)
        else:
            pictures = decode_all(files, size, data_dir / CACHE_FOLDER / f"{split}-{size}.uint8", progress)
            splits[split] = Split(torch.from_numpy(pictures), torch.tensor(files.labels))
    return LoadedDataset(name, tuple(found["train"].classes), splits["train"], splits.get("val"), splits["test"],
                         *STATISTICS[name])


def _load_torchvision(name: str, data_dir: Path, image_size: int | None) -> LoadedDataset:
    """CIFAR and MNIST as torchvision reads them, downloaded if they are not there."""
    kind = {"cifar10": torchvision_datasets.CIFAR10, "cifar100": torchvision_datasets.CIFAR100,
            "mnist": torchvision_datasets.MNIST}[name]
    if any((data_dir / file).exists() for file in ("data_batch_1", "train-images-idx3-ubyte")):
        raise UserError(f"--data-dir {data_dir} points inside the data set; give the folder above it")
    timeout = socket.getdefaulttimeout()
    socket.setdefaulttimeout(DOWNLOAD_TIMEOUT)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            train, test = (_find_or_download(kind, data_dir, train) for train in (True, False))
    except Exception as error:  # from torchvision, urllib, tarfile or pickle, each with exceptions of its own
        there = sorted(path.name for path in data_dir.iterdir())[:6] if data_dir.is_dir() else []
        raise UserError(f"{name} is not whole in {data_dir.absolute()} (found there: {', '.join(there) or 'nothing'}) "
                        f"and cannot be downloaded ({type(error).__name__}); give --data-dir a folder with a copy, or "
                        "use --dataset synthetic") from None
    finally:
        socket.setdefaulttimeout(timeout)
    splits = []
    for source in (train, test):
        pictures = torch.as_tensor(source.data)
        pictures = pictures[:, None] if name == "mnist" else pictures.permute(0, 3, 1, 2)
        pictures = pictures.contiguous()
        if image_size and pictures.shape[-1] != image_size:
            pictures = transforms.resize(pictures, [image_size, image_size], antialias=True)
        splits.append(Split(pictures, torch.as_tensor(source.targets)))
    return LoadedDataset(name, tuple(train.classes), splits[0], None, splits[1], *STATISTICS[name],
                         flip=name != "mnist")


def _find_or_download(kind: type, data_dir: Path, train: bool) -> torchvision_datasets.VisionDataset:
    try:
        return kind(data_dir, train=train, download=False)
    except RuntimeError:  # not there, or damaged
        return kind(data_dir, train=train, download=True)
