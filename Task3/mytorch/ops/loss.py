"""Softmax, its logarithm, and the loss of classifiers."""

from __future__ import annotations

from typing import Any

import mytensor
import numpy as np

from mytorch.ops.broadcasting import partials, sum
from mytorch.ops.elementwise import exp
from mytorch.ops.op import Op
from mytorch.tensor import Tensor, Value


class Softmax(Op):
    def __init__(self, dim: int) -> None:
        self.dim = dim

    def compute(self, x):
        return mytensor.nn.softmax_forward(x, self.dim)

    def gradient(self, out_grad, node):
        return (SoftmaxBackprop(self.dim)(node, out_grad),)


class SoftmaxBackprop(Op):
    """y (out_grad - sum(y out_grad))."""

    def __init__(self, dim: int) -> None:
        self.dim = dim

    def compute(self, y, out_grad):
        return mytensor.nn.softmax_backward(y, out_grad, self.dim)

    def gradient(self, out_grad, node):
        y, first_grad = node.inputs
        mean, first_mean = (sum(g * y, self.dim, keepdim=True) for g in (out_grad, first_grad))
        return partials(node, lambda: out_grad * (first_grad - first_mean) - first_grad * mean,
                        lambda: SoftmaxBackprop(self.dim)(y, out_grad))


class LogSoftmax(Op):
    def __init__(self, dim: int) -> None:
        self.dim = dim

    def compute(self, x):
        return mytensor.nn.log_softmax_forward(x, self.dim)

    def gradient(self, out_grad, node):
        return (LogSoftmaxBackprop(self.dim)(node, out_grad),)


class LogSoftmaxBackprop(Op):
    """out_grad - exp(y) sum(out_grad)."""

    def __init__(self, dim: int) -> None:
        self.dim = dim

    def compute(self, y, out_grad):
        return mytensor.nn.log_softmax_backward(y, out_grad, self.dim)

    def gradient(self, out_grad, node):
        y, first_grad = node.inputs
        weighted = out_grad * exp(y)
        return partials(node, lambda: -weighted * sum(first_grad, self.dim, keepdim=True),
                        lambda: out_grad - sum(weighted, self.dim, keepdim=True))


class CrossEntropy(Op):
    """logits (N, classes) -> the mean over the batch of -sum(target log softmax(logits))."""

    def __init__(self, target: np.ndarray | mytensor.Tensor, label_smoothing: float) -> None:
        self.target, self.label_smoothing = target, label_smoothing

    def compute(self, logits):
        return mytensor.nn.cross_entropy_forward(logits, self.target, self.label_smoothing)

    def gradient(self, out_grad, node):
        return (CrossEntropyBackprop(self.target, self.label_smoothing)(node.inputs[0], out_grad),)


class CrossEntropyBackprop(Op):
    """out_grad (softmax(logits) sum(target) - target) / N."""

    def __init__(self, target: np.ndarray | mytensor.Tensor, label_smoothing: float) -> None:
        self.target, self.label_smoothing = target, label_smoothing

    def compute(self, logits, out_grad):
        return mytensor.nn.cross_entropy_backward(logits, self.target, out_grad, self.label_smoothing)


def softmax(input: Tensor, dim: int = -1) -> Tensor:
    return Softmax(dim)(input)


def log_softmax(input: Tensor, dim: int = -1) -> Tensor:
    return LogSoftmax(dim)(input)


def cross_entropy(input: Tensor, target: Any, *, label_smoothing: float = 0.0) -> Tensor:
    """The mean loss of logits (N, classes) over a batch, a Tensor of no axes.

    `target`: class indices (N,), or probabilities (or one-hot rows) of the input's shape; a NumPy array or what makes
    one, or a Tensor, which gets no gradient. `label_smoothing` moves that share of each row to all classes equally.
    Raises ValueError for an index outside the classes.
    """
    if isinstance(target, Value):
        target = target.cached_data
    elif not isinstance(target, mytensor.Tensor):
        target = np.asarray(target)
    return CrossEntropy(target, label_smoothing)(input)
