"""From a source to what is handed out."""

import nbformat
import pytest

from course.grading import release
from course.grading.assignments import ASSIGNMENTS


def cell(source, stub=None):
    made = nbformat.v4.new_code_cell(source)
    if stub is not None:
        made.metadata["course"] = {"stub": stub}
    return made


def test_a_stub_stands_where_the_solution_stood():
    before = nbformat.v4.new_notebook(
        cells=[cell("a = 1\n### BEGIN SOLUTION\nsecret = 2\n### END SOLUTION\nb = 3", "hole = ...")]
    )
    after = release.without_solutions(before)
    assert after.cells[0].source == "a = 1\nhole = ...\nb = 3"
    assert "course" not in after.cells[0].metadata and "secret" in before.cells[0].source


def test_backslashes_of_a_stub_stay():
    made = nbformat.v4.new_notebook(cells=[cell("### BEGIN SOLUTION\n1\n### END SOLUTION", r"'\1 \n'")])
    assert release.without_solutions(made).cells[0].source == r"'\1 \n'"


@pytest.mark.parametrize("name", ASSIGNMENTS)
def test_private_variants_differ_and_repeat(name):
    seeds = [f"class {i}" for i in range(8)]
    givens = [ASSIGNMENTS[name].draw_givens(seed) for seed in seeds]
    assert givens == [ASSIGNMENTS[name].draw_givens(seed) for seed in seeds]
    assert len({repr(each) for each in givens}) > 1
    given = {task: {m.name for m in (release.bugs(name, seed)[task] for seed in seeds)} for task in release.bugs(name)}
    for task, drawn in given.items():
        assert drawn <= {m.name for m in release.mutants_of(ASSIGNMENTS[name], ASSIGNMENTS[name].task(task), given=True)}
