"""From the source of an assignment to what is handed out: values drawn, the bug put in, solutions taken out.

A source in notebooks/assignments/ is an nbgrader source with two additions. ``<<name>>`` in a cell stands for a value that the
release gives, or for a task's bug: ``<<task.file>>``, ``<<task.shipped>>`` (in the solution), ``<<task.broken>>`` (what is
handed out). A cell's metadata ``course.stub`` is what stands in the place of its solution in the release. Points and kinds of
the tasks are those of `assignments`; a test holds the source to them.
"""

import copy
import pprint
import re
import sys
from pathlib import Path

import jinja2
import nbformat

from ..session import ROOT
from .assignments import ASSIGNMENTS, mutants_of
from .draw import Draw
from .mutants import Mutant
from .tasks import PUBLIC_SEED

SOURCES = ROOT / "notebooks" / "assignments"
BEGIN, END = "### BEGIN SOLUTION", "### END SOLUTION"
SOLUTION = re.compile(rf"^[ \t]*{BEGIN}\n.*?^[ \t]*{END}[ \t]*$", re.DOTALL | re.MULTILINE)
_texts = jinja2.Environment(
    variable_start_string="<<", variable_end_string=">>", block_start_string="<%", block_end_string="%>",
    comment_start_string="<#", comment_end_string="#>", undefined=jinja2.StrictUndefined, keep_trailing_newline=True,
)  # fmt: skip


def bugs(name: str, seed: str = PUBLIC_SEED) -> dict[str, Mutant]:
    """The mutant that each fix-the-bug task hands out: the first in the public release, drawn in a private one."""
    assignment, found = ASSIGNMENTS[name], {}
    for task in assignment.tasks:
        given = mutants_of(assignment, task, given=True)
        if task.kind == "fix":
            if not given:
                raise ValueError(f"{name}.{task.name} is to fix a bug, and no mutant of it may be given")
            found[task.name] = given[0] if seed == PUBLIC_SEED else Draw(seed, name, task.name, "bug").choice(given)
    return found


def solved(name: str, seed: str = PUBLIC_SEED) -> nbformat.NotebookNode:
    """The assignment with its solutions, as nbgrader takes a source. Raises `jinja2.UndefinedError` for a value not given."""
    notebook = nbformat.read(SOURCES / f"{name}.ipynb", as_version=4)
    givens = ASSIGNMENTS[name].draw_givens(seed)
    values = {**givens, "givens": pprint.pformat(givens, width=100, sort_dicts=False)}
    for task, mutant in bugs(name, seed).items():
        values[task] = {"file": mutant.file, "shipped": mutant.shipped().rstrip(), "broken": mutant.broken().rstrip()}
    for cell in notebook.cells:
        cell.source = _texts.from_string(cell.source).render(values)
        stub = cell.metadata.get("course", {}).get("stub")
        if stub is not None:
            cell.metadata["course"]["stub"] = _texts.from_string(stub).render(values)
    notebook.metadata["course"] = {"assignment": name}
    return notebook


def without_solutions(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """A copy with each solution's stub in its place, and nothing of it in the metadata."""
    notebook = copy.deepcopy(notebook)
    for cell in notebook.cells:
        stub = cell.metadata.pop("course", {}).get("stub", "")
        cell.source = SOLUTION.sub(lambda _, stub=stub: stub, cell.source)
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    return notebook


def main(folder: str) -> None:
    """``python -m course.grading.release FOLDER``: write every assignment as its public release, for the site to hand out."""
    for name in ASSIGNMENTS:
        path = Path(folder, f"{name}.ipynb")
        path.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(without_solutions(solved(name)), path)


if __name__ == "__main__":
    main(sys.argv[1])
