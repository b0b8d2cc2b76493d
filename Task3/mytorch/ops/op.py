"""Op, the base of all operators; nodes of several results; and how operators read their arguments."""

from __future__ import annotations

from collections.abc import Iterator
from numbers import Integral
from typing import Any

from mytorch.tensor import Tensor, Value


class Op:
    """An operator with its fixed arguments (stride, axes); calling it on nodes computes the result's node."""

    def compute(self, *arrays: Any) -> Any:
        """The result from the inputs' arrays (`mytensor.Tensor`): an array, or a tuple of arrays."""
        raise TypeError(f"{type(self).__name__} defines no compute")

    def gradient(self, out_grad: Any, node: Value) -> tuple[Tensor | None, ...]:
        """One gradient for each of `node.inputs` (None where it is not needed or zero), made of operators.

        `out_grad` is the gradient of the result, or, of a tuple, the tuple of its parts' (None for an unused part).
        """
        raise RuntimeError(f"{type(self).__name__} has no gradient: what it computed cannot be differentiated")

    def __call__(self, *inputs: Value) -> Tensor | TensorTuple:
        data = self.compute(*[value.cached_data for value in inputs])
        kind = TensorTuple if isinstance(data, tuple) else Tensor
        return kind.from_op(self, inputs, data)


class TensorTuple(Value):
    """A node of several results that were computed at once; `node[i]` is the node of one (None if it was left out)."""

    __slots__ = ()

    def __len__(self) -> int:
        return len(self.cached_data)

    def __getitem__(self, index: int) -> Tensor | None:
        return None if self.cached_data[index] is None else TupleGetItem(index)(self)

    def __iter__(self) -> Iterator[Tensor | None]:
        return (self[index] for index in range(len(self)))


class TupleGetItem(Op):
    """One part of a tuple node."""

    def __init__(self, index: int) -> None:
        self.index = index

    def compute(self, parts):
        return parts[self.index]

    def gradient(self, out_grad, node):
        size = len(node.inputs[0])
        return (tuple(out_grad if index == self.index else None for index in range(size)),)


def operands(*values: Any) -> tuple[Tensor, ...]:
    """The values as Tensors: numbers and NumPy arrays become constants on the device of the Tensors beside them."""
    device = next((value.device for value in values if isinstance(value, Tensor)), None)
    if device is None:
        raise TypeError(f"one operand must be a Tensor, got {' and '.join(type(value).__name__ for value in values)}")
    return tuple(value if isinstance(value, Tensor) else Tensor(value, device, requires_grad=False) for value in values)


def pair(value: int | tuple[int, int], name: str) -> tuple[int, int]:
    """(height, width) from one number for both, or from a pair."""
    if isinstance(value, Integral) and not isinstance(value, bool):
        return int(value), int(value)
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise TypeError(f"{name} is a whole number or a pair (height, width), got {value!r}")
    return tuple(value)
