"""Train, resume, test or use an image classifier on our own framework: `python Task3/main.py --help`."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

import torch

import extension
from data import Data
from program import Program
from utils import UserError

if TYPE_CHECKING:  # they need the extension, which is built only when there is something to compute
    from mytorch import nn, optim
    from training import MytorchTrainer


class Task3(Program):
    task = "task3"
    description = ("Train an image classifier on mytorch, a framework built from scratch. Its C++ part is compiled at "
                   "the first run, and again when its sources change.")
    models = ("lenet", "minivgg", "minivgg-bn")
    rounding = ("device_name", "instruction_set")

    def add_flags(self, group: argparse._ArgumentGroup) -> None:
        group.add_argument("--cuda", action="store_const", const="cuda", dest="device", default=argparse.SUPPRESS,
                           help="short for --device cuda (default: off)")

    def set_up(self, options: argparse.Namespace) -> dict[str, Any]:
        extension.ensure_built()
        import mytensor

        if options.device not in ("auto", "cpu"):
            raise UserError(f"--device {options.device}: mytensor has no CUDA part, it computes on the CPU alone; "
                            "use --device cpu")
        threads = options.threads or mytensor.get_num_threads()
        # PyTorch only loads pictures here: where it has a pool of threads of its own, that would be in the way of ours.
        # Where both share one, the last word counts.
        torch.set_num_threads(1)
        try:
            mytensor.set_num_threads(threads)
        except ValueError as error:
            raise UserError(f"--threads {threads}: {error}") from None
        facts = {"device_name": "cpu", "thread_count": threads, "instruction_set": mytensor.cpu_variant()}
        print(f"device: cpu ({facts['instruction_set']}), {facts['thread_count']} threads")
        return facts

    def build_trainer(self, options: argparse.Namespace, data: Data) -> MytorchTrainer:
        import mytorch
        from models import get_model
        from training import MytorchTrainer

        mytorch.manual_seed(options.seed)
        model = get_model(options.model, len(data.classes), data.channels, data.image_size, options.dropout)
        optimizer = build_optimizer(model, options.optimizer, options.lr, options.weight_decay, options.momentum,
                                    options.nesterov, options.no_bias_decay)
        return MytorchTrainer(model, optimizer, mytorch.TensorDevice.CPU, options.label_smoothing)


def build_optimizer(model: nn.Module, name: str, lr: float, weight_decay: float, momentum: float = 0.9,
                    nesterov: bool = False, no_bias_decay: bool = False) -> optim.Optimizer:
    """The optimizer; `momentum` and `nesterov` are SGD's."""
    from mytorch import optim

    parameters = model.parameters()
    groups = [{"params": parameters}]
    if no_bias_decay:  # biases, and the scale and shift of norms, are the vectors among the parameters
        groups = [{"params": [p for p in parameters if p.ndim > 1]},
                  {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0}]
    if name == "sgd":
        return optim.SGD(groups, lr, momentum, weight_decay, nesterov)
    return {"adam": optim.Adam, "adamw": optim.AdamW}[name](groups, lr, weight_decay=weight_decay)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    return Task3().main(arguments)


if __name__ == "__main__":
    sys.exit(main())
