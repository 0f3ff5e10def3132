"""Definitions of our files: found, replaced by a learner's, and loaded as a copy of the package."""

import ast
from types import ModuleType

from ..copies import shipped_text, with_text


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


def changed(file: str, new: str) -> ModuleType:
    """A copy of a package of ours, with the definitions of ``new`` in ``file``. Errors as `replace_definitions` has them."""
    return with_text(file, replace_definitions(shipped_text(file), new, file))
