"""Training and evaluation compute what they say: against PyTorch in float64, batch by batch."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch.nn import functional

import mytorch
from data import Loader
from datasets import Split
from main import build_optimizer
from mytorch import TensorDevice, nn
from training import MytorchTrainer
from utils import UserError

LR = 0.05


def loader(count: int = 23, batch_size: int = 5, training: bool = False) -> Loader:
    """Random pictures of 3x6x6 in three classes."""
    rng = torch.Generator().manual_seed(1)
    split = Split(torch.randint(0, 256, (count, 3, 6, 6), dtype=torch.uint8, generator=rng),
                  torch.randint(0, 3, (count,), generator=rng))
    return Loader(split, np.arange(count), batch_size, (0.5,) * 3, (0.25,) * 3, training=training)


def small_network() -> nn.Sequential:
    mytorch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Tanh(), nn.Flatten(), nn.Linear(64, 3))


def twin(model: nn.Sequential) -> torch.nn.Sequential:
    """The same network with the same weights, in PyTorch and float64."""
    network = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Tanh(),
                                  torch.nn.Flatten(), torch.nn.Linear(64, 3))
    network.load_state_dict({name: torch.from_numpy(value) for name, value in model.state_dict().items()})
    return network.double()


def trainer_of(model: nn.Module, smoothing: float = 0.0, **flags) -> MytorchTrainer:
    """A trainer with plain SGD's defaults, but for the flags given."""
    optimizer = build_optimizer(model, **{"name": "sgd", "lr": LR, "weight_decay": 0.01, **flags})
    return MytorchTrainer(model, optimizer, TensorDevice.CPU, smoothing)


def pass_over(trainer: MytorchTrainer, batches: Loader, epoch: int = 0, first_batch: int = 0, **keywords) -> int:
    keywords = {"rate": lambda at: LR, "after_batch": lambda done: None, **keywords}
    return trainer.train_epoch(batches, epoch, first_batch, **keywords)


@pytest.mark.parametrize("batch_size", [1, 5, 22, 100])
def test_a_mean_over_a_split_weighs_each_picture_once(batch_size):
    model = small_network()
    found = trainer_of(model).evaluate(loader(batch_size=batch_size))
    images, labels = next(loader(batch_size=100).batches())
    with torch.no_grad():
        logits = twin(model).eval()(images.double())
    assert found.loss == pytest.approx(functional.cross_entropy(logits, labels).item(), rel=1e-5)
    assert found.accuracy == np.mean((logits.argmax(1) == labels).numpy())
    assert np.array_equal(found.predictions, logits.argmax(1)) and np.array_equal(found.labels, labels)
    assert found.probabilities == pytest.approx(logits.softmax(1).amax(1).numpy(), rel=1e-5)
    assert (found.labels.dtype, found.predictions.dtype, found.probabilities.dtype) == (np.int64, np.int64, np.float32)


def test_evaluation_leaves_weights_and_buffers_as_they_were_and_training_trains_again():
    model = small_network()
    trainer = trainer_of(model)
    for epoch in range(3):
        pass_over(trainer, loader(training=True), epoch, max_batches=2)
        before = copy.deepcopy(trainer.weights())
        trainer.evaluate(loader())
        assert all(torch.equal(value, before[name]) for name, value in trainer.weights().items())
    assert model.state_dict()["1.num_batches_tracked"] == 6


def test_predictions_are_the_probabilities_of_each_class():
    model = small_network()
    images, _ = next(loader().batches())
    with torch.no_grad():
        right = twin(model).eval()(images.double()).softmax(1)
    assert trainer_of(model).predict(images) == pytest.approx(right.numpy(), rel=1e-5)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("flags", [
    {"momentum": 0.0, "weight_decay": 0.0}, {}, {"nesterov": True}, {"no_bias_decay": True},
    {"name": "adam", "weight_decay": 0.5}, {"name": "adamw", "weight_decay": 0.5, "no_bias_decay": True},
], ids=str)
def test_training_steps_are_those_of_pytorch(flags, smoothing):
    model = small_network()
    right = twin(model)
    parameters = list(right.parameters())
    decay = flags.get("weight_decay", 0.01)
    groups = [{"params": [p for p in parameters if p.ndim > 1]},
              {"params": [p for p in parameters if p.ndim == 1],
               "weight_decay": 0.0 if flags.get("no_bias_decay") else decay}]
    kinds = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    own = {"momentum": flags.get("momentum", 0.9), "nesterov": "nesterov" in flags} if "name" not in flags else {}
    optimizer = kinds[flags.get("name", "sgd")](groups, lr=LR, weight_decay=decay, **own)
    trainer = trainer_of(model, smoothing, **flags)
    for images, labels in loader(15).batches():
        loss = functional.cross_entropy(right(images.double()), labels, label_smoothing=smoothing)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        # Adam's first steps have the length of the rate whatever the gradient: where that is rounding, so is the step.
        assert trainer.step(images, labels) == pytest.approx(loss.item(), rel=1e-3 if "name" in flags else 1e-5)
    for (name, ours), theirs in zip(model.named_parameters(), parameters, strict=True):
        if "name" not in flags or name != "0.bias":  # a bias before a batch-norm has no gradient but rounding
            np.testing.assert_allclose(ours.numpy(), theirs.detach(), rtol=0, atol=2e-3 if "name" in flags else 2e-5)


def test_a_pass_sets_the_rate_of_each_batch_and_tells_of_it():
    trainer = trainer_of(small_network())
    asked, used, heard = [], [], []

    def rate(at: float) -> float:
        asked.append(at)
        return at / 100

    def after_batch(done: int) -> None:
        used.append(trainer.optimizer.param_groups[0]["lr"])
        heard.append(done)

    assert pass_over(trainer, loader(22, 5, training=True), 7, 2, rate=rate, after_batch=after_batch) == 0
    assert heard == [3, 4, 5]
    assert asked == pytest.approx([7.4, 7.6, 7.8]) and used == pytest.approx([0.074, 0.076, 0.078])


def test_a_loss_that_is_not_finite_is_told_with_its_moment():
    model = small_network()
    rates = iter([LR, LR, 1e38, LR, LR])
    with pytest.raises(UserError, match="not finite in epoch 2, step 4;.*best model.*--lr"):
        pass_over(trainer_of(model), loader(training=True), epoch=1, rate=lambda at: next(rates))
    with pytest.raises(UserError, match="not finite after epoch 3, step 4; .*--lr"):
        trainer_of(model).evaluate(loader(), moment="after epoch 3, step 4")


def test_what_is_saved_goes_round():
    """Into files of plain values and tensors alone, and back to the same bits."""
    model = nn.Sequential(small_network(), nn.Dropout(0.5))
    trainer = trainer_of(model, name="adam")
    batches = loader(training=True)
    pass_over(trainer, batches)
    saved = copy.deepcopy({**trainer.state(), "model": trainer.weights(), "other": 1})
    pass_over(trainer, batches, 1)
    expected = copy.deepcopy(trainer.weights())

    mytorch.manual_seed(5)
    other = trainer_of(nn.Sequential(small_network(), nn.Dropout(0.5)), name="adam")
    other.load_weights(saved["model"])
    other.restore(saved)
    pass_over(other, batches, 1)
    assert list(expected) == list(other.weights())
    assert all(torch.equal(value, expected[name]) for name, value in other.weights().items())
    assert trainer.num_parameters() == 3 * 4 * 9 + 4 + 8 + 64 * 3 + 3
