"""The program as a user meets it: runs that are repeated, stopped, resumed and evaluated; what it refuses."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import kill_loop
import mytensor
import numpy as np
import pytest
import torch
from PIL import Image

import benchmark
import first_difference
import main
import models
import run_folder
import synthetic
from interrupts import Interrupted, Interrupts
from run_folder import BEST_MODEL, CONFIG, FILES, HISTORY, LAST_CHECKPOINT, RESULT

FOLDER = Path(main.__file__).parent


@pytest.fixture
def start(monkeypatch, tmp_path):
    """Runs `main` on 200 synthetic pictures to train and validate and 100 to test; returns status and folder."""
    monkeypatch.setattr(synthetic, "TRAIN_COUNT", 200)
    monkeypatch.setattr(synthetic, "TEST_COUNT", 100)
    monkeypatch.setattr(run_folder, "fcntl", None)  # a folder is held until the process ends, and this one goes on

    def start(*flags: object, folder: str = "run") -> tuple[int, Path]:
        command = ["--dataset", "synthetic", "--threads", 1, "--no-progress", "--output-dir", tmp_path / folder, *flags]
        return main.main(list(map(str, command))), tmp_path / folder

    return start


def stop_at_check(monkeypatch, number: int) -> None:
    """Stop as Ctrl-C would at this batch, counted over training, evaluations and test from 1."""
    calls = []

    def check(self) -> None:
        calls.append(None)
        if len(calls) == number:
            raise Interrupted

    monkeypatch.setattr(Interrupts, "check", check)


def read(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


def test_a_run_from_the_shell_leaves_its_eight_files_and_they_load(tmp_path):
    command = [sys.executable, str(FOLDER / "main.py"), "--dataset", "synthetic", "--debug-steps", "2", "--epochs", "1",
               "--threads", "1"]
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (process.returncode, process.stderr) == (0, "")
    folder = tmp_path / "runs" / "task3-synthetic-lenet"
    assert kill_loop.check(folder) == sorted(FILES)
    config, result = read(folder / CONFIG), read(folder / RESULT)
    assert (config["task"], config["thread_count"], config["device_name"]) == ("task3", 1, "cpu")
    assert config["instruction_set"] == mytensor.cpu_variants()[0]
    assert result["num_parameters"] == 62_006 and result["finished"] is True
    assert f"test accuracy {result['test_accuracy']:.2%}" in process.stdout


def test_the_models_of_the_command_line_are_those_that_there_are():
    """`--help` must not need the extension, so their names stand in the programs as well."""
    assert main.Task3.models == benchmark.MODELS == first_difference.MODELS == tuple(models.MODELS)


def test_help_and_a_bad_command_line_need_no_compiler(tmp_path):
    script = "import sys; sys.modules['mytensor'] = None; import main; main.main(sys.argv[1:])"
    for flag, status in (("--help", 0), ("--no-such-flag", 2)):
        process = subprocess.run([sys.executable, "-c", script, flag], cwd=FOLDER, capture_output=True, text=True)
        assert process.returncode == status and "Traceback" not in process.stderr


@pytest.mark.parametrize("flags", [("--cuda",), ("--device", "cuda:1")], ids=str)
def test_a_gpu_without_the_cuda_part_is_an_error(start, capsys, flags):
    status, folder = start(*flags)
    error = capsys.readouterr().err
    assert status == 1 and "mytensor has no CUDA part" in error and error.count("\n") == 1 and not folder.exists()


def test_more_threads_than_there_can_be_are_an_error(start, capsys):
    status, folder = start("--threads", 1000)
    error = capsys.readouterr().err
    assert status == 1 and "--threads 1000" in error and error.count("\n") == 1 and not folder.exists()


@pytest.mark.parametrize("check, flags", [
    (3, ("--schedule", "onecycle", "--nesterov")),  # in the first epoch
    (10, ("--model", "minivgg-bn", "--image-size", 8, "--augment", "trivial")),  # its plain pictures
    (12, ("--optimizer", "adamw", "--no-bias-decay", "--label-smoothing", 0.1)),
    (17, ("--model", "minivgg-bn", "--image-size", 8, "--optimizer", "adam")),  # the last batch of the second epoch
], ids=str)
def test_a_resumed_run_has_the_bits_of_an_uninterrupted_one(start, monkeypatch, check, flags):
    flags = (*flags, "--epochs", 2, "--batch-size", 32)  # 6 batches to train, 3 plain and 1 to validate
    assert start(*flags, folder="whole")[0] == 0
    with monkeypatch.context() as patch:
        stop_at_check(patch, check)
        assert start(*flags)[0] == 130
    status, path = start("--resume")
    assert status == 0 and kill_loop.results(path) == kill_loop.results(path.with_name("whole"))
    ours, whole = (torch.load(p / LAST_CHECKPOINT, weights_only=True) for p in (path, path.with_name("whole")))
    assert ours["random_state"] == whole["random_state"]


def test_a_run_that_is_repeated_gives_the_same_bits_and_another_seed_others(start):
    folders = [start("--epochs", 1, "--seed", seed, folder=name)[1] for name, seed in
               (("first", 3), ("second", 3), ("third", 4))]
    first, second, third = map(kill_loop.results, folders)
    assert first == second != third


def test_an_evaluation_says_what_the_run_said(start, capsys):
    _, folder = start("--epochs", 1)
    picture = folder.parent / "mine.png"
    Image.fromarray(np.full((40, 50, 3), 90, np.uint8)).save(picture)
    status, other = start("--evaluate", folder / BEST_MODEL, "--batch-size", 7, "--predict", picture, folder="other")
    tested, result = read(other / "evaluation.json"), read(folder / RESULT)
    assert status == 0 and tested["test_accuracy"] == result["test_accuracy"]
    assert tested["test_loss"] == pytest.approx(result["test_loss"], abs=1e-6)
    assert re.search(r"mine\.png: \w+ [\d.]+%, \w+ [\d.]+%, \w+ [\d.]+%\n$", capsys.readouterr().out)


def test_a_run_that_diverges_keeps_its_best_model(start, capsys, monkeypatch):
    with monkeypatch.context() as patch:
        stop_at_check(patch, 12)  # in the second epoch
        _, folder = start("--epochs", 3, "--batch-size", 32)
    checkpoint = torch.load(folder / LAST_CHECKPOINT, weights_only=True)
    checkpoint["model"]["features.0.weight"][:] = 1e38
    torch.save(checkpoint, folder / LAST_CHECKPOINT)
    best = (folder / BEST_MODEL).read_bytes()
    capsys.readouterr()
    assert start("--resume")[0] == 1
    error = capsys.readouterr().err
    assert re.search(r"not finite in epoch 2, step \d", error) and error.count("\n") == 1
    assert (folder / BEST_MODEL).read_bytes() == best and len(read(folder / HISTORY)) == 1


@pytest.mark.parametrize("model, words", [("minivgg", "has besides"), ("lenet", "lacks"), ("minivgg-bn", "(10, 256)")])
def test_weights_of_another_model_are_refused_by_their_keys_or_shapes(start, capsys, tmp_path, model, words):
    weights = models.get_model("minivgg-bn", num_classes=7).state_dict()
    torch.save({name: torch.from_numpy(value) for name, value in weights.items()}, tmp_path / "seven.pth")
    assert start("--evaluate", tmp_path / "seven.pth", "--model", model)[0] == 1
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1
