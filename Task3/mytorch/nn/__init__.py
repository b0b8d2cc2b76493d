"""Layers, and the Module that holds them."""

from mytorch.nn.layers import (
    AdaptiveAvgPool2d,
    AvgPool2d,
    BatchNorm2d,
    Conv2d,
    Dropout,
    Flatten,
    Linear,
    MaxPool2d,
    ReLU,
    Sequential,
    Sigmoid,
    Tanh,
)
from mytorch.nn.module import Buffer, Module, Parameter

__all__ = [
    "AdaptiveAvgPool2d", "AvgPool2d", "BatchNorm2d", "Buffer", "Conv2d", "Dropout", "Flatten", "Linear", "MaxPool2d",
    "Module", "Parameter", "ReLU", "Sequential", "Sigmoid", "Tanh",
]
