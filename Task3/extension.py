"""Builds the C++ extension `mytensor` where it is missing or out of date: what is compiled, how, and when.

A program calls `ensure_built()` before `import mytensor`; `python setup.py build_ext --inplace` builds by hand. What is
made lies in `build/` until it is whole and takes its place by a rename: a build may be killed at any moment.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.machinery
import importlib.metadata
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO, NamedTuple

from utils import UserError, write_json

try:
    import fcntl
except ImportError:  # Windows has no flock: two builds at once then do the same work twice
    fcntl = None

FOLDER = Path(__file__).resolve().parent
COMPILERS = ("g++", "clang++", "c++")  # the first that is found, unless CXX names one

# No -march=native: it would die on another machine. No -ffast-math: it switches tiny numbers off in the whole process.
FLAGS = ("-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra")
KERNEL_FLAGS = ("-O3", "-fno-math-errno", "-fno-trapping-math")
VARIANTS = {  # of cpu/variant.cpp: one object file for each instruction set, chosen among at run time
    "baseline": (),
    "avx2": ("-mavx2", "-mfma"),
    "avx512": ("-mavx512f", "-mavx512dq", "-mavx512bw", "-mavx512vl", "-mfma", "-mprefer-vector-width=512"),
}
HAS_X86_VARIANTS = platform.machine().lower() in ("x86_64", "amd64")
LINK_FLAGS = ("-shared", *(("-Wl,-undefined,dynamic_lookup",) if sys.platform == "darwin" else ()))
NO_OPENMP_FLAGS = ("-Wno-unknown-pragmas",)
OPENMP_PROGRAM = "#include <omp.h>\nint main() { return omp_get_max_threads() < 1; }\n"


def ensure_built() -> None:
    """Build `mytensor` if need be, and import it. Whatever fails is a UserError of one line."""
    path = build()
    importlib.invalidate_caches()
    try:
        importlib.import_module("mytensor")
    except ImportError as error:
        raise UserError(f"{path} cannot be loaded: {error}; delete it to have it built anew") from None


def build(folder: Path = FOLDER, force: bool = False, into: Path | None = None,
          extra_flags: Sequence[str] = ()) -> Path:
    """Make the extension in `folder` fit its sources and what else it is made from. Returns its path.

    A build for tests goes elsewhere, `into` a folder of its own; the compiler and the linker get `extra_flags` last.
    """
    into = into or folder
    target = into / f"mytensor{importlib.machinery.EXTENSION_SUFFIXES[0]}"
    work = into / "build"
    compiler = find_compiler()
    state = current_state(folder, compiler, extra_flags)
    reason = "as asked for" if force else why_stale(target, state)
    try:
        # Where nothing can be written, what another compiler made of the same sources is as good.
        if reason and not (reason == "changed: compiler" and not os.access(work, os.W_OK)):
            work.mkdir(parents=True, exist_ok=True)
            with _lock(work):
                if force or why_stale(target, state):  # else another process has built it meanwhile
                    _build(folder, target, compiler, extra_flags, state, reason)
    except OSError as error:
        raise UserError(f"mytensor is to be built ({reason}) in {into}: {error.strerror or error}; free some space, "
                        "or use a copy of the folder that can be written") from None
    if not json.loads(_record(target).read_text(encoding="utf-8"))["openmp"]:
        _say("runs on one thread, as the compiler that built it has no OpenMP; install that (for clang: libomp-dev), "
             "then run: python setup.py build_ext --inplace --force")
    return target


# ---- is it out of date? --------------------------------------------------------------------------------------------


def find_compiler() -> list[str]:
    """The command of the C++ compiler, maybe with options; empty if there is none. Whether it works shows later."""
    named = os.environ.get("CXX", "").strip()
    if not named:
        return next(([path] for path in map(shutil.which, COMPILERS) if path), [])
    command, *options = [named] if shutil.which(named) else named.split()  # the path of one may have spaces in it
    found = shutil.which(command)
    return [os.path.abspath(found) if found else command, *options]


def current_state(folder: Path, compiler: list[str], extra_flags: Sequence[str] = ()) -> dict[str, str | None]:
    """All that a build depends on. None is what cannot be told here, and need not be: a built file runs without it."""
    sources = [(path.relative_to(folder).as_posix(), _digest(path.read_bytes())) for path in _sources(folder)]
    flags = [FLAGS, KERNEL_FLAGS, VARIANTS, LINK_FLAGS, _environment_flags("CXXFLAGS"), _environment_flags("LDFLAGS"),
             *extra_flags]
    return {"sources": _digest(repr(sources).encode()), "python": sys.version, "numpy": _version("numpy"),
            "pybind11": _version("pybind11"), "flags": repr(flags), "compiler": _identify(compiler)}


def why_stale(target: Path, state: dict[str, str | None]) -> str:
    """Why the built file does not do, in a few words; empty if it does."""
    try:
        built = json.loads(_record(target).read_text(encoding="utf-8"))
        if built["file"] != _digest(target.read_bytes()):
            return "the built file is damaged"
    except (OSError, ValueError):
        return "not built yet"
    changed = [name for name, value in state.items() if value is not None and value != built.get(name)]
    return f"changed: {', '.join(changed)}" if changed else ""


def _record(target: Path) -> Path:
    """Where it is written what a built file was made from."""
    return target.parent / "build" / f"{target.name}.json"


def _sources(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / "src").rglob("*") if path.suffix in (".h", ".cpp", ".cu"))


def _environment_flags(name: str) -> list[str]:
    return os.environ.get(name, "").split()


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _identify(compiler: list[str]) -> str | None:
    """The compiler's command and what it says of itself; None if it does not run."""
    with contextlib.suppress(OSError, subprocess.CalledProcessError, IndexError):
        answer = subprocess.run([*compiler, "--version"], capture_output=True, check=True)
        return f"{shlex.join(compiler)}: {answer.stdout.decode(errors='replace').splitlines()[0]}"
    return None


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


