"""Which pictures a tree of class folders holds, told apart from what other programs leave in it."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from utils import UserError

EXTENSIONS = {".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp"}  # those of torchvision
LAYOUT = "train/<class>/* and test/<class>/* (or val/<class>/*)"


@dataclass
class PictureFiles:
    """The pictures of one split, in the order of their paths."""

    root: Path
    classes: list[str]
    """Alphabetical, as torchvision's ImageFolder numbers them."""
    paths: list[str]
    labels: list[int]
    fingerprints: list[tuple]
    """For each file: size, times of the last change of content and of anything, and inode."""


def find_pictures(root: Path) -> PictureFiles:
    """List the pictures below `root/<class>/`, at any depth.

    Hidden files and folders (a leading dot: .DS_Store, ._x.jpg, .git, .ipynb_checkpoints), __MACOSX and files without
    a picture's extension are passed over; links are followed. Raises `UserError` if there is no class folder, or one
    without a picture, and `OSError` for what cannot be read.
    """
    entries = _entries(root)
    folders = [entry.name for entry in entries if entry.is_dir()]
    # Names are UTF-8 whatever the locale: LC_ALL=C must not rename a class.
    classes = [os.fsencode(name).decode("utf-8", "surrogateescape") for name in folders]
    if not classes:
        loose = sum(_is_picture(entry.name) for entry in entries)
        raise UserError(f"{root.absolute()} has no class folders ({loose} pictures lie directly in it); "
                        f"wanted: {LAYOUT}")
    found = PictureFiles(root, classes, [], [], [])
    for label, name in enumerate(folders):
        before = len(found.paths)
        _collect(os.path.join(root, name), label, found)
        if len(found.paths) == before:
            raise UserError(f"the class folder {(root / name).absolute()} has no picture in it "
                            f"({', '.join(sorted(EXTENSIONS))}); remove it or fill it")
    return found


def find_splits(data_dir: Path) -> dict[str, PictureFiles]:
    """The splits `train`, `test` and, if there is one, `val` of a tree of class folders.

    With both `test/` and `val/`, `val/` is the validation split. With one of them, that is the test split, and
    validation is cut out of the training pictures. Raises `UserError` if a split has a class that another lacks, or
    something cannot be read.
    """
    try:
        return _find_splits(data_dir)
    except OSError as error:
        raise UserError(f"{os.fspath(error.filename)} cannot be read: {error.strerror}; mend or remove it, or give "
                        "another --data-dir") from None


def _find_splits(data_dir: Path) -> dict[str, PictureFiles]:
    if not data_dir.is_dir():
        there = "a file" if data_dir.exists() else "no such folder"
        raise UserError(f"{data_dir.absolute()} is {there}; give --data-dir a folder with {LAYOUT}")
    present = [name for name in ("train", "val", "test") if (data_dir / name).is_dir()]
    if "train" not in present or len(present) < 2:
        there = ", ".join(entry.name for entry in _entries(data_dir)[:6]) or "nothing"
        raise UserError(f"{data_dir.absolute()} is no tree of pictures: wanted {LAYOUT}; found {there}")
    splits = {name: find_pictures(data_dir / name) for name in present}
    for name in present[1:]:
        ours, theirs = set(splits["train"].classes), set(splits[name].classes)
        for lacking, having, missing in ((name, "train", ours - theirs), ("train", name, theirs - ours)):
            if missing:
                raise UserError(f"the split {lacking!r} of {data_dir.absolute()} lacks the class "
                                f"{', '.join(map(repr, sorted(missing)[:3]))} that {having!r} has")
    if "test" not in splits:
        splits["test"] = splits.pop("val")
    return splits


def _collect(folder: str, label: int, found: PictureFiles) -> None:
    for entry in _entries(folder):
        if entry.is_dir():
            _collect(entry.path, label, found)
        elif _is_picture(entry.name):
            marks = entry.stat()
            if not stat.S_ISREG(marks.st_mode):
                raise UserError(f"{entry.path} cannot be read: it is no file but a pipe, socket or device; remove it")
            found.paths.append(entry.path)
            found.labels.append(label)
            found.fingerprints.append((marks.st_size, marks.st_mtime_ns, marks.st_ctime_ns, marks.st_ino))


def _entries(folder: str | Path) -> list[os.DirEntry]:
    with os.scandir(folder) as entries:
        return sorted((entry for entry in entries if not entry.name.startswith(".") and entry.name != "__MACOSX"),
                      key=lambda entry: entry.name)


def _is_picture(name: str) -> bool:
    return os.path.splitext(name)[1].lower() in EXTENSIONS
