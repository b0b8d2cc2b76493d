"""Mean and maximum over axes (the sum is in broadcasting.py)."""

from __future__ import annotations

import math

import mytensor

from mytorch.ops.broadcasting import Dim, keep_axes, reduced_axes, spread
from mytorch.ops.op import Op
from mytorch.tensor import Tensor


class Mean(Op):
    def __init__(self, dim: Dim, keepdim: bool) -> None:
        self.dim, self.keepdim = dim, keepdim

    def compute(self, x):
        return mytensor.mean(x, self.dim, self.keepdim)

    def gradient(self, out_grad, node):
        shape = node.inputs[0].shape
        count = math.prod(shape[axis] for axis in reduced_axes(len(shape), self.dim))
        return (spread(out_grad / count, shape, self.dim),)


class Amax(Op):
    def __init__(self, dim: Dim, keepdim: bool) -> None:
        self.dim, self.keepdim = dim, keepdim

    def compute(self, x):
        return mytensor.max(x, self.dim, self.keepdim)

    def gradient(self, out_grad, node):
        x = node.inputs[0]
        largest = keep_axes(node, x.shape, self.dim)
        is_largest = mytensor.equal(x.cached_data, largest.cached_data)
        count = mytensor.sum(is_largest, self.dim, True)
        share = Tensor(mytensor.div(is_largest, count), requires_grad=False)
        return (spread(out_grad, x.shape, self.dim) * share,)


def mean(input: Tensor, dim: Dim = None, keepdim: bool = False) -> Tensor:
    return Mean(dim, keepdim)(input)


def amax(input: Tensor, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """The largest value over the axes; equal ones share the gradient, as in PyTorch."""
    return Amax(dim, keepdim)(input)
