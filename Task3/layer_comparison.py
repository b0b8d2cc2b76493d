"""Compares our model with PyTorch's layer by layer: in a whole run of both, and each layer alone.

In the whole run rounding adds up, and where a value before a ReLU is nearly 0, or two in a pooling window are nearly
equal, it sends a gradient another way: then right code is far off too, PyTorch's float32 as well. So what tells a
wrong layer is each one alone: ours and PyTorch's are given the very numbers that ours was given in the run; ours in the
same order of memory too, which decides what kernel computes it.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

import mytorch
from mytorch import nn
from twin import twin_of
from utils import UserError

Arrays = Mapping[str, np.ndarray]  # by what they are: "output", "gradient of weight"


class Difference(NamedTuple):
    """The largest difference between arrays, relative to the largest magnitude of PyTorch's in float64."""

    size: float
    array: str  # in which array it is


class Measured(NamedTuple):
    """The differences from PyTorch in float64, of ours and, for comparison, of PyTorch in float32."""

    ours: Difference
    torch32: Difference


class Comparison(NamedTuple):
    """One layer; `alone` are differences of the layer given our numbers, `run` those in the whole run."""

    name: str
    kind: str
    alone_output: Measured  # and of the running statistics
    alone_gradients: Measured  # of the input and of the parameters
    run_output: Measured
    run_gradients: Measured  # of the output and of the parameters

    def largest(self) -> Difference:
        """Ours alone, of which it is judged whether the layer is right."""
        return max(self.alone_output.ours, self.alone_gradients.ours)


def compare_layers(model: nn.Module, images: np.ndarray, labels: np.ndarray) -> list[Comparison]:
    """Compare the layers of `model`, in the order of the forward pass, and the loss as the last.

    `images` (N, C, H, W) and `labels` (N,) are one batch. The model is in the mode that it was set to, and is left with
    the values that it had. Raises UserError if it cannot be translated, or calls a layer twice.
    """
    state = model.state_dict()
    sides = [_Mytorch(model, labels), _Pytorch(model, labels, torch.float32), _Pytorch(model, labels, torch.float64)]
    runs = [side.run(mytorch.Tensor(images)) for side in sides]
    order = list(runs[0])
    if order != list(runs[2]):
        raise UserError(f"our forward pass goes through {', '.join(order)}; PyTorch's through {', '.join(runs[2])}")
    for side in sides:
        side.restore(state)  # the run has moved the running statistics, as each layer alone does

    comparisons = []
    for name in order:
        given = runs[0][name]
        alone = [side.alone(name, given.input, given.output_gradient) for side in sides]
        in_run = [run[name].result for run in runs]
        comparisons.append(Comparison(name, type(sides[0].layers[name]).__name__,
                                      _measure(alone, _Result.output_difference),
                                      _measure(alone, _Result.gradient_difference),
                                      _measure(in_run, _Result.output_difference),
                                      _measure(in_run, _Result.gradient_difference)))
    sides[0].restore(state)
    return comparisons


class _Result(NamedTuple):
    """What a layer computed."""

    outputs: Arrays
    data_gradient: Arrays  # of its input; in the whole run of its output
    parameter_gradients: Arrays

    def output_difference(self, reference: _Result) -> Difference:
        return max(_difference(name, array, reference.outputs) for name, array in self.outputs.items())

    def gradient_difference(self, reference: _Result) -> Difference:
        return max([*(_difference(name, array, reference.data_gradient) for name, array in self.data_gradient.items()),
                    *(_difference(name, array, reference.parameter_gradients, bias=name == "gradient of bias")
                      for name, array in self.parameter_gradients.items())])


class _Call(NamedTuple):
    """A layer's part in a run."""

    input: Any  # tensors of the side whose run it is
    output_gradient: Any
    result: _Result


class _Side(ABC):
    """One of the implementations that are compared. Arrays go in and come out; its own tensors stay inside."""

    model: Any
    layers: dict[str, Any]  # by name: the modules that have none below them, and the loss

    @abstractmethod
    def leaf(self, tensor: mytorch.Tensor) -> Any:
        """A leaf of these values that gets a gradient."""

    @abstractmethod
    def array(self, tensor: Any) -> np.ndarray:
        """The values of a tensor."""

    @abstractmethod
    def gradients(self, output: Any, inputs: list[Any], output_gradient: Any) -> list[Any]:
        """Of `output`, weighted by `output_gradient`, with respect to each of `inputs`."""

    @abstractmethod
    def restore(self, state: Arrays) -> None:
        """Give the model the values of a `state_dict`."""

    def run(self, images: mytorch.Tensor) -> dict[str, _Call]:
        """The model's forward and backward pass, layer by layer in the order of the forward pass."""
        with _recorded(self.layers) as calls:
            loss = self.layers["loss"](self.model(self.leaf(images)))
        parameters = {name: dict(self.layers[name].named_parameters()) for name in calls}
        wanted = [output for _, output in calls.values()] + [p for own in parameters.values() for p in own.values()]
        gradients = iter(self.gradients(loss, wanted, None))
        output_gradients = {name: next(gradients) for name in calls}
        return {name: _Call(input, output_gradients[name], _Result(
                    self.outputs(name, output), {"gradient of its output": self.array(output_gradients[name])},
                    {f"gradient of {parameter}": self.array(next(gradients)) for parameter in parameters[name]}))
                for name, (input, output) in calls.items()}

    def alone(self, name: str, input: mytorch.Tensor, output_gradient: mytorch.Tensor) -> _Result:
        """One layer, given its input and the gradient of its output."""
        layer, leaf = self.layers[name], self.leaf(input)
        output = layer(leaf)
        parameters = dict(layer.named_parameters())
        gradients = map(self.array, self.gradients(output, [leaf, *parameters.values()],
                                                   self.leaf(output_gradient)))
        return _Result(self.outputs(name, output), {"gradient of its input": next(gradients)},
                       {f"gradient of {parameter}": gradient
                        for parameter, gradient in zip(parameters, gradients, strict=True)})

    def outputs(self, name: str, output: Any) -> Arrays:
        """A layer's output, and its running statistics as they are now."""
        buffers = {key: np.array(buffer if isinstance(buffer, np.ndarray) else self.array(buffer))
                   for key, buffer in self.layers[name].named_buffers()}
        return {"output": self.array(output), **buffers}


