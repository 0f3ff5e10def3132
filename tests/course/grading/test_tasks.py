"""Tasks and their reports: what counts, what is said, and that nothing a learner's code does stops the rest."""

import pytest

from course.grading.answers import Local
from course.grading.draw import Draw
from course.grading.judge import NotHere, Wrong
from course.grading.tasks import Assignment, Task, judge, named


def prop(name, outcome):
    @named(name, f"about {name}")
    def check(answer, draw):
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    return check


def task(*outcomes, hidden=()):
    points = tuple((prop(str(i), outcome), i + 1) for i, outcome in enumerate(outcomes))
    return Task("t", "build", "A task", "x", points, hidden)


def report(*outcomes, hidden=(), public=False):
    return judge(task(*outcomes, hidden=hidden), Local(0), [Draw(1), Draw(2)], public)


def test_points_and_states():
    got = report(None, Wrong("no"), ZeroDivisionError("by zero"), NotHere("no GPU"), "a remark")
    assert [line.state for line in got.lines] == ["ok", "wrong", "failed", "not here", "ok"]
    assert (got.got, got.points) == (1 + 4 + 5, 15)
    assert [line.message for line in got.lines][1:] == [
        "no", "the answer raised ZeroDivisionError: by zero", "no GPU", "a remark",
    ]  # fmt: skip
    assert "10 of 15 points, 4 of them not looked at here" in str(got) and "a remark" in str(got)


def test_unanswered_ends_the_report():
    got = report(NotImplementedError(), None)
    assert [line.state for line in got.lines] == ["unanswered", "unanswered"] and got.got == 0
    assert str(got) == "A task: not answered yet"


def test_hidden_properties_are_only_graded():
    assert [line.name for line in report(None, None, hidden=("1",), public=True).lines] == ["0"]
    assert len(report(None, None, hidden=("1",)).lines) == 2


def test_the_first_draw_that_finds_a_fault_decides():
    seen = []

    @named("n", "")
    def check(answer, draw):
        seen.append(draw._path)
        raise Wrong(str(draw._path[0]))

    got = judge(Task("t", "fix", "", "x", ((check, 1),)), Local(0), [Draw(1), Draw(2)], public=False)
    assert got.lines[0].message == "1" and seen == [(1, "n")]


def test_html_is_escaped():
    assert "<script>" not in report(Wrong("<script>"))._repr_html_()


@pytest.mark.parametrize(("kind", "hidden"), [("guess", ()), ("build", ("0",))])
def test_malformed_tasks(kind, hidden):
    with pytest.raises(ValueError):
        Task("t", kind, "", "x", ((prop("0", None), 1),), hidden)


def test_an_unknown_task_is_named():
    with pytest.raises(ValueError, match="a has no task 'u' .it has t"):
        Assignment("a", "", 1, (), (task(None),), dict, ()).task("u")
