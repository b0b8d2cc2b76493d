"""The data sets by name: where their pictures come from, their classes and their mean and deviation."""

from __future__ import annotations

import contextlib
import io
import os
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision import datasets as torchvision_datasets
from torchvision.datasets.utils import check_integrity
from torchvision.transforms.v2 import functional as transforms

import synthetic
from folders import PictureFiles, find_splits
from interrupts import signals_held_back
from pictures import CACHE_FOLDER, decode_all, read_picture
from utils import UserError

LARGEST_IN_MEMORY = 64  # pixels a side; bigger pictures stream from their files
LARGEST_SIZE = 4096  # pixels a side that --image-size may ask for
DOWNLOAD_TIMEOUT = 30  # seconds without a byte
CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

# Mean and standard deviation of each channel over all pixels of the training split, on the scale of 0 to 1.
STATISTICS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    # The customary figures, of the lossless pictures. The JPEG tree of CIFAR-10, of quality 75, was measured to have
    # the means 0.4913, 0.4821, 0.4465 and the deviations 0.2452, 0.2428, 0.2606: within 0.01 of these once normalised.
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar100": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    "mnist": ((0.1307,), (0.3081,)),
    # The customary figures. 50 of the 500 pictures of each class were measured: both within 0.002 of them.
    "tiny-imagenet": ((0.4802, 0.4481, 0.3975), (0.2770, 0.2691, 0.2821)),
    # Anybody's pictures: ImageNet's figures, as torchvision's pretrained models take them.
    "imagefolder": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    # Measured on the pictures that `synthetic` draws in their own size; a test does so again.
    "synthetic": ((0.2518, 0.2496, 0.2440), (0.2252, 0.2127, 0.2116)),
    "synthetic-digits": ((0.1109,), (0.2258,)),
}


class Split:
    """The pictures of a split, decoded in memory; `labels` is int64 (N,)."""

    def __init__(self, pictures: Tensor, labels: Tensor) -> None:
        self.pictures, self.labels = pictures, labels
        self.channels, self.size = pictures.shape[1], pictures.shape[2]

    def read(self, index_batches: list[np.ndarray], workers: int) -> Iterator[Tensor]:
        """For each list of indices its pictures, uint8 (B, C, H, W)."""
        for index in index_batches:
            yield self.pictures.index_select(0, torch.from_numpy(index))  # 25 times as fast as pictures[index]


class StreamedSplit:
    """The same for pictures that are decoded when they are asked for, by worker processes."""

    def __init__(self, files: PictureFiles, size: int) -> None:
        self.files, self.size, self.channels = files, size, 3
        self.labels = torch.tensor(files.labels)

    def read(self, index_batches: list[np.ndarray], workers: int) -> Iterator[Tensor]:
        # A generator of its own, or the loader would draw from torch's at each pass, and dropout could not be resumed.
        loader = DataLoader(_FileDataset(self.files.paths, self.size), num_workers=workers, collate_fn=_stack,
                            batch_sampler=[index.tolist() for index in index_batches], generator=torch.Generator())
        try:
            with signals_held_back():  # for good in the workers: one that Ctrl-C ended too would look like a fault
                batches = iter(loader)
            for batch in batches:
                if isinstance(batch, str):
                    raise UserError(batch)
                yield torch.from_numpy(batch)
        except RuntimeError as error:
            if "DataLoader worker" not in str(error):
                raise
            raise UserError("a process that decodes pictures died, most likely for want of memory; "
                            "use --workers 0") from None
        except OSError as error:
            raise UserError(f"processes that decode pictures cannot be started ({error.strerror}); "
                            "use --workers 0") from None


class _FileDataset(Dataset):
    def __init__(self, paths: list[str], size: int) -> None:
        self.paths, self.size = paths, size

    def __getitem__(self, index: int) -> np.ndarray | str:
        try:
            return read_picture(self.paths[index], self.size).transpose(2, 0, 1).copy()
        except UserError as error:
            return str(error)  # an exception would reach the main process wrapped in the worker's traceback


def _stack(pictures: list[np.ndarray | str]) -> np.ndarray | str:
    """A batch, or the first error in it.

    An array, for it comes through a pipe; tensors would come through shared memory, of which a container may have none.
    """
    return next((picture for picture in pictures if isinstance(picture, str)), None) or np.stack(pictures)


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
    if image_size and image_size > LARGEST_SIZE:
        raise UserError(f"--image-size {image_size} is too large; it may be at most {LARGEST_SIZE}")
    try:
        return _load(name, data_dir, image_size, progress)
    except MemoryError:
        raise UserError(f"the pictures of {name} do not fit into the memory; use a smaller --image-size") from None


