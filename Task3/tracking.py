"""Curves in TensorBoard or Weights & Biases, for those who ask for them."""

from __future__ import annotations

import os
from pathlib import Path

from utils import UserError

CURVES = ("lr", "train_loss", "train_accuracy", "val_loss", "val_accuracy")


def require(kind: str) -> None:
    """Import what `--log` needs, so that a package that is missing is told before anything else is done."""
    try:
        if kind == "tensorboard":
            import torch.utils.tensorboard  # noqa: F401
        elif kind == "wandb":
            import wandb  # noqa: F401
    except ImportError:
        raise UserError(f"--log {kind} needs a package that is not installed: pip install {kind}") from None


def open_tracker(kind: str, folder: Path, config: dict, history: list[dict]) -> Tracker:
    """The tracker of `--log`: `none`, `tensorboard` (events in `folder`) or `wandb` (offline without WANDB_MODE).

    A resumed run hands in its whole history: so no epoch is missing, whenever the run was killed, and none is double.
    """
    tracker = {"none": Tracker, "tensorboard": TensorBoardTracker, "wandb": WandbTracker}[kind](folder, config)
    for row in history:
        tracker.log(row)
    return tracker


class Tracker:
    """Tracks nothing, and is what the others are made of."""

    def __init__(self, folder: Path, config: dict) -> None:
        pass

    def log(self, row: dict) -> None:
        """Take the history's row of an epoch."""

    def close(self) -> None:
        """Write what is not written yet."""

    def __enter__(self) -> Tracker:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class TensorBoardTracker(Tracker):
    def __init__(self, folder: Path, config: dict) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(folder, purge_step=1)  # what earlier events in the folder say is no longer shown

    def log(self, row: dict) -> None:
        for name in CURVES:
            self.writer.add_scalar(name, row[name], row["epoch"])

    def close(self) -> None:
        self.writer.close()


class WandbTracker(Tracker):
    def __init__(self, folder: Path, config: dict) -> None:
        import wandb

        try:
            self.run = wandb.init(project="ai-programming", dir=folder, config=config,
                                  mode=os.environ.get("WANDB_MODE", "offline"), settings=wandb.Settings(silent=True))
        except (wandb.Error, ValueError) as error:  # no account, no network, a mode that there is not
            raise UserError(f"--log wandb does not start ({' '.join(str(error).split())}); unset WANDB_MODE to stay "
                            "offline, and continue with --resume") from None

    def log(self, row: dict) -> None:
        self.run.log({name: row[name] for name in CURVES}, step=row["epoch"])

    def close(self) -> None:
        self.run.finish()
