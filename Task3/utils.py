"""What every script needs: errors for the user, seeds and devices, files that are whole or absent."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import platform
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

PROJECT_VERSION = "1.0.0"

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of mallopt(3)


class UserError(Exception):
    """Something that the user can mend; its text is the one line that `main` prints before it exits with status 1."""


# ---- random numbers ----------------------------------------------------------------------------------------------

# Every use of chance has a stream of its own, derived from the seed by numpy.random.SeedSequence. No stream depends on
# how much another was used: the split does not change with the model, nor the order of pictures with the workers.
_STREAMS = {"split": 0, "order": 1, "augment": 2}


def random_stream(seed: int, purpose: str, epoch: int = 0) -> np.random.Generator:
    """The random generator of one purpose ("split", "order" or "augment") in one epoch."""
    return np.random.default_rng([seed, _STREAMS[purpose], epoch])


def set_seed(seed: int) -> None:
    """Seed torch's generators, which the initial weights and dropout draw from."""
    torch.manual_seed(seed)


def random_state() -> dict[str, Any]:
    """torch's generators (dropout draws from them); all other chance is a function of seed and epoch."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {"cpu": torch.get_rng_state(), "cuda": cuda}


def set_random_state(state: dict[str, Any]) -> None:
    """Restore what `random_state` returned; the GPUs' generators only if as many GPUs are there."""
    torch.set_rng_state(state["cpu"].cpu())
    if state["cuda"] and len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all([generator.cpu() for generator in state["cuda"]])


# ---- the machine ---------------------------------------------------------------------------------------------------


def choose_device(name: str) -> torch.device:
    """The device of `--device`: `auto` takes the first GPU if there is one; a GPU that is not there is an error."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    kind, _, index = name.partition(":")
    if kind == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if count == 0:
            raise UserError(f"--device {name}: no usable GPU (torch {torch.__version__} sees none); use --device cpu")
        if index and int(index) >= count:  # torch.device itself takes 256 for 0
            raise UserError(f"--device {name}: there are {count} GPUs, cuda:0 to cuda:{count - 1}")
    return torch.device(name)


def device_name(device: torch.device) -> str:
    """The device as a person names it: the GPU's product name, or `cpu`."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def keep_freed_memory() -> None:
    """Let the process keep the memory that it frees, for the next training step.

    glibc gives big blocks back to the system at once, and the next step gets them again page by page: for MiniVGG with
    batches of 128 that was measured as 18,000 page faults a step. Where the C library is another, nothing is changed.
    """
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, 2**25)  # the most that it takes; what is larger still comes and goes
        libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


def versions() -> dict[str, str]:
    """What the numbers of a run depend on besides its flags."""
    torch_version = str(torch.__version__)  # a subclass of str, which loading with weights_only refuses
    return {"project": PROJECT_VERSION, "python": platform.python_version(), "torch": torch_version,
            "numpy": np.__version__}


# ---- the terminal ------------------------------------------------------------------------------------------------


def prepare_output() -> None:
    """Make stdout and stderr take every text, whatever the caller left of them."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed: nothing is said, and no file of the run becomes descriptor 1 or 2
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="ascii"))
        # A class named in Chinese must not end a run under LC_ALL=C; a log shows each line as soon as it is there.
        getattr(sys, name).reconfigure(errors="backslashreplace", line_buffering=True)


def discard_output() -> None:
    """Drop what could not be written to stdout: Python would try once more, and complain, when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def progress_bar(description: str, total: int, unit: str, *, done: int = 0, shown: bool = True) -> tqdm:
    """A bar that goes when it is finished, and is not there if nobody watches: stderr is a file or a pipe."""
    columns, lines = shutil.get_terminal_size()  # 80x24 where a terminal knows no size: tqdm alone would show nothing
    return tqdm(desc=description, total=total, unit=unit, initial=done, leave=False, ncols=columns, nrows=lines,
                disable=None if shown else True)


# ---- files -------------------------------------------------------------------------------------------------------


def temporary_path(path: Path) -> Path:
    """Where the new content of a file is written before it takes the file's place."""
    return path.with_name(f".{path.name}.tmp")


def write_file(path: Path, content: bytes) -> None:
    """Write a file so that whoever looks, at any moment and after any crash, finds the old content or the new one.

    The temporary name is fixed, so what a killed write leaves behind is overwritten by the next one.
    """
    temporary = temporary_path(path)
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):  # a read-only disk refuses that too
            temporary.unlink()
        raise UserError(f"{path} cannot be written: {error.strerror or error}; free some space or "
                        "choose another folder") from None


def write_json(path: Path, value: Any) -> None:
    """Write strict JSON (no NaN), in ASCII, so that any locale reads it."""
    write_file(path, (json.dumps(value, indent=2, allow_nan=False) + "\n").encode("ascii"))
