"""Compares functions of mytorch with PyTorch's in float64: results, gradients, and gradients of gradients."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

import mytorch


class TorchNames:
    """torch and torch.nn.functional under one roof, as in mytorch."""

    def __getattr__(self, name: str):
        return getattr(torch.nn.functional, name, None) or getattr(torch, name)


TORCH = TorchNames()
torch.set_num_threads(1)  # the arrays are small, and two libraries' threads would wait for each other


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def positive(*shape: int, seed: int = 0) -> np.ndarray:
    return np.abs(normal(*shape, seed=seed)) + np.float32(0.3)


def assert_close(ours: np.ndarray, theirs: np.ndarray, what: str, tolerance: float = 1e-5) -> None:
    """Equal shapes, and values equal within `tolerance` of the largest (that of the sums that they come from)."""
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    assert ours.shape == theirs.shape, f"{what}: shape {ours.shape}, PyTorch has {theirs.shape}"
    finite = theirs[np.isfinite(theirs)]
    scale = max(1.0, np.abs(finite).max(initial=0.0))
    np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance * scale, err_msg=what)


def compare(function: Callable, *arrays: np.ndarray, twice: bool = True, tolerance: float = 1e-5) -> None:
    """`function(m, *tensors)` with m = mytorch in float32 and with m = torch in float64, from the same numbers.

    Compared are the result, the gradients of all inputs under random weights of the result, and, if `twice`, the
    gradients of these gradients, again under random weights.
    """
    ours = [mytorch.Tensor(array) for array in arrays]
    theirs = [torch.tensor(array, dtype=torch.float64, requires_grad=True) for array in arrays]
    our_result, their_result = function(mytorch, *ours), function(TORCH, *theirs)
    assert_close(our_result.numpy(), their_result.detach().numpy(), "result", tolerance)

    weight = normal(*our_result.shape, seed=1)
    our_weight, their_weight = mytorch.Tensor(weight), torch.tensor(weight, dtype=torch.float64, requires_grad=True)
    our_grads = mytorch.grad(our_result, ours, our_weight, create_graph=twice)
    their_grads = torch.autograd.grad(their_result, theirs, their_weight, create_graph=twice, materialize_grads=True)
    for index, (our_grad, their_grad) in enumerate(zip(our_grads, their_grads, strict=True)):
        assert_close(our_grad.numpy(), their_grad.detach().numpy(), f"gradient of input {index}", tolerance)
    if not twice:
        return

    our_sum = sum((grad * normal(*grad.shape, seed=2)).sum() for grad in our_grads)
    their_sum = sum((grad * torch.tensor(normal(*grad.shape, seed=2))).sum() for grad in their_grads)
    our_seconds = mytorch.grad(our_sum, [*ours, our_weight])
    their_seconds = torch.autograd.grad(their_sum, [*theirs, their_weight], materialize_grads=True, allow_unused=True)
    for index, (our_grad, their_grad) in enumerate(zip(our_seconds, their_seconds, strict=True)):
        what = f"second gradient of input {index}" if index < len(ours) else "second gradient of the weights"
        assert_close(our_grad.numpy(), their_grad.numpy(), what, 4 * tolerance)
