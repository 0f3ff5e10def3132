"""A predicted number: what is right, what a slip is told, and which units are understood."""

import pytest

from course.grading.answers import Local
from course.grading.draw import Draw
from course.grading.properties import predictions
from course.grading.tasks import Task, judge

BYTES = predictions.number(
    "bytes",
    "bytes of a cache",
    right=lambda givens: givens["tokens"] * 2048,
    unit="bytes",
    traps={"did you count V as well?": lambda givens: givens["tokens"] * 1024},
    other_units={"KiB": 1024, "MiB": 1024**2},
)
TASK = Task("cache", "predict", "A cache", "predicted", ((BYTES, 2),))


def line(predicted):
    report = judge(TASK, Local(predicted), [Draw(0, givens={"tokens": 1000})], public=True)
    return report.lines[0]


@pytest.mark.parametrize("value", [2_048_000, 2_048_000.0, 2.06e6])
def test_right_within_the_tolerance(value):
    assert line({"bytes": value}).got == 2 and line({"bytes": value}).message == ""


def test_right_in_another_unit_counts_and_is_told():
    told = line({"bytes": 2000})
    assert told.got == 2 and told.message == "right, in KiB; the question asks for bytes"
    assert line({"bytes": 1.953}).got == 2


@pytest.mark.parametrize(
    ("predicted", "message"),
    [
        ({"bytes": 1_024_000}, "did you count V as well?"),
        ({"bytes": 1000}, "did you count V as well?"),  # in KiB
        ({"bytes": 1_900_000}, "'bytes' is too small"),
        ({"bytes": 3e9}, "'bytes' is too large, by more than ten times"),
        ({"bytes": -2_048_000}, "'bytes' is too small: the sign is wrong"),
        ({"bytes": "many"}, "must be a finite number"),
        ({"bytes": float("nan")}, "must be a finite number"),
        ({"byte": 1}, "no entry 'bytes'; is 'byte' meant?"),
        ({"bytes": None, "other": 1}, "has no number yet"),
        (3, "must be a dictionary"),
    ],
)
def test_wrong(predicted, message):
    told = line(predicted)
    assert told.got == 0 and message in told.message and "2048000" not in told.message


@pytest.mark.parametrize("predicted", [None, {"bytes": None}])
def test_unanswered(predicted):
    assert line(predicted).state == "unanswered"


def test_a_slip_that_looks_like_another_unit_is_a_slip():
    both = predictions.number(
        "n", "", right=lambda _: 8.0, unit="bits", traps={"a slip": lambda _: 1.0}, other_units={"bytes": 8}
    )
    report = judge(Task("t", "predict", "", "x", ((both, 1),)), Local({"n": 1}), [Draw(0)], public=True)
    assert report.lines[0].message == "a slip"


def test_exact_numbers():
    five = predictions.number("n", "", right=lambda _: 500, tolerance=0)
    task = Task("t", "predict", "", "x", ((five, 1),))
    assert judge(task, Local({"n": 500}), [Draw(0)], public=True).got == 1
    assert judge(task, Local({"n": 501}), [Draw(0)], public=True).got == 0
