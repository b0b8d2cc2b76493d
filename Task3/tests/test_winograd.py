"""Winograd's convolutions are PyTorch's within the digits that they cost, and can be switched off."""

from __future__ import annotations

import mytensor
import numpy as np
import pytest
import torch
from against_torch import normal

# (pictures, channels, out channels, height, width, padding): whole tiles, parts of tiles, one tile that is mostly
# border, a last panel that is half full, tiles that do not fill a block, several blocks.
SHAPES = [(2, 64, 64, 16, 16, 1), (3, 32, 16, 7, 9, 0), (2, 16, 48, 5, 6, 2), (1, 16, 16, 1, 1, 1),
          (1, 16, 32, 3, 3, 0), (2, 80, 112, 9, 4, 1), (3, 128, 128, 8, 8, 1), (40, 32, 16, 8, 8, 1)]
TOLERANCE = 2e-5  # of the largest value; what was measured is at most 9e-6, and 6e-7 without Winograd

pytestmark = pytest.mark.usefixtures("each_cpu_variant")


@pytest.fixture(autouse=True)
def winograd_stays_on():
    yield
    mytensor.enable_winograd(True)


def channels_last(array: np.ndarray) -> mytensor.Tensor:
    """The same values, laid out as a convolution leaves them."""
    channels = array.shape[1]
    one = mytensor.Tensor.from_numpy(np.eye(channels, dtype=np.float32).reshape(channels, channels, 1, 1))
    return mytensor.nn.conv_forward(mytensor.Tensor.from_numpy(array), one, None, 1, 1, 0, 0)


def convolve(arrays: list[np.ndarray], padding: int) -> list[np.ndarray]:
    """Result and gradients of input, weight and bias, for pictures that lie as a convolution leaves them."""
    x, (weight, bias, out_grad) = channels_last(arrays[0]), map(mytensor.Tensor.from_numpy, arrays[1:])
    y = mytensor.nn.conv_forward(x, weight, bias, 1, 1, padding, padding)
    gradients = mytensor.nn.conv_backward(x, weight, bias, out_grad, 1, 1, padding, padding)
    return [array.numpy() for array in (y, *gradients)]


def example(n: int, channels: int, kernels: int, height: int, width: int, padding: int) -> list[np.ndarray]:
    """x, weight, bias, and the gradient of the result; results are of the order of 1."""
    weight = normal(kernels, channels, 3, 3, seed=1) / np.float32(np.sqrt(9 * channels))
    out_grad = normal(n, kernels, height + 2 * padding - 2, width + 2 * padding - 2, seed=3)
    return [normal(n, channels, height, width), weight, normal(kernels, seed=2), out_grad]


def in_float64(arrays: list[np.ndarray], padding: int) -> list[np.ndarray]:
    x, weight, bias, out_grad = (torch.tensor(array, dtype=torch.float64, requires_grad=True) for array in arrays)
    y = torch.nn.functional.conv2d(x, weight, bias, padding=padding)
    return [array.detach().numpy() for array in (y, *torch.autograd.grad(y, (x, weight, bias), out_grad))]


def errors(ours: list[np.ndarray], right: list[np.ndarray]) -> list[float]:
    return [np.abs(a - b).max() / np.abs(b).max() for a, b in zip(ours, right, strict=True)]


@pytest.mark.parametrize("shape", SHAPES)
def test_results_and_gradients_are_those_of_float64_within_the_digits_that_it_costs(shape):
    arrays, padding = example(*shape), shape[-1]
    right = in_float64(arrays, padding)
    exact = {}
    for enabled in (True, False):
        mytensor.enable_winograd(enabled)
        assert mytensor.winograd_enabled() is enabled
        found = convolve(arrays, padding)
        assert max(errors(found, right)) < (TOLERANCE if enabled else 5e-6)
        exact[enabled] = found
    if mytensor.cpu_variant() != "reference" and shape[3] > 1:  # else both would test the same
        assert not np.array_equal(exact[True][0], exact[False][0])


def test_the_bits_do_not_depend_on_the_number_of_threads():
    arrays = example(*SHAPES[-1])  # several blocks of tiles
    before = mytensor.get_num_threads()
    found = []
    for threads in (1, 2, 3):
        mytensor.set_num_threads(threads)
        found.append(convolve(arrays, 1))
    mytensor.set_num_threads(before)
    for other in found[1:]:
        assert all(map(np.array_equal, found[0], other))


@pytest.mark.parametrize("channels, kernels, size, stride, padding", [
    (15, 16, 3, 1, 1), (16, 15, 3, 1, 1), (16, 16, 5, 1, 1), (16, 16, 3, 2, 1), (16, 16, 3, 1, 3), (16, 16, 3, 1, 1)])
def test_other_convolutions_are_the_same_with_it_and_without(channels, kernels, size, stride, padding):
    """Channels that do not fill a vector, another kernel, another stride, a wider border; and, last, one of its own."""
    x = channels_last(normal(2, channels, 8, 8))
    weight = mytensor.Tensor.from_numpy(normal(kernels, channels, size, size, seed=1))
    found = []
    for enabled in (True, False):
        mytensor.enable_winograd(enabled)
        found.append(mytensor.nn.conv_forward(x, weight, None, stride, stride, padding, padding).numpy())
    is_its_own = (channels, kernels, size, stride, padding) == (16, 16, 3, 1, 1)
    assert np.array_equal(*found) != (is_its_own and mytensor.cpu_variant() != "reference")
