"""The command line that the four folders share: flags, their defaults and their checks."""

from __future__ import annotations

import argparse
import math
import re
from pathlib import Path

from augment import KINDS

DATASETS = ("cifar10", "cifar100", "mnist", "imagefolder", "tiny-imagenet", "synthetic", "synthetic-digits")

# Flags that may change when a run is resumed, since the numbers do not depend on them. The device and the number of
# threads change the last bits; a resumed run says so and goes on.
FREE_ON_RESUME = {"data_dir", "workers", "device", "threads", "log", "output_dir", "resume", "no_progress"}


def common_parser(description: str, models: tuple[str, ...]) -> argparse.ArgumentParser:
    """A parser with the common flags, in groups; every default stands in `--help`."""
    parser = argparse.ArgumentParser(description=description, allow_abbrev=False, formatter_class=_HelpFormatter)

    task = parser.add_argument_group("what to learn")
    task.add_argument("--model", choices=models, default="lenet", help="the network")
    task.add_argument("--dataset", choices=DATASETS, default="cifar10",
                      help="the pictures; the synthetic ones need neither files nor network")
    task.add_argument("--data-dir", type=Path, default=Path("data"), metavar="DIR",
                      help="where the data set is, or is downloaded to")
    task.add_argument("--image-size", type=whole(1), metavar="PIXELS",
                      help="side to which pictures are brought (default: the data set's own, 64 for imagefolder)")
    task.add_argument("--augment", choices=KINDS, default="standard",
                      help="standard: random crop and flip; trivial: TrivialAugment after them")

    training = parser.add_argument_group("how to learn it")
    training.add_argument("--epochs", type=whole(1), default=30, metavar="N", help="passes over the training pictures")
    training.add_argument("--batch-size", type=whole(1), default=64, metavar="N",
                          help="pictures a step; evaluation takes twice as many")
    training.add_argument("--optimizer", choices=("sgd", "adam", "adamw"), default="sgd", help="the update rule")
    training.add_argument("--lr", type=number(0, above=True), default=0.01, metavar="RATE",
                          help="learning rate, the peak of the schedule")
    training.add_argument("--momentum", type=number(0, 1), default=0.9, metavar="M", help="of SGD")
    training.add_argument("--nesterov", action="store_true", help="Nesterov's momentum (default: off)")
    training.add_argument("--weight-decay", type=number(0), default=5e-4, metavar="W",
                          help="L2 penalty (sgd, adam) or decoupled decay (adamw)")
    training.add_argument("--schedule", choices=("cosine", "onecycle", "constant"), default="cosine",
                          help="how the learning rate moves; onecycle moves every batch, the others every epoch")
    training.add_argument("--warmup-epochs", type=whole(0), default=0, metavar="N",
                          help="epochs in which cosine and constant rise to --lr")
    training.add_argument("--no-bias-decay", action="store_true",
                          help="spare biases and norm parameters the weight decay (default: decay all)")
    training.add_argument("--dropout", type=number(0, 1), default=0.5, metavar="P",
                          help="share of features that the MiniVGG with batch-norm drops before its classifier")
    training.add_argument("--label-smoothing", type=number(0, 1), default=0.0, metavar="S",
                          help="share of the target spread over all classes")
    training.add_argument("--seed", type=whole(0), default=0, metavar="N",
                          help="of the split, the weights, the order and the augmentation")
    training.add_argument("--debug-steps", type=whole(1), metavar="N",
                          help="end every training and evaluation pass after N batches (default: go through)")

    machine = parser.add_argument_group("on what machine")
    machine.add_argument("--device", type=_device, default="auto", metavar="{auto,cpu,cuda,cuda:N}",
                         help="auto takes a GPU if there is one to be used")
    machine.add_argument("--threads", type=whole(1, 1024), metavar="N",
                         help="CPU threads; the same number gives the same bits (default: one a core)")
    machine.add_argument("--workers", type=whole(0), default=2, metavar="N",
                         help="processes that decode pictures of more than 64 pixels; smaller ones need none")

    output = parser.add_argument_group("what it leaves behind")
    output.add_argument("--output-dir", type=Path, metavar="DIR",
                        help="the run's folder (default: runs/<task>-<dataset>-<model>, with -2, -3, ... if taken)")
    output.add_argument("--overwrite", action="store_true", help="replace the run in --output-dir (default: refuse)")
    output.add_argument("--resume", action="store_true",
                        help="continue the run in --output-dir; flags not given are taken from it (default: off)")
    output.add_argument("--log", choices=("none", "tensorboard", "wandb"), default="none",
                        help="draw curves there as well; wandb stays offline unless WANDB_MODE says otherwise")
    output.add_argument("--no-progress", action="store_true",
                        help="no progress bar (default: a bar if on a terminal)")

    use = parser.add_argument_group("instead of training")
    use.add_argument("--evaluate", type=Path, metavar="CHECKPOINT",
                     help="test a checkpoint: accuracy overall and by class, and both pictures (default: train)")
    use.add_argument("--predict", type=Path, nargs="+", metavar="IMAGE",
                     help="with --evaluate: name the class of these pictures and its probability (default: none)")
    return parser


