"""Crop, flip and normalisation against plain per-picture code; the random draws; independence of the batch."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torchvision.transforms.v2 import functional as F

from augment import Parameters, apply, draw, normalise
from trivial_augment import Operation, trivial_augment

MEAN, STD = (0.49, 0.48, 0.44), (0.25, 0.24, 0.26)


def random_pictures(*shape: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(7).integers(1, 256, shape, dtype=np.uint8))


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28), (3, 16, 25), (3, 4, 4), (1, 5, 3), (3, 1, 8)])
def test_every_crop_and_flip_equals_plain_slicing(shape):
    _, height, width = shape
    choices = [(top, left, flip) for top in range(9) for left in range(9) for flip in (False, True)]
    batch = random_pictures(len(choices), *shape)
    top_left, flips = np.array([c[:2] for c in choices]), np.array([c[2] for c in choices])
    parameters = Parameters("standard", top_left, flips, np.zeros(len(choices)), np.zeros(len(choices)))
    result = apply(batch, parameters)

    for picture, (top, left, flip), got in zip(batch.numpy(), choices, result.numpy(), strict=True):
        padded = np.pad(picture, ((0, 0), (4, 4), (4, 4)))
        expected = padded[:, top : top + height, left : left + width]
        np.testing.assert_array_equal(got, expected[:, :, ::-1] if flip else expected)


def test_draws_are_uniform():
    parameters = draw("trivial", 20_000, np.random.default_rng(0))
    assert len(parameters) == 20_000
    for column in parameters.offset.T:  # 2222 expected of each, standard deviation 44
        counts = np.bincount(column, minlength=9)
        assert len(counts) == 9 and counts.min() > 2000 and counts.max() < 2450
    assert abs(np.corrcoef(parameters.offset.T)[0, 1]) < 0.03
    assert 0.48 < parameters.flip.mean() < 0.52
    counts = np.bincount(parameters.operation, minlength=14)  # 1429 expected, standard deviation 36
    assert len(counts) == 14 and counts.min() > 1250 and counts.max() < 1610
    counts = np.bincount(np.abs(parameters.level), minlength=31)  # 645 expected, standard deviation 25
    assert len(counts) == 31 and counts.min() > 520 and counts.max() < 770
    counts = np.bincount(parameters.level[parameters.level != 0] + 30)  # 323 expected of each sign, deviation 18
    assert len(counts) == 61 and np.delete(counts, 30).min() > 230 and counts.max() < 415


def test_every_operation_meets_every_level():
    parameters = draw("trivial", 20_000, np.random.default_rng(0))
    met = set(zip(parameters.operation.tolist(), parameters.level.tolist(), strict=True))
    assert met == {(operation, level) for operation in range(14) for level in range(-30, 31)}


@pytest.mark.parametrize("kind", ["standard", "trivial"])
def test_draws_follow_the_generator_alone(kind):
    first, again, other = (draw(kind, 100, np.random.default_rng(seed)) for seed in (1, 1, 2))
    for field in ("offset", "flip", "operation", "level"):
        np.testing.assert_array_equal(getattr(first, field), getattr(again, field))
    assert (first.offset != other.offset).any() and (first.flip != other.flip).any()


def test_without_flip_nothing_is_mirrored():
    assert not draw("trivial", 1000, np.random.default_rng(0), flip=False).flip.any()


def test_none_changes_nothing():
    batch = random_pictures(5, 3, 32, 32)
    parameters = draw("none", 5, np.random.default_rng(0))
    assert apply(batch, parameters) is batch
    assert torch.equal(apply(batch, replace(parameters, kind="trivial")), batch)  # its parameters are neutral ones


@pytest.mark.parametrize("kind", ["standard", "trivial"])
@pytest.mark.parametrize("channels", [1, 3])
def test_result_does_not_depend_on_the_batch(kind, channels):
    count = 150
    batch = random_pictures(count, channels, 32, 32)
    parameters = draw(kind, count, np.random.default_rng(3))
    whole = apply(batch, parameters)
    for size in (1, 64):
        parts = [slice(start, start + size) for start in range(0, count, size)]
        assert torch.equal(torch.cat([apply(batch[part], parameters[part]) for part in parts]), whole)
    order = np.random.default_rng(4).permutation(count)
    assert torch.equal(apply(batch[order], parameters[order]), whole[order])


@pytest.mark.parametrize("kind", ["standard", "trivial"])
def test_the_input_is_left_alone(kind):
    batch = random_pictures(100, 3, 32, 32)
    before = batch.clone()
    result = apply(batch, draw(kind, 100, np.random.default_rng(0)))
    assert torch.equal(batch, before)
    assert result.dtype == torch.uint8 and result.shape == batch.shape and result.is_contiguous()
    assert not torch.equal(result, batch)


def test_trivial_augment_comes_after_crop_and_flip():
    batch = random_pictures(100, 3, 32, 32)
    parameters = draw("trivial", 100, np.random.default_rng(0))
    cropped = apply(batch, replace(parameters, kind="standard"))
    expected = trivial_augment(cropped, parameters.operation, parameters.level)
    assert torch.equal(apply(batch, parameters), expected)
    moved = parameters.operation != Operation.IDENTITY
    assert not torch.equal(expected[moved], cropped[moved])


def test_equal_pictures_in_one_batch_are_augmented_differently():
    batch = random_pictures(1, 3, 32, 32).expand(64, -1, -1, -1)
    different = apply(batch, draw("standard", 64, np.random.default_rng(0))).flatten(1).unique(dim=0)
    assert len(different) > 40  # of 162 possible ones


@pytest.mark.parametrize("shape", [(6, 3, 32, 32), (6, 1, 28, 28), (5, 3, 16, 25)])
def test_normalise(shape):
    batch = random_pictures(*shape)
    before = batch.clone()
    mean, std = MEAN[: shape[1]], STD[: shape[1]]
    result = normalise(batch, mean, std)
    assert result.dtype == torch.float32 and result.shape == batch.shape and result.is_contiguous()
    torch.testing.assert_close(result, F.normalize(batch / 255, mean, std), rtol=1e-6, atol=1e-6)
    alone = [normalise(picture[None], mean, std) for picture in batch]
    assert torch.equal(result, torch.cat(alone))  # the same bits in every batch
    assert torch.equal(batch, before)


def test_wrong_arguments_are_named():
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match="standard, trivial, none, not 'autoaugment'"):
        draw("autoaugment", 1, rng)
    with pytest.raises(ValueError, match="2 pictures but parameters of 3"):
        apply(random_pictures(2, 3, 16, 16), draw("standard", 3, rng))
    with pytest.raises(ValueError, match=r"uint8.*float32 \(2, 3, 16, 16\)"):
        apply(torch.zeros(2, 3, 16, 16), draw("standard", 2, rng))
    with pytest.raises(ValueError, match=r"\(2, 16, 16, 3\)"):
        apply(random_pictures(2, 16, 16, 3), draw("standard", 2, rng))
