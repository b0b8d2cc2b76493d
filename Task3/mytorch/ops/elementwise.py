"""Operators that act on each number alone; two operands broadcast by NumPy's rules, and one may be a number."""

from __future__ import annotations

from typing import Any

import mytensor

from mytorch.ops.broadcasting import partials
from mytorch.ops.op import Op, operands
from mytorch.tensor import Tensor


class Add(Op):
    def compute(self, a, b):
        return mytensor.add(a, b)

    def gradient(self, out_grad, node):
        return partials(node, lambda: out_grad, lambda: out_grad)


class Sub(Op):
    def compute(self, a, b):
        return mytensor.sub(a, b)

    def gradient(self, out_grad, node):
        return partials(node, lambda: out_grad, lambda: -out_grad)


class Mul(Op):
    def compute(self, a, b):
        return mytensor.mul(a, b)

    def gradient(self, out_grad, node):
        a, b = node.inputs
        return partials(node, lambda: out_grad * b, lambda: out_grad * a)


class Div(Op):
    def compute(self, a, b):
        return mytensor.div(a, b)

    def gradient(self, out_grad, node):
        _, b = node.inputs
        return partials(node, lambda: out_grad / b, lambda: -out_grad * node / b)


class Pow(Op):
    def compute(self, a, b):
        return mytensor.pow(a, b)

    def gradient(self, out_grad, node):
        a, b = node.inputs
        # Where a factor is 0 the other may be infinite (0 * 0**-1, 0 * log 0): `+ is_zero` makes that other finite.
        return partials(node, lambda: out_grad * b * a ** (b - 1 + is_zero(b)),
                        lambda: out_grad * node * log(a + is_zero(a)))


class Maximum(Op):
    def compute(self, a, b):
        return mytensor.maximum(a, b)

    def gradient(self, out_grad, node):
        a, b = node.inputs
        return partials(node, lambda: out_grad * share(a, b), lambda: out_grad * share(b, a))


class Neg(Op):
    def compute(self, x):
        return mytensor.neg(x)

    def gradient(self, out_grad, node):
        return (-out_grad,)


class Exp(Op):
    def compute(self, x):
        return mytensor.exp(x)

    def gradient(self, out_grad, node):
        return (out_grad * node,)


class Log(Op):
    def compute(self, x):
        return mytensor.log(x)

    def gradient(self, out_grad, node):
        return (out_grad / node.inputs[0],)


class Sqrt(Op):
    def compute(self, x):
        return mytensor.sqrt(x)

    def gradient(self, out_grad, node):
        return (out_grad / (2 * node),)


class ReLU(Op):
    def compute(self, x):
        return mytensor.relu(x)

    def gradient(self, out_grad, node):
        return (ReLUBackprop()(node, out_grad),)


class ReLUBackprop(Op):
    """out_grad where the result y of ReLU is positive, else 0."""

    def compute(self, y, out_grad):
        return mytensor.nn.relu_backward(y, out_grad)

    def gradient(self, out_grad, node):
        y, _ = node.inputs
        return None, ReLUBackprop()(y, out_grad)


class Sigmoid(Op):
    def compute(self, x):
        return mytensor.sigmoid(x)

    def gradient(self, out_grad, node):
        return (SigmoidBackprop()(node, out_grad),)


class SigmoidBackprop(Op):
    """out_grad * y (1 - y)."""

    def compute(self, y, out_grad):
        return mytensor.nn.sigmoid_backward(y, out_grad)

    def gradient(self, out_grad, node):
        y, first_grad = node.inputs
        return partials(node, lambda: out_grad * first_grad * (1 - 2 * y), lambda: SigmoidBackprop()(y, out_grad))


class Tanh(Op):
    def compute(self, x):
        return mytensor.tanh(x)

    def gradient(self, out_grad, node):
        return (TanhBackprop()(node, out_grad),)


class TanhBackprop(Op):
    """out_grad * (1 - y**2)."""

    def compute(self, y, out_grad):
        return mytensor.nn.tanh_backward(y, out_grad)

    def gradient(self, out_grad, node):
        y, first_grad = node.inputs
        return partials(node, lambda: out_grad * first_grad * -2 * y, lambda: TanhBackprop()(y, out_grad))


def is_zero(x: Tensor) -> Tensor:
    """1 where x is 0, else 0: a constant, as its derivative is 0 wherever it has one."""
    return Tensor(mytensor.equal(x.cached_data, 0.0), requires_grad=False)


def share(a: Tensor, b: Tensor) -> Tensor:
    """What the larger of two takes of a gradient, as a constant: 1 where a > b, half where they are equal, else 0."""
    a, b = a.cached_data, b.cached_data
    return Tensor(mytensor.add(mytensor.greater(a, b), mytensor.mul(mytensor.equal(a, b), 0.5)), requires_grad=False)


def add(input: Any, other: Any) -> Tensor:
    return Add()(*operands(input, other))


def sub(input: Any, other: Any) -> Tensor:
    return Sub()(*operands(input, other))


def mul(input: Any, other: Any) -> Tensor:
    return Mul()(*operands(input, other))


def div(input: Any, other: Any) -> Tensor:
    return Div()(*operands(input, other))


def pow(input: Any, exponent: Any) -> Tensor:
    """input ** exponent. The gradient of the exponent is 0 where the input is 0, as in PyTorch."""
    return Pow()(*operands(input, exponent))


def maximum(input: Any, other: Any) -> Tensor:
    """The larger of two; equal ones share the gradient, as in PyTorch."""
    return Maximum()(*operands(input, other))


def neg(input: Tensor) -> Tensor:
    return Neg()(input)


def exp(input: Tensor) -> Tensor:
    return Exp()(input)


def log(input: Tensor) -> Tensor:
    return Log()(input)


def sqrt(input: Tensor) -> Tensor:
    return Sqrt()(input)


def relu(input: Tensor) -> Tensor:
    return ReLU()(input)


def sigmoid(input: Tensor) -> Tensor:
    return Sigmoid()(input)


def tanh(input: Tensor) -> Tensor:
    return Tanh()(input)
