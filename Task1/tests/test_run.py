"""Whole runs in this process: what is kept, what a resumed run goes on with, and what it refuses."""

from __future__ import annotations

import copy
import dataclasses
import json
import warnings
from types import SimpleNamespace

import pytest
import torch
from conftest import Overflowing
from PIL import Image

import main
import program
import run
import run_folder
from data import Loader
from interrupts import Interrupted, Interrupts
from run_folder import BEST_MODEL, HISTORY, LAST_CHECKPOINT, RESULT
from training import TorchTrainer

evaluate = TorchTrainer.evaluate  # as it is, whatever a test puts in its place


@pytest.fixture
def train(tree, tmp_path, monkeypatch):
    """Runs `main` on a small tree (22 pictures train in 6 batches, 2 validate); returns status and folder."""
    monkeypatch.setattr(run.plots, "curves", lambda history, title: b"")
    monkeypatch.setattr(run, "draw_test_pictures", lambda *arguments: None)
    monkeypatch.setattr(run_folder, "fcntl", None)  # a folder is held until the process ends, and this one goes on

    def train(*flags: object, folder: str = "run") -> tuple[int, object]:
        path = tmp_path / folder
        command = ["--dataset", "imagefolder", "--data-dir", tree, "--no-progress", "--threads", 1,
                   "--output-dir", path, *flags]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return main.main(list(map(str, command))), path

    return train


SMALL = ("--image-size", 8, "--model", "minivgg", "--batch-size", 4)


def read(path, name: str):
    return json.loads((path / name).read_text(encoding="utf-8"))


def history(path) -> list[dict]:
    return [{key: value for key, value in row.items() if key not in ("seconds", "images_per_second")}
            for row in read(path, HISTORY)]


def test_the_test_split_is_read_once_and_at_the_end(train, monkeypatch):
    views, read_views = {}, []

    def load_data(*arguments, original=program.load_data, **keywords):
        data = original(*arguments, **keywords)
        views.update({id(getattr(data, name)): name for name in ("train", "train_plain", "val", "test")})
        return data

    def batches(self, *arguments, original=Loader.batches, **keywords):
        read_views.append(views[id(self)])
        return original(self, *arguments, **keywords)

    monkeypatch.setattr(program, "load_data", load_data)
    monkeypatch.setattr(Loader, "batches", batches)
    status, path = train(*SMALL, "--epochs", 2)
    assert status == 0 and read(path, RESULT)["finished"] is True
    assert read_views == ["train", "train_plain", "val"] * 2 + ["test"]


def script_validation(monkeypatch, accuracies: list[float]) -> list[dict]:
    """Let the validation say these accuracies; returns the weights that each evaluation of any split saw."""
    seen, left = [], list(accuracies)

    def scripted(self, split, **keywords):
        found = evaluate(self, split, **keywords)
        seen.append(copy.deepcopy(self.weights()))
        return dataclasses.replace(found, accuracy=left.pop(0)) if len(split.indices) == 2 else found

    monkeypatch.setattr(TorchTrainer, "evaluate", scripted)
    return seen


def equal(first: dict, second: dict) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[key], second[key]) for key in first)


def test_the_best_model_is_the_first_of_the_best_validation_accuracy_and_is_what_is_tested(train, monkeypatch):
    seen = script_validation(monkeypatch, [0.25, 0.75, 0.75, 0.5])
    status, path = train(*SMALL, "--epochs", 4)
    plain = seen[0:8:2]  # of each epoch the plain training pictures and the validation; then the test
    best = torch.load(path / BEST_MODEL, weights_only=True)
    last = torch.load(path / LAST_CHECKPOINT, weights_only=True)["model"]
    assert status == 0 and len(seen) == 9
    assert equal(best, plain[1]) and equal(best, seen[8]) and equal(last, plain[3]) and not equal(best, last)
    result = read(path, RESULT)
    assert result["best_epoch"] == 2 and result["best_val_accuracy"] == 0.75


