"""Answers as properties see them; right ones, however they are written, keep all points and wrong ones lose some."""

import pytest
import torch

import kernels
from course.grading import assignments
from course.grading.answers import Local, is_plain, watch
from course.grading.judge import NotHere
from tests.course.grading.grade import SEEDS, SHIPPED, draw, graded, listed, loses

RIGHT = listed("right_answers", "RIGHT")
WRONG = listed("wrong_answers", "WRONG")
VARIANTS = [f"variant {i}" for i in range(30)]
OURS = [f"{a.name}.{t.name}" for a in assignments.ASSIGNMENTS.values() for t in a.tasks if t.shipped is not None]


def _named(answers):
    return [pytest.param(*one, id=f"{one[0]}: {one[1]}") for one in answers]


@pytest.mark.parametrize("name", OURS)
def test_shipped_code_keeps_all_points(name):
    _, task = assignments.find(name)
    report = graded(name, task.shipped(SHIPPED[task.package]))
    assert report.got == report.points, report


@pytest.mark.parametrize(("name", "what", "answer"), _named(RIGHT))
def test_right_answers_keep_all_points(name, what, answer):
    report = graded(name, answer, SEEDS[:2])
    assert report.got == report.points, report
    assert all(line.state in ("ok", "not here") for line in report.lines), report


@pytest.mark.parametrize(("name", "what", "answer"), _named(WRONG))
def test_wrong_answers_lose_points(name, what, answer):
    assert loses(name, answer)


def _predicted(answers):
    return [one for one in _named(answers) if assignments.find(one.values[0])[1].kind == "predict"]


@pytest.mark.parametrize(("name", "what", "answer"), _predicted(RIGHT))
def test_every_variant_can_be_answered(name, what, answer):
    report = graded(name, answer, VARIANTS)
    assert report.got == report.points, report


@pytest.mark.parametrize(("name", "what", "answer"), _predicted(WRONG))
def test_every_variant_tells_wrong_from_right(name, what, answer):
    for seed in VARIANTS:
        report = graded(name, answer, [seed])
        assert report.got < report.points, draw(name, seed).givens


@pytest.mark.parametrize("name", assignments.ASSIGNMENTS)
def test_every_assignment_is_tried_with_answers_written_differently(name):
    assert sum(task.startswith(f"{name}.") for task, *_ in RIGHT) >= 2


def test_what_an_answer_writes_does_not_reach_the_property():
    x = torch.arange(6.0).view(2, 3).T
    seen = []
    Local(lambda t: seen.append(t.stride()) or t.zero_())(x)
    assert seen == [x.stride()] and x.sum() == 15
    row = torch.ones(1, 3).expand(4, 3)
    assert Local(lambda t: list(t.stride()))(row) == [0, 1]


def test_objects_are_answers_and_data_is_data():
    class Layer:
        width = 3

        def double(self, x):
            return 2 * x

    made = Local(Layer)()
    assert made.get("width") == 3 and made.get("double")(4) == 8
    assert is_plain({"a": [1, (2.0, None)]}) and not is_plain(made)
    assert Local([1, 2]).value() == [1, 2]
    with pytest.raises(TypeError, match="must be data"):
        Local(Layer()).value()
    with pytest.raises(TypeError, match="something to call"):
        Local(3)(1)
    with pytest.raises(NotImplementedError):
        Local(None)(1)


def test_a_call_is_observed():
    q, k = torch.randn(4, 8), torch.randn(16, 8)
    seen = Local(lambda q, k: q @ k.T).observe(q, k)
    assert (seen.flops, seen.largest) == (2 * 4 * 16 * 8, 64)
    assert Local(lambda x: x.view(-1)).observe(torch.ones(8, 8)).largest == 0
    # A kernel's output counts in its own elements, though the interpreter looks at it as bytes.
    assert kernels.MODE != "interpreter" or Local(kernels.first.copy).observe(torch.ones(8, 8)).largest == 64
    assert Local(lambda x: torch.zeros(7).view(torch.uint8)).observe(torch.ones(1)).largest == 7
    for function in (lambda q, k: k @ q[0], lambda q, k: torch.addmv(k[:, 0], k, q[0])):
        assert Local(function).observe(q, k).flops == 2 * 16 * 8
    assert Local(lambda q, k: torch.dot(q[0], k[0])).observe(q, k).flops == 2 * 8


@pytest.mark.skipif(kernels.MODE != "interpreter", reason="loads are counted in the interpreter")
def test_loads_are_counted_by_argument():
    x = torch.randn(4, 300)
    seen = watch(kernels.first.softmax_three_passes, x, block=128)
    assert (seen.requested(0), seen.distinct(0), seen.programs, seen.launches) == (3600, 1200, 4, 1)
    assert watch(lambda x, y: kernels.first.copy(y), x, y=torch.ones(10)).requested("y") == 10


def test_loads_elsewhere_are_not_here(monkeypatch):
    monkeypatch.setattr(kernels, "MODE", "reference")
    with pytest.raises(NotHere):
        watch(lambda x: x, torch.ones(1)).requested(0)
