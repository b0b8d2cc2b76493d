"""Puts the folder's modules on the path, and compares ours with PyTorch's."""

from __future__ import annotations

import sys
from pathlib import Path

import hypothesis

FOLDER = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(FOLDER))

import extension  # noqa: E402  (found through the line above)

extension.ensure_built()

# The same examples in every run: what fails here fails everywhere.
hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=25, database=None)
hypothesis.settings.load_profile("repeatable")
