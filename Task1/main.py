"""Train, resume, test or use an image classifier with PyTorch on one device: `python Task1/main.py --help`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from torch import nn

import checkpoints
import interrupts
import run_folder
import tracking
from data import Data, load_data
from models import MODELS, get_model
from options import FREE_ON_RESUME, check_combinations, common_parser, flag, number, parse
from run import Run
from testing import predict_files, test_checkpoint
from training import Precision, Step
from utils import (
    UserError,
    choose_device,
    device_name,
    discard_output,
    keep_freed_memory,
    prepare_output,
    set_seed,
    versions,
)

TASK = "task1"


def build_parser() -> argparse.ArgumentParser:
    parser = common_parser("Train an image classifier with PyTorch on one device.", tuple(MODELS))
    group = parser.add_argument_group("in this program alone")
    group.add_argument("--predict", type=Path, nargs="+", metavar="IMAGE",
                       help="with --evaluate: name the class of these pictures and its probability (default: none)")
    group.add_argument("--amp", nargs="?", const="auto", default="off", choices=("auto", "off", "float16", "bfloat16"),
                       help="mixed precision; auto (or --amp alone) uses it on a GPU, not on a CPU")
    group.add_argument("--dropout", type=number(0, 1), default=0.5, metavar="P",
                       help="share of features that minivgg drops before its classifier")
    group.add_argument("--no-bias-decay", action="store_true",
                       help="spare biases and norm parameters the weight decay (default: decay all)")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    interrupts.treat_sigterm_as_ctrl_c()
    prepare_output()
    parser = build_parser()
    options, given = parse(parser, arguments)
    if options.predict and not options.evaluate:
        parser.error("--predict needs --evaluate CHECKPOINT")
    try:
        if options.evaluate:
            evaluate(options)
        else:
            train(parser, options, given)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except (MemoryError, RuntimeError) as error:
        if not memory_is_full(error):
            raise
        print("error: the memory is full; use a smaller --batch-size, or --amp on a GPU", file=sys.stderr)
        return 1
    except (interrupts.Interrupted, KeyboardInterrupt):
        interrupts.ignore_signals()
        print("interrupted", file=sys.stderr)
        return 130
    except OSError as error:  # of the run's files it was told already; what is left is mostly the output's
        discard_output()
        print(f"error: {error.filename or 'a file or the output'} cannot be read or written "
              f"({error.strerror or error}); mend that and go on (a run that began continues with --resume)",
              file=sys.stderr)
        return 1
    return 0


def memory_is_full(error: Exception) -> bool:
    """Whether that is what an error of Python's, or of torch's allocators, says."""
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "can't allocate memory" in str(error)


def train(parser: argparse.ArgumentParser, options: argparse.Namespace, given: set[str]) -> None:
    """Start or continue a run and carry it to its end."""
    default = Path("runs") / f"{TASK}-{options.dataset}-{options.model}"
    checkpoint = None
    if options.resume:
        folder = run_folder.RunFolder(run_folder.find(options.output_dir, default))
        checkpoint = checkpoints.load_resumable(folder / run_folder.LAST_CHECKPOINT)
        adopt_flags(options, given, checkpoint["config"])
        check_combinations(parser, options)
    tracking.require(options.log)

    device, precision = set_up(options)
    data = load_data(options)
    model = build_model(options, data, device)
    step = Step(model, build_optimizer(model, options), precision, options.label_smoothing)

    options.data_dir = options.data_dir.absolute()  # a resumed run may be started elsewhere
    config = {**{name: str(value) if isinstance(value, Path) else value for name, value in vars(options).items()},
              "task": TASK, **versions(), "device_name": device_name(device), "thread_count": torch.get_num_threads(),
              "amp_dtype": precision.name, "classes": list(data.classes),
              "pictures": [len(loader.indices) for loader in (data.train, data.val, data.test)]}
    if checkpoint is None:
        folder = run_folder.create(options.output_dir, default, options.overwrite)
    else:
        check_same_pictures(checkpoint["config"], config)
        say_what_changed(checkpoint["config"], config)
    Run(options, config, folder, data, step, device, checkpoint).carry_out()


def evaluate(options: argparse.Namespace) -> None:
    """Test a checkpoint and, if pictures are given, name their classes."""
    device, precision = set_up(options)
    checkpoints.load(options.evaluate)  # a bad file is told before the data are read
    data = load_data(options)
    model = build_model(options, data, device)
    note = checkpoints.load_weights(model, options.evaluate)
    if note:
        print(note)
    test_checkpoint(model, data, options, device, precision)
    if options.predict:
        predict_files(model, data, options.predict, device, precision)


def set_up(options: argparse.Namespace) -> tuple[torch.device, Precision]:
    """Device, threads, memory and number format."""
    keep_freed_memory()
    if options.threads:
        torch.set_num_threads(options.threads)
    device = choose_device(options.device)
    precision = Precision(options.amp, device)
    print(f"device: {device_name(device)}, {torch.get_num_threads()} threads, mixed precision: {precision.name}")
    return device, precision


def build_model(options: argparse.Namespace, data: Data, device: torch.device) -> nn.Module:
    """The network for these pictures, its weights drawn from the seed whatever was drawn before."""
    set_seed(options.seed)
    model = get_model(options.model, len(data.classes), data.channels, data.image_size, options.dropout)
    # Channels-last is what the convolutions of the CPU and of mixed precision on a GPU want; benchmark.py measures it.
    return model.to(device, memory_format=torch.channels_last)


def build_optimizer(model: nn.Module, options: argparse.Namespace) -> torch.optim.Optimizer:
    """The optimizer, in PyTorch's one-pass (fused) form."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [{"params": parameters}]
    if options.no_bias_decay:  # biases, and the scale and shift of norms, are the vectors among the parameters
        groups = [{"params": [p for p in parameters if p.ndim > 1]},
                  {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0}]
    common = {"lr": options.lr, "weight_decay": options.weight_decay, "fused": True}
    if options.optimizer == "sgd":
        return torch.optim.SGD(groups, momentum=options.momentum, nesterov=options.nesterov, **common)
    return {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[options.optimizer](groups, **common)


def adopt_flags(options: argparse.Namespace, given: set[str], saved: dict) -> None:
    """Take from the run's configuration what was not given; refuse what was given otherwise."""
    if saved.get("task") != TASK:
        raise UserError(f"this run is of {saved.get('task', 'another program')}, not of {TASK}: "
                        "resume it with the program that began it")
    changed = [f"{flag(name)} {getattr(options, name)} (the run has {saved.get(name)})"
               for name in sorted(given - FREE_ON_RESUME) if getattr(options, name) != saved.get(name)]
    if changed:
        raise UserError(f"--resume cannot change {', '.join(changed)}; leave it away, or start a new run")
    for name in vars(options):
        if name not in given and name in saved and name not in ("resume", "overwrite", "output_dir"):
            setattr(options, name, Path(saved[name]) if name == "data_dir" else saved[name])


def check_same_pictures(saved: dict, config: dict) -> None:
    """Refuse to go on with other pictures: the classes would get other numbers, the split would be another."""
    others = sorted(set(saved["classes"]) ^ set(config["classes"]))
    change = f"the class {others[0]} came or went" if others else ""
    if not change and saved["pictures"] != config["pictures"]:
        change = f"{saved['pictures']} pictures to train, validate and test became {config['pictures']}"
    if change:
        raise UserError(f"the run began with other data ({change}); give the --data-dir that it had, or start a new "
                        "run")


def say_what_changed(saved: dict, config: dict) -> None:
    """Tell of changes after which the numbers are right but not the same to the last bit."""
    for name in ("thread_count", "device_name", "amp_dtype", "torch"):
        if saved.get(name) != config[name]:
            print(f"note: {name} was {saved.get(name)}, now {config[name]}: "
                  "the last bits may differ from an uninterrupted run's")


if __name__ == "__main__":
    sys.exit(main())
