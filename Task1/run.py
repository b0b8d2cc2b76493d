"""A run from its first epoch, or where it was left, to the final test; and the files that it keeps on the way."""

from __future__ import annotations

import argparse
import statistics
import time

import torch
from tqdm import tqdm

import checkpoints
import plots
import run_folder
from data import Data, Loader
from interrupts import Interrupted, Interrupts
from run_folder import RunFolder
from schedules import learning_rate
from testing import draw_test_pictures, test_report
from tracking import open_tracker
from training import Evaluation, Step, evaluate, train_epoch
from utils import progress_bar, random_state, set_random_state, write_file, write_json


class Run:
    """The state of a run is `epoch` (epochs done), `batch` (batches done of the one under way), the best accuracy and
    the history, next to the state of model, optimizer, scaler and random numbers. Everything else follows from the
    flags: the order of pictures, their augmentation and the learning rate are functions of seed, epoch and batch."""

    def __init__(self, options: argparse.Namespace, config: dict, folder: RunFolder, data: Data, step: Step,
                 device: torch.device, checkpoint: dict | None) -> None:
        self.options, self.config, self.folder, self.data = options, config, folder, data
        self.step, self.device = step, device
        self.epoch = self.batch = self.best_epoch = 0
        self.best_accuracy = -1.0
        self.history: list[dict] = []
        if checkpoint is None:
            self.save()  # from here on there is something to resume
        else:
            self.restore(checkpoint)
        if not (folder / run_folder.CONFIG).exists():
            write_json(folder / run_folder.CONFIG, self.config)

    def carry_out(self) -> None:
        """Train until the last epoch is done, then test the best model once."""
        if (self.folder / run_folder.RESULT).exists():
            print(f"{self.folder.path} holds a finished run; its figures are in {run_folder.RESULT}")
            return
        self.introduce()
        with Interrupts() as interrupts, open_tracker(self.options.log, self.folder.path, self.config,
                                                      self.history) as tracker:
            self.interrupts = interrupts
            try:
                while not self.trained():
                    self.train_one_epoch()
                    tracker.log(self.history[-1])
                self.test()
            except Interrupted:
                where = f"in epoch {self.epoch + 1}"
                if self.trained():
                    where = "before the test's end"  # the last epoch was saved; now the model is the best one
                else:
                    self.save()
                print(f"stopped {where}; continue with --resume --output-dir {self.folder.path}")
                raise

    def introduce(self) -> None:
        """Say what is trained on what, and where the files go."""
        train, val, test = (len(loader.indices) for loader in (self.data.train, self.data.val, self.data.test))
        print(f"{self.options.model} ({self.num_parameters():,} parameters) on {self.data.name}: {train:,} pictures to "
              f"train, {val:,} to validate, {test:,} to test, {len(self.data.classes)} classes, "
              f"{self.data.channels}x{self.data.image_size}x{self.data.image_size}")
        print(f"files: {self.folder.path.absolute()}")
        if self.trained():
            print("resuming with the test")
        elif self.epoch or self.batch:
            print(f"resuming in epoch {self.epoch + 1}, batch {self.batch + 1}")

    def train_one_epoch(self) -> None:
        """The order of DESIGN: train, evaluate on the same pictures plain, validate, keep what must be kept."""
        options, start = self.options, time.perf_counter()
        with self.bar("train", self.data.train, self.batch) as bar:
            def after_batch(done: int) -> None:
                self.batch = done
                bar.update()
                self.interrupts.check()

            trained = train_epoch(self.step, self.data.train, self.device, self.epoch, self.batch, rate=self.rate,
                                  after_batch=after_batch, max_batches=options.debug_steps)
        if trained.skipped_steps:
            print(f"note: {trained.skipped_steps} steps of epoch {self.epoch + 1} were skipped, because gradients "
                  "overflowed float16; the loss is scaled less from now on")
        train = self.evaluate("train, plain", self.data.train_plain)
        val = self.evaluate("validate", self.data.val)
        improved = val.accuracy > self.best_accuracy
        self.history.append({
            "epoch": self.epoch + 1, "lr": self.rate(self.epoch),
            "train_loss": train.loss, "train_accuracy": train.accuracy,
            "val_loss": val.loss, "val_accuracy": val.accuracy,
            "seconds": round(time.perf_counter() - start, 3),
            "images_per_second": round(trained.images / trained.seconds, 1) if trained.images else 0.0,
        })
        self.epoch, self.batch = self.epoch + 1, 0
        # The checkpoint comes last: a kill before it repeats the epoch, and with it all that stands here.
        if improved:
            self.best_accuracy, self.best_epoch = val.accuracy, self.epoch
            checkpoints.save(self.folder / run_folder.BEST_MODEL, self.step.model.state_dict())
        write_json(self.folder / run_folder.HISTORY, self.history)
        write_file(self.folder / run_folder.CURVES, plots.curves(self.history, self.title()))
        self.save()
        self.report(improved)

    def test(self) -> None:
        """Test the best model: the only time that a run looks at the test split."""
        checkpoints.load_weights(self.step.model, self.folder / run_folder.BEST_MODEL)
        tested = self.evaluate("test", self.data.test)
        draw_test_pictures(tested, self.data, self.folder.path, self.title())
        self.interrupts.check()
        report = test_report(tested, self.data)
        # An epoch whose last training step had been done when the run was interrupted has no speed.
        speeds = [row["images_per_second"] for row in self.history if row["images_per_second"]]
        write_json(self.folder / run_folder.RESULT, {
            "best_val_accuracy": self.best_accuracy, "best_epoch": self.best_epoch, **report,
            "num_parameters": self.num_parameters(),
            "train_seconds": round(sum(row["seconds"] for row in self.history), 3),
            "images_per_second": round(statistics.harmonic_mean(speeds), 1) if speeds else 0.0,
            "dataset": self.options.dataset, "model": self.options.model, "finished": True,
        })
        print(f"test accuracy {tested.accuracy:.2%}, loss {tested.loss:.4f} (best model, of epoch {self.best_epoch}: "
              f"validation {self.best_accuracy:.2%})")
        print(f"files: {self.folder.path.absolute()}")

    def evaluate(self, name: str, loader: Loader) -> Evaluation:
        moment = "in the final test" if self.trained() else f"after epoch {self.epoch + 1}, step {self.batch}"
        with self.bar(name, loader) as bar:
            def after_batch(done: int) -> None:
                bar.update()
                self.interrupts.check()

            return evaluate(self.step.model, loader, self.device, self.step.precision, after_batch=after_batch,
                            max_batches=self.options.debug_steps,
                            moment=moment)

    def rate(self, at: float) -> float:
        """The learning rate `at` epochs after the start."""
        options = self.options
        return learning_rate(options.schedule, options.lr, at, options.epochs, options.warmup_epochs)

    def bar(self, name: str, loader: Loader, done: int = 0) -> tqdm:
        """A progress bar that goes when it is finished, and is not there if nobody watches."""
        total = min(len(loader), self.options.debug_steps or len(loader))
        return progress_bar(f"epoch {min(self.epoch + 1, self.options.epochs)} {name}", total, "batch", done=done,
                            shown=not self.options.no_progress)

    def report(self, improved: bool) -> None:
        row = self.history[-1]
        print(f"epoch {row['epoch']:3d}/{self.options.epochs}  lr {row['lr']:.5f}  "
              f"train loss {row['train_loss']:.4f} acc {row['train_accuracy']:6.2%}  "
              f"val loss {row['val_loss']:.4f} acc {row['val_accuracy']:6.2%}  "
              f"{row['seconds']:.1f} s, {row['images_per_second']:,.0f} images/s{'  best' if improved else ''}")

    def save(self) -> None:
        """Write all that `--resume` needs."""
        step = self.step
        checkpoints.save(self.folder / run_folder.LAST_CHECKPOINT, {
            "format": checkpoints.FORMAT, "config": self.config,
            "model": step.model.state_dict(), "optimizer": step.optimizer.state_dict(),
            "scaler": step.precision.scaler.state_dict(), "random_state": random_state(),
            "epoch": self.epoch, "batch": self.batch,
            "best_accuracy": self.best_accuracy, "best_epoch": self.best_epoch, "history": self.history,
        })

    def restore(self, checkpoint: dict) -> None:
        """Take up what `save` wrote."""
        step = self.step
        path = str(self.folder / run_folder.LAST_CHECKPOINT)
        checkpoints.check_match(checkpoint["model"], step.model.state_dict(), path)
        step.model.load_state_dict(checkpoint["model"])
        step.optimizer.load_state_dict(checkpoint["optimizer"])
        if checkpoint["scaler"]:  # empty if the run had none: `--amp` decides anew on another device
            step.precision.scaler.load_state_dict(checkpoint["scaler"])
        set_random_state(checkpoint["random_state"])
        self.epoch, self.batch = checkpoint["epoch"], checkpoint["batch"]
        self.best_accuracy, self.best_epoch = checkpoint["best_accuracy"], checkpoint["best_epoch"]
        self.history = checkpoint["history"]

    def trained(self) -> bool:
        return self.epoch == self.options.epochs

    def num_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.step.model.parameters())

    def title(self) -> str:
        return f"{self.options.model} on {self.data.name}"
