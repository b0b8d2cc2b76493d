"""The benchmark asks two sides in turn and says what they took; how fast they are is nobody's business here."""

from __future__ import annotations

import json

import pytest

import benchmark
import mytorch
from models import get_model


def test_it_reports_each_side_and_job(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(benchmark, "SIDES", {side: benchmark.SIDES[side] for side in (benchmark.OURS, benchmark.NCHW)})
    monkeypatch.setattr(benchmark, "machine_limits", lambda threads: {})
    monkeypatch.setattr(benchmark, "SECONDS_A_TURN", 0.01)
    assert benchmark.main(["--models", "lenet", "--batch", "4", "--rounds", "2", "--threads", "1",
                           "--json", str(tmp_path / "figures.json")]) == 0
    figures = json.loads((tmp_path / "figures.json").read_text(encoding="utf-8"))["models"]["lenet"]
    said = capsys.readouterr().out
    assert figures["operations"] == operations_of_lenet(4)
    for side, rows in figures["sides"].items():
        assert side in said
        for job in benchmark.JOBS:
            assert 0 < rows[job]["least"] <= rows[job]["median"] <= rows[job]["most"]
    reference = figures["sides"][benchmark.NCHW]
    assert reference["step"]["ratio"] == 1
    ours = figures["sides"][benchmark.OURS]["step"]
    assert ours["ratio"] == pytest.approx(reference["step"]["median"] / ours["median"])


def operations_of_lenet(batch: int) -> int:
    """Two for each weight at each position; three times that of all layers but the first, which has two."""
    first = 28 * 28 * 6 * 75
    others = 10 * 10 * 16 * 150 + 400 * 120 + 120 * 84 + 84 * 10
    return 2 * batch * (2 * first + 3 * others)


def test_counting_leaves_the_model_as_it_was():
    model = get_model("lenet")
    images = mytorch.Tensor([[[[0.5] * 32] * 32] * 3] * 2).numpy()
    before = model(mytorch.Tensor(images)).numpy()
    benchmark.operations_of(model, images)
    assert "forward" not in vars(model.features[0])
    assert (model(mytorch.Tensor(images)).numpy() == before).all()


def test_a_side_that_ends_is_an_error_and_no_hang(monkeypatch, capsys):
    monkeypatch.setattr(benchmark, "machine_limits", lambda threads: {})
    monkeypatch.setattr(benchmark, "__file__", "/nowhere/benchmark.py")
    assert benchmark.main(["--models", "lenet"]) == 1
    assert "a process of the benchmark ended with status 2" in capsys.readouterr().err
