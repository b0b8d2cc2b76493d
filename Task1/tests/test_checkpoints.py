"""What is written loads again; what is not ours, or does not fit, is refused in one line and runs nothing."""

from __future__ import annotations

import copy
import io
import os
import pickle
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import checkpoints
from models import get_model
from run_folder import CONFIG
from utils import UserError, write_json


def network(model: str = "minivgg", num_classes: int = 4, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return get_model(model, num_classes, image_size=16)


def load_into(model: nn.Module, path: Path) -> str | None:
    """Load a checkpoint's weights; returns what the user is told."""
    weights, note = checkpoints.read_weights(path, model.state_dict())
    model.load_state_dict(weights)
    return note


def equal(first: dict, second: dict) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[key], second[key]) for key in first)


def refused(load, *words: str) -> str:
    """`load` fails with one line that has these words in it, and no warning besides; returns the line."""
    with warnings.catch_warnings(record=True) as warned, pytest.raises(UserError) as error:
        warnings.simplefilter("always")
        load()
    assert not warned
    line = str(error.value)
    assert "\n" not in line and all(word in line for word in words), line
    return line


def refused_weights(path: Path, content: object, *words: str) -> str:
    """The weights do not load into MiniVGG, which stays as it was."""
    torch.save(content, path)
    model = network(seed=1)
    before = copy.deepcopy(model.state_dict())
    line = refused(lambda: load_into(model, path), path.name, *words)
    assert equal(model.state_dict(), before)
    return line


def test_weights_go_round(tmp_path):
    model, other = network(), network(seed=1)
    checkpoints.save(tmp_path / "best.pth", model.state_dict())
    assert load_into(other, tmp_path / "best.pth") is None
    assert equal(other.state_dict(), model.state_dict())
    assert not any(value.is_cuda for value in checkpoints.load(tmp_path / "best.pth").values())


def test_the_model_inside_a_resumable_checkpoint_is_taken(tmp_path):
    model, other = network(), network(seed=1)
    checkpoints.save(tmp_path / "last.pth", {"format": 1, "model": model.state_dict(), "optimizer": {}, "config": {}})
    load_into(other, tmp_path / "last.pth")
    assert equal(other.state_dict(), model.state_dict())


def test_equal_weights_give_equal_bytes_under_any_name(tmp_path):
    for name in ("a.pth", "another.pth"):
        checkpoints.save(tmp_path / name, network().state_dict())
    assert (tmp_path / "a.pth").read_bytes() == (tmp_path / "another.pth").read_bytes()


# ---- files that are no checkpoint of ours ------------------------------------------------------------------------