def stop_at_check(monkeypatch, number: int) -> None:
    """Stop as Ctrl-C would at this batch, counted over training, evaluations and test from 1."""
    calls = []

    def check(self) -> None:
        calls.append(None)
        if len(calls) == number:
            raise Interrupted

    monkeypatch.setattr(Interrupts, "check", check)


def test_a_resumed_run_keeps_its_best_model_until_it_is_beaten(train, monkeypatch):
    stop_at_check(monkeypatch, 23)  # in the third epoch: each has 6 batches to train, 3 plain and 1 to validate
    script_validation(monkeypatch, [0.25, 0.75])
    status, path = train(*SMALL, "--epochs", 5)
    best = (path / BEST_MODEL).read_bytes()
    assert status == 130
    script_validation(monkeypatch, [0.5, 0.75, 0.25])
    status, path = train("--resume")
    assert status == 0 and read(path, RESULT)["best_epoch"] == 2
    assert (path / BEST_MODEL).read_bytes() == best


@pytest.mark.parametrize("check, flags", [
    (3, ("--schedule", "onecycle", "--nesterov")),
    (10, ("--schedule", "cosine", "--warmup-epochs", 1, "--augment", "trivial")),  # the validation of the first epoch
    (16, ("--optimizer", "adamw", "--no-bias-decay", "--label-smoothing", 0.1)),  # after the last training batch
    (18, ("--amp", "bfloat16", "--schedule", "constant")),  # the plain pictures of the second epoch
    (22, ("--schedule", "constant", "--warmup-epochs", 2, "--optimizer", "adam")),
    (31, ("--momentum", 0)),  # the test
], ids=str)
def test_a_resumed_run_has_the_bits_of_an_uninterrupted_one(train, monkeypatch, check, flags):
    flags = (*SMALL, "--epochs", 3, *flags)
    assert train(*flags, folder="whole")[0] == 0
    with monkeypatch.context() as patch:
        stop_at_check(patch, check)
        assert train(*flags)[0] == 130
    status, path = train("--resume")
    whole = path.with_name("whole")
    assert status == 0 and history(path) == history(whole)
    for name in (BEST_MODEL, LAST_CHECKPOINT):
        first, second = (torch.load(p / name, weights_only=True) for p in (path, whole))
        assert equal(first.get("model", first), second.get("model", second))
    assert all(row["images_per_second"] > 0 for row in read(path, HISTORY))


