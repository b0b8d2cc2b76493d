"""The pictures that a run leaves behind, as PNG bytes: training curves, confusion matrix, predictions.

Takes numbers and arrays, never a model. Needs no display: the figures are drawn in memory, without pyplot.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

TRAIN_COLOUR, VALIDATION_COLOUR, MUTED = "#3b6fb6", "#d9662b", "#666666"
RIGHT_COLOUR, WRONG_COLOUR = "#1a7f37", "#c62828"
NUMBERED_CLASSES = 20  # up to so many, the cells of a confusion matrix have room for their numbers
NAMED_CLASSES = 50  # up to so many, every row and column is named

_FONT = "DejaVu Sans"  # comes with matplotlib
# Fonts of the common systems for what DejaVu lacks; those that are there are used.
_FURTHER_FONTS = ("Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans SC", "Source Han Sans SC", "WenQuanYi Micro Hei",
                  "WenQuanYi Zen Hei", "Microsoft YaHei", "SimHei", "PingFang SC", "PingFang HK", "Hiragino Sans GB",
                  "Hiragino Sans", "Yu Gothic", "Arial Unicode MS", "Malgun Gothic", "Apple SD Gothic Neo")


# ---- confusion ---------------------------------------------------------------------------------------------------


def confusion(labels: np.ndarray, predicted: np.ndarray, num_classes: int) -> np.ndarray:
    """Count how often each class (row) was taken for each class (column): int64 (num_classes, num_classes)."""
    pairs = np.asarray(labels, np.int64) * num_classes + np.asarray(predicted, np.int64)
    return np.bincount(pairs, minlength=num_classes**2).reshape(num_classes, num_classes)


def _drawing(draw: Callable[..., Figure]) -> Callable[..., bytes]:
    """Make a function that draws a figure into one that returns its PNG, whatever settings the user's matplotlib has.

    Text is taken as it stands: a class may be called `a$b_c`, which is no formula.
    """

    @functools.wraps(draw)
    def draw_png(*arguments: Any, **keywords: Any) -> bytes:
        settings = {key: value for key, value in matplotlib.rcParamsDefault.items() if not key.startswith("backend")}
        settings.update({"text.parse_math": False, "font.family": [_FONT, *_further_fonts()], "font.size": 9,
                         "axes.titlesize": 10, "axes.spines.top": False, "axes.spines.right": False})
        with matplotlib.rc_context(settings):
            figure = draw(*arguments, **keywords)
            png = io.BytesIO()
            FigureCanvasAgg(figure).print_png(png)
        return png.getvalue()

    return draw_png


# ---- curves ------------------------------------------------------------------------------------------------------


@_drawing
def curves(history: Sequence[dict[str, Any]], title: str) -> Figure:
    """Loss and accuracy against epoch, train and validation; the best epoch is marked.

    Each entry of `history` has `epoch`, `train_loss`, `val_loss` and, as fractions, `train_accuracy`, `val_accuracy`.
    """
    epochs = [row["epoch"] for row in history]
    figure = Figure(figsize=(9, 3.6), dpi=100)
    figure.suptitle(label(title, 100), x=0.5, y=0.97, fontsize=11)
    figure.subplots_adjust(left=0.07, right=0.98, top=0.83, bottom=0.14, wspace=0.2)
    for axes, quantity in zip(figure.subplots(1, 2), ("loss", "accuracy"), strict=True):
        for part, name, colour in (("train", "train", TRAIN_COLOUR), ("val", "validation", VALIDATION_COLOUR)):
            axes.plot(epochs, [row[f"{part}_{quantity}"] for row in history], label=name, color=colour, linewidth=1.6,
                      marker="o" if len(epochs) <= 40 else "", markersize=3)
        axes.set(title=quantity, xlabel="epoch")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1, steps=[1, 2, 5, 10]))
        axes.grid(color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
    loss, accuracy = figure.axes
    loss.legend(frameon=False)
    accuracy.yaxis.set_major_formatter(PercentFormatter(1))
    best = max(history, key=lambda row: row["val_accuracy"])  # the first of equals, as in training
    accuracy.plot(best["epoch"], best["val_accuracy"], "o", color=VALIDATION_COLOUR, markersize=8, fillstyle="none")
    accuracy.set_title(f"accuracy (best validation {best['val_accuracy']:.2%}, epoch {best['epoch']})")
    return figure


# ---- confusion matrix --------------------------------------------------------------------------------------------


@_drawing
def confusion_matrix(matrix: np.ndarray, classes: Sequence[str]) -> Figure:
    """Counts (K, K), [true, predicted], coloured by their share of the row; a class without pictures is a white row.

    Up to 20 classes have numbers in the cells; of more than 50 some are named.
    """
    matrix, count = np.asarray(matrix), len(classes)
    share = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    side = 6.4 if count <= 10 else 8.2
    figure = Figure(figsize=(side + 0.7, side), dpi=100 if count <= NUMBERED_CLASSES else 130, layout="compressed")
    axes = figure.add_subplot()
    # The square root makes single mistakes visible beside a diagonal near 1.
    image = axes.imshow(np.sqrt(share), cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
    _name_classes(axes, classes)
    if count <= NUMBERED_CLASSES:
        _write_numbers(axes, matrix, share)
    total = matrix.sum()
    axes.set(xlabel="predicted class", ylabel="true class",
             title=f"{np.trace(matrix):,} of {total:,} right ({np.trace(matrix) / max(total, 1):.2%})")
    axes.spines[:].set_visible(False)
    bar = figure.colorbar(image, ax=axes, fraction=0.045, pad=0.02, label="share of the true class")
    shares = np.array([0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 1])
    bar.set_ticks(np.sqrt(shares), labels=[f"{value:.0%}" for value in shares])
    bar.outline.set_visible(False)
    return figure


def _name_classes(axes: Axes, classes: Sequence[str]) -> None:
    """Name the rows and columns, or every so manieth, in letters that do not overlap."""
    count = len(classes)
    step = 1 if count <= NAMED_CLASSES else -(-count // 25)
    ticks = np.arange(0, count, step)
    names = [label(classes[tick]) for tick in ticks]
    size, angle = (9, 45) if count <= NUMBERED_CLASSES else (7, 90)
    axes.set_xticks(ticks, names, rotation=angle, ha="right", va="center" if angle == 90 else "top",
                    rotation_mode="anchor", fontsize=size)
    axes.set_yticks(ticks, names, fontsize=size)
    axes.tick_params(length=0 if step == 1 else 2)


def _write_numbers(axes: Axes, matrix: np.ndarray, share: np.ndarray) -> None:
    """Write each count into its cell, in letters that fit the widest."""
    digits = max(2, len(str(matrix.max())))
    size = min(9, 430 / len(matrix) / digits / 0.8 * 0.72)
    for (row, column), value in np.ndenumerate(matrix):
        if value:
            axes.text(column, row, str(value), ha="center", va="center", fontsize=size,
                      color="white" if share[row, column] > 0.4 else "#333333")


# ---- predictions -------------------------------------------------------------------------------------------------


@_drawing
def predictions(pictures: np.ndarray, labels: np.ndarray, predicted: np.ndarray, probabilities: np.ndarray,
                classes: Sequence[str]) -> Figure:
    """A sheet of pictures, uint8 (M, C, H, W) of 1 or 3 channels, under each the true class and the predicted one.

    `probabilities` (M,) are those of the predicted classes.
    """
    columns = min(8, max(3, len(pictures)))
    rows = -(-len(pictures) // columns)
    side, gap, text, head = 1.3, 0.16, 0.42, 0.3  # inches: a picture, between two, below one, above all
    width, height = columns * (side + gap) + gap, rows * (side + text) + head
    figure = Figure(figsize=(width, height), dpi=100)
    figure.text(gap / width, 1 - 0.5 * head / height, "true class \N{RIGHTWARDS ARROW} predicted class and probability",
                va="center", fontsize=8, color=MUTED)
    for index, picture in enumerate(pictures):
        row, column = divmod(index, columns)
        axes = figure.add_axes(((column * (side + gap) + gap) / width,
                                1 - (row * (side + text) + side + head) / height, side / width, side / height))
        image = picture[0] if len(picture) == 1 else picture.transpose(1, 2, 0)
        axes.imshow(image, cmap="gray", vmin=0, vmax=255, interpolation="nearest")
        axes.set(xticks=[], yticks=[])
        colour = RIGHT_COLOUR if labels[index] == predicted[index] else WRONG_COLOUR
        axes.set_xlabel(f"{label(classes[labels[index]], 20)}\n\N{RIGHTWARDS ARROW} "
                        f"{label(classes[predicted[index]], 14)} {probabilities[index]:.0%}",
                        color=colour, fontsize=7, labelpad=3)
        axes.spines[:].set(visible=True, color=colour, linewidth=1.5)
    return figure


# ---- text --------------------------------------------------------------------------------------------------------


def label(text: str, length: int = 22) -> str:
    """A text that the fonts can show: what they lack becomes an escape like `\\u732b`, what is too long is cut."""
    shown = "".join(character if _drawable(character) else character.encode("unicode_escape").decode("ascii")
                    for character in text)
    return shown if len(shown) <= length else shown[:length - 1] + "\N{HORIZONTAL ELLIPSIS}"


def _drawable(character: str) -> bool:
    fonts = (_FONT, *_further_fonts())
    return character.isprintable() and any(_font(name).get_char_index(ord(character)) for name in fonts)


@functools.cache
def _font(name: str) -> Any:
    return font_manager.get_font(font_manager.findfont(name))


@functools.cache
def _further_fonts() -> tuple[str, ...]:
    installed = {font.name for font in font_manager.fontManager.ttflist}
    return tuple(name for name in _FURTHER_FONTS if name in installed)
