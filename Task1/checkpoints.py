"""Reading and writing `.pth` files: whole or absent, never run as code, and matched to the model key by key."""

from __future__ import annotations

import contextlib
import io
import json
import pickle
import warnings
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from run_folder import CONFIG
from utils import UserError, write_file

FORMAT = 2  # of last_checkpoint.pth; raised when its content changes
RESUMABLE = {"config": dict, "model": dict, "optimizer": dict, "random_state": dict, "epoch": int, "batch": int,
             "seconds": float, "training_seconds": float, "best_accuracy": float, "best_epoch": int, "history": list}
WRAPPER_PREFIXES = ("module.", "_orig_mod.")  # what DataParallel and torch.compile put before every key


def save(path: Path, content: Any) -> None:
    """Write a checkpoint; equal content gives equal bytes."""
    buffer = io.BytesIO()  # torch.save writes the file's name into the archive; a buffer has none
    torch.save(content, buffer)
    write_file(path, buffer.getvalue())


def load(path: Path) -> dict[str, Any]:
    """Read a checkpoint onto the CPU as a dictionary; what is none is refused in one line, and no code in it runs."""
    if not path.is_file():
        raise UserError(f"{path.absolute()} is not there or is no file; name a best_model.pth or last_checkpoint.pth")
    try:
        stored = io.BytesIO(path.read_bytes())  # given a path, torch.load raises OSError for some files cut off
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror or error}); check its permissions") from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's guesses about what it cannot read: the error says enough
            content = torch.load(stored, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        what = "holds" if zipfile.is_zipfile(path) else "is no checkpoint, is cut off, or holds"
        raise UserError(f"{path} {what} more than tensors and plain values; it is refused, since loading it could run "
                        "code: save model.state_dict() instead of the model, and no NumPy values") from None
    except Exception as error:  # torch.load raises whatever its parsers meet in a foreign or truncated file
        raise UserError(f"{path} is no checkpoint, or is cut off ({type(error).__name__}); "
                        "name a best_model.pth or last_checkpoint.pth") from None
    if not isinstance(content, dict):
        raise UserError(f"{path} holds a {type(content).__name__}, not a state_dict; save model.state_dict()")
    return content


def read_weights(path: Path, expected: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], str | None]:
    """The weights of a `best_model.pth`, or of the model inside a `last_checkpoint.pth`, for a model with such weights.

    They have the dtypes of the `expected`. Also returns a note for the user if the keys had to be mended. Raises
    `UserError` with the first keys or shapes that differ, or of the first weight that is not finite.
    """
    content = load(path)
    weights, note = unwrapped(content["model"] if isinstance(content.get("model"), dict) else content)
    check_match(weights, expected, str(path))
    weights = {key: tensor.detach().to(expected[key].dtype) for key, tensor in weights.items()}
    diverged = next((key for key, tensor in weights.items() if not tensor.isfinite().all()), None)
    if diverged is not None:
        raise UserError(f"{path} is of a network that has diverged: {diverged} is not finite; take an earlier one")
    return weights, note


def run_config(path: Path) -> dict[str, Any]:
    """The configuration of the run in whose folder a checkpoint lies; empty if it lies elsewhere."""
    config = None
    with contextlib.suppress(OSError, ValueError):
        config = json.loads((path.parent / CONFIG).read_text(encoding="utf-8"))
    return config if isinstance(config, dict) else {}


def check_classes(path: Path, classes: Sequence[str]) -> None:
    """Raise `UserError` if the run that wrote the checkpoint had other classes, or had them in another order.

    A run's folder holds its configuration; of a checkpoint that lies alone nothing is known.
    """
    learned = run_config(path).get("classes")
    if not isinstance(learned, list) or learned == list(classes):
        return
    number = next((k for k, pair in enumerate(zip(learned, classes, strict=False)) if pair[0] != pair[1]), None)
    what = (f"{len(learned)} classes, the data set has {len(classes)}" if number is None else
            f"{learned[number]!r} as class {number}, where the data set has {classes[number]!r}")
    raise UserError(f"{path} was trained with {what}; give the --dataset and --data-dir that it was trained with")


def unwrapped(state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], str | None]:
    """The state without wrappers' prefixes (also nested ones), and a note if there were any."""
    mended = dict(state)
    removed = ""
    while mended and (prefix := next((p for p in WRAPPER_PREFIXES if all(str(k).startswith(p) for k in mended)), None)):
        mended = {key.removeprefix(prefix): value for key, value in mended.items()}
        removed += prefix
    return mended, f"note: removed the prefix {removed!r} from the checkpoint's keys" if removed else None


def check_match(state: Mapping[str, Tensor], expected: Mapping[str, Tensor], source: str) -> None:
    """Raise `UserError` unless both have the same keys with the same shapes."""
    not_plain = [key for key, value in state.items() if not is_plain(value)]
    missing = [key for key in expected if key not in state]
    foreign = [key for key in state if key not in expected]
    if not_plain or missing or foreign:
        parts = [f"{what} {', '.join(map(str, keys[:3]))}{' ...' if len(keys) > 3 else ''}"
                 for what, keys in (("lacks", missing), ("has besides", foreign), ("has no plain tensor in", not_plain))
                 if keys]
        raise UserError(f"{source} does not fit this model: it {' and '.join(parts)}; "
                        "give the --model and --dataset that it was trained with")
    for key, tensor in state.items():
        if tensor.shape != expected[key].shape:
            raise UserError(f"{source} does not fit this model: {key} has shape {tuple(tensor.shape)}, the model needs "
                            f"{tuple(expected[key].shape)}; give the --model, --dataset and --image-size that it was "
                            "trained with")


def is_plain(value: Any) -> bool:
    """Whether it is a tensor of real numbers that are all there: not sparse, not on the meta device."""
    return isinstance(value, Tensor) and value.layout == torch.strided and not (value.is_complex() or value.is_meta)


def load_resumable(path: Path) -> dict[str, Any]:
    """Read a `last_checkpoint.pth`; bare weights, and files of another version, are told apart."""
    content = load(path)
    if "optimizer" not in content:
        raise UserError(f"{path} holds weights alone; --resume needs the {path.parent / 'last_checkpoint.pth'} that a "
                        "run writes (weights can be tested with --evaluate)")
    if content.get("format") != FORMAT:
        raise UserError(f"{path} was written by another version (format {content.get('format')}, this one reads "
                        f"{FORMAT}); resume it with that version, or start a new run")
    missing = [key for key in RESUMABLE if key not in content]
    if missing:
        raise UserError(f"{path} lacks {', '.join(missing)}, which a run writes; start a new run")
    wrong = [key for key, kind in RESUMABLE.items() if not isinstance(content[key], kind)]
    if wrong or not {"task", "classes", "pictures"} <= content["config"].keys():
        raise UserError(f"{path} is not as a run writes it (look at {', '.join(wrong) or 'config'}); start a new run")
    return content
