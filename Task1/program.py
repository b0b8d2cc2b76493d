"""What the programs of all folders do: from the command line to a run or a test, and to the exit status."""

from __future__ import annotations

import argparse
import sys
from abc import ABC, abstractmethod
from functools import partial
from pathlib import Path
from typing import Any

import torch

import checkpoints
import interrupts
import run_folder
import tracking
from data import Data, load_data
from options import FREE_ON_RESUME, check_combinations, common_parser, flag, parse
from run import Run
from schedules import learning_rate
from testing import predict_files, test_checkpoint
from trainer import Trainer
from utils import UserError, discard_output, keep_freed_memory, prepare_output, versions


class Program(ABC):
    """The program of one folder: what it is called, the flags that it alone has, and how it trains."""

    task: str
    """Its name in file names and in `config.json`."""
    description: str
    """One sentence for `--help`."""
    models: tuple[str, ...]
    """What `--model` takes."""
    rounding: tuple[str, ...]
    """What in `config.json` shapes the last bits: after a change the numbers are right, but not quite the same."""

    @abstractmethod
    def add_flags(self, group: argparse._ArgumentGroup) -> None:
        """Add the flags that this program alone has."""

    @abstractmethod
    def set_up(self, options: argparse.Namespace) -> dict[str, Any]:
        """Settle the device and the number of threads, and say so.

        Returns what of it stands in `config.json`: at least `device_name` and `thread_count`.
        """

    @abstractmethod
    def build_trainer(self, options: argparse.Namespace, data: Data) -> Trainer:
        """The network for these pictures on the device that `set_up` settled, its weights drawn from the seed."""

    def memory_is_full(self, error: Exception) -> bool:
        """Whether that is what an error of Python's, or of torch's allocators, says; all loaders are torch's."""
        return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "can't allocate memory" in str(error)

    def main(self, arguments: list[str] | None = None) -> int:
        """Run the command line; returns the exit status."""
        interrupts.treat_sigterm_as_ctrl_c()
        prepare_output()
        parser = self.build_parser()
        options, given = parse(parser, arguments)
        try:
            keep_freed_memory()
            if options.evaluate:
                self.evaluate(options, given)
            else:
                self.train(parser, options, given)
        except UserError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        except (MemoryError, RuntimeError) as error:
            if not self.memory_is_full(error):
                raise
            print("error: the memory is full; use a smaller --batch-size, or --image-size, or another --device",
                  file=sys.stderr)
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

    def build_parser(self) -> argparse.ArgumentParser:
        parser = common_parser(self.description, self.models)
        self.add_flags(parser.add_argument_group("in this program alone"))
        return parser

    def train(self, parser: argparse.ArgumentParser, options: argparse.Namespace, given: set[str]) -> None:
        """Start or continue a run and carry it to its end."""
        default = Path("runs") / f"{self.task}-{options.dataset}-{options.model}"
        checkpoint = None
        if options.resume:
            folder = run_folder.RunFolder(run_folder.find(options.output_dir, default))
            checkpoint = checkpoints.load_resumable(folder / run_folder.LAST_CHECKPOINT)
            adopt_flags(options, given, checkpoint["config"], self.task)
            check_combinations(parser, options)
        tracking.require(options.log)

        facts = self.set_up(options)
        data = read_data(options)
        trainer = self.build_trainer(options, data)

        options.data_dir = options.data_dir.absolute()  # a resumed run may be started elsewhere
        config = {**{name: str(value) if isinstance(value, Path) else value for name, value in vars(options).items()},
                  "task": self.task, **versions(), **facts, "classes": list(data.classes),
                  "pictures": [len(loader.indices) for loader in (data.train, data.val, data.test)],
                  "pictures_digest": data.digest()}
        if checkpoint is None:
            folder = run_folder.create(options.output_dir, default, options.overwrite)
        else:
            check_same_pictures(checkpoint["config"], config)
            say_what_changed(checkpoint["config"], config, self.rounding)
        rate = partial(learning_rate, options.schedule, options.lr, epochs=options.epochs,
                       warmup_epochs=options.warmup_epochs)
        Run(folder, config, data, trainer, rate, checkpoint, epochs=options.epochs, max_batches=options.debug_steps,
            log=options.log, progress=not options.no_progress).carry_out()

    def evaluate(self, options: argparse.Namespace, given: set[str]) -> None:
        """Test a checkpoint and, if pictures are given, name their classes."""
        checkpoints.load(options.evaluate)  # a bad file is told before the data are read
        missing = next((file for file in options.predict or () if not file.is_file()), None)
        if missing:
            raise UserError(f"--predict: there is no file {missing}")
        adopt_what_was_learned(options, given, checkpoints.run_config(options.evaluate), self.task)
        self.set_up(options)
        data = read_data(options)
        checkpoints.check_classes(options.evaluate, data.classes)
        trainer = self.build_trainer(options, data)
        weights, note = checkpoints.read_weights(options.evaluate, trainer.weights())
        if note:
            print(note)
        trainer.load_weights(weights)
        test_checkpoint(trainer, data, options.output_dir or options.evaluate.parent / "evaluation", options.evaluate,
                        options.dataset, options.model, options.debug_steps)
        if options.predict:
            predict_files(trainer, data, options.predict)


