"""Two-dimensional convolution (cross-correlation, as everywhere in deep learning)."""

from __future__ import annotations

import mytensor

from mytorch.ops.linear import Linear, LinearBackprop
from mytorch.ops.op import pair
from mytorch.tensor import Tensor


class Conv2d(Linear):
    """x (N, C, H, W), weight (K, C, KH, KW), bias (K) or none -> (N, K, OH, OW).

    OH = (H + 2 padding - KH) // stride + 1, and so for the width.
    """

    def __init__(self, stride: tuple[int, int], padding: tuple[int, int]) -> None:
        self.stride, self.padding = stride, padding

    def compute(self, x, weight, bias=None):
        return mytensor.nn.conv_forward(x, weight, bias, *self.stride, *self.padding)

    def backprop(self, need_x: bool) -> Conv2dBackprop:
        return Conv2dBackprop(self, need_x)


class Conv2dBackprop(LinearBackprop):
    """(x, weight, out_grad, bias or none) -> (dx, dweight, dbias) of a convolution, at once."""

    forward: Conv2d

    def compute(self, x, weight, out_grad, bias=None):
        return mytensor.nn.conv_backward(x, weight, bias, out_grad, *self.forward.stride, *self.forward.padding,
                                         self.need_x)


def conv2d(input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: int | tuple[int, int] = 1,
           padding: int | tuple[int, int] = 0) -> Tensor:
    """The convolution of pictures (N, C, H, W) with K kernels (K, C, KH, KW), plus bias (K).

    `stride` and `padding` (with zeros, on both sides) are numbers or pairs (height, width).
    """
    op = Conv2d(pair(stride, "stride"), pair(padding, "padding"))
    return op(input, weight) if bias is None else op(input, weight, bias)
