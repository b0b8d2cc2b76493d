"""What may happen to a run: it is killed, interrupted, started twice, its disk is full, its terminal is gone.

Runs go through `main` in this process, on a small tree of pictures; a kill is an exception that nothing catches.
"""

from __future__ import annotations

import contextlib
import gc
import io
import multiprocessing
import os
import pty
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator

import kill_loop
import pytest
import torch
from conftest import make_tree
from PIL import Image

import checkpoints
import datasets
import main
import program
import run
import run_folder
import utils
from run_folder import BEST_MODEL, CONFIG, FILES, LAST_CHECKPOINT, RESULT

FLAGS = ("--model", "convnet", "--image-size", "8", "--batch-size", "4", "--schedule", "onecycle",
         "--epochs", "2", "--threads", "1")
SIGNALS = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)


class Killed(BaseException):
    """The process is no more: no handler of the program's may act on this."""


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    return make_tree(tmp_path_factory.mktemp("pictures") / "tree")


@pytest.fixture
def start(pictures, tmp_path, monkeypatch):
    """Runs `main` on the tree (22 pictures train in 6 batches, 2 validate) in `tmp_path/name`; returns the status."""
    png = io.BytesIO()
    Image.new("L", (1, 1)).save(png, "png")

    def draw_test_pictures(tested, data, folder, title):
        for name in ("confusion_matrix.png", "predictions.png"):
            utils.write_file(folder / name, png.getvalue())

    monkeypatch.setattr(run.plots, "curves", lambda history, title: png.getvalue())
    monkeypatch.setattr(run, "draw_test_pictures", draw_test_pictures)

    def start(name: str, *flags: str) -> int:
        gc.collect()  # a run that ended lets its folder go
        return main.main([*arguments(pictures, tmp_path / name), *flags])

    return start


def arguments(pictures, folder) -> list[str]:
    return ["--dataset", "imagefolder", "--data-dir", str(pictures), *FLAGS, "--output-dir", str(folder)]


