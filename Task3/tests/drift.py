"""How far training drifts from PyTorch in float64: ours, and PyTorch in float32.

    python Task3/tests/drift.py      prints a table: 50 steps, 32x32 pictures (about ten minutes)

All three start from the same weights of PyTorch and take the same batches. Rounding makes them part, and once a ReLU's
input or a maximum falls on the other side, the runs are different ones: right code drifts too, as PyTorch's float32
does.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import torch

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    import extension
    extension.ensure_built()

import mytorch
from models import MODELS, get_model
from mytorch import Tensor, nn
from twin import twin_of

OPTIMIZERS = {"SGD": {"lr": 0.01, "momentum": 0.9, "weight_decay": 5e-4}, "Adam": {"lr": 5e-4}}


def pair(name: str, seed: int = 0, **options) -> tuple[nn.Module, torch.nn.Module]:
    """A network of ours (built with `options`) and its twin, both with PyTorch's initial weights."""
    ours = get_model(name, **options)
    theirs = twin_of(ours)
    torch.manual_seed(seed)
    for layer in theirs.modules():
        if hasattr(layer, "reset_parameters"):
            layer.reset_parameters()
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def batch(number: int, size: int, side: int = 32) -> tuple[np.ndarray, np.ndarray]:
    """Pictures (size, 3, side, side), a pattern of their class under noise, and their labels (size,)."""
    def noise(count: int, seed: int) -> np.ndarray:
        return np.random.default_rng(seed).standard_normal((count, 3, side, side)).astype(np.float32)
    labels = np.random.default_rng(number).integers(0, 10, size)
    return noise(size, number + 1) + 3 * noise(10, 0)[labels], labels


def our_losses(model: nn.Module, optimizer: mytorch.optim.Optimizer, batches: list) -> list[float]:
    """Train with mytorch; returns the loss of each step."""
    losses = []
    for images, labels in batches:
        optimizer.zero_grad()
        loss = mytorch.cross_entropy(model(Tensor(images, requires_grad=False)), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def torch_losses(model: torch.nn.Module, optimizer: torch.optim.Optimizer, batches: list) -> list[float]:
    """Train with PyTorch, in the model's type; returns the loss of each step."""
    dtype = next(model.parameters()).dtype
    losses = []
    for images, labels in batches:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(torch.tensor(images, dtype=dtype)), torch.tensor(labels))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def drifts(name: str, optimizer: str, steps: int, size: int, seed: int, side: int = 32) -> np.ndarray:
    """How far the loss of each step is from PyTorch's in float64, relative to it: of ours, and of PyTorch in float32.

    Returns an array (2, steps).
    """
    ours, torch32 = pair(name, seed, dropout=0.0, image_size=side)
    torch64 = twin_of(ours).double()
    our_optimizer, torch_optimizer = getattr(mytorch.optim, optimizer), getattr(torch.optim, optimizer)
    options = OPTIMIZERS[optimizer]
    batches = [batch(1000 * seed + step, size, side) for step in range(steps)]
    exact = torch_losses(torch64, torch_optimizer(torch64.parameters(), **options), batches)
    rounded = [our_losses(ours, our_optimizer(ours.parameters(), **options), batches),
               torch_losses(torch32, torch_optimizer(torch32.parameters(), **options), batches)]
    return np.abs(np.array(rounded) / exact - 1)


def main(arguments: list[str] | None = None) -> int:
    """Print a row for each network and optimizer, with the largest drift in the run of each seed, sorted."""
    parser = argparse.ArgumentParser(description="Measure how far training drifts from PyTorch in float64.")
    parser.add_argument("--steps", type=int, default=50, help="steps of each run (default: 50)")
    parser.add_argument("--batch-size", type=int, default=8, help="pictures a step (default: 8)")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each kind (default: 3)")
    parser.add_argument("--side", type=int, default=32, help="of the pictures, in pixels (default: 32)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    print(f"largest relative difference of a loss from PyTorch's in float64, {options.steps} steps of "
          f"{options.batch_size} pictures of {options.side}x{options.side}, {options.seeds} seeds\n")
    print(f"| network | optimizer | ours, 5 steps | PyTorch float32 | ours, {options.steps} steps | PyTorch float32 |")
    print("|---|---|---|---|---|---|")
    for name in MODELS:
        for optimizer in OPTIMIZERS:
            runs = np.array([drifts(name, optimizer, options.steps, options.batch_size, seed, options.side)
                             for seed in range(options.seeds)])
            cells = [", ".join(f"{drift:.0e}" for drift in sorted(runs[:, implementation, :steps].max(-1)))
                     for steps in (5, options.steps) for implementation in (0, 1)]
            print(f"| {name} | {optimizer} | {' | '.join(cells)} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
