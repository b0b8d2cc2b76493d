"""The pictures that a run leaves behind: they open, have the size that was meant, and show the right numbers."""

from __future__ import annotations

import io
import warnings

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

import plots

CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


@pytest.fixture(autouse=True)
def no_warnings(capfd):
    """A picture is drawn without a word: fonts that lack a character must not fill a log."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield
    assert capfd.readouterr() == ("", "")


@pytest.fixture
def drawn(monkeypatch) -> list[Figure]:
    """The figures that were drawn, to look into."""
    figures = []

    class Kept(Figure):
        def __init__(self, *arguments, **keywords):
            super().__init__(*arguments, **keywords)
            figures.append(self)

    monkeypatch.setattr(plots, "Figure", Kept)
    return figures


def opened(png: bytes) -> np.ndarray:
    """The pixels of a picture, grey: (height, width), 255 is white."""
    with Image.open(io.BytesIO(png)) as picture:
        assert picture.format == "PNG"
        return np.asarray(picture.convert("L"))


def texts(figure: Figure) -> list[str]:
    """All that is written in a figure."""
    return [text.get_text() for text in figure.findobj(matplotlib.text.Text) if text.get_text()]


def uncut(pixels: np.ndarray) -> bool:
    """Whether the rim is white: what reaches it was cut off."""
    return all((rim > 250).all() for rim in (pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]))


# ---- curves ------------------------------------------------------------------------------------------------------


def history(epochs: int) -> list[dict]:
    rng = np.random.default_rng(epochs)
    names = ("train_loss", "val_loss", "train_accuracy", "val_accuracy")
    return [{"epoch": epoch, **dict(zip(names, rng.random(4).tolist(), strict=True))} for epoch in range(1, epochs + 1)]


@pytest.mark.parametrize("epochs", [1, 2, 30, 300])
def test_curves_show_every_epoch_and_mark_the_best(drawn, epochs):
    rows = history(epochs)
    pixels = opened(plots.curves(rows, "lenet on cifar10"))
    assert pixels.shape == (360, 900) and uncut(pixels)
    loss, accuracy = drawn[0].axes
    for axes, quantity in ((loss, "loss"), (accuracy, "accuracy")):
        for line, part in zip(axes.lines, ("train", "val"), strict=False):
            assert list(line.get_xdata()) == list(range(1, epochs + 1))
            assert list(line.get_ydata()) == [row[f"{part}_{quantity}"] for row in rows]
        assert all(tick == int(tick) for tick in axes.get_xticks())
    best = max(rows, key=lambda row: row["val_accuracy"])
    assert accuracy.lines[2].get_xydata().tolist() == [[best["epoch"], best["val_accuracy"]]]
    assert f"accuracy (best validation {best['val_accuracy']:.2%}, epoch {best['epoch']})" in texts(drawn[0])
    assert {"lenet on cifar10", "train", "validation", "epoch", "loss"} <= set(texts(drawn[0]))


def test_one_epoch_can_be_seen(drawn):
    plots.curves(history(1), "")
    assert {line.get_marker() for axes in drawn[0].axes for line in axes.lines} == {"o"}  # a line of one point is none


def test_the_users_settings_change_nothing():
    first = plots.curves(history(3), "title")
    with matplotlib.rc_context({"figure.dpi": 300, "font.size": 30, "axes.prop_cycle": "cycler('color', ['k'])",
                                "savefig.facecolor": "black", "text.usetex": True}):
        assert plots.curves(history(3), "title") == first


# ---- confusion matrix --------------------------------------------------------------------------------------------


def test_confusion_counts_true_classes_in_rows_and_predicted_ones_in_columns():
    matrix = plots.confusion(np.array([0, 0, 1, 2, 2, 2]), np.array([0, 1, 1, 0, 0, 2]), 4)
    assert matrix.tolist() == [[1, 1, 0, 0], [0, 1, 0, 0], [2, 0, 1, 0], [0, 0, 0, 0]]


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.int64])
def test_confusion_of_200_classes_overflows_no_small_type(dtype):
    labels, predicted = np.arange(200).astype(dtype), np.roll(np.arange(200), 1).astype(dtype)
    expected = np.roll(np.eye(200, dtype=int), -1, axis=1)
    assert np.array_equal(plots.confusion(labels, predicted, 200), expected)


@pytest.mark.parametrize("count, shape", [(1, (640, 710)), (2, (640, 710)), (10, (640, 710)), (20, (820, 890)),
                                          (50, (1066, 1157)), (200, (1066, 1157))])
def test_a_confusion_matrix_is_whole_and_names_its_classes(drawn, count, shape):
    names = [f"automobile of name {index:03d}" for index in range(count)]
    matrix = np.random.default_rng(0).integers(1000, size=(count, count))
    pixels = opened(plots.confusion_matrix(matrix, names))
    assert pixels.shape == shape and uncut(pixels)
    written = texts(drawn[0])
    assert {"true class", "predicted class", "share of the true class"} <= set(written)
    for ticks in (drawn[0].axes[0].get_xticklabels(), drawn[0].axes[0].get_yticklabels()):
        assert [tick.get_text() for tick in ticks] == (names if count <= 50 else names[::8])
    if count <= 20:
        assert {str(value) for value in matrix.flat if value} <= set(written)
    assert f"{np.trace(matrix):,} of {matrix.sum():,} right ({np.trace(matrix) / matrix.sum():.2%})" in written


def test_cells_are_coloured_by_the_share_of_their_row(drawn):
    plots.confusion_matrix(np.array([[1, 3], [0, 0]]), ["a", "b"])
    shown = drawn[0].axes[0].images[0].get_array()
    assert np.allclose(shown, [[np.sqrt(1 / 4), np.sqrt(3 / 4)], [0, 0]])  # a class without pictures stays white


# ---- predictions -------------------------------------------------------------------------------------------------


def sheet(right: int, wrong: int, channels: int, classes: list[str] = CLASSES) -> bytes:
    count = right + wrong
    labels = np.arange(count) % len(classes)
    predicted = np.where(np.arange(count) < right, labels, (labels + 1) % len(classes))
    pictures = np.random.default_rng(0).integers(256, size=(count, channels, 32, 32)).astype(np.uint8)
    return plots.predictions(pictures, labels, predicted, np.linspace(0.1, 1, count), classes)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("right, wrong, shape", [(16, 16, (718, 1184)), (0, 16, (374, 1184)), (16, 0, (374, 1184)),
                                                 (1, 0, (202, 454)), (0, 1, (202, 454)), (5, 4, (374, 1184))])
def test_predictions_show_each_picture_with_both_classes(drawn, channels, right, wrong, shape):
    pixels = opened(sheet(right, wrong, channels))
    assert pixels.shape == shape and uncut(pixels)
    labels = [axes.xaxis.label for axes in drawn[0].axes]
    assert len(labels) == right + wrong
    colours = [plots.RIGHT_COLOUR] * right + [plots.WRONG_COLOUR] * wrong
    assert [label.get_color() for label in labels] == colours
    shift = 0 if right else 1
    assert labels[0].get_text() == f"{CLASSES[0]}\n\N{RIGHTWARDS ARROW} {CLASSES[shift]} 10%"


def test_a_grey_picture_keeps_its_brightness(drawn):
    picture = np.full((1, 1, 8, 8), 100, np.uint8)
    pixels = opened(plots.predictions(picture, np.array([0]), np.array([0]), np.array([1.0]), CLASSES))
    assert (pixels == 100).sum() > 10_000


@pytest.mark.parametrize("name", ["a very long name of a breed of dogs",
                                  "automobiles and lorries", "猫" * 9, "\t\n" * 9])
def test_long_names_do_not_run_into_each_other(drawn, name):
    sheet(4, 4, 3, [name] * 2)
    boxes = [axes.xaxis.label.get_window_extent() for axes in drawn[0].axes]
    assert all(left.x1 < right.x0 for left, right in zip(boxes, boxes[1:], strict=False))


# ---- text --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["猫", "\N{GRINNING FACE}", "a$b$c", r"\alpha_{2}^", "tab\there", "line\nbreak",
                                  "\udce9", "naïve", "%d {x}", "", "\N{ZERO WIDTH JOINER}"])
def test_any_name_of_a_class_can_be_drawn(text):
    names = [text, "b"]
    for png in (plots.confusion_matrix(np.eye(2, dtype=int), names), sheet(1, 1, 3, names),
                plots.curves(history(2), text)):
        assert opened(png).size


@pytest.mark.parametrize("text, shown", [
    ("naïve", "naïve"), ("a$b", "a$b"), ("a\nb", r"a\nb"), ("\udce9", r"\udce9"), ("\U000f0000", r"\U000f0000"),
    ("x" * 22, "x" * 22), ("x" * 23, "x" * 21 + "\N{HORIZONTAL ELLIPSIS}")])
def test_a_label_escapes_what_no_font_has_and_cuts_what_is_too_long(text, shown):
    assert plots.label(text) == shown