@pytest.fixture(scope="module")
def whole(pictures, tmp_path_factory):
    """The results of a run that nobody disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    assert main.main(arguments(pictures, folder)) == 0
    return kill_loop.results(folder)


def at(monkeypatch, moment: str, act, epoch: int = 1) -> None:
    """Call `act` once, when the pass `moment` ("train", "train, plain", "validate", "test") of an epoch begins."""
    pending = [act]

    def bar(self, name, *arguments, original=run.Run.bar, **keywords):
        if name == moment and self.epoch == epoch and pending:
            pending.pop()()
        return original(self, name, *arguments, **keywords)

    monkeypatch.setattr(run.Run, "bar", bar)


def files(folder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def one_line(capsys, *words: str) -> None:
    """Stderr has one line, of an error, with these words."""
    said = capsys.readouterr().err
    assert said.startswith("error: ") and said.count("\n") == 1 and "Traceback" not in said, said
    for word in words:
        assert word in said


# ---- killed ------------------------------------------------------------------------------------------------------


def test_a_run_killed_in_the_middle_of_any_write_leaves_whole_files_and_resumes_to_the_same_bits(
        start, whole, tmp_path, monkeypatch):
    writes = left = 0

    def fsync(descriptor, original=os.fsync):
        nonlocal left
        left -= 1
        if left == 0:
            os.ftruncate(descriptor, os.fstat(descriptor).st_size // 2)
            raise Killed
        original(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    while True:
        writes += 1
        folder, left = tmp_path / f"killed{writes}", writes
        try:
            start(folder.name)
        except Killed:
            pass
        else:
            break
        kill_loop.check(folder)
        resume = ["--resume"] if (folder / LAST_CHECKPOINT).exists() else []
        assert start(folder.name, *resume) == 0
        assert kill_loop.results(folder) == whole
        assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)  # and nothing half-written is left
        shutil.rmtree(folder)
    assert writes > len(FILES)


def test_a_run_killed_at_random_moments_resumes_to_the_same_bits(capsys):
    assert kill_loop.main(["--kills", "2", "--epochs", "2"]) == 0, capsys.readouterr().out


def test_a_worker_that_outlives_its_run_does_not_hold_the_folder(tmp_path):
    folder = run_folder.RunFolder(tmp_path)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    os.close(reading)
    try:
        del folder
        gc.collect()
        run_folder.RunFolder(tmp_path)
    finally:
        os.close(writing)
        os.waitpid(child, 0)


# ---- interrupted -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number, epoch, moment", [
    (signal.SIGINT, 0, "train"), (signal.SIGTERM, 1, "train"), (signal.SIGINT, 1, "train, plain"),
    (signal.SIGTERM, 1, "validate"), (signal.SIGINT, 2, "test"), (signal.SIGTERM, 2, "test")])
def test_an_interrupted_run_saves_says_so_and_resumes_to_the_same_bits(start, whole, tmp_path, monkeypatch, capsys,
                                                                       number, epoch, moment):
    at(monkeypatch, moment, lambda: os.kill(os.getpid(), number), epoch)
    assert start("run") == 130
    said = capsys.readouterr()
    assert said.err == "interrupted\n" and f"continue with --resume --output-dir {tmp_path / 'run'}" in said.out
    saved = torch.load(tmp_path / "run" / LAST_CHECKPOINT, weights_only=True)
    assert (saved["epoch"], saved["batch"]) == (epoch, {"train": 1, "test": 0}.get(moment, 6))
    assert not (tmp_path / "run" / RESULT).exists()
    assert start("run", "--resume") == 0
    assert kill_loop.results(tmp_path / "run") == whole


@SIGNALS
def test_a_second_signal_cuts_neither_the_save_nor_the_end_short(start, whole, tmp_path, monkeypatch, capsys, number):
    def save(path, content, original=checkpoints.save):
        if content.get("batch"):
            os.kill(os.getpid(), number)
        original(path, content)

    monkeypatch.setattr(checkpoints, "save", save)
    at(monkeypatch, "train", lambda: os.kill(os.getpid(), signal.SIGINT))
    assert start("run") == 130
    os.kill(os.getpid(), number)  # the process is about to end
    assert capsys.readouterr().err == "interrupted\n"
    assert torch.load(tmp_path / "run" / LAST_CHECKPOINT, weights_only=True)["batch"] == 1
    assert start("run", "--resume") == 0
    assert kill_loop.results(tmp_path / "run") == whole


@SIGNALS
def test_a_run_interrupted_while_data_load_leaves_nothing(start, tmp_path, monkeypatch, capsys, number):
    monkeypatch.setattr(program, "load_data", lambda *arguments, **keywords: os.kill(os.getpid(), number))
    assert start("run") == 130
    assert capsys.readouterr().err == "interrupted\n"
    assert not (tmp_path / "run").exists()


def test_a_signal_that_the_caller_ignores_stays_ignored(start, whole, tmp_path, monkeypatch):
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell does for `python main.py &`
    at(monkeypatch, "train", lambda: os.kill(os.getpid(), signal.SIGINT))
    assert start("run") == 0
    assert kill_loop.results(tmp_path / "run") == whole


def test_a_signal_to_the_workers_is_left_to_the_main_process(start, tmp_path, monkeypatch):
    monkeypatch.setattr(datasets, "LARGEST_IN_MEMORY", 4)  # the pictures of 8 pixels are streamed

    hit = set()

    def check(self, original=run.Interrupts.check):
        for worker in multiprocessing.active_children():
            hit.add(worker.pid)
            for number in (signal.SIGINT, signal.SIGTERM):  # as a terminal and a cluster do, to all of a group
                os.kill(worker.pid, number)
        original(self)

    monkeypatch.setattr(run.Interrupts, "check", check)
    assert start("run", "--workers", "2") == 0
    assert len(hit) >= 2


# ---- one folder, several runs ------------------------------------------------------------------------------------


@pytest.mark.parametrize("flags", [(), ("--resume",), ("--overwrite",)], ids=str)
def test_a_second_run_in_a_folder_is_refused_and_the_first_untouched(start, whole, tmp_path, monkeypatch, capsys,
                                                                     flags):
    statuses = []

    def start_second() -> None:
        with torch.random.fork_rng():  # in a process of its own it would draw from a generator of its own
            statuses.append(start("run", *flags))

    at(monkeypatch, "train", start_second)
    assert start("run") == 0
    assert statuses == [1]
    one_line(capsys, str(tmp_path / "run"), "in use by another run")
    assert kill_loop.results(tmp_path / "run") == whole


def test_resuming_a_finished_run_says_so_and_changes_nothing(start, tmp_path, capsys):
    assert start("run") == 0
    before = files(tmp_path / "run")
    assert start("run", "--resume") == 0
    assert "finished run" in capsys.readouterr().out
    assert files(tmp_path / "run") == before


def test_overwriting_replaces_a_runs_files_and_no_others(start, whole, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    assert start("run") == 0
    (folder / "notes.txt").write_text("mine", encoding="utf-8")
    (folder / "more").mkdir()
    seen = []
    at(monkeypatch, "train", lambda: seen.append(sorted(path.name for path in folder.iterdir())), epoch=0)
    assert start("run", "--overwrite", "--seed", "1") == 0
    assert seen == [[CONFIG, LAST_CHECKPOINT, "more", "notes.txt"]]  # nothing of the old run beside the new one's
    assert (folder / "notes.txt").read_text(encoding="utf-8") == "mine"
    assert kill_loop.read_strict(folder / CONFIG)["seed"] == 1
    assert kill_loop.results(folder) != whole


@pytest.mark.parametrize("name", ["file", "file/run"])
def test_a_run_folder_that_cannot_be_made_is_named(start, tmp_path, capsys, name):
    (tmp_path / "file").write_bytes(b"mine")
    assert start(name) == 1
    one_line(capsys, str(tmp_path / name), "--output-dir")
    assert (tmp_path / "file").read_bytes() == b"mine"


# ---- the disk ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def no_file_beyond(size: int) -> Iterator[None]:
    """Let no file grow beyond so many bytes, as a full disk would; pytest's own output too, so it must end in time."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_disk_that_is_full_from_the_start_is_told(start, tmp_path, capsys, whole):
    with no_file_beyond(4096):
        assert start("run") == 1
    one_line(capsys, str(tmp_path / "run" / LAST_CHECKPOINT), "File too large", "free some space")
    assert not files(tmp_path / "run")


