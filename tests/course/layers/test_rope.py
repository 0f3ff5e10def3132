"""Rotation: against complex numbers, the distance property, and both conventions of pairing."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from course.layers import rotate, rotation, to_halves, to_interleaved
from tests.course.layers.plain import turned

PAIRINGS = ("interleaved", "halves")
SEEDS = st.integers(0, 2**16)
WIDTHS = st.integers(1, 40).map(lambda pairs: 2 * pairs)


@given(
    width=WIDTHS,
    base=st.sampled_from([2.0, 100.0, 1e4, 5e5]),
    pairing=st.sampled_from(PAIRINGS),
    start=st.integers(0, 10**6),
    seed=SEEDS,
)
def test_turns_pairs_as_complex_numbers(width, base, pairing, start, seed):
    torch.manual_seed(seed)
    positions = torch.arange(start, start + 5).expand(2, 5)
    x = torch.randn(2, 5, 3, width, dtype=torch.float64)
    cos, sin = rotation(positions, width, base=base, dtype=torch.float64)
    got = rotate(x, cos.unsqueeze(-2), sin.unsqueeze(-2), pairing=pairing)
    torch.testing.assert_close(got, turned(x, positions, base, pairing), atol=1e-8, rtol=0)


def test_by_hand():
    cos, sin = rotation(torch.tensor([0, 1, 3]), 4, base=100.0, dtype=torch.float64)
    wanted = [[0, 0], [1, 0.1], [3, 0.3]]
    assert torch.allclose(cos, torch.tensor([[math.cos(a) for a in row] for row in wanted], dtype=torch.float64))
    quarter = torch.tensor([0.0]), torch.tensor([1.0])
    assert rotate(torch.tensor([[1.0, 2.0]]), *quarter).tolist() == [[-2.0, 1.0]]
    still, turn = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])
    x = torch.tensor([1.0, 2.0, 3.0, 4.0])
    assert rotate(x, still, turn, pairing="interleaved").tolist() == [1.0, 2.0, -4.0, 3.0]
    assert rotate(x, still, turn, pairing="halves").tolist() == [1.0, -4.0, 3.0, 2.0]


@given(
    width=WIDTHS,
    pairing=st.sampled_from(PAIRINGS),
    t=st.integers(0, 5000),
    j=st.integers(0, 5000),
    shift=st.integers(0, 5000),
    seed=SEEDS,
)
def test_a_score_knows_only_the_distance(width, pairing, t, j, shift, seed):
    torch.manual_seed(seed)
    q, k = torch.randn(2, width, dtype=torch.float64)

    def score(t, j):
        turns = (rotation(torch.tensor(place), width, dtype=torch.float64) for place in (t, j))
        a, b = (rotate(row, *turn, pairing=pairing) for row, turn in zip((q, k), turns, strict=True))
        return a @ b

    assert score(t, j).item() == pytest.approx(score(t + shift, j + shift).item(), abs=1e-9)
    assert score(j, j).item() == pytest.approx((q @ k).item(), abs=1e-9)


@given(width=WIDTHS, dim=st.integers(-3, 2), seed=SEEDS)
def test_conversions_are_inverse_and_keep_the_rotation(width, dim, seed):
    torch.manual_seed(seed)
    shape = [3, 4, 5]
    shape[dim] = width
    w = torch.randn(shape, dtype=torch.float64)
    assert torch.equal(to_interleaved(to_halves(w, dim=dim), dim=dim), w)
    assert torch.equal(to_halves(to_interleaved(w, dim=dim), dim=dim), w)
    x = torch.randn(7, width, dtype=torch.float64)
    turn = rotation(torch.arange(7), width, dtype=torch.float64)
    assert torch.equal(rotate(to_halves(x), *turn, pairing="halves"), to_halves(rotate(x, *turn, pairing="interleaved")))


def test_conversion_by_hand():
    assert to_halves(torch.arange(6)).tolist() == [0, 2, 4, 1, 3, 5]
    assert to_interleaved(torch.arange(6)).tolist() == [0, 3, 1, 4, 2, 5]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_keeps_dtype_and_multiplies_wider(dtype, device):
    x = torch.randn(2, 9, 32, device=device).to(dtype)
    turn = rotation(torch.arange(100_000, 100_009, device=device), 32)
    assert turn[0].dtype == torch.float32 and turn[0].device == x.device
    got = rotate(x, *turn)
    exact = rotate(x.double(), *rotation(torch.arange(100_000, 100_009, device=device), 32, dtype=torch.float64))
    assert got.dtype == dtype
    # One rounding of the result, and of the float32 products.
    assert ((got.double() - exact).abs() <= exact.abs() * torch.finfo(dtype).eps + 1e-6).all()


def test_angles_of_long_contexts_keep_their_digits():
    positions = torch.arange(2**20 - 4, 2**20)
    cos, _ = rotation(positions, 8, base=5e5)
    exact = [[math.cos(t * 5e5 ** (-i / 4)) for i in range(4)] for t in positions.tolist()]
    assert (cos.double() - torch.tensor(exact, dtype=torch.float64)).abs().max() < 1e-7


def test_gradients_flow():
    x = torch.randn(3, 8, dtype=torch.float64, requires_grad=True)
    turn = rotation(torch.arange(3), 8, dtype=torch.float64)
    for pairing in PAIRINGS:
        assert torch.autograd.gradcheck(lambda x, pairing=pairing: rotate(x, *turn, pairing=pairing), x)


@pytest.mark.parametrize(
    "error, words, call",
    [
        (TypeError, "positions must be a tensor of whole numbers", lambda: rotation(torch.zeros(3), 4)),
        (TypeError, "positions must be a tensor of whole numbers", lambda: rotation([0, 1], 4)),
        (ValueError, "rope_dim must be even", lambda: rotation(torch.arange(3), 5)),
        (TypeError, "rope_dim must be a whole", lambda: rotation(torch.arange(3), 4.0)),
        (ValueError, "base must be finite", lambda: rotation(torch.arange(3), 4, base=0)),
        (TypeError, "base must be a number", lambda: rotation(torch.arange(3), 4, base="10000")),
        (ValueError, "pairing must be one of", lambda: rotate(torch.zeros(4), torch.ones(2), torch.ones(2), pairing="half")),
        (ValueError, "half the width of x", lambda: rotate(torch.zeros(4), torch.ones(4), torch.ones(4))),
        (ValueError, "width of w along dim must be even", lambda: to_halves(torch.zeros(3))),
        (ValueError, "width of w along dim must be even", lambda: to_interleaved(torch.zeros(4, 3))),
    ],
)
def test_refusals(error, words, call):
    with pytest.raises(error, match=words):
        call()
