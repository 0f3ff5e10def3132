"""A submission in the shape of its release: what the learner wrote, in the cells as they were handed out.

A cell is found again by its nbgrader id, else by its cell id, else by its text; an answer whose metadata is gone (some services
strip it) by the check that follows it, or by the name that it defines. Checks and other locked cells are taken from the
release, whatever became of them; cells that the learner added stay where they were.
"""

import ast
import copy
import json
import re
from dataclasses import dataclass

import nbformat
from nbformat import NotebookNode

from .tasks import Assignment

LARGEST = 20 << 20
"""Bytes of a submission."""

MOST_CELLS = 1000
CHECK = re.compile(r"""\bcheck\(\s*["'](?P<assignment>\w+)\.(?P<task>\w+)["']""")
CHANGE_AS = re.compile(r"^%%change\s+\S+\s+as\s+(\w+)")


class Unreadable(ValueError):
    """The file is no notebook of this assignment; says why."""


@dataclass
class Found:
    """A cell of a submission."""

    kind: str
    source: str
    cell_id: str | None
    grade_id: str | None


def read(data: bytes) -> tuple[list[Found], dict]:
    """Cells and metadata of a notebook, believing nothing about it. Raises `Unreadable`."""
    if not data.strip():
        raise Unreadable("the file is empty")
    if len(data) > LARGEST:
        raise Unreadable(f"the file has {len(data) / 2**20:.0f} MB, {LARGEST >> 20} MB at most are read")
    try:
        notebook = json.loads(data.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise Unreadable("the file is not UTF-8 text, so it is no notebook") from None
    except (ValueError, RecursionError):
        raise Unreadable("the file is no notebook: it is not JSON") from None
    cells = notebook.get("cells") if isinstance(notebook, dict) else None
    if not isinstance(cells, list):
        raise Unreadable("the file is no notebook of format 4: it has no list of cells")
    if len(cells) > MOST_CELLS:
        raise Unreadable(f"the notebook has {len(cells)} cells, {MOST_CELLS} at most are read")
    metadata = notebook.get("metadata")
    return [cell for cell in map(_found, cells) if cell is not None], metadata if isinstance(metadata, dict) else {}


def _found(cell) -> Found | None:
    if not isinstance(cell, dict) or cell.get("cell_type") not in ("code", "markdown", "raw"):
        return None
    source = cell.get("source", "")
    if isinstance(source, list):
        source = "".join(part for part in source if isinstance(part, str))
    metadata = cell.get("metadata")
    nbgrader = metadata.get("nbgrader") if isinstance(metadata, dict) else None
    grade_id = nbgrader.get("grade_id") if isinstance(nbgrader, dict) else None
    text = source if isinstance(source, str) else ""
    # Lone surrogates are JSON, but no UTF-8.
    text = text.encode("utf-8", "replace").decode("utf-8")
    return Found(
        cell["cell_type"],
        text,
        *(value if isinstance(value, str) else None for value in (cell.get("id"), grade_id)),
    )


def grade_id(cell: NotebookNode) -> str | None:
    """nbgrader's id of a cell, if it has one."""
    return cell.metadata.get("nbgrader", {}).get("grade_id")


def is_answer(cell: NotebookNode) -> bool:
    """Whether the learner writes in this cell of a release."""
    return bool(cell.metadata.get("nbgrader", {}).get("solution"))


def is_locked(cell: NotebookNode) -> bool:
    """Whether the cell is handed out to stay as it is."""
    return grade_id(cell) is not None and not is_answer(cell)


def rebuild(master: NotebookNode, data: bytes, assignment: Assignment) -> tuple[NotebookNode, list[str]]:
    """The release ``master`` with what the learner wrote, and notes on what had to be repaired. Raises `Unreadable`."""
    cells, metadata = read(data)
    _of_this(cells, metadata, assignment)
    places = _match(master, cells, assignment)
    if not any(is_answer(cell) and i in places for i, cell in enumerate(master.cells)):
        raise Unreadable(f"the notebook has no answer cell of {assignment.name}")
    notes, made = [], copy.deepcopy(master)
    made.cells, after = [], _extras(cells, places)
    made.cells += after.get(-1, [])
    for i, cell in enumerate(copy.deepcopy(master.cells)):
        _restore(cell, cells[places[i]] if i in places else None, notes)
        made.cells += [cell, *after.get(i, [])]
    return made, notes


def _of_this(cells: list[Found], metadata: dict, assignment: Assignment) -> None:
    course = metadata.get("course")
    named = course.get("assignment") if isinstance(course, dict) else None
    asked = {found["assignment"] for cell in cells for found in CHECK.finditer(cell.source)}
    other = named if isinstance(named, str) and named != assignment.name else None
    if other is None and asked and assignment.name not in asked:
        other = sorted(asked)[0]
    if other is not None:
        raise Unreadable(f"the notebook is of another assignment ({other:.40}), not of {assignment.name}")


def _match(master: NotebookNode, cells: list[Found], assignment: Assignment) -> dict[int, int]:
    """Position in the submission of each cell of the release that is found there."""
    places: dict[int, int] = {}
    free = set(range(len(cells)))

    def take(i: int, candidates: list[int]) -> None:
        candidates = [j for j in candidates if j in free]
        if i not in places and candidates:
            # Of copies of an answer the first that is more than what was handed out.
            written = [j for j in candidates if cells[j].source.strip() != master.cells[i].source.strip()]
            places[i] = (written if is_answer(master.cells[i]) and written else candidates)[0]
            free.discard(places[i])

    for by in (
        lambda cell, found: grade_id(cell) is not None and found.grade_id == grade_id(cell),
        lambda cell, found: found.cell_id is not None and found.cell_id == cell.id and found.kind == cell.cell_type,
        lambda cell, found: found.kind == cell.cell_type and found.source.strip() == cell.source.strip(),
    ):
        for i, cell in enumerate(master.cells):
            take(i, [j for j, found in enumerate(cells) if j in free and by(cell, found)])
    _match_by_checks(master, cells, assignment, places, free)
    return places


def _match_by_checks(master, cells, assignment, places, free) -> None:
    """Find answers without metadata: between the checks where they belong, or by the name they define."""
    checks = {found["task"]: j for j, cell in enumerate(cells) for found in CHECK.finditer(cell.source)}
    start = 0
    for i, cell in enumerate(master.cells):
        if grade_id(cell) in {task.name for task in assignment.tasks}:
            task = assignment.task(grade_id(cell))
            end = checks.get(task.name)
            if i not in places and end in free:
                places[i] = end
                free.discard(end)
            mine = [k for k in range(start, i) if is_answer(master.cells[k]) and k not in places]
            begin = max([j for j in checks.values() if end is not None and j < end], default=-1)
            there = [j for j in sorted(free) if cells[j].kind == "code" and (end is None or begin < j < end)]
            defining = [j for j in there if root_name(task.answer) in defined(cells[j].source)]
            chosen = (
                defining[-1:] if len(mine) == 1 and defining else there if end is not None and len(mine) == len(there) else []
            )
            for k, j in zip(mine, chosen, strict=False):
                places[k] = j
                free.discard(j)
            start = i
    for i, cell in enumerate(master.cells):  # the open question comes last
        if is_answer(cell) and cell.cell_type == "markdown" and i not in places:
            last = [j for j in sorted(free) if cells[j].kind == "markdown" and j > max(places.values(), default=-1)]
            if last:
                places[i] = last[0]
                free.discard(last[0])


def root_name(expression: str) -> str:
    """The name that an answer's expression starts from: 'mended' for 'mended.merge'."""
    return re.match(r"\w*", expression)[0]


def defined(source: str) -> set[str]:
    """Names that a cell defines at its top level."""
    change = CHANGE_AS.match(source.lstrip())
    if change:
        return {change[1]}
    names = set()
    for node in _parsed(source) or ():
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}
    return names


