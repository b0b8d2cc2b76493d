"""What wrong arguments are told: by which function, which shapes, and what would do."""

from __future__ import annotations

import mytensor
import numpy as np
import pytest

from mytorch import Tensor

nn = mytensor.nn


def t(*shape: int) -> mytensor.Tensor:
    return mytensor.full(shape, 1.0)


PICTURES = t(1, 2, 4, 5)
NEVER_INITIALISED = mytensor.Tensor.__new__(mytensor.Tensor)


@pytest.mark.parametrize("call, text", [
    # sizes
    (lambda: mytensor.full([2**16, 2**15], 0.0), r"fewer than 2\^31 elements; not \(65536, 32768\)"),
    (lambda: mytensor.Tensor([2, 0]), r"size 1 or more.*\(2, 0\)"),
    (lambda: mytensor.Tensor([1] * 1000), r"\(1, 1, 1, 1, 1, 1, 1, 1, and 992 more\)"),
    (lambda: mytensor.Tensor(np.broadcast_to(1, 2**40)), "a list of 1099511627776 is too long"),
    (lambda: mytensor.Tensor.from_numpy(np.zeros((0, 3))), r"\(0, 3\)"),
    (lambda: mytensor.Tensor.from_numpy(np.zeros((1,) * 5)), r"\(1, 1, 1, 1, 1\)"),
    (lambda: mytensor.Tensor.from_numpy(np.broadcast_to(np.float32(0), (2**20, 2**20))), r"\(1048576, 1048576\)"),
    (lambda: mytensor.add(t(2**16, 1), t(1, 2**16)), r"add: \(65536, 1\) and \(1, 65536\) would.*\(65536, 65536\)"),
    (lambda: mytensor.matmul(t(2**16, 1), t(1, 2**16)), r"matmul: \(65536, 1\) and \(1, 65536\) would give"),
    (lambda: nn.conv_forward(PICTURES, t(1, 2, 1, 1), None, 1, 1, 2**20, 2**20), r"conv2d: x of shape \(1, 2, 4, 5\)"),
    # shapes that do not go together
    (lambda: mytensor.maximum(t(2, 3), t(4)), r"maximum: \(2, 3\) and \(4,\) cannot be broadcast"),
    (lambda: mytensor.mean(t(2, 3), 2), r"mean: axis 2 is not one of shape \(2, 3\)"),
    (lambda: mytensor.sum(t(2, 3), [0, -2]), r"sum: axis -2 is not one of shape \(2, 3\), or is named twice"),
    (lambda: mytensor.reshape(t(2, 3), (-1, -1)), r"reshape: only one size may be -1, not two of \(-1, -1\)"),
    (lambda: mytensor.reshape(t(2, 3), (4, -1)), r"reshape: \(2, 3\) cannot become \(4, -1\)"),
    (lambda: mytensor.reshape(t(2, 3), (2**62, 2**62)), r"reshape: \(2, 3\) cannot become"),
    (lambda: mytensor.matmul(t(2, 3, 4), t(3, 4, 5)), r"leading axes of \(2, 3, 4\) and \(3, 4, 5\) cannot"),
    (lambda: mytensor.matmul(t(3, 2), t(2, 5), True), r"sizes 3 and 2 differ, of \(3, 2\) transposed and \(2, 5\)"),
    (lambda: nn.relu_backward(t(2), t(3)), r"relu_backward: out_grad must have shape \(2,\), not \(3,\)"),
    (lambda: nn.tanh_backward(t(2), t(3)), r"tanh_backward: out_grad must have shape \(2,\)"),
    (lambda: nn.log_softmax_forward(t(2, 3), 2), r"log_softmax: axis 2 is not one of shape \(2, 3\)"),
    (lambda: nn.softmax_backward(t(2, 3), t(2, 3), -3), r"softmax_backward: axis -3"),
    (lambda: nn.batchnorm_backward(PICTURES, t(2), t(3), t(2), PICTURES, True), r"mean must have shape \(2,\), not"),
    (lambda: nn.sgd_step([t(2)], [t(3)], [t(2)], 0.1, 0.9, 0.0, False), r"sgd_step: .*\(2,\), not \(3,\)"),
    # windows
    (lambda: nn.maxpool_forward(PICTURES, 5, 1, 1, 1, 0, 0), r"max_pool2d: .* 5 .* into the 4 of .*\(1, 2, 4, 5\)"),
    (lambda: nn.avgpool_backward(PICTURES, PICTURES, 2, 2, 0, 1, 0, 0), "avg_pool2d_backward: .*stride must be 1"),
    (lambda: nn.conv_forward(PICTURES, t(1, 2, 1, 1), None, 1, 1, -1, 0), "padding 0 or more.*-1"),
    (lambda: nn.maxpool_forward(PICTURES, 2**30, 2**30, 1, 1, 2**29, 2**29), r"1073741824x1073741824 has 2\^31"),
    # labels
    (lambda: nn.cross_entropy_forward(t(2, 3), [0, -1]), r"label -1 at position 1.*\(2, 3\)"),
    (lambda: nn.cross_entropy_forward(t(2, 3), [3, 0]), r"label 3 at position 0.*from 0 to 2"),
    (lambda: nn.cross_entropy_forward(t(2, 3), [0, np.nan]), "label nan at position 1"),
    (lambda: nn.cross_entropy_backward(t(2, 3), [0], t()), r"cross_entropy_backward: labels must have.*\(2,\).*\(1,\)"),
    (lambda: nn.cross_entropy_forward(t(2, 3), np.broadcast_to(0, 2**40)), r"not \(1099511627776,\)"),
    # what this machine has not got
    (lambda: mytensor.Tensor([2], mytensor.TensorDevice.GPU), "no GPU"),
    (lambda: mytensor.Tensor([2], mytensor.TensorDevice(7)), "no GPU"),
    (lambda: mytensor.set_num_threads(2**31 - 1), "1 to .* threads may be used, not 2147483647"),
    (lambda: mytensor.set_num_threads(0), "1 to .* threads may be used, not 0"),
    (lambda: mytensor.set_cpu_variant("avx1024"), "no variant 'avx1024'; it has:.* reference"),
    # numbers
    (lambda: mytensor.add(t(2), 10**400), "too large for a float"),
    (lambda: Tensor([2.0]) * 10**400, "too large for a float"),
])
def test_a_wrong_value_is_a_value_error_that_names_it(call, text):
    with pytest.raises(ValueError, match=text):
        call()


