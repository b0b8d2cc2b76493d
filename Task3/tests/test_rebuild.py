"""The extension is built when it has to be and not otherwise, and whatever goes wrong ends in one line.

Nearly all of it with a compiler that only pretends; test_build.py has the real one.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from conftest import FOLDER

import extension
from utils import UserError

# A compiler that makes files of a few bytes, at once. It notes each call in `calls`, before (+) and after (-), and
# waits while the file `wait` is there. What a test wants of it is put in place of %s.
FAKE_COMPILER = """#!/bin/sh
here=$(dirname "$0")
for argument; do
  [ "$argument" = --version ] && echo "fake 1.0" && exit
  [ "$previous" = -o ] && output=$argument
  previous=$argument
done
echo "+ $*" >> "$here/calls"
%s
while [ -e "$here/wait" ]; do sleep 0.01; done
cat "$here/made" > "$output"
echo "- $*" >> "$here/calls"
"""


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    for name in ("CXX", "CXXFLAGS", "LDFLAGS"):
        monkeypatch.delenv(name, raising=False)


class Fake:
    """A fake compiler, in a folder whose name has a space, and what it was called for."""

    def __init__(self, folder: Path, monkeypatch) -> None:
        self.folder = folder / "fake compiler ä"
        self.folder.mkdir()
        (self.folder / "made").write_text("an object file, or a library", encoding="utf-8")
        self.become("")
        monkeypatch.setenv("CXX", str(self.folder / "c++"))

    def become(self, more: str) -> None:
        script = self.folder / "c++"
        script.write_text(FAKE_COMPILER % more, encoding="utf-8")
        script.chmod(0o755)

    def calls(self) -> list[str]:
        path = self.folder / "calls"
        return path.read_text(encoding="utf-8").splitlines() if path.exists() else []

    def compiled(self) -> list[str]:
        """Names of the object files that it was asked for since the last question."""
        names = [match[1] for call in self.calls() if (match := re.match(r"\+ .*/([^/]*)-\w+\.o$", call))]
        (self.folder / "calls").unlink(missing_ok=True)
        return sorted(names)


@pytest.fixture
def fake(tmp_path, monkeypatch):
    return Fake(tmp_path, monkeypatch)


@pytest.fixture
def tree(tmp_path):
    """A folder with the sources, to be built in."""
    shutil.copytree(FOLDER / "src", tmp_path / "tree" / "src")
    return tmp_path / "tree"


ALL = sorted(unit.name for unit in extension.units(FOLDER))
VARIANTS = [name for name in ALL if name.startswith("variant_")]


def failure(folder: Path) -> str:
    """The one line of a build that fails."""
    with pytest.raises(UserError) as caught:
        extension.build(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# ---- when it is built ------------------------------------------------------------------------------------------------


def edit(name: str):
    def change(folder: Path, monkeypatch) -> None:
        with open(folder / "src" / name, "a", encoding="utf-8") as file:
            file.write("\n")
    return change


def other_compiler(folder: Path, monkeypatch) -> None:
    shutil.copy(os.environ["CXX"], folder / "c++")
    shutil.copy(Path(os.environ["CXX"]).with_name("made"), folder / "made")
    monkeypatch.setenv("CXX", str(folder / "c++"))


@pytest.mark.parametrize("change, reason, made", [
    (edit("operators.h"), "sources", ALL),
    (edit("cpu/gemm.h"), "sources", ALL),
    (edit("tensor.cu"), "sources", ["tensor"]),
    (edit("cpu/variant.cpp"), "sources", VARIANTS),
    (edit("new.cpp"), "sources", ["new"]),
    (lambda _, patch: patch.setattr(extension, "FLAGS", (*extension.FLAGS, "-g")), "flags", ALL),
    (lambda _, patch: patch.setattr(extension, "KERNEL_FLAGS", ("-O1",)), "flags", VARIANTS),
    (lambda _, patch: patch.setenv("CXXFLAGS", "-g -DX=1"), "flags", ALL),
    (lambda _, patch: patch.setattr(extension, "_version", lambda package: "9"), "numpy, pybind11", ALL),
    (lambda _, patch: patch.setattr(sys, "version", "4.0.0"), "python", ALL),
    (other_compiler, "compiler", None),
], ids=["operators.h", "header", "source", "variants", "new source", "flags", "kernel flags", "CXXFLAGS", "packages",
        "python", "compiler"])
def test_it_is_built_again_when_something_changed_and_only_what_must_be(tree, fake, capsys, monkeypatch, change, reason,
                                                                        made):
    extension.build(tree)
    assert fake.compiled() == ALL
    assert "mytensor: building it (not built yet)" in capsys.readouterr().err
    extension.build(tree)
    assert not fake.calls() and capsys.readouterr().err == ""
    change(tree, monkeypatch)
    extension.build(tree)
    [line] = capsys.readouterr().err.splitlines()
    assert f"(changed: {reason})" in line
    if made is not None:
        assert fake.compiled() == made
    assert sorted(path.name.rpartition("-")[0] for path in (tree / "build" / "objects").iterdir()) \
        == sorted({*ALL, *(made or ())})
    extension.build(tree)
    assert capsys.readouterr().err == ""


def test_force_builds_what_is_up_to_date(tree, fake):
    extension.build(tree)
    fake.compiled()
    extension.build(tree, force=True)
    assert fake.calls()


def test_a_copied_folder_needs_no_build_and_notices_a_change(tree, fake, tmp_path, capsys):
    extension.build(tree)
    copy = Path(shutil.copytree(tree, tmp_path / "copy"))
    fake.compiled()
    extension.build(copy)
    assert not fake.calls()
    edit("tensor.h")(copy, None)
    capsys.readouterr()
    extension.build(copy)
    assert "(changed: sources)" in capsys.readouterr().err


def test_a_build_for_tests_lies_elsewhere_and_its_flags_come_last(tree, fake, tmp_path):
    own, flags = extension.build(tree), ("-O1", "-fsanitize=thread")
    files = {path: path.stat().st_mtime_ns for path in tree.rglob("*")}
    fake.compiled()
    other = tmp_path / "not yet" / "there"
    assert extension.build(tree, into=other, extra_flags=flags) == other / own.name
    calls = [call for call in fake.calls() if call[0] == "+" and "openmp.cpp" not in call]  # of compiler and linker
    assert len(calls) == len(ALL) + 1 and all(" -O1 -fsanitize=thread " in call for call in calls)
    assert all(call.rindex("-O1") > max(call.rfind("-O2"), call.rfind("-O3")) for call in calls)
    fake.compiled()
    extension.build(tree, into=other, extra_flags=flags)
    assert not fake.calls()
    extension.build(tree, into=other, extra_flags=flags[:1])
    assert fake.compiled() == ALL
    assert files == {path: path.stat().st_mtime_ns for path in tree.rglob("*")}


@pytest.mark.parametrize("cxx, options", [("c++", ""), ("c++ -first --second", "-first --second ")])
def test_CXX_may_have_options(tree, fake, monkeypatch, cxx, options):
    monkeypatch.setenv("PATH", str(fake.folder), prepend=os.pathsep)
    monkeypatch.setenv("CXX", cxx)
    extension.build(tree)
    assert all(call[2:].startswith(options) for call in fake.calls())
    assert fake.compiled() == ALL


def test_not_more_compilers_run_at_once_than_there_are_cores_and_none_after_a_failure(tree, fake, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2}, raising=False)
    fake.become("sleep 0.05")
    extension.build(tree)
    running = [0]
    for call in fake.calls():
        running.append(running[-1] + (1 if call[0] == "+" else -1))
    assert max(running) == 3 and running[-1] == 0
    edit("operators.h")(tree, None)
    fake.compiled()
    fake.become('case "$*" in *" -c "*) sleep 0.05; echo broken >&2; exit 1; esac')
    assert "broken" in failure(tree)
    assert len(fake.compiled()) <= 6  # three, and those that began before the first failure was seen


# ---- a build that ends badly -----------------------------------------------------------------------------------------

PAGE = 'i=0; while [ $i -lt 200 ]; do echo "In file included from a.h:$i:"; i=$((i + 1)); done; '


@pytest.mark.parametrize("more, told", [
    (PAGE + 'echo "tensor.cu:3:1: error: no such thing" >&2; exit 1', "tensor.cu:3:1: error: no such thing"),
    ('echo "cc1plus: fatal error: error writing to x.s: No space left on device"; exit 1', "No space left on device"),
    ('case "$*" in *" -c "*);; *) echo "ld: final link failed: No space left on device"; '
     'echo "collect2: error: ld returned 1 exit status"; exit 1; esac', "ld: final link failed: No space left"),
    ("exit 7", "exit status 7"),
    ("exit 0", "exit status 0"),
])
def test_a_failing_compiler_is_told_in_a_line_and_what_it_said_is_kept(tree, fake, more, told):
    extension.build(tree)
    before = {path.name: path.read_bytes() for path in tree.glob("*.so")}
    edit("operators.h")(tree, None)
    fake.become(more)
    text = failure(tree)
    log = tree / "build" / "build.log"
    assert told in text and str(log) in text and len(text) < 500
    if PAGE in more:
        assert log.read_text(encoding="utf-8").count("a.h:199:") >= 1
    assert {path.name: path.read_bytes() for path in tree.glob("*.so")} == before
    assert not list(tree.glob("build/unfinished-*"))
    fake.become("")
    extension.build(tree)


@pytest.mark.parametrize("cxx", ["/nonexistent/c++", "nonsense++", "false", "./no-program", None])
def test_no_compiler_is_told_in_a_line(tree, tmp_path, monkeypatch, cxx):
    if cxx is None:
        monkeypatch.setenv("PATH", str(tmp_path))
    else:
        (tmp_path / "no-program").write_text("", encoding="utf-8")
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("CXX", cxx)
    text, named = failure(tree), cxx or "g++, clang++, c++"
    named = shutil.which("false") if cxx == "false" else named  # what is found is told with its path
    assert f"no C++ compiler works (tried: {named})" in text and "apt install g++" in text


def test_missing_headers_are_told_in_a_line(tree, fake, tmp_path, monkeypatch):
    monkeypatch.setattr(extension.sysconfig, "get_path", lambda name: str(tmp_path))
    assert "Python's headers are missing" in failure(tree)
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "pybind11", None)
    assert "pip install pybind11" in failure(tree)


def test_what_was_built_runs_where_there_is_no_compiler(tree, fake, monkeypatch, capsys):
    path = extension.build(tree)
    capsys.readouterr()
    for cxx in ("/nonexistent", "false"):
        monkeypatch.setenv("CXX", cxx)
        assert extension.build(tree) == path
    assert capsys.readouterr().err == ""


def test_a_file_that_cannot_be_loaded_is_told_in_a_line(tree, fake, monkeypatch):
    path = extension.build(tree)
    monkeypatch.setattr(extension, "build", lambda: path)
    monkeypatch.syspath_prepend(str(tree))
    monkeypatch.delitem(sys.modules, "mytensor", raising=False)
    with pytest.raises(UserError, match="cannot be loaded.*delete it"):
        extension.ensure_built()


def test_a_full_disk_is_told_in_a_line(tree, fake):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
        assert "File too large; free some space" in failure(tree)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    extension.build(tree)


def test_a_build_folder_that_cannot_be_made_is_told_in_a_line(tree, fake):
    (tree / "build").write_text("a file", encoding="utf-8")
    assert "(not built yet)" in (text := failure(tree)) and "can be written" in text


def can_mount() -> bool:
    """Whether this user may make a name space in which a folder is read-only."""
    return shutil.which("unshare") is not None and subprocess.run(
        ["unshare", "-rm", "true"], capture_output=True).returncode == 0


@pytest.mark.skipif(not can_mount(), reason="this user may not mount")
def test_on_a_read_only_disk_what_fits_runs_and_what_does_not_is_told_in_a_line(tree, fake, tmp_path):
    extension.build(tree)
    changed = Path(shutil.copytree(tree, tmp_path / "changed"))
    edit("tensor.h")(changed, None)
    never = Path(shutil.copytree(tree, tmp_path / "never", ignore=shutil.ignore_patterns("*.so", "build")))
    script = (f"import os, sys; sys.path.insert(0, {str(FOLDER)!r}); import extension\nfrom pathlib import Path\n"
              "compilers = os.environ['CXX'], sys.executable\n"
              "for name in ('tree', 'changed', 'never'):\n"
              "    for os.environ['CXX'] in compilers:\n"
              "        try: print(name, extension.build(Path(name)).name)\n"
              "        except extension.UserError as error: print(name, error)\n")
    mount = 'mount --bind . . && mount -o remount,bind,ro "$PWD" && cd "$PWD" && exec "$0" -B -c "$1"'
    done = subprocess.run(["unshare", "-rm", "sh", "-c", mount, sys.executable, script], cwd=tmp_path,
                          capture_output=True, text=True)
    assert done.stderr == "" and len(done.stdout.splitlines()) == 6
    fits, other, *told = done.stdout.splitlines()
    assert fits.endswith(".so") and other == fits
    reasons = ["changed: sources", "changed: sources, compiler", "not built yet", "not built yet"]
    for line, reason in zip(told, reasons, strict=True):
        assert f"({reason})" in line and "Read-only file system; free some space, or use a copy" in line
    assert not never.joinpath("build").exists()


# ---- two builds, and half a build ------------------------------------------------------------------------------------


def wait_for(condition) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.05)


def test_of_two_builds_at_once_the_second_waits_for_the_first_and_has_nothing_to_do(tree, fake, capsys):
    (fake.folder / "wait").touch()
    said = ""
    first, second = (threading.Thread(target=extension.build, args=(tree,)) for _ in range(2))

    def second_waits() -> bool:
        nonlocal said
        said += capsys.readouterr().err
        return "another process is building it" in said

    try:
        first.start()
        wait_for(fake.calls)
        second.start()
        wait_for(second_waits)
    finally:
        (fake.folder / "wait").unlink()
    first.join()
    second.join()
    assert fake.compiled() == ALL
    assert (said + capsys.readouterr().err).count("building it (") == 1


def test_after_kill_9_the_next_build_goes_on_where_the_killed_one_was(tree, fake, capsys):
    fake.become('case "$*" in *tensornn.cu*) touch "$here/wait"; esac')
    script = f"import sys; sys.path.insert(0, {str(FOLDER)!r}); import extension\n" \
             f"from pathlib import Path; extension.build(Path({str(tree)!r}))"
    with subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.DEVNULL) as process:
        wait_for(lambda: any("+" in call and "tensornn.cu" in call for call in fake.calls()))
        process.send_signal(signal.SIGKILL)
    assert not list(tree.glob("*.so"))
    made = {path.name.rpartition("-")[0] for path in (tree / "build" / "objects").iterdir()}
    assert made and "tensornn" not in made  # the variants came first
    fake.become("")
    (fake.folder / "wait").unlink()  # what the killed build has started goes on: it does no harm
    fake.compiled()
    extension.build(tree)
    assert made.isdisjoint(fake.compiled())
    extension.build(tree, force=True)  # by now the killed build's compilers have ended: what they left goes
    fake.compiled()
    assert not list(tree.glob("build/unfinished-*"))
    extension.build(tree)
    assert not fake.calls()


def test_an_interrupt_between_the_file_and_its_record_is_recovered_from(tree, fake, monkeypatch, capsys):
    def interrupt(*_) -> None:
        raise KeyboardInterrupt

    extension.build(tree)
    edit("tensor.cu")(tree, None)
    (fake.folder / "made").write_text("a newer one", encoding="utf-8")
    with monkeypatch.context() as patch:
        patch.setattr(extension, "write_json", interrupt)
        with pytest.raises(KeyboardInterrupt):
            extension.build(tree)
    assert fake.compiled() and not list(tree.glob("build/unfinished-*"))
    capsys.readouterr()
    extension.build(tree)
    assert "(the built file is damaged)" in capsys.readouterr().err
    assert fake.compiled() == []  # all that was compiled is used
    extension.build(tree)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("damage", ["library", "record", "object"])
def test_what_a_crash_of_the_machine_left_damaged_is_made_anew(tree, fake, capsys, damage):
    path = extension.build(tree)
    whole = path.read_bytes()
    capsys.readouterr()
    if damage == "library":
        path.write_bytes(whole[:10])
    elif damage == "record":
        [record] = (tree / "build").glob("*.json")
        record.write_text("{", encoding="utf-8")
    else:
        path.unlink()
        fake.become('case "$*" in *" -c "*);; *) for argument; do '
                    'case "$argument" in *tensornn-*.o) [ -s "$argument" ] || exit 1; esac; done; esac')
        [broken] = (tree / "build" / "objects").glob("tensornn-*.o")
        broken.write_bytes(b"")
        failure(tree)
    extension.build(tree)
    assert "building it" in capsys.readouterr().err and path.read_bytes() == whole
    assert json.loads((tree / "build" / f"{path.name}.json").read_text(encoding="utf-8"))["openmp"]
