"""tools/test.py: its last line and exit status tell the truth about passing, failing, crashing and empty folders."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

PASSES = "def test_passes(): pass\n"
FAILS = "def test_fails(): assert False\n"
SKIPS = "import pytest\n@pytest.mark.skip\ndef test_skipped(): pass\n"
OUTCOMES = """
import pytest
@pytest.fixture
def broken(): raise OSError
@pytest.fixture
def broken_at_the_end():
    yield
    raise OSError
def test_error_before(broken): pass
def test_error_after(broken_at_the_end): pass
"""


@pytest.fixture
def run(tmp_path):
    """Call with {folder: source of its one test file} and arguments; returns the output's lines and the exit status."""

    def run(folders: dict[str, str], *arguments: str) -> tuple[list[str], int]:
        (tmp_path / "tools").mkdir()
        shutil.copy(ROOT / "tools" / "test.py", tmp_path / "tools")
        for folder, source in folders.items():
            tests = tmp_path / folder / "tests"
            tests.mkdir(parents=True)
            (tests / "test_it.py").write_text(source, encoding="utf-8")
        command = [sys.executable, str(tmp_path / "tools" / "test.py"), *arguments]
        # Without installed plugins (Hypothesis and others) pytest starts several times faster.
        environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        result = subprocess.run(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8"
        )
        return result.stdout.splitlines(), result.returncode

    return run


def test_folders_are_added_up_and_timed(run):
    lines, status = run({".": PASSES, "Task1": PASSES + SKIPS, "Task3": PASSES})
    assert lines[-1] == "3 passed, 0 failed, 1 skipped"
    assert status == 0
    assert [re.sub(r"\d+\.\d", "T", line) for line in lines[-4:-1]] == ["root: T s", "Task1: T s", "Task3: T s"]


def test_each_folder_imports_its_own_modules(run, tmp_path):
    for folder in ("Task1", "Task2"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "models.py").write_text(f"name = {folder!r}\n", encoding="utf-8")
    test = "import models\ndef test_own_module(): assert models.name == {!r}\n"
    lines, _ = run({".": PASSES, "Task1": test.format("Task1"), "Task2": test.format("Task2")})
    assert lines[-1] == "3 passed, 0 failed, 0 skipped"


def test_failures_and_errors_count_as_failed(run):
    lines, status = run({".": FAILS + PASSES, "Task1": OUTCOMES, "Task2": "import no_such_module"})
    assert lines[-1] == "1 passed, 4 failed, 0 skipped"
    assert status == 1


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param("import os\ndef test_crashes(): os.abort()\n", id="crash"),
        pytest.param("import os\ndef test_leaves(): os._exit(0)\n", id="silent exit"),
        pytest.param("", id="no tests"),
    ],
)
def test_a_folder_without_results_counts_as_one_failure(run, broken):
    lines, status = run({".": PASSES, "Task1": broken})
    assert lines[-1] == "1 passed, 1 failed, 0 skipped"
    assert lines[-2].startswith("Task1: ") and "counted as one failure" in lines[-2]
    assert status == 1


def test_a_folder_without_a_tests_directory_counts_as_one_failure(run, tmp_path):
    (tmp_path / "Task2").mkdir()
    lines, status = run({".": PASSES})
    assert (lines[-1], status) == ("1 passed, 1 failed, 0 skipped", 1)


def test_arguments_go_to_pytest_and_a_folder_may_have_no_match(run):
    lines, status = run({".": PASSES, "Task1": FAILS}, "-k", "passes")
    assert (lines[-1], status) == ("1 passed, 0 failed, 0 skipped", 0)


def test_only_runs_one_folder(run):
    lines, status = run({".": FAILS, "Task1": PASSES, "Task2": FAILS}, "--only", "Task1", "-x")
    assert (lines[-1], status) == ("1 passed, 0 failed, 0 skipped", 0)


def test_a_selection_that_matches_nothing_anywhere_fails(run):
    lines, status = run({".": PASSES, "Task1": PASSES}, "-k", "misspelt")
    assert (lines[-1], status) == ("0 passed, 1 failed, 0 skipped", 1)
