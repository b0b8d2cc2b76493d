"""The finder of the first difference: silent on right code, and exact when one operator of one layer is wrong."""

from __future__ import annotations

import os
import subprocess
import sys

import mytensor
import numpy as np
import pytest
import torch
from conftest import FOLDER

import first_difference
import mytorch
from layer_comparison import compare_layers
from models import MODELS, get_model
from mytorch import nn
from mytorch.ops.convolution import Conv2d, Conv2dBackprop
from mytorch.ops.elementwise import ReLU
from mytorch.ops.linear import Linear, LinearBackprop
from mytorch.ops.loss import CrossEntropy, CrossEntropyBackprop
from mytorch.ops.normalization import BatchNorm2d, BatchNorm2dBackprop
from mytorch.ops.pooling import MaxPool2d, MaxPool2dBackprop
from mytorch.ops.reductions import Mean
from utils import UserError


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    """Exit status, standard output and standard error of the command, on two pictures."""
    status = first_difference.main(["--batch-size", "2", *arguments])
    return status, *capsys.readouterr()


def over(output: str) -> list[str]:
    """Names of the layers that a table marks."""
    return [line.split()[0] for line in output.splitlines() if line.endswith("<- over")]


# ---- right code ----

@pytest.mark.parametrize("mode", [[], ["--eval"]], ids=["training", "evaluation"])
@pytest.mark.parametrize("name", MODELS)
def test_nothing_is_found_in_right_code(capsys, name, mode):
    status, output, errors = run(capsys, "--model", name, *mode)
    layers = [key for key, module in get_model(name).named_modules() if len(module.modules()) == 1]
    assert [line.split()[0] for line in output.splitlines()[5:-3]] == [*layers, "loss"]
    assert (status, over(output), errors) == (0, [], "")
    assert output.endswith("no layer is over the tolerance of 0.0001\n")


def batch(size: int = 2) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    return random.standard_normal((size, 3, 32, 32)).astype(np.float32), random.integers(0, 10, size)


def test_the_numbers_are_those_of_rounding():
    """Not 0, which would mean that something was compared with itself, and as small as PyTorch's own."""
    layers = compare_layers(get_model("minivgg-bn", dropout=0.0), *batch())
    for layer in layers:
        if layer.kind in ("Conv2d", "BatchNorm2d", "Linear"):
            for measured in layer[2:]:
                assert 1e-9 < measured.ours.size < 2e-5 and 1e-9 < measured.torch32.size < 2e-5, layer


def test_the_model_is_left_as_it_was():
    model = get_model("minivgg-bn", dropout=0.0)
    before = model.state_dict()
    compare_layers(model, *batch())
    assert all(np.array_equal(value, before[key]) for key, value in model.state_dict().items())
    assert all("forward" not in vars(module) for module in model.modules())


# ---- operators that are wrong in one place ----

def scaled(part: int, factor: float):
    """The same results, one of them times `factor`."""
    return lambda results: tuple(mytensor.mul(result, mytensor.full((), factor)) if index == part else result
                                 for index, result in enumerate(results))


def last_maximum(compute):
    """Max-pooling's gradient sent to the last of several maxima: seen from behind, the last is the first."""
    def backward(array):
        return mytensor.Tensor.from_numpy(array.numpy()[:, :, ::-1, ::-1])
    return lambda self, x, out_grad: backward(compute(self, backward(x), backward(out_grad)))


def with_eps(eps: float):
    def change(compute):
        def computed(self, *arrays):
            right, self.eps = self.eps, eps
            try:
                return compute(self, *arrays)
            finally:
                self.eps = right
        return computed
    return change


def unmoved_statistics(compute):
    """Batch-norm that leaves its running variance as it was."""
    def computed(self, *arrays):
        before = mytensor.Tensor.from_numpy(self.running_var.numpy())
        results = compute(self, *arrays)
        self.running_var.copy_(before)
        return results
    return computed


def changed(change):
    return lambda compute: lambda self, *arrays: change(compute(self, *arrays))


def times(factor: float):
    return changed(lambda result: mytensor.mul(result, mytensor.full((), factor)))


