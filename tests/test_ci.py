""".ci/run: stops at the first step that fails, with its exit status, and leaves no virtual environment behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
STEPS = ["-c", "-m venv", "-m pip", "-m ruff", "tools/test.py"]

# Stands in for python: notes how it was called, "makes" an environment that holds a copy of itself, fails when told to.
PYTHON = """#!/bin/sh
echo "$*" >> "$LOG"
case "$*" in "$FAILING"*) exit 7;; esac
case "$*" in "-m venv"*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python";; esac
"""


@pytest.mark.skipif(sys.platform == "win32", reason="a shell script")
@pytest.mark.parametrize("failing", [*STEPS, "nothing"])
def test_steps_run_in_order_until_one_fails(tmp_path, failing):
    python, log, temporary = tmp_path / "python", tmp_path / "log", tmp_path / "with space"
    python.write_text(PYTHON, encoding="utf-8")
    python.chmod(0o755)
    temporary.mkdir()
    environment = {**os.environ, "PYTHON": str(python), "TMPDIR": str(temporary), "LOG": str(log), "FAILING": failing}
    status = subprocess.run([str(ROOT / ".ci" / "run")], env=environment, cwd=tmp_path).returncode

    expected = STEPS if failing == "nothing" else STEPS[: STEPS.index(failing) + 1]
    called = log.read_text(encoding="utf-8").splitlines()
    assert len(called) == len(expected)
    assert all(call.startswith(step) for call, step in zip(called, expected, strict=True))
    assert status == (0 if failing == "nothing" else 7)
    assert list(temporary.iterdir()) == []
