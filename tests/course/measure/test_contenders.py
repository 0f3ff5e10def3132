"""course.measure.contenders: the same question to all, and no wrong answer passes."""

import warnings

import pytest
import torch

import kernels
from course import costs
from course.measure import contenders, timing
from course.measure.contenders import Bench, Point, Shape

SMALL = Shape(2, 4, 2, 37, 16, 16)
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(autouse=True)
def small_rotation(monkeypatch):
    monkeypatch.setattr(timing, "ROTATED_BYTES", 3 * SMALL.cache_bytes)


@pytest.fixture
def bench():
    return Bench(SMALL, DEVICE, 0)


POINTS = [
    Point(SMALL, "decode"),
    Point(SMALL, "decode", num_splits=4),
    Point(SMALL, "attention"),
    Point(SMALL, "sdpa", "MATH"),
    Point(SMALL, "sdpa", "FLASH"),
    Point(SMALL, "repeat_sdpa", "FLASH"),
]


@pytest.mark.parametrize("point", POINTS, ids=str)
def test_contenders_agree_with_the_definition(bench, point):
    error, reason = bench.check(point)
    assert reason is None
    assert 0 < error["relative_l2"] < 8e-3
    assert set(error) == {"max_abs", "relative_l2"}


def test_bytes_and_flops_are_the_arithmetic():
    shape = Shape(1, 32, 8, 8192)
    assert shape.cache_bytes == 33_554_432
    assert isinstance(shape.cache_bytes, int)
    assert shape.flops == 4 * 128 * 32 * 8192
    assert str(shape) == "B1 32/8 L8192"


def test_inputs_are_fresh_and_random():
    first, second = Bench(SMALL, DEVICE, 0), Bench(SMALL, DEVICE, 0)
    assert first.copies == 3
    assert not torch.equal(first.k, second.k)
    assert not torch.equal(first.k[0], first.k[1])
    assert first.v.float().std().item() == pytest.approx(1, abs=0.1)


def test_calls_go_over_all_copies_and_copying_heads_needs_fewer(bench):
    assert len(bench.calls(Point(SMALL, "decode"))) == 3
    assert len(bench.calls(Point(SMALL, "repeat_sdpa", "FLASH"))) == 1
    assert Point(SMALL, "repeat_sdpa", "FLASH").bytes_moved == 5 * SMALL.cache_bytes


@pytest.mark.parametrize("bound", [1, 2**30])
def test_the_definition_is_computed_in_parts(bench, monkeypatch, bound):
    monkeypatch.setattr(contenders, "REFERENCE_BYTES", bound)
    whole, whole_lse = kernels.reference.decode(bench.q[0], bench.k[0], bench.v[0])
    out, lse = bench.expected
    torch.testing.assert_close(out, whole)
    torch.testing.assert_close(lse, whole_lse)


def spoil(monkeypatch, change):
    run = contenders.run
    monkeypatch.setattr(
        contenders,
        "run",
        lambda point, q, k, v: run(point, q, k, v) if point.backend == "MATH" else change(run, q, k, v),
    )


@pytest.mark.parametrize(
    "change",
    [
        lambda run, q, k, v: (torch.full_like(q, float("nan")), None),
        lambda run, q, k, v: run(Point(SMALL, "decode"), q, k[:, :, :-1], v[:, :, :-1]),  # the last token forgotten
        lambda run, q, k, v: run(Point(SMALL, "decode"), q, k.flip(1), v.flip(1)),  # heads mapped to the wrong group
        lambda run, q, k, v: run(Point(SMALL, "decode"), 1.1 * q, k, v),  # wrong scale
        lambda run, q, k, v: (lambda out, lse: (out, lse / 0.6931))(*run(Point(SMALL, "decode"), q, k, v)),  # base 2
    ],
)
def test_wrong_answers_do_not_pass(bench, monkeypatch, change):
    spoil(monkeypatch, change)
    error, reason = bench.check(Point(SMALL, "decode"))
    assert reason
    assert all(value is None or value >= 0 for value in error.values())


def test_a_yardstick_that_fails_does_not_widen_the_limit(bench, monkeypatch):
    monkeypatch.setattr(contenders, "run", lambda point, q, k, v: (torch.full_like(q, float("nan")), None))
    assert bench.check(Point(SMALL, "decode"))[1]


def test_automatic_splits_are_what_decode_launches():
    shape = Shape(1, 4, 1, 2048, 16, 16, "float16")
    q = torch.randn(1, 4, 16, device=DEVICE, dtype=torch.float16)
    k = torch.randn(1, 1, 2048, 16, device=DEVICE, dtype=torch.float16)
    splits = contenders.automatic_splits(shape, DEVICE)
    if kernels.MODE == "interpreter":
        from course.measure import count_traffic

        assert count_traffic(kernels.decode, q, k, k).launches[0].programs == splits
    elements = kernels.plan.decode_workspace(1, 1, 4, 16, splits)
    kernels.decode(q, k, k, workspace=torch.empty(max(elements, 1), device=DEVICE))


def test_reasons_are_one_line_without_paths():
    error = RuntimeError("cannot open /opt/some/where/lib.so:12\nsecond line")
    assert contenders.why_not(error) == "cannot open …:12"
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        warnings.warn("Memory efficient kernel not used because: (Triggered internally at /a/b.cpp:1.)", stacklevel=1)
        warnings.warn("needs as many KV heads as query heads (Triggered internally at /a/b.cpp:2.)", stacklevel=1)
    assert contenders.why_not(RuntimeError("No available kernel."), warned) == "needs as many KV heads as query heads"
    assert contenders.why_not(RuntimeError("")) == "RuntimeError"


def test_group_size_and_attention():
    assert Shape(1, 32, 8, 64).group_size == 4
    assert Shape(1, 32, 8, 64).attention == costs.Attention.gqa(32, 8, 128)
