"""Comparisons: what passes, and what a message says of what does not."""

import pytest
import torch

from course.grading import judge
from course.grading.judge import Wrong


@pytest.mark.parametrize("value", [3, 3.0, torch.tensor([3])])
def test_numbers(value):
    assert judge.number(value) == 3.0


@pytest.mark.parametrize("value", ["3", True, float("inf"), [3], torch.ones(2)])
def test_no_numbers(value):
    with pytest.raises(Wrong, match="must be a finite number"):
        judge.number(value)


def test_none_is_not_answered():
    for look in (
        judge.number,
        lambda x: judge.tensor(x, [1]),
        lambda x: judge.parts(x, 2, "a, b"),
        lambda x: judge.close(x, torch.ones(1), ["row"]),
    ):
        with pytest.raises(NotImplementedError):
            look(None)


def test_shapes_types_and_parts():
    with pytest.raises(Wrong, match=r"must have shape \[2, 3\], got \[3, 2\]"):
        judge.tensor(torch.ones(3, 2), [2, 3])
    with pytest.raises(Wrong, match="must be torch.float16, got torch.float32"):
        judge.tensor(torch.ones(2), [2], dtype=torch.float16)
    with pytest.raises(Wrong, match="got list"):
        judge.tensor([1.0], [1])
    assert judge.parts([1, 2], 2, "a, b") == (1, 2)
    with pytest.raises(Wrong, match="must return 2 values.*got 3 values"):
        judge.parts((1, 2, 3), 2, "a, b")


def test_close_says_where():
    expected = torch.arange(24.0).view(2, 3, 4)
    got = expected.clone()
    got[:, 1:] += 5
    with pytest.raises(Wrong) as error:
        judge.close(got, expected, ["sequence", "head", "column"], "out", hint="Look at the heads.")
    assert str(error.value) == (
        "out differs at sequence 0, head 1, column 0: expected 4, got 9; 16 of 24 elements are wrong, "
        "in head 1, 2 of 0 to 2. Look at the heads."
    )
    judge.close(expected + 1e-4, expected, ["sequence", "head", "column"])


def test_close_and_what_is_not_finite():
    expected = torch.tensor([1.0, -torch.inf])
    judge.close(expected.clone(), expected, ["row"])
    for wrong in ([1.0, 0.0], [torch.nan, -torch.inf], [torch.inf, -torch.inf]):
        with pytest.raises(Wrong):
            judge.close(torch.tensor(wrong), expected, ["row"])
