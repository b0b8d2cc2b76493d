"""Nothing that Python can pass ends the process, is answered wrongly, or touches memory that is not its own."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import sanitized
from conftest import FOLDER

import extension

FUZZ = str(Path(__file__).with_name("fuzz.py"))
needs_sanitizers = pytest.mark.skipif(not sanitized.compiler_has_sanitizers(), reason="the compiler has no sanitizers")


def fuzz(folder: Path, last_call: Path, examples: int, *names: str, **environment: str) -> tuple[int, str]:
    """The exit status, and all that the run said, with the last call that was made."""
    done = sanitized.run(folder, "-W", "ignore", FUZZ, str(examples), str(last_call), *names, **environment)
    call = last_call.read_text(encoding="utf-8") if last_call.exists() else "none"
    return done.returncode, f"{done.stdout}{done.stderr}\nthe last call: {call}"


def test_calls_return_or_raise_an_error_with_a_text(tmp_path):
    status, said = fuzz(FOLDER, tmp_path / "last_call", 20)
    assert status == 0, said


@needs_sanitizers
def test_calls_touch_no_memory_that_is_not_theirs(tmp_path):
    status, said = fuzz(sanitized.build(), tmp_path / "last_call", 20)
    assert status == 0, said


# ---- each check can fail ---------------------------------------------------------------------------------------------

# Put in front of the reference's matrix product, out (m, n) = a (m, k) b (k, n); FAULT picks one.
FAULTS = """
  const char* fault = std::getenv("FAULT");
  const auto is = [&](const char* name) { return fault && std::strcmp(fault, name) == 0; };
  if (is("write one past the end")) out[m * n] = 0;
  if (is("write before the start")) out[-1] = 0;
  if (is("read far past the end")) out[0] = a[m * k + 32];
  if (is("read what was given back")) {
    float* block = static_cast<float*>(allocate(4, true));
    release(block);
    out[0] = *block;
  }
  if (is("overflow")) m += std::numeric_limits<Index>::max() - m + k;
  if (is("leave it unwritten")) return;
  if (is("raise")) throw std::runtime_error("another error");
  if (is("crash")) std::abort();
  if (is("keep")) allocate(4, true);
"""
INCLUDES = ("<cstdlib>", "<cstring>", "<limits>", "<stdexcept>", '"../allocator.h"')


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    """The folder of a sanitized extension whose reference has faults; what is not changed is not compiled again."""
    tree = tmp_path_factory.mktemp("broken")
    shutil.copytree(FOLDER / "src", tree / "src")
    shutil.copytree(sanitized.build() / "build" / "objects", tree / "build" / "objects")
    source = tree / "src" / "cpu" / "reference.cpp"
    start = "void matmul(const float* a, const float* b, float* out, Index m, Index n, Index k, bool transpose_b) {"
    text = source.read_text(encoding="utf-8")
    assert text.count(start) == 1
    source.write_text("".join(f"#include {name}\n" for name in INCLUDES) + text.replace(start, start + FAULTS),
                      encoding="utf-8")
    return extension.build(tree, extra_flags=sanitized.FLAGS).parent


@needs_sanitizers
@pytest.mark.parametrize("fault, report", [
    ("write one past the end", "byte 0 behind a block of"),
    ("write before the start", "AddressSanitizer: use-after-poison"),
    ("read far past the end", "AddressSanitizer: use-after-poison"),
    ("read what was given back", "AddressSanitizer: use-after-poison"),
    ("overflow", "runtime error: signed integer overflow"),
    ("leave it unwritten", "nan location mismatch"),
    ("raise", "RuntimeError: another error"),
    ("crash", "the last call: mytensor.matmul("),
    ("keep", "assert (mytensor.live_tensors(), mytensor.memory_allocated()) == before"),
])
def test_a_fault_is_reported(broken, tmp_path, fault, report):
    status, said = fuzz(broken, tmp_path / "last_call", 10, "matmul", FAULT=fault)
    assert status != 0 and report in said and "the last call: mytensor.matmul(" in said, said


@needs_sanitizers
def test_without_a_fault_the_same_build_is_right(broken, tmp_path):
    status, said = fuzz(broken, tmp_path / "last_call", 10, "matmul")
    assert status == 0, said
