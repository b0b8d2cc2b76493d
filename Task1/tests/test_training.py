"""Training and evaluation compute what they say: against plain formulas in float64, and over whole runs in process."""

from __future__ import annotations

import copy
import dataclasses
import json
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.nn import functional

import main
import program
import run
import run_folder
import training
from data import Loader
from datasets import Split
from interrupts import Interrupted, Interrupts
from run_folder import BEST_MODEL, HISTORY, LAST_CHECKPOINT, RESULT
from trainer import Evaluation
from training import Precision, TorchTrainer
from utils import UserError

CPU = torch.device("cpu")
OFF = Precision("off", CPU)
LR = 0.05
evaluate = TorchTrainer.evaluate  # as it is, whatever a test puts in its place


def loader(count: int = 23, batch_size: int = 5, training: bool = False) -> Loader:
    """Random pictures of 3x6x6 in three classes."""
    rng = torch.Generator().manual_seed(1)
    split = Split(torch.randint(0, 256, (count, 3, 6, 6), dtype=torch.uint8, generator=rng),
                  torch.randint(0, 3, (count,), generator=rng))
    return Loader(split, np.arange(count), batch_size, (0.5,) * 3, (0.25,) * 3, training=training)


def small_network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Tanh(), nn.Flatten(), nn.Linear(64, 3))


def trainer_of(model: nn.Module, precision: Precision = OFF, smoothing: float = 0.0, **flags) -> TorchTrainer:
    """A trainer with plain SGD's defaults, but for the flags given."""
    flags = {"name": "sgd", "lr": LR, "weight_decay": 0.01, "fused": not precision.scaler.is_enabled(), **flags}
    return TorchTrainer(model, main.build_optimizer(model, **flags), CPU, precision, smoothing)


def pass_over(trainer: TorchTrainer, batches: Loader, epoch: int = 0, first_batch: int = 0, **keywords) -> int:
    keywords = {"rate": lambda at: LR, "after_batch": lambda done: None, **keywords}
    return trainer.train_epoch(batches, epoch, first_batch, **keywords)


# ---- evaluation --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [1, 5, 22, 100])
def test_a_mean_over_a_split_weighs_each_picture_once(batch_size):
    model, batches = small_network().eval(), loader(batch_size=batch_size)
    found = trainer_of(model).evaluate(batches)
    images, labels = next(loader(batch_size=100).batches())
    with torch.no_grad():
        logits = copy.deepcopy(model).double()(images.double())
    losses = [float(torch.logsumexp(row, 0) - row[label]) for row, label in zip(logits, labels, strict=True)]
    assert found.loss == pytest.approx(sum(losses) / 23, rel=1e-6)
    assert found.accuracy == sum(int(row.argmax()) == int(label)
                                 for row, label in zip(logits, labels, strict=True)) / 23
    assert np.array_equal(found.predictions, logits.argmax(1)) and np.array_equal(found.labels, labels)
    assert found.probabilities == pytest.approx(logits.softmax(1).amax(1).numpy(), rel=1e-5)


def test_evaluation_leaves_weights_and_buffers_as_they_were():
    model = small_network()
    model.train()
    before = copy.deepcopy(model.state_dict())
    trainer_of(model).evaluate(loader())
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert not any(parameter.requires_grad and parameter.grad is not None for parameter in model.parameters())


def test_training_trains_again_after_an_evaluation():
    model, batches = small_network(), loader(training=True)
    trainer = trainer_of(model)
    means = []
    for epoch in range(3):
        pass_over(trainer, batches, epoch, max_batches=2)
        trainer.evaluate(loader())
        means.append(model[1].running_mean.clone())
    assert model[1].num_batches_tracked == 6
    assert not torch.equal(means[0], means[1]) and not torch.equal(means[1], means[2])


def test_a_class_without_pictures_has_no_accuracy():
    found = Evaluation(0.0, 0.0, np.array([0, 0, 2]), np.array([0, 1, 1]), np.zeros(3, np.float32))
    assert found.per_class_accuracy(4) == [0.5, None, 0.0, None]


