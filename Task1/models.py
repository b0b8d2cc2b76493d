"""The networks: each takes pictures (N, C, H, W) and returns logits (N, classes)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from utils import UserError


def get_model(name: str, num_classes: int = 10, in_channels: int = 3, image_size: int = 32,
              dropout: float = 0.5) -> nn.Module:
    """Build a network by name (see `MODELS`).

    `dropout` is the share of features that MiniVGG drops before its classifier.
    Raises `UserError` for an unknown name, and for a picture that shrinks to nothing on its way through.
    """
    if name not in MODELS:
        raise UserError(f"there is no model {name!r}; choose one of {', '.join(MODELS)}")
    build, smallest = MODELS[name]
    if image_size < smallest or in_channels < 1:
        raise UserError(f"{name} cannot take pictures of {in_channels} channels and {image_size}x{image_size} pixels: "
                        f"it needs at least 1 channel and --image-size {smallest}")
    if name == "minivgg":
        return build(num_classes, in_channels, image_size, dropout)
    return build(num_classes, in_channels, image_size)


class LeNet(nn.Module):
    """LeNet-5 with ReLU and max-pooling (LeCun et al. 1998): 62,006 parameters for 10 classes of 3x32x32."""

    def __init__(self, num_classes: int, in_channels: int, image_size: int) -> None:
        super().__init__()
        side = ((image_size - 4) // 2 - 4) // 2  # a 5x5 convolution takes 4 pixels, a pooling halves
        self.features = nn.Sequential(
            nn.Conv2d(in_channels, 6, 5), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(
            nn.Flatten(),
            nn.Linear(16 * side * side, 120), nn.ReLU(),
            nn.Linear(120, 84), nn.ReLU(),
            nn.Linear(84, num_classes),
        )

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(self.features(images))


class MiniVGG(nn.Module):
    """Six 3x3 convolutions in the manner of VGG (Simonyan & Zisserman 2015): 1,149,770 parameters for 10 classes."""

    def __init__(self, num_classes: int, in_channels: int, image_size: int, dropout: float) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = in_channels
        for width in (64, 128, 256):
            layers += [*_conv_norm_relu(channels, width, 3), *_conv_norm_relu(width, width, 3), nn.MaxPool2d(2)]
            channels = width
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(dropout),
                                        nn.Linear(channels, num_classes))

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(self.features(images))


class ConvNet(nn.Module):
    """Two 5x5 convolutions and one linear layer, for MNIST."""

    def __init__(self, num_classes: int, in_channels: int, image_size: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *_conv_norm_relu(in_channels, 16, 5), nn.MaxPool2d(2),
            *_conv_norm_relu(16, 32, 5), nn.MaxPool2d(2),
        )
        side = image_size // 2 // 2
        self.classifier = nn.Sequential(nn.Flatten(), nn.Linear(32 * side * side, num_classes))

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(self.features(images))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions around which the input goes on its own way (He et al. 2016)."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            nn.Conv2d(in_channels, out_channels, 3, stride, padding=1, bias=False), nn.BatchNorm2d(out_channels),
            nn.ReLU(),
            nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False), nn.BatchNorm2d(out_channels),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or in_channels != out_channels:
            self.shortcut = nn.Sequential(nn.Conv2d(in_channels, out_channels, 1, stride, bias=False),
                                          nn.BatchNorm2d(out_channels))

    def forward(self, images: Tensor) -> Tensor:
        return torch.relu(self.residual(images) + self.shortcut(images))


def resnet18(num_classes: int, in_channels: int, image_size: int) -> nn.Sequential:
    """ResNet-18 with a 3x3 stem that keeps the size of small pictures (He et al. 2016, section 4.2)."""
    return _resnet(num_classes, in_channels, stem=64, blocks=(2, 2, 2, 2), strides=(1, 2, 2, 2))


def resnet34_cifar(num_classes: int, in_channels: int, image_size: int) -> nn.Sequential:
    """Blocks as in ResNet-34, on a stem of 32 channels; each of the four groups halves the picture."""
    return _resnet(num_classes, in_channels, stem=32, blocks=(3, 4, 6, 3), strides=(2, 2, 2, 2))


def _resnet(num_classes: int, in_channels: int, stem: int, blocks: tuple[int, ...],
            strides: tuple[int, ...]) -> nn.Sequential:
    """A residual network as one flat Sequential, which can be cut anywhere between two blocks."""
    layers: list[nn.Module] = [nn.Conv2d(in_channels, stem, 3, padding=1, bias=False), nn.BatchNorm2d(stem), nn.ReLU()]
    channels = stem
    for width, count, stride in zip((64, 128, 256, 512), blocks, strides, strict=True):
        for block in range(count):
            layers.append(BasicBlock(channels, width, stride if block == 0 else 1))
            channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, num_classes))


def _conv_norm_relu(in_channels: int, out_channels: int, kernel_size: int) -> list[nn.Module]:
    """A convolution that keeps the picture's size, batch-norm and ReLU."""
    return [nn.Conv2d(in_channels, out_channels, kernel_size, padding=kernel_size // 2),
            nn.BatchNorm2d(out_channels), nn.ReLU()]


# Name -> (constructor, the smallest picture that it takes). Batch-norm has no variance to take of a single value, and a
# batch may be one picture: so the last that a ResNet normalises is 2x2.
MODELS: dict[str, tuple[Callable[..., nn.Module], int]] = {
    "lenet": (LeNet, 16),
    "minivgg": (MiniVGG, 8),
    "convnet": (ConvNet, 4),
    "resnet18": (resnet18, 9),
    "resnet34-cifar": (resnet34_cifar, 17),
}
