"""Pooling: the largest or the mean value of each window."""

from __future__ import annotations

import mytensor

from mytorch.ops.op import Op, pair
from mytorch.ops.reductions import mean
from mytorch.tensor import Tensor


class Pool2d(Op):
    """What pooling operators have in common: `window` is (kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w)."""

    def __init__(self, *window: int) -> None:
        self.window = window


class MaxPool2d(Pool2d):
    def compute(self, x):
        return mytensor.nn.maxpool_forward(x, *self.window)

    def gradient(self, out_grad, node):
        return (MaxPool2dBackprop(*self.window)(node.inputs[0], out_grad),)


class MaxPool2dBackprop(Pool2d):
    """Each window's gradient, added where its (first) maximum lies."""

    def compute(self, x, out_grad):
        return mytensor.nn.maxpool_backward(x, out_grad, *self.window)


class AvgPool2d(Pool2d):
    def compute(self, x):
        return mytensor.nn.avgpool_forward(x, *self.window)

    def gradient(self, out_grad, node):
        return (AvgPool2dBackprop(*self.window)(node.inputs[0], out_grad),)


class AvgPool2dBackprop(Pool2d):
    """Each window's gradient, in equal shares; of x it takes the shape alone."""

    def compute(self, x, out_grad):
        return mytensor.nn.avgpool_backward(x, out_grad, *self.window)

    def gradient(self, out_grad, node):
        return None, AvgPool2d(*self.window)(out_grad)


def max_pool2d(input: Tensor, kernel_size: int | tuple[int, int], stride: int | tuple[int, int] | None = None,
               padding: int | tuple[int, int] = 0) -> Tensor:
    """The largest value of each window of `input` (N, C, H, W); windows may overlap; padding never wins.

    `stride` None means the kernel's size. NaN counts as the largest. The first of equal values gets the gradient.
    """
    return MaxPool2d(*_window(kernel_size, stride, padding))(input)


def avg_pool2d(input: Tensor, kernel_size: int | tuple[int, int], stride: int | tuple[int, int] | None = None,
               padding: int | tuple[int, int] = 0) -> Tensor:
    """The mean of each window of `input` (N, C, H, W); padding counts as zeros, as in PyTorch."""
    return AvgPool2d(*_window(kernel_size, stride, padding))(input)


def adaptive_avg_pool2d(input: Tensor, output_size: int) -> Tensor:
    """The mean of each channel: (N, C, H, W) -> (N, C, 1, 1). No other `output_size` than 1 is there."""
    if pair(output_size, "output_size") != (1, 1):
        raise ValueError(f"adaptive_avg_pool2d: output_size is 1, got {output_size}; use avg_pool2d for other sizes")
    if input.ndim != 4:
        raise ValueError(f"adaptive_avg_pool2d: pictures (N, C, H, W) are wanted, got a Tensor of shape {input.shape}")
    return mean(input, (2, 3), keepdim=True)


def _window(kernel_size, stride, padding) -> tuple[int, ...]:
    stride = kernel_size if stride is None else stride
    return *pair(kernel_size, "kernel_size"), *pair(stride, "stride"), *pair(padding, "padding")
