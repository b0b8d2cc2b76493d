"""Value, a node of the graph, and Tensor, the node that holds one array. The arrays themselves are mytensor's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mytensor
import numpy as np
from mytensor import TensorDevice

from mytorch.autodiff import compute_gradient_of_variables, is_grad_enabled

if TYPE_CHECKING:
    from mytorch.ops.op import Op


class Value:
    """What was computed (`cached_data`), by which operator (`op`), from which nodes (`inputs`).

    A leaf has no operator and no inputs. A node knows what it was computed from and never who uses it: the graph has
    no cycles, and goes, with its memory, when its last output goes.
    """

    __slots__ = ("op", "inputs", "cached_data", "grad", "requires_grad", "__weakref__")

    op: Op | None
    inputs: tuple[Value, ...]
    cached_data: Any
    grad: Tensor | None
    requires_grad: bool

    @classmethod
    def from_op(cls, op: Op, inputs: tuple[Value, ...], data: Any) -> Value:
        """The node of `data`, which `op` computed from `inputs`; a leaf if nobody can need a gradient through it."""
        recorded = is_grad_enabled() and any([value.requires_grad for value in inputs])
        node = cls.__new__(cls)
        node.op, node.inputs = (op, inputs) if recorded else (None, ())
        node.cached_data, node.grad, node.requires_grad = data, None, recorded
        return node


class Tensor(Value):
    """An array of float32 in the graph. Its operators and methods (`+`, `@`, `.sum()`) are set in operators.py.

    `Tensor(array)` makes a leaf. `array` is anything that NumPy takes, copied and converted to float32, or a
    `mytensor.Tensor`, shared. `device` None means the array's own, which for NumPy is the CPU.
    """

    __slots__ = ()
    __array_ufunc__ = None  # NumPy's operators leave `array + tensor` to Tensor.__radd__

    def __init__(self, array: Any, device: TensorDevice | None = None, requires_grad: bool = True) -> None:
        if not isinstance(array, mytensor.Tensor):
            array = mytensor.Tensor.from_numpy(array, device=device or TensorDevice.CPU)
        elif device is not None and device != array.device():
            array = to_device(array, device)
        self.op, self.inputs, self.cached_data, self.grad = None, (), array, None
        self.requires_grad = requires_grad

    @property
    def shape(self) -> tuple[int, ...]:
        return self.cached_data.shape()

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def device(self) -> TensorDevice:
        return self.cached_data.device()

    def numpy(self) -> np.ndarray:
        """The values in a new float32 array, which later changes of this Tensor do not reach."""
        return self.cached_data.numpy()

    def item(self) -> float:
        """The value of a Tensor that holds one number."""
        array = self.numpy()
        if array.size != 1:
            raise ValueError(f"item() is for a Tensor of one number, this one has shape {array.shape}")
        return array.item()

    def detach(self) -> Tensor:
        """The same array outside the graph: it needs no gradient and keeps nothing alive."""
        return Tensor(self.cached_data, requires_grad=False)

    def full_like(self, value: float) -> Tensor:
        """A constant of this Tensor's shape and device."""
        return Tensor(mytensor.full(self.shape, value, self.device), requires_grad=False)

    def backward(self, out_grad: Tensor | None = None) -> None:
        """Add this Tensor's gradient to the `grad` of the leaves: see `compute_gradient_of_variables`."""
        compute_gradient_of_variables(self, out_grad)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.numpy()}, shape={self.shape}, requires_grad={self.requires_grad})"


def to_device(array: mytensor.Tensor, device: TensorDevice) -> mytensor.Tensor:
    """The array on `device`: itself if it is there."""
    return array.gpu() if device == TensorDevice.GPU else array.cpu()
