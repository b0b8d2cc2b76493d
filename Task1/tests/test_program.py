"""The program as a user meets it: a run from the shell, and what it says and leaves; the same through `main` here."""

from __future__ import annotations

import re

import kill_loop
import numpy as np
import pytest
from PIL import Image

import main
import synthetic
from run_folder import BEST_MODEL, CONFIG, FILES, HISTORY, LAST_CHECKPOINT, RESULT

SYNTHETIC = ("--dataset", "synthetic", "--threads", "1", "--no-progress")


@pytest.fixture(scope="module")
def finished(program, tmp_path_factory):
    """The folder that a run of two short epochs left, and what it said."""
    place = tmp_path_factory.mktemp("place")
    process = program("--dataset", "synthetic", "--debug-steps", 4, "--epochs", 2, cwd=place)
    assert (process.returncode, process.stderr) == (0, "")
    return place / "runs" / "task1-synthetic-lenet", process.stdout


@pytest.fixture
def start(monkeypatch):
    """Runs `main` on 200 synthetic pictures to train and validate and 100 to test; returns the status."""
    monkeypatch.setattr(synthetic, "TRAIN_COUNT", 200)
    monkeypatch.setattr(synthetic, "TEST_COUNT", 100)
    return lambda *flags: main.main([str(flag) for flag in (*SYNTHETIC, *flags)])


