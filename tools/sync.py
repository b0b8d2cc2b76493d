"""Copies the files that folders share, byte for byte, from where they are written to the folders that receive them.

    python tools/sync.py            copy what differs, saying what
    python tools/sync.py --check    write nothing; list what differs, exit status 1 if anything does

Nothing is imported across folders, so that each is complete by itself: they hold copies, which this keeps equal.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent

# (written in, what, received by). A name that ends with "/" is a directory with all that is in it.
SHARED = (
    (
        "Task1",
        (
            "options.py",
            "run_folder.py",
            "interrupts.py",
            "data.py",
            "datasets.py",
            "folders.py",
            "pictures.py",
            "augment.py",
            "trivial_augment.py",
            "synthetic.py",
            "plots.py",
            "tracking.py",
            "schedules.py",
        ),
        ("Task2", "Bonus"),
    ),
    ("Task1", ("utils.py", "checkpoints.py"), ("Task2", "Task3", "Bonus")),
    ("Task1", ("models.py", "training.py"), ("Task2",)),
    ("Task3", ("mytorch/", "src/", "setup.py", "extension.py"), ("Bonus",)),
)

# What Python, a compiler, an editor or the desktop leaves in a directory: neither copied nor deleted.
IGNORED = ("__pycache__", "*.py[cod]", "build", "*.egg-info", "*.so", "*.pyd", "*.o", "*.obj", ".*")


class Difference(NamedTuple):
    """A file that a receiver lacks (`missing`), holds with other content (`differs`) or should not hold (`extra`)."""

    kind: str
    source: Path
    copy: Path


class SyncError(Exception):
    """The table and the folders do not fit together; the text says where."""


def find_differences(root: Path, shared=SHARED) -> list[Difference]:
    """Compare every receiver under `root` with its sources. Folders that do not exist (yet) are left out.

    Raises SyncError if an existing folder lacks a file or directory that `shared` says is written there.
    """
    differences = []
    for folder, names, receivers in shared:
        if not (root / folder).is_dir():
            continue
        for name in names:
            source = root / folder / name
            if not (source.is_dir() if name.endswith("/") else source.is_file()):
                kind = "directory" if name.endswith("/") else "file"
                raise SyncError(f"{folder}/{name} is no {kind}: add it, or change SHARED in tools/sync.py")
            for receiver in receivers:
                if (root / receiver).is_dir():
                    differences += _compare(source, root / receiver / name)
    return differences


def _compare(source: Path, copy: Path) -> list[Difference]:
    """Differences between one source and its copy, each a file or a directory."""
    sources, copies = _files(source), _files(copy)
    differences = []
    for path in sorted(sources | copies):
        pair = (source / path, copy / path)
        if path not in sources:
            differences.append(Difference("extra", *pair))
        elif path not in copies:
            differences.append(Difference("missing", *pair))
        elif pair[0].read_bytes() != pair[1].read_bytes():
            differences.append(Difference("differs", *pair))
    return differences


def _files(path: Path) -> set[Path]:
    """Files under a directory, relative to it, without the ignored ones; of a file, the empty relative path."""
    if not path.is_dir():
        return {Path()} if path.exists() else set()
    relative = (file.relative_to(path) for file in path.rglob("*") if not file.is_dir())
    return {file for file in relative if not any(fnmatch(part, name) for part in file.parts for name in IGNORED)}


def apply(difference: Difference) -> None:
    """Make the copy equal to its source: replace it whole, or delete it and the directories that it leaves empty."""
    _, source, copy = difference
    if difference.kind == "extra":
        copy.unlink()
        directory = copy.parent
        while not any(directory.iterdir()):
            directory.rmdir()
            directory = directory.parent
        return
    copy.parent.mkdir(parents=True, exist_ok=True)
    # Written beside the copy and renamed: whoever stops this half-way finds the old file or the new one.
    handle, temporary = tempfile.mkstemp(prefix=".sync-", dir=copy.parent)
    os.close(handle)
    try:
        shutil.copyfile(source, temporary)
        shutil.copymode(source, temporary)
        os.replace(temporary, copy)
    except BaseException:
        os.unlink(temporary)
        raise


def main(arguments: list[str] | None = None, root: Path = ROOT, shared=SHARED) -> int:
    parser = argparse.ArgumentParser(description="Copy the files that folders share to the folders that receive them.")
    parser.add_argument("--check", action="store_true", help="write nothing; list what differs and exit with status 1")
    check = parser.parse_args(arguments).check
    done = {"missing": "copied", "differs": "overwritten", "extra": "deleted"}
    try:
        differences = find_differences(root, shared)
        # What is extra goes first: a file may have become a directory, or the other way round.
        for difference in sorted(differences, key=lambda difference: difference.kind != "extra"):
            source, copy = (path.relative_to(root).as_posix() for path in (difference.source, difference.copy))
            if check:
                print(f"{source} -> {copy}: {difference.kind}, run python tools/sync.py")
            else:
                apply(difference)
                print(f"{source} -> {copy}: {done[difference.kind]}")
    except (SyncError, OSError) as error:
        print(f"sync: {error}", file=sys.stderr)
        return 1
    return 1 if check and differences else 0


if __name__ == "__main__":
    sys.exit(main())