# ---- building ------------------------------------------------------------------------------------------------------


class Unit(NamedTuple):
    """One run of the compiler: the object file's name, the source, and flags that only it gets."""

    name: str
    source: Path
    flags: tuple[str, ...] = ()


class Compiler(NamedTuple):
    """A compiler at work in the folder `sources`: what it makes goes to `scratch`, and all that it says to `log`."""

    command: list[str]
    sources: Path
    scratch: Path
    log: BinaryIO

    def make(self, name: str, *arguments: str | Path) -> Path:
        """Make a file; if that fails, the UserError tells the first line that speaks of an error."""
        output = self.scratch / name
        command = [*self.command, *map(str, arguments), "-o", str(output)]
        done = subprocess.run(command, cwd=self.sources, env={**os.environ, "LC_ALL": "C"}, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.log.write(os.fsencode(shlex.join(command)) + b"\n" + done.stdout)  # in one piece: others write as well
        if done.returncode or not output.exists():
            lines = done.stdout.decode(errors="replace").splitlines() or [f"exit status {done.returncode}"]
            telling = re.compile("error(?!: ld returned)|failed|cannot", re.IGNORECASE)
            error = next(filter(telling.search, lines), lines[0]).strip()[:300]
            raise UserError(f"mytensor cannot be built: {error} (all of the compiler's output is in {self.log.name})")
        return output

    def has_openmp(self) -> bool:
        program = self.scratch / "openmp.cpp"
        program.write_text(OPENMP_PROGRAM, encoding="utf-8")
        with contextlib.suppress(UserError):
            return self.make("openmp", program, "-fopenmp").exists()
        return False


def units(folder: Path) -> list[Unit]:
    """What is compiled; a `.cu` file is plain C++ as long as there is no CUDA part."""
    result = []
    for source in _sources(folder):
        if source.name == "variant.cpp":
            for name in VARIANTS if HAS_X86_VARIANTS else ("baseline",):
                result.append(Unit(f"variant_{name}", source, (*KERNEL_FLAGS, f"-DVARIANT={name}", *VARIANTS[name])))
        elif source.suffix != ".h":
            result.append(Unit(source.stem, source))
    return sorted(result, key=lambda unit: unit.name, reverse=True)  # those that take long come first


def _build(folder: Path, target: Path, command: list[str], extra_flags: Sequence[str], state: dict[str, str | None],
           reason: str) -> None:
    """Compile and link what `state` describes, and put it in place. The caller holds the lock."""
    work = target.parent / "build"
    if state["compiler"] is None:
        raise UserError(f"mytensor is to be built ({reason}), and no C++ compiler works (tried: "
                        f"{shlex.join(command) or ', '.join(COMPILERS)}); install one (Debian: apt install g++) or "
                        "name one with CXX")
    includes = _include_flags()
    for left in work.glob("unfinished-*"):  # of a killed build, whose compilers may go on for a while
        shutil.rmtree(left, ignore_errors=True)
    objects = work / "objects"
    objects.mkdir(exist_ok=True)
    with TemporaryDirectory(prefix="unfinished-", dir=work) as scratch, open(work / "build.log", "wb", 0) as log:
        _say(f"building it ({reason}), which takes about a minute; the compiler's output goes to {log.name}")
        compiler = Compiler(command, folder / "src", Path(scratch), log)
        openmp = compiler.has_openmp()
        openmp_flags = ["-fopenmp"] if openmp else []
        flags = [*_environment_flags("CXXFLAGS"), *FLAGS, *(openmp_flags or NO_OPENMP_FLAGS)]
        if HAS_X86_VARIANTS:
            flags.append("-DHAVE_X86_VARIANTS")
        headers = [path.read_bytes() for path in _sources(folder) if path.suffix == ".h"]
        common = {**state, "sources": headers, "flags": [*flags, *extra_flags]}

        def compile_unit(unit: Unit) -> Path:
            """The unit's object file: an earlier one, if its name says that all it was made from is the same."""
            key = _digest(repr((common, unit.flags, unit.source.read_bytes())).encode())
            path = objects / f"{unit.name}-{key[:16]}.o"
            if not path.exists():
                source = unit.source.relative_to(compiler.sources)
                output = compiler.make(path.name, *flags, *unit.flags, *extra_flags, *includes, "-x", "c++", "-c",
                                       source)
                os.replace(output, path)
            return path

        made = _in_parallel(compile_unit, units(folder))
        try:
            linked = compiler.make(target.name, *LINK_FLAGS, *openmp_flags, *made, *_environment_flags("LDFLAGS"),
                                   *extra_flags)
        except UserError:
            shutil.rmtree(objects)  # a crash of the machine may have left a broken one: the next build makes all anew
            raise
        built = {**state, "openmp": openmp, "file": _digest(linked.read_bytes())}
        os.replace(linked, target)
        write_json(_record(target), built)
    for left in set(objects.iterdir()) - set(made):
        left.unlink()


def _in_parallel(function: Callable[[Unit], Path], items: list[Unit]) -> list[Path]:
    """The function's results, as many at once as there are cores; after a failure no further one is begun."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    with ThreadPoolExecutor(cores) as pool:
        return list(pool.map(function, items))


def _include_flags() -> list[str]:
    """Where the headers of Python and of pybind11 are."""
    folders = list(dict.fromkeys(sysconfig.get_path(name) for name in ("include", "platinclude")))
    if not any(Path(folder, "Python.h").is_file() for folder in folders):
        raise UserError(f"mytensor is to be built, and Python's headers are missing ({folders[0]}/Python.h); install "
                        "them (Debian: apt install python3-dev; Fedora: dnf install python3-devel)")
    try:
        import pybind11
    except ImportError:
        raise UserError("mytensor is to be built, and pybind11 is missing: pip install pybind11") from None
    return [f"-I{folder}" for folder in (*folders, pybind11.get_include())]


@contextlib.contextmanager
def _lock(work: Path) -> Iterator[None]:
    """Hold `build/` against other builds. The lock is the kernel's: it goes with the process, however that ends."""
    with open(work / "lock", "wb") as file:
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                _say("another process is building it; waiting for that")
                fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _say(text: str) -> None:
    print(f"mytensor: {text}", file=sys.stderr, flush=True)
