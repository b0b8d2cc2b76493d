"""The network of PyTorch that has the same layers as one of ours, which ours can be compared with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from mytorch import nn
from utils import UserError

# Our layer -> PyTorch's of the same sizes and options.
TRANSLATIONS: dict[type[nn.Module], Callable[[Any], torch.nn.Module]] = {
    nn.AdaptiveAvgPool2d: lambda layer: torch.nn.AdaptiveAvgPool2d(layer.output_size),
    nn.AvgPool2d: lambda layer: torch.nn.AvgPool2d(layer.kernel_size, layer.stride, layer.padding),
    nn.BatchNorm2d: lambda layer: torch.nn.BatchNorm2d(layer.weight.shape[0], layer.eps, layer.momentum),
    nn.Conv2d: lambda layer: torch.nn.Conv2d(layer.weight.shape[1], layer.weight.shape[0], layer.weight.shape[2:],
                                             layer.stride, layer.padding, bias=layer.bias is not None),
    nn.Dropout: lambda layer: torch.nn.Dropout(layer.p),
    nn.Flatten: lambda layer: torch.nn.Flatten(layer.start_dim, layer.end_dim),
    nn.Linear: lambda layer: torch.nn.Linear(layer.weight.shape[1], layer.weight.shape[0], layer.bias is not None),
    nn.MaxPool2d: lambda layer: torch.nn.MaxPool2d(layer.kernel_size, layer.stride, layer.padding),
    nn.ReLU: lambda layer: torch.nn.ReLU(),
    nn.Sequential: lambda layer: torch.nn.Sequential(*map(_translate, layer)),
    nn.Sigmoid: lambda layer: torch.nn.Sigmoid(),
    nn.Tanh: lambda layer: torch.nn.Tanh(),
}


def twin_of(module: nn.Module) -> torch.nn.Module:
    """PyTorch's network of the same layers, with the same names, values (float32) and mode.

    A layer is translated by `TRANSLATIONS`; a module that is made of layers alone keeps its `forward`, which the twin
    calls with PyTorch's tensors. Raises UserError for any other module.
    """
    twin = _translate(module)
    twin.load_state_dict({name: torch.from_numpy(value) for name, value in module.state_dict().items()})
    for (_, ours), (_, theirs) in zip(module.named_modules(), twin.named_modules(), strict=True):
        theirs.training = ours.training
    return twin


class _Composition(torch.nn.Module):
    """What a module made of layers is in PyTorch: their twins under the same names, and the same way through them."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.kind = type(module)
        for name, value in vars(module).items():
            setattr(self, name, _translate(value) if isinstance(value, nn.Module) else value)

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        try:
            return self.kind.forward(self, *inputs)
        except (AttributeError, TypeError) as error:
            raise UserError(f"{self.kind.__name__}.forward cannot take PyTorch's tensors ({error}); to be comparable "
                            "it calls layers of mytorch.nn and uses operators such as +, not functions of mytorch"
                            ) from None


def _translate(module: nn.Module) -> torch.nn.Module:
    kind = type(module)  # not isinstance: a class derived from a layer may compute something else
    if kind in TRANSLATIONS:
        return TRANSLATIONS[kind](module)
    parts = vars(module).values()
    if any(isinstance(part, nn.Module) for part in parts) and not any(isinstance(part, (nn.Parameter, nn.Buffer))
                                                                      for part in parts):
        return _Composition(module)
    raise UserError(f"what {kind.__name__} is in PyTorch is not known: add it to TRANSLATIONS in twin.py")