def test_an_evaluation_that_is_not_finite_says_when():
    model = small_network()
    nn.init.constant_(model[-1].bias, torch.inf)
    with pytest.raises(UserError, match="not finite after epoch 3, step 4; .*--lr"):
        trainer_of(model).evaluate(loader(), moment="after epoch 3, step 4")


# ---- one training step -------------------------------------------------------------------------------------------


def reference_steps(model: nn.Module, batches: list, smoothing: float, name: str = "sgd", lr: float = LR,
                    weight_decay: float = 0.01, momentum: float = 0.9, nesterov: bool = False,
                    no_bias_decay: bool = False) -> list[torch.Tensor]:
    """The parameters after one step a batch: the formulas of PyTorch's documentation, written out in float64."""
    model = copy.deepcopy(model).double().train()
    parameters = list(model.parameters())
    first = [torch.zeros_like(p) for p in parameters]
    second = [torch.zeros_like(p) for p in parameters]
    for number, (images, labels) in enumerate(batches, start=1):
        log_probabilities = model(images.double()).log_softmax(1)
        target = functional.one_hot(labels, 3).double() * (1 - smoothing) + smoothing / 3
        gradients = torch.autograd.grad(-(target * log_probabilities).sum(1).mean(), parameters)
        with torch.no_grad():
            for p, g, m, v in zip(parameters, gradients, first, second, strict=True):
                decay = 0.0 if no_bias_decay and p.ndim == 1 else weight_decay
                if name == "adamw":
                    p.mul_(1 - lr * decay)
                else:
                    g = g + decay * p
                if name == "sgd":
                    m.mul_(momentum).add_(g)
                    p.sub_(lr * (g + momentum * m if nesterov else m))
                else:
                    m.mul_(0.9).add_(0.1 * g)
                    v.mul_(0.999).add_(0.001 * g * g)
                    p.sub_(lr * (m / (1 - 0.9**number)) / ((v / (1 - 0.999**number)).sqrt() + 1e-8))
    return parameters


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("flags", [
    {"momentum": 0.0, "weight_decay": 0.0}, {}, {"nesterov": True}, {"no_bias_decay": True},
    {"name": "adam", "weight_decay": 0.5}, {"name": "adamw", "weight_decay": 0.5},
    {"name": "adamw", "weight_decay": 0.5, "no_bias_decay": True},
], ids=str)
def test_training_steps_are_those_of_the_formulas(flags, smoothing):
    model = small_network()
    nn.init.normal_(model[1].bias)  # else there is nothing to decay
    batches = list(loader(15).batches())
    expected = reference_steps(model, batches, smoothing, **flags)
    trainer = trainer_of(model, smoothing=smoothing, **flags)
    for images, labels in batches:
        trainer.step(images, labels)
    # Adam's first steps have the length of the rate whatever the gradient: where that is only rounding, so is the step.
    sgd = "name" not in flags
    sensible = 2e-5 if sgd else 2e-3
    for name, found, right in zip(dict(model.named_parameters()), model.parameters(), expected, strict=True):
        if sgd or name != "0.bias":  # a bias before a batch-norm has no gradient but rounding
            torch.testing.assert_close(found.double(), right, rtol=0, atol=sensible, msg=lambda m, n=name: f"{n}: {m}")


def test_only_matrices_and_kernels_decay_when_biases_and_norms_are_spared():
    model = small_network()
    decayed, spared = trainer_of(model, no_bias_decay=True).optimizer.param_groups
    assert [id(p) for p in decayed["params"]] == [id(model[0].weight), id(model[4].weight)]
    assert [id(p) for p in spared["params"]] == [id(model[0].bias), id(model[1].weight), id(model[1].bias),
                                                id(model[4].bias)]
    assert decayed["weight_decay"] == 0.01 and spared["weight_decay"] == 0.0
    every, = trainer_of(model).optimizer.param_groups
    assert len(every["params"]) == 6 and every["weight_decay"] == 0.01