class _Mytorch(_Side):
    def __init__(self, model: nn.Module, labels: np.ndarray) -> None:
        self.model = model
        self.layers = {**_leaves(model), "loss": CrossEntropy(labels)}

    def leaf(self, tensor):
        return mytorch.Tensor(tensor.cached_data)  # lies as it lay in the run

    def array(self, tensor):
        return tensor.numpy()

    def gradients(self, output, inputs, output_gradient):
        return mytorch.grad(output, inputs, output_gradient)

    def restore(self, state):
        self.model.load_state_dict(state)


class _Pytorch(_Side):
    def __init__(self, model: nn.Module, labels: np.ndarray, dtype: torch.dtype) -> None:
        self.model, self.dtype = twin_of(model).to(dtype), dtype
        self.layers = {name: self.model.get_submodule(name) for name in _leaves(model)}
        self.layers["loss"] = _TorchCrossEntropy(labels)

    def leaf(self, tensor):
        return torch.tensor(tensor.numpy(), dtype=self.dtype, requires_grad=True)

    def array(self, tensor):
        return tensor.detach().numpy()

    def gradients(self, output, inputs, output_gradient):
        return torch.autograd.grad(output, inputs, output_gradient)

    def restore(self, state):
        self.model.load_state_dict({name: torch.from_numpy(value) for name, value in state.items()})


class CrossEntropy(nn.Module):
    """The loss as one more layer: logits (N, classes) -> the mean over the batch."""

    def __init__(self, labels: np.ndarray) -> None:
        self.labels = labels.tolist()  # an array would count as a buffer

    def forward(self, logits: mytorch.Tensor) -> mytorch.Tensor:
        return mytorch.cross_entropy(logits, self.labels)


class _TorchCrossEntropy(torch.nn.Module):
    def __init__(self, labels: np.ndarray) -> None:
        super().__init__()
        self.labels = torch.tensor(labels)

    def forward(self, logits: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(logits, self.labels)


def _leaves(model: nn.Module) -> dict[str, nn.Module]:
    """The modules that have none below them, by name."""
    return {name: module for name, module in model.named_modules() if len(module.modules()) == 1}


@contextlib.contextmanager
def _recorded(layers: Mapping[str, Any]) -> Iterator[dict[str, tuple[Any, Any]]]:
    """Notes each layer's input and output, in the order of the calls; works on modules of both libraries."""
    calls: dict[str, tuple[Any, Any]] = {}

    def recording(name: str, forward: Callable) -> Callable:
        def forward_and_note(input: Any) -> Any:
            if name in calls:
                raise UserError(f"the model calls its layer {name} twice: which call is off cannot be told")
            output = forward(input)
            calls[name] = input, output
            return output
        return forward_and_note

    try:
        for name, layer in layers.items():
            layer.forward = recording(name, layer.forward)  # the instance's, which hides the class's until it is gone
        yield calls
    finally:
        for layer in layers.values():
            vars(layer).pop("forward", None)


def _measure(results: list[_Result], difference: Callable[[_Result, _Result], Difference]) -> Measured:
    ours, torch32, torch64 = results
    return Measured(difference(ours, torch64), difference(torch32, torch64))


def _difference(name: str, array: np.ndarray, references: Arrays, bias: bool = False) -> Difference:
    """The largest difference of `array` from `references[name]`, relative to the largest magnitude of that.

    For a bias relative to the largest of all `references`: before batch-norm its gradient is 0, and PyTorch's nothing
    but rounding. Numbers that are not finite count as no difference where PyTorch has the same.
    """
    reference = references[name]
    if array.shape != reference.shape:
        return Difference(np.inf, f"shape of the {name}")
    with np.errstate(invalid="ignore"):  # inf - inf
        same = (array == reference) | (np.isnan(array) & np.isnan(reference))
        apart = np.where(same, 0.0, np.abs(array - reference)).max(initial=0.0)
    scales = [np.abs(values[np.isfinite(values)]).max(initial=0.0)
              for values in (references.values() if bias else [reference])]
    if apart == 0:
        return Difference(0.0, name)
    with np.errstate(divide="ignore"):
        size = apart / np.float64(max(scales))
    return Difference(float(size) if np.isfinite(size) else np.inf, name)
