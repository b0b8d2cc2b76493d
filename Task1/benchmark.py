"""How fast the loader, an epoch and a training step are, each beside what it is compared with.

Machines are noisy, so the two sides of every ratio take turns in this one process, and medians are compared.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from data import Loader
from datasets import STATISTICS, Split, load_dataset
from models import get_model
from options import whole
from training import Precision, TorchTrainer
from utils import UserError, keep_freed_memory

CPU = torch.device("cpu")
BATCH_SIZE = 64
FORMATS = {"NCHW": torch.contiguous_format, "channels-last": torch.channels_last}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=("loader", "epoch", "step", "start"), help="one part (default: all)")
    parser.add_argument("--data-dir", type=Path, metavar="DIR",
                        help="CIFAR-10 as class folders, for `start`: how long reading it takes the first time and the "
                             "second (default: leave this part out)")
    parser.add_argument("--threads", type=whole(1, 1024), metavar="N",
                        help="of epoch and step (default: as many as torch takes)")
    parser.add_argument("--rounds", type=whole(1), default=5, metavar="N",
                        help="how often the sides take turns (default: 5)")
    options = parser.parse_args()
    if options.only == "start" and not options.data_dir:
        parser.error("--only start needs --data-dir")
    if options.threads:
        torch.set_num_threads(options.threads)
    keep_freed_memory()  # as the program does
    parts: dict[str, Callable[[], None]] = {
        "loader": lambda: compare_loaders(options.rounds),
        "epoch": lambda: compare_epoch_with_steps(options.rounds),
        "step": lambda: compare_formats(options.rounds),
    }
    if options.data_dir:
        parts["start"] = lambda: time_starts(options.data_dir)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {torch.backends.cpu.get_cpu_capability()}")
    try:
        for name in [options.only] if options.only else parts:
            parts[name]()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def median_seconds(sides: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median time of each function, all called in turn `rounds` times after one call that warms up."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(rounds + 1):
        for name, run in sides.items():
            start = time.perf_counter()
            run()
            if turn:
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) for name, times in seconds.items()}


def noise(count: int) -> tuple[Tensor, Tensor]:
    """Pictures and labels: no part's time depends on what they show."""
    rng = np.random.default_rng(0)
    return (torch.from_numpy(rng.integers(256, size=(count, 3, 32, 32), dtype=np.uint8)),
            torch.from_numpy(rng.integers(10, size=count)))


def loader_of(count: int, augmentation: str = "standard") -> Loader:
    mean, std = STATISTICS["cifar10"]
    return Loader(Split(*noise(count)), np.arange(count), BATCH_SIZE, mean, std, training=True,
                  augmentation=augmentation)


class PerPicture(Dataset):
    """The usual way, that of torchvision's CIFAR10: each picture goes on its own, as one of Pillow's, through them."""

    def __init__(self, count: int) -> None:
        pictures, self.labels = noise(count)
        self.pictures = pictures.permute(0, 2, 3, 1).contiguous().numpy()
        mean, std = STATISTICS["cifar10"]
        self.transform = transforms.Compose([
            transforms.RandomCrop(32, padding=4), transforms.RandomHorizontalFlip(),
            transforms.ToTensor(), transforms.Normalize(mean, std),
        ])

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.transform(Image.fromarray(self.pictures[index])), self.labels[index]


def drain(batches: Iterator) -> None:
    for _ in batches:
        pass


def compare_loaders(rounds: int, count: int = 4096) -> None:
    """Our batch loader against torchvision's transforms under a DataLoader, both on one core."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    ours, usual = loader_of(count), DataLoader(PerPicture(count), BATCH_SIZE, shuffle=True)
    seconds = median_seconds({"ours": lambda: drain(ours.batches()), "usual": lambda: drain(iter(usual))}, rounds)
    torch.set_num_threads(threads)
    print(f"loader, one core: {count / seconds['ours']:,.0f} pictures/s; torchvision's transforms picture by picture: "
          f"{count / seconds['usual']:,.0f}; ratio {seconds['usual'] / seconds['ours']:.1f}")


def trainer_of(model: str, memory_format: torch.memory_format, amp: str) -> TorchTrainer:
    torch.manual_seed(0)
    network = get_model(model).to(memory_format=memory_format).train()
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-6, momentum=0.9, weight_decay=5e-4, fused=True)
    return TorchTrainer(network, optimizer, CPU, Precision(amp, CPU))


def compare_epoch_with_steps(rounds: int) -> None:
    """The training pass of an epoch, loader and bookkeeping included, against its steps on batches made before."""
    for model, count in (("lenet", 8192), ("minivgg", 1024)):
        loader, trainer = loader_of(count), trainer_of(model, torch.channels_last, "off")
        made = list(loader.batches())
        epoch = partial(trainer.train_epoch, loader, 0, rate=lambda at: 1e-6, after_batch=lambda done: None)
        seconds = median_seconds({"epoch": epoch, "steps": partial(repeat_step, trainer, made)}, rounds)
        print(f"{model}: training pass of an epoch {seconds['epoch']:.2f} s, its bare steps {seconds['steps']:.2f} s; "
              f"ratio {seconds['epoch'] / seconds['steps']:.3f}")


def repeat_step(trainer: TorchTrainer, batches: list[tuple[Tensor, Tensor]]) -> None:
    for images, labels in batches:
        trainer.step(images, labels)


def compare_formats(rounds: int) -> None:
    """The time of a step in the memory formats and number formats of a CPU."""
    batch = next(loader_of(BATCH_SIZE).batches())
    for model, repeats in (("lenet", 20), ("minivgg", 2)):
        sides = {f"{amp.replace('off', 'float32')}, {name}":
                 partial(repeat_step, trainer_of(model, memory_format, amp), [batch] * repeats)
                 for name, memory_format in FORMATS.items() for amp in ("off", "bfloat16")}
        seconds = median_seconds(sides, rounds)
        print(f"{model}, a step of {BATCH_SIZE} pictures: " + "; ".join(
            f"{name} {1000 * time / repeats:.2f} ms" for name, time in seconds.items()))
        print(f"{model}: logits in channels-last differ from those in NCHW by at most "
              f"{format_difference(model, batch[0]):.1e} of the largest")


@torch.no_grad()
def format_difference(model: str, pictures: Tensor) -> float:
    """How far the memory format changes float32 results, relative to the largest logit."""
    plain, other = (trainer_of(model, memory_format, "off").model(pictures) for memory_format in FORMATS.values())
    return ((plain - other).abs().max() / plain.abs().max()).item()


def time_starts(data_dir: Path) -> None:
    """Reading the tree when its pictures are decoded, and when they were decoded before."""
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch)
        for split in ("train", "test"):  # links, so that the cache of the user's own folder stays as it is
            (copy / split).symlink_to((data_dir / split).absolute())
        for name in ("first start", "second start"):
            start = time.perf_counter()
            dataset = load_dataset("cifar10", copy)
            seconds = time.perf_counter() - start
            pictures = len(dataset.train.labels) + len(dataset.test.labels)
            print(f"{name}: {pictures:,} pictures in {seconds:.2f} s")


if __name__ == "__main__":
    sys.exit(main())
