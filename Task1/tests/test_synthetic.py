"""The pictures that the program draws itself."""

from __future__ import annotations

import numpy as np
import pytest

import synthetic
from synthetic import picture_classes, synthetic_digits, synthetic_pictures

KINDS = {"pictures": synthetic_pictures, "digits": synthetic_digits}
parametrise_kinds = pytest.mark.parametrize("draw", KINDS.values(), ids=KINDS)


@parametrise_kinds
def test_the_same_pictures_are_drawn_each_time_whatever_the_global_generator(draw):
    np.random.seed(1)
    pictures, labels = draw("train", 300)
    np.random.seed(2)
    again, labels_again = draw("train", 300)
    assert np.array_equal(pictures, again) and np.array_equal(labels, labels_again)


@parametrise_kinds
def test_no_picture_comes_twice_within_a_split_or_in_both(draw):
    drawn = [picture.tobytes() for split in ("train", "test") for picture in draw(split, 600)[0]]
    assert len(set(drawn)) == 1200


def test_a_split_that_is_not_drawn_is_refused():
    with pytest.raises(KeyError):
        synthetic_pictures("val", 1)


@pytest.mark.parametrize("count", [0, 1, 9, 250, 251])
def test_shapes_types_and_labels(count):
    for draw, channels, size in ((synthetic_pictures, 3, 32), (synthetic_digits, 1, 28)):
        pictures, labels = draw("test", count)
        assert pictures.shape == (count, channels, size, size) and pictures.dtype == np.uint8
        assert labels.dtype == np.int64 and labels.tolist() == [index % 10 for index in range(count)]


@pytest.mark.parametrize("size", [1, 2, 7, 28, 64, 100])
def test_any_size_can_be_drawn_and_looks_alike(size):
    pictures, digits = synthetic_pictures("train", 50, size=size)[0], synthetic_digits("train", 50, size=size)[0]
    assert pictures.shape == (50, 3, size, size) and digits.shape == (50, 1, size, size)
    if size > 2:
        assert abs(pictures.mean() - synthetic_pictures("train", 50)[0].mean()) < 3
        assert abs(digits.mean() - synthetic_digits("train", 50)[0].mean()) < 3


@parametrise_kinds
def test_pictures_of_a_class_are_more_alike_than_those_of_two(draw):
    pictures, labels = draw("train", 1000)
    features = pictures.reshape(len(pictures), -1).astype(np.float32)
    means = np.stack([features[labels == label].mean(axis=0) for label in range(10)])
    nearest = np.linalg.norm(draw("test", 500)[0].reshape(500, 1, -1) - means, axis=2).argmin(axis=1)
    right = np.mean(nearest == np.arange(500) % 10)
    assert 0.15 < right < 0.95  # chance is 0.1: there is something to learn, and more than templates to learn it by


def test_two_digits_are_told_by_where_the_ink_is():
    pictures, labels = synthetic_digits("train", 400)
    middle = pictures[:, 0, 12:16, 12:16].mean(axis=(1, 2))
    assert middle[labels == 1].mean() > 2 * middle[labels == 0].mean()  # a one has ink there, a nought has none


def test_no_class_of_shapes_changes_in_a_mirror():
    pictures, labels = synthetic_pictures("train", 5000)
    for label in range(10):
        mean = pictures[labels == label].mean(axis=(0, 1))
        assert np.abs(mean - mean[:, ::-1]).mean() < 3  # of 255: as often seen from one side as from the other


@pytest.mark.parametrize("count", [1, 10, 11, 200, 500])
def test_classes_have_names_of_their_own(count):
    names = picture_classes(count)
    assert len(set(names)) == len(names) == count
    pictures, labels = synthetic_pictures("train", count + 1, num_classes=count)
    assert pictures.shape == (count + 1, 3, 32, 32) and labels.tolist() == [*range(count), 0]


@pytest.mark.parametrize("count", [0, 501, -1])
def test_other_numbers_of_classes_are_refused(count):
    for use in (picture_classes, lambda number: synthetic_pictures("train", 1, number)):
        with pytest.raises(ValueError, match="1 to 500"):
            use(count)


def test_classes_beyond_ten_differ_in_colour_and_texture():
    names = picture_classes(500)
    assert names[0] == "red plain arrow" and names[1] == "red plain checkers"
    assert names[10] == "orange plain arrow" and names[100] == "red shaded arrow"
    pictures, labels = synthetic_pictures("train", 2000, num_classes=100)
    colour = labels // 10
    red, blue = (pictures[colour == list(synthetic.COLOURS).index(name)].mean(axis=(0, 2, 3)) for name in
                 ("red", "blue"))
    assert red[0] > blue[0] + 10 and blue[2] > red[2] + 10
