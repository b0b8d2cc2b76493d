"""The learning rates are those of PyTorch's schedulers."""

from __future__ import annotations

import pytest
import torch

from schedules import learning_rate

PEAK = 0.05


def optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=PEAK)


def rates(scheduler: torch.optim.lr_scheduler.LRScheduler, steps: int) -> list[float]:
    """The rates of the first steps."""
    found = []
    for _ in range(steps):
        found.append(scheduler.get_last_lr()[0])
        scheduler.optimizer.step()
        scheduler.step()
    return found


@pytest.mark.parametrize("epochs", [1, 2, 30])
def test_cosine_is_that_of_pytorch_epoch_by_epoch(epochs):
    expected = rates(torch.optim.lr_scheduler.CosineAnnealingLR(optimizer(), T_max=epochs), epochs)
    assert [learning_rate("cosine", PEAK, epoch, epochs) for epoch in range(epochs)] == pytest.approx(expected)


def test_cosine_stays_the_same_within_an_epoch():
    assert learning_rate("cosine", PEAK, 7.99, 30) == learning_rate("cosine", PEAK, 7, 30)
    assert learning_rate("cosine", PEAK, 8, 30) < learning_rate("cosine", PEAK, 7.99, 30)


@pytest.mark.parametrize("epochs, batches", [(1, 40), (6, 11), (30, 3)])
def test_onecycle_is_that_of_pytorch_batch_by_batch(epochs, batches):
    steps = epochs * batches
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer(), PEAK, total_steps=steps + 1,
                                                    pct_start=(0.3 * steps + 1) / (steps + 1))
    ours = [learning_rate("onecycle", PEAK, epoch + batch / batches, epochs)
            for epoch in range(epochs) for batch in range(batches)]
    assert ours == pytest.approx(rates(scheduler, steps), rel=1e-9)


def test_onecycle_starts_peaks_and_ends_where_it_says():
    assert learning_rate("onecycle", PEAK, 0, 10) == pytest.approx(PEAK / 25)
    assert learning_rate("onecycle", PEAK, 3, 10) == PEAK
    assert learning_rate("onecycle", PEAK, 10, 10) == pytest.approx(PEAK / 250_000)


def test_constant_stays():
    assert {learning_rate("constant", PEAK, time, 5) for time in (0, 0.5, 2, 4.9)} == {PEAK}


def test_the_warmup_rises_in_equal_steps_and_the_cosine_takes_the_rest():
    warm = [learning_rate("cosine", PEAK, epoch, 12, warmup_epochs=3) for epoch in range(12)]
    assert warm[:4] == pytest.approx([PEAK / 4, PEAK / 2, 3 * PEAK / 4, PEAK])
    expected = rates(torch.optim.lr_scheduler.CosineAnnealingLR(optimizer(), T_max=9), 9)
    assert warm[3:] == pytest.approx(expected)
    assert [learning_rate("constant", PEAK, time, 12, warmup_epochs=3) for time in (0.9, 2.5, 3, 11)] == pytest.approx(
        [PEAK / 4, 3 * PEAK / 4, PEAK, PEAK])


def test_a_warmup_as_long_as_the_run_still_has_a_rate():
    assert learning_rate("cosine", PEAK, 0, 1, warmup_epochs=1) == PEAK / 2
