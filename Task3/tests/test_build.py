"""What is built is free of warnings, fit for every processor, and at peace with the rest of the process."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import FOLDER

import extension

ALL = sorted(unit.name for unit in extension.units(FOLDER))


def run_setup(folder: Path, **environment: str) -> subprocess.CompletedProcess:
    """Build from another folder, with `setup.py`; a warning is an error."""
    return subprocess.run([sys.executable, str(folder / "setup.py"), "build_ext", "--inplace"], cwd=folder.parent,
                          env={**os.environ, "CXXFLAGS": "-Werror", **environment}, capture_output=True, text=True)


def copy_of_the_folder(path: Path) -> Path:
    ignored = shutil.ignore_patterns("*.so", "build", "tests", "runs", "__pycache__", ".*")
    return Path(shutil.copytree(FOLDER, path, ignore=ignored))


def python(folder: Path, script: str, *options: str, **environment: str) -> list[str]:
    """What a script prints that is run in a built folder."""
    done = subprocess.run([sys.executable, *options, "-c", script], cwd=folder, env={**os.environ, **environment},
                          capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A copy of the folder, built in a path with spaces and accents."""
    folder = copy_of_the_folder(tmp_path_factory.mktemp("my projects") / "Aufgabe ü")
    done = run_setup(folder)
    assert (done.returncode, len(done.stderr.splitlines())) == (0, 1), done.stderr
    assert "mytensor: building it (not built yet)" in done.stderr
    return folder


def test_what_was_built_is_not_built_again(built):
    before = (built / "build" / "build.log").stat().st_mtime_ns
    done = run_setup(built)
    assert (done.returncode, done.stderr) == (0, "")
    assert (built / "build" / "build.log").stat().st_mtime_ns == before


def test_nothing_is_tuned_to_this_machine_or_to_fast_math(built):
    log = (built / "build" / "build.log").read_text(encoding="utf-8")
    assert log.count(" -c ") == len(ALL) and "-fvisibility=hidden" in log
    assert not re.search(r"-march|-mtune|-Ofast|fast-math|unsafe-math|finite-math|associative-math", log)


# Instructions of AVX and later: their names begin with v, their registers are ymm, zmm, k0 to k7 and xmm16 to xmm31.
WIDE = re.compile(r"\tv[a-z]|%[yz]mm|%k[0-7]\b|%xmm(1[6-9]|2\d|3[01])")


@pytest.mark.skipif(not (extension.HAS_X86_VARIANTS and shutil.which("objdump")), reason="needs x86-64 and objdump")
def test_only_the_variants_chosen_at_run_time_use_avx_and_they_lend_nobody_a_function(built):
    objects = {path.name.rpartition("-")[0]: path for path in (built / "build" / "objects").iterdir()}
    assert sorted(objects) == ALL

    def objdump(option: str, path: Path) -> str:
        return subprocess.run(["objdump", "--no-show-raw-insn", option, str(path)], capture_output=True, check=True,
                              text=True).stdout

    assert {name for name, path in objects.items() if WIDE.search(objdump("-d", path))} \
        == {"variant_avx2", "variant_avx512"}
    assert "%zmm" not in objdump("-d", objects["variant_avx2"])
    for name in ("variant_avx2", "variant_avx512"):
        # A weak function of the C++ library, compiled here for AVX, could be the one that the linker keeps for all.
        shared = [line.split()[-1] for line in objdump("-t", objects[name]).splitlines()
                  if re.match(r"[0-9a-f]+ [gwu! ].{5}F", line) and "*UND*" not in line]
        assert set(shared) <= {"__clang_call_terminate"}
        assert not re.search(r"\.(init_array|ctors|init)\b", objdump("-h", objects[name]))  # run before the choice