def test_the_time_before_an_interruption_counts(train, monkeypatch):
    """By a clock on which each batch takes a second, whether it is trained on or evaluated."""
    now = [0.0]
    monkeypatch.setattr(run, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    def batches(self, *arguments, original=Loader.batches, **keywords):
        for batch in original(self, *arguments, **keywords):
            now[0] += 1.0
            yield batch

    monkeypatch.setattr(Loader, "batches", batches)
    for stop in (4, 8):  # in the training pass, and in the evaluation of the plain training pictures
        with monkeypatch.context() as patch:
            stop_at_check(patch, stop)
            assert train(*SMALL, "--epochs", 2, folder=str(stop))[0] == 130
        now[0] += 1000.0  # what passes before it is resumed
        status, path = train("--resume", folder=str(stop))
        first, second = read(path, HISTORY)
        assert status == 0 and first["images_per_second"] == second["images_per_second"] == round(22 / 6, 1)
        repeated = 2 if stop == 8 else 0  # an evaluation begins anew
        assert first["seconds"] == 6 + 3 + 1 + repeated and second["seconds"] == 6 + 3 + 1


def test_skipped_steps_are_told_in_a_line_and_without_a_warning(train, monkeypatch, capsys):
    monkeypatch.setattr(main, "Precision", Overflowing)
    assert train(*SMALL, "--epochs", 1)[0] == 0
    said = capsys.readouterr()
    assert [line for line in said.out.splitlines() if "skipped" in line and "epoch 1" in line] and not said.err


def test_the_loss_scale_goes_on_where_it_was(train, monkeypatch):
    monkeypatch.setattr(main, "Precision", Overflowing)
    scalers = {}
    for folder in ("whole", "run"):
        with monkeypatch.context() as patch:
            stop_at_check(patch, 5 if folder == "run" else 0)
            status, path = train(*SMALL, "--epochs", 1, folder=folder)
        if status == 130:
            assert train("--resume")[0] == 0
        scalers[folder] = torch.load(path / LAST_CHECKPOINT, weights_only=True)["scaler"]
    assert scalers["run"] == scalers["whole"] and scalers["run"]["scale"] < 2.0**127


def test_a_run_that_diverges_keeps_its_best_model(train, monkeypatch, capsys):
    with monkeypatch.context() as patch:
        stop_at_check(patch, 21)
        status, path = train(*SMALL, "--epochs", 4)
    checkpoint = torch.load(path / LAST_CHECKPOINT, weights_only=True)
    best = (path / BEST_MODEL).read_bytes()
    checkpoint["optimizer"]["state"][0]["momentum_buffer"][0, 0, 0, 0] = torch.inf
    torch.save(checkpoint, path / LAST_CHECKPOINT)
    capsys.readouterr()
    assert train("--resume")[0] == 1
    error = capsys.readouterr().err
    assert "not finite in epoch 3, step 3;" in error and len(error.splitlines()) == 1
    assert (path / BEST_MODEL).read_bytes() == best


@pytest.mark.parametrize("entry, value", [("optimizer", {}), ("optimizer", {"state": {}, "param_groups": [{}, {}]}),
                                          ("random_state", {}), ("random_state", {"cpu": 3, "cuda": []})], ids=str)
def test_a_checkpoint_that_somebody_edited_is_told(train, monkeypatch, capsys, entry, value):
    with monkeypatch.context() as patch:
        stop_at_check(patch, 3)
        _, path = train(*SMALL, "--epochs", 1)
    torch.save({**torch.load(path / LAST_CHECKPOINT, weights_only=True), entry: value}, path / LAST_CHECKPOINT)
    capsys.readouterr()
    assert train("--resume")[0] == 1
    error = capsys.readouterr().err
    assert "is not as a run writes it" in error and error.count("\n") == 1


def test_other_pictures_of_the_same_names_are_refused(train, tree, monkeypatch, capsys):
    with monkeypatch.context() as patch:
        stop_at_check(patch, 3)
        train(*SMALL, "--epochs", 1)
    for path in (tree / "train").rglob("*.png"):
        Image.new("RGB", (32, 32), (1, 2, 3)).save(path)
    assert train("--resume")[0] == 1
    assert "its pictures or their labels are others" in capsys.readouterr().err


def test_a_best_model_that_is_gone_is_told_before_more_is_trained(train, monkeypatch, capsys):
    with monkeypatch.context() as patch:
        stop_at_check(patch, 13)  # in the second epoch
        _, path = train(*SMALL, "--epochs", 3)
    (path / BEST_MODEL).unlink()
    capsys.readouterr()
    assert train("--resume")[0] == 1
    said = capsys.readouterr()
    assert "best_model.pth, the best model so far, is gone" in said.err and "epoch   2" not in said.out


def test_the_configuration_of_a_resumed_run_is_written_anew(train, monkeypatch):
    with monkeypatch.context() as patch:
        stop_at_check(patch, 3)
        _, path = train(*SMALL, "--epochs", 1)
    (path / "config.json").write_text("{", encoding="utf-8")
    assert train("--resume")[0] == 0
    assert read(path, "config.json")["epochs"] == 1


def test_other_data_under_a_resumed_run_are_refused(train, tree, monkeypatch, capsys):
    with monkeypatch.context() as patch:
        stop_at_check(patch, 3)
        train(*SMALL, "--epochs", 1)
    (tree / "train" / "a" / "0.png").unlink()
    assert train("--resume")[0] == 1
    assert "[22, 2, 12] pictures to train, validate and test became [21, 2, 12]" in capsys.readouterr().err
    for split in ("train", "test"):
        (tree / split / "d").rename(tree / split / "e")
    assert train("--resume")[0] == 1
    assert "the class d came or went" in capsys.readouterr().err
