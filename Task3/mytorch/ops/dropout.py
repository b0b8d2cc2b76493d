"""Dropout (Srivastava et al. 2014)."""

from __future__ import annotations

import math

import mytensor

from mytorch.ops.op import Op
from mytorch.random import take_dropout_numbers
from mytorch.tensor import Tensor


class Dropout(Op):
    """x times a mask of 0 and 1/(1 - p) that follows from `seed` and `offset`: so no mask is kept for the gradient."""

    def __init__(self, p: float, seed: int, offset: int) -> None:
        self.p, self.seed, self.offset = p, seed, offset

    def compute(self, x):
        return mytensor.nn.dropout_forward(x, self.p, self.seed, self.offset)

    def gradient(self, out_grad, node):
        return (Dropout(self.p, self.seed, self.offset)(out_grad),)


def dropout(input: Tensor, p: float = 0.5, training: bool = True) -> Tensor:
    """In training each number is 0 with probability `p`, else divided by 1 - p; `manual_seed` makes it repeatable."""
    if not 0 <= p <= 1:
        raise ValueError(f"dropout: p is a probability, got {p}")
    if not training or p == 0:
        return input
    return Dropout(p, *take_dropout_numbers(math.prod(input.shape)))(input)
