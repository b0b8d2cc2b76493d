"""Kill a run with SIGKILL again and again, resume it, and see that nothing was lost: `python tests/kill_loop.py`.

The moments are random, over the whole length of a run: its start, training, evaluation, writing, the final test. After
each kill a fresh process loads every file in the run's folder. A run that got to its end must agree bit for bit, in
`best_model.pth` and in all but the times of `history.json` and `result.json`, with one that nobody disturbed.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from PIL import Image

FOLDER = Path(__file__).resolve().parents[1]
TIMES = {"seconds", "images_per_second", "train_seconds"}
# Augmentation, a learning rate that moves every batch and, in the model, batch-norm and dropout: all that a resumed run
# could lose.
RUN = ("--dataset", "synthetic", "--image-size", "8", "--schedule", "onecycle", "--augment", "trivial",
       "--debug-steps", "20", "--threads", "1", "--no-progress")


def main(arguments: list[str] | None = None) -> int:
    """Run the loop; returns the exit status, 1 after a difference or a file that does not load."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20, metavar="N", help="how often to kill (default: 20)")
    parser.add_argument("--model", default="minivgg", help="a network that takes 8 pixels (default: minivgg)")
    parser.add_argument("--epochs", type=int, default=10, metavar="N", help="short epochs of a run (default: 10)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the moments (default: 0)")
    parser.add_argument("--check", type=Path, metavar="DIR", help="only see whether every file in a run's folder loads")
    options = parser.parse_args(arguments)
    if options.check:
        print(", ".join(check(options.check)) or "no files")
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        try:
            kill_and_compare(Path(scratch), options.kills, ["--model", options.model, "--epochs", str(options.epochs)],
                             random.Random(options.seed))
        except AssertionError as error:
            print(f"FAILED: {error}")
            return 1
    return 0


def kill_and_compare(scratch: Path, kills: int, flags: list[str], moments: random.Random) -> None:
    """Kill `kills` times; raises `AssertionError` with what went wrong."""
    whole = scratch / "whole"
    start = time.perf_counter()
    process = launch(whole, flags)
    assert process.wait() == 0, process.stderr.read()
    length = time.perf_counter() - start
    print(f"the undisturbed run took {length:.1f} s", flush=True)

    runs, done = 1, 0
    while True:
        folder = scratch / f"killed-{runs}"
        process = launch(folder, flags)
        moment = moments.uniform(0, length)
        try:
            process.wait(moment if done < kills else None)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            done += 1
            print(f"kill {done:2d}, run {runs}, after {moment:4.1f} s: {checked(folder)}", flush=True)
            continue
        assert process.returncode == 0, process.stderr.read()
        assert results(folder) == results(whole), f"run {runs} differs from the undisturbed one"
        print(f"run {runs} ended like the undisturbed one", flush=True)
        if done == kills:
            print(f"{kills} kills, {runs} runs: no file was broken, no bit differs")
            return
        runs += 1


def launch(folder: Path, flags: list[str]) -> subprocess.Popen:
    """Start a run, or resume it once there is something to resume."""
    resume = ["--resume"] if (folder / "last_checkpoint.pth").exists() else []
    command = [sys.executable, str(FOLDER / "main.py"), *RUN, *flags, "--output-dir", str(folder)]
    return subprocess.Popen([*command, *resume], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def checked(folder: Path) -> str:
    """What a fresh process could load."""
    process = subprocess.run([sys.executable, __file__, "--check", str(folder)], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    return process.stdout.strip()


def check(folder: Path) -> list[str]:
    """Load every file; returns their names. What a killed write left, `.NAME.tmp`, is not looked at."""
    loaders = {".json": read_strict, ".pth": lambda path: torch.load(path, weights_only=True), ".png": read_picture}
    names = sorted(path.name for path in folder.iterdir()) if folder.exists() else []
    for name in names:
        if not (name.startswith(".") and name.endswith(".tmp")):
            loaders[Path(name).suffix](folder / name)
    return names


def read_strict(path: Path) -> object:
    def refuse(constant: str) -> None:
        raise ValueError(f"{path} holds {constant}, which is no JSON")

    return json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)


def read_picture(path: Path) -> None:
    with Image.open(path) as picture:
        picture.load()


def results(folder: Path) -> tuple:
    """All of a run that must not depend on when it was stopped."""
    history = [without_times(row) for row in read_strict(folder / "history.json")]
    return history, without_times(read_strict(folder / "result.json")), (folder / "best_model.pth").read_bytes()


def without_times(values: dict) -> dict:
    return {name: value for name, value in values.items() if name not in TIMES}


if __name__ == "__main__":
    sys.exit(main())
