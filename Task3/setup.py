"""Builds `mytensor` by hand: `python setup.py build_ext --inplace` (`--force`: also where it is up to date).

extension.py says what is compiled and how; this file is its door for setuptools. The result always lies in this folder.
"""

from __future__ import annotations

import os
import sys

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

import extension
from utils import UserError


class BuildMytensor(build_ext):
    def run(self) -> None:
        extension.build(force=bool(self.force))


if __name__ == "__main__":
    os.chdir(extension.FOLDER)  # setuptools takes settings that lie where it is called
    try:
        setup(name="mytensor", ext_modules=[Extension("mytensor", sources=[])], cmdclass={"build_ext": BuildMytensor})
    except UserError as error:
        sys.exit(f"error: {error}")
