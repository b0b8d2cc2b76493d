"""What holds for the repository as a whole: its files, its README, its requirements, and folders that stand alone."""

from __future__ import annotations

import ast
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = [name for name in ("Task1", "Task2", "Task3", "Bonus") if (ROOT / name).is_dir()]
PROGRAMS = [name for name in FOLDERS if (ROOT / name / "main.py").is_file()]
BINARY = {".png"}
LARGEST_FILE = 600 * 1024

OPTIONAL = {"tensorboard", "wandb"}  # imported only where a flag asks for them
BUILT = {"mytensor"}  # Task3's extension
DISTRIBUTIONS = {"PIL": "pillow"}  # where a package is installed under another name than it is imported


def is_checkout() -> bool:
    """Whether the repository is a git checkout of its own, and not a downloaded archive or a folder in another one."""
    if shutil.which("git") is None:
        return False
    top = subprocess.run(["git", "rev-parse", "--show-toplevel"], cwd=ROOT, capture_output=True, encoding="utf-8")
    return top.returncode == 0 and Path(top.stdout.strip()).resolve() == ROOT


pytestmark = pytest.mark.skipif(not is_checkout(), reason="not a git checkout: what belongs to it is not known")


def git(*arguments: str) -> list[str]:
    """Lines that a git command prints in the repository."""
    command = ["git", "-c", "core.quotePath=off", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8", check=True).stdout.splitlines()


@pytest.fixture(scope="module")
def files() -> list[Path]:
    """Every file that git holds, or would after `git add .`, relative to the root."""
    names = git("ls-files", "--cached", "--others", "--exclude-standard")
    return sorted(Path(name) for name in names if os.path.lexists(ROOT / name))


@pytest.fixture(scope="module")
def sources(files) -> dict[Path, ast.Module]:
    """Every Python file, parsed."""
    return {file: ast.parse((ROOT / file).read_bytes(), str(file)) for file in files if file.suffix == ".py"}


@pytest.fixture(scope="module")
def readme() -> str:
    return (ROOT / "README.md").read_text(encoding="utf-8")


def requirements() -> dict[str, str]:
    """Required packages, each with the lowest version that serves; "0" where any does."""
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    pairs = [re.fullmatch(r"([a-z0-9-]+)(?:>=([0-9.]+))?", line) for line in lines if line and not line.startswith("#")]
    assert all(pairs), "requirements.txt holds comments and lines like numpy>=1.26 alone"
    return {pair[1]: pair[2] or "0" for pair in pairs}


def test_files_are_small(files):
    assert [str(file) for file in files if (ROOT / file).stat().st_size > LARGEST_FILE] == []


def test_nothing_is_tracked_that_git_ignores():
    """Caches, build products, runs and data sets, added by force or before .gitignore named them."""
    assert git("ls-files", "--cached", "--ignored", "--exclude-standard") == []


def test_files_are_the_same_on_every_system(files):
    """Windows checks out no symbolic links, and has one name for `A` and `a`."""
    assert [str(file) for file in files if (ROOT / file).is_symlink()] == []
    assert [str(file) for file in files if not re.fullmatch(r"[\w.+/-]+", file.as_posix(), re.ASCII)] == []
    assert len({str(file).lower() for file in files}) == len(files)


def test_text_is_utf8_with_unix_line_ends(files):
    wrong = []
    for file in files:
        if file.suffix not in BINARY:
            text = (ROOT / file).read_bytes().decode("utf-8", errors="replace")
            if "\ufffd" in text or "\r" in text or (text and not text.endswith("\n")):
                wrong.append(str(file))
    assert wrong == []


def test_text_files_are_opened_as_utf8(sources):
    """Without `encoding`, Python takes the system's, which on Windows cannot hold every class name."""
    calls = [(file, node) for file, tree in sources.items() for node in ast.walk(tree) if isinstance(node, ast.Call)]
    assert [f"{file}:{call.lineno}" for file, call in calls if opens_text_without_encoding(call)] == []


def opens_text_without_encoding(call: ast.Call) -> bool:
    """Whether a call is `open()` in text mode, or a Path's `read_text()` or `write_text()`, with no `encoding=`."""
    keywords = {keyword.arg: keyword.value for keyword in call.keywords}
    mode = call.args[1] if len(call.args) > 1 else keywords.get("mode", ast.Constant("r"))
    match call.func:
        case ast.Attribute(attr="read_text" | "write_text"):
            return "encoding" not in keywords
        case ast.Name(id="open"):
            return "encoding" not in keywords and "b" not in ast.unparse(mode)
    return False


def test_requirements_are_met_here():
    """A version that the requirements exclude fails in ways that are hard to read."""
    wrong = []
    for name, lowest in requirements().items():
        version = importlib.metadata.version(name)
        if version_numbers(version) < version_numbers(lowest):
            wrong.append(f"{name}>={lowest}, but {version} is installed")
    assert wrong == []


def version_numbers(version: str) -> list[int]:
    """The numbers of a version such as 2.6.0+cpu, without what a builder appended."""
    return [int(number) for number in re.findall(r"\d+", version.split("+")[0])]


def test_imports_are_required_packages_or_the_folders_own_modules(sources):
    """So a fresh environment runs everything, and no folder imports from another."""
    required = requirements().keys() | BUILT | sys.stdlib_module_names
    wrong = []
    for file, tree in sources.items():
        known = required | own_modules(file, sources)
        for node in ast.walk(tree):
            for name in imported_modules(node):
                optional = name in OPTIONAL and node not in tree.body
                if not optional and DISTRIBUTIONS.get(name, name) not in known:
                    wrong.append(f"{file}:{node.lineno} imports {name}")
    assert wrong == []


def own_modules(file: Path, sources) -> set[str]:
    """Modules and packages beside a file and at the top of its folder (for the root's tests, of tools/)."""
    places = [file.parent, Path(file.parts[0]) if file.parts[0] in FOLDERS else Path("tools")]
    inside = [other.relative_to(place) for place in places for other in sources if other.is_relative_to(place)]
    return {path.parts[0].removesuffix(".py") for path in inside}


def imported_modules(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name.split(".")[0] for alias in node.names]
    if isinstance(node, ast.ImportFrom) and not node.level:
        return [node.module.split(".")[0]]
    return []


def test_readme_has_the_two_commands(readme):
    assert "pip install -r requirements.txt && python Task1/main.py --dataset synthetic" in readme
    assert "python tools/test.py" in readme


def test_readme_links_lead_somewhere(readme):
    targets = re.findall(r"\]\(([^)\s]+)", readme) + re.findall(r"<img[^>]* src=\"([^\"]+)\"", readme)
    local = [target.split("#")[0] for target in targets if not re.match(r"[a-z]+:|#", target)]
    assert [target for target in local if not (ROOT / target).exists()] == []


@pytest.mark.parametrize("folder", PROGRAMS)
def test_readme_says_how_to_run_each_folder(readme, folder):
    assert f"python {folder}/main.py" in readme


@pytest.mark.parametrize("folder", PROGRAMS)
def test_a_folder_runs_where_it_is_copied_to(files, folder, tmp_path):
    copy = tmp_path / "my projects" / "Aufgabe ü" / folder
    for file in files:
        if file.parts[0] == folder:
            target = copy / file.relative_to(folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / file, target)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "main.py", "--help"]
    result = subprocess.run(command, cwd=copy, env=environment, capture_output=True, encoding="utf-8")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("usage: ")
