"""Training and evaluation compute what they say: against plain formulas in float64, step by step."""

from __future__ import annotations

import copy
import warnings

import numpy as np
import pytest
import torch
from conftest import Overflowing
from torch import nn
from torch.nn import functional

import main
import training
from data import Loader
from datasets import Split
from trainer import Evaluation
from training import Precision, TorchTrainer
from utils import UserError

CPU = torch.device("cpu")
OFF = Precision("off", CPU)
LR = 0.05


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
