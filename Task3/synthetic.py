"""Data sets that need no file and no network: the program draws them itself, the same ones each time.

Pictures are drawn by signed distances: a shape is a function d(x, y), negative inside and positive outside, and a pixel
is covered by clip(1/2 - d, 0, 1) with d in pixels. See Quilez, "2D distance functions",
https://iquilezles.org/articles/distfunctions2d/.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

TRAIN_COUNT = 10_000  # the customary sizes of the two splits; any other count may be asked for
TEST_COUNT = 2_000
DIGIT_CLASSES = [str(digit) for digit in range(10)]

_SEED = 1998  # of the data sets themselves: a run's --seed must not change what it is tested on
_CHUNK = 250  # pictures drawn at once: small enough for the processor's cache


def picture_classes(num_classes: int = 10) -> list[str]:
    """The names of the classes of `synthetic_pictures`.

    Up to 10 classes are shapes, in whatever colour and texture. More, up to 500, are shapes in a certain colour and
    texture, counted like digits: the shape changes fastest, the texture slowest. Raises `ValueError` outside 1 to 500.
    """
    most = len(SHAPES) * len(COLOURS) * len(TEXTURES)
    if not 1 <= num_classes <= most:
        raise ValueError(f"synthetic pictures come in 1 to {most} classes, not {num_classes}")
    shapes = list(SHAPES)
    if num_classes <= len(shapes):
        return shapes[:num_classes]
    kinds = [_kind(label) for label in range(num_classes)]
    return [f"{list(COLOURS)[colour]} {list(TEXTURES)[texture]} {shapes[shape]}" for shape, colour, texture in kinds]


def synthetic_pictures(split: str, count: int, num_classes: int = 10, size: int = 32) -> tuple[np.ndarray, np.ndarray]:
    """Draw bright shapes, moved, turned and scaled, over dark noisy backgrounds with clutter.

    No class changes by a horizontal flip or by a crop of a few pixels. Label i is i modulo `num_classes`.

    Returns:
        pictures, uint8 (count, 3, size, size), and labels, int64 (count,).
    """
    picture_classes(num_classes)  # refuses a wrong number
    labels = np.arange(count) % num_classes
    pictures = np.empty((count, 3, size, size), np.uint8)
    for rows, rng in _chunks(split, count):
        pictures[rows] = _draw_pictures(rng, labels[rows], num_classes, size)
    return pictures, labels


def synthetic_digits(split: str, count: int, size: int = 28) -> tuple[np.ndarray, np.ndarray]:
    """Draw digits in a shaky hand, white on black like MNIST's. Label i is i modulo 10.

    Returns:
        pictures, uint8 (count, 1, size, size), and labels, int64 (count,).
    """
    labels = np.arange(count) % 10
    pictures = np.empty((count, 1, size, size), np.uint8)
    for rows, rng in _chunks(split, count):
        pictures[rows, 0] = _draw_digits(rng, labels[rows], size)
    return pictures, labels


def _chunks(split: str, count: int) -> Iterator[tuple[slice, np.random.Generator]]:
    """The rows of each chunk, and a random stream that no other chunk and no other split has."""
    stream = {"train": 0, "test": 1}[split]
    for start in range(0, count, _CHUNK):
        yield slice(start, min(start + _CHUNK, count)), np.random.default_rng([_SEED, stream, start])


# ---- shapes: signed distance from the outline, of about unit radius, at x and y -----------------------------------


def _circle(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.hypot(x, y) - 0.9


def _square(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.maximum(np.abs(x), np.abs(y)) - 0.8


def _triangle(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.maximum(np.abs(x) * 0.866 - y * 0.5, y) - 0.5


def _cross(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    x, y = np.abs(x), np.abs(y)
    return np.maximum(np.maximum(x, y) - 1, np.minimum(x, y) - 0.3)


def _ring(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.abs(np.hypot(x, y) - 0.75) - 0.22


def _crescent(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.maximum(np.hypot(x, y) - 0.95, 0.75 - np.hypot(x - 0.5, y))


def _star(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    # A point is folded into one half of one of the five arms, which ends at the straight line from tip to notch.
    angle = np.abs((np.arctan2(x, -y) + np.pi / 5) % (2 * np.pi / 5) - np.pi / 5)
    return np.hypot(x, y) * np.cos(angle - 0.88) - 0.66


def _stripes(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    bars = np.abs(np.abs(y) - 0.6) - 0.17
    return np.maximum(np.minimum(bars, np.abs(y) - 0.17), np.abs(x) - 0.9)


def _checkers(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    # Two of the four quarters of a square: where x and y have the same sign.
    return np.maximum(_square(x, y), -np.sign(x * y) * np.minimum(np.abs(x), np.abs(y)))


def _arrow(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    head = np.maximum((np.abs(x) - y - 1) * 0.707, y)
    shaft = np.maximum(np.abs(x) - 0.25, np.abs(y - 0.45) - 0.55)
    return np.minimum(head, shaft)


SHAPES: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "arrow": _arrow, "checkers": _checkers, "circle": _circle, "crescent": _crescent, "cross": _cross,
    "ring": _ring, "square": _square, "star": _star, "stripes": _stripes, "triangle": _triangle,
}

COLOURS = {  # red, green, blue from 0 to 1
    "red": (0.95, 0.15, 0.15), "orange": (1.00, 0.55, 0.10), "yellow": (0.95, 0.90, 0.20), "lime": (0.65, 1.00, 0.25),
    "green": (0.10, 0.75, 0.30), "cyan": (0.20, 0.90, 0.95), "blue": (0.25, 0.40, 1.00), "purple": (0.65, 0.25, 0.90),
    "pink": (1.00, 0.60, 0.80), "white": (0.97, 0.97, 0.97),
}

# The brightness of a shape's surface at (x, y), from 0 to 1.
TEXTURES: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "plain": lambda x, y: np.ones_like(x),
    "shaded": lambda x, y: np.clip(0.65 + 0.45 * x, 0, 1),
    "wavy": lambda x, y: 0.75 + 0.25 * np.sin(12 * x + 3 * np.sin(4 * y)),
    "dotted": lambda x, y: 0.75 + 0.25 * np.sin(11 * x) * np.sin(11 * y),
    "ribbed": lambda x, y: 0.75 + 0.25 * np.sign(np.sin(14 * y)),
}


def _kind(label: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The indices of a class's shape, colour and texture."""
    return label % len(SHAPES), label // len(SHAPES) % len(COLOURS), label // len(SHAPES) // len(COLOURS)


