"""Gives Tensor its operators and methods, each the function of the same name.

They are set from here, so that tensor.py knows no operator and every file imports downwards only.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable

import numpy as np

from mytorch.ops.broadcasting import sum
from mytorch.ops.elementwise import add, div, mul, neg, pow, sub
from mytorch.ops.matmul import matmul
from mytorch.ops.reductions import amax, mean
from mytorch.ops.shape import flatten, permute, reshape, transpose
from mytorch.tensor import Tensor

_OPERANDS = (Tensor, numbers.Number, np.generic, np.ndarray)


def _both_orders(function: Callable[..., Tensor]) -> tuple[Callable, Callable]:
    """The methods for `tensor + other` and `other + tensor`; what is no operand is left to Python's TypeError."""

    def operator(self, other):
        return function(self, other) if isinstance(other, _OPERANDS) else NotImplemented

    def reflected(self, other):
        return function(other, self) if isinstance(other, _OPERANDS) else NotImplemented

    return operator, reflected


Tensor.__add__, Tensor.__radd__ = _both_orders(add)
Tensor.__sub__, Tensor.__rsub__ = _both_orders(sub)
Tensor.__mul__, Tensor.__rmul__ = _both_orders(mul)
Tensor.__truediv__, Tensor.__rtruediv__ = _both_orders(div)
Tensor.__pow__, Tensor.__rpow__ = _both_orders(pow)
Tensor.__matmul__, Tensor.__rmatmul__ = _both_orders(matmul)
Tensor.__neg__ = neg
Tensor.sum = sum
Tensor.mean = mean
Tensor.amax = amax
Tensor.reshape = reshape
Tensor.permute = permute
Tensor.transpose = transpose
Tensor.flatten = flatten
