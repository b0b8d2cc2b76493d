"""What a run asks of a framework: the one class that each folder's `training.py` fills."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from data import Loader
from utils import UserError


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


class Trainer(ABC):
    """A network, its optimizer and the device that they are on.

    What is saved of them is made of `torch.Tensor`s on any device and of plain values, whatever the framework:
    `torch.load(weights_only=True)` reads nothing else.
    """

    @abstractmethod
    def train_epoch(self, loader: Loader, epoch: int, first_batch: int = 0, *, rate: Callable[[float], float],
                    after_batch: Callable[[int], None], max_batches: int | None = None) -> int:
        """Train on the batches of one epoch (counted from 0), from `first_batch` on.

        `rate(time)` is the learning rate at a time in epochs; `after_batch(done)` hears how many batches of the epoch
        are done and may end the pass by raising. Returns how many steps left the weights as they were, since gradients
        overflowed the number format. Raises `UserError` with epoch and step for a loss that is not finite.
        """

    @abstractmethod
    def evaluate(self, loader: Loader, *, after_batch: Callable[[int], None] = lambda done: None,
                 max_batches: int | None = None, moment: str = "in the evaluation") -> Evaluation:
        """Loss and accuracy over a split, each picture weighing the same whatever batch it came in.

        Weights and buffers stay as they are. Raises `UserError`, which names the `moment`, for a loss that is not
        finite.
        """

    @abstractmethod
    def predict(self, images: Tensor) -> np.ndarray:
        """The probability of each class, (N, classes), for normalised pictures (N, C, H, W)."""

    @abstractmethod
    def num_parameters(self) -> int:
        """How many numbers are trained."""

    @abstractmethod
    def weights(self) -> dict[str, Tensor]:
        """Parameters and buffers by their names: what `best_model.pth` holds."""

    @abstractmethod
    def load_weights(self, weights: dict[str, Tensor]) -> None:
        """Take up what `weights` returned; names and shapes have been compared with the network's own."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """All else that goes on from step to step: "optimizer", "random_state", and what the framework needs."""

    @abstractmethod
    def restore(self, state: dict[str, Any]) -> None:
        """Take up what `state` returned; there may be other entries beside it."""


def diverged(moment: str) -> UserError:
    """The error of a loss that is not finite."""
    return UserError(f"the loss is not finite {moment}; the best model so far is kept; try a lower --lr")
