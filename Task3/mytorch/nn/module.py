"""Module: parameters, buffers and sub-modules under the names that PyTorch gives them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import mytensor
import numpy as np
from mytensor import TensorDevice

from mytorch.tensor import Tensor, to_device


class Parameter(Tensor):
    """A leaf that is trained."""

    __slots__ = ()


class Buffer(Tensor):
    """A Tensor that is saved with the model but not trained."""

    __slots__ = ()

    def __init__(self, array: Any, device: TensorDevice | None = None) -> None:
        super().__init__(array, device, requires_grad=False)


_BUFFERS = (Buffer, np.ndarray)


class Module:
    """A part of a network. What is assigned to an attribute belongs to it, in the order of assignment:

    a `Parameter`; a `Buffer`, or a NumPy array (a buffer that stays in the host's memory, like a counter); a `Module`.
    Sub-classes define `forward`.
    """

    training = True

    def __setattr__(self, name: str, value: Any) -> None:
        self._refuse_hidden(name, value)
        super().__setattr__(name, value)

    def forward(self, *inputs: Any) -> Any:
        raise TypeError(f"{type(self).__name__} defines no forward")

    def __call__(self, *inputs: Any) -> Any:
        return self.forward(*inputs)

    # ---- what it is made of ----

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """This module (under `prefix`) and all below it, with their dotted names."""
        yield prefix, self
        for name, value in vars(self).items():
            self._refuse_hidden(name, value)  # a list may have got its modules after it was assigned
            if isinstance(value, Module):
                yield from value.named_modules(f"{prefix}.{name}" if prefix else name)

    def modules(self) -> list[Module]:
        return [module for _, module in self.named_modules()]

    def named_parameters(self) -> Iterator[tuple[str, Parameter]]:
        return self._named(Parameter)

    def parameters(self) -> list[Parameter]:
        """Every parameter once, also one that is used in two places."""
        return list({id(parameter): parameter for _, parameter in self.named_parameters()}.values())

    def named_buffers(self) -> Iterator[tuple[str, Buffer | np.ndarray]]:
        return self._named(_BUFFERS)

    def _named(self, *kinds: type | tuple[type, ...]) -> Iterator[tuple[str, Any]]:
        """Module by module the values of the first kind, then those of the next, with their dotted names."""
        for prefix, module in self.named_modules():
            for kind in kinds:
                for name, value in vars(module).items():
                    if isinstance(value, kind):
                        yield f"{prefix}.{name}" if prefix else name, value

    def _refuse_hidden(self, name: str, value: Any) -> None:
        if isinstance(value, (list, tuple, set, dict)) and _holds_parts(value):
            raise TypeError(f"{type(self).__name__}.{name} is a {type(value).__name__} of modules or parameters, "
                            "which would be neither trained nor saved: use nn.Sequential or an attribute for each")

    # ---- what is done to all of it ----

    def train(self, mode: bool = True) -> Module:
        """Set training mode (or evaluation mode) here and in all sub-modules."""
        for module in self.modules():
            module.training = mode
        return self

    def eval(self) -> Module:
        return self.train(False)

    def zero_grad(self) -> None:
        for parameter in self.parameters():
            parameter.grad = None

    def to_device(self, device: TensorDevice) -> Module:
        """Move parameters (with their gradients) and buffers; the Tensors stay the same objects."""
        for _, value in self._named(Parameter, Buffer):
            value.cached_data = to_device(value.cached_data, device)
            if value.grad is not None:
                value.grad = Tensor(value.grad.cached_data, device, requires_grad=False)
        return self

    # ---- saving and loading ----

    def state_dict(self) -> dict[str, np.ndarray]:
        """Copies of all parameters and buffers, by the names and in the order of PyTorch."""
        return {name: value.copy() if isinstance(value, np.ndarray) else value.numpy()
                for name, value in self._named(Parameter, _BUFFERS)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Copy the arrays (or CPU tensors of PyTorch) of `state` into this module's parameters and buffers.

        Raises ValueError, and changes nothing, if a name is missing or unknown or a shape differs.
        """
        own = dict(self._named(Parameter, _BUFFERS))
        missing, unknown = [n for n in own if n not in state], [n for n in state if n not in own]
        if missing or unknown:
            raise ValueError(f"the state does not fit {type(self).__name__}: missing are {missing}, unknown {unknown}")
        arrays = {name: np.asarray(value) for name, value in state.items()}
        for name, value in own.items():
            if arrays[name].shape != value.shape:
                raise ValueError(f"the state does not fit {type(self).__name__}: {name} has shape "
                                 f"{arrays[name].shape}, the model's is {value.shape}")
        new = {name: arrays[name].astype(value.dtype, casting="same_kind") if isinstance(value, np.ndarray)
               else mytensor.Tensor.from_numpy(arrays[name], device=value.device)
               for name, value in own.items()}  # all of them before the first is written: a wrong dtype changes nothing
        for name, value in own.items():
            if isinstance(value, np.ndarray):
                value[...] = new[name]
            else:
                value.cached_data.copy_(new[name])


def _holds_parts(value: Any) -> bool:
    if isinstance(value, (list, tuple, set, dict)):
        return any(map(_holds_parts, value.values() if isinstance(value, dict) else value))
    return isinstance(value, (Module, Parameter, Buffer))
