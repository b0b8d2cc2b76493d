"""The folder that a run writes: which one it is, what is in it, and that nobody else writes there."""

from __future__ import annotations

import os
import re
import weakref
from pathlib import Path

from utils import UserError, temporary_path

try:
    import fcntl
except ImportError:  # Windows has no flock: two runs started in one folder are then not noticed
    fcntl = None

CONFIG = "config.json"
HISTORY = "history.json"
BEST_MODEL = "best_model.pth"
LAST_CHECKPOINT = "last_checkpoint.pth"
RESULT = "result.json"
CURVES = "curves.png"
CONFUSION_MATRIX = "confusion_matrix.png"
PREDICTIONS = "predictions.png"
FILES = (CONFIG, HISTORY, BEST_MODEL, LAST_CHECKPOINT, RESULT, CURVES, CONFUSION_MATRIX, PREDICTIONS)


class RunFolder:
    """A folder held as long as this object or the process lives: `folder / BEST_MODEL` is the path of a file in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # The lock is the kernel's: it goes with the process, however that ends, and leaves no file behind.
        if fcntl is not None:
            descriptor = os.open(path, os.O_RDONLY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                raise UserError(f"{path.absolute()} is in use by another run; choose another --output-dir") from None
            except OSError as error:
                print(f"note: two runs in {path.absolute()} at once would not be noticed: it cannot be locked "
                      f"({error.strerror})")
            self._release = weakref.finalize(self, os.close, descriptor)
            # A worker outlives a killed run for some seconds, in which it must not keep the next one out.
            os.register_at_fork(after_in_child=self._release)
        for left in map(temporary_path, (path / name for name in FILES)):
            if left.exists():  # a killed write left it behind
                left.unlink()

    def __truediv__(self, name: str) -> Path:
        return self.path / name


def create(named: Path | None, default: Path, overwrite: bool) -> RunFolder:
    """Make the folder of a new run.

    `named` by hand: refused if it already holds a run, unless `overwrite` (then the old run's files, and no others, are
    removed). Else `default`, with -2, -3, ... appended if that is taken.
    """
    try:
        if named is None:
            return RunFolder(_make_unused(default))
        named.mkdir(parents=True, exist_ok=True)
        folder = RunFolder(named)
        if holds_run(named):
            if not overwrite:
                raise UserError(f"{named.absolute()} already holds a run; continue it with --resume, replace it with "
                                "--overwrite, or choose another --output-dir")
            for name in FILES:
                (named / name).unlink(missing_ok=True)
        return folder
    except OSError as error:
        raise UserError(f"the run folder {named or default} cannot be made: {error.strerror}; "
                        "choose another --output-dir") from None


def find(named: Path | None, default: Path) -> Path:
    """The folder of the run that `--resume` continues: `named`, or the only unnamed run; it is not touched."""
    if named is not None:
        candidates = [named] if (named / LAST_CHECKPOINT).is_file() else []
    else:
        candidates = sorted(path for path in default.parent.glob("*") if (path / LAST_CHECKPOINT).is_file()
                            and re.fullmatch(re.escape(default.name) + r"(-\d+)?", path.name))
    if len(candidates) > 1:
        raise UserError(f"there are several runs: {', '.join(map(str, candidates))}; name one with --output-dir")
    if not candidates:
        folder = (named or default).absolute()
        weights = f" (of {BEST_MODEL} alone, --evaluate can be asked)" if (folder / BEST_MODEL).exists() else ""
        raise UserError(f"there is nothing to resume: {folder / LAST_CHECKPOINT} is not there{weights}; "
                        "leave --resume away for a first run, or name the run's folder with --output-dir")
    return candidates[0]


def holds_run(path: Path) -> bool:
    """Whether any of a run's files is in the folder."""
    return any((path / name).exists() for name in FILES)


def _make_unused(default: Path) -> Path:
    default.parent.mkdir(parents=True, exist_ok=True)
    number = 1
    while True:
        path = default if number == 1 else default.with_name(f"{default.name}-{number}")
        try:
            path.mkdir()
            return path
        except FileExistsError:
            number += 1
