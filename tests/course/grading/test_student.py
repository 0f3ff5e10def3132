"""What a notebook imports: a check that never raises, and the magic that changes a copy of our code."""

import pytest

from course.grading import student
from course.grading.assignments import ASSIGNMENTS


def test_a_cell_changes_a_copy(shell):
    shell.run_cell_magic("change", "kernels/plan.py as mine", "def ceil_div(a, b):\n    return 42\n")
    assert shell.user_ns["mine"].plan.ceil_div(1, 1) == 42


@pytest.mark.parametrize("line", ["", "kernels/plan.py", "kernels/plan.py as 3"])
def test_a_magic_that_is_not_understood(line):
    with pytest.raises(ValueError, match="write `%%change FILE as NAME`"):
        student.change(line, "")


@pytest.mark.parametrize("name", [f"{a.name}.{t.name}" for a in ASSIGNMENTS.values() for t in a.tasks])
def test_nonsense_costs_points_and_raises_nothing(name):
    for nonsense in (3.5, "text", lambda *a, **k: 1 / 0):
        assert student.check(name, nonsense).got == 0
    assert "not answered yet" in str(student.check(name, None))


def test_unknown_tasks_are_named():
    with pytest.raises(ValueError, match="there is no assignment 'x'"):
        student.check("x.y", None)
