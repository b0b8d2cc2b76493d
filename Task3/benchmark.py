"""How long a training step of ours takes, and one of PyTorch's: `python Task3/benchmark.py --help`.

Each side has a process of its own, so that no library's threads or memory stand in another's way. They take turns in
many short rounds, so that whatever else the machine does meets all of them; the ratio is of the medians.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import extension
from options import whole
from utils import UserError, discard_output, prepare_output, write_json

MODELS = ("lenet", "minivgg", "minivgg-bn")
OURS, NCHW = "mytorch", "PyTorch"
SIDES = {  # name -> memory format and number format of PyTorch
    OURS: None,
    NCHW: ("contiguous_format", "float32"),
    "PyTorch channels-last": ("channels_last", "float32"),
    "PyTorch channels-last bfloat16": ("channels_last", "bfloat16"),
}
JOBS = {"step": "training step", "forward": "evaluation", "optimizer": "optimizer alone"}
SECONDS_A_TURN = 0.2  # how long a side works before it is the next one's turn, at least one step


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    prepare_output()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS), help="networks (default: all)")
    parser.add_argument("--batch", type=whole(1), default=64, metavar="N", help="pictures in a step (default: 64)")
    parser.add_argument("--size", type=whole(16), default=32, metavar="PIXELS", help="of the pictures (default: 32)")
    parser.add_argument("--threads", type=whole(1, 64), default=2, metavar="N", help="of each side (default: 2)")
    parser.add_argument("--rounds", type=whole(2), default=15, metavar="N",
                        help="how often the sides take turns (default: 15)")
    parser.add_argument("--variant", choices=("avx512", "avx2", "baseline"),
                        help="instruction set of our kernels (default: the best that the processor has)")
    parser.add_argument("--no-winograd", action="store_true",
                        help="compute our 3x3 convolutions directly (default: by Winograd's algorithm)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all figures there")
    parser.add_argument("--worker", help=argparse.SUPPRESS)  # one side, in a process of its own
    options = parser.parse_args(arguments)
    try:
        if options.worker:
            return work(json.loads(options.worker))
        if options.json and not options.json.absolute().parent.is_dir():  # told now, not after minutes
            raise UserError(f"--json {options.json}: the folder {options.json.absolute().parent} is not there; make it")
        extension.ensure_built()
        figures = {"machine": machine_limits(options.threads),
                   "models": {name: compare(name, options) for name in options.models}}
        if options.json:
            write_json(options.json, figures)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except OSError as error:
        discard_output()
        print(f"error: the output cannot be written ({error.strerror or error})", file=sys.stderr)
        return 1
    return 0


# ---- the process that asks -------------------------------------------------------------------------------------------


class Worker:
    """One side in a process of its own: it does nothing but what it is asked for."""

    def __init__(self, side: str, model: str, options: argparse.Namespace) -> None:
        task = {"side": side, "model": model, "batch": options.batch, "size": options.size,
                "threads": options.threads, "variant": options.variant, "winograd": not options.no_winograd}
        environment = {**os.environ, "OMP_NUM_THREADS": str(options.threads)}
        start = time.perf_counter()
        self.process = subprocess.Popen([sys.executable, __file__, "--worker", json.dumps(task)], text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        self.answer()
        self.seconds_to_first_step = time.perf_counter() - start
        self.facts = self.answer()

    def ask(self, job: str, repeats: int) -> float:
        """Seconds that a repetition of the job took."""
        return self.tell(f"{job} {repeats}")

    def tell(self, line: str) -> Any:
        with contextlib.suppress(BrokenPipeError):  # then there is no answer either
            print(line, file=self.process.stdin, flush=True)
        return self.answer()

    def answer(self) -> Any:
        line = self.process.stdout.readline()
        if not line:
            raise UserError(f"a process of the benchmark ended with status {self.process.wait()}; what it said stands "
                            "above")
        return json.loads(line)

    def close(self) -> int:
        """End it; returns the most memory that it held, in bytes."""
        peak = self.tell("end")
        self.process.communicate()
        return peak


def compare(model: str, options: argparse.Namespace) -> dict[str, Any]:
    """Let the sides take turns on a model; prints a table and returns its figures."""
    workers = {side: Worker(side, model, options) for side in SIDES}
    seconds: dict[str, dict[str, list[float]]] = {job: {side: [] for side in SIDES} for job in JOBS}
    for job in JOBS:
        repeats = {side: max(1, int(SECONDS_A_TURN / worker.ask(job, 1))) for side, worker in workers.items()}
        for _ in range(options.rounds):
            for side, worker in workers.items():
                seconds[job][side].append(worker.ask(job, repeats[side]))
    figures = {side: {"seconds_to_first_step": worker.seconds_to_first_step, "peak_bytes": worker.close(),
                      **{job: summary(seconds[job][side], seconds[job][NCHW]) for job in JOBS}}
               for side, worker in workers.items()}
    operations, variant = workers[OURS].facts["operations"], workers[OURS].facts["variant"]
    print(f"\n{model}, batch {options.batch}, {options.size}x{options.size} pixels, {options.threads} threads, our "
          f"kernels for {variant}; a step needs {operations / 1e9:.3g} billion operations")
    for job, title in JOBS.items():
        for side, rows in figures.items():
            row = rows[job]
            speed = f"{options.batch / row['median']:10,.0f} images/s" if job != "optimizer" else ""
            limit = f"{operations / row['median'] / 1e9:8,.0f} GFLOP/s" if job == "step" else ""
            print(f"  {title:16s} {side:31s} {1e3 * row['median']:9.3f} ms ({1e3 * row['least']:.3f} to "
                  f"{1e3 * row['most']:.3f})  {row['ratio']:5.2f}x {speed} {limit}".rstrip())
    for side, rows in figures.items():
        print(f"  {'memory, start':16s} {side:31s} {rows['peak_bytes'] / 2**20:9,.0f} MiB at most, first step after "
              f"{rows['seconds_to_first_step']:.1f} s")
    return {"batch": options.batch, "size": options.size, "threads": options.threads, "variant": variant,
            "operations": operations, "sides": figures}


def summary(seconds: list[float], reference: list[float]) -> dict[str, float]:
    """Median and spread, and how many times the reference's median that is faster."""
    median = statistics.median(seconds)
    return {"median": median, "least": min(seconds), "most": max(seconds),
            "ratio": statistics.median(reference) / median}


