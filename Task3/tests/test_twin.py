"""The translation to PyTorch: every layer becomes the one of the same sizes and options, with its values and mode."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from against_torch import assert_close, normal
from test_nn import LAYERS

from models import Classifier
from mytorch import Tensor, nn
from twin import TRANSLATIONS, twin_of
from utils import UserError


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_becomes_the_one_that_pytorch_builds_with_the_same_arguments(name):
    make, _ = LAYERS[name]
    ours = make(nn)
    theirs = twin_of(ours)
    assert str(theirs) == str(make(torch.nn))  # what PyTorch prints of a layer are its sizes and options
    assert all(np.array_equal(theirs.state_dict()[key], value) for key, value in ours.state_dict().items())


def test_every_layer_of_mytorch_is_translated():
    layers = [getattr(nn, name) for name in nn.__all__ if name not in ("Buffer", "Module", "Parameter")]
    assert set(TRANSLATIONS) == set(layers)
    tried = {type(layer) for make, _ in LAYERS.values() for layer in make(nn).modules()}
    assert tried | {nn.Sequential} == set(layers)


class Residual(nn.Module):
    """A module with a way of its own through its layers."""

    def __init__(self) -> None:
        self.scale = 0.5
        self.layers = nn.Sequential(nn.Conv2d(2, 2, 3, padding=1), nn.BatchNorm2d(2))
        self.rest = nn.Sequential(nn.ReLU())

    def forward(self, x):
        return self.rest(x + self.layers(x) * self.scale)


def test_a_module_made_of_layers_keeps_its_names_its_values_its_mode_and_its_way_through_them():
    ours = nn.Sequential(Residual(), nn.Flatten())
    ours[0].layers.eval()
    theirs = twin_of(ours)
    assert list(theirs.state_dict()) == list(ours.state_dict())
    assert [module.training for module in theirs.modules()] == [module.training for module in ours.modules()]
    images = normal(2, 2, 5, 5)
    assert_close(ours(Tensor(images)).numpy(), theirs(torch.tensor(images)).detach().numpy(), "output")


class Swish(nn.Module):
    def forward(self, x):
        return x


class Scaled(nn.Module):
    def __init__(self) -> None:
        self.layer, self.scale = nn.ReLU(), nn.Parameter(np.ones(1))

    def forward(self, x):
        return self.layer(x) * self.scale


class Steep(nn.ReLU):
    def forward(self, x):
        return super().forward(x) * 2


@pytest.mark.parametrize("kind", [Swish, Scaled, Steep])
def test_what_cannot_be_translated_is_named(kind):
    with pytest.raises(UserError, match=f"what {kind.__name__} is in PyTorch is not known"):
        twin_of(Classifier(nn.Sequential(nn.ReLU(), kind()), nn.Sequential()))


def test_a_forward_that_takes_our_tensors_alone_is_named():
    class Numbers(Swish):
        def __init__(self) -> None:
            self.layer = nn.ReLU()

        def forward(self, x):
            return Tensor(x.numpy() + self.layer(x).cached_data)

    with pytest.raises(UserError, match=r"Numbers.forward cannot take PyTorch's tensors \(.*cached_data"):
        twin_of(Numbers())(torch.ones(1))
