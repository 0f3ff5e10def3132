"""Drawings of numbers: bits as torch has them, addresses as the strides say."""

import pytest
import torch

from course import views
from course.views import diagrams_numbers


@pytest.mark.parametrize("name, dtype, exponent, mantissa", diagrams_numbers.FORMATS)
def test_bits_are_those_of_the_format(name, dtype, exponent, mantissa):
    info = torch.finfo(dtype)
    assert 1 + exponent + mantissa == info.bits
    assert info.eps == 2.0**-mantissa
    alt = views.number_formats_figure().alt
    assert f"{name}: {exponent} exponent and {mantissa} mantissa bits" in alt
    assert f"step at 1 1/{round(1 / info.eps):,}" in alt


def test_the_largest_numbers_are_said():
    alt = views.number_formats_figure().alt
    assert "largest 448," in alt and "largest 65,504," in alt and "largest 3.4e+38" in alt


@pytest.mark.parametrize("shape", [(3, 5, 1, 2), (4, 6, 3, 5), (1, 4, 0, 0)])
def test_addresses_are_those_of_the_strides(shape):
    rows, columns, row, column = shape
    x = torch.arange(rows * columns).view(rows, columns)
    made = views.strides_figure(*shape)
    assert f"element [{row}, {column}] lies at {x[row, column]}." in made.alt
    assert f"{columns} neighbours" in made.alt


@pytest.mark.parametrize("wrong", [(3, 5, 3, 0), (3, 5, 0, 5), (5, 5, 0, 0)])
def test_what_cannot_be_drawn_is_refused(wrong):
    with pytest.raises(ValueError, match="at most 24"):
        views.strides_figure(*wrong)
