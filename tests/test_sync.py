"""tools/sync.py: the copies in this repository are equal to their sources, and on small trees it does what it says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "tools"))
import sync  # noqa: E402

SHARED = (
    ("Task1", ("utils.py",), ("Task2", "Bonus")),
    ("Task3", ("mytorch/",), ("Bonus",)),
)


def write(root: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def contents(root: Path) -> dict[str, bytes]:
    return {file.relative_to(root).as_posix(): file.read_bytes() for file in root.rglob("*") if file.is_file()}


@pytest.fixture
def tree(tmp_path):
    """Bonus holds one file with other content, one too many, one build product, and lacks two; there is no Task2."""
    files = {
        "Task1/utils.py": b"new\n",
        "Task3/mytorch/nn.py": b"nn\r\n\xff",
        "Task3/mytorch/ops/conv.py": b"conv\n",
        "Task3/mytorch/__pycache__/nn.pyc": b"made from the source",
        "Bonus/main.py": b"its own\n",
        "Bonus/utils.py": b"old\n",
        "Bonus/mytorch/old/gone.py": b"stale\n",
        "Bonus/mytorch/__pycache__/nn.pyc": b"made from the copy",
    }
    write(tmp_path, files)
    return tmp_path


def test_the_copies_in_this_repository_are_up_to_date():
    command = [sys.executable, str(ROOT / "tools" / "sync.py"), "--check"]
    result = subprocess.run(command, capture_output=True, encoding="utf-8")
    assert result.returncode == 0, result.stdout + result.stderr


def test_check_lists_every_difference_and_writes_nothing(tree, capsys):
    before = contents(tree)
    assert sync.main(["--check"], tree, SHARED) == 1
    assert sorted(capsys.readouterr().out.splitlines()) == [
        "Task1/utils.py -> Bonus/utils.py: differs, run python tools/sync.py",
        "Task3/mytorch/nn.py -> Bonus/mytorch/nn.py: missing, run python tools/sync.py",
        "Task3/mytorch/old/gone.py -> Bonus/mytorch/old/gone.py: extra, run python tools/sync.py",
        "Task3/mytorch/ops/conv.py -> Bonus/mytorch/ops/conv.py: missing, run python tools/sync.py",
    ]
    assert contents(tree) == before


def test_copying_makes_receivers_equal_and_says_so(tree, capsys):
    expected = contents(tree)
    del expected["Bonus/mytorch/old/gone.py"]
    for name in ("utils.py", "mytorch/nn.py", "mytorch/ops/conv.py"):
        expected[f"Bonus/{name}"] = expected[f"{'Task1' if name == 'utils.py' else 'Task3'}/{name}"]

    assert sync.main([], tree, SHARED) == 0
    assert sorted(capsys.readouterr().out.splitlines()) == [
        "Task1/utils.py -> Bonus/utils.py: overwritten",
        "Task3/mytorch/nn.py -> Bonus/mytorch/nn.py: copied",
        "Task3/mytorch/old/gone.py -> Bonus/mytorch/old/gone.py: deleted",
        "Task3/mytorch/ops/conv.py -> Bonus/mytorch/ops/conv.py: copied",
    ]
    assert contents(tree) == expected
    assert not (tree / "Bonus/mytorch/old").exists()

    assert sync.main([], tree, SHARED) == sync.main(["--check"], tree, SHARED) == 0
    assert capsys.readouterr().out == ""


def test_receivers_and_source_folders_that_do_not_exist_are_left_out(tmp_path):
    write(tmp_path, {"Task1/utils.py": b"new\n"})
    assert sync.main([], tmp_path, SHARED) == 0
    assert contents(tmp_path) == {"Task1/utils.py": b"new\n"}


@pytest.mark.parametrize("wrong", ["utils.py", "mytorch/"])
def test_a_missing_source_is_an_error_that_names_it(tree, capsys, wrong):
    folder = "Task1" if wrong == "utils.py" else "Task3"
    (tree / folder / wrong).rename(tree / folder / "renamed")
    before = contents(tree)
    for arguments in (["--check"], []):
        assert sync.main(arguments, tree, SHARED) == 1
        output = capsys.readouterr()
        assert f"{folder}/{wrong} is no " in output.err
        assert output.out == "" and contents(tree) == before


def test_a_module_that_became_a_package_and_a_package_that_became_a_module(tmp_path):
    files = {
        "Task3/mytorch/nn/__init__.py": b"now a package\n",
        "Task3/mytorch/optim": b"now a file\n",
        "Bonus/mytorch/nn": b"once a file\n",
        "Bonus/mytorch/optim/sgd.py": b"once a directory\n",
    }
    write(tmp_path, files)
    assert sync.main([], tmp_path, SHARED) == 0
    assert sync.find_differences(tmp_path, SHARED) == []


def test_an_interrupted_copy_leaves_the_old_file(tree, monkeypatch):
    before = contents(tree)

    def interrupted(source, target):
        Path(target).write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(sync.shutil, "copyfile", interrupted)
    with pytest.raises(KeyboardInterrupt):
        sync.main([], tree, (("Task1", ("utils.py",), ("Bonus",)),))
    assert contents(tree) == before


def test_no_file_is_received_from_two_folders_or_passed_on():
    received = [f"{to}/{name}" for _, names, receivers in sync.SHARED for name in names for to in receivers]
    written = [f"{folder}/{name}" for folder, names, _ in sync.SHARED for name in names]
    assert len(set(received)) == len(received)
    assert not set(received) & set(written)
