"""Linear layers: operators y = F(x, weight) + bias with F linear in each of the two, as a convolution is too."""

from __future__ import annotations

from functools import reduce

import mytensor

from mytorch.ops.broadcasting import broadcast_to
from mytorch.ops.op import Op
from mytorch.ops.shape import reshape
from mytorch.tensor import Tensor


class Linear(Op):
    """x (N, in), weight (out, in), bias (out) or none -> x weight^T + bias (N, out)."""

    def compute(self, x, weight, bias=None):
        return mytensor.nn.linear_forward(x, weight, bias)

    def backprop(self, need_x: bool) -> LinearBackprop:
        """The operator that computes this one's gradients, without that of x if nobody needs it (pictures)."""
        return LinearBackprop(self, need_x)

    def gradient(self, out_grad, node):
        x, weight, *bias = node.inputs
        gradients = self.backprop(x.requires_grad)(x, weight, out_grad, *bias)
        return tuple(gradients)[:len(node.inputs)]


class LinearBackprop(Op):
    """(x, weight, out_grad, bias or none) -> the gradients (dx, dweight, dbias) of a linear operator, at once."""

    def __init__(self, forward: Linear, need_x: bool) -> None:
        self.forward, self.need_x = forward, need_x

    def compute(self, x, weight, out_grad, bias=None):
        return mytensor.nn.linear_backward(x, weight, bias, out_grad, self.need_x)

    def gradient(self, out_grad, node):
        """With upstream gradients (u_x, u_w, u_b), this differentiates <u_x, dx> + <u_w, dweight> + <u_b, dbias>,
        which is <first_grad, F(u_x, weight) + F(x, u_w) + u_b>."""
        x, weight, first_grad, *bias = node.inputs
        u_x, u_w, u_b = out_grad
        grad_x = grad_w = None
        terms = []
        if u_x is not None:
            terms.append(self.forward(u_x, weight))
            grad_w = self.forward.backprop(False)(u_x, weight, first_grad)[1]
        if u_w is not None:
            terms.append(self.forward(x, u_w))
            grad_x = self.forward.backprop(True)(x, u_w, first_grad)[0]
        if u_b is not None:
            per_channel = [1, -1] + [1] * (first_grad.ndim - 2)
            terms.append(broadcast_to(reshape(u_b, per_channel), first_grad.shape))
        return grad_x, grad_w, reduce(Tensor.__add__, terms), *[None for _ in bias]


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """input (N, in) times weight (out, in), transposed, plus bias (out): (N, out)."""
    return Linear()(input, weight) if bias is None else Linear()(input, weight, bias)
