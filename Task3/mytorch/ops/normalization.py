"""Batch normalisation (Ioffe & Szegedy 2015) of pictures."""

from __future__ import annotations

import math

import mytensor

from mytorch.ops.op import Op
from mytorch.tensor import Tensor


class BatchNorm2d(Op):
    """x, weight, bias -> (y, mean, rstd): y = (x - mean) rstd weight + bias, channel by channel.

    In training mean and rstd = 1/sqrt(var + eps) are the batch's and the running ones move towards them, in place;
    else they are the running ones.
    """

    def __init__(self, running_mean: mytensor.Tensor, running_var: mytensor.Tensor, training: bool, momentum: float,
                 eps: float) -> None:
        self.running_mean, self.running_var = running_mean, running_var
        self.training, self.momentum, self.eps = training, momentum, eps

    def compute(self, x, weight, bias):
        return mytensor.nn.batchnorm_forward(x, weight, bias, self.running_mean, self.running_var, self.training,
                                             self.momentum, self.eps)

    def gradient(self, out_grad, node):
        x, weight, _ = node.inputs
        _, mean, rstd = node.cached_data
        return tuple(BatchNorm2dBackprop(mean, rstd, self.training)(x, weight, out_grad[0]))


class BatchNorm2dBackprop(Op):
    """(x, weight, out_grad) -> (dx, dweight, dbias); in training mean and rstd depend on x."""

    def __init__(self, mean: mytensor.Tensor, rstd: mytensor.Tensor, training: bool) -> None:
        self.mean, self.rstd, self.training = mean, rstd, training

    def compute(self, x, weight, out_grad):
        return mytensor.nn.batchnorm_backward(x, weight, self.mean, self.rstd, out_grad, self.training)


def batch_norm(input: Tensor, running_mean: Tensor, running_var: Tensor, weight: Tensor, bias: Tensor,
               training: bool = False, momentum: float = 0.1, eps: float = 1e-5) -> Tensor:
    """Batch normalisation of `input` (N, C, H, W); the other four Tensors have shape (C,).

    In training the running ones are updated in place: running = (1 - momentum) running + momentum batch, with the
    unbiased variance. Raises ValueError if a channel then has a single value, which has no variance.
    """
    if training and input.ndim == 4 and math.prod(input.shape) == input.shape[1]:
        raise ValueError(f"batch_norm: training needs more than one value a channel, got the shape {input.shape}")
    op = BatchNorm2d(running_mean.cached_data, running_var.cached_data, training, momentum, eps)
    return op(input, weight, bias)[0]
