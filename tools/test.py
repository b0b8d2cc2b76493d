"""Runs the root's tests and each folder's, with pytest, and adds up what they found.

    python tools/test.py                             everything
    python tools/test.py --only Task1 -k schedule    one folder; what this program does not know goes to pytest

The folders have modules of the same names, so each is tested in a process of its own, started inside the folder.
The last line is `N passed, N failed, N skipped`; the exit status is 1 if anything failed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = {"root": ROOT, **{name: ROOT / name for name in ("Task1", "Task2", "Task3", "Bonus")}}
NO_TESTS_COLLECTED = 5  # an exit status of pytest


def run_tests(folder: Path, pytest_arguments: list[str]) -> tuple[Counter[str], int]:
    """Test one folder, its output going where ours goes. Returns the count of each outcome and pytest's exit status."""
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory, "report.xml")
        command = [sys.executable, "-m", "pytest", "-q", "tests", *pytest_arguments, f"--junitxml={report}"]
        status = subprocess.run(command, cwd=folder).returncode
        # pytest writes the report when it ends: one that crashed leaves none.
        return (count_outcomes(report) if report.exists() else Counter()), status


def count_outcomes(report: Path) -> Counter[str]:
    """Outcomes in a JUnit XML file. An error, as in collecting a file or in a fixture, counts as a failed test."""
    counts: Counter[str] = Counter()
    for case in ElementTree.parse(report).iter("testcase"):
        found = {element.tag for element in case}
        counts["failed" if found & {"failure", "error"} else "skipped" if "skipped" in found else "passed"] += 1
    return counts


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Run the tests of the root and of each folder. Any other argument goes to pytest.",
        allow_abbrev=False,
    )
    parser.add_argument("--only", choices=FOLDERS, action="append", help="test this alone (may be given several times)")
    known, pytest_arguments = parser.parse_known_args(arguments)
    may_select_nothing = any(argument.startswith(("-k", "-m")) for argument in pytest_arguments)

    total: Counter[str] = Counter()
    summary = []
    for name, folder in FOLDERS.items():
        if not folder.is_dir() or (known.only and name not in known.only):
            continue
        print(f"== {name} ==", flush=True)
        start = time.perf_counter()
        counts, status = run_tests(folder, pytest_arguments)
        line = f"{name}: {time.perf_counter() - start:.1f} s"
        selected_nothing = may_select_nothing and status == NO_TESTS_COLLECTED
        if not counts["failed"] and (status or not counts) and not selected_nothing:
            counts["failed"] = 1
            line += f", counted as one failure: pytest ended with status {status}"
        summary.append(line)
        total += counts

    if not total:
        total["failed"] = 1
        summary.append("No test was run: counted as one failure")
    print("", *summary, sep="\n")
    print(f"{total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped")
    return 1 if total["failed"] else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