class RunsCode:
    """Makes a folder when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder),)


def whole_file() -> bytes:
    buffer = io.BytesIO()
    torch.save(network().state_dict(), buffer)
    return buffer.getvalue()


def foreign_zip() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("pictures/readme.txt", "no checkpoint")
    return buffer.getvalue()


@pytest.mark.parametrize("share", [0.0, 0.0001, 0.001, 0.5, 0.999])
def test_a_truncated_file_is_told(tmp_path, share):
    content = whole_file()
    (tmp_path / "cut.pth").write_bytes(content[:int(share * len(content))])
    refused(lambda: checkpoints.load(tmp_path / "cut.pth"), "cut.pth is no checkpoint", "cut off")


@pytest.mark.parametrize("content", [b'{"accuracy": 0.7}', b"[1, 2]", b"\x89PNG\r\n\x1a\n" + bytes(64), bytes(4096),
                                     b"notes\n", foreign_zip(), pickle.dumps([1, 2], protocol=4)],
                         ids=["JSON object", "JSON list", "PNG", "zeros", "text", "zip", "pickle"])
def test_a_foreign_file_is_told(tmp_path, content):
    (tmp_path / "foreign.pth").write_bytes(content)
    refused(lambda: checkpoints.load(tmp_path / "foreign.pth"), "foreign.pth ")


def test_a_file_that_is_not_there_is_told_with_its_whole_path(tmp_path):
    refused(lambda: checkpoints.load(tmp_path / "none.pth"), str(tmp_path / "none.pth"), "not there")
    refused(lambda: checkpoints.load(tmp_path), str(tmp_path), "no file")


@pytest.mark.parametrize("as_torch_file", [True, False])
def test_a_pickle_that_runs_code_is_refused_before_it_does(tmp_path, as_torch_file):
    path, trap = tmp_path / "trap.pth", tmp_path / "trapped"
    content = {"weight": RunsCode(trap)}
    if as_torch_file:
        torch.save(content, path)
    else:
        path.write_bytes(pickle.dumps(content, protocol=2))
    refused(lambda: checkpoints.load(path), "trap.pth", "could run code")
    assert not trap.exists()
    torch.load(path, weights_only=False) if as_torch_file else pickle.loads(path.read_bytes())
    assert trap.exists()  # the trap works: it was the loading that did not spring it


@pytest.mark.parametrize("content", [nn.Linear(2, 2), {"model": nn.Linear(2, 2)}, {"best_accuracy": np.float64(0.5)},
                                     {"state": np.random.default_rng(0)}],
                         ids=["module", "module inside", "NumPy scalar", "NumPy generator"])
def test_what_is_more_than_tensors_and_plain_values_is_refused(tmp_path, content):
    torch.save(content, tmp_path / "more.pth")
    refused(lambda: checkpoints.load(tmp_path / "more.pth"), "more.pth holds more than", "state_dict", "NumPy")


@pytest.mark.parametrize("content, kind", [([1], "list"), (torch.ones(2), "Tensor"), (None, "NoneType")])
def test_what_is_no_dictionary_is_refused(tmp_path, content, kind):
    torch.save(content, tmp_path / "other.pth")
    refused(lambda: checkpoints.load(tmp_path / "other.pth"), f"holds a {kind}", "state_dict")


# ---- weights that do not fit -------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module._orig_mod."])
def test_the_prefixes_of_wrappers_are_removed_and_told(tmp_path, prefix):
    model, other = network(), network(seed=1)
    torch.save({prefix + key: value for key, value in model.state_dict().items()}, tmp_path / "wrapped.pth")
    assert prefix in load_into(other, tmp_path / "wrapped.pth")
    assert equal(other.state_dict(), model.state_dict())


def test_a_renamed_key_is_named(tmp_path):
    state = network().state_dict()
    state["classifier.3.offset"] = state.pop("classifier.3.bias")
    refused_weights(tmp_path / "w.pth", state, "lacks classifier.3.bias and has besides classifier.3.offset")


def test_another_model_is_told_by_the_first_keys(tmp_path):
    line = refused_weights(tmp_path / "w.pth", network("lenet").state_dict(), "--model",
                           "lacks features.1.weight, features.1.bias, features.1.running_mean ...",
                           "has besides classifier.1.weight")
    assert len(line) < 500


def test_another_number_of_classes_is_told_by_both_shapes(tmp_path):
    refused_weights(tmp_path / "w.pth", network(num_classes=7).state_dict(),
                    "classifier.3.weight has shape (7, 256)", "needs (4, 256)", "--dataset")


@pytest.mark.parametrize("key, shape", [("classifier.3.bias", (1,)), ("features.1.num_batches_tracked", (5,)),
                                        ("features.0.weight", (1, 3, 3, 3)), ("features.1.weight", (64, 1))])
def test_no_shape_is_stretched_to_fit(tmp_path, key, shape):
    state = network().state_dict()
    needed = tuple(state[key].shape)
    state[key] = torch.ones(shape, dtype=state[key].dtype)
    refused_weights(tmp_path / "w.pth", state, f"{key} has shape {shape}", f"needs {needed}")


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("key", ["features.3.weight", "features.4.running_var"])
def test_weights_that_are_not_finite_are_refused(tmp_path, key, value):
    state = network().state_dict()
    state[key].view(-1)[5] = value
    refused_weights(tmp_path / "w.pth", state, f"{key} is not finite")


@pytest.mark.parametrize("change", [Tensor.double, Tensor.bfloat16, lambda t: t.to(torch.float8_e5m2),
                                    lambda t: nn.Parameter(t.float())],
                         ids=["float64", "bfloat16", "float8", "parameter"])
def test_weights_of_another_dtype_are_converted(tmp_path, change):
    expected, state = network().state_dict(), {key: change(value) for key, value in network().state_dict().items()}
    torch.save(state, tmp_path / "w.pth")
    weights, _ = checkpoints.read_weights(tmp_path / "w.pth", expected)
    assert not any(value.requires_grad for value in weights.values())
    assert equal(weights, {key: value.detach().to(expected[key].dtype) for key, value in state.items()})


@pytest.mark.parametrize("change", [Tensor.to_sparse, lambda t: t.to(torch.complex64), lambda t: t.to("meta")],
                         ids=["sparse", "complex", "meta"])
def test_tensors_that_are_no_dense_real_numbers_are_named(tmp_path, change):
    state = network().state_dict()
    state["classifier.3.bias"] = change(state["classifier.3.bias"])
    refused_weights(tmp_path / "w.pth", state, "has no plain tensor in classifier.3.bias")


@pytest.mark.parametrize("content", [{}, {"model": {}}, {0: torch.ones(2)}, {"model": 3}, {"state_dict": {}}], ids=str)
def test_dictionaries_of_something_else_are_refused(tmp_path, content):
    refused_weights(tmp_path / "w.pth", content, "lacks features.0.weight, features.0.bias")


def test_a_value_that_is_no_tensor_is_refused(tmp_path):
    refused_weights(tmp_path / "w.pth", {**network().state_dict(), "classifier.3.bias": [0.0] * 4},
                    "does not fit", "has no plain tensor in classifier.3.bias")


def test_a_checkpoint_of_a_gpu_loads_without_one(tmp_path):
    torch.save(network().state_dict(), tmp_path / "cpu.pth")
    with zipfile.ZipFile(tmp_path / "cpu.pth") as source, zipfile.ZipFile(tmp_path / "gpu.pth", "w") as target:
        for name in source.namelist():
            content = source.read(name)
            if name.endswith("data.pkl"):
                content = content.replace(b"X\x03\x00\x00\x00cpu", b"X\x06\x00\x00\x00cuda:0")
                assert b"cuda:0" in content
            target.writestr(name, content)
    if not torch.cuda.is_available():
        with pytest.raises(RuntimeError, match="CUDA"):
            torch.load(tmp_path / "gpu.pth", weights_only=True)
    model = network(seed=1)
    load_into(model, tmp_path / "gpu.pth")
    assert equal(model.state_dict(), network().state_dict())


# ---- what --resume takes -----------------------------------------------------------------------------------------


def test_bare_weights_cannot_be_resumed(tmp_path):
    checkpoints.save(tmp_path / "best_model.pth", network().state_dict())
    refused(lambda: checkpoints.load_resumable(tmp_path / "best_model.pth"), "weights alone",
            str(tmp_path / "last_checkpoint.pth"), "--evaluate")


@pytest.mark.parametrize("older", [{}, {"format": 0}, {"format": 99, "config": {}}])
def test_a_checkpoint_of_another_format_is_told(tmp_path, older):
    checkpoints.save(tmp_path / "last_checkpoint.pth", {"model": {}, "optimizer": {}, **older})
    refused(lambda: checkpoints.load_resumable(tmp_path / "last_checkpoint.pth"), "another version",
            f"format {older.get('format')}", f"reads {checkpoints.FORMAT}")


def test_a_checkpoint_of_this_format_is_read(tmp_path):
    content = {"format": checkpoints.FORMAT, **{key: kind() for key, kind in checkpoints.RESUMABLE.items()},
               "config": {"task": "task1", "classes": ["a"], "pictures": [1, 1, 1]}}
    checkpoints.save(tmp_path / "last_checkpoint.pth", content)
    assert checkpoints.load_resumable(tmp_path / "last_checkpoint.pth") == content
    for key, value in (("config", {}), ("history", {}), ("epoch", "3"), ("optimizer", [])):
        checkpoints.save(tmp_path / "last_checkpoint.pth", {**content, key: value})
        refused(lambda: checkpoints.load_resumable(tmp_path / "last_checkpoint.pth"), "not as a run writes it", key)
    del content["config"]
    checkpoints.save(tmp_path / "last_checkpoint.pth", content)
    refused(lambda: checkpoints.load_resumable(tmp_path / "last_checkpoint.pth"), "lacks config")


# ---- classes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("classes, words", [
    (["a", "c", "b"], "'b' as class 1, where the data set has 'c'"), (["a", "b"], "3 classes, the data set has 2"),
    (["a", "b", "c", "d"], "3 classes, the data set has 4"), (["b", "c", "d"], "'a' as class 0")], ids=str)
def test_a_run_with_other_classes_is_told(tmp_path, classes, words):
    write_json(tmp_path / CONFIG, {"classes": ["a", "b", "c"]})
    for name in ("best_model.pth", "last_checkpoint.pth"):
        refused(lambda path=tmp_path / name: checkpoints.check_classes(path, classes), words, "--data-dir", name)


@pytest.mark.parametrize("config", [None, "", "[1]", "{}", '{"classes": 3}', '{"classes": ["a", "b", "c"]}'])
def test_of_a_checkpoint_without_its_run_no_classes_are_known(tmp_path, config):
    if config is not None:
        (tmp_path / CONFIG).write_text(config, encoding="utf-8")
    checkpoints.check_classes(tmp_path / "best_model.pth", ("a", "b", "c"))