def parse(parser: argparse.ArgumentParser, arguments: list[str] | None) -> tuple[argparse.Namespace, set[str]]:
    """Parse and check; also returns the names of the flags that were given rather than left at their default."""
    options = parser.parse_args(arguments)
    if options.resume and options.overwrite:
        parser.error("--resume continues a run and --overwrite replaces it: give one of them")
    if options.evaluate and (options.resume or options.overwrite):
        parser.error("--evaluate does not train: leave --resume and --overwrite away")
    if options.predict and not options.evaluate:
        parser.error("--predict needs --evaluate CHECKPOINT")
    check_combinations(parser, options)
    # argparse sets no default where the attribute is there already: what still is `unset` was not given.
    unset = object()
    seen = parser.parse_args(arguments, argparse.Namespace(**dict.fromkeys(vars(options), unset)))
    return options, {name for name, value in vars(seen).items() if value is not unset}


def check_combinations(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """End with status 2 if values that are right alone cannot go together."""
    if options.nesterov and (options.optimizer != "sgd" or options.momentum == 0):
        parser.error("--nesterov needs --optimizer sgd and a --momentum above 0")
    if options.warmup_epochs and options.schedule == "onecycle":
        parser.error("--schedule onecycle has a warm-up of its own: leave --warmup-epochs away")
    if options.warmup_epochs >= options.epochs:
        parser.error(f"--warmup-epochs {options.warmup_epochs} must be fewer than --epochs {options.epochs}")


def flag(name: str) -> str:
    """`batch_size` as it is typed."""
    return "--" + name.replace("_", "-")


class _HelpFormatter(argparse.HelpFormatter):
    """Adds the default to a flag's help, unless the help speaks of it or there is none."""

    def _get_help_string(self, action: argparse.Action) -> str:
        text = action.help or ""
        if action.option_strings and action.default not in (None, argparse.SUPPRESS) and "(default" not in text:
            text += " (default: %(default)s)"
        return text


def whole(least: int, most: int = 2**63 - 1):
    """An argparse type: a whole number from `least` to `most`."""

    def parse_whole(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if value < least:
            raise argparse.ArgumentTypeError(f"{value} is not {least} or more")
        if value > most:
            raise argparse.ArgumentTypeError(f"{value} is more than {most}")
        return value

    return parse_whole


def number(least: float, below: float = math.inf, above: bool = False):
    """A finite number from `least` on (or above it), and below `below`."""

    def parse_number(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number (write 0.1)") from None
        if not math.isfinite(value):
            raise argparse.ArgumentTypeError(f"{text} is not a finite number")
        if not least <= value < below or (above and value == least):
            limits = f"{'above' if above else 'at least'} {least:g}"
            limits += f" and below {below:g}" if math.isfinite(below) else ""
            raise argparse.ArgumentTypeError(f"{text} is not {limits}")
        return value

    return parse_number


def _device(text: str) -> str:
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", text):
        raise argparse.ArgumentTypeError(f"{text!r} is none of auto, cpu, cuda, cuda:N")
    return text
