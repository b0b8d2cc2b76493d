"""What every script needs: files that are whole or absent, streams of chance that do not disturb each other."""

from __future__ import annotations

import io
import json
import os

import numpy as np
import pytest
import torch

import utils
from utils import UserError, random_stream, set_seed, write_file, write_json

# ---- files -------------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """The process is no more."""


@pytest.mark.parametrize("step", ["fsync", "replace"])
@pytest.mark.parametrize("old", [None, b"old"])
def test_a_write_that_is_killed_leaves_the_old_content(tmp_path, monkeypatch, step, old):
    path = tmp_path / "file"
    if old:
        path.write_bytes(old)

    def kill(*arguments):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(os, step, kill)
        with pytest.raises(Killed):
            write_file(path, b"new and longer")
    assert (path.read_bytes() if path.exists() else None) == old
    write_file(path, b"new")  # the next write uses up what the killed one left
    assert [(entry.name, entry.read_bytes()) for entry in tmp_path.iterdir()] == [("file", b"new")]


def test_a_write_reaches_the_disk_before_it_takes_the_old_ones_place(tmp_path, monkeypatch):
    steps = []
    originals = {step: getattr(os, step) for step in ("fsync", "replace")}
    for step in originals:
        monkeypatch.setattr(os, step, lambda *arguments, step=step: (steps.append(step), originals[step](*arguments)))
    write_file(tmp_path / "file", b"new")
    assert steps == ["fsync", "replace"]


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_write_that_fails_is_told_and_leaves_nothing(tmp_path, monkeypatch, step):
    def fail(*arguments):
        raise OSError(28, "No space left on device")

    (tmp_path / "file").write_bytes(b"old")
    monkeypatch.setattr(os, step, fail)
    with pytest.raises(UserError, match=r"file cannot be written: No space left on device; free some space"):
        write_file(tmp_path / "file", b"new")
    assert [(entry.name, entry.read_bytes()) for entry in tmp_path.iterdir()] == [("file", b"old")]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), [1, {"a": -float("inf")}]])
def test_json_takes_finite_numbers_only(tmp_path, value):
    with pytest.raises(ValueError):
        write_json(tmp_path / "a.json", value)
    assert not list(tmp_path.iterdir())


def test_json_goes_round_in_ascii(tmp_path):
    value = {"naïve": [1, 2.5, None, True], "猫": "\udce9"}  # the last: a file name that is no UTF-8
    write_json(tmp_path / "a.json", value)
    assert (tmp_path / "a.json").read_bytes().isascii()
    assert json.loads((tmp_path / "a.json").read_text(encoding="utf-8")) == value


# ---- chance ------------------------------------------------------------------------------------------------------


def draws(seed: int, purpose: str, epoch: int = 0) -> tuple:
    return tuple(random_stream(seed, purpose, epoch).integers(2**62, size=4))


def test_streams_are_reproducible_and_differ_by_seed_purpose_and_epoch():
    keys = [(seed, purpose, epoch) for seed in (0, 1, 2**62) for purpose in ("split", "order", "augment")
            for epoch in (0, 1, 2)]
    first = [draws(*key) for key in keys]
    assert len(set(first)) == len(keys)
    assert [draws(*key) for key in keys] == first


def test_no_stream_depends_on_how_much_another_was_used():
    before = draws(3, "order", 1)
    random_stream(3, "split").random(1000)
    random_stream(3, "order", 0).random(1000)
    np.random.random(10)
    torch.rand(10)
    assert draws(3, "order", 1) == before


def test_a_stream_takes_no_number_from_the_global_generators():
    set_seed(5)
    np.random.seed(5)
    expected = torch.rand(3), np.random.random(3)
    set_seed(5)
    np.random.seed(5)
    random_stream(5, "augment").random(100)
    assert torch.equal(torch.rand(3), expected[0]) and np.array_equal(np.random.random(3), expected[1])


def test_the_random_state_goes_round():
    set_seed(1)
    torch.rand(7)
    state = utils.random_state()
    expected = torch.rand(5)
    set_seed(2)
    utils.set_random_state(state)
    assert torch.equal(torch.rand(5), expected)


# ---- the terminal ------------------------------------------------------------------------------------------------


def test_output_takes_characters_that_its_encoding_lacks(monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(raw, encoding="ascii"))
    utils.prepare_output()
    print("naïve 猫 \udce9")
    assert raw.getvalue() == rb"na\xefve \u732b \udce9" + b"\n"  # and is there as soon as the line is


def test_a_bar_is_not_there_where_nobody_watches(monkeypatch, capsys):
    with utils.progress_bar("x", 3, "batch") as bar:
        bar.update(3)
    assert capsys.readouterr().err == ""
