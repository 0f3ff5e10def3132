"""Making the environment: which Python is taken, what is said where none will do, and what an interruption leaves."""

import ast
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from course.site import ROOT, environment


@pytest.mark.parametrize("name", ["__init__", "__main__", "environment"])
def test_starts_on_an_old_python(name):
    text = Path(ROOT, "course", "site", f"{name}.py").read_text(encoding="utf-8")
    tree = ast.parse(text, feature_version=(3, 6))
    imported = {alias.name.split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and not node.level}
    assert imported <= sys.stdlib_module_names


def test_help_needs_no_packages(tmp_path):
    code = "import sys; sys.argv[1:] = ['--help']; import runpy; runpy.run_module('course.site', run_name='__main__')"
    finished = subprocess.run([sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {ROOT!r}); {code}"],
                              cwd=tmp_path, capture_output=True, text=True)  # fmt: skip
    assert finished.returncode == 0, finished.stderr
    assert "gpu-test" in finished.stdout


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A repository of its own, with a folder of programs that alone is on PATH, and no installing."""
    root = tmp_path / "a repository"
    root.mkdir()
    for name in ("requirements.txt", "constraints.txt"):
        (root / name).write_text(f"# {name}\n")
    monkeypatch.setattr(environment, "VENV", str(root / ".venv"))
    monkeypatch.setattr(environment, "VENV_PYTHON", str(root / ".venv" / "bin" / "python"))
    monkeypatch.setattr(environment, "STAMP", str(root / ".venv" / "complete"))
    monkeypatch.setattr(environment, "REQUIREMENTS", str(root / "requirements.txt"))
    monkeypatch.setattr(environment, "CONSTRAINTS", str(root / "constraints.txt"))
    programs = tmp_path / "programs"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))
    return root


def program(folder: Path, name: str, text: str) -> Path:
    """An executable shell script in ``folder``."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_this_python_is_taken_if_it_will_do():
    assert environment.find_python() == sys._base_executable  # not the environment that may be replaced


def test_newer_python_is_found_and_a_stand_in_passed_over(place, monkeypatch):
    programs = Path(os.environ["PATH"])
    monkeypatch.setattr(environment.sys, "version_info", (3, 8, 1))
    program(programs, "python3.12", "echo 'python3.12: not installed' >&2; exit 127")
    wanted = program(programs, "python3.13", "exit 0")
    assert environment.find_python() == str(wanted)


def test_no_new_enough_python_is_said_in_words(place, monkeypatch):
    monkeypatch.setattr(environment.sys, "version_info", (3, 8, 1))
    with pytest.raises(SystemExit, match=r"(?s)Python 3\.11 to 3\.14.*Python 3\.8.*apt install"):
        environment.find_python()


def test_python_without_ensurepip_names_the_package(place, monkeypatch):
    bare = program(place, "bare python", 'case "$2" in *ensurepip*) exit 1;; *) echo 3.12;; esac')
    with pytest.raises(SystemExit, match=r"apt install python3\.12-venv"):
        environment._create(str(bare))
    assert not (place / ".venv").exists()


# Stands for `python -m venv` and for the environment's own Python: notes what it is asked to do, and can be told to fail.
FAKE_PYTHON = """
case "$1 $2" in
"-m venv") echo create >> "$LOG"; mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; exit 0;;
"-m pip") echo install >> "$LOG"; exit ${PIP_STATUS:-0};;
*) exit 0;;
esac
"""


@pytest.fixture
def done(place, monkeypatch, tmp_path):
    """Function that runs ``ensure`` and returns what it did: 'create', 'install'."""
    monkeypatch.setenv("PATH", os.defpath)
    monkeypatch.setenv("LOG", str(tmp_path / "log"))
    python = program(tmp_path / "new", "python", FAKE_PYTHON)
    monkeypatch.setattr(environment, "find_python", lambda: str(python))

    def ensure() -> list[str]:
        (tmp_path / "log").write_text("")
        try:
            assert environment.ensure() == environment.VENV_PYTHON
        except SystemExit as stopped:
            assert "Running the command again" in str(stopped)
        return (tmp_path / "log").read_text().split()

    return ensure


def test_environment_is_made_once(done):
    assert done() == ["create", "install"]
    assert done() == []


def test_changed_list_is_installed_over_it(done, place):
    done()
    (place / "constraints.txt").write_text("numpy==2.4.6\n")
    assert done() == ["install"]
    assert done() == []


def test_interrupted_installation_starts_afresh(done, place, monkeypatch):
    monkeypatch.setenv("PIP_STATUS", "1")
    assert done() == ["create", "install"]
    (place / ".venv" / "half of a package").write_text("")
    monkeypatch.delenv("PIP_STATUS")
    assert done() == ["create", "install"]
    assert not (place / ".venv" / "half of a package").exists()
    assert done() == []


def test_interrupted_update_starts_afresh(done, place, monkeypatch):
    done()
    (place / "requirements.txt").write_text("numpy\n")
    monkeypatch.setenv("PIP_STATUS", "1")
    assert done() == ["install"]
    monkeypatch.delenv("PIP_STATUS")
    assert done() == ["create", "install"]


@pytest.mark.parametrize("damage", ["python is gone", "python does not run", "packages are gone"])
def test_broken_environment_is_made_anew(done, place, damage):
    done()
    python = place / ".venv" / "bin" / "python"
    if damage == "python is gone":
        python.unlink()
    else:
        program(python.parent, "python", "exit 1" if damage == "packages are gone" else "exit 127")
    assert done() == ["create", "install"]
