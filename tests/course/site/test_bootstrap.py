"""The bootstrap cell finds the course in each of its three ways, and says what to do where it cannot."""

import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from course.site import ROOT, bootstrap


@pytest.fixture
def course(tmp_path):
    """A small stand-in for the repository: what the cell looks for, and a session that leaves a trace."""
    root = tmp_path / "the course"
    (root / "course").mkdir(parents=True)
    (root / "_toc.yml").write_text("")
    (root / "course" / "__init__.py").write_text("")
    (root / "course" / "session.py").write_text("import pathlib; ROOT = pathlib.Path(__file__).parents[1]")
    return root


@pytest.fixture
def run(monkeypatch):
    """Function that runs the cell in a folder and returns the root from which it imported ``course.session``."""
    for name in [name for name in sys.modules if name.split(".")[0] == "course"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry and Path(entry) != Path(ROOT)])
    monkeypatch.delenv("MHA_TO_MLA", raising=False)

    def cell(folder: Path) -> Path:
        monkeypatch.chdir(folder)
        exec(compile(bootstrap.text(), "bootstrap", "exec"), {})
        return sys.modules["course.session"].ROOT

    yield cell
    for name in [name for name in sys.modules if name.split(".")[0] == "course"]:
        del sys.modules[name]


def test_it_is_short():
    lines = bootstrap.text().splitlines()
    assert len(lines) < 15
    assert max(map(len, lines)) <= 88  # what fits beside the contents of a page


def test_environment_variable(run, course, tmp_path, monkeypatch):
    monkeypatch.setenv("MHA_TO_MLA", str(course))
    assert run(tmp_path) == course


def test_environment_variable_wins_over_the_folder(run, course, tmp_path, monkeypatch):
    other = tmp_path / "other"
    other.mkdir()
    (other / "_toc.yml").write_text("")
    monkeypatch.setenv("MHA_TO_MLA", str(course))
    assert run(other) == course


@pytest.mark.parametrize("below", [".", "notebooks", "notebooks/mine/deep"])
def test_nearest_parent(run, course, below):
    (course / below).mkdir(parents=True, exist_ok=True)
    assert run(course / below) == course


@pytest.mark.parametrize("times", [1, 2])
def test_colab_clones_the_release_once_and_installs_nothing(run, course, tmp_path, monkeypatch, times):
    calls = []

    def clone(command, check):
        calls.append(command)
        course.rename(command[-1])

    monkeypatch.setitem(sys.modules, "google.colab", types.ModuleType("google.colab"))
    monkeypatch.setattr(subprocess, "run", clone)
    content = tmp_path / "content"
    content.mkdir()
    for _ in range(times):
        assert run(content) == content / "from-mha-to-mla"
    url, tag = bootstrap.current()
    assert calls == [
        ["git", "clone", "--quiet", "--depth=1", f"--branch={tag}", url, content / "from-mha-to-mla"],
    ]


def test_nowhere_says_to_set_the_variable(run, tmp_path):
    with pytest.raises(RuntimeError, match="MHA_TO_MLA"):
        run(tmp_path)


def test_wrong_variable_says_to_set_the_variable(run, tmp_path, monkeypatch):
    monkeypatch.setenv("MHA_TO_MLA", str(tmp_path))
    with pytest.raises(RuntimeError, match="MHA_TO_MLA"):
        run(tmp_path)


def test_another_book_around_the_notebook_says_to_set_the_variable(run, tmp_path):
    (tmp_path / "_toc.yml").write_text("")
    with pytest.raises(RuntimeError, match="MHA_TO_MLA"):
        run(tmp_path)


def test_the_real_course_is_found_from_its_notebooks():
    environment = {key: value for key, value in os.environ.items() if key != "MHA_TO_MLA"}
    code = bootstrap.text() + "\nprint(course.session.ROOT)"
    finished = subprocess.run([sys.executable, "-c", code], cwd=Path(ROOT, "notebooks"), env=environment,
                              capture_output=True, text=True)  # fmt: skip
    assert finished.stdout.splitlines()[-1] == ROOT, finished.stderr