def _parsed(text: str) -> list[ast.stmt] | None:
    """Statements of a text; None for what is no Python."""
    try:
        return ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _split(source: str) -> tuple[list[str], str]:
    """The words of a cell's magic, none if it has none, and the text below it."""
    first, _, rest = source.strip().partition("\n")
    return (first.split(), rest) if first.startswith("%%") else ([], source.strip())


def same_code(one: str, other: str) -> bool:
    """Whether two cells differ in comments and layout at most."""
    (magic, text), (other_magic, other_text) = _split(one), _split(other)
    bodies = _parsed(text), _parsed(other_text)
    if None in bodies:
        return one.strip() == other.strip()
    first, second = (ast.dump(ast.Module(body, [])) for body in bodies)
    return magic == other_magic and first == second


def changed_definitions(source: str) -> set[tuple[str, str]]:
    """(file, name) of the definitions that a cell puts into a file of ours; none for what is no Python."""
    if not CHANGE_AS.match(source.lstrip()):
        return set()
    (_, file, *_), text = _split(source)
    return {(file, name) for node in _parsed(text) or () if (name := getattr(node, "name", None))}


def _extras(cells: list[Found], places: dict[int, int]) -> dict[int, list[NotebookNode]]:
    """The learner's own cells, by the cell of the release after which they stood (-1: before all)."""
    of, last, after = {j: i for i, j in places.items()}, -1, {}
    for j, found in enumerate(cells):
        if j in of:
            last = of[j]
            continue
        new = {"code": nbformat.v4.new_code_cell, "markdown": nbformat.v4.new_markdown_cell, "raw": nbformat.v4.new_raw_cell}
        cell = new[found.kind](found.source)
        cell.id = f"added-{j}"
        after.setdefault(last, []).append(cell)
    return after


def _restore(cell: NotebookNode, found: Found | None, notes: list[str]) -> None:
    """Put what the learner wrote into a cell of the release."""
    name = grade_id(cell)
    if found is None:
        if name is not None:
            what = "answer cell" if is_answer(cell) else "cell"
            notes.append(f"the {what} {name!r} was missing and was put back as it was handed out")
        return
    if is_locked(cell):
        if found.source.strip() != cell.source.strip() or found.kind != cell.cell_type:
            notes.append(f"the cell {name!r} had been changed and was restored")
        return
    if is_answer(cell) and found.grade_id != name:
        notes.append(f"the answer cell {name!r} had lost its metadata and was found by its place")
    cell.source = found.source
