"""The command line: its defaults are those that the README states, and what cannot be meant is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from main import Task1
from main import main as run_main
from options import flag, parse
from program import adopt_flags
from utils import UserError, choose_device

DEFAULTS = {
    "model": "lenet", "dataset": "cifar10", "data_dir": Path("data"), "image_size": None, "augment": "standard",
    "epochs": 30, "batch_size": 64, "optimizer": "sgd", "lr": 0.01, "momentum": 0.9, "nesterov": False,
    "weight_decay": 5e-4, "schedule": "cosine", "warmup_epochs": 0, "label_smoothing": 0.0, "seed": 0, "workers": 2,
    "device": "auto", "threads": None, "amp": "off", "log": "none", "output_dir": None, "overwrite": False,
    "resume": False, "evaluate": None, "predict": None, "debug_steps": None, "no_progress": False, "dropout": 0.5,
    "no_bias_decay": False,
}
# What a resumed run may be given otherwise: where and how it runs, not what it computes.
FREE = {"data_dir", "workers", "device", "threads", "log", "output_dir", "overwrite", "resume", "evaluate", "predict",
        "no_progress"}


def parsed(*arguments: object):
    return parse(Task1().build_parser(), [str(argument) for argument in arguments])


def refusal(capsys, *arguments: object) -> str:
    """The program ends with status 2; returns the last line of what it said."""
    with pytest.raises(SystemExit) as end:
        run_main([str(argument) for argument in arguments])
    assert end.value.code == 2
    return capsys.readouterr().err.splitlines()[-1]


def test_defaults():
    options, given = parsed()
    assert vars(options) == DEFAULTS and given == set()


def test_help_states_every_flag_and_its_default():
    entries = re.split(r"\n  (?=--)|\n\n", Task1().build_parser().format_help())
    for name, value in DEFAULTS.items():
        said, = [" ".join(entry.split()) for entry in entries if entry.split()[0] == flag(name)]
        assert "(default: " in said, said
        if value not in (None, False):
            assert f"(default: {value})" in said, said


def test_help_groups_the_flags():
    titles = [group.title for group in Task1().build_parser()._action_groups[2:]]
    assert titles == ["what to learn", "how to learn it", "on what machine", "what it leaves behind",
                      "instead of training", "in this program alone"]


@pytest.mark.parametrize("arguments, given", [
    (("--epochs", 30, "--lr", 0.01), {"epochs", "lr"}),  # the default, but given
    (("--nesterov", "--no-bias-decay"), {"nesterov", "no_bias_decay"}),
    (("--amp",), {"amp"}),
    (("--data-dir", "data", "--evaluate", "x.pth", "--predict", "a.png", "b.png"), {"data_dir", "evaluate", "predict"}),
])
def test_flags_that_were_given_are_told_from_defaults(arguments, given):
    assert parsed(*arguments)[1] == given


def test_amp_alone_means_auto():
    assert parsed("--amp")[0].amp == "auto" and parsed("--amp", "bfloat16")[0].amp == "bfloat16"


@pytest.mark.parametrize("arguments, words", [
    (("--model", "vgg"), "--model"), (("--dataset", "svhn"), "--dataset"), (("--augment", "hard"), "--augment"),
    (("--optimizer", "lion"), "--optimizer"), (("--schedule", "step"), "--schedule"), (("--log", "x"), "--log"),
    (("--amp", "int8"), "--amp"), (("--device", "tpu"), "'tpu' is none of auto, cpu, cuda, cuda:N"),
    (("--device", "cuda:"), "--device"), (("--device", "cuda:-1"), "--device"),
    (("--epochs", 0), "--epochs: 0 is not 1 or more"), (("--epochs", 3.5), "'3.5' is not a whole number"),
    (("--batch-size", 0), "--batch-size"), (("--image-size", 0), "--image-size"), (("--threads", 0), "--threads"),
    (("--workers", -1), "--workers"), (("--seed", -1), "--seed"), (("--seed", 2**63), "--seed"),
    (("--debug-steps", 0), "--debug-steps"), (("--warmup-epochs", -1), "--warmup-epochs"),
    (("--lr", 0), "--lr: 0 is not above 0"), (("--lr", "nan"), "--lr"), (("--lr", "inf"), "--lr"),
    (("--lr", "0,1"), "'0,1' is not a number (write 0.1)"), (("--lr", -0.1), "--lr"),
    (("--momentum", 1), "--momentum: 1 is not at least 0 and below 1"), (("--momentum", -0.1), "--momentum"),
    (("--weight-decay", -1), "--weight-decay"), (("--weight-decay", "nan"), "--weight-decay"),
    (("--label-smoothing", 1), "--label-smoothing"),
    (("--dropout", 1), "--dropout"), (("--dropout", -0.1), "--dropout"), (("--dropout", "nan"), "--dropout"),
    (("--nesterov", "--momentum", 0), "--nesterov needs"), (("--nesterov", "--optimizer", "adam"), "--nesterov needs"),
    (("--nesterov", "True"), "True"), (("--no-progress=0",), "--no-progress"),
    (("--schedule", "onecycle", "--warmup-epochs", 1), "--warmup-epochs"),
    (("--epochs", 5, "--warmup-epochs", 5), "--warmup-epochs 5 must be fewer than --epochs 5"),
    (("--resume", "--overwrite"), "--overwrite"), (("--evaluate", "x", "--resume"), "--evaluate does not train"),
    (("--evaluate", "x", "--overwrite"), "--evaluate does not train"), (("--predict", "a.png"), "--predict needs"),
    (("--epoch", 3), "--epoch"), (("--debug", 3), "--debug"), (("stray",), "stray"),
], ids=str)
def test_what_cannot_be_meant_is_refused(capsys, arguments, words):
    line = refusal(capsys, *arguments)
    assert "error: " in line and words in line


def test_a_resumed_run_takes_its_flags_from_the_run_unless_they_are_free():
    saved = {**{name: str(value) if isinstance(value, Path) else value for name, value in DEFAULTS.items()},
             "task": "task1", "lr": 0.2, "epochs": 7, "workers": 5, "data_dir": "elsewhere", "output_dir": "there"}
    options, given = parsed("--resume", "--workers", 0, "--epochs", 7)
    adopt_flags(options, given, saved, "task1")
    assert (options.lr, options.epochs, options.workers, options.data_dir) == (0.2, 7, 0, Path("elsewhere"))
    assert options.resume and options.output_dir is None


@pytest.mark.parametrize("name", sorted(set(DEFAULTS) - FREE))
def test_a_resumed_run_refuses_each_flag_that_shapes_its_result(name):
    saved = {**DEFAULTS, "task": "task1", **dict.fromkeys({name, *FREE}, "another value")}
    options, _ = parsed("--resume")
    with pytest.raises(UserError, match=f"{flag(name)} {re.escape(str(DEFAULTS[name]))} .the run has another value."):
        adopt_flags(options, {name, *FREE}, saved, "task1")


def test_a_run_of_another_program_is_not_resumed():
    options, given = parsed("--resume")
    with pytest.raises(UserError, match="this run is of task3, not of task1"):
        adopt_flags(options, given, {"task": "task3"}, "task1")


@pytest.mark.parametrize("name", ["cuda", "cuda:0", "cuda:256", "cuda:99999999999999999999"])
def test_a_gpu_that_is_not_there_is_an_error(monkeypatch, name):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match=f"--device {name}: no usable GPU.*--device cpu"):
        choose_device(name)


@pytest.mark.parametrize("name", ["cuda:2", "cuda:256", "cuda:99999999999999999999"])
def test_a_gpu_beyond_the_last_is_an_error(monkeypatch, name):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(UserError, match=f"--device {name}: there are 2 GPUs, cuda:0 to cuda:1"):
        choose_device(name)
    assert choose_device("cuda:1") == torch.device("cuda:1")
    assert choose_device("auto") == torch.device("cuda")


def test_auto_without_a_gpu_is_the_cpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto") == torch.device("cpu")