def files(folder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# ---- from the shell ----------------------------------------------------------------------------------------------


def test_a_run_leaves_its_eight_files_and_they_load(finished):
    assert kill_loop.check(finished[0]) == sorted(FILES)


def test_a_run_says_a_line_an_epoch_and_at_the_end_the_test_accuracy_and_where_the_files_are(finished):
    folder, said = finished
    lines = said.splitlines()
    result, history = (kill_loop.read_strict(folder / name) for name in (RESULT, HISTORY))
    for line, row in zip(lines[3:5], history, strict=True):
        assert re.match(rf"epoch +{row['epoch']}/2 ", line) and f"{row['val_accuracy']:.2%}" in line
    assert f"test accuracy {result['test_accuracy']:.2%}" in lines[5]
    assert lines[6] == f"files: {folder}" and len(lines) == 7


def test_the_result_is_that_of_the_history(finished):
    result, history = (kill_loop.read_strict(finished[0] / name) for name in (RESULT, HISTORY))
    assert [row["epoch"] for row in history] == [1, 2]
    assert result["best_val_accuracy"] == max(row["val_accuracy"] for row in history)
    assert result["best_val_accuracy"] == history[result["best_epoch"] - 1]["val_accuracy"]
    assert result["train_seconds"] == pytest.approx(sum(row["seconds"] for row in history), abs=0.01)
    assert result["finished"] is True and result["num_parameters"] == 62_006
    assert (result["dataset"], result["model"]) == ("synthetic", "lenet")
    assert list(result["per_class_accuracy"]) == synthetic.picture_classes()
    config = kill_loop.read_strict(finished[0] / CONFIG)
    assert (config["epochs"], config["lr"], config["thread_count"], config["device_name"]) == (2, 0.01, 1, "cpu")
    assert {"python", "torch", "numpy", "project"} <= config.keys()


def test_a_mistake_ends_with_status_1_and_one_line(program, tmp_path):
    process = program("--resume", "--dataset", "synthetic", cwd=tmp_path)
    missing = tmp_path / "runs" / "task1-synthetic-lenet" / LAST_CHECKPOINT
    assert (process.returncode, process.stdout, process.stderr.count("\n")) == (1, "", 1)
    assert process.stderr.startswith("error: ") and str(missing) in process.stderr
    assert not list(tmp_path.iterdir())


# ---- in this process ---------------------------------------------------------------------------------------------


def test_weights_without_their_run_cannot_be_resumed_but_the_way_to_use_them_is_named(start, tmp_path, capsys):
    (tmp_path / BEST_MODEL).write_bytes(b"")
    assert start("--resume", "--output-dir", tmp_path) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and str(tmp_path / LAST_CHECKPOINT) in error and "--evaluate" in error


@pytest.mark.filterwarnings("error")
def test_convnet_trains_on_digits(start, tmp_path):
    """Pictures of one channel, from the first step to the pictures of the test."""
    flags = ("--dataset", "synthetic-digits", "--model", "convnet", "--epochs", 1)
    assert start(*flags, "--output-dir", tmp_path / "run") == 0
    result = kill_loop.read_strict(tmp_path / "run" / RESULT)
    assert kill_loop.check(tmp_path / "run") == sorted(FILES)
    assert (result["dataset"], result["model"]) == ("synthetic-digits", "convnet")
    assert list(result["per_class_accuracy"]) == [str(digit) for digit in range(10)]


def test_weights_that_cannot_move_give_the_same_figures_in_every_epoch(start, tmp_path):
    """What is measured is measured on plain pictures, though training augments them."""
    assert start("--epochs", 2, "--lr", 1e-30, "--momentum", 0, "--weight-decay", 0, "--output-dir", tmp_path) == 0
    first, second = kill_loop.read_strict(tmp_path / HISTORY)
    for name in ("train_loss", "train_accuracy", "val_loss", "val_accuracy"):
        assert first[name] == second[name]


def test_a_run_that_is_repeated_gives_the_same_bits(start, tmp_path):
    for name in ("first", "second"):
        assert start("--epochs", 2, "--augment", "trivial", "--output-dir", tmp_path / name) == 0
    assert kill_loop.results(tmp_path / "first") == kill_loop.results(tmp_path / "second")


def test_an_evaluation_says_what_the_run_said_whatever_the_batch_size(start, tmp_path):
    assert start("--epochs", 1, "--output-dir", tmp_path / "run") == 0
    result = kill_loop.read_strict(tmp_path / "run" / RESULT)
    for batch_size in (7, 64, 100_000):
        folder = tmp_path / str(batch_size)
        assert start("--evaluate", tmp_path / "run" / BEST_MODEL, "--batch-size", batch_size,
                     "--output-dir", folder) == 0
        assert sorted(files(folder)) == ["confusion_matrix.png", "evaluation.json", "predictions.png"]
        tested = kill_loop.read_strict(folder / "evaluation.json")
        assert tested["test_accuracy"] == result["test_accuracy"]
        assert tested["per_class_accuracy"] == result["per_class_accuracy"]
        assert tested["test_loss"] == pytest.approx(result["test_loss"], abs=1e-6)


def test_an_evaluation_takes_data_and_model_from_the_run_and_leaves_its_files_alone(start, tmp_path, capsys):
    run = tmp_path / "run"
    assert start("--epochs", 1, "--model", "minivgg", "--image-size", 8, "--output-dir", run) == 0
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    assert main.main(["--evaluate", str(run / BEST_MODEL), "--threads", "1", "--no-progress"]) == 0
    assert {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()} == before
    tested = kill_loop.read_strict(run / "evaluation" / "evaluation.json")
    assert (tested["model"], tested["dataset"]) == ("minivgg", "synthetic")
    assert tested["test_accuracy"] == kill_loop.read_strict(run / RESULT)["test_accuracy"]
    assert start("--evaluate", run / BEST_MODEL, "--predict", tmp_path / "none.png") == 1
    assert "there is no file" in capsys.readouterr().err


@pytest.mark.parametrize("flag, value", [("--lr", "0.5"), ("--augment", "none")])
def test_a_resume_that_is_refused_leaves_the_folder_as_it_was(finished, capsys, flag, value):
    before = files(finished[0])
    assert main.main([*SYNTHETIC, "--resume", "--output-dir", str(finished[0]), flag, value]) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: ") and said.count("\n") == 1 and f"{flag} {value}" in said
    assert files(finished[0]) == before


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("size", [32, 100])
def test_own_pictures_train_and_are_recognised(tree, tmp_path, capsys, size):
    flags = ["--dataset", "imagefolder", "--data-dir", str(tree), "--image-size", str(size), "--threads", "1"]
    assert main.main([*flags, "--epochs", "1", "--output-dir", str(tmp_path / "run")]) == 0
    Image.fromarray(np.full((50, 40, 3), 90, np.uint8)).save(tmp_path / "mine.png")
    assert main.main([*flags, "--evaluate", str(tmp_path / "run" / BEST_MODEL),
                      "--predict", str(tmp_path / "mine.png")]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert re.fullmatch(rf"{re.escape(str(tmp_path))}/mine\.png: [a-d] [\d.]+%, [a-d] [\d.]+%, [a-d] [\d.]+%", last)
