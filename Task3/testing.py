"""What a trained network gets right and wrong: figures by class, pictures, and the classes of a user's own pictures."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import plots
import run_folder
from data import Data
from trainer import Evaluation, Trainer
from utils import UserError, write_file, write_json

PICTURES_SHOWN = 32


def test_checkpoint(trainer: Trainer, data: Data, folder: Path, checkpoint: Path, dataset: str, model: str,
                    max_batches: int | None = None) -> None:
    """Evaluate on the test split; print the figures, and write them and both pictures into `folder`.

    `trainer` has the weights of `checkpoint`; its path and the names of data set and model stand beside the figures.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"the folder {folder} cannot be made: {error.strerror}; choose another --output-dir") from None
    tested = trainer.evaluate(data.test, max_batches=max_batches)
    report = test_report(tested, data)
    width = max(len(name) for name in data.classes)
    for name, accuracy in report["per_class_accuracy"].items():
        print(f"  {name:{width}s}  {'no picture' if accuracy is None else format(accuracy, '7.2%')}")
    print(f"test accuracy {tested.accuracy:.2%}, loss {tested.loss:.4f} over {len(tested.labels):,} pictures")
    write_json(folder / "evaluation.json", {"checkpoint": str(checkpoint), "dataset": dataset, "model": model,
                                            **report})
    draw_test_pictures(tested, data, folder, f"{model} on {data.name}")
    print(f"files: {folder.absolute()} (evaluation.json, {run_folder.CONFUSION_MATRIX}, {run_folder.PREDICTIONS})")


def test_report(tested: Evaluation, data: Data) -> dict:
    """The figures of a test, as they stand in `result.json`; accuracies are fractions."""
    by_class = tested.per_class_accuracy(len(data.classes))
    return {"test_accuracy": tested.accuracy, "test_loss": tested.loss,
            "per_class_accuracy": dict(zip(data.classes, by_class, strict=True))}


def draw_test_pictures(tested: Evaluation, data: Data, folder: Path, title: str) -> None:
    """Write `confusion_matrix.png` and `predictions.png`: pictures that were recognised and as many that were not."""
    matrix = plots.confusion(tested.labels, tested.predictions, len(data.classes))
    write_file(folder / run_folder.CONFUSION_MATRIX, plots.confusion_matrix(matrix, data.classes))
    right = tested.labels == tested.predictions
    shown = np.concatenate([_spread(np.flatnonzero(kind), PICTURES_SHOWN // 2) for kind in (right, ~right)])
    pictures = data.test.raw_pictures(shown)
    write_file(folder / run_folder.PREDICTIONS,
               plots.predictions(pictures, tested.labels[shown], tested.predictions[shown], tested.probabilities[shown],
                                 data.classes))


def _spread(indices: np.ndarray, count: int) -> np.ndarray:
    """Up to `count` of these, evenly spaced: a split that is sorted by class shows all of its classes."""
    return indices[np.linspace(0, len(indices) - 1, min(count, len(indices))).astype(int)]


def predict_files(trainer: Trainer, data: Data, files: list[Path]) -> None:
    """Print the three likeliest classes of each picture, prepared like the data set's own."""
    for file in files:
        probabilities = trainer.predict(data.read(file))[0]
        likeliest = np.argsort(-probabilities, kind="stable")[:3]
        print(f"{file}: {', '.join(f'{data.classes[index]} {probabilities[index]:.1%}' for index in likeliest)}")