def machine_limits(threads: int) -> dict[str, float]:
    """What the machine can do, as its best libraries reach it: products of large matrices, sums of large arrays."""
    import torch

    torch.set_num_threads(threads)
    a, b = torch.ones(2048, 2048), torch.ones(2048, 2048)
    x, y, out = torch.ones(2**26), torch.ones(2**26), torch.empty(2**26)
    operations = 2 * 2048**3 / least_seconds(lambda: torch.mm(a, b))
    bandwidth = 3 * 4 * 2**26 / least_seconds(lambda: torch.add(x, y, out=out))
    print(f"the machine: {operations / 1e9:,.0f} GFLOP/s in a product of matrices, {bandwidth / 1e9:,.0f} GB/s in a "
          f"sum of arrays ({threads} threads, PyTorch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()})")
    return {"operations_a_second": operations, "bytes_a_second": bandwidth}


def least_seconds(function) -> float:
    times = []
    for _ in range(7):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


# ---- a process that works -------------------------------------------------------------------------------------------


def work(task: dict[str, Any]) -> int:
    """Be one side: say when the first step is done, then what there is to know, and do what comes until the end."""
    extension.ensure_built()
    jobs, facts = (our_jobs if task["side"] == OURS else torch_jobs)(task)
    jobs["step"]()
    print("null", flush=True)
    print(json.dumps(facts()), flush=True)
    for line in sys.stdin:
        if line == "end\n":
            break
        name, repeats = line.split()
        start = time.perf_counter()
        for _ in range(int(repeats)):
            jobs[name]()
        print(json.dumps((time.perf_counter() - start) / int(repeats)), flush=True)
    print(json.dumps(peak_bytes()), flush=True)
    return 0


