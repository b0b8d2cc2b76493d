"""The networks: each takes pictures (N, C, H, W) and returns logits (N, classes)."""

from __future__ import annotations

from collections.abc import Callable

from mytorch import Tensor, nn
from utils import UserError


def get_model(name: str, num_classes: int = 10, in_channels: int = 3, image_size: int = 32,
              dropout: float = 0.5) -> nn.Module:
    """Build a network by name (see `MODELS`).

    `dropout` is the share of features that MiniVGG-BN drops before its classifier.
    Raises `UserError` for an unknown name, and for a picture that shrinks to nothing on its way through.
    """
    if name not in MODELS:
        raise UserError(f"there is no model {name!r}; choose one of {', '.join(MODELS)}")
    build, smallest = MODELS[name]
    if image_size < smallest or in_channels < 1:
        raise UserError(f"{name} cannot take pictures of {in_channels} channels and {image_size}x{image_size} pixels: "
                        f"it needs at least 1 channel and --image-size {smallest}")
    if name == "minivgg-bn":
        return build(num_classes, in_channels, image_size, dropout)
    return build(num_classes, in_channels, image_size)


class Classifier(nn.Module):
    """Features of a picture, and what tells the classes from them."""

    def __init__(self, features: nn.Sequential, classifier: nn.Sequential) -> None:
        self.features = features
        self.classifier = classifier

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(self.features(images))


class LeNet(Classifier):
    """LeNet-5 with ReLU and max-pooling (LeCun et al. 1998): 62,006 parameters for 10 classes of 3x32x32."""

    def __init__(self, num_classes: int, in_channels: int, image_size: int) -> None:
        side = ((image_size - 4) // 2 - 4) // 2  # a 5x5 convolution takes 4 pixels, a pooling halves
        super().__init__(
            nn.Sequential(
                nn.Conv2d(in_channels, 6, 5), nn.ReLU(), nn.MaxPool2d(2),
                nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
            ),
            nn.Sequential(
                nn.Flatten(),
                nn.Linear(16 * side * side, 120), nn.ReLU(),
                nn.Linear(120, 84), nn.ReLU(),
                nn.Linear(84, num_classes),
            ),
        )


class MiniVGG(Classifier):
    """Six 3x3 convolutions in the manner of VGG (Simonyan & Zisserman 2015): 1,147,978 parameters for 10 classes.

    After three halvings the rest of the map (4x4 of 32x32 pixels) is max-pooled whole.
    """

    def __init__(self, num_classes: int, in_channels: int, image_size: int) -> None:
        layers: list[nn.Module] = []
        for channels, width in ((in_channels, 64), (64, 128), (128, 256)):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(),
                       nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        super().__init__(nn.Sequential(*layers, nn.MaxPool2d(image_size // 8)),
                         nn.Sequential(nn.Flatten(), nn.Linear(256, num_classes)))


class MiniVGGBN(Classifier):
    """MiniVGG with batch-norm, mean-pooling and dropout, layer for layer that of Task1: 1,149,770 parameters."""

    def __init__(self, num_classes: int, in_channels: int, image_size: int, dropout: float) -> None:
        layers: list[nn.Module] = []
        for channels, width in ((in_channels, 64), (64, 128), (128, 256)):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(),
                       nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2)]
        super().__init__(nn.Sequential(*layers),
                         nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(dropout),
                                       nn.Linear(256, num_classes)))


# Name -> (constructor, the smallest picture that it takes).
MODELS: dict[str, tuple[Callable[..., nn.Module], int]] = {
    "lenet": (LeNet, 16),
    "minivgg": (MiniVGG, 8),
    "minivgg-bn": (MiniVGGBN, 8),
}
