"""Matrix products."""

from __future__ import annotations

from typing import Any

import mytensor

from mytorch.ops.broadcasting import partials
from mytorch.ops.op import Op, operands
from mytorch.tensor import Tensor


class MatMul(Op):
    """A @ B over the last two axes; `transpose_a` and `transpose_b` take A and B transposed, without a copy."""

    def __init__(self, transpose_a: bool = False, transpose_b: bool = False) -> None:
        self.transpose_a, self.transpose_b = transpose_a, transpose_b

    def compute(self, a, b):
        return mytensor.matmul(a, b, self.transpose_a, self.transpose_b)

    def gradient(self, out_grad, node):
        a, b = node.inputs
        t_a, t_b = self.transpose_a, self.transpose_b
        return partials(
            node,
            lambda: MatMul(t_b, True)(b, out_grad) if t_a else MatMul(False, not t_b)(out_grad, b),
            lambda: MatMul(True, t_a)(out_grad, a) if t_b else MatMul(not t_a, False)(a, out_grad),
        )


def matmul(input: Any, other: Any) -> Tensor:
    """The matrix product (..., n, k) @ (..., k, m) -> (..., n, m) of 2 to 4 axes; leading ones broadcast."""
    return MatMul()(*operands(input, other))
