"""PyTorch's default initial values, drawn from the generator that `mytorch.manual_seed` seeds."""

from __future__ import annotations

import math

import numpy as np

from mytorch.nn.module import Parameter
from mytorch.random import generator


def uniform(shape: tuple[int, ...], fan_in: int) -> Parameter:
    """Uniform in +-1/sqrt(fan_in): for weights this is He's initialisation (2015) as PyTorch calls it by default,
    `kaiming_uniform_(a=sqrt(5))`, and for biases what PyTorch does beside it."""
    bound = 1 / math.sqrt(fan_in)
    return Parameter(generator().uniform(-bound, bound, shape).astype(np.float32))
