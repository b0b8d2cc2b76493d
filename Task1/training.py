"""One epoch of training, and one evaluation: what every run, on one device or on many, does again and again."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from data import Loader
from utils import UserError

# A loss is looked at when it is no more than this many steps old: the look makes a GPU wait, so not at every step.
STEPS_BETWEEN_LOOKS = {"cpu": 1, "cuda": 50}


class Precision:
    """The number format of forward and loss, and the scaler that float16's small gradients need."""

    def __init__(self, amp: str, device: torch.device) -> None:
        self.device_type = device.type
        if amp == "auto":
            if device.type == "cuda":
                amp = "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float16"
            else:
                amp = "off"
        if amp == "float16" and device.type == "cpu":
            amp = "off"  # a CPU computes float16 more slowly than float32; bfloat16 can be asked for
        self.name = amp
        self.dtype = {"off": None, "float16": torch.float16, "bfloat16": torch.bfloat16}[amp]
        self.scaler = torch.amp.GradScaler(device.type, enabled=amp == "float16")

    def autocast(self) -> torch.autocast:
        return torch.autocast(self.device_type, dtype=self.dtype, enabled=self.dtype is not None)


@dataclass
class Step:
    """What a training step needs besides the batch."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    precision: Precision
    label_smoothing: float = 0.0

    def __call__(self, images: Tensor, labels: Tensor) -> Tensor:
        """Forward, loss, backward, update; returns the batch's mean loss, still on the device."""
        self.optimizer.zero_grad()
        with self.precision.autocast():
            loss = functional.cross_entropy(self.model(images), labels, label_smoothing=self.label_smoothing)
        scaler = self.precision.scaler
        scaler.scale(loss).backward()
        scaler.step(self.optimizer)
        scaler.update()
        return loss.detach()


@dataclass
class TrainingPass:
    """How many pictures a pass took, and in how many seconds; and in how many of its steps the weights stayed, since
    float16's gradients had overflowed and the scaler made the loss smaller."""

    images: int
    seconds: float
    skipped_steps: int


def train_epoch(step: Step, loader: Loader, device: torch.device, epoch: int, first_batch: int = 0, *,
                rate: Callable[[float], float], after_batch: Callable[[int], None],
                max_batches: int | None = None) -> TrainingPass:
    """Train on the batches of one epoch (counted from 0), from `first_batch` on.

    `rate(time)` is the learning rate at a time in epochs; `after_batch(done)` hears how many batches of the epoch are
    done and may end the pass by raising. Raises `UserError` with epoch and step for a loss that is not finite.
    """
    model, optimizer, scaler = step.model, step.optimizer, step.precision.scaler
    model.train()
    batches = len(loader)
    look_every = STEPS_BETWEEN_LOOKS.get(device.type, 1)
    unseen: list[Tensor] = []  # losses that nobody looked at yet
    images_done = skipped_steps = 0
    start = time.perf_counter()
    for batch, (images, labels) in enumerate(loader.batches(epoch, first_batch, max_batches), start=first_batch):
        for group in optimizer.param_groups:
            group["lr"] = rate(epoch + batch / batches)
        scale = scaler.get_scale()  # this makes a GPU wait, but only where the scaler is enabled
        unseen.append(step(images.to(device, non_blocking=True), labels.to(device, non_blocking=True)))
        images_done += len(labels)
        skipped_steps += scaler.get_scale() < scale
        if len(unseen) == look_every:
            _check_finite(unseen, epoch, batch)
        after_batch(batch + 1)
    if unseen:
        _check_finite(unseen, epoch, batch)
    return TrainingPass(images_done, time.perf_counter() - start, skipped_steps)


def _check_finite(losses: list[Tensor], epoch: int, last_step: int) -> None:
    """Look at the losses, of which the last belongs to step `last_step` (from 0), and forget them."""
    finite = torch.stack(losses).isfinite().tolist()
    if not all(finite):
        step = last_step - len(losses) + 1 + finite.index(False)
        raise UserError(f"the loss is not finite in epoch {epoch + 1}, step {step + 1}; the best model so far is kept; "
                        "try a lower --lr")
    losses.clear()


@dataclass
class Evaluation:
    """Mean loss (cross-entropy without smoothing) and accuracy of a split, and what was said of each picture."""

    loss: float
    accuracy: float
    labels: np.ndarray  # int64, (N,)
    predictions: np.ndarray  # int64, (N,)
    probabilities: np.ndarray  # float32, (N,): of the predicted class

    def per_class_accuracy(self, num_classes: int) -> list[float | None]:
        """Share of each class's pictures that were recognised; None for a class without pictures."""
        total = np.bincount(self.labels, minlength=num_classes)
        right = np.bincount(self.labels[self.labels == self.predictions], minlength=num_classes)
        return [float(r / t) if t else None for r, t in zip(right, total, strict=True)]


@torch.no_grad()
def evaluate(model: nn.Module, loader: Loader, device: torch.device, precision: Precision, *,
             after_batch: Callable[[int], None] = lambda done: None, max_batches: int | None = None,
             moment: str = "in the evaluation") -> Evaluation:
    """Loss and accuracy over a split, each picture weighing the same whatever batch it came in.

    The model is left in evaluation mode, its weights and buffers unchanged. Raises `UserError`, which names the
    `moment`, for a loss that is not finite.
    """
    model.eval()
    loss = torch.zeros((), dtype=torch.float64, device=device)
    said: list[tuple[Tensor, Tensor, Tensor]] = []
    for batch, (images, labels) in enumerate(loader.batches(max_batches=max_batches)):
        labels = labels.to(device, non_blocking=True)
        with precision.autocast():
            logits = model(images.to(device, non_blocking=True))
        logits = logits.float()
        loss += functional.cross_entropy(logits, labels, reduction="none").double().sum()
        probabilities, predictions = logits.softmax(dim=1).max(dim=1)
        said.append((labels, predictions, probabilities))
        after_batch(batch + 1)
    labels, predictions, probabilities = (torch.cat(part).cpu().numpy() for part in zip(*said, strict=True))
    mean = loss.item() / len(labels)
    if not np.isfinite(mean):
        raise UserError(f"the loss is not finite {moment}: the weights have diverged; the best model so far is kept; "
                        "try a lower --lr")
    return Evaluation(mean, float(np.mean(labels == predictions)), labels, predictions, probabilities)
