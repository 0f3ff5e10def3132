"""Draws repeat from their seed, and a stream of its own is moved by no other."""

import pytest
import torch

from course.grading.draw import Draw


def drawn(draw):
    return draw.integer(0, 10**9), draw.tensor(3).tolist(), draw.choice("abcdef"), draw.permutation(5).tolist()


def test_the_same_seed_draws_the_same():
    assert drawn(Draw("s", "task")) == drawn(Draw("s", "task"))


@pytest.mark.parametrize("other", [Draw("t", "task"), Draw("s", "other"), Draw("s", "task").of("part")])
def test_another_path_draws_something_else(other):
    assert drawn(other) != drawn(Draw("s", "task"))


def test_a_stream_of_its_own_does_not_move():
    one, two = Draw(1), Draw(1)
    two.tensor(100)
    assert drawn(one.of("x")) == drawn(two.of("x"))
    assert one.of("x").givens == {} and Draw(1, givens={"a": 2}).of("x").givens == {"a": 2}


def test_kinds():
    draw = Draw(3)
    assert {draw.integer(1, 3) for _ in range(100)} == {1, 2, 3}
    assert len(set(draw.some(range(9), 5))) == 5
    assert draw.tensor(2, 3, dtype=torch.float16).dtype == torch.float16
    assert draw.tensor(4000, std=3).std().item() == pytest.approx(3, rel=0.1)
    assert sorted(draw.permutation(7).tolist()) == list(range(7))
