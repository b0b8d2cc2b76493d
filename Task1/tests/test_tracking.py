"""The curves that TensorBoard and Weights & Biases are given."""

from __future__ import annotations

import importlib.util
import sys

import pytest

import main
import tracking
from tracking import CURVES, open_tracker
from utils import UserError

ROWS = [{"epoch": epoch, "lr": 0.1 / epoch, "train_loss": 2.0 / epoch, "train_accuracy": 0.1 * epoch,
         "val_loss": 2.1 / epoch, "val_accuracy": 0.09 * epoch, "seconds": 1.0, "images_per_second": 10.0}
        for epoch in (1, 2, 3, 4)]


def installed(package: str):
    return pytest.mark.skipif(importlib.util.find_spec(package) is None, reason=f"{package} is not installed")


def track(kind: str, folder, history: list[dict], rows: list[dict]) -> None:
    with open_tracker(kind, folder, {"lr": 0.1, "classes": ["a"], "threads": None}, history) as tracker:
        for row in rows:
            tracker.log(row)


def tensorboard_curves(folder) -> dict[str, list[tuple]]:
    """What TensorBoard shows of a folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {name: [(event.step, event.value) for event in events.Scalars(name)] for name in events.Tags()["scalars"]}


EXPECTED = {name: [(row["epoch"], pytest.approx(row[name])) for row in ROWS] for name in CURVES}


@installed("tensorboard")
def test_tensorboard_shows_five_curves(tmp_path):
    track("tensorboard", tmp_path, [], ROWS)
    assert tensorboard_curves(tmp_path) == EXPECTED


@installed("tensorboard")
@pytest.mark.parametrize("logged, saved", [(2, 2), (3, 2), (1, 2), (4, 0)],
                         ids=["resumed", "killed before the checkpoint", "killed before the log", "overwritten"])
def test_tensorboard_shows_no_epoch_twice_and_lacks_none_after_a_resume(tmp_path, monkeypatch, logged, saved):
    track("tensorboard", tmp_path, [], [{**row, "val_loss": -1.0} for row in ROWS[:logged]])
    track("tensorboard", tmp_path, ROWS[:saved], ROWS[saved:])
    assert tensorboard_curves(tmp_path) == EXPECTED


@installed("wandb")
def test_wandb_keeps_its_runs_in_the_folder_without_a_network(tmp_path, monkeypatch, capfd):
    for name in ("WANDB_MODE", "WANDB_DIR", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    track("wandb", tmp_path, [], ROWS[:2])
    track("wandb", tmp_path, ROWS[:2], ROWS[2:])
    written = list(tmp_path.glob("wandb/offline-run-*/run-*.wandb"))
    assert len(written) == 2
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("kind, package", [("tensorboard", "tensorboard"), ("wandb", "wandb")])
def test_a_package_that_is_missing_is_told_before_anything_else(tmp_path, monkeypatch, capsys, kind, package):
    for name in [name for name in sys.modules if name.startswith("torch.utils.tensorboard")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=f"pip install {kind}"):
        tracking.require(kind)
    assert main.main(["--dataset", "synthetic", "--log", kind, "--output-dir", str(tmp_path / "run")]) == 1
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1 and f"pip install {kind}" in said.err
    assert not (tmp_path / "run").exists()


def test_without_a_tracker_nothing_is_written(tmp_path):
    tracking.require("none")
    track("none", tmp_path, [], ROWS)
    assert not list(tmp_path.iterdir())