def test_a_pass_sets_the_rate_of_each_batch_and_tells_of_it():
    model, batches = small_network(), loader(22, 5, training=True)
    trainer = trainer_of(model)
    asked, used, heard = [], [], []

    def rate(at: float) -> float:
        asked.append(at)
        return at / 100

    def after_batch(done: int) -> None:
        used.append(trainer.optimizer.param_groups[0]["lr"])
        heard.append(done)

    skipped_steps = pass_over(trainer, batches, 7, 2, rate=rate, after_batch=after_batch)
    assert heard == [3, 4, 5] and skipped_steps == 0
    assert asked == pytest.approx([7.4, 7.6, 7.8]) and used == pytest.approx([0.074, 0.076, 0.078])


class Diverging(nn.Module):
    """Its loss is not finite in call number `bad`, counted from 1."""

    def __init__(self, bad: int) -> None:
        super().__init__()
        self.network, self.calls, self.bad = small_network(), 0, bad

    def forward(self, images):
        self.calls += 1
        return self.network(images) * (torch.nan if self.calls == self.bad else 1.0)


@pytest.mark.parametrize("look_every", [1, 2, 3, 50])
def test_a_loss_that_is_not_finite_is_told_with_epoch_and_step(monkeypatch, look_every):
    monkeypatch.setitem(training.STEPS_BETWEEN_LOOKS, "cpu", look_every)
    with pytest.raises(UserError, match="not finite in epoch 2, step 3;.*best model.*--lr"):
        pass_over(trainer_of(Diverging(bad=3)), loader(training=True), epoch=1)


# ---- number formats ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("amp, name", [("off", "off"), ("auto", "off"), ("float16", "off"), ("bfloat16", "bfloat16")])
def test_on_a_cpu_only_bfloat16_is_mixed_precision(amp, name):
    precision = Precision(amp, CPU)
    assert precision.name == name and not precision.scaler.is_enabled()
    with precision.autocast():
        product = torch.ones(2, 2) @ torch.ones(2, 2)
    assert product.dtype == (torch.bfloat16 if name == "bfloat16" else torch.float32)


@pytest.mark.parametrize("supported, name", [(True, "bfloat16"), (False, "float16")])
def test_auto_on_a_gpu_takes_bfloat16_if_the_gpu_computes_it(monkeypatch, supported, name):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: supported)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the scaler's, of a machine without a GPU
        assert Precision("auto", torch.device("cuda")).name == name


def test_bfloat16_computes_near_float32_and_keeps_float32_weights():
    images, labels = next(loader().batches())
    losses = {}
    for amp in ("off", "bfloat16"):
        model = small_network()
        losses[amp] = trainer_of(model, Precision(amp, CPU)).step(images, labels)
        assert all(p.dtype == p.grad.dtype == torch.float32 for p in model.parameters())
    assert losses["bfloat16"].dtype == torch.float32 and losses["bfloat16"] != losses["off"]
    assert losses["bfloat16"].item() == pytest.approx(losses["off"].item(), rel=0.02)


class Overflowing(Precision):
    """float32 with a scaler that starts so high that the first gradients overflow."""

    def __init__(self, amp: str, device: torch.device) -> None:
        super().__init__("off", device)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)


def test_steps_that_the_scaler_skips_are_counted():
    model = small_network()
    nn.init.normal_(model[-1].weight, std=10)  # makes the gradients of the layers before it large
    weights = [model[0].weight.detach().clone()]
    skipped_steps = pass_over(
        trainer_of(model, Overflowing("float16", CPU)), loader(60), rate=lambda at: 1e-6,
        after_batch=lambda done: weights.append(model[0].weight.detach().clone()))
    stayed = sum(torch.equal(a, b) for a, b in zip(weights, weights[1:], strict=False))
    assert skipped_steps == stayed and 1 <= stayed < 12


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
def test_a_first_step_that_is_skipped_leaves_no_trace(name):
    """The optimizer's state begins with the first step that is taken."""
    precision = Precision("off", CPU)
    precision.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, backoff_factor=2.0**-120)
    models = [small_network(), small_network()]
    for model in models:
        nn.init.normal_(model[-1].weight, std=10, generator=torch.Generator().manual_seed(2))
    skipping, plain = trainer_of(models[0], precision, name=name), trainer_of(models[1], name=name, fused=False)
    first, *others = loader().batches()
    before = models[0][0].weight.detach().clone()
    skipping.step(*first)
    assert torch.equal(models[0][0].weight, before)
    for batch in others:
        skipping.step(*batch)
        plain.step(*batch)
    for ours, right in zip(*(model.parameters() for model in models), strict=True):
        torch.testing.assert_close(ours, right)


