"""Modules: what belongs to them and under which names, and layers that are PyTorch's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from against_torch import assert_close, normal

import mytorch
from mytorch import Tensor, TensorDevice, nn

pytestmark = pytest.mark.usefixtures("each_cpu_variant")


class Block(nn.Module):
    """A module with parts of every kind, in PyTorch and in mytorch (its state has the same names and order)."""

    def __init__(self) -> None:
        self.layers = nn.Sequential(nn.Conv2d(1, 2, 3, bias=False), nn.BatchNorm2d(2), nn.Sequential(nn.ReLU()))
        self.offset = nn.Buffer(np.arange(2.0))
        self.scale = nn.Parameter(np.ones(2))
        self.head = nn.Linear(2, 3)
        self.not_saved = "text"

    def forward(self, x: Tensor) -> Tensor:
        x = mytorch.mean(self.layers(x), (2, 3))
        return self.head(x * self.scale + self.offset)


class TorchBlock(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3, bias=False), torch.nn.BatchNorm2d(2),
                                          torch.nn.Sequential(torch.nn.ReLU()))
        self.register_buffer("offset", torch.arange(2.0))
        self.scale = torch.nn.Parameter(torch.ones(2))
        self.head = torch.nn.Linear(2, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(x).mean((2, 3)) * self.scale + self.offset)


# ---- what belongs to a module ----

def test_parameters_and_buffers_have_the_names_and_the_order_of_pytorch():
    ours, theirs = Block(), TorchBlock()
    assert [name for name, _ in ours.named_parameters()] == [name for name, _ in theirs.named_parameters()]
    assert [name for name, _ in ours.named_buffers()] == [name for name, _ in theirs.named_buffers()]
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert [name for name, _ in ours.named_modules()] == [name for name, _ in theirs.named_modules()]
    for name, value in theirs.state_dict().items():
        assert ours.state_dict()[name].shape == tuple(value.shape)
        assert ours.state_dict()[name].dtype == value.numpy().dtype


def test_a_parameter_used_twice_is_counted_once_but_saved_under_both_names():
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    module[1].weight = module[0].weight
    assert len(module.parameters()) == 3 and len(module.state_dict()) == 4


@pytest.mark.parametrize("hidden", [
    [nn.Linear(1, 1)], (nn.BatchNorm2d(1),), {"a": nn.ReLU()}, [1, [nn.Parameter(np.ones(1))]], [nn.Buffer(np.ones(1))],
    {nn.ReLU()}], ids=lambda hidden: type(hidden).__name__)
def test_modules_in_a_python_container_are_refused(hidden):
    module = nn.Module()
    with pytest.raises(TypeError, match="Module.layers is a .* use nn.Sequential"):
        module.layers = hidden


def test_modules_that_a_list_gets_later_are_refused_when_parameters_are_asked_for():
    module = nn.Module()
    module.layers = []
    module.layers.append(nn.Linear(1, 1))
    with pytest.raises(TypeError, match="use nn.Sequential"):
        module.parameters()


def test_training_and_evaluation_reach_every_module():
    block = Block()
    assert all(module.training for module in block.modules())
    assert block.eval() is block and not any(module.training for module in block.modules())
    assert block.train() is block and all(module.training for module in block.modules())


def test_zero_grad_clears_every_gradient():
    block = Block()
    block(Tensor(normal(2, 1, 4, 4))).sum().backward()
    assert all(parameter.grad is not None for parameter in block.parameters())
    block.zero_grad()
    assert all(parameter.grad is None for parameter in block.parameters())


def test_to_device_keeps_the_parameters_the_same_objects():
    block = Block()
    before = block.parameters()
    assert block.to_device(TensorDevice.CPU) is block
    assert all(new is old for new, old in zip(block.parameters(), before, strict=True))
    assert all(parameter.device == TensorDevice.CPU for parameter in before)


def test_a_sequence_is_iterable_and_indexed():
    first, second = nn.ReLU(), nn.Tanh()
    sequence = nn.Sequential(first, second)
    assert list(sequence) == [first, second] and sequence[-1] is second and len(sequence) == 2
    np.testing.assert_allclose(sequence(Tensor([-1.0, 2.0])).numpy(), np.tanh([0, 2]), rtol=1e-6)


def test_a_module_without_forward_says_so():
    with pytest.raises(TypeError, match="Module defines no forward"):
        nn.Module()(1)


# ---- saving and loading ----

def trained_pair() -> tuple[Block, TorchBlock]:
    """Both from the weights of PyTorch, after five batches in training mode."""
    torch.manual_seed(0)
    ours, theirs = Block(), TorchBlock()
    ours.load_state_dict(theirs.state_dict())
    for step in range(5):
        images = normal(4, 1, 6, 6, seed=step) * (step + 1)
        assert_close(ours(Tensor(images)).numpy(), theirs(torch.tensor(images)).detach().numpy(), "output in training")
    return ours, theirs


def test_batch_statistics_and_their_count_are_those_of_pytorch_and_are_used_in_evaluation():
    ours, theirs = trained_pair()
    for name, value in theirs.state_dict().items():
        assert_close(ours.state_dict()[name], value.numpy(), name)
    assert ours.state_dict()["layers.1.num_batches_tracked"] == 5
    images = normal(3, 1, 6, 6, seed=9)
    before = ours.state_dict()
    our_output, their_output = ours.eval()(Tensor(images)), theirs.eval()(torch.tensor(images))
    assert_close(our_output.numpy(), their_output.detach().numpy(), "evaluation")
    assert all(np.array_equal(value, before[name]) for name, value in ours.state_dict().items())


def test_states_travel_to_pytorch_and_back():
    ours, _ = trained_pair()
    theirs, again = TorchBlock(), Block()
    theirs.load_state_dict({name: torch.from_numpy(value) for name, value in ours.state_dict().items()}, strict=True)
    again.load_state_dict(theirs.state_dict())
    for name, value in ours.state_dict().items():
        assert np.array_equal(again.state_dict()[name], value), name


def test_a_state_is_a_copy():
    layer = nn.BatchNorm2d(1)
    state = layer.state_dict()
    layer(Tensor(normal(2, 1, 2, 2)))
    assert state["running_mean"] == 0 and state["num_batches_tracked"] == 0
    layer.load_state_dict(state)
    state["running_mean"][:] = 9
    state["num_batches_tracked"][...] = 9
    assert layer.running_mean.numpy() == 0 and layer.num_batches_tracked == 0


@pytest.mark.parametrize("name, value", [
    ("head.bias", np.ones(1)), ("head.bias", np.ones((3, 1))), ("layers.1.num_batches_tracked", np.ones(5, np.int64)),
    ("layers.0.weight", np.ones((1, 1, 3, 3))), ("scale", np.ones(2, complex)), ("scale", np.array(["a", "b"]))])
def test_a_value_that_does_not_fit_is_refused_and_nothing_changes(name, value):
    block = Block()
    before = block.state_dict()
    state = {key: array + 1 for key, array in before.items()} | {name: value}
    with pytest.raises((ValueError, TypeError)) as error:
        block.load_state_dict(state)
    if value.shape != before[name].shape:
        assert all(text in str(error.value) for text in (name, str(value.shape), str(before[name].shape)))
    assert all(np.array_equal(array, before[key]) for key, array in block.state_dict().items())


def test_missing_and_unknown_names_are_named():
    state = Block().state_dict()
    state["module.scale"] = state.pop("scale")
    with pytest.raises(ValueError, match=r"missing are \['scale'\], unknown \['module.scale'\]"):
        Block().load_state_dict(state)


# ---- layers ----

LAYERS = {
    "linear": (lambda m: m.Linear(5, 3), (4, 5)),
    "linear without bias": (lambda m: m.Linear(5, 3, bias=False), (4, 5)),
    "convolution": (lambda m: m.Conv2d(3, 4, 3), (2, 3, 6, 7)),
    "convolution of any window": (lambda m: m.Conv2d(3, 4, (3, 2), (2, 1), (1, 0), bias=False), (2, 3, 6, 7)),
    "batch-norm": (lambda m: m.BatchNorm2d(3, 1e-3, 0.3), (2, 3, 4, 5)),
    "max-pool": (lambda m: m.MaxPool2d(2), (2, 3, 6, 7)),
    "overlapping max-pool": (lambda m: m.MaxPool2d(3, 2, 1), (2, 3, 6, 7)),
    "average-pool": (lambda m: m.AvgPool2d(3, 2, 1), (2, 3, 6, 7)),
    "mean of a channel": (lambda m: m.AdaptiveAvgPool2d(1), (2, 3, 6, 7)),
    "flatten": (lambda m: m.Flatten(), (2, 3, 6, 7)),
    "relu": (lambda m: m.ReLU(), (2, 3)),
    "sigmoid": (lambda m: m.Sigmoid(), (2, 3)),
    "tanh": (lambda m: m.Tanh(), (2, 3)),
    "dropout of none": (lambda m: m.Dropout(0.0), (2, 3)),
}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_is_the_one_of_pytorch(name, training):
    make, shape = LAYERS[name]
    ours, theirs = make(nn).train(training), make(torch.nn).double().train(training)
    theirs.load_state_dict({key: torch.from_numpy(value) for key, value in ours.state_dict().items()})
    our_input, their_input = Tensor(normal(*shape)), torch.tensor(normal(*shape).astype(np.float64), requires_grad=True)
    our_output, their_output = ours(our_input), theirs(their_input)
    assert_close(our_output.numpy(), their_output.detach().numpy(), "output", 2e-5)
    weight = normal(*our_output.shape, seed=1)
    our_output.backward(Tensor(weight))
    their_output.backward(torch.tensor(weight.astype(np.float64)))
    assert_close(our_input.grad.numpy(), their_input.grad.numpy(), "gradient of the input", 2e-5)
    for (key, our), their in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        assert_close(our.grad.numpy(), their.grad.numpy(), f"gradient of {key}", 2e-5)
    for key, value in theirs.state_dict().items():
        assert_close(ours.state_dict()[key], value.numpy(), key)


def test_dropout_acts_in_training_alone():
    layer, x = nn.Dropout(0.5), Tensor(np.ones((20, 20)))
    assert set(np.unique(layer(x).numpy())) == {0, 2}
    assert layer.eval()(x) is x


# ---- initial values ----

@pytest.mark.parametrize("make", [lambda m: m.Linear(50, 400), lambda m: m.Conv2d(8, 400, (2, 3))])
def test_initial_values_are_spread_as_those_of_pytorch(make):
    mytorch.manual_seed(0)
    torch.manual_seed(0)
    ours, theirs = make(nn).state_dict(), make(torch.nn).state_dict()
    for name, value in theirs.items():
        bound = value.abs().max().item()
        assert np.abs(ours[name]).max() == pytest.approx(bound, rel=0.02)
        assert ours[name].std() == pytest.approx(bound / 3**0.5, rel=0.1) and abs(ours[name].mean()) < bound / 10


def test_initial_values_follow_from_the_seed():
    def drawn(seed: int) -> np.ndarray:
        mytorch.manual_seed(seed)
        return nn.Linear(3, 3).weight.numpy()
    assert np.array_equal(drawn(1), drawn(1)) and not np.array_equal(drawn(1), drawn(2))
    first = drawn(1)
    state = mytorch.get_rng_state()
    second = nn.Linear(3, 3).weight.numpy()
    assert not np.array_equal(first, second)
    mytorch.set_rng_state(state)
    assert np.array_equal(nn.Linear(3, 3).weight.numpy(), second)
