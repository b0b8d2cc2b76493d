"""The data sets by name: their figures, torchvision's formats, streams of large pictures, and what is refused."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import pickle
import shutil
import socket
import sys
import tarfile
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from urllib.error import URLError

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import datasets as torchvision_datasets

import datasets
import synthetic
from augment import normalise
from datasets import CIFAR10_CLASSES, STATISTICS, load_dataset
from utils import UserError


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    """Every download fails at once; the list tells what was asked for."""
    asked = []

    def fail(request, *arguments, **options):
        asked.append(request.full_url)
        raise URLError("no network in a test")

    monkeypatch.setattr(urllib.request, "urlopen", fail)
    return asked


def refused(name: str, data_dir: Path, *words: str, image_size: int | None = None) -> str:
    """The data set is refused in one line that has these words in it."""
    with pytest.raises(UserError) as caught:
        load_dataset(name, data_dir, image_size)
    text = str(caught.value)
    assert "\n" not in text
    for word in words:
        assert word in text
    return text


# ---- mean and deviation ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["synthetic", "synthetic-digits"])
def test_normalised_training_pictures_have_mean_0_and_deviation_1(name):
    dataset = load_dataset(name, Path("none"))
    assert len(dataset.train.labels) == 10_000 and len(dataset.test.labels) == 2000
    totals = torch.zeros(2, dataset.channels, dtype=torch.float64)
    for pictures in dataset.train.pictures.split(1000):
        values = normalise(pictures, dataset.mean, dataset.std).transpose(0, 1).flatten(1).double()
        totals += torch.stack([values.mean(dim=1), values.square().mean(dim=1)]) / 10
    mean, std = totals[0], (totals[1] - totals[0].square()).sqrt()
    assert mean.abs().max() < 0.001 and (std - 1).abs().max() < 0.001


def test_each_data_set_has_figures_for_its_channels():
    for name, (mean, std) in STATISTICS.items():
        channels = 1 if name in ("mnist", "synthetic-digits") else 3
        assert len(mean) == len(std) == channels, name
        assert all(0.1 < value < 0.6 for value in mean) and all(0.2 < value < 0.35 for value in std)


# ---- drawn pictures ----------------------------------------------------------------------------------------------


def test_drawn_pictures_come_in_their_own_size_or_in_that_asked_for(monkeypatch):
    monkeypatch.setattr(synthetic, "TRAIN_COUNT", 30)
    monkeypatch.setattr(synthetic, "TEST_COUNT", 20)
    for name, channels, size in (("synthetic", 3, 32), ("synthetic-digits", 1, 28)):
        for image_size in (None, 16):
            dataset = load_dataset(name, Path("none"), image_size)
            assert dataset.train.pictures.shape == (30, channels, image_size or size, image_size or size)
            assert (dataset.channels, dataset.image_size) == (channels, image_size or size)
            assert dataset.val is None and len(dataset.classes) == 10
            assert dataset.test.labels.tolist() == [*range(10)] * 2
            assert dataset.flip is (name == "synthetic")


def test_sizes_that_no_machine_holds_are_refused(monkeypatch):
    refused("synthetic", Path("none"), "--image-size 4097", "4096", image_size=4097)

    def draw(*arguments):
        raise MemoryError

    monkeypatch.setattr(synthetic, "synthetic_pictures", draw)
    refused("synthetic", Path("none"), "do not fit into the memory", image_size=4096)


# ---- trees of pictures -------------------------------------------------------------------------------------------


def marks(root: Path) -> dict[Path, tuple]:
    """Content, time of the last write and mode of every file and folder but for the cache."""
    return {path: (path.is_file() and path.read_bytes(), path.stat().st_mtime_ns, path.stat().st_mode)
            for path in root.rglob("*") if ".decoded" not in path.parts}


@pytest.mark.parametrize("size", [32, 100])
def test_a_user_s_pictures_are_never_written_to(tree, size):
    before = marks(tree)
    dataset = load_dataset("imagefolder", tree, size)
    list(dataset.train.read([np.arange(24)], 0))
    assert marks(tree) == before
    assert sorted(path.name for path in tree.iterdir()) == [*[".decoded"] * (size == 32), "test", "train"]


def test_an_unwritable_folder_is_read_all_the_same(tree, monkeypatch, capsys):
    make = Path.mkdir

    def refuse(path, *arguments, **options):
        if path.name == ".decoded":
            raise OSError(30, "Read-only file system")
        make(path, *arguments, **options)

    monkeypatch.setattr(Path, "mkdir", refuse)
    assert len(load_dataset("imagefolder", tree, 32).train.pictures) == 24
    assert "decoded anew" in capsys.readouterr().err


def test_a_tree_has_64_pixels_unless_told_otherwise(tree):
    dataset = load_dataset("imagefolder", tree)
    assert dataset.train.pictures.shape == (24, 3, 64, 64) and dataset.test.pictures.shape == (12, 3, 64, 64)
    assert dataset.classes == ("a", "b", "c", "d") and dataset.flip and dataset.name == "imagefolder"
    assert dataset.train.labels.dtype == torch.int64 and dataset.train.labels.tolist() == sorted([*range(4)] * 6)


def test_pictures_up_to_64_pixels_are_in_memory_and_larger_ones_stream(tree):
    assert isinstance(load_dataset("imagefolder", tree, 64).train, datasets.Split)
    streamed = load_dataset("imagefolder", tree, 65)
    assert isinstance(streamed.train, datasets.StreamedSplit) and isinstance(streamed.test, datasets.StreamedSplit)
    assert (streamed.channels, streamed.image_size) == (3, 65) and not (tree / ".decoded" / "train-65.uint8").exists()


@pytest.mark.parametrize("workers", [0, 2])
def test_streamed_pictures_are_those_in_memory(tree, monkeypatch, workers):
    exif = Image.Exif()
    exif[0x0112] = 6
    gradient = np.arange(70 * 50 * 3, dtype=np.uint32).reshape(70, 50, 3) % 256
    Image.fromarray(gradient.astype(np.uint8)).save(tree / "train" / "a" / "0.jpg", exif=exif)
    Image.fromarray(np.full((40, 40), 15000, np.uint16)).save(tree / "train" / "b" / "0.png")
    held = load_dataset("imagefolder", tree, 48).train
    monkeypatch.setattr(datasets, "LARGEST_IN_MEMORY", 0)
    streamed = load_dataset("imagefolder", tree, 48).train
    index_batches = [np.array([24, 0, 7]), np.array([3]), np.arange(20)]
    state = torch.get_rng_state()
    for ours, theirs in zip(streamed.read(index_batches, workers), held.read(index_batches, 0), strict=True):
        assert ours.dtype == torch.uint8 and torch.equal(ours, theirs)
    assert torch.equal(streamed.labels, held.labels) and list(streamed.read([], workers)) == []
    assert torch.equal(torch.get_rng_state(), state)  # dropout draws from it: a resumed epoch reads once more


@pytest.mark.parametrize("workers", [0, 2])
def test_a_damaged_picture_ends_a_stream_with_its_path(tree, workers):
    (tree / "train" / "c" / "2.png").write_bytes(b"")
    dataset = load_dataset("imagefolder", tree, 100)
    with pytest.raises(UserError, match=r"train.c.2\.png cannot be read as a picture: it is damaged"):
        list(dataset.train.read([np.arange(start, start + 4) for start in range(0, 24, 4)], workers))


@pytest.mark.skipif(sys.platform != "linux", reason="a worker inherits the fault only where it is forked")
def test_a_worker_that_dies_is_told_in_a_line(tree, monkeypatch):
    monkeypatch.setattr(datasets._FileDataset, "__getitem__", lambda self, index: os._exit(1))
    with pytest.raises(UserError, match="--workers 0"):
        list(load_dataset("imagefolder", tree, 100).train.read([np.arange(4)], 1))


def cifar_tree(root: Path) -> None:
    for split in ("train", "test"):
        for label, name in enumerate(CIFAR10_CLASSES):
            (root / split / name).mkdir(parents=True)
            Image.new("RGB", (32, 32), (20 * label, 0, 0)).save(root / split / name / "0000.png")


def test_cifar_10_may_be_a_tree_of_its_ten_classes(tmp_path, no_network):
    cifar_tree(tmp_path)
    dataset = load_dataset("cifar10", tmp_path)
    assert dataset.classes == CIFAR10_CLASSES and dataset.train.pictures.shape == (10, 3, 32, 32)
    assert dataset.train.pictures[:, 0, 0, 0].tolist() == [20 * label for label in dataset.train.labels.tolist()]
    assert (dataset.mean, dataset.std) == STATISTICS["cifar10"] and not no_network
    shutil.copytree(tmp_path / "test" / "dog", tmp_path / "test" / "wolf")
    shutil.copytree(tmp_path / "train" / "dog", tmp_path / "train" / "wolf")
    refused("cifar10", tmp_path, "wolf", "--dataset imagefolder")
    shutil.rmtree(tmp_path / "test" / "dog")
    refused("cifar10", tmp_path, "lacks test/dog", "--dataset imagefolder")
    assert not no_network


def test_tiny_imagenet_is_a_tree_of_64_pixels_once_it_is_sorted(tree):
    assert load_dataset("tiny-imagenet", tree).train.pictures.shape == (24, 3, 64, 64)
    (tree / "test").rename(tree / "val")
    (tree / "val" / "val_annotations.txt").write_text("val_0.JPEG\ta\t0\t0\t1\t1\n", encoding="ascii")
    refused("tiny-imagenet", tree, "val_annotations.txt", "val/<wnid>/*")


# ---- torchvision's formats, written by hand -----------------------------------------------------------------------


def write_mnist(root: Path, train: int = 50, test: int = 20) -> None:
    """MNIST's files: picture i is of the shade i, its label is i modulo 10."""
    raw = root / "MNIST" / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    for name, count in (("train", train), ("t10k", test)):
        head = np.array([2051, count, 28, 28], ">i4").tobytes()
        shades = np.arange(count, dtype=np.uint8).repeat(28 * 28).tobytes()
        (raw / f"{name}-images-idx3-ubyte").write_bytes(head + shades)
        labels = (np.arange(count) % 10).astype(np.uint8).tobytes()
        (raw / f"{name}-labels-idx1-ubyte").write_bytes(np.array([2049, count], ">i4").tobytes() + labels)


