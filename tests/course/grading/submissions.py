"""A small assignment of our own and notebooks for it, so that tests of the grading depend on no chapter."""

import json

import nbformat

from course.grading.judge import Wrong, close, number
from course.grading.tasks import Assignment, Task, named

NAME = "small"


@named("a number", "the number is that of the release")
def the_number(answer, draw):
    if number(answer.value()["n"]) != draw.givens["n"]:
        raise Wrong("that is another number")


@named("sum", "the sum of two tensors")
def the_sum(answer, draw):
    a, b = draw.tensor(3, 4), draw.tensor(3, 4)
    close(answer(a, b), a + b, ("row", "column"))


@named("sum of strides", "strided tensors too")
def the_strided_sum(answer, draw):
    a, b = draw.tensor(3, 8)[:, ::2], draw.tensor(4, 3).T
    close(answer(a, b), a + b, ("row", "column"))


@named("no product", "no product is made")
def no_product(answer, draw):
    if answer.observe(draw.tensor(3, 4), draw.tensor(3, 4)).flops:
        raise Wrong("a product was made")


SMALL = Assignment(
    NAME,
    "A small assignment",
    30,
    ("add",),
    (
        Task("first", "predict", "First", "given", ((the_number, 2),)),
        Task("second", "build", "Second", "add", ((the_sum, 1), (the_strided_sum, 1), (no_product, 2)), seconds=3),
        Task("third", "build", "Third", "again", ((the_sum, 3),), seconds=3),
    ),
    lambda draw: {"n": 7},
    ((2, "for saying why"),),
)
RIGHT = {
    "first": 'given = {"n": givens["n"]}',
    "second": "def add(a, b):\n    return a + b",
    "third": "def again(a, b):\n    return b + a",
}


def _cell(source, grade_id, kind="code", **metadata):
    cell = (nbformat.v4.new_code_cell if kind == "code" else nbformat.v4.new_markdown_cell)(source)
    cell.id = grade_id
    base = {"schema_version": 3, "grade": False, "solution": False, "locked": False, "task": False, "grade_id": grade_id}
    cell.metadata["nbgrader"] = {**base, **metadata}
    return cell


def master():
    """The release."""
    text = nbformat.v4.new_markdown_cell("# A small assignment")
    text.id = "text"
    cells = [text, _cell("givens = {'n': 7}", "givens", locked=True)]
    for task in SMALL.tasks:
        cells.append(_cell("given = {'n': None}" if task.name == "first" else "pass", f"{task.name}-answer", solution=True))
        call = f'check("{NAME}.{task.name}", {task.answer}, givens)'
        cells.append(_cell(call, task.name, grade=True, locked=True, points=task.max_points))
    cells.append(_cell("*Your answer here.*", "explain", "markdown", grade=True, solution=True, points=2))
    return nbformat.v4.new_notebook(cells=cells, metadata={"course": {"assignment": NAME}})


def handed_in(before=(), change=lambda notebook: None, **answers):
    """A submission, as a notebook: right answers but for those that are named, cells of one's own before the first answer."""
    notebook = master()
    for cell in notebook.cells:
        name, _, what = cell.id.partition("-")
        if what == "answer":
            cell.source = answers.get(name, RIGHT[name])
    notebook.cells[2:2] = [nbformat.v4.new_code_cell(source) for source in before]
    change(notebook)
    return notebook


def as_bytes(notebook) -> bytes:
    return json.dumps(notebook).encode()
