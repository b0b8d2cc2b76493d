"""The program as a user meets it: runs that end well, runs that are stopped, and mistakes that are told in a line."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from PIL import Image

from run_folder import BEST_MODEL, FILES, HISTORY, LAST_CHECKPOINT, RESULT

SYNTHETIC = ("--dataset", "synthetic", "--debug-steps", "4")


def failed(process, *words: str) -> None:
    """The process ended with status 1 and one line that has these words in it."""
    assert process.returncode == 1, process.stderr
    assert len(process.stderr.splitlines()) == 1 and process.stderr.startswith("error: "), process.stderr
    for word in words:
        assert word in process.stderr


def history(folder) -> list[dict]:
    rows = json.loads((folder / HISTORY).read_text(encoding="utf-8"))
    times = ("seconds", "images_per_second")
    return [{name: value for name, value in row.items() if name not in times} for row in rows]


@pytest.fixture(scope="module")
def finished(program, tmp_path_factory):
    """A run of three short epochs that nobody disturbed."""
    folder = tmp_path_factory.mktemp("finished")
    process = program(*SYNTHETIC, "--epochs", 3, "--output-dir", folder)
    assert process.returncode == 0, process.stderr
    assert "test accuracy" in process.stdout and "%|" not in process.stderr
    return folder


def test_a_run_leaves_its_eight_files(finished):
    assert sorted(path.name for path in finished.iterdir()) == sorted(FILES)
    for name in (BEST_MODEL, LAST_CHECKPOINT):
        torch.load(finished / name, weights_only=True)
    result = json.loads((finished / RESULT).read_text(encoding="utf-8"))
    assert result["finished"] is True and result["num_parameters"] == 62006
    assert result["best_val_accuracy"] == max(row["val_accuracy"] for row in history(finished))
    assert len(result["per_class_accuracy"]) == 10


def test_weights_that_cannot_move_give_the_same_figures_in_every_epoch(program, tmp_path):
    program(*SYNTHETIC, "--epochs", 2, "--lr", 1e-30, "--momentum", 0, "--weight-decay", 0,
            "--output-dir", tmp_path / "r")
    first, second = history(tmp_path / "r")
    for name in ("train_loss", "train_accuracy", "val_loss", "val_accuracy"):
        assert first[name] == second[name]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_run_that_was_stopped_ends_with_the_bits_of_one_that_was_not(program, tmp_path, number):
    flags = ("--dataset", "synthetic", "--epochs", 2, "--schedule", "onecycle", "--no-progress")
    program(*flags, "--output-dir", tmp_path / "whole")
    main = str(next(path for path in sys.path if path.endswith("Task1"))) + "/main.py"
    arguments = [sys.executable, main, *map(str, flags), "--threads", "1", "--output-dir", str(tmp_path / "stopped")]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not (tmp_path / "stopped" / LAST_CHECKPOINT).exists():
        time.sleep(0.05)
    time.sleep(1)
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == (-9 if number == signal.SIGKILL else 130)
    for name in (LAST_CHECKPOINT,):
        torch.load(tmp_path / "stopped" / name, weights_only=True)
    resumed = program("--dataset", "synthetic", "--resume", "--output-dir", tmp_path / "stopped")
    assert resumed.returncode == 0, resumed.stderr
    assert history(tmp_path / "stopped") == history(tmp_path / "whole")
    assert (tmp_path / "stopped" / BEST_MODEL).read_bytes() == (tmp_path / "whole" / BEST_MODEL).read_bytes()


@pytest.mark.parametrize("flag, value", [("--lr", "0.5"), ("--momentum", "0.5"), ("--seed", "9"), ("--augment", "none"),
                                         ("--batch-size", "32")])
def test_resume_refuses_a_flag_that_would_change_the_result(program, finished, flag, value):
    before = {path.name: path.read_bytes() for path in finished.iterdir()}
    failed(program("--resume", "--output-dir", finished, "--dataset", "synthetic", flag, value), flag, value)
    assert {path.name: path.read_bytes() for path in finished.iterdir()} == before


def test_resume_without_a_run_says_where_it_looked(program, tmp_path):
    failed(program("--resume", "--output-dir", tmp_path / "none"), str(tmp_path / "none" / LAST_CHECKPOINT))
    assert not (tmp_path / "none").exists()


def test_a_folder_with_a_run_is_refused(program, finished):
    failed(program(*SYNTHETIC, "--output-dir", finished), "--resume", "--overwrite")


def test_evaluation_does_not_depend_on_the_batch_size(program, finished, tmp_path):
    figures = []
    for batch_size in (7, 100_000):
        process = program("--evaluate", finished / BEST_MODEL, "--dataset", "synthetic", "--batch-size", batch_size,
                          "--output-dir", tmp_path / str(batch_size))
        assert process.returncode == 0, process.stderr
        figures.append(json.loads((tmp_path / str(batch_size) / "evaluation.json").read_text(encoding="utf-8")))
    assert figures[0]["test_accuracy"] == figures[1]["test_accuracy"]
    assert figures[0]["test_loss"] == pytest.approx(figures[1]["test_loss"], abs=1e-6)


def test_a_diverging_run_keeps_the_best_model_and_says_where_it_diverged(program, finished, tmp_path):
    failed(program(*SYNTHETIC, "--lr", 1e12, "--output-dir", tmp_path / "r"), "not finite", "epoch 1", "step")
    assert not (tmp_path / "r" / BEST_MODEL).exists()


@pytest.mark.parametrize("flags", [("--nesterov", "False"), ("--lr", "0,1"), ("--epochs", "3.5"), ("--debug", "3"),
                                   ("--lr", "nan"), ("--batch-size", "0"), ("--predict", "a.png"),
                                   ("--no-progress=0",), ("--resume", "--overwrite")])
def test_a_wrong_command_line_ends_with_status_2(program, flags):
    assert program(*flags).returncode == 2


def test_a_broken_picture_is_named(program, tree):
    (tree / "train" / "a" / "0.png").write_bytes(b"no picture")
    failed(program("--dataset", "imagefolder", "--data-dir", tree, "--image-size", 32), "0.png", "cannot be read")
    for workers in (0, 2):
        failed(program("--dataset", "imagefolder", "--data-dir", tree, "--image-size", 100, "--workers", workers,
                       "--output-dir", tree / f"run{workers}"), "0.png", "cannot be read")


@pytest.mark.parametrize("size", [32, 100])
def test_own_pictures_train_and_are_recognised(program, tree, tmp_path, size):
    run = program("--dataset", "imagefolder", "--data-dir", tree, "--image-size", size, "--epochs", 1,
                  "--output-dir", tmp_path / "r")
    assert run.returncode == 0, run.stderr
    Image.fromarray(np.full((50, 40, 3), 90, np.uint8)).save(tmp_path / "mine.png")
    said = program("--dataset", "imagefolder", "--data-dir", tree, "--image-size", size, "--evaluate",
                   tmp_path / "r" / BEST_MODEL, "--predict", tmp_path / "mine.png")
    assert said.returncode == 0 and "mine.png: " in said.stdout, said.stderr
