"""Whole submissions through the answering process: right ones get all points, and a fault costs its own task."""

import nbformat
import pytest

from course.grading import confine, grade, rebuild, release
from course.grading.assignments import ASSIGNMENTS
from tests.course.grading.submissions import RIGHT, SMALL, as_bytes, handed_in, master

LIMITS = confine.Limits(cell=4.0, memory=1 << 30)


def graded(server, notebook, files=None):
    made, _ = rebuild.rebuild(master(), as_bytes(notebook), SMALL)
    return grade.grade(made, master(), SMALL, "seed", server, limits=LIMITS, files=files)


def got(verdict) -> dict[str, int]:
    return {name: sum(line["got"] for line in task["lines"]) for name, task in verdict["tasks"].items()}


def said(verdict, task) -> list[str]:
    return [line["message"] for line in verdict["tasks"][task]["lines"] if line["message"]]


@pytest.mark.parametrize("name", ASSIGNMENTS)
def test_solutions_get_all_points_and_what_is_handed_out_none(server, name):
    solved = release.solved(name, "class")
    handed_out = release.without_solutions(solved)
    assignment = ASSIGNMENTS[name]
    for submission, whole in ((solved, True), (handed_out, False)):
        made, notes = rebuild.rebuild(handed_out, nbformat.writes(submission).encode(), assignment)
        verdict = grade.grade(made, handed_out, assignment, "hidden", server, draws=1)
        assert not notes and not verdict["irregular"]
        points = {task.name: task.max_points if whole else 0 for task in assignment.tasks}
        assert got(verdict) == points, {name: said(verdict, name) for name in points}


def test_a_right_answer_gets_all_points(server):
    verdict = graded(server, handed_in(before=["import helper"]), {"helper.py": b""})
    assert got(verdict) == {"first": 2, "second": 4, "third": 3}
    assert verdict["cells"] == {} and verdict["irregular"] == []


def test_what_is_not_answered_gets_none(server):
    verdict = graded(server, handed_in(first="given = {'n': None}", second="pass", third="def again(a, b):\n    ..."))
    assert got(verdict) == {"first": 0, "second": 0, "third": 0}
    assert {line["state"] for task in verdict["tasks"].values() for line in task["lines"]} == {"unanswered"}


SPOILT = {
    "an error before": "given = 1 / 0\n",
    "the end of the process": "import os\nos._exit(0)\n",
    "exit()": "exit()\n",
    "input()": "n = input('n? ')\n",
    "no Python": "def\n",
}


@pytest.mark.parametrize("what", SPOILT)
def test_a_spoilt_cell_costs_its_task(server, what):
    verdict = graded(server, handed_in(second=SPOILT[what] + RIGHT["second"]))
    assert got(verdict) == {"first": 2, "second": 0, "third": 3}
    assert all("its cell: " in line for line in said(verdict, "second"))


@pytest.mark.parametrize("first", ["def", "import os; os._exit(0)"])
def test_what_a_cell_was_handed_out_with_is_there_for_later_ones(server, first):
    def release_with_an_import():
        made = master()
        made.cells[2].source = "import math\ngiven = {'n': None}"
        return made

    submission = handed_in(first=first, second="def add(a, b):\n    return a + b * math.cos(0)")
    made, _ = rebuild.rebuild(release_with_an_import(), as_bytes(submission), SMALL)
    verdict = grade.grade(made, release_with_an_import(), SMALL, "seed", server, limits=LIMITS)
    assert got(verdict) == {"first": 0, "second": 4, "third": 3}


def test_an_answer_that_does_not_end_costs_its_task(server):
    answer = "def add(a, b):\n    while True: pass"
    verdict = graded(server, handed_in(before=["while True: pass", "import os; os._exit(1)"], second=answer))
    assert got(verdict) == {"first": 2, "second": 0, "third": 3}
    assert ["longer than 3 s" in line for line in said(verdict, "second")] == [True, True, False]
    assert "not looked at" in said(verdict, "second")[-1]


def test_an_answer_that_is_half_right_gets_a_part(server):
    verdict = graded(server, handed_in(second="def add(a, b):\n    return a + b + 0 * (a @ a.T).sum()"))
    assert got(verdict) == {"first": 2, "second": 2, "third": 3}


def test_prying_and_patching_gain_nothing(server):
    pry = """
import gc, sys, inspect
import course.grading.student, course.grading.judge, course.grading.tasks
from course.grading import answers
course.grading.student.check = lambda *a: print("all points")
course.grading.tasks.judge = course.grading.judge.close = lambda *a, **k: None
check = lambda *a, **k: print("all points")
print([o for o in gc.get_objects() if type(o).__name__ == "Draw"], [m for m in sys.modules if "small" in m])
class Always:
    def __eq__(self, other): return True
    def __getattr__(self, name): return self
"""
    verdict = graded(server, handed_in(before=[pry], first="given = Always()", second="add = Always()", third="again = Always"))
    assert got(verdict) == {"first": 0, "second": 0, "third": 0}
    (printed,) = [cell["said"] for cell in verdict["cells"].values()]
    assert printed.strip() == "[] []"


def test_patched_counting_costs_what_is_counted_and_is_reported(server):
    patch = "from torch.utils.flop_counter import FlopCounterMode\nFlopCounterMode.get_total_flops = lambda self: 0"
    verdict = graded(server, handed_in(before=[patch], second="def add(a, b):\n    a @ a.T\n    return a + b"))
    assert got(verdict) == {"first": 2, "second": 2, "third": 3}
    assert any("get_total_flops" in line for line in verdict["irregular"])


def test_an_answer_is_looked_at_where_its_check_stands(server):
    # The names that an answer uses mean later what later cells make of them.
    verdict = graded(
        server,
        handed_in(
            second="sign = 1\ndef add(a, b):\n    return a + sign * b",
            third="sign = -1\ndef again(a, b):\n    return a - sign * b",
        ),
    )
    assert got(verdict) == {"first": 2, "second": 4, "third": 3}
    assert grade.given_in(master()) == {"n": 7}


def test_a_repair_in_a_cell_of_ones_own_counts(server):
    def change(notebook):
        notebook.cells.insert(5, nbformat.v4.new_code_cell(RIGHT["second"]))

    assert got(graded(server, handed_in(second="pass", change=change)))["second"] == 4


@pytest.mark.parametrize(
    "cell", ["import kernels as mended", "%%change kernels/plan.py as mended\ndef ceil_div(a, b): return -(-a // b)\n"]
)
def test_a_repair_without_the_definition_that_was_handed_out(server, cell):
    assignment = ASSIGNMENTS["05_flash_decoding"]
    submission = release.solved(assignment.name, "class")
    handed_out = release.without_solutions(submission)
    fix = next(task for task in assignment.tasks if task.kind == "fix")
    root = rebuild.root_name(fix.answer)
    next(c for c in submission.cells if rebuild.grade_id(c) == f"{fix.name}-answer").source = cell.replace("mended", root)
    made, _ = rebuild.rebuild(handed_out, nbformat.writes(submission).encode(), assignment)
    verdict = grade.grade(made, handed_out, assignment, "hidden", server, draws=1)
    assert got(verdict) == {task.name: 0 if task is fix else task.max_points for task in assignment.tasks}
    assert all("was handed out to be mended" in line for line in said(verdict, fix.name))
