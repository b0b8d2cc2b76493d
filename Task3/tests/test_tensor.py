"""Tensors: what they are made from, what they give out, and their operators."""

from __future__ import annotations

import gc

import mytensor
import numpy as np
import pytest
from against_torch import compare, normal, positive
from hypothesis import given
from hypothesis import strategies as st

import mytorch
from mytorch import Tensor, TensorDevice

pytestmark = pytest.mark.usefixtures("each_cpu_variant")

GRID = np.arange(24, dtype=np.float64).reshape(2, 3, 4)
UNALIGNED = np.frombuffer(b"\0" + np.arange(6, dtype=np.float32).tobytes(), np.float32, offset=1)
READ_ONLY = np.arange(3.0)
READ_ONLY.flags.writeable = False


@pytest.mark.parametrize("array", [
    GRID, GRID.T, GRID[::2], GRID[:, ::-1], GRID[:, :, ::-2], np.flip(GRID), np.asfortranarray(GRID),
    np.ascontiguousarray(np.zeros((1, 10, 20))[::-1]), np.broadcast_to(np.arange(3.0), (4, 3)), UNALIGNED, READ_ONLY,
    GRID.astype(">f4"), GRID.astype(np.float16), GRID.astype(np.int64), GRID.astype(np.uint8), GRID > 5,
    np.float64(2.5), np.array(3)], ids=lambda array: f"{array.dtype}-{array.shape}-{array.strides}")
def test_a_tensor_holds_the_values_of_any_numpy_array(array):
    tensor = Tensor(array)
    assert tensor.shape == np.shape(array) and tensor.numpy().dtype == np.float32
    assert np.array_equal(tensor.numpy(), np.array(array, np.float32))


@pytest.mark.parametrize("value, shape", [(2.5, ()), (3, ()), (True, ()), ([1, 2], (2,)), ([[1.5], [2]], (2, 1))])
def test_numbers_and_lists_become_tensors(value, shape):
    tensor = Tensor(value)
    assert tensor.shape == shape and np.array_equal(tensor.numpy(), np.array(value, np.float32))


@pytest.mark.parametrize("wrong", ["text", None, 1j, [[1], [2, 3]], object(), np.zeros((1,) * 5), np.zeros((2, 0))])
def test_what_is_no_array_of_numbers_is_refused(wrong):
    with pytest.raises((TypeError, ValueError)):
        Tensor(wrong)


def test_a_tensor_copies_its_array_and_gives_out_copies():
    array = np.ones(3, np.float32)
    tensor = Tensor(array)
    array[:] = 2
    given_out = tensor.numpy()
    given_out[:] = 3
    assert tensor.numpy().tolist() == [1, 1, 1]


def test_values_given_out_outlive_the_tensor():
    values = (Tensor(np.ones(1000)) + Tensor(np.ones(1000))).numpy()
    for number in range(20):  # the allocator gives the memory to others
        assert (Tensor(np.full(1000, number)) * 3).numpy()[0] == 3 * number
    assert (values == 2).all()


def test_a_backend_array_is_shared():
    array = mytensor.full((2,), 1.0, TensorDevice.CPU)
    tensor = Tensor(array)
    array.fill_(5)
    assert tensor.numpy().tolist() == [5, 5] and tensor.cached_data is array


def test_a_leaf_requires_a_gradient_unless_told_otherwise():
    leaf = Tensor([1.0])
    assert leaf.requires_grad and leaf.op is None and leaf.inputs == () and leaf.grad is None
    assert leaf.device == TensorDevice.CPU and leaf.ndim == 1
    assert not Tensor([1.0], requires_grad=False).requires_grad


def test_item_is_for_one_number():
    assert Tensor([[2.5]]).item() == 2.5 and type(Tensor(1).item()) is float
    with pytest.raises(ValueError, match=r"one number.*\(2,\)"):
        Tensor([1, 2]).item()


def test_repr_shows_values_shape_and_whether_a_gradient_is_required():
    assert repr(Tensor([1, 2])) == "Tensor([1. 2.], shape=(2,), requires_grad=True)"


# ---- operators ----

NUMBERS = [2, 2.5, True, np.float32(2.5), np.float64(2.5), np.int64(2), np.array(2.5)]


@pytest.mark.parametrize("number", NUMBERS, ids=lambda number: type(number).__name__)
def test_a_number_may_stand_on_either_side_of_an_operator(number):
    values = positive(2, 3)
    x = Tensor(values)
    plain = np.float32(number)
    for result, right in ((x + number, values + plain), (number + x, values + plain), (x - number, values - plain),
                          (number - x, plain - values), (x * number, values * plain), (number * x, values * plain),
                          (x / number, values / plain), (number / x, plain / values), (x**number, values**plain),
                          (number**x, plain**values)):
        assert isinstance(result, Tensor) and result.requires_grad
        np.testing.assert_allclose(result.numpy(), right, rtol=1e-6)


def test_an_array_may_stand_on_either_side_of_an_operator():
    x, array = Tensor(normal(2, 3)), normal(3, 3, seed=1).astype(np.float64)
    assert np.array_equal((array[0] + x).numpy(), (x + array[0]).numpy())
    np.testing.assert_allclose((x @ array).numpy(), x.numpy() @ array, rtol=1e-5)
    np.testing.assert_allclose((array.T @ x.permute((1, 0))).numpy(), array.T @ x.numpy().T, rtol=1e-5)


@given(number=st.floats(-5, 5, width=32))
def test_gradients_with_numbers_on_either_side(number):
    compare(lambda m, x: (number * x + number - x * number) * (number - x) / (2 + x * x) - x / (1 + number**2),
            normal(3))


def test_methods_are_the_functions_of_the_same_name():
    compare(lambda m, x: (-x).reshape((4, 6)).transpose(0, 1).sum(0), normal(2, 3, 4))
    compare(lambda m, x: x.permute((2, 0, 1)).mean((0, 2), keepdim=True).flatten() * x.amax((1, 2)), normal(2, 3, 4))


@pytest.mark.parametrize("other", ["text", None, [1.0], object()])
def test_an_operand_that_is_neither_number_nor_array_is_a_type_error(other):
    for operation in (lambda: Tensor(1) + other, lambda: other - Tensor(1), lambda: Tensor(1) @ other):
        with pytest.raises(TypeError):
            operation()


def test_one_operand_must_be_a_tensor():
    with pytest.raises(TypeError, match="a Tensor, got int and float"):
        mytorch.add(1, 2.0)


def test_no_memory_is_left_when_tensors_go():
    gc.disable()
    try:
        before = mytensor.live_tensors(), mytensor.memory_allocated()
        x = Tensor(normal(10, 10))
        y = ((x @ x).sum(0).reshape((2, 5)) * 2 - 1).detach()
        assert mytensor.live_tensors() == before[0] + 2
        del x, y
        assert (mytensor.live_tensors(), mytensor.memory_allocated()) == before
    finally:
        gc.enable()
