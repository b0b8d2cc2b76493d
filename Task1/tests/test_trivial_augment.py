"""Each TrivialAugment operation against torchvision's on one picture, for both signs and magnitudes from end to end."""

import math

import numpy as np
import pytest
import torch
from torchvision.transforms.v2 import functional as F

from trivial_augment import Operation, trivial_augment

LEVELS = (-30, -23, -15, -10, -1, 0, 1, 4, 10, 15, 20, 24, 30)
SHAPES = ((3, 32, 32), (1, 28, 28), (3, 34, 20))
EXACT = {  # the others round once more or once less than torchvision does
    Operation.IDENTITY,
    Operation.SHEAR_X,
    Operation.SHEAR_Y,
    Operation.TRANSLATE_X,
    Operation.TRANSLATE_Y,
    Operation.ROTATE,
    Operation.POSTERIZE,
    Operation.SOLARIZE,
    Operation.EQUALIZE,
}


def torchvision_operation(picture: torch.Tensor, operation: Operation, level: int) -> torch.Tensor:
    """The operation with the magnitude of the paper's wide search space, in torchvision's arguments."""
    magnitude = level / 30
    factor = 1 + 0.99 * magnitude
    shear = math.degrees(math.atan(0.99 * magnitude))
    pixels = math.trunc(32 * level / 30)
    still = {"angle": 0.0, "translate": [0, 0], "scale": 1.0, "shear": [0.0, 0.0]}
    return {
        Operation.IDENTITY: lambda: picture,
        Operation.SHEAR_X: lambda: F.affine(picture, **{**still, "shear": [shear, 0.0], "center": [0, 0]}),
        Operation.SHEAR_Y: lambda: F.affine(picture, **{**still, "shear": [0.0, shear], "center": [0, 0]}),
        Operation.TRANSLATE_X: lambda: F.affine(picture, **{**still, "translate": [pixels, 0]}),
        Operation.TRANSLATE_Y: lambda: F.affine(picture, **{**still, "translate": [0, pixels]}),
        Operation.ROTATE: lambda: F.rotate(picture, 135 * magnitude),
        Operation.BRIGHTNESS: lambda: F.adjust_brightness(picture, factor),
        Operation.COLOR: lambda: F.adjust_saturation(picture, factor),
        Operation.CONTRAST: lambda: F.adjust_contrast(picture, factor),
        Operation.SHARPNESS: lambda: F.adjust_sharpness(picture, factor),
        Operation.POSTERIZE: lambda: F.posterize(picture, 8 - round(abs(level) / 5)),
        Operation.SOLARIZE: lambda: F.solarize(picture, 255 - 8.5 * abs(level)),
        Operation.AUTO_CONTRAST: lambda: F.autocontrast(picture),
        Operation.EQUALIZE: lambda: F.equalize(picture),
    }[operation]()


def halfway_between_pixels(operation: Operation, level: int, height: int, width: int) -> np.ndarray:
    """Where nearest neighbour has two equally near pixels: rounding errors choose there, so nothing can be compared."""
    y, x = np.mgrid[:height, :width].astype(np.float64)
    source_x, source_y = x, y
    if operation == Operation.SHEAR_X:
        source_x = x + 0.99 * level / 30 * (y + 0.5)
    elif operation == Operation.SHEAR_Y:
        source_y = y + 0.99 * level / 30 * (x + 0.5)
    elif operation == Operation.ROTATE:
        angle = math.radians(4.5 * level)
        centre_x, centre_y = (width - 1) / 2, (height - 1) / 2
        x, y = x - centre_x, y - centre_y
        source_x = math.cos(angle) * x - math.sin(angle) * y + centre_x
        source_y = math.sin(angle) * x + math.cos(angle) * y + centre_y
    return (np.abs(source_x % 1 - 0.5) < 1e-4) | (np.abs(source_y % 1 - 0.5) < 1e-4)


def pictures_of(shape: tuple[int, int, int]) -> torch.Tensor:
    """Noise, a narrow ramp, two levels, one level, mostly white, black: the awkward histograms among them."""
    rng = np.random.default_rng(5)
    channels, height, width = shape
    noise = rng.integers(0, 256, shape)
    ramp = np.broadcast_to(60 + np.add.outer(np.arange(height), 2 * np.arange(width)), shape) + 20 * rng.integers(2)
    two_levels = np.where(rng.random(shape) < 0.3, 17, 201)
    mostly_white = np.where(rng.random(shape) < 0.95, 255, noise)
    one_level, black = np.full(shape, 100), np.zeros(shape)
    pictures = np.stack([noise, ramp, two_levels, mostly_white, one_level, black])
    return torch.from_numpy(pictures.astype(np.uint8))


@pytest.mark.parametrize("operation", list(Operation), ids=lambda operation: operation.name)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_operation_equals_torchvisions(operation, shape):
    pictures = pictures_of(shape)
    for level in LEVELS:
        result = trivial_augment(pictures, np.full(len(pictures), operation), np.full(len(pictures), level))
        expected = torch.stack([torchvision_operation(picture, operation, level) for picture in pictures])
        difference = (result.int() - expected.int()).abs().numpy()
        undecided = halfway_between_pixels(operation, level, *shape[1:])
        assert undecided.mean() < 0.1  # a turn by 45 degrees leaves the two diagonals undecided
        difference[:, :, undecided] = 0
        assert difference.max() <= (0 if operation in EXACT else 1), f"level {level}"


def test_operations_have_torchvisions_order():
    from torchvision.transforms import TrivialAugmentWide

    names = [name.lower() for name in TrivialAugmentWide()._augmentation_space(31)]
    assert names == [operation.name.replace("_", "").lower() for operation in Operation]


def test_a_turn_by_45_degrees_is_symmetric_where_it_is_undecided():
    """Both diagonals map to the line between two pixels; each must fall on one and the same side of it throughout."""
    rows = torch.arange(32, dtype=torch.uint8).view(1, 1, 32, 1).expand(1, 1, 32, 32)
    turned = trivial_augment(rows, np.array([Operation.ROTATE]), np.array([10]))[0, 0]
    assert len(turned.fliplr().diagonal()[6:26].unique()) == 1