def our_jobs(task: dict[str, Any]):
    """Our step, evaluation and optimizer on one batch, as functions."""
    import mytensor

    import mytorch
    from models import get_model

    mytensor.set_num_threads(task["threads"])
    mytensor.enable_winograd(task["winograd"])
    if task["variant"]:
        mytensor.set_cpu_variant(task["variant"])
    images, labels = batch_of(task)
    model = get_model(task["model"], image_size=task["size"])
    optimizer = mytorch.optim.SGD(model.parameters(), lr=1e-6, momentum=0.9)

    def step() -> None:
        model.train()
        loss = mytorch.cross_entropy(model(mytorch.Tensor(images, requires_grad=False)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()

    def forward() -> None:
        model.eval()
        with mytorch.no_grad():
            model(mytorch.Tensor(images, requires_grad=False)).numpy()

    def facts() -> dict[str, Any]:
        return {"operations": operations_of(model, images), "variant": mytensor.cpu_variant()}

    return {"step": step, "forward": forward, "optimizer": optimizer.step}, facts


def torch_jobs(task: dict[str, Any]):
    """The same with PyTorch: eager, as one writes it."""
    import torch
    from torch.nn import functional

    from models import get_model
    from twin import twin_of

    torch.set_num_threads(task["threads"])
    layout, number_format = SIDES[task["side"]]
    images, labels = map(torch.from_numpy, batch_of(task))
    model = twin_of(get_model(task["model"], image_size=task["size"])).to(memory_format=getattr(torch, layout))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6, momentum=0.9)

    def logits() -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=number_format == "bfloat16"):
            return model(images.to(memory_format=getattr(torch, layout)))

    def step() -> None:
        model.train()
        loss = functional.cross_entropy(logits().float(), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()

    def forward() -> None:
        model.eval()
        with torch.no_grad():
            logits()

    return {"step": step, "forward": forward, "optimizer": optimizer.step}, dict


def batch_of(task: dict[str, Any]):
    """Pictures and labels: no side's time depends on what they show."""
    import numpy as np

    random = np.random.default_rng(0)
    shape = (task["batch"], 3, task["size"], task["size"])
    return random.standard_normal(shape, dtype=np.float32), random.integers(0, 10, task["batch"])


def operations_of(model, images) -> int:
    """Multiplications and additions of a step's convolutions and linear layers, forward and twice that backward.

    The first layer has no gradient of its input to compute. All else is less than a hundredth of these.
    """
    import mytorch
    from mytorch import nn

    counts: list[int] = []

    def counting(layer, forward):
        def count_and_forward(x):
            y = forward(x)
            positions = y.shape[0] * (y.shape[2] * y.shape[3] if y.ndim == 4 else 1)
            size = 1
            for length in layer.weight.shape:
                size *= length
            counts.append(2 * positions * size)
            return y
        return count_and_forward

    layers = [module for module in model.modules() if isinstance(module, (nn.Conv2d, nn.Linear))]
    for layer in layers:
        layer.forward = counting(layer, layer.forward)
    with mytorch.no_grad():
        model(mytorch.Tensor(images, requires_grad=False))
    for layer in layers:
        del layer.forward
    return 3 * sum(counts) - counts[0]


def peak_bytes() -> int:
    """The most memory that this process has held; 0 where the system does not tell (not Linux)."""
    status = Path("/proc/self/status")
    lines = status.read_text(encoding="utf-8").splitlines() if status.exists() else []
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0)


if __name__ == "__main__":
    sys.exit(main())
