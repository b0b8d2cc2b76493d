"""A run from its first epoch, or where it was left, to the final test; and the files that it keeps on the way."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from tqdm import tqdm

import checkpoints
import plots
import run_folder
from data import Data, Loader
from interrupts import Interrupted, Interrupts
from run_folder import RunFolder
from testing import draw_test_pictures, test_report
from tracking import open_tracker
from trainer import Evaluation, Trainer
from utils import UserError, progress_bar, write_file, write_json


class Run:
    """The state of a run is `epoch` (epochs done), `batch` (batches done of the one under way), the best accuracy and
    the history, next to the trainer's. Everything else follows from the flags: the order of pictures, their
    augmentation and the learning rate are functions of seed, epoch and batch.

    `rate(time)` is the learning rate at a time in epochs; `config` goes into `config.json`; `checkpoint` is what a
    run that is continued has saved.
    """

    def __init__(self, folder: RunFolder, config: dict, data: Data, trainer: Trainer, rate: Callable[[float], float],
                 checkpoint: dict | None = None, *, epochs: int, max_batches: int | None = None, log: str = "none",
                 progress: bool = True) -> None:
        self.folder, self.config, self.data, self.trainer, self.rate = folder, config, data, trainer, rate
        self.epochs, self.max_batches, self.log, self.progress = epochs, max_batches, log, progress
        self.epoch = self.batch = self.best_epoch = 0
        self.best_accuracy = -1.0
        self.history: list[dict] = []
        self.seconds = self.training_seconds = 0.0  # what the epoch under way, and its training pass, took before
        if checkpoint is None:
            self.save()  # from here on there is something to resume
        else:
            self.restore(checkpoint)

    def carry_out(self) -> None:
        """Train until the last epoch is done, then test the best model once."""
        if (self.folder / run_folder.RESULT).exists():
            print(f"{self.folder.path} holds a finished run; its figures are in {run_folder.RESULT}")
            return
        write_json(self.folder / run_folder.CONFIG, self.config)
        self.introduce()
        tracking = open_tracker(self.log, self.folder.path, self.config, self.history)
        with Interrupts() as interrupts, tracking as tracker:
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
        print(f"{self.config['model']} ({self.trainer.num_parameters():,} parameters) on {self.data.name}: "
              f"{train:,} pictures to train, {val:,} to validate, {test:,} to test, {len(self.data.classes)} classes, "
              f"{self.data.channels}x{self.data.image_size}x{self.data.image_size}")
        print(f"files: {self.folder.path.absolute()}")
        if self.trained():
            print("resuming with the test")
        elif self.epoch or self.batch:
            print(f"resuming in epoch {self.epoch + 1}, batch {self.batch + 1}")

    def train_one_epoch(self) -> None:
        """Train, evaluate on the same pictures plain, validate, keep what must be kept."""
        self.epoch_start = time.perf_counter() - self.seconds
        self.train_on_the_rest()
        train = self.evaluate("train, plain", self.data.train_plain)
        val = self.evaluate("validate", self.data.val)
        improved = val.accuracy > self.best_accuracy
        self.history.append({
            "epoch": self.epoch + 1, "lr": self.rate(self.epoch),
            "train_loss": train.loss, "train_accuracy": train.accuracy,
            "val_loss": val.loss, "val_accuracy": val.accuracy,
            "seconds": round(time.perf_counter() - self.epoch_start, 3),
            "images_per_second": round(self.data.train.bounds[self.batch - 1][1] / self.training_seconds, 1),
        })
        self.epoch, self.batch, self.seconds, self.training_seconds = self.epoch + 1, 0, 0.0, 0.0
        # The checkpoint comes last: a kill before it repeats the epoch, and with it all that stands here.
        if improved:
            self.best_accuracy, self.best_epoch = val.accuracy, self.epoch
            checkpoints.save(self.folder / run_folder.BEST_MODEL, self.trainer.weights())
        write_json(self.folder / run_folder.HISTORY, self.history)
        write_file(self.folder / run_folder.CURVES, plots.curves(self.history, self.title()))
        self.save()
        self.report(improved)

    def train_on_the_rest(self) -> None:
        """The training pass, from the batch on that comes next."""
        before, start = self.training_seconds, time.perf_counter()

        def after_batch(done: int) -> None:
            self.batch, self.training_seconds = done, before + time.perf_counter() - start
            bar.update()
            self.interrupts.check()

        with self.bar("train", self.data.train, self.batch) as bar:
            skipped_steps = self.trainer.train_epoch(self.data.train, self.epoch, self.batch, rate=self.rate,
                                                     after_batch=after_batch, max_batches=self.max_batches)
        self.training_seconds = before + time.perf_counter() - start  # a GPU may have worked on after the last batch
        if skipped_steps:
            print(f"note: {skipped_steps} steps of epoch {self.epoch + 1} were skipped, because gradients "
                  "overflowed float16; the loss is scaled less from now on")

    def test(self) -> None:
        """Test the best model: the only time that a run looks at the test split."""
        weights, _ = checkpoints.read_weights(self.folder / run_folder.BEST_MODEL, self.trainer.weights())
        self.trainer.load_weights(weights)
        tested = self.evaluate("test", self.data.test)
        draw_test_pictures(tested, self.data, self.folder.path, self.title())
        self.interrupts.check()
        report = test_report(tested, self.data)
        speed = statistics.harmonic_mean(row["images_per_second"] for row in self.history)
        write_json(self.folder / run_folder.RESULT, {
            "best_val_accuracy": self.best_accuracy, "best_epoch": self.best_epoch, **report,
            "num_parameters": self.trainer.num_parameters(),
            "train_seconds": round(sum(row["seconds"] for row in self.history), 3),
            "images_per_second": round(speed, 1),
            "dataset": self.config["dataset"], "model": self.config["model"], "finished": True,
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

            return self.trainer.evaluate(loader, after_batch=after_batch, max_batches=self.max_batches, moment=moment)

    def bar(self, name: str, loader: Loader, done: int = 0) -> tqdm:
        """A progress bar that goes when it is finished, and is not there if nobody watches."""
        total = min(len(loader), self.max_batches or len(loader))
        return progress_bar(f"epoch {min(self.epoch + 1, self.epochs)} {name}", total, "batch", done=done,
                            shown=self.progress)

    def report(self, improved: bool) -> None:
        row = self.history[-1]
        print(f"epoch {row['epoch']:3d}/{self.epochs}  lr {row['lr']:.5f}  "
              f"train loss {row['train_loss']:.4f} acc {row['train_accuracy']:6.2%}  "
              f"val loss {row['val_loss']:.4f} acc {row['val_accuracy']:6.2%}  "
              f"{row['seconds']:.1f} s, {row['images_per_second']:,.0f} images/s{'  best' if improved else ''}")

    def save(self) -> None:
        """Write all that `--resume` needs."""
        checkpoints.save(self.folder / run_folder.LAST_CHECKPOINT, {
            "format": checkpoints.FORMAT, "config": self.config,
            "model": self.trainer.weights(), **self.trainer.state(),
            "epoch": self.epoch, "batch": self.batch, "training_seconds": self.training_seconds,
            "seconds": time.perf_counter() - self.epoch_start if self.batch else 0.0,
            "best_accuracy": self.best_accuracy, "best_epoch": self.best_epoch, "history": self.history,
        })

    def restore(self, checkpoint: dict) -> None:
        """Take up what `save` wrote."""
        path = self.folder / run_folder.LAST_CHECKPOINT
        weights = checkpoint["model"]
        checkpoints.check_match(weights, self.trainer.weights(), str(path))
        self.trainer.load_weights(weights)
        try:
            self.trainer.restore(checkpoint)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise UserError(f"{path} is not as a run writes it: its optimizer's or random numbers' state cannot be "
                            f"taken up ({type(error).__name__}); start a new run") from None
        self.epoch, self.batch = checkpoint["epoch"], checkpoint["batch"]
        self.seconds, self.training_seconds = checkpoint["seconds"], checkpoint["training_seconds"]
        self.best_accuracy, self.best_epoch = checkpoint["best_accuracy"], checkpoint["best_epoch"]
        if self.best_epoch and not (self.folder / run_folder.BEST_MODEL).exists():
            raise UserError(f"{self.folder / run_folder.BEST_MODEL}, the best model so far, is gone; put it back, or "
                            "start a new run")
        self.history = checkpoint["history"]

    def trained(self) -> bool:
        return self.epoch == self.epochs

    def title(self) -> str:
        return f"{self.config['model']} on {self.data.name}"