def test_a_disk_that_fills_up_leaves_the_old_files_whole(start, whole, tmp_path, monkeypatch, capsys):
    before = {}
    with contextlib.ExitStack() as disk:

        def fill() -> None:
            before.update(files(tmp_path / "run"))
            disk.enter_context(no_file_beyond(4096))

        at(monkeypatch, "train", fill)
        assert start("run") == 1
    one_line(capsys, "File too large", "free some space")
    after = files(tmp_path / "run")
    assert before.keys() == after.keys()
    assert all(after[name] == before[name] for name in (BEST_MODEL, LAST_CHECKPOINT, CONFIG))
    kill_loop.check(tmp_path / "run")
    assert start("run", "--resume") == 0
    assert kill_loop.results(tmp_path / "run") == whole


def can_mount() -> bool:
    """Whether this user may make a name space in which a folder is read-only."""
    return shutil.which("unshare") is not None and subprocess.run(
        ["unshare", "-rm", "true"], capture_output=True).returncode == 0


@pytest.mark.skipif(not can_mount(), reason="this user may not mount")
def test_a_read_only_disk_is_told_and_the_old_files_stay(start, pictures, tmp_path, monkeypatch):
    at(monkeypatch, "train", lambda: os.kill(os.getpid(), signal.SIGINT))
    assert start("run") == 130
    before = files(tmp_path / "run")
    script = (f"import sys; sys.path.insert(0, {str(kill_loop.FOLDER)!r}); import main\n"
              f"print(main.main({arguments(pictures, 'new')}), file=sys.stderr)\n"
              f"print(main.main({arguments(pictures, 'run')} + ['--resume']), file=sys.stderr)\n")
    mount = 'mount --bind . . && mount -o remount,bind,ro "$PWD" && cd "$PWD" && exec "$0" -c "$1"'
    process = subprocess.run(["unshare", "-rm", "sh", "-c", mount, sys.executable, script], cwd=tmp_path,
                             capture_output=True, text=True)
    first, one, second, two = process.stderr.splitlines()
    assert (one, two) == ("1", "1")
    assert "new cannot be made: Read-only file system" in first and "cannot be written: Read-only" in second
    assert files(tmp_path / "run") == before