def read_data(options: argparse.Namespace) -> Data:
    """The pictures that the flags name."""
    return load_data(options.dataset, options.data_dir, options.image_size, batch_size=options.batch_size,
                     augmentation=options.augment, seed=options.seed, workers=options.workers,
                     progress=not options.no_progress)


def adopt_flags(options: argparse.Namespace, given: set[str], saved: dict, task: str) -> None:
    """Take from the run's configuration what was not given; refuse what was given otherwise."""
    if saved.get("task") != task:
        raise UserError(f"this run is of {saved.get('task', 'another program')}, not of {task}: "
                        "resume it with the program that began it")
    changed = [f"{flag(name)} {getattr(options, name)} (the run has {saved.get(name)})"
               for name in sorted(given - FREE_ON_RESUME) if getattr(options, name) != saved.get(name)]
    if changed:
        raise UserError(f"--resume cannot change {', '.join(changed)}; leave it away, or start a new run")
    for name in vars(options):
        if name not in given and name in saved and name not in ("resume", "overwrite", "output_dir"):
            setattr(options, name, Path(saved[name]) if name == "data_dir" else saved[name])


def adopt_what_was_learned(options: argparse.Namespace, given: set[str], saved: dict, task: str) -> None:
    """Take what was not given from the run that wrote the checkpoint, if it lies in that run's folder."""
    names = ["dataset", "data_dir", "image_size", "dropout", *(["model"] if saved.get("task") == task else [])]
    for name in names:
        if name in saved and name not in given:
            setattr(options, name, Path(saved[name]) if name == "data_dir" else saved[name])


def check_same_pictures(saved: dict, config: dict) -> None:
    """Refuse to go on with other pictures: the classes would get other numbers, the split would be another."""
    others = sorted(set(saved["classes"]) ^ set(config["classes"]))
    change = f"the class {others[0]} came or went" if others else ""
    if not change and saved["pictures"] != config["pictures"]:
        change = f"{saved['pictures']} pictures to train, validate and test became {config['pictures']}"
    if not change and saved.get("pictures_digest") != config["pictures_digest"]:
        change = "its pictures or their labels are others"
    if change:
        raise UserError(f"the run began with other data ({change}); give the --data-dir that it had, or start a new "
                        "run")


def say_what_changed(saved: dict, config: dict, names: tuple[str, ...]) -> None:
    """Tell which of these have changed: the last bits are then others."""
    for name in names:
        if saved.get(name) != config.get(name):
            print(f"note: {name} was {saved.get(name)}, now {config.get(name)}: "
                  "the last bits may differ from an uninterrupted run's")
