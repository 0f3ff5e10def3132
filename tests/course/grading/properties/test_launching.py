"""Where kernels can be launched they are looked at, elsewhere nobody says that they are right or wrong."""

import pytest
import torch

import kernels
from course.grading.answers import Local
from course.grading.judge import NotHere, Wrong
from course.grading.properties.launching import counted, observed

interpreted = pytest.mark.skipif(kernels.MODE != "interpreter", reason="loads are counted in the interpreter")


def broken(x):
    raise ZeroDivisionError


def unanswered(x):
    raise NotImplementedError


@interpreted
def test_loads_are_compared_with_the_elements():
    x = torch.ones(100)
    once = observed(Local(kernels.first.copy), x)
    counted(once, 0, 100, "x")
    with pytest.raises(Wrong, match="x has 50 elements; kernels requested 100, of which 100 different ones"):
        counted(once, 0, 50, "x")
    with pytest.raises(Wrong, match="Each should be asked for 2 times"):
        counted(once, 0, 100, "x", times=2)
    with pytest.raises(Wrong, match="no kernel loaded anything from x"):
        counted(observed(Local(torch.clone), x), 0, 100, "x")


@interpreted
def test_a_fault_is_a_fault_where_kernels_run():
    with pytest.raises(ZeroDivisionError):
        observed(Local(broken), torch.ones(1))


@pytest.mark.parametrize("answer", [broken, torch.clone])
def test_elsewhere_nothing_is_said(answer, monkeypatch):
    monkeypatch.setattr(kernels, "MODE", "reference")
    with pytest.raises(NotHere, match="where kernels.MODE is 'reference'"):
        observed(Local(answer), torch.ones(1))


def test_not_answered_is_not_answered_anywhere(monkeypatch):
    monkeypatch.setattr(kernels, "MODE", "reference")
    with pytest.raises(NotImplementedError):
        observed(Local(unanswered), torch.ones(1))
