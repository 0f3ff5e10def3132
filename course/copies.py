"""Copies of our packages in which one file has another text: a learner's repair, a mutant, a step undone.

A copy lies in a fresh folder under a fresh name. Rewriting a path in place would not do: within the same second Python takes
the old bytecode for the new text.
"""

import difflib
import importlib.util
import itertools
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from .session import ROOT

CONTENTS = {"kernels": ("*.py",), "course": ("__init__.py", "costs", "layers")}
"""What a copy of each package holds. The rest of ``course`` is not for changing."""

_numbers = itertools.count(1)
_folders = []  # temporary folders live as long as the process: a traceback reads the file again

Edit = tuple[str, str]  # a text that stands once, and what takes its place


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


def edited(file: str, edits: Iterable[Edit], name: str) -> str:
    """The shipped text of a file with edits, in any order; ``name`` tells whose they are.

    Lines that an edit's two texts have in common at their ends only say where. Raises ValueError unless each old text stands in
    the file exactly once, and no two edits change the same place.
    """
    shipped = shipped_text(file)
    changes = []
    for old, new in edits:
        times = shipped.count(old)
        if times != 1:
            raise ValueError(f"{name}: a text to edit stands {times} times in {file}, once is wanted: {old!r}")
        before, after = old.splitlines(keepends=True), new.splitlines(keepends=True)
        start = shipped.index(old)
        while before and after and before[0] == after[0]:
            start += len(before.pop(0))
            after.pop(0)
        while before and after and before[-1] == after[-1]:
            before.pop()
            after.pop()
        changes.append((start, start + len("".join(before)), "".join(after)))
    changes.sort()
    parts, end = [], 0
    for i, (start, stop, new) in enumerate(changes):
        if start < end or i and start == stop == changes[i - 1][0]:
            raise ValueError(f"{name}: two edits change the same place in {file}: {shipped[start:stop] or new!r}")
        parts += [shipped[end:start], new]
        end = stop
    return "".join([*parts, shipped[end:]])


def with_text(file: str, text: str, name: str | None = None) -> ModuleType:
    """A copy of the package of ``file``, imported, in which the file has this text.

    ``kernels`` comes as the package itself, ``course`` with its ``costs`` and ``layers``. Its name is a fresh one unless
    ``name`` is given: what Triton compiled under a name it finds again in another process.
    """
    _path(file)
    package = file.split("/")[0]
    name = name or f"{package}_changed_{next(_numbers)}"
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
