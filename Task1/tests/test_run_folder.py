"""The run folder: which one is taken, when it is refused, and that one run alone holds it."""

from __future__ import annotations

import errno
import os

import pytest

import run_folder
from run_folder import FILES, LAST_CHECKPOINT, RunFolder, create, find
from utils import UserError, temporary_path


def put(*paths) -> None:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"old")


def test_an_unnamed_run_takes_the_first_free_number(tmp_path):
    default = tmp_path / "runs" / "task1-x-y"
    taken = [create(None, default, overwrite=False).path.name for _ in range(3)]
    assert taken == ["task1-x-y", "task1-x-y-2", "task1-x-y-3"]
    default.with_name("task1-x-y-4").write_bytes(b"a file")
    assert create(None, default, overwrite=True).path.name == "task1-x-y-5"


def test_a_file_in_the_place_of_the_runs_is_told(tmp_path):
    (tmp_path / "runs").write_bytes(b"mine")
    with pytest.raises(UserError, match=r"runs.task1-x-y cannot be made: File exists"):
        create(None, tmp_path / "runs" / "task1-x-y", overwrite=False)


def test_a_named_folder_is_made_with_its_parents(tmp_path):
    assert create(tmp_path / "a" / "b", tmp_path / "no", overwrite=False).path.is_dir()
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize("name", FILES)
def test_a_named_folder_with_any_of_a_runs_files_is_refused_and_kept(tmp_path, name):
    put(tmp_path / name)
    with pytest.raises(UserError, match=r"--resume.*--overwrite.*--output-dir"):
        create(tmp_path, tmp_path, overwrite=False)
    assert (tmp_path / name).read_bytes() == b"old"


def test_a_named_folder_with_other_files_is_taken(tmp_path):
    put(tmp_path / "notes.txt", temporary_path(tmp_path / LAST_CHECKPOINT))
    create(tmp_path, tmp_path, overwrite=False)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]  # what a killed write left is gone


def test_overwriting_removes_a_runs_files_and_no_others(tmp_path):
    put(*(tmp_path / name for name in FILES), tmp_path / "notes.txt", tmp_path / "sub" / LAST_CHECKPOINT)
    create(tmp_path, tmp_path, overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes.txt", "sub"]
    assert (tmp_path / "sub" / LAST_CHECKPOINT).exists()


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_is_held_until_it_is_let_go(tmp_path, overwrite):
    put(tmp_path / LAST_CHECKPOINT)
    held = RunFolder(tmp_path)
    for take in (RunFolder, lambda path: create(path, path, overwrite)):
        with pytest.raises(UserError, match="in use by another run"):
            take(tmp_path)
    assert (tmp_path / LAST_CHECKPOINT).read_bytes() == b"old"
    del held
    RunFolder(tmp_path)


def test_a_disk_that_locks_no_folders_is_used_all_the_same(tmp_path, monkeypatch, capsys):
    def flock(descriptor, how):
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))  # what NFS answers for a folder

    monkeypatch.setattr(run_folder.fcntl, "flock", flock)
    assert RunFolder(tmp_path) / "a" == tmp_path / "a"
    assert capsys.readouterr().out.startswith("note: ")


def test_without_locks_a_folder_is_taken(tmp_path, monkeypatch):
    monkeypatch.setattr(run_folder, "fcntl", None)
    assert RunFolder(tmp_path).path == RunFolder(tmp_path).path


def test_resume_finds_the_named_run(tmp_path):
    put(tmp_path / "r" / LAST_CHECKPOINT)
    assert find(tmp_path / "r", tmp_path / "default") == tmp_path / "r"


def test_resume_finds_the_only_unnamed_run_that_can_be_resumed(tmp_path):
    default = tmp_path / "task1-x-y"
    put(default / "config.json", tmp_path / "task1-x-y-2" / LAST_CHECKPOINT,
        tmp_path / "task1-x-y-bn" / LAST_CHECKPOINT, tmp_path / "task1-x-y2" / LAST_CHECKPOINT)
    assert find(None, default) == tmp_path / "task1-x-y-2"


def test_resume_asks_which_of_several_unnamed_runs_is_meant(tmp_path):
    put(tmp_path / "a" / LAST_CHECKPOINT, tmp_path / "a-2" / LAST_CHECKPOINT)
    with pytest.raises(UserError, match=r"a, .*a-2; name one with --output-dir"):
        find(None, tmp_path / "a")


@pytest.mark.parametrize("named", [True, False])
def test_resume_without_a_run_says_where_it_looked_and_makes_nothing(tmp_path, monkeypatch, named):
    monkeypatch.chdir(tmp_path)
    path = run_folder.Path("runs") / "x"
    with pytest.raises(UserError) as error:
        find(path if named else None, path)
    assert str(tmp_path / "runs" / "x" / LAST_CHECKPOINT) in str(error.value)
    assert "leave --resume away for a first run" in str(error.value)
    assert not list(tmp_path.iterdir())
