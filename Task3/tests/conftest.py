"""Puts the folder's modules on the path, and compares ours with PyTorch's."""

from __future__ import annotations

import sys
from pathlib import Path

import hypothesis
import pytest

FOLDER = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(FOLDER))

import extension  # noqa: E402  (found through the line above)

extension.ensure_built()

import mytensor  # noqa: E402  (built by the line above)

# The same examples in every run: what fails here fails everywhere.
hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=25, database=None)
hypothesis.settings.load_profile("repeatable")


@pytest.fixture(scope="module", params=mytensor.cpu_variants())
def each_cpu_variant(request):
    """The tests of a module that uses it run once with the kernels of each instruction set that this processor has."""
    before = mytensor.cpu_variant()
    mytensor.set_cpu_variant(request.param)
    yield
    mytensor.set_cpu_variant(before)
