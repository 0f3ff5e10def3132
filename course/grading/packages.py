"""Copies of our packages with a few definitions replaced: a learner's repair, or a mutant.

A copy lies in a fresh folder under a fresh name. Rewriting a path in place would not do: within the same second Python takes
the old bytecode for the new text.
"""

import ast
import difflib
import importlib.util
import itertools
import shutil
import sys
import tempfile
import warnings
from pathlib import Path
from types import ModuleType

from ..session import ROOT

CONTENTS = {"kernels": ("*.py",), "course": ("__init__.py", "costs", "layers")}
"""What a copy of each package holds. The rest of ``course`` is not for changing."""

_numbers = itertools.count(1)
_folders = []  # temporary folders live as long as the process: a traceback reads the file again


def shipped_text(file: str) -> str:
    """Text of a file of ours, by its path in the repository."""
    return _path(file).read_text(encoding="utf-8")


def _path(file: str) -> Path:
    package = file.split("/")[0]
    path = ROOT / file
    if package not in CONTENTS or ".." in file or not file.endswith(".py"):
        raise ValueError(f"file must be a Python file in kernels/, course/costs/ or course/layers/, got {file!r}")
    if not path.is_file():
        near = difflib.get_close_matches(file, [str(p.relative_to(ROOT)) for p in ROOT.glob(f"{package}/**/*.py")], 1)
        raise ValueError(f"there is no file {file!r}{f'; did you mean {near[0]!r}?' if near else ''}")
    return path


def _names(node: ast.stmt) -> tuple[str, ...]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return (node.name,)
    if isinstance(node, ast.Assign):
        return tuple(target.id for target in node.targets if isinstance(target, ast.Name))
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return (node.target.id,)
    return ()


def _span(node: ast.stmt) -> tuple[int, int]:
    """First line and the line after the last, counted from 0, decorators included."""
    first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
    return first - 1, node.end_lineno


def definition_at(text: str, line: int) -> str:
    """Text of the top-level definition that holds a line (counted from 0)."""
    for node in ast.parse(text).body:
        first, end = _span(node)
        if first <= line < end:
            return "".join(text.splitlines(keepends=True)[first:end])
    raise ValueError(f"line {line + 1} is in no definition")


def replace_definitions(text: str, new: str, file: str = "the file") -> str:
    """``text`` with the top-level definitions of ``new`` in place of those with the same names.

    Imports of ``new`` go below the docstring, names that ``text`` does not have before the first definition replaced.
    Raises SyntaxError for text that is no Python, ValueError if nothing has a name of the file.
    """
    lines = text.splitlines(keepends=True)
    new_lines = new.splitlines(keepends=True)
    if new_lines and not new_lines[-1].endswith("\n"):
        new_lines[-1] += "\n"
    places = {name: _span(node) for node in ast.parse(text).body for name in _names(node) if name != "_"}
    edits, imports, extra = {}, [], []
    for node in ast.parse(new, filename=file).body:
        first, end = _span(node)
        block = new_lines[first:end]
        known = [name for name in _names(node) if name in places]
        if isinstance(node, ast.Import | ast.ImportFrom):
            imports += block
        elif known:
            edits[places[known[0]]] = block
        elif _names(node):
            extra += [*block, "\n", "\n"]
        else:
            raise ValueError(
                f"line {node.lineno} is no definition: only functions, classes, constants and imports fit into {file}"
            )
    if not edits:
        there = ", ".join(places)
        raise ValueError(f"no definition here has a name of {file}, so nothing would change (it defines {there})")
    start = min(first for first, _ in edits)
    for (first, end), block in sorted(edits.items(), reverse=True):
        lines[first:end] = (extra if first == start else []) + block
    head = _span(ast.parse(text).body[0])[1] if ast.get_docstring(ast.parse(text)) is not None else 0
    return "".join(lines[:head] + imports + lines[head:])


def with_text(file: str, text: str) -> ModuleType:
    """A copy of the package of ``file`` under a fresh name, imported, in which the file has this text.

    ``kernels`` comes as the package itself, ``course`` with its ``costs`` and ``layers``.
    """
    _path(file)
    package = file.split("/")[0]
    name = f"{package}_changed_{next(_numbers)}"
    folder = tempfile.TemporaryDirectory(prefix="mha-to-mla-")
    _folders.append(folder)
    root = Path(folder.name) / name
    root.mkdir()
    for pattern in CONTENTS[package]:
        for path in sorted((ROOT / package).glob(pattern)):
            if path.is_dir():
                shutil.copytree(path, root / path.name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(path, root / path.name)
    (root.parent / name / Path(file).relative_to(package)).write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, root / "__init__.py", submodule_search_locations=[str(root)])
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Triton is not installed")  # said by the package itself already
            spec.loader.exec_module(module)
        if package == "course":
            for part in ("costs", "layers"):
                importlib.import_module(f"{name}.{part}")
    except BaseException:
        for key in [key for key in sys.modules if key == name or key.startswith(name + ".")]:
            del sys.modules[key]
        raise
    return module


def changed(file: str, new: str) -> ModuleType:
    """A copy of a package of ours, with the definitions of ``new`` in ``file``. Errors as `replace_definitions` has them."""
    return with_text(file, replace_definitions(shipped_text(file), new, file))