# ---- whole runs, in this process ---------------------------------------------------------------------------------


@pytest.fixture
def train(tree, tmp_path, monkeypatch):
    """Runs `main` on a small tree (22 pictures train in 6 batches, 2 validate); returns status and folder."""
    monkeypatch.setattr(run.plots, "curves", lambda history, title: b"")
    monkeypatch.setattr(run, "draw_test_pictures", lambda *arguments: None)
    monkeypatch.setattr(run_folder, "fcntl", None)  # a folder is held until the process ends, and this one goes on

    def train(*flags: object, folder: str = "run") -> tuple[int, object]:
        path = tmp_path / folder
        command = ["--dataset", "imagefolder", "--data-dir", tree, "--no-progress", "--threads", 1,
                   "--output-dir", path, *flags]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return main.main(list(map(str, command))), path

    return train


SMALL = ("--image-size", 8, "--model", "minivgg", "--batch-size", 4)


def read(path, name: str):
    return json.loads((path / name).read_text(encoding="utf-8"))


def history(path) -> list[dict]:
    return [{key: value for key, value in row.items() if key not in ("seconds", "images_per_second")}
            for row in read(path, HISTORY)]


def test_the_test_split_is_read_once_and_at_the_end(train, monkeypatch):
    views, read_views = {}, []

    def load_data(*arguments, original=program.load_data, **keywords):
        data = original(*arguments, **keywords)
        views.update({id(getattr(data, name)): name for name in ("train", "train_plain", "val", "test")})
        return data

    def batches(self, *arguments, original=Loader.batches, **keywords):
        read_views.append(views[id(self)])
        return original(self, *arguments, **keywords)

    monkeypatch.setattr(program, "load_data", load_data)
    monkeypatch.setattr(Loader, "batches", batches)
    status, path = train(*SMALL, "--epochs", 2)
    assert status == 0 and read(path, RESULT)["finished"] is True
    assert read_views == ["train", "train_plain", "val"] * 2 + ["test"]


def script_validation(monkeypatch, accuracies: list[float]) -> list[dict]:
    """Let the validation say these accuracies; returns the weights that each evaluation of any split saw."""
    seen, left = [], list(accuracies)

    def scripted(self, split, **keywords):
        found = evaluate(self, split, **keywords)
        seen.append(copy.deepcopy(self.weights()))
        return dataclasses.replace(found, accuracy=left.pop(0)) if len(split.indices) == 2 else found

    monkeypatch.setattr(TorchTrainer, "evaluate", scripted)
    return seen


def equal(first: dict, second: dict) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[key], second[key]) for key in first)


def test_the_best_model_is_the_first_of_the_best_validation_accuracy_and_is_what_is_tested(train, monkeypatch):
    seen = script_validation(monkeypatch, [0.25, 0.75, 0.75, 0.5])
    status, path = train(*SMALL, "--epochs", 4)
    plain = seen[0:8:2]  # of each epoch the plain training pictures and the validation; then the test
    best = torch.load(path / BEST_MODEL, weights_only=True)
    last = torch.load(path / LAST_CHECKPOINT, weights_only=True)["model"]
    assert status == 0 and len(seen) == 9
    assert equal(best, plain[1]) and equal(best, seen[8]) and equal(last, plain[3]) and not equal(best, last)
    result = read(path, RESULT)
    assert result["best_epoch"] == 2 and result["best_val_accuracy"] == 0.75


