"""Train, resume, test or use an image classifier with PyTorch on one device: `python Task1/main.py --help`."""

from __future__ import annotations

import argparse
import sys
from typing import Any

import torch
from torch import nn

from data import Data
from models import MODELS, get_model
from program import Program
from training import Precision, TorchTrainer
from utils import choose_device, device_name, set_seed


class Task1(Program):
    task = "task1"
    description = "Train an image classifier with PyTorch on one device."
    models = tuple(MODELS)
    rounding = ("thread_count", "device_name", "amp_dtype", "torch")

    def add_flags(self, group: argparse._ArgumentGroup) -> None:
        group.add_argument("--amp", nargs="?", const="auto", default="off",
                           choices=("auto", "off", "float16", "bfloat16"),
                           help="mixed precision; auto (or --amp alone) uses it on a GPU, not on a CPU")

    def set_up(self, options: argparse.Namespace) -> dict[str, Any]:
        if options.threads:
            torch.set_num_threads(options.threads)
        self.device = choose_device(options.device)
        self.precision = Precision(options.amp, self.device)
        facts = {"device_name": device_name(self.device), "thread_count": torch.get_num_threads(),
                 "amp_dtype": self.precision.name}
        print(f"device: {facts['device_name']}, {facts['thread_count']} threads, "
              f"mixed precision: {facts['amp_dtype']}")
        return facts

    def build_trainer(self, options: argparse.Namespace, data: Data) -> TorchTrainer:
        set_seed(options.seed)
        model = get_model(options.model, len(data.classes), data.channels, data.image_size, options.dropout)
        # What the convolutions of a CPU, and of mixed precision on a GPU, want: benchmark.py measures it.
        model.to(self.device, memory_format=torch.channels_last)
        optimizer = build_optimizer(model, options.optimizer, options.lr, options.weight_decay, options.momentum,
                                    options.nesterov, options.no_bias_decay,
                                    fused=not self.precision.scaler.is_enabled())
        return TorchTrainer(model, optimizer, self.device, self.precision, options.label_smoothing)


def build_optimizer(model: nn.Module, name: str, lr: float, weight_decay: float, momentum: float = 0.9,
                    nesterov: bool = False, no_bias_decay: bool = False, fused: bool = True) -> torch.optim.Optimizer:
    """The optimizer; `momentum` and `nesterov` are SGD's.

    `fused` is PyTorch's one-pass form. It is not for a gradient scaler: when that skips the first step, the momentum of
    fused SGD is whatever lay in the memory.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [{"params": parameters}]
    if no_bias_decay:  # biases, and the scale and shift of norms, are the vectors among the parameters
        groups = [{"params": [p for p in parameters if p.ndim > 1]},
                  {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0}]
    common = {"lr": lr, "weight_decay": weight_decay, "fused": fused}
    if name == "sgd":
        return torch.optim.SGD(groups, momentum=momentum, nesterov=nesterov, **common)
    return {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[name](groups, **common)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    return Task1().main(arguments)


if __name__ == "__main__":
    sys.exit(main())