# ---- the terminal ------------------------------------------------------------------------------------------------


def broken_pipe():
    reading, writing = os.pipe()
    os.close(reading)
    return os.fdopen(writing, "w")


def full_disk():
    return open("/dev/full", "w", encoding="utf-8")


@pytest.mark.parametrize("output, reason", [(broken_pipe, "Broken pipe"), (full_disk, "No space left")])
def test_output_that_cannot_be_written_ends_in_a_line_and_can_be_resumed(start, whole, tmp_path, monkeypatch, capsys,
                                                                         output, reason):
    def cut() -> None:
        monkeypatch.setattr(sys, "stdout", output())
        utils.prepare_output()

    at(monkeypatch, "train", cut)
    assert start("run") == 1
    one_line(capsys, reason, "--resume")
    sys.stdout.close()  # Python does so at its end: nothing complains once more
    monkeypatch.undo()
    assert start("run", "--resume") == 0
    assert kill_loop.results(tmp_path / "run") == whole


@pytest.mark.parametrize("closed", [("stdout",), ("stderr",), ("stdout", "stderr")], ids=str)
def test_a_run_needs_no_output(start, whole, tmp_path, monkeypatch, closed):
    for name in closed:
        monkeypatch.setattr(sys, name, None)  # what Python makes of `>&-`
    assert start("run") == 0
    assert kill_loop.results(tmp_path / "run") == whole


def test_a_log_holds_one_line_an_epoch_and_no_bar(start, capsys):
    assert start("run") == 0
    said = capsys.readouterr()
    assert said.err == "" and "\r" not in said.out
    lines = said.out.splitlines()
    assert len(lines) == 7 and [line[:11] for line in lines[3:5]] == ["epoch   1/2", "epoch   2/2"]


@pytest.mark.parametrize("columns", [0, 40, 120])
@pytest.mark.parametrize("flags", [(), ("--no-progress",)], ids=str)
def test_a_terminal_shows_a_bar_unless_told_not_to(start, monkeypatch, columns, flags):
    ours, theirs = pty.openpty()
    monkeypatch.setenv("COLUMNS", str(columns))  # 0 is what programs find that run in no window
    monkeypatch.delenv("TERM", raising=False)
    with os.fdopen(theirs, "w", encoding="utf-8") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        assert start("run", "--epochs", "1", *flags) == 0
        terminal.write("end")
        terminal.flush()
        said = os.read(ours, 65536).decode()
    os.close(ours)
    assert ("epoch 1 train" in said and "/6" in said) == (not flags)
    assert max(len(line) for line in said.split("\r")) <= (columns or 80)


def test_a_plain_locale_changes_no_class_name(tree, tmp_path, program):
    for split in ("train", "test"):
        (tree / split / "a").rename(tree / split / "naïve")
        (tree / split / "b").rename(tree / split / "猫")
    plain = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    process = program("--dataset", "imagefolder", "--data-dir", tree, "--image-size", 32, "--epochs", 1,
                      "--output-dir", tmp_path / "run", env=plain)
    assert process.returncode == 0, process.stderr
    assert kill_loop.read_strict(tmp_path / "run" / CONFIG)["classes"] == ["c", "d", "naïve", "猫"]
    assert list(kill_loop.read_strict(tmp_path / "run" / RESULT)["per_class_accuracy"]) == ["c", "d", "naïve", "猫"]
