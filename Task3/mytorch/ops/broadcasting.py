"""Sum and BroadcastTo, each the other's gradient, and how the gradient of a broadcast operand gets its shape back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from numbers import Integral

import mytensor

from mytorch.ops.op import Op
from mytorch.ops.shape import reshape
from mytorch.tensor import Tensor, Value

Dim = int | Sequence[int] | None  # which axes a reduction takes: one, several, or (None) all


class Sum(Op):
    def __init__(self, dim: Dim, keepdim: bool) -> None:
        self.dim, self.keepdim = dim, keepdim

    def compute(self, x):
        return mytensor.sum(x, self.dim, self.keepdim)

    def gradient(self, out_grad, node):
        return (spread(out_grad, node.inputs[0].shape, self.dim),)


class BroadcastTo(Op):
    def __init__(self, shape: Sequence[int]) -> None:
        self.shape = shape

    def compute(self, x):
        return mytensor.broadcast_to(x, self.shape)

    def gradient(self, out_grad, node):
        return (sum_to(out_grad, node.inputs[0].shape),)


def sum(input: Tensor, dim: Dim = None, keepdim: bool = False) -> Tensor:
    return Sum(dim, keepdim)(input)


def broadcast_to(input: Tensor, shape: Sequence[int]) -> Tensor:
    """`input` repeated along new leading axes and axes of size 1, by NumPy's rules."""
    return BroadcastTo(shape)(input)


def reduced_axes(ndim: int, dim: Dim) -> set[int]:
    """The axes that `dim` stands for, counted from the front."""
    if dim is None:
        return set(range(ndim))
    return {axis % ndim for axis in ((dim,) if isinstance(dim, Integral) else dim)}


def keep_axes(reduced: Tensor, shape: tuple[int, ...], dim: Dim) -> Tensor:
    """The reduction of a Tensor of `shape` over `dim`, its reduced axes there with size 1."""
    axes = reduced_axes(len(shape), dim)
    return reshape(reduced, [1 if axis in axes else size for axis, size in enumerate(shape)])


def spread(reduced: Tensor, shape: tuple[int, ...], dim: Dim) -> Tensor:
    """The reduction of a Tensor of `shape` over `dim`, repeated back to that shape."""
    return broadcast_to(keep_axes(reduced, shape, dim), shape)


def sum_to(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The sum of `x` over all axes along which `shape` would be repeated to give x's shape."""
    if x.shape == shape:
        return x
    new = x.ndim - len(shape)
    repeated = [axis for axis, size in enumerate(x.shape) if axis < new or shape[axis - new] == 1 != size]
    return reshape(sum(x, repeated), shape)


def partials(node: Value, *gradients: Callable[[], Tensor]) -> tuple[Tensor | None, ...]:
    """What `Op.gradient` returns for operands that broadcast: one function for each input computes its gradient.

    Only those of inputs that require gradients are called; results are summed over the axes that were broadcast.
    """
    return tuple([sum_to(gradient(), value.shape) if value.requires_grad else None
                  for value, gradient in zip(node.inputs, gradients, strict=True)])