def test_tiny_numbers_stay_numbers_for_the_whole_process(built):
    assert python(built, """if True:
        import threading
        import numpy as np
        import mytensor
        def check():
            assert 1e-323 != 0.0 and float("5e-324") / 1 > 0
            assert np.nextafter(np.float32(0), np.float32(1)) * np.float32(1) > 0
            assert np.isnan(mytensor.exp(mytensor.full([3], float("nan"))).numpy()).all()
        x = mytensor.full([8, 16, 32, 32], 1.0)
        for name in mytensor.cpu_variants():
            mytensor.set_cpu_variant(name)
            mytensor.nn.conv_backward(x, mytensor.full([4, 16, 3, 3], 1.0), None, mytensor.full([8, 4, 32, 32], 1.0),
                                      1, 1, 1, 1)
            check()
            thread = threading.Thread(target=check)
            thread.start()
            thread.join()
        print("right")""", "-W", "error") == ["right"]


# One training step of each framework, then how many threads had a share in a product of mytensor's.
STEP = """if True:
    import os
    import numpy as np
    import {imports}
    torch.set_num_threads(2)
    mytensor.set_num_threads(2)
    torch.manual_seed(0)
    x = torch.randn(64, 3, 32, 32)
    convolution = torch.nn.Conv2d(3, 16, 5)
    convolution(x).square().mean().backward()
    arrays = [mytensor.Tensor.from_numpy(t.detach().numpy()) for t in (x, convolution.weight, convolution.bias)]
    y = mytensor.nn.conv_forward(*arrays, 1, 1, 0, 0)
    grad = mytensor.mul(y, 2 / np.prod(y.shape()))
    weight_grad = mytensor.nn.conv_backward(*arrays, grad, 1, 1, 0, 0)[1].numpy()
    np.testing.assert_allclose(weight_grad, convolution.weight.grad.numpy(), rtol=1e-3, atol=1e-5)
    def used():
        return {{task: int(open(f"/proc/self/task/{{task}}/schedstat", encoding="utf-8").read().split()[0])
                 for task in os.listdir("/proc/self/task")}}
    before = used()
    a = mytensor.full([1024, 1024], 1.0)
    for _ in range(20):
        mytensor.matmul(a, a)
    shares = [time - before.get(task, 0) for task, time in used().items()]
    print(sum(share > 0.2 * sum(shares) for share in shares), weight_grad.tobytes().hex()[:4000])"""


@pytest.mark.skipif(not os.path.exists("/proc/self/schedstat"), reason="the kernel tells no time of a thread")
def test_torch_and_mytensor_share_a_process_in_either_order_of_import(built, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    answers = [python(built, STEP.format(imports=imports), **environment)
               for imports in ("torch, mytensor", "mytensor, torch")
               for environment in ({}, {"OMP_NUM_THREADS": "1"})]
    assert answers[0][0] == "2"
    assert answers.count(answers[0]) == 4


def test_without_openmp_it_runs_on_one_thread_and_says_so(built, tmp_path):
    folder, compiler = copy_of_the_folder(tmp_path / "tree"), tmp_path / "no openmp"
    compiler.write_text(f'#!/bin/sh\ncase "$*" in *fopenmp*) echo "error: -fopenmp?" >&2; exit 1; esac\n'
                        f'exec {shlex.join(extension.find_compiler())} "$@"\n', encoding="utf-8")
    compiler.chmod(0o755)
    done = run_setup(folder, CXX=str(compiler))
    first, second = done.stderr.splitlines()
    assert done.returncode == 0 and "building" in first and "runs on one thread" in second
    script = """if True:
        import mytensor, numpy as np
        mytensor.set_num_threads(2)
        x = np.random.default_rng(0).normal(size=(4, 8, 16, 16))
        y = mytensor.nn.conv_forward(*map(mytensor.Tensor.from_numpy, (x, x[:, :, :3, :3], x[0, :4, 0, 0])), 1, 1, 1, 1)
        print(mytensor.get_num_threads(), f"{np.abs(y.numpy()).mean():.5f}")"""
    (one, alone), (two, together) = python(folder, script), python(built, script)
    assert (one, two) == ("1", "2") and alone == together


def test_setup_py_tells_a_failure_in_one_line_with_status_1(tmp_path):
    done = run_setup(copy_of_the_folder(tmp_path / "tree"), CXX="/nonexistent")
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("error: mytensor is to be built (not built yet), and no C++ compiler works")