def _load(name: str, data_dir: Path, image_size: int | None, progress: bool) -> LoadedDataset:
    if name in ("synthetic", "synthetic-digits"):
        return _load_synthetic(name, image_size)
    if name == "tiny-imagenet" and os.path.exists(data_dir / "val" / "val_annotations.txt"):
        raise UserError(f"{data_dir.absolute()} has Tiny ImageNet as it is published, all validation pictures in one "
                        "folder; wanted: train/<wnid>/* and val/<wnid>/*, sorted by val/val_annotations.txt")
    if name in ("imagefolder", "tiny-imagenet"):
        return _load_folders(name, data_dir, image_size or 64, progress)
    if name == "cifar10" and _is_cifar_tree(data_dir):
        return _load_folders(name, data_dir, image_size or 32, progress)
    return _load_torchvision(name, data_dir, image_size, progress)


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
    """Whether CIFAR-10's class folders are there. Raises `UserError` if some are and others are not: the data set is
    never downloaded over a tree that lacks something."""
    wanted = [Path(split, name) for split in ("train", "test") for name in CIFAR10_CLASSES]
    missing = [path for path in wanted if not os.path.isdir(data_dir / path)]
    if missing and len(missing) < len(wanted):
        named = f"{', '.join(map(str, missing[:3]))}{' ...' if len(missing) > 3 else ''}"
        raise UserError(f"{data_dir.absolute()} has class folders of CIFAR-10 but lacks {named}; complete it, or use "
                        "--dataset imagefolder")
    return not missing


def _load_folders(name: str, data_dir: Path, size: int, progress: bool) -> LoadedDataset:
    found = find_splits(data_dir)
    if name == "cifar10" and (foreign := sorted(set(found["train"].classes) - set(CIFAR10_CLASSES))):
        raise UserError(f"{data_dir.absolute()} has the class folder {foreign[0]}, which CIFAR-10 has not; remove it, "
                        "or use --dataset imagefolder")
    splits: dict[str, Split | StreamedSplit] = {}
    for split, files in found.items():
        if size > LARGEST_IN_MEMORY:
            splits[split] = StreamedSplit(files, size)
        else:
            pictures = decode_all(files, size, data_dir / CACHE_FOLDER / f"{split}-{size}.uint8", progress)
            splits[split] = Split(torch.from_numpy(pictures), torch.tensor(files.labels))
    return LoadedDataset(name, tuple(found["train"].classes), splits["train"], splits.get("val"), splits["test"],
                         *STATISTICS[name])


def _load_torchvision(name: str, data_dir: Path, image_size: int | None, progress: bool) -> LoadedDataset:
    """CIFAR and MNIST as torchvision reads them, downloaded if they are not there."""
    kind = {"cifar10": torchvision_datasets.CIFAR10, "cifar100": torchvision_datasets.CIFAR100,
            "mnist": torchvision_datasets.MNIST}[name]
    try:
        train, test = (_find_or_download(kind, data_dir, train, progress) for train in (True, False))
    except UserError:
        raise
    except Exception as error:  # from torchvision, urllib, tarfile or pickle, each with exceptions of its own
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise UserError(f"{name} is not whole in {data_dir.absolute()} ({_faults(kind, data_dir)}) and cannot be "
                        f"downloaded or read ({reason}); give --data-dir a folder with a whole copy, or use "
                        "--dataset synthetic") from None
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


def _find_or_download(kind: type, data_dir: Path, train: bool,
                      progress: bool) -> torchvision_datasets.VisionDataset:
    try:
        return kind(data_dir, train=train)
    except RuntimeError:  # not there, or damaged
        _refuse_inside(kind, data_dir)
    print(f"downloading {kind.__name__} to {data_dir.absolute()}", flush=True)
    shown = sys.stderr if progress and sys.stderr.isatty() else io.StringIO()
    timeout = socket.getdefaulttimeout()
    socket.setdefaulttimeout(DOWNLOAD_TIMEOUT)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(shown):
            return kind(data_dir, train=train, download=True)
    finally:
        socket.setdefaulttimeout(timeout)


def _refuse_inside(kind: type, data_dir: Path) -> None:
    """Raise `UserError` if `data_dir` is not the folder wanted but one inside it."""
    for file, _ in _files(kind):
        for depth in range(1, len(file.parts)):
            if os.path.isfile(data_dir.joinpath(*file.parts[depth:])):
                raise UserError(f"--data-dir {data_dir} points inside the data set; give the folder "
                                f"{data_dir.absolute().parents[depth - 1]}")


def _faults(kind: type, data_dir: Path) -> str:
    """Which files of a CIFAR or MNIST folder are damaged or missing."""
    missing = [str(file) for file, _ in _files(kind) if not os.path.isfile(data_dir / file)]
    damaged = [str(file) for file, md5 in _archives(kind) + _files(kind)
               if os.path.isfile(data_dir / file) and not check_integrity(data_dir / file, md5)]
    found = [f"{what}: {', '.join(files[:3])}{', ...' * (len(files) > 3)}"
             for what, files in (("damaged", damaged), ("missing", missing)) if files]
    return "; ".join(found) or "all files are there, but one is damaged"


def _files(kind: type) -> list[tuple[Path, str | None]]:
    """The files that torchvision reads a data set from, below `--data-dir`, with their MD5 if it is known."""
    if kind is torchvision_datasets.MNIST:
        return [(archive.with_suffix(""), None) for archive, _ in _archives(kind)]
    return [(Path(kind.base_folder, name), md5)
            for name, md5 in (*kind.train_list, *kind.test_list, (kind.meta["filename"], kind.meta["md5"]))]


def _archives(kind: type) -> list[tuple[Path, str]]:
    """The files that a download leaves, from which those of `_files` are unpacked, with their MD5."""
    if kind is torchvision_datasets.MNIST:
        return [(Path("MNIST", "raw", name), md5) for name, md5 in kind.resources]
    return [(Path(kind.filename), kind.tgz_md5)]
