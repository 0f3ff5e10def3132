"""Promises that hold for the whole repository."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from course.site import ROOT

SKIPPED = {
    ".git",
    ".venv",
    "_build",
    "__pycache__",
    ".pytest_cache",
    ".ruff_cache",
    ".hypothesis",
    ".ipynb_checkpoints",
}
TEXT = {
    ".py",
    ".md",
    ".ipynb",
    ".yml",
    ".yaml",
    ".toml",
    ".txt",
    ".cfg",
    ".cff",
    ".js",
    ".css",
    ".svg",
    ".bib",
    ".json",
    "",
}


def texts() -> dict[str, str]:
    """Every text file of the repository, by its path."""
    found = {}
    for path in sorted(Path(ROOT).rglob("*")):
        inside = path.relative_to(ROOT)
        if path.is_file() and path.suffix in TEXT and not SKIPPED & set(inside.parts):
            found[inside.as_posix()] = path.read_text(encoding="utf-8")
    return found


TEXTS = texts()


def offending(pattern: str, *, but: str = r"(?!)") -> list[str]:
    """Places where ``pattern`` occurs, as file, line and text; a line that matches ``but`` is passed over."""
    return [
        f"{name}:{number}: {line.strip()[:120]}"
        for name, text in TEXTS.items()
        if name != "tests/course/site/test_repository.py"
        for number, line in enumerate(text.splitlines(), 1)
        if re.search(pattern, line) and not re.search(but, line)
    ]


def test_style():
    command = [sys.executable, "-m", "ruff", "check", "--quiet", "kernels", "course", "tests", "notebooks"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_no_absolute_path_of_a_machine():
    # The lookbehind passes over addresses on the web and paths inside the repository.
    assert offending(r"(?<![\w.~$}/-])/(home|root|work|Users|opt|mnt|scratch|tmp)/\w", but=r"re\.(search|compile)|/some/") == []


def test_jupyter_book_is_bounded_wherever_it_is_named():
    named = offending(r"jupyter-book\s*[=<>~]|pip install.*jupyter-book")
    assert named
    assert [line for line in named if not re.search(r"<\s*2|==\s*1\.", line)] == []


def test_no_address_of_a_package_registry():
    assert offending(r"https?://[\w.-]*(pypi|pythonhosted|npmjs|conda\.anaconda|download\.pytorch)[\w.-]*") == []


@pytest.mark.parametrize("name", [name for name in TEXTS if name.startswith("tests/") and name.endswith(".py")])
def test_tests_are_not_a_package(name):
    assert not name.endswith("__init__.py")


def test_every_test_file_is_collected():
    inside = [name for name in TEXTS if re.search(r"(^|/)test_\w+\.py$", name)]
    assert inside
    assert [name for name in inside if not name.startswith("tests/")] == []


def imported(name: str, text: str) -> set[str]:
    """Modules that a Python file imports, by their full names."""
    package = name.removesuffix(".py").split("/")[:-1]
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            found |= {f"{base}.{alias.name}" for alias in node.names}
    return found


def test_floors_import_only_downwards():
    allowed = {
        "kernels": set(),
        "course/costs": {"kernels"},
        "course/layers": {"kernels", "course.costs"},
        "course/measure": {"kernels", "course.copies", "course.costs", "course.layers"},
        "course/views": {"kernels", "course.copies", "course.costs", "course.layers", "course.measure"},
    }
    for folder, below in allowed.items():
        for name, text in TEXTS.items():
            if name.startswith(folder + "/") and name.endswith(".py"):
                used = {".".join(module.split(".")[: 1 + module.startswith("course.")]) for module in imported(name, text)}
                ours = {module for module in used if module.split(".")[0] in ("course", "kernels")}
                assert ours - {folder.replace("/", ".")} <= below, name


@pytest.mark.parametrize("module", ["course.site", "course.site.__main__", "course.costs"])
def test_cheap_imports_stay_cheap(module):
    heavy = "{'torch', 'triton', 'numpy', 'matplotlib', 'altair', 'ipywidgets', 'sphinx', 'nbformat'}"
    code = f"import sys, {module}; print(*sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