def stop_at_check(monkeypatch, number: int) -> None:
    """Stop as Ctrl-C would at this batch, counted over training, evaluations and test from 1."""
    calls = []

    def check(self) -> None:
        calls.append(None)
        if len(calls) == number:
            raise Interrupted

    monkeypatch.setattr(Interrupts, "check", check)


def test_a_resumed_run_keeps_its_best_model_until_it_is_beaten(train, monkeypatch):
    stop_at_check(monkeypatch, 23)  # in the third epoch: each has 6 batches to train, 3 plain and 1 to validate
    script_validation(monkeypatch, [0.25, 0.75])
    status, path = train(*SMALL, "--epochs", 5)
    best = (path / BEST_MODEL).read_bytes()
    assert status == 130
    script_validation(monkeypatch, [0.5, 0.75, 0.25])
    status, path = train("--resume")
    assert status == 0 and read(path, RESULT)["best_epoch"] == 2
    assert (path / BEST_MODEL).read_bytes() == best


@pytest.mark.parametrize("check, flags", [
    (3, ("--schedule", "onecycle", "--nesterov")),
    (10, ("--schedule", "cosine", "--warmup-epochs", 1, "--augment", "trivial")),  # the validation of the first epoch
    (16, ("--optimizer", "adamw", "--no-bias-decay", "--label-smoothing", 0.1)),  # after the last training batch
    (18, ("--amp", "bfloat16", "--schedule", "constant")),  # the plain pictures of the second epoch
    (22, ("--schedule", "constant", "--warmup-epochs", 2, "--optimizer", "adam")),
    (31, ("--momentum", 0)),  # the test
], ids=str)
def test_a_resumed_run_has_the_bits_of_an_uninterrupted_one(train, monkeypatch, check, flags):
    flags = (*SMALL, "--epochs", 3, *flags)
    assert train(*flags, folder="whole")[0] == 0
    with monkeypatch.context() as patch:
        stop_at_check(patch, check)
        assert train(*flags)[0] == 130
    status, path = train("--resume")
    whole = path.with_name("whole")
    assert status == 0 and history(path) == history(whole)
    for name in (BEST_MODEL, LAST_CHECKPOINT):
        first, second = (torch.load(p / name, weights_only=True) for p in (path, whole))
        assert equal(first.get("model", first), second.get("model", second))
    assert all(row["images_per_second"] > 0 for row in read(path, HISTORY))


