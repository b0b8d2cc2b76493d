"""Training and evaluation with PyTorch on one device: the steps of an epoch, and the pass over a split."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from data import Loader
from trainer import Evaluation, Trainer, diverged
from utils import random_state, set_random_state

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


class TorchTrainer(Trainer):
    """A PyTorch network and what a training step needs besides the batch."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device, precision: Precision,
                 label_smoothing: float = 0.0) -> None:
        self.model, self.optimizer, self.device = model, optimizer, device
        self.precision, self.label_smoothing = precision, label_smoothing

    def step(self, images: Tensor, labels: Tensor) -> Tensor:
        """Forward, loss, backward, update; returns the batch's mean loss, still on the device."""
        self.optimizer.zero_grad()
        with self.precision.autocast():
            loss = functional.cross_entropy(self.model(images), labels, label_smoothing=self.label_smoothing)
        scaler = self.precision.scaler
        scaler.scale(loss).backward()
        scaler.step(self.optimizer)
        scaler.update()
        return loss.detach()

    def train_epoch(self, loader: Loader, epoch: int, first_batch: int = 0, *, rate: Callable[[float], float],
                    after_batch: Callable[[int], None], max_batches: int | None = None) -> int:
        scaler = self.precision.scaler
        self.model.train()
        look_every = STEPS_BETWEEN_LOOKS.get(self.device.type, 1)
        unseen: list[Tensor] = []  # losses that nobody looked at yet
        skipped_steps = 0
        for batch, (images, labels) in enumerate(loader.batches(epoch, first_batch, max_batches), start=first_batch):
            for group in self.optimizer.param_groups:
                group["lr"] = rate(epoch + batch / len(loader))
            scale = scaler.get_scale()  # this makes a GPU wait, but only where the scaler is enabled
            unseen.append(self.step(self._here(images), self._here(labels)))
            skipped_steps += scaler.get_scale() < scale
            if len(unseen) == look_every:
                _check_finite(unseen, epoch, batch)
            after_batch(batch + 1)
        if unseen:
            _check_finite(unseen, epoch, batch)
        return skipped_steps

    @torch.no_grad()
    def evaluate(self, loader: Loader, *, after_batch: Callable[[int], None] = lambda done: None,
                 max_batches: int | None = None, moment: str = "in the evaluation") -> Evaluation:
        loss = torch.zeros((), dtype=torch.float64, device=self.device)
        said: list[tuple[Tensor, Tensor, Tensor]] = []
        for batch, (images, labels) in enumerate(loader.batches(max_batches=max_batches)):
            labels = self._here(labels)
            logits = self._logits(images)
            loss += functional.cross_entropy(logits, labels, reduction="none").double().sum()
            probabilities, predictions = logits.softmax(dim=1).max(dim=1)
            said.append((labels, predictions, probabilities))
            after_batch(batch + 1)
        labels, predictions, probabilities = (torch.cat(part).cpu().numpy() for part in zip(*said, strict=True))
        mean = loss.item() / len(labels)
        if not np.isfinite(mean):
            raise diverged(moment)
        return Evaluation(mean, float(np.mean(labels == predictions)), labels, predictions, probabilities)

    @torch.no_grad()
    def predict(self, images: Tensor) -> np.ndarray:
        return self._logits(images).softmax(dim=1).cpu().numpy()

    def _logits(self, images: Tensor) -> Tensor:
        """What the network, in evaluation mode, says of a batch; in float32, as the loss must not be rounded."""
        self.model.eval()
        with self.precision.autocast():
            return self.model(self._here(images)).float()

    def _here(self, batch: Tensor) -> Tensor:
        return batch.to(self.device, non_blocking=True)

    def num_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.model.parameters())

    def weights(self) -> dict[str, Tensor]:
        return self.model.state_dict()

    def load_weights(self, weights: dict[str, Tensor]) -> None:
        self.model.load_state_dict(weights)

    def state(self) -> dict[str, Any]:
        return {"optimizer": self.optimizer.state_dict(), "scaler": self.precision.scaler.state_dict(),
                "random_state": random_state()}

    def restore(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state["optimizer"])
        if state["scaler"]:  # empty if the run had none: `--amp` decides anew on another device
            self.precision.scaler.load_state_dict(state["scaler"])
        set_random_state(state["random_state"])


def _check_finite(losses: list[Tensor], epoch: int, last_step: int) -> None:
    """Look at the losses, of which the last belongs to step `last_step` (from 0), and forget them."""
    finite = [math.isfinite(loss) for loss in torch.stack(losses).tolist()]
    if not all(finite):
        step = last_step - len(losses) + 1 + finite.index(False)
        raise diverged(f"in epoch {epoch + 1}, step {step + 1}")
    losses.clear()
