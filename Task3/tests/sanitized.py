"""Builds the extension with AddressSanitizer and UndefinedBehaviorSanitizer, and runs Python with it."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

from conftest import FOLDER

import extension

# Left out is what a crash shows as well (null) or asks of every line of pybind11, at twice the time for the compiler.
FLAGS = ("-O1", "-g1", "-fsanitize=address,undefined", "-fno-sanitize=null,vptr,object-size",
         "-fno-sanitize-recover=all")
LIBRARIES = ("libasan.so", "libubsan.so", "libstdc++.so.6")  # of the compiler; the last, as they look for its `throw`


@cache
def compiler_has_sanitizers() -> bool:
    return all(Path(library).is_absolute() for library in _libraries())


@cache
def build() -> Path:
    """The folder of the sanitized extension, built once and again when the sources change."""
    return extension.build(into=FOLDER / "build" / "sanitized", extra_flags=FLAGS).parent


def run(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
    """Run Python with the extension in `folder`, sanitized if it is not the project's own."""
    sanitizers = {} if folder == FOLDER else {
        "LD_PRELOAD": ":".join(_libraries()), "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1"}
    path = {"PYTHONPATH": os.pathsep.join(map(str, (folder, FOLDER)))}
    return subprocess.run([sys.executable, *arguments], env={**os.environ, **path, **sanitizers, **environment},
                          capture_output=True, text=True)


@cache
def _libraries() -> tuple[str, ...]:
    """Their paths; a bare name for one that there is not."""
    compiler = extension.find_compiler()
    return tuple(subprocess.run([*compiler, f"-print-file-name={name}"], capture_output=True, text=True,
                                check=True).stdout.strip() for name in LIBRARIES)