# ---- pictures ----------------------------------------------------------------------------------------------------


def _draw_pictures(rng: np.random.Generator, labels: np.ndarray, num_classes: int, size: int) -> np.ndarray:
    """One chunk: background, clutter, the shape, a scratch over it, noise. Values go from 0 to 1 until the end."""
    count = len(labels)
    shape, colour, texture = _kind(labels)
    if num_classes <= len(SHAPES):
        colour, texture = rng.integers(len(COLOURS), size=count), rng.integers(len(TEXTURES), size=count)
    paint = np.array(list(COLOURS.values()), np.float32)[colour] + _uniform(rng, -0.06, 0.06, (count, 3))

    canvas = _background(rng, paint, size)
    for _ in range(2):
        x, y, pixel = _frame(rng, count, size, radius=(0.1, 0.3), shift=1.0)
        blob = np.maximum(np.abs(x), np.abs(y) / _uniform(rng, 0.4, 1, (count, 1, 1))) - 1
        _cover(canvas, _dark(rng, count), blob / pixel)

    x, y, pixel = _frame(rng, count, size, radius=(0.5, 0.8), shift=0.2, turn=np.pi / 6)
    x *= rng.choice(np.array([-1, 1], np.float32), (count, 1, 1))  # seen in a mirror as often as not
    distance, surface = np.empty_like(x), np.empty_like(x)
    for index, outline in enumerate(SHAPES.values()):
        rows = shape == index
        distance[rows] = outline(x[rows], y[rows])
    for index, brightness in enumerate(TEXTURES.values()):
        rows = texture == index
        surface[rows] = brightness(x[rows], y[rows])
    _cover(canvas, paint, distance / pixel, surface)

    x, y, pixel = _frame(rng, count, size, radius=(0.02, 0.05), shift=0.6)
    _cover(canvas, _dark(rng, count), (np.abs(x) - 1) / pixel)

    canvas += _uniform(rng, 0.02, 0.15, (count, 1, 1, 1)) * _uniform(rng, -1, 1, canvas.shape)
    return _to_bytes(canvas)


