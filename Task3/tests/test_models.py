"""The networks are PyTorch's of the same layers: names, numbers, logits and training, step for step."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from against_torch import assert_close, normal
from torch import nn

import mytorch
from models import MODELS, get_model
from mytorch import Tensor
from utils import UserError


class Twin(nn.Module):
    """A network in PyTorch, as Task1 builds them: features and a classifier."""

    def __init__(self, features: list[nn.Module], classifier: list[nn.Module]) -> None:
        super().__init__()
        self.features, self.classifier = nn.Sequential(*features), nn.Sequential(*classifier)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.features(images))


def conv(channels: int, width: int, norm: bool) -> list[nn.Module]:
    return [nn.Conv2d(channels, width, 3, padding=1), *([nn.BatchNorm2d(width)] if norm else []), nn.ReLU()]


def twin(name: str, channels: int = 3, dropout: float = 0.5) -> Twin:
    if name == "lenet":
        return Twin([nn.Conv2d(channels, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(),
                     nn.MaxPool2d(2)],
                    [nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)])
    norm = name == "minivgg-bn"
    features = []
    for before, width in ((channels, 64), (64, 128), (128, 256)):
        features += [*conv(before, width, norm), *conv(width, width, norm), nn.MaxPool2d(2)]
    if norm:
        return Twin(features, [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(dropout), nn.Linear(256, 10)])
    return Twin([*features, nn.MaxPool2d(4)], [nn.Flatten(), nn.Linear(256, 10)])


def pair(name: str, seed: int = 0, dropout: float = 0.5) -> tuple[mytorch.nn.Module, Twin]:
    """Ours and PyTorch's, with the same initial values."""
    torch.manual_seed(seed)
    ours, theirs = get_model(name, dropout=dropout), twin(name, dropout=dropout)
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def batch(number: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Pictures that are noise around a pattern of their class."""
    labels = np.random.default_rng(number).integers(0, 10, size)
    return normal(size, 3, 32, 32, seed=number) + normal(10, 3, 32, 32, seed=1_000)[labels], labels


@pytest.mark.parametrize("name, tensors, numbers", [("lenet", 10, 62_006), ("minivgg", 14, 1_147_978),
                                                    ("minivgg-bn", 26, 1_149_770)])
def test_parameter_counts_on_cifar10(name, tensors, numbers):
    parameters = get_model(name).parameters()
    assert len(parameters) == tensors and sum(parameter.numpy().size for parameter in parameters) == numbers


@pytest.mark.parametrize("name", MODELS)
def test_states_load_in_pytorch_and_back(name):
    ours, theirs = get_model(name), twin(name)
    state = ours.state_dict()
    assert list(state) == list(theirs.state_dict())
    theirs.load_state_dict({key: torch.from_numpy(value) for key, value in state.items()}, strict=True)
    other = get_model(name)
    other.load_state_dict(theirs.state_dict())
    assert all(np.array_equal(value, state[key]) for key, value in other.state_dict().items())


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_pytorch(name):
    ours, theirs = pair(name)
    images, _ = batch(0, 4)
    with torch.no_grad(), mytorch.no_grad():
        assert_close(ours.eval()(Tensor(images)).numpy(), theirs.eval()(torch.tensor(images)).numpy(), "logits", 1e-4)


def relative_drift(name: str, optimizer: str, options: dict, steps: int, size: int, seed: int) -> float:
    """The largest relative difference of our losses in a run from those of PyTorch in float64."""
    ours, theirs = pair(name, seed, dropout=0.0)
    theirs.double()
    our_optimizer = getattr(mytorch.optim, optimizer)(ours.parameters(), **options)
    their_optimizer = getattr(torch.optim, optimizer)(theirs.parameters(), **options)
    drift = 0.0
    for step in range(steps):
        images, labels = batch(step, size)
        our_optimizer.zero_grad()
        our_loss = mytorch.cross_entropy(ours(Tensor(images, requires_grad=False)), labels)
        our_loss.backward()
        our_optimizer.step()
        their_optimizer.zero_grad()
        their_loss = nn.functional.cross_entropy(theirs(torch.tensor(images).double()), torch.tensor(labels))
        their_loss.backward()
        their_optimizer.step()
        drift = max(drift, abs(our_loss.item() / their_loss.item() - 1))
    return drift


OPTIMIZERS = [("SGD", {"lr": 0.01, "momentum": 0.9, "weight_decay": 5e-4}), ("Adam", {"lr": 2e-4})]


@pytest.mark.usefixtures("each_cpu_variant")
@pytest.mark.parametrize("optimizer, options", OPTIMIZERS)
def test_lenet_trains_as_in_pytorch_for_fifty_steps(optimizer, options):
    # Where two values of a pooling window are equal but for rounding, or one before a ReLU is nearly 0, a gradient may
    # go another way, and the run with it. PyTorch's float32 does so too: with Adam at 1e-3 its losses were 4e-2, 2e-4
    # and 5e-7 off its float64 for these seeds. At the rates here it seldom happens, and not in two runs of three.
    drifts = [relative_drift("lenet", optimizer, options, steps=50, size=16, seed=seed) for seed in range(3)]
    assert np.median(drifts) < 1e-4, drifts


@pytest.mark.parametrize("optimizer, options", OPTIMIZERS)
@pytest.mark.parametrize("name", ["minivgg", "minivgg-bn"])
def test_minivgg_trains_as_in_pytorch_for_three_steps(name, optimizer, options):
    assert relative_drift(name, optimizer, options, steps=3, size=4, seed=0) < 1e-3


SMALLEST = {"lenet": 16, "minivgg": 8, "minivgg-bn": 8}


@pytest.mark.parametrize("name", MODELS)
def test_the_smallest_picture_trains_alone_and_a_smaller_one_is_refused(name):
    size = SMALLEST[name]
    model = get_model(name, num_classes=7, in_channels=1, image_size=size)
    loss = mytorch.cross_entropy(model(Tensor(normal(1, 1, size, size))), [6])
    loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    with pytest.raises(UserError, match=f"{name} .*{size - 1}x{size - 1}.* --image-size {size}"):
        get_model(name, image_size=size - 1)


@pytest.mark.parametrize("name", MODELS)
def test_odd_sizes_are_taken(name):
    size = SMALLEST[name] + 13
    assert get_model(name, image_size=size)(Tensor(normal(2, 3, size, size))).shape == (2, 10)


def test_an_unknown_network_and_no_channels_are_refused():
    with pytest.raises(UserError, match="'vgg'.*lenet, minivgg"):
        get_model("vgg")
    with pytest.raises(UserError, match="lenet .* 0 channels"):
        get_model("lenet", in_channels=0)


def test_dropout_reaches_the_classifier():
    model = get_model("minivgg-bn", dropout=0.2)
    assert [m.p for m in model.modules() if isinstance(m, mytorch.nn.Dropout)] == [0.2]
