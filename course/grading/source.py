"""``python -m course.grading.source NAME``: bring an assignment's source in line with its tasks.

The tasks are the truth: their points, kinds and answers go into the cells that check them. A task that has no cells yet gets
them, in its place, with what an author has to fill in. Nothing that an author wrote is touched.
"""

import copy
import sys
from pathlib import Path

import nbformat

from .assignments import ASSIGNMENTS
from .release import BEGIN, END, SOURCES
from .tasks import Assignment, Task

TEXT = """\
## {title} ({points})

What is asked, with shapes and units.

<details><summary>Hint 1</summary>

Where to begin.

</details>
<details><summary>Hint 2</summary>

What to look at next.

</details>"""


def _nbgrader(name: str, **said) -> dict:
    return {"schema_version": 3, "grade": False, "solution": False, "locked": False, "task": False, "grade_id": name} | said


def _of(notebook: nbformat.NotebookNode, name: str) -> int | None:
    """Place of the cell with this nbgrader name."""
    names = [cell.metadata.get("nbgrader", {}).get("grade_id") for cell in notebook.cells]
    return names.index(name) if name in names else None


def _made(task: Task) -> list[nbformat.NotebookNode]:
    """The cells of a new task: what is asked, the answer, the check."""
    name = task.answer.split(".")[0]
    body, stub, head = f"{name} = ...", f"{name} = None", ""
    if task.kind == "fix":
        body, stub = f"<<{task.name}.shipped>>", f"<<{task.name}.broken>>"
        head = f"%%change <<{task.name}.file>> as {name}\n"
    points = f"{task.max_points} point{'s' if task.max_points != 1 else ''}"
    text = nbformat.v4.new_markdown_cell(TEXT.format(title=task.title, points=points))
    answer = nbformat.v4.new_code_cell(f"{head}{BEGIN}\n{body}\n{END}")
    answer.metadata = {"course": {"stub": stub}, "nbgrader": _nbgrader(f"{task.name}-answer", solution=True)}
    check = nbformat.v4.new_code_cell()
    check.metadata = {"nbgrader": _nbgrader(task.name)}
    for cell, ending in ((text, "text"), (answer, "answer"), (check, "check")):
        cell["id"] = f"{task.name}-{ending}".replace("_", "-")[:64]
    return [text, answer, check]


def aligned(notebook: nbformat.NotebookNode, assignment: Assignment) -> nbformat.NotebookNode:
    """A copy in which every task has its cells, with its points."""
    notebook = copy.deepcopy(notebook)
    explain = _of(notebook, "explain")
    place = 0 if explain is None else explain - 1  # of the open question, which comes last
    for task in reversed(assignment.tasks):
        found = _of(notebook, task.name)
        if found is None:
            notebook.cells[place:place] = _made(task)
            found = place + 2
        check = notebook.cells[found]
        check.source = f'check("{assignment.name}.{task.name}", {task.answer}, givens)'
        check.metadata["nbgrader"] = _nbgrader(task.name, grade=True, locked=True, points=task.max_points)
        # The task before this one ends where this one's text begins.
        place = _of(notebook, f"{task.name}-answer") or found
        while place and notebook.cells[place - 1].cell_type == "markdown":
            place -= 1
    explain = _of(notebook, "explain")
    if explain is not None:
        notebook.cells[explain].metadata["nbgrader"]["points"] = sum(points for points, _ in assignment.rubric)
    return notebook


def main(names: list[str]) -> int:
    for name in names:
        if name not in ASSIGNMENTS:
            print(f"there is no assignment {name!r} (there are {', '.join(ASSIGNMENTS)})", file=sys.stderr)
            return 2
        path = Path(SOURCES, f"{name}.ipynb")
        before = nbformat.read(path, as_version=4)
        after = aligned(before, ASSIGNMENTS[name])
        if after == before:
            print(f"{name}: in line with its tasks")
        else:
            path.write_text(nbformat.writes(after) + "\n", encoding="utf-8")
            print(f"{name}: written; fill in what the new cells ask for")
    return 0


if __name__ == "__main__":
    if not sys.argv[1:]:
        sys.exit("name the assignments: python -m course.grading.source NAME…")
    sys.exit(main(sys.argv[1:]))