# What is wrong: the model, an operator, the change, the shape that one of its arrays has in that layer alone, and the
# layer and the array that are to be named.
FAULTS = {
    "weight gradient of a convolution": ("lenet", Conv2dBackprop, changed(scaled(1, 1.001)), (16, 6, 5, 5),
                                         "features.3", "gradient of weight"),
    "bias gradient of a convolution": ("lenet", Conv2dBackprop, changed(scaled(2, 0.0)), (16, 6, 5, 5),
                                       "features.3", "gradient of bias"),
    "input gradient of a convolution": ("minivgg", Conv2dBackprop, changed(scaled(0, 1.001)), (128, 64, 3, 3),
                                        "features.5", "gradient of its input"),
    "convolution": ("lenet", Conv2d, times(1.001), (6, 3, 5, 5), "features.0", "output"),
    "linear layer": ("lenet", Linear, times(1.001), (84, 120), "classifier.3", "output"),
    "weight gradient of a linear layer": ("minivgg", LinearBackprop, changed(scaled(1, 1.001)), (10, 256),
                                          "classifier.1", "gradient of weight"),
    "max-pooling": ("lenet", MaxPool2d, times(0.999), (2, 6, 28, 28), "features.2", "output"),
    "ties of max-pooling": ("lenet", MaxPool2dBackprop, last_maximum, (2, 16, 10, 10), "features.5",
                            "gradient of its input"),
    "eps of batch-norm": ("minivgg-bn", BatchNorm2d, with_eps(1e-3), (2, 128, 16, 16), "features.8", "output"),
    "running variance of batch-norm": ("minivgg-bn", BatchNorm2d, unmoved_statistics, (2, 64, 32, 32), "features.1",
                                       "running_var"),
    "input gradient of batch-norm": ("minivgg-bn", BatchNorm2dBackprop, changed(scaled(0, 1.001)), (2, 256, 8, 8),
                                     "features.15", "gradient of its input"),
    "relu": ("lenet", ReLU, times(1.001), (2, 84), "classifier.4", "output"),
    "mean of a channel": ("minivgg-bn", Mean, times(1.001), (2, 256, 4, 4), "classifier.0", "output"),
    "loss": ("lenet", CrossEntropy, times(1.001), (2, 10), "loss", "output"),
    "gradient of the loss": ("lenet", CrossEntropyBackprop, times(1.001), (2, 10), "loss", "gradient of its input"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_operator_is_found_where_it_is_wrong_and_nowhere_else(capsys, monkeypatch, fault):
    model, operator, change, shape, layer, array = FAULTS[fault]
    right = operator.compute
    wrong = change(right)
    monkeypatch.setattr(operator, "compute", lambda self, *arrays, **more: (
        wrong if any(a is not None and a.shape() == shape for a in arrays) else right)(self, *arrays, **more))
    status, output, _ = run(capsys, "--model", model)
    marked = over(output)
    # MiniVGG-BN has two batch-norms, and two sums, of each shape.
    assert status == 1 and marked[0] == layer and len(marked) <= (2 if operator.__name__.startswith("Batch") else 1)
    assert f"\nthe first layer over the tolerance of 0.0001 is {layer} (" in output and f"alone, its {array} " in output


def test_nan_is_a_difference(capsys, monkeypatch):
    monkeypatch.setattr(ReLU, "compute", lambda self, x: mytensor.full(x.shape(), np.nan, x.device()))
    status, output, _ = run(capsys)
    assert status == 1 and "is features.1 (ReLU): alone, its output is off by inf" in output


def test_batch_norm_that_stays_in_training_is_found_in_evaluation(capsys, monkeypatch):
    right = BatchNorm2d.__init__
    monkeypatch.setattr(BatchNorm2d, "__init__", lambda self, mean, var, training, *rest: right(
        self, mean, var, True, *rest))
    assert run(capsys, "--model", "minivgg-bn")[0] == 0
    status, output, _ = run(capsys, "--model", "minivgg-bn", "--eval")
    assert status == 1 and "is features.1 (BatchNorm2d)" in output


def test_layers_that_are_left_out_or_called_twice_are_told(monkeypatch):
    twice = nn.Sequential(nn.Flatten(), nn.Linear(3072, 3072), nn.Linear(3072, 10))
    monkeypatch.setattr(nn.Sequential, "forward", lambda self, x: self[2](self[1](self[1](self[0](x)))))
    with pytest.raises(UserError, match="calls its layer 1 twice"):
        compare_layers(twice, *batch())
    monkeypatch.setattr(nn.Sequential, "forward", lambda self, x: self[2](self[0](x)))
    with pytest.raises(UserError, match="our forward pass goes through 0, 2, loss; PyTorch's through 0, 1, 2, loss"):
        compare_layers(twice, *batch())


def test_the_tolerance_is_the_one_that_is_given(capsys):
    status, output, _ = run(capsys, "--tolerance", "1e-9")
    assert status == 1 and "the first layer over the tolerance of 1e-09 is features.0 (Conv2d)" in output
    assert "features.1" not in over(output)  # a ReLU rounds nothing


def test_a_layer_alone_is_computed_by_the_kernel_of_the_run():
    """Which depends on how its input lies: a convolution of 64 channels is Winograd's, whose rounding is its own."""
    alone = {}
    for enabled in (True, False):
        mytensor.enable_winograd(enabled)
        model = get_model("minivgg", image_size=16)
        random = np.random.default_rng(0)
        layers = compare_layers(model, random.standard_normal((2, 3, 16, 16)).astype(np.float32), np.array([1, 2]))
        alone[enabled] = {layer.name: layer.alone_output.ours.size for layer in layers}["features.2"]
    mytensor.enable_winograd(True)
    assert alone[False] < 1e-6 < alone[True] < 2e-5


# ---- checkpoints ----

def torch_state(name: str = "lenet", factor: float = 1.0) -> dict[str, torch.Tensor]:
    mytorch.manual_seed(1)
    return {key: torch.from_numpy(value * np.asarray(factor, value.dtype))
            for key, value in get_model(name).state_dict().items()}


@pytest.mark.parametrize("wrap", [lambda state: state, lambda state: {"model": state, "epoch": 3},
                                  lambda state: {f"module.{key}": value for key, value in state.items()},
                                  lambda state: {key: value.double() for key, value in state.items()}],
                         ids=["best_model", "last_checkpoint", "wrapped", "float64"])
def test_the_weights_of_a_checkpoint_are_those_that_are_run(capsys, tmp_path, wrap):
    path = tmp_path / "a.pth"
    torch.save(wrap(torch_state()), path)
    from_seed, from_file = run(capsys, "--seed", "1"), run(capsys, "--seed", "1", "--checkpoint", str(path))
    assert from_file[0] == 0
    assert from_file[1].splitlines()[1:] == from_seed[1].splitlines()[1:]  # the first line names the weights
    assert run(capsys)[1].splitlines()[1:] != from_seed[1].splitlines()[1:]


BAD = {
    "not there": (None, "is not there or is no file"),
    "text": (b"weights", "is no checkpoint"),
    "empty": (b"", "is no checkpoint"),
    "a list": ([1, 2], "holds a list, not a state_dict"),
    "a whole module": (torch.nn.Linear(1, 1), "more than tensors and plain values"),
    "of another model": (torch_state("minivgg"), "lacks features.3.weight"),
    "of other classes": ({**torch_state(), "classifier.5.bias": torch.ones(7)}, "classifier.5.bias has shape (7,)"),
    "with more": ({**torch_state(), "more": torch.ones(7)}, "has besides more"),
    "with less": ({}, "lacks features.0.weight"),
    "numbers": ({**torch_state(), "features.0.bias": 1.0}, "has no plain tensor in features.0.bias"),
    "diverged": (torch_state(factor=np.nan), "diverged: features.0.weight is not finite"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_checkpoint_is_one_line(capsys, tmp_path, name):
    content, message = BAD[name]
    path = tmp_path / "a.pth"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        torch.save(content, path)
    status, output, errors = run(capsys, "--checkpoint", str(path))
    assert status == 1 and output == ""
    assert errors.startswith("error: ") and errors.count("\n") == 1 and str(path) in errors and message in errors


def test_a_checkpoint_that_is_cut_off_is_one_line(capsys, tmp_path):
    path = tmp_path / "a.pth"
    torch.save(torch_state(), path)
    path.write_bytes(path.read_bytes()[:-500])
    status, output, errors = run(capsys, "--checkpoint", str(path))
    assert (status, output, errors.count("\n")) == (1, "", 1) and f"error: {path} is no checkpoint" in errors


# ---- the command line ----

def test_the_models_to_choose_from_are_all():
    assert tuple(MODELS) == first_difference.MODELS


@pytest.mark.parametrize("arguments", [
    ["--model", "vgg"], ["--batch-size", "0"], ["--batch-size", "65"], ["--seed", "-1"], ["--seed", str(2**63)],
    ["--tolerance", "0"], ["--tolerance", "nan"], ["--tolerance", "inf"], ["--checkpoint"], ["--more"]], ids=" ".join)
def test_a_bad_command_line_ends_with_status_2_before_anything_is_built(capsys, monkeypatch, arguments):
    monkeypatch.setattr(first_difference.extension, "ensure_built", lambda: pytest.fail("it is built"))
    with pytest.raises(SystemExit) as ending:
        first_difference.main(arguments)
    assert ending.value.code == 2 and "error: " in capsys.readouterr().err


def test_help_needs_no_extension_and_the_command_builds_it():
    """In a process in which `import mytensor` fails."""
    code = ("import sys; sys.modules['mytensor'] = None; import first_difference; "
            "sys.exit(first_difference.main(sys.argv[1:]))")
    environment = {**os.environ, "PYTHONPATH": str(FOLDER)}

    def ended(*arguments: str) -> subprocess.CompletedProcess:
        return subprocess.run([sys.executable, "-c", code, *arguments], env=environment, capture_output=True,
                              encoding="utf-8")
    helped, failed = ended("--help"), ended()
    assert helped.returncode == 0 and "the layer alone" in helped.stdout and helped.stderr == ""
    assert failed.returncode == 1 and failed.stdout == ""
    assert failed.stderr.startswith("error: ") and "cannot be loaded" in failed.stderr
