"""Sectors counted one by one, and Little's law."""

import pytest

from course import costs


@pytest.mark.parametrize("stride", [1, 2, 3, 4, 5, 8, 9, 64])
@pytest.mark.parametrize("size", [1, 2, 4, 8])
@pytest.mark.parametrize("first, last", [(0, 0), (0, 15), (3, 40), (7, 8), (31, 32)])
def test_sectors_are_those_that_are_touched(first, last, stride, size):
    touched = {i * stride * size // 32 for i in range(first, last + 1)}
    assert costs.sectors(first, last, stride, bytes_per_element=size) == len(touched)


def test_impossible_stretches_are_refused():
    with pytest.raises(ValueError, match="last"):
        costs.sectors(3, 2, 1)
    with pytest.raises(ValueError, match="stride"):
        costs.sectors(0, 2, 0)


def test_little():
    assert costs.bytes_in_flight(4.8e12, 0.7e-6) == pytest.approx(3.36e6)