@pytest.mark.parametrize("size", [None, 32])
def test_mnist_is_read_as_one_channel(tmp_path, no_network, size):
    write_mnist(tmp_path)
    dataset = load_dataset("mnist", tmp_path, size)
    assert dataset.train.pictures.shape == (50, 1, size or 28, size or 28) and len(dataset.test.labels) == 20
    assert dataset.train.pictures.is_contiguous() and dataset.train.pictures.dtype == torch.uint8
    assert dataset.train.pictures[:, 0, 5, 7].tolist() == list(range(50))
    assert dataset.train.labels.dtype == torch.int64 and dataset.train.labels.tolist() == [*range(10)] * 5
    assert not dataset.flip and dataset.mean == (0.1307,) and not no_network


@pytest.fixture
def write_cifar(monkeypatch):
    """Writes CIFAR-10 or CIFAR-100 in little, and has torchvision take its checksums for the right ones.

    Picture i is i in red, i + 1 in green, i + 2 in blue, but for the sixth pixel of its first row, which is 250 in red;
    its label is i modulo the number of classes.
    """

    def write(root: Path, name: str, count: int = 20) -> type:
        kind = {"cifar10": torchvision_datasets.CIFAR10, "cifar100": torchvision_datasets.CIFAR100}[name]
        classes, key = (10, "labels") if name == "cifar10" else (100, "fine_labels")
        folder = root / kind.base_folder
        folder.mkdir(parents=True)

        def save(file: str, content: dict) -> list[str]:
            (folder / file).write_bytes(pickle.dumps(content))
            return [file, hashlib.md5((folder / file).read_bytes()).hexdigest()]

        for attribute in ("train_list", "test_list"):
            files, start = [], 0
            for file, _ in getattr(kind, attribute):
                index = np.arange(start, start + count)
                data = (index[:, None] + np.arange(3)).astype(np.uint8).repeat(1024, axis=1)
                data[:, 5] = 250
                files.append(save(file, {"data": data, key: (index % classes).tolist()}))
                start += count
            monkeypatch.setattr(kind, attribute, files)
        names = [f"class {label}" for label in range(classes)]
        file, md5 = save(kind.meta["filename"], {kind.meta["key"]: names})
        monkeypatch.setattr(kind, "meta", {**kind.meta, "md5": md5})
        return kind

    return write


