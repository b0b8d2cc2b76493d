"""A network that one folder trained is the same network in another: its test says the same there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
RUN = ("--dataset", "synthetic", "--threads", "1", "--no-progress")
# The same network in the folder that trains it and in the folder that tests it.
PAIRS = [("Task1", "lenet", "Task3", "lenet"), ("Task1", "minivgg", "Task3", "minivgg-bn"),
         ("Task3", "minivgg-bn", "Task1", "minivgg")]


def run(folder: str, *flags: object) -> None:
    command = [sys.executable, str(ROOT / folder / "main.py"), *RUN, *map(str, flags)]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr


@pytest.mark.parametrize("trains, model, tests, same_model", PAIRS)
def test_a_trained_network_is_the_same_elsewhere(tmp_path, trains, model, tests, same_model):
    common = ("--image-size", 16, "--debug-steps", 8)  # 8 batches of 128 are tested
    run(trains, *common, "--model", model, "--epochs", 1, "--output-dir", tmp_path / "run")
    run(tests, *common, "--model", same_model, "--evaluate", tmp_path / "run" / "best_model.pth",
        "--output-dir", tmp_path / "test")
    ours, theirs = (json.loads((tmp_path / name).read_text(encoding="utf-8"))
                    for name in ("run/result.json", "test/evaluation.json"))
    assert theirs["test_loss"] == pytest.approx(ours["test_loss"], rel=1e-5)
    # Two classes may be so close in a picture that rounding decides.
    assert theirs["test_accuracy"] == pytest.approx(ours["test_accuracy"], abs=1.5 / 1024)