@pytest.mark.parametrize("call, text", [
    (lambda: mytensor.full([True], 0.0), r"full\(\): incompatible.*\[True\]"),
    (lambda: mytensor.full([np.float32(2.5)], 0.0), "incompatible"),
    (lambda: mytensor.full("23", 0.0), "incompatible"),
    (lambda: mytensor.sum(t(2, 3), True), r"sum\(\): incompatible.*\(2, 3\).*True"),
    (lambda: mytensor.sum(t(2, 3), [1.0]), "incompatible"),
    (lambda: mytensor.sum(t(2, 3), 0, 1), "incompatible"),
    (lambda: nn.softmax_forward(t(2, 3), True), "incompatible"),
    (lambda: nn.maxpool_forward(PICTURES, 2, 2, True, 1, 0, 0), "incompatible"),
    (lambda: nn.maxpool_forward(PICTURES, 2, 2, np.float32(1.5), 1, 0, 0), "incompatible"),
    (lambda: nn.maxpool_forward(PICTURES, 2, 2, 2**63, 1, 0, 0), "incompatible"),
    (lambda: nn.dropout_forward(t(2), 0.5, -1, 0), "incompatible"),
    (lambda: nn.dropout_forward(t(2), np.complex64(0.5), 1, 0), "incompatible"),
    (lambda: mytensor.add(t(2), np.ones((40, 50))), r"a Tensor or a number, not .*ndarray.* of shape \(40, 50\)"),
    (lambda: mytensor.add(t(2), np.complex64(1j)), "a Tensor or a number, not .*complex64"),
    (lambda: mytensor.add(np.str_("3"), t(2)), "a Tensor or a number, not .*str_"),
    (lambda: Tensor([2.0]) + np.array(["text"] * 1000), "numbers is needed, not of dtype <U4"),
    (lambda: Tensor([2.0]) @ np.full((3, 3), 1j), "numbers is needed, not of dtype complex128"),
    (lambda: nn.cross_entropy_forward(t(2, 3), ["a", "b"]), "labels must be numbers, not of dtype <U1"),
    (lambda: nn.cross_entropy_forward(t(2, 3), [True, False]), "labels must be numbers, not of dtype bool"),
    (lambda: mytensor.Tensor.device(None), "incompatible"),
    (lambda: NEVER_INITIALISED.shape(), "incompatible"),
    (lambda: mytensor.add(NEVER_INITIALISED, t(2)), "a Tensor or a number, not"),
    (lambda: nn.sgd_step([NEVER_INITIALISED], [t(2)], [], 0.1, 0.0, 0.0, False), "incompatible"),
    (lambda: mytensor.set_cpu_variant(b"\xff"), "incompatible"),
])
def test_a_wrong_kind_of_argument_is_a_type_error(call, text):
    with pytest.raises(TypeError, match=f"(?s){text}"):
        call()


def test_whole_numbers_of_any_kind_and_size_are_taken():
    assert mytensor.full(np.array([2, 3]), 1).shape() == mytensor.full([np.int8(2), np.uint64(3)], 1).shape() == (2, 3)
    assert mytensor.sum(t(2, 3), np.int64(-1)).shape() == mytensor.sum(t(2, 3), (1,)).shape() == (2,)
    assert (Tensor([2.0]) * 2**70).item() == mytensor.mul(t(), 2**71).numpy() == 2.0**71