def test_the_time_before_an_interruption_counts(train, monkeypatch):
    """By a clock on which each batch takes a second, whether it is trained on or evaluated."""
    now = [0.0]
    monkeypatch.setattr(run, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    def batches(self, *arguments, original=Loader.batches, **keywords):
        for batch in original(self, *arguments, **keywords):
            now[0] += 1.0
            yield batch

    monkeypatch.setattr(Loader, "batches", batches)
    for stop in (4, 8):  # in the training pass, and in the evaluation of the plain training pictures
        with monkeypatch.context() as patch:
            stop_at_check(patch, stop)
            assert train(*SMALL, "--epochs", 2, folder=str(stop))[0] == 130
        now[0] += 1000.0  # what passes before it is resumed
        status, path = train("--resume", folder=str(stop))
        first, second = read(path, HISTORY)
        assert status == 0 and first["images_per_second"] == second["images_per_second"] == round(22 / 6, 1)
        repeated = 2 if stop == 8 else 0  # an evaluation begins anew
        assert first["seconds"] == 6 + 3 + 1 + repeated and second["seconds"] == 6 + 3 + 1


def test_skipped_steps_are_told_in_a_line_and_without_a_warning(train, monkeypatch, capsys):
    monkeypatch.setattr(main, "Precision", Overflowing)
    assert train(*SMALL, "--epochs", 1)[0] == 0
    said = capsys.readouterr()
    assert [line for line in said.out.splitlines() if "skipped" in line and "epoch 1" in line] and not said.err


def test_the_loss_scale_goes_on_where_it_was(train, monkeypatch):
    monkeypatch.setattr(main, "Precision", Overflowing)
    scalers = {}
    for folder in ("whole", "run"):
        with monkeypatch.context() as patch:
            stop_at_check(patch, 5 if folder == "run" else 0)
            status, path = train(*SMALL, "--epochs", 1, folder=folder)
        if status == 130:
            assert train("--resume")[0] == 0
        scalers[folder] = torch.load(path / LAST_CHECKPOINT, weights_only=True)["scaler"]
    assert scalers["run"] == scalers["whole"] and scalers["run"]["scale"] < 2.0**127


def test_a_run_that_diverges_keeps_its_best_model(train, monkeypatch, capsys):
    with monkeypatch.context() as patch:
        stop_at_check(patch, 21)
        status, path = train(*SMALL, "--epochs", 4)
    checkpoint = torch.load(path / LAST_CHECKPOINT, weights_only=True)
    best = (path / BEST_MODEL).read_bytes()
    checkpoint["optimizer"]["state"][0]["momentum_buffer"][0, 0, 0, 0] = torch.inf
    torch.save(checkpoint, path / LAST_CHECKPOINT)
    capsys.readouterr()
    assert train("--resume")[0] == 1
    error = capsys.readouterr().err
    assert "not finite in epoch 3, step 3;" in error and len(error.splitlines()) == 1
    assert (path / BEST_MODEL).read_bytes() == best


@pytest.mark.parametrize("entry, value", [("optimizer", {}), ("optimizer", {"state": {}, "param_groups": [{}, {}]}),
                                          ("random_state", {}), ("random_state", {"cpu": 3, "cuda": []})], ids=str)
def test_a_checkpoint_that_somebody_edited_is_told(train, monkeypatch, capsys, entry, value):
    with monkeypatch.context() as patch:
        stop_at_check(patch, 3)
        _, path = train(*SMALL, "--epochs", 1)
    torch.save({**torch.load(path / LAST_CHECKPOINT, weights_only=True), entry: value}, path / LAST_CHECKPOINT)
    capsys.readouterr()
    assert train("--resume")[0] == 1
    error = capsys.readouterr().err
    assert "is not as a run writes it" in error and error.count("\n") == 1


def test_other_pictures_of_the_same_names_are_refused(train, tree, monkeypatch, capsys):
    with monkeypatch.context() as patch:
        stop_at_check(patch, 3)
        train(*SMALL, "--epochs", 1)
    for path in (tree / "train").rglob("*.png"):
        Image.new("RGB", (32, 32), (1, 2, 3)).save(path)
    assert train("--resume")[0] == 1
    assert "its pictures or their labels are others" in capsys.readouterr().err


def test_a_best_model_that_is_gone_is_told_before_more_is_trained(train, monkeypatch, capsys):
    with monkeypatch.context() as patch:
        stop_at_check(patch, 13)  # in the second epoch
        _, path = train(*SMALL, "--epochs", 3)
    (path / BEST_MODEL).unlink()
    capsys.readouterr()
    assert train("--resume")[0] == 1
    said = capsys.readouterr()
    assert "best_model.pth, the best model so far, is gone" in said.err and "epoch   2" not in said.out


def test_the_configuration_of_a_resumed_run_is_written_anew(train, monkeypatch):
    with monkeypatch.context() as patch:
        stop_at_check(patch, 3)
        _, path = train(*SMALL, "--epochs", 1)
    (path / "config.json").write_text("{", encoding="utf-8")
    assert train("--resume")[0] == 0
    assert read(path, "config.json")["epochs"] == 1


def test_other_data_under_a_resumed_run_are_refused(train, tree, monkeypatch, capsys):
    with monkeypatch.context() as patch:
        stop_at_check(patch, 3)
        train(*SMALL, "--epochs", 1)
    (tree / "train" / "a" / "0.png").unlink()
    assert train("--resume")[0] == 1
    assert "[22, 2, 12] pictures to train, validate and test became [21, 2, 12]" in capsys.readouterr().err
    for split in ("train", "test"):
        (tree / split / "d").rename(tree / split / "e")
    assert train("--resume")[0] == 1
    assert "the class d came or went" in capsys.readouterr().err