def _background(rng: np.random.Generator, paint: np.ndarray, size: int) -> np.ndarray:
    """Waves between two alike dark colours that stand out from `paint` (N, 3): pictures (N, 3, size, size)."""
    count = len(paint)
    candidates = np.stack([_dark(rng, count) for _ in range(3)])
    farthest = np.linalg.norm(candidates - paint, axis=2).argmax(axis=0)
    first = candidates[farthest, np.arange(count)]
    change = _uniform(rng, -0.3, 0.3, (count, 3))
    x, y, _ = _frame(rng, count, size, radius=(0.1, 1.0), shift=1.0)
    waves = 0.5 + 0.5 * np.sin(x + np.sin(y))
    return first[:, :, None, None] + change[:, :, None, None] * waves[:, None]


def _dark(rng: np.random.Generator, count: int) -> np.ndarray:
    """Colours (count, 3) of all that is not the shape: darker than the shape's, or nothing but colour would count."""
    return _uniform(rng, 0, 0.45, (count, 3))


def _frame(rng: np.random.Generator, count: int, size: int, radius: tuple[float, float], shift: float,
           turn: float = np.pi) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A frame of random size, place and angle for each picture; the picture itself reaches from -1 to 1.

    Returns x and y of every pixel in the frame, in units of its radius, both (N, size, size), and the width of a pixel
    in the same unit, (N, 1, 1).
    """
    axis = _pixel_centres(size)
    unit = _uniform(rng, *radius, (count, 1, 1))
    right = axis[None, :] - _uniform(rng, -shift, shift, (count, 1, 1))
    down = axis[:, None] - _uniform(rng, -shift, shift, (count, 1, 1))
    angle = _uniform(rng, -turn, turn, (count, 1, 1))
    cosine, sine = np.cos(angle) / unit, np.sin(angle) / unit
    return cosine * right + sine * down, cosine * down - sine * right, 2 / size / unit


def _cover(canvas: np.ndarray, paint: np.ndarray, distance: np.ndarray, surface: np.ndarray | float = 1.0) -> None:
    """Paint pictures (N, 3, H, W) in the colours (N, 3) where `distance` (N, H, W), in pixels, is negative."""
    cover = np.clip(0.5 - distance, 0, 1)
    canvas *= (1 - cover)[:, None]
    canvas += paint[:, :, None, None] * (cover * surface)[:, None]


def _pixel_centres(size: int) -> np.ndarray:
    return (np.arange(size, dtype=np.float32) * 2 + 1) / size - 1


def _to_bytes(values: np.ndarray) -> np.ndarray:
    return (np.clip(values, 0, 1) * 255 + 0.5).astype(np.uint8)


def _uniform(rng: np.random.Generator, low: float, high: float, shape: tuple[int, ...]) -> np.ndarray:
    return low + (high - low) * rng.random(shape, np.float32)


# ---- digits ------------------------------------------------------------------------------------------------------

# The strokes of each digit as the points that a pen passes by: x to the right, y down. A point twice is a corner.
STROKES: list[list[list[tuple[float, float]]]] = [
    [[(0.1, -1), (-0.6, -0.8), (-0.7, 0), (-0.5, 0.9), (0.1, 1.05), (0.6, 0.7), (0.7, 0), (0.6, -0.8), (0.1, -1)]],
    [[(-0.35, -0.6), (0, -0.8), (0.1, -1), (0.1, -1), (0.1, -0.3), (0.05, 0.4), (0.05, 1)]],
    [[(-0.6, -0.6), (-0.4, -1.1), (0.5, -1.1), (0.6, -0.4), (0.1, 0.2), (-0.6, 0.95), (-0.6, 0.95), (0, 0.9),
      (0.7, 0.9)]],
    [[(-0.6, -0.8), (0, -1.15), (0.65, -0.9), (0.5, -0.2), (-0.2, -0.1), (-0.2, -0.1), (0.6, 0), (0.75, 0.7),
      (0.1, 1.15), (-0.65, 0.8)]],
    [[(-0.3, -1), (-0.5, -0.3), (-0.65, 0.2), (-0.65, 0.2), (0, 0.2), (0.7, 0.15)],
     [(0.35, -0.6), (0.3, 0.2), (0.3, 1)]],
    [[(0.6, -1), (0, -1), (-0.5, -0.95), (-0.5, -0.95), (-0.55, -0.2), (-0.55, -0.2), (0.3, -0.35), (0.8, 0.3),
      (0.4, 1.1), (-0.6, 0.9)]],
    [[(0.5, -1), (-0.2, -0.9), (-0.65, -0.1), (-0.6, 0.8), (0, 1.15), (0.6, 0.8), (0.55, 0.15), (0, 0),
      (-0.55, 0.4)]],
    [[(-0.6, -0.9), (0, -0.9), (0.6, -0.95), (0.6, -0.95), (0.3, -0.2), (0, 0.4), (-0.15, 1)]],
    [[(0.5, -0.7), (0, -1.15), (-0.65, -0.8), (-0.4, -0.2), (0.3, 0.1), (0.65, 0.6), (0.1, 1.15), (-0.6, 0.8),
      (-0.4, 0.2), (0.3, -0.2), (0.55, -0.8), (0.3, -1)]],
    [[(0.5, -0.5), (0.2, -1.05), (-0.5, -0.95), (-0.6, -0.3), (-0.1, 0), (0.5, -0.3), (0.55, -0.8), (0.5, 0),
      (0.35, 1)]],
]
_DOTS = 40  # of the pen in a digit: close enough to look like a line


def _draw_digits(rng: np.random.Generator, labels: np.ndarray, size: int) -> np.ndarray:
    """One chunk: pen dots along jittered strokes, slanted, turned and scaled; then the distance to the nearest dot."""
    count = len(labels)
    dots = np.empty((count, _DOTS, 2), np.float32)
    for digit, strokes in enumerate(STROKES):
        rows = labels == digit
        points = np.array(sum(strokes, []), np.float32)
        shaky = points + 0.09 * rng.standard_normal((np.count_nonzero(rows), *points.shape), np.float32)
        dots[rows] = _pen(strokes) @ shaky

    angle, slant = _uniform(rng, -0.25, 0.25, (2, count, 1))
    width, height = _uniform(rng, 0.45, 0.7, (2, count, 1))
    shift_x, shift_y = _uniform(rng, -0.15, 0.15, (2, count, 1))
    x, y = dots[:, :, 0] * width - slant * dots[:, :, 1], dots[:, :, 1] * height
    x, y = np.cos(angle) * x - np.sin(angle) * y + shift_x, np.sin(angle) * x + np.cos(angle) * y + shift_y

    axis = _pixel_centres(size)
    across, down = (axis - x[:, :, None]) ** 2, (axis - y[:, :, None]) ** 2  # both (N, dots, size)
    square = np.full((count, size, size), np.inf, np.float32)
    for dot in range(_DOTS):
        np.minimum(square, down[:, dot, :, None] + across[:, dot, None, :], out=square)
    thickness = _uniform(rng, 0.05, 0.12, (count, 1, 1))
    ink = np.clip(0.5 - (np.sqrt(square) - thickness) * size / 2, 0, 1) * _uniform(rng, 0.6, 1, (count, 1, 1))
    return _to_bytes(ink + _uniform(rng, -0.1, 0.1, ink.shape))


def _pen(strokes: list[list[tuple[float, float]]]) -> np.ndarray:
    """The matrix (dots, points) that turns a digit's points into dots along uniform quadratic B-splines."""
    total = sum(len(stroke) for stroke in strokes)
    matrix = np.zeros((_DOTS, total), np.float32)
    dot, first = 0, 0
    for stroke in strokes:
        last = first + len(stroke) - 1
        end = _DOTS * (last + 1) // total
        # A dot at `time` mixes the three points around it. Those before the first and after the last are these two
        # again, which draws the line out to them.
        for time in np.linspace(first - 1, last, end - dot):
            before = int(np.floor(time))
            part = time - before
            for point, weight in enumerate(((1 - part) ** 2 / 2, 0.5 + part - part**2, part**2 / 2), start=before):
                matrix[dot, min(max(point, first), last)] += weight
            dot += 1
        first = last + 1
    return matrix
