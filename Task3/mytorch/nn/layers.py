"""The layers: each holds its parameters and calls a function of mytorch. Arguments and defaults are PyTorch's."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mytorch.nn import init
from mytorch.nn.module import Buffer, Module, Parameter
from mytorch.ops.convolution import conv2d
from mytorch.ops.dropout import dropout
from mytorch.ops.elementwise import relu, sigmoid, tanh
from mytorch.ops.linear import linear
from mytorch.ops.normalization import batch_norm
from mytorch.ops.op import pair
from mytorch.ops.pooling import adaptive_avg_pool2d, avg_pool2d, max_pool2d
from mytorch.ops.shape import flatten
from mytorch.tensor import Tensor

Size = int | tuple[int, int]  # of a window, stride or padding: one number for both sides, or (height, width)


class Sequential(Module):
    """Layers that are applied one after the other; their names are "0", "1", ..."""

    def __init__(self, *layers: Module) -> None:
        for index, layer in enumerate(layers):
            setattr(self, str(index), layer)

    def _layers(self) -> list[Module]:
        return [value for value in vars(self).values() if isinstance(value, Module)]

    def __iter__(self) -> Iterator[Module]:
        return iter(self._layers())

    def __len__(self) -> int:
        return len(self._layers())

    def __getitem__(self, index: int) -> Module:
        return self._layers()[index]

    def forward(self, input: Tensor) -> Tensor:
        for layer in self:
            input = layer(input)
        return input


class Linear(Module):
    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        self.weight = init.uniform((out_features, in_features), fan_in=in_features)
        self.bias = init.uniform((out_features,), fan_in=in_features) if bias else None

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight, self.bias)


class Conv2d(Module):
    def __init__(self, in_channels: int, out_channels: int, kernel_size: Size, stride: Size = 1, padding: Size = 0, *,
                 bias: bool = True) -> None:
        kernel = pair(kernel_size, "kernel_size")
        fan_in = in_channels * kernel[0] * kernel[1]
        self.stride, self.padding = stride, padding
        self.weight = init.uniform((out_channels, in_channels, *kernel), fan_in)
        self.bias = init.uniform((out_channels,), fan_in) if bias else None

    def forward(self, input: Tensor) -> Tensor:
        return conv2d(input, self.weight, self.bias, self.stride, self.padding)


class BatchNorm2d(Module):
    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        self.eps, self.momentum = eps, momentum
        self.weight = Parameter(np.ones(num_features))
        self.bias = Parameter(np.zeros(num_features))
        self.running_mean = Buffer(np.zeros(num_features))
        self.running_var = Buffer(np.ones(num_features))
        self.num_batches_tracked = np.zeros((), np.int64)

    def forward(self, input: Tensor) -> Tensor:
        output = batch_norm(input, self.running_mean, self.running_var, self.weight, self.bias, self.training,
                            self.momentum, self.eps)
        if self.training:
            self.num_batches_tracked += 1
        return output


class Dropout(Module):
    def __init__(self, p: float = 0.5) -> None:
        self.p = p

    def forward(self, input: Tensor) -> Tensor:
        return dropout(input, self.p, self.training)


class _Pool2d(Module):
    def __init__(self, kernel_size: Size, stride: Size | None = None, padding: Size = 0) -> None:
        self.kernel_size, self.stride, self.padding = kernel_size, stride, padding


class MaxPool2d(_Pool2d):
    def forward(self, input: Tensor) -> Tensor:
        return max_pool2d(input, self.kernel_size, self.stride, self.padding)


class AvgPool2d(_Pool2d):
    def forward(self, input: Tensor) -> Tensor:
        return avg_pool2d(input, self.kernel_size, self.stride, self.padding)


class AdaptiveAvgPool2d(Module):
    def __init__(self, output_size: int) -> None:
        self.output_size = output_size

    def forward(self, input: Tensor) -> Tensor:
        return adaptive_avg_pool2d(input, self.output_size)


class Flatten(Module):
    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        self.start_dim, self.end_dim = start_dim, end_dim

    def forward(self, input: Tensor) -> Tensor:
        return flatten(input, self.start_dim, self.end_dim)


class ReLU(Module):
    def forward(self, input: Tensor) -> Tensor:
        return relu(input)


class Sigmoid(Module):
    def forward(self, input: Tensor) -> Tensor:
        return sigmoid(input)


class Tanh(Module):
    def forward(self, input: Tensor) -> Tensor:
        return tanh(input)
