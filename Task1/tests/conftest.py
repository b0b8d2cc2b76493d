"""Puts the folder's modules on the path, and runs the program as a user would."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

FOLDER = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(FOLDER))
from training import Precision  # noqa: E402  (found through the line above)

torch.set_num_threads(1)  # what the tests compute is too little to share
collect_ignore = ["test_faults.py", "test_run_folder.py"] if os.name == "nt" else []  # signals, locks, terminals


@pytest.fixture(scope="session")
def program():
    """Runs `python main.py ...` in a process of its own; returns the finished process with its output as text."""

    def run(*arguments: object, timeout: float = 120, **options) -> subprocess.CompletedProcess:
        command = [sys.executable, str(FOLDER / "main.py"), *map(str, arguments), "--threads", "1"]
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout, **options)

    return run


@pytest.fixture(autouse=True)
def signals():
    """Gives Ctrl-C back its meaning after a test in which `main` was interrupted, and ignores what comes later."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree of pictures: train and test, classes a to d, 6 and 3 pictures of 32x32 each, of one shade a class."""
    return make_tree(tmp_path / "tree")


def make_tree(tree: Path) -> Path:
    for split, count in (("train", 6), ("test", 3)):
        for label, name in enumerate("abcd"):
            folder = tree / split / name
            folder.mkdir(parents=True)
            for index in range(count):
                shade = np.full((32, 32, 3), 20 + 60 * label + index, np.uint8)
                Image.fromarray(shade).save(folder / f"{index}.png")
    return tree


class Overflowing(Precision):
    """float32 with a scaler that starts so high that the first gradients overflow."""

    def __init__(self, amp: str, device: torch.device) -> None:
        super().__init__("off", device)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
