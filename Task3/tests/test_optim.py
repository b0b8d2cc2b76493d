"""Optimizers take PyTorch's steps, leave gradients alone, and go on from a saved state as if never interrupted."""

from __future__ import annotations

import gc

import mytensor
import numpy as np
import pytest
import torch
from against_torch import normal

import mytorch
from mytorch import Tensor, nn, optim

pytestmark = pytest.mark.usefixtures("each_cpu_variant")

SHAPES = [(3, 4), (5,), ()]
CASES = [
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.8, "weight_decay": 0.1, "nesterov": True}),
    ("SGD", {"lr": 0.1, "weight_decay": 0.1}),
    ("Adam", {}),
    ("Adam", {"lr": 0.05, "betas": (0.8, 0.95), "eps": 1e-4, "weight_decay": 0.1}),
    ("AdamW", {}),
    ("AdamW", {"lr": 0.05, "betas": (0.8, 0.95), "weight_decay": 0.3}),
]


class Pair:
    """The same parameters under our optimizer and, in float64, under PyTorch's."""

    def __init__(self, name: str, options: dict) -> None:
        values = [normal(*shape, seed=index) for index, shape in enumerate(SHAPES)]
        self.ours = [Tensor(value) for value in values]
        self.theirs = [torch.tensor(value.astype(np.float64), requires_grad=True) for value in values]
        self.optimizer = getattr(optim, name)(self.ours, **options)
        self.reference = getattr(torch.optim, name)(self.theirs, **options)

    def step(self, number: int, without: int | None = None) -> None:
        """One step with gradients of this number; parameter `without` gets none."""
        for index, (our, their) in enumerate(zip(self.ours, self.theirs, strict=True)):
            gradient = normal(*our.shape, seed=100 * number + index)
            our.grad = None if index == without else Tensor(gradient, requires_grad=False)
            their.grad = None if index == without else torch.tensor(gradient.astype(np.float64))
        self.optimizer.step()
        self.reference.step()

    def check(self) -> None:
        for our, their in zip(self.ours, self.theirs, strict=True):
            np.testing.assert_allclose(our.numpy(), their.detach().numpy(), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("name, options", CASES)
def test_fifty_steps_are_those_of_pytorch(name, options):
    pair = Pair(name, options)
    for number in range(50):
        rate = options.get("lr", 1e-3) * (1 - number / 60)
        pair.optimizer.param_groups[0]["lr"] = pair.reference.param_groups[0]["lr"] = rate
        pair.step(number, without=1 if number in (0, 7, 8) else None)
        pair.check()


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW"])
def test_a_step_leaves_the_gradients_and_a_second_one_uses_them_again(name):
    pair = Pair(name, {"lr": 0.1, "weight_decay": 0.1})
    pair.step(0)
    for index, parameter in enumerate(pair.ours):
        assert np.array_equal(parameter.grad.numpy(), normal(*parameter.shape, seed=index))
    pair.optimizer.step()
    pair.reference.step()
    pair.check()


def test_a_parameter_without_gradient_stays_and_has_no_state():
    pair = Pair("Adam", {"weight_decay": 0.1})
    before = pair.ours[1].numpy()
    pair.step(0, without=1)
    assert np.array_equal(pair.ours[1].numpy(), before) and pair.ours[1] not in pair.optimizer.state


def test_groups_have_options_of_their_own():
    values = [normal(3), normal(3, seed=1)]
    ours, theirs = [Tensor(value) for value in values], [torch.tensor(value, requires_grad=True) for value in values]
    our_optimizer, their_optimizer = (
        module.SGD([{"params": [first]}, {"params": [second], "weight_decay": 0.5, "lr": 0.2}], lr=0.1, momentum=0.9)
        for module, (first, second) in ((optim, ours), (torch.optim, theirs)))
    for _ in range(3):
        for our, their in zip(ours, theirs, strict=True):
            our.grad, their.grad = Tensor(np.ones(3)), torch.ones(3)
        our_optimizer.step()
        their_optimizer.step()
    for our, their in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(our.numpy(), their.detach().numpy(), rtol=1e-6)


def test_one_call_updates_all_parameters(monkeypatch):
    calls = []
    sgd_step = mytensor.nn.sgd_step
    monkeypatch.setattr(mytensor.nn, "sgd_step", lambda *arguments: (calls.append(len(arguments[0])),
                                                                     sgd_step(*arguments)))
    Pair("SGD", {"lr": 0.1, "momentum": 0.9}).step(0)
    assert calls == [3]


@pytest.mark.parametrize("name, options", CASES)
def test_a_restored_optimizer_goes_on_to_the_last_bit(name, options):
    whole, first, second = Pair(name, options), Pair(name, options), Pair(name, {**options, "lr": 7})
    for number in range(6):
        whole.step(number, without=2 if number < 3 else None)
    for number in range(4):
        first.step(number, without=2 if number < 3 else None)
    state = first.optimizer.state_dict()
    for target, source in zip(second.ours, first.ours, strict=True):
        target.cached_data.copy_(source.cached_data)
    first.step(99)  # the state is a copy: this changes nothing in it
    second.optimizer.load_state_dict(state)
    for number in (4, 5):
        second.step(number)
    for ours, theirs in zip(second.ours, whole.ours, strict=True):
        assert np.array_equal(ours.numpy(), theirs.numpy())


def test_a_state_is_of_plain_values_laid_out_as_in_pytorch():
    pair = Pair("Adam", {})
    pair.step(0)
    ours, theirs = pair.optimizer.state_dict(), pair.reference.state_dict()
    assert ours["state"].keys() == theirs["state"].keys() and ours["param_groups"][0]["params"] == [0, 1, 2]
    for number, values in ours["state"].items():
        assert values.keys() == theirs["state"][number].keys()
        for name, value in values.items():
            np.testing.assert_allclose(value, theirs["state"][number][name].numpy(), rtol=1e-5, atol=1e-9)
    assert ours["param_groups"][0].items() <= theirs["param_groups"][0].items()


def test_a_state_that_does_not_fit_is_refused_and_nothing_changes():
    pair, other = Pair("SGD", {"lr": 0.1, "momentum": 0.9}), optim.SGD([Tensor(normal(3))], lr=0.5)
    pair.step(0)
    state = pair.optimizer.state_dict()
    with pytest.raises(ValueError, match="another number of groups or parameters"):
        other.load_state_dict(state)
    with pytest.raises(ValueError, match=r"parameter 0 holds \['momentum_buffer'\], Adam has"):
        Pair("Adam", {}).optimizer.load_state_dict(state)
    state["state"][0]["momentum_buffer"] = np.ones((4, 3))
    state["param_groups"][0]["lr"] = 7
    with pytest.raises(ValueError, match=r"momentum_buffer of parameter 0 has shape \(4, 3\).*\(3, 4\)"):
        pair.optimizer.load_state_dict(state)
    assert pair.optimizer.param_groups[0]["lr"] == 0.1
    pair.step(1)
    pair.check()


def test_zero_grad_clears_gradients():
    pair = Pair("SGD", {})
    pair.step(0)
    pair.optimizer.zero_grad()
    assert all(parameter.grad is None for parameter in pair.ours)


@pytest.mark.parametrize("make, error, text", [
    (lambda p: optim.SGD([]), ValueError, "no parameters"),
    (lambda p: optim.SGD([p, p]), ValueError, "twice"),
    (lambda p: optim.SGD([p * 2]), TypeError, "leaves"),
    (lambda p: optim.SGD([np.ones(3)]), TypeError, "leaves"),
    (lambda p: optim.SGD([p], lr=-1), ValueError, "lr is at least 0, got -1"),
    (lambda p: optim.SGD([p], lr=float("nan")), ValueError, "lr"),
    (lambda p: optim.SGD([p], momentum=-0.1), ValueError, "momentum"),
    (lambda p: optim.SGD([p], nesterov=True), ValueError, "nesterov"),
    (lambda p: optim.SGD([{"params": [p], "weight_decay": -1}]), ValueError, "weight_decay"),
    (lambda p: optim.Adam([p], betas=(0.9, 1.0)), ValueError, "betas"),
    (lambda p: optim.AdamW([p], eps=-1), ValueError, "AdamW.*eps"),
])
def test_wrong_arguments_are_refused(make, error, text):
    with pytest.raises(error, match=text):
        make(Tensor(normal(3)))


def test_an_optimizer_gives_its_memory_back():
    gc.disable()
    try:
        before = mytensor.live_tensors()
        model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
        optimizer = optim.Adam(model.parameters())
        for _ in range(3):
            optimizer.zero_grad()
            model(Tensor(normal(2, 3))).sum().backward()
            optimizer.step()
            assert mytensor.live_tensors() == before + 4 * 4  # weight, gradient and two moments of each parameter
        del model, optimizer
        assert mytensor.live_tensors() == before
    finally:
        gc.enable()


@pytest.mark.parametrize("kind", [mytorch.optim.SGD, mytorch.optim.Adam])
def test_a_parameter_that_a_convolution_left_is_updated_as_any_other(kind):
    """In whatever order of memory it lies: its gradient and its state are of the same elements."""
    array = np.random.default_rng(0).standard_normal((2, 3, 4, 4)).astype(np.float32)
    one = mytorch.Tensor(np.eye(3, dtype=np.float32).reshape(3, 3, 1, 1))
    left = mytorch.conv2d(mytorch.Tensor(array), one, None).cached_data  # channels-last
    parameters = [mytorch.Tensor(array), mytorch.Tensor(left)]
    optimizers = [kind([parameter], 0.1, **({"momentum": 0.9} if kind is mytorch.optim.SGD else {}))
                  for parameter in parameters]
    for step in range(3):
        for parameter, optimizer in zip(parameters, optimizers, strict=True):
            parameter.grad = mytorch.Tensor(np.arange(96, dtype=np.float32).reshape(array.shape) - 40 + step)
            optimizer.step()
    assert np.array_equal(*(parameter.numpy() for parameter in parameters))
    states = [optimizer.state_dict()["state"][0] for optimizer in optimizers]
    assert all(np.array_equal(states[0][name], states[1][name]) for name in states[0])
