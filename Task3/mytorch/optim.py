"""Optimizers: each updates all parameters of a group with one call into mytensor, in place."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

import mytensor
import numpy as np

from mytorch.tensor import Tensor


class Optimizer(ABC):
    """What optimizers have in common.

    `params` are Tensors, or groups `{"params": [...], "weight_decay": 0.0, ...}` whose options differ from the
    common ones. Options may be changed between steps: `optimizer.param_groups[0]["lr"] = 0.01`. A parameter without
    a gradient is left alone, with its state.
    """

    def __init__(self, params: Iterable[Tensor] | Iterable[dict[str, Any]], **options: Any) -> None:
        params = list(params)
        groups = params if params and isinstance(params[0], dict) else [{"params": params}]
        self.param_groups = [{**options, **group, "params": list(group["params"])} for group in groups]
        self.state: dict[Tensor, dict[str, Any]] = {}  # by identity: Tensors have no other equality
        parameters = self._parameters()
        if not parameters:
            raise ValueError(f"{type(self).__name__} got no parameters")
        wrong = next((p for p in parameters if not isinstance(p, Tensor) or p.op is not None), None)
        if wrong is not None:
            raise TypeError(f"{type(self).__name__} trains Tensors that are leaves, got {wrong!r}")
        if len(set(parameters)) != len(parameters):
            raise ValueError(f"{type(self).__name__} got a parameter twice")
        for group in self.param_groups:
            self.check(**_options(group))

    def check(self, lr: float, weight_decay: float, **options: Any) -> None:
        """Raise ValueError for options that make no sense."""
        for name, value in (("lr", lr), ("weight_decay", weight_decay)):
            if not value >= 0:
                raise ValueError(f"{type(self).__name__}: {name} is at least 0, got {value}")

    @abstractmethod
    def initial_state(self, parameter: Tensor) -> dict[str, Any]:
        """What is remembered of a parameter before its first step: arrays of its shape, and numbers."""

    @abstractmethod
    def update(self, params: list[Tensor], states: list[dict[str, Any]], **options: Any) -> None:
        """One step for parameters of a group that all have gradients."""

    def step(self) -> None:
        """Update the parameters by their gradients, which stay as they are."""
        for group in self.param_groups:
            params = [parameter for parameter in group["params"] if parameter.grad is not None]
            for parameter in params:
                if parameter not in self.state:
                    self.state[parameter] = self.initial_state(parameter)
            if params:
                self.update(params, [self.state[parameter] for parameter in params], **_options(group))

    def zero_grad(self) -> None:
        for parameter in self._parameters():
            parameter.grad = None

    def state_dict(self) -> dict[str, Any]:
        """Options and state as plain values and NumPy arrays, laid out as in PyTorch: parameters by their number."""
        numbers = {parameter: number for number, parameter in enumerate(self._parameters())}
        state = {numbers[parameter]: {name: value.numpy() if isinstance(value, mytensor.Tensor) else value
                                      for name, value in values.items()} for parameter, values in self.state.items()}
        groups = [{**group, "params": [numbers[p] for p in group["params"]]} for group in self.param_groups]
        return {"state": dict(sorted(state.items())), "param_groups": groups}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned. Raises ValueError, and changes nothing, if it does not fit."""
        groups = state["param_groups"]
        if [len(g["params"]) for g in groups] != [len(g["params"]) for g in self.param_groups]:
            raise ValueError(f"the state is of another number of groups or parameters than this {type(self).__name__}")
        parameters = self._parameters()
        restored = {}
        for number, values in state["state"].items():
            parameter = parameters[number]
            expected = self.initial_state(parameter)
            if values.keys() != expected.keys():
                raise ValueError(f"the state of parameter {number} holds {list(values)}, {type(self).__name__} has "
                                 f"{list(expected)}")
            restored[parameter] = {name: _like(value, expected[name], f"{name} of parameter {number}")
                                   for name, value in values.items()}
        self.state = restored
        for own, loaded in zip(self.param_groups, groups, strict=True):
            own.update(_options(loaded))

    def _parameters(self) -> list[Tensor]:
        return [parameter for group in self.param_groups for parameter in group["params"]]


