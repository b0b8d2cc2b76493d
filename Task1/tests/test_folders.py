"""Which files of a tree are pictures, and what is said of a tree that has none."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from folders import EXTENSIONS, find_splits
from utils import UserError


def refused(root: Path, *words: str) -> None:
    """The tree is refused in one line that has these words in it."""
    with pytest.raises(UserError) as caught:
        find_splits(root)
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


def test_pictures_are_listed_in_the_order_of_their_paths_under_alphabetical_classes(tree):
    found = find_splits(tree)
    assert list(found) == ["train", "test"]
    assert found["train"].classes == found["test"].classes == ["a", "b", "c", "d"]
    assert found["train"].labels == [0] * 6 + [1] * 6 + [2] * 6 + [3] * 6
    names = [os.path.relpath(path, tree) for path in found["test"].paths]
    assert names == [os.path.join("test", name, f"{index}.png") for name in "abcd" for index in range(3)]


def test_what_other_programs_leave_is_passed_over(tree):
    clean = find_splits(tree)
    for split in ("train", "test"):
        for folder in (".ipynb_checkpoints", "__MACOSX", ".git", "a/.ipynb_checkpoints", "a/__MACOSX"):
            (tree / split / folder).mkdir()
            shutil.copy(tree / "train" / "a" / "0.png", tree / split / folder / "x.png")
        (tree / split / ".DS_Store").write_bytes(bytes(100))
        (tree / split / "loose.png").write_bytes(bytes(100))
        for name in ("._0001.jpg", ".DS_Store", "Thumbs.db", "notes.txt", "boxes.csv", "png"):
            (tree / split / "a" / name).write_bytes(bytes(4096))
    (tree / ".decoded").mkdir()
    assert find_splits(tree) == clean


def test_every_extension_counts_in_any_case_and_at_any_depth(tree):
    folder = tree / "train" / "a" / "images" / "first.png"  # a folder whose name looks like a picture's
    folder.mkdir(parents=True)
    for extension in EXTENSIONS:
        (folder / f"x{extension.upper()}").write_bytes(b"x")
    assert len(find_splits(tree)["train"].paths) == 24 + len(EXTENSIONS)


def test_names_outside_ascii_are_found(tree):
    (tree / "train" / "a").rename(tree / "train" / "\u732b \u00e9")
    (tree / "test" / "a").rename(tree / "test" / "\u732b \u00e9")
    assert find_splits(tree)["train"].classes == ["b", "c", "d", "\u732b \u00e9"]


def test_names_that_are_no_utf_8_are_found(tree):
    folder = os.fsencode(tree / "train" / "a")
    try:
        os.rename(os.path.join(folder, b"0.png"), os.path.join(folder, b"\xff.png"))
    except OSError:  # macOS and Windows have no such names
        return
    assert os.fsencode(find_splits(tree)["train"].paths[5]).endswith(b"\xff.png")


@pytest.mark.parametrize("lacking, having", [("test", "train"), ("train", "test")])
def test_a_class_that_a_split_lacks_is_named(tree, lacking, having):
    shutil.rmtree(tree / lacking / "c")
    refused(tree, f"the split '{lacking}' of {tree} lacks the class 'c' that '{having}' has")


def test_a_class_whose_name_differs_in_case_is_another(tree):
    (tree / "test" / "c").rename(tree / "test" / "C")
    refused(tree, "the split 'test'", "lacks the class 'c'")


def test_a_class_without_pictures_is_named(tree):
    shutil.rmtree(tree / "test" / "b")
    (tree / "test" / "b").mkdir()
    refused(tree, f"the class folder {tree / 'test' / 'b'} has no picture in it", ".jpeg")


def test_val_is_the_test_split_unless_there_is_one(tree):
    (tree / "test").rename(tree / "val")
    assert {name: files.root.name for name, files in find_splits(tree).items()} == {"train": "train", "test": "val"}
    shutil.copytree(tree / "val", tree / "test")
    assert {name: files.root.name for name, files in find_splits(tree).items()} == {
        "train": "train", "val": "val", "test": "test"}
    shutil.rmtree(tree / "val" / "c")
    refused(tree, "the split 'val'", "'c'")


def test_another_layout_is_told_from_what_is_wanted(tree, tmp_path):
    wanted = "train/<class>/* and test/<class>/*"
    refused(tree / "train", str(tree / "train"), wanted, "found a, b, c, d")
    refused(tree / "train" / "a", str(tree / "train" / "a"), wanted, "found 0.png, 1.png")
    refused(tmp_path, str(tmp_path), wanted, "found tree")
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", str(tmp_path / "empty"), wanted, "found nothing")
    refused(tmp_path / "none", str(tmp_path / "none"), wanted, "no such folder")
    refused(tree / "train" / "a" / "0.png", "0.png is a file", wanted)
    shutil.rmtree(tree / "train")
    refused(tree, str(tree), wanted, "found test")
    shutil.copytree(tree / "test" / "a", tree / "train")
    refused(tree, f"{tree / 'train'} has no class folders (3 pictures lie directly in it)", wanted)


def test_links_are_followed_and_broken_ones_are_named(tree, tmp_path):
    (tree / "train" / "d").rename(tmp_path / "elsewhere")
    (tree / "train" / "d").symlink_to(tmp_path / "elsewhere")
    (tree / "train" / "a" / "9.png").symlink_to(tree / "test" / "a" / "0.png")
    found = find_splits(tree)["train"]
    assert len(found.paths) == 25 and found.labels.count(3) == 6
    for target in ("nowhere", "8.png"):  # the second leads to itself
        (tree / "train" / "a" / "8.png").symlink_to(target)
        refused(tree, f"{tree / 'train' / 'a' / '8.png'} cannot be read")
        (tree / "train" / "a" / "8.png").unlink()
    (tree / "train" / "a" / "up").symlink_to("..")
    refused(tree, f"{tree / 'train' / 'a' / 'up'}", "cannot be read: ")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_is_refused_rather_than_waited_for(tree):
    os.mkfifo(tree / "train" / "a" / "pipe.png")
    refused(tree, "pipe.png cannot be read")


def test_a_folder_that_the_system_refuses_is_named(tree, monkeypatch):
    scandir = os.scandir

    def scan(folder):
        if Path(folder).name == "b":
            raise PermissionError(13, "Permission denied", os.fspath(folder))
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", scan)
    refused(tree, f"{tree / 'train' / 'b'} cannot be read: Permission denied")


def test_a_name_too_long_for_the_system_is_one_line():
    refused(Path("x" * 5000), "x" * 5000)
