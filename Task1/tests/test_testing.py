"""What is said of a trained network: its classes of a user's pictures, its figures by class, the pictures it shows."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import plots
import testing
from data import Data
from trainer import Evaluation
from training import Precision, TorchTrainer

CPU = torch.device("cpu")
SHADES = (-2.0, 0.0, 2.0)  # of the classes, once normalised


class ByShade(nn.Module):
    """Its logits are minus the squared distance of a picture's mean from each class's shade."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return -((images.mean(dim=(1, 2, 3))[:, None] - torch.tensor(SHADES)) ** 2)


@pytest.fixture
def data():
    return Data("shades", ("dark", "grey", "light"), channels=3, image_size=8, mean=(0.5,) * 3, std=(0.25,) * 3,
                train=None, train_plain=None, val=None, test=None)


@pytest.mark.parametrize("shade", [0, 100, 255])
def test_a_picture_is_prepared_like_the_training_ones_and_its_classes_are_named(tmp_path, data, capsys, shade):
    file = tmp_path / "mine.png"
    Image.new("RGB", (20, 14), (shade,) * 3).save(file)
    testing.predict_files(TorchTrainer(ByShade(), None, CPU, Precision("off", CPU)), data, [file])
    logits = -(((shade / 255 - 0.5) / 0.25 - np.array(SHADES)) ** 2)
    probabilities = np.exp(logits) / np.exp(logits).sum()
    order = np.argsort(-probabilities)
    expected = ", ".join(f"{data.classes[k]} {probabilities[k]:.1%}" for k in order)
    captured = capsys.readouterr()
    assert captured.out == f"{file}: {expected}\n" and captured.err == ""


def evaluation_of(labels: list[int], predictions: list[int]) -> Evaluation:
    return Evaluation(0.5, float(np.mean(np.equal(labels, predictions))), np.array(labels), np.array(predictions),
                      np.linspace(0.5, 0.9, len(labels), dtype=np.float32))


def test_the_report_gives_the_share_of_each_class(data):
    report = testing.test_report(evaluation_of([0, 0, 0, 1, 1], [0, 0, 2, 1, 0]), data)
    assert report == {"test_accuracy": 0.6, "test_loss": 0.5,
                      "per_class_accuracy": {"dark": pytest.approx(2 / 3), "grey": 0.5, "light": None}}


@pytest.mark.parametrize("count, expected", [(3, [0, 4, 9]), (10, [*range(10)]), (20, [*range(10)]), (1, [0])])
def test_shown_pictures_are_spread_over_the_split(count, expected):
    assert testing._spread(np.arange(10), count).tolist() == expected


def test_as_many_right_pictures_as_wrong_ones_are_shown(tmp_path, data, monkeypatch):
    labels = [0] * 40 + [1] * 40
    predictions = [0, 2] * 20 + [1, 2] * 20
    evaluation = evaluation_of(labels, predictions)
    data.test = SimpleNamespace(raw_pictures=lambda positions: positions)
    shown = []
    monkeypatch.setattr(plots, "predictions", lambda *arguments: shown.append(arguments) or b"png")
    testing.draw_test_pictures(evaluation, data, tmp_path, "shades")
    positions, true, said, probabilities, classes = shown[0]
    assert len(positions) == testing.PICTURES_SHOWN and set(true) == {0, 1} and classes == data.classes
    assert (true == said).tolist() == [True] * 16 + [False] * 16
    assert true.tolist() == evaluation.labels[positions].tolist()
    assert probabilities.tolist() == evaluation.probabilities[positions].tolist()
    assert (tmp_path / "predictions.png").read_bytes() == b"png"
    assert Image.open(tmp_path / "confusion_matrix.png").format == "PNG"