@pytest.mark.parametrize("name, count, classes", [("cifar10", 100, 10), ("cifar100", 20, 100)])
def test_cifar_is_read_in_torchvision_s_format(tmp_path, write_cifar, no_network, name, count, classes):
    write_cifar(tmp_path, name)
    dataset = load_dataset(name, tmp_path)
    assert dataset.train.pictures.shape == (count, 3, 32, 32) and dataset.train.pictures.is_contiguous()
    assert dataset.train.pictures[:, :, 3, 30].tolist() == [[i, i + 1, i + 2] for i in range(count)]
    assert (dataset.train.pictures[0, 0] == 250).nonzero().tolist() == [[0, 5]]
    assert dataset.train.labels.tolist() == [i % classes for i in range(count)] and len(dataset.test.labels) == 20
    assert dataset.classes == tuple(f"class {label}" for label in range(classes))
    assert dataset.val is None and dataset.flip and not no_network
    assert load_dataset(name, tmp_path, 24).train.pictures.shape == (count, 3, 24, 24)


def test_an_archive_that_the_user_put_there_is_unpacked_without_a_network(tmp_path, write_cifar, no_network, capsys,
                                                                          monkeypatch):
    kind = write_cifar(tmp_path, "cifar10")
    archive = tmp_path / kind.filename
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(tmp_path / kind.base_folder, kind.base_folder)
    monkeypatch.setattr(kind, "tgz_md5", hashlib.md5(archive.read_bytes()).hexdigest())
    whole = archive.read_bytes()
    (tmp_path / kind.base_folder / "data_batch_3").unlink()
    archive.write_bytes(whole[:len(whole) * 9 // 10])
    refused("cifar10", tmp_path, f"damaged: {kind.filename}; missing: {Path(kind.base_folder, 'data_batch_3')}",
            str(tmp_path), "--data-dir", "--dataset synthetic")
    archive.write_bytes(whole)
    no_network.clear()
    capsys.readouterr()
    assert len(load_dataset("cifar10", tmp_path).train.labels) == 100 and not no_network
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("name, file", [("cifar10", "cifar-10-batches-py/data_batch_1"),
                                        ("cifar100", "cifar-100-python/train"),
                                        ("mnist", "MNIST/raw/train-images-idx3-ubyte")])
def test_a_failed_download_names_what_is_missing_and_both_ways_out(tmp_path, no_network, capfd, name, file):
    refused(name, tmp_path / "new", f"{name} is not whole in {tmp_path / 'new'} (missing: {Path(file)}",
            "no network in a test", "--data-dir", "--dataset synthetic")
    said = capfd.readouterr()
    assert no_network and said.err == "" and len(said.out.splitlines()) == 1 and "downloading" in said.out
    assert socket.getdefaulttimeout() is None


def test_a_download_waits_for_a_silent_server_only_so_long(tmp_path, monkeypatch):
    waits = []

    def stall(request, *arguments, **options):
        waits.append(socket.getdefaulttimeout())
        raise TimeoutError("timed out")

    monkeypatch.setattr(urllib.request, "urlopen", stall)
    refused("cifar10", tmp_path, "TimeoutError", "--dataset synthetic")
    assert waits[0] == datasets.DOWNLOAD_TIMEOUT


def test_a_page_in_place_of_the_archive_is_told_and_replaced_by_a_later_copy(tmp_path, write_cifar, monkeypatch, capfd):
    page = b"<html>welcome</html>"
    answer = SimpleNamespace(url=None, length=len(page))

    def open_page(request, *arguments, **options):
        answer.read = io.BytesIO(page).read
        return contextlib.nullcontext(answer)

    monkeypatch.setattr(urllib.request, "urlopen", open_page)
    refused("cifar10", tmp_path, "damaged: cifar-10-python.tar.gz", "not found or corrupted")
    assert capfd.readouterr().err == ""  # torchvision's bar is for a terminal
    write_cifar(tmp_path, "cifar10")
    assert len(load_dataset("cifar10", tmp_path).train.labels) == 100


def test_a_damaged_batch_is_named(tmp_path, write_cifar):
    kind = write_cifar(tmp_path, "cifar10")
    (tmp_path / kind.base_folder / "data_batch_2").write_bytes(b"half")
    (tmp_path / kind.base_folder / "test_batch").unlink()
    folder = Path(kind.base_folder)
    refused("cifar10", tmp_path, f"damaged: {folder / 'data_batch_2'}; missing: {folder / 'test_batch'}")


def test_a_damaged_mnist_is_told(tmp_path):
    write_mnist(tmp_path)
    file = tmp_path / "MNIST" / "raw" / "t10k-images-idx3-ubyte"
    file.write_bytes(file.read_bytes()[:5000])
    refused("mnist", tmp_path, "all files are there, but one is damaged", "--dataset synthetic")


@pytest.mark.parametrize("name, depth", [("cifar10", 1), ("cifar100", 1), ("mnist", 1), ("mnist", 2)])
def test_a_folder_inside_the_data_set_is_told_from_the_one_above(tmp_path, write_cifar, no_network, name, depth):
    if name == "mnist":
        write_mnist(tmp_path)
        inside = tmp_path.joinpath(*("MNIST", "raw")[:depth])
    else:
        inside = tmp_path / write_cifar(tmp_path, name).base_folder
    refused(name, inside, str(inside), f"give the folder {tmp_path}")
    assert not no_network


def test_other_data_never_take_the_place_of_what_was_asked_for(tree, no_network):
    for name in ("cifar10", "cifar100", "mnist"):
        refused(name, tree, f"{name} is not whole")
    refused("imagefolder", tree / "train", "is no tree of pictures")
    refused("tiny-imagenet", tree / "none", "no such folder")
