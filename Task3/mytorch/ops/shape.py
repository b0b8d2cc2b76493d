"""The same numbers in another shape or another order of axes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import mytensor

from mytorch.ops.op import Op
from mytorch.tensor import Tensor


class Reshape(Op):
    def __init__(self, shape: Sequence[int]) -> None:
        self.shape = shape

    def compute(self, x):
        return mytensor.reshape(x, self.shape)

    def gradient(self, out_grad, node):
        return (reshape(out_grad, node.inputs[0].shape),)


class Permute(Op):
    def __init__(self, dims: Sequence[int]) -> None:
        self.dims = dims

    def compute(self, x):
        return mytensor.transpose(x, self.dims)

    def gradient(self, out_grad, node):
        dims = [axis % len(self.dims) for axis in self.dims]
        return (permute(out_grad, [dims.index(axis) for axis in range(len(dims))]),)


def reshape(input: Tensor, shape: Sequence[int]) -> Tensor:
    """`input` with another shape of as many numbers; one size may be -1: what the others leave."""
    return Reshape(shape)(input)


def permute(input: Tensor, dims: Sequence[int]) -> Tensor:
    """`input` with its axes in the order `dims`."""
    return Permute(dims)(input)


def transpose(input: Tensor, dim0: int, dim1: int) -> Tensor:
    """`input` with two axes exchanged."""
    dims = list(range(input.ndim))
    if not (-input.ndim <= dim0 < input.ndim and -input.ndim <= dim1 < input.ndim):
        raise ValueError(f"transpose: axes {dim0} and {dim1} of a Tensor of shape {input.shape}")
    dims[dim0], dims[dim1] = dims[dim1], dims[dim0]
    return permute(input, dims)


def flatten(input: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """`input` with the axes from `start_dim` to `end_dim`, both included, made one."""
    shape = input.shape or (1,)  # PyTorch too makes a scalar a vector of one number
    first, last = (dim % len(shape) if -len(shape) <= dim < len(shape) else None for dim in (start_dim, end_dim))
    if first is None or last is None or first > last:
        raise ValueError(f"flatten: axes {start_dim} to {end_dim} of a Tensor of shape {input.shape}")
    return reshape(input, (*shape[:first], math.prod(shape[first:last + 1]), *shape[last + 1:]))