class SGD(Optimizer):
    """Stochastic gradient descent: v = momentum v + (grad + weight_decay p); p -= lr v.

    With `nesterov` p -= lr (grad + weight_decay p + momentum v), as Sutskever et al. (2013) put it.
    """

    def __init__(self, params: Iterable[Tensor] | Iterable[dict[str, Any]], lr: float = 1e-3, momentum: float = 0.0,
                 weight_decay: float = 0.0, nesterov: bool = False) -> None:
        super().__init__(params, lr=lr, momentum=momentum, weight_decay=weight_decay, nesterov=nesterov)

    def check(self, lr: float, weight_decay: float, momentum: float, nesterov: bool) -> None:
        super().check(lr, weight_decay)
        if not momentum >= 0 or (nesterov and momentum == 0):
            raise ValueError(f"SGD: momentum is at least 0, and not 0 with nesterov, got {momentum}")

    def initial_state(self, parameter):
        return {"momentum_buffer": mytensor.Tensor(parameter.shape, parameter.device)}

    def update(self, params, states, lr, momentum, weight_decay, nesterov):
        mytensor.nn.sgd_step(_arrays(params), _gradients(params), _field(states, "momentum_buffer") if momentum else [],
                             lr, momentum, weight_decay, nesterov)


class Adam(Optimizer):
    """Adam (Kingma & Ba 2015): steps of the mean gradient over the root of the mean squared gradient."""

    decoupled = False  # whether weight decay acts on the parameters directly instead of being part of the gradient

    def __init__(self, params: Iterable[Tensor] | Iterable[dict[str, Any]], lr: float = 1e-3,
                 betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 0.0) -> None:
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)

    def check(self, lr: float, weight_decay: float, betas: tuple[float, float], eps: float) -> None:
        super().check(lr, weight_decay)
        if not (all(0 <= beta < 1 for beta in betas) and eps >= 0):
            raise ValueError(f"{type(self).__name__}: betas are in [0, 1) and eps at least 0, got {betas} and {eps}")

    def initial_state(self, parameter):
        return {"step": 0, "exp_avg": mytensor.Tensor(parameter.shape, parameter.device),
                "exp_avg_sq": mytensor.Tensor(parameter.shape, parameter.device)}

    def update(self, params, states, lr, betas, eps, weight_decay):
        for state in states:
            state["step"] += 1
        for step in sorted({state["step"] for state in states}):  # one, unless some had no gradient at times
            chosen = [index for index, state in enumerate(states) if state["step"] == step]
            some, their = [params[index] for index in chosen], [states[index] for index in chosen]
            mytensor.nn.adam_step(_arrays(some), _gradients(some), _field(their, "exp_avg"),
                                  _field(their, "exp_avg_sq"), lr, *betas, eps, weight_decay, self.decoupled, step)


class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019): p -= lr weight_decay p beside Adam's step."""

    decoupled = True

    def __init__(self, params: Iterable[Tensor] | Iterable[dict[str, Any]], lr: float = 1e-3,
                 betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 1e-2) -> None:
        super().__init__(params, lr, betas, eps, weight_decay)


def _options(group: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name != "params"}


def _arrays(params: list[Tensor]) -> list[mytensor.Tensor]:
    return [parameter.cached_data for parameter in params]


def _gradients(params: list[Tensor]) -> list[mytensor.Tensor]:
    return [parameter.grad.cached_data for parameter in params]


def _field(states: list[dict[str, Any]], name: str) -> list[mytensor.Tensor]:
    return [state[name] for state in states]


def _like(value: Any, expected: Any, what: str) -> Any:
    """A saved value as the kind of the expected one: an array of its shape on its device, or a number."""
    if not isinstance(expected, mytensor.Tensor):
        return type(expected)(value)
    array = np.asarray(value)
    if array.shape != expected.shape():
        raise ValueError(f"{what} has shape {array.shape}, the parameter {expected.shape()}")
    return mytensor.Tensor.from_numpy(array, device=expected.device())
