"""A small PyTorch: a graph of operators with their gradients, on the arrays of mytensor.

To read it: tensor.py (a node), autodiff.py (gradients), ops/ (operators), nn/ (layers), optim.py.
"""

from mytensor import TensorDevice

from mytorch import nn, operators, optim
from mytorch.autodiff import compute_gradient_of_variables, find_topo_sort, grad, is_grad_enabled, no_grad
from mytorch.ops.broadcasting import broadcast_to, sum
from mytorch.ops.convolution import Conv2dBackprop, conv2d
from mytorch.ops.dropout import dropout
from mytorch.ops.elementwise import add, div, exp, log, maximum, mul, neg, pow, relu, sigmoid, sqrt, sub, tanh
from mytorch.ops.linear import LinearBackprop, linear
from mytorch.ops.loss import cross_entropy, log_softmax, softmax
from mytorch.ops.matmul import matmul
from mytorch.ops.normalization import batch_norm
from mytorch.ops.op import Op, TensorTuple, TupleGetItem
from mytorch.ops.pooling import adaptive_avg_pool2d, avg_pool2d, max_pool2d
from mytorch.ops.reductions import amax, mean
from mytorch.ops.shape import flatten, permute, reshape, transpose
from mytorch.random import get_rng_state, manual_seed, set_rng_state
from mytorch.tensor import Tensor, Value

__all__ = [
    "Conv2dBackprop", "LinearBackprop", "Op", "Tensor", "TensorDevice", "TensorTuple", "TupleGetItem", "Value",
    "adaptive_avg_pool2d", "add", "amax", "avg_pool2d", "batch_norm", "broadcast_to", "compute_gradient_of_variables",
    "conv2d", "cross_entropy", "div", "dropout", "exp", "find_topo_sort", "flatten", "get_rng_state", "grad",
    "is_grad_enabled", "linear", "log", "log_softmax", "manual_seed", "matmul", "max_pool2d", "maximum", "mean", "mul",
    "neg", "nn", "no_grad", "operators", "optim", "permute", "pow", "relu", "reshape", "set_rng_state", "sigmoid",
    "softmax", "sqrt", "sub", "sum", "tanh", "transpose",
]
