"""Training and evaluation with mytorch: the steps of an epoch, and the pass over a split."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import mytorch
from data import Loader
from mytorch import Tensor, TensorDevice, nn, optim
from trainer import Evaluation, Trainer, diverged


class MytorchTrainer(Trainer):
    """A network of mytorch. PyTorch's tensors come in from the loader and go out into files; nothing computes on them.

    The files are PyTorch's: `weights` has the names and shapes that the same network has there.
    """

    def __init__(self, model: nn.Module, optimizer: optim.Optimizer, device: TensorDevice,
                 label_smoothing: float = 0.0) -> None:
        self.model, self.optimizer, self.device = model, optimizer, device
        self.label_smoothing = label_smoothing

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> float:
        """Forward, loss, backward, update; returns the batch's mean loss."""
        logits = self.model(self._here(images))
        loss = mytorch.cross_entropy(logits, labels.numpy(), label_smoothing=self.label_smoothing)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def train_epoch(self, loader: Loader, epoch: int, first_batch: int = 0, *, rate: Callable[[float], float],
                    after_batch: Callable[[int], None], max_batches: int | None = None) -> int:
        self.model.train()
        for batch, (images, labels) in enumerate(loader.batches(epoch, first_batch, max_batches), start=first_batch):
            for group in self.optimizer.param_groups:
                group["lr"] = rate(epoch + batch / len(loader))
            if not math.isfinite(self.step(images, labels)):
                raise diverged(f"in epoch {epoch + 1}, step {batch + 1}")
            after_batch(batch + 1)
        return 0

    @mytorch.no_grad()
    def evaluate(self, loader: Loader, *, after_batch: Callable[[int], None] = lambda done: None,
                 max_batches: int | None = None, moment: str = "in the evaluation") -> Evaluation:
        self.model.eval()
        losses: list[np.ndarray] = []
        said: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        for batch, (images, labels) in enumerate(loader.batches(max_batches=max_batches)):
            labels = labels.numpy()
            log_probabilities = mytorch.log_softmax(self.model(self._here(images))).numpy()
            losses.append(-log_probabilities[np.arange(len(labels)), labels])
            said.append((labels, log_probabilities.argmax(axis=1), np.exp(log_probabilities.max(axis=1))))
            after_batch(batch + 1)
        loss = np.concatenate(losses).mean(dtype=np.float64)
        if not np.isfinite(loss):
            raise diverged(moment)
        labels, predictions, probabilities = map(np.concatenate, zip(*said, strict=True))
        return Evaluation(float(loss), float(np.mean(labels == predictions)), labels, predictions, probabilities)

    @mytorch.no_grad()
    def predict(self, images: torch.Tensor) -> np.ndarray:
        self.model.eval()
        return mytorch.softmax(self.model(self._here(images))).numpy()

    def _here(self, images: torch.Tensor) -> Tensor:
        return Tensor(images.numpy(), self.device, requires_grad=False)

    def num_parameters(self) -> int:
        return sum(math.prod(parameter.shape) for parameter in self.model.parameters())

    def weights(self) -> dict[str, torch.Tensor]:
        return _as_torch(self.model.state_dict())

    def load_weights(self, weights: dict[str, torch.Tensor]) -> None:
        self.model.load_state_dict(weights)

    def state(self) -> dict[str, Any]:
        return {"optimizer": _as_torch(self.optimizer.state_dict()), "random_state": mytorch.get_rng_state()}

    def restore(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state["optimizer"])
        mytorch.set_rng_state(state["random_state"])


def _as_torch(value: Any) -> Any:
    """The same value with PyTorch's tensors in place of NumPy's arrays, which `weights_only` refuses to load."""
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value)
    if isinstance(value, dict):
        return {key: _as_torch(part) for key, part in value.items()}
    return [_as_torch(part) for part in value] if isinstance(value, list) else value
