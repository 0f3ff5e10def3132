"""course.measure.bench: the same question to all, whatever the layout, and no wrong answer passes."""

import inspect
from dataclasses import replace

import pytest
import torch

import kernels
from course.measure import bench as bench_module
from course.measure import contenders, shapes, timing
from course.measure.bench import Bench, plain, quantise
from course.measure.contenders import calls_of
from course.measure.shapes import FLOAT8, Point, Shape

SMALL = Shape(2, 4, 2, 37, 16, 16)
LATENT = Shape(2, 3, 1, 21, 24, 16, head_dim_shared=16)
WHOLE = Shape(2, 4, 2, 20, 24, 16, q_len=20)
EVERY = {
    "decode": SMALL,
    "several tokens": replace(SMALL, q_len=3),
    "paged": replace(SMALL, page_size=5),
    "ragged": replace(SMALL, page_size=4, lengths="ragged", batch=3),
    "8 bits": replace(SMALL, cache_dtype=FLOAT8),
    "paged 8 bits": replace(SMALL, cache_dtype=FLOAT8, page_size=8),
    "MLA": LATENT,
    "MLA several tokens": replace(LATENT, q_len=2),
    "MLA paged": replace(LATENT, page_size=6),
    "MLA 8 bits": replace(LATENT, cache_dtype=FLOAT8),
    "MLA paged 8 bits": replace(LATENT, cache_dtype=FLOAT8, page_size=6),
    "whole": WHOLE,
    "whole, not causal": replace(WHOLE, causal=False),
    "chunk": replace(WHOLE, q_len=11),
    "backward": replace(WHOLE, direction="backward"),
    "float16": replace(SMALL, dtype="float16"),
}
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(timing, "ROTATED_BYTES", 3 * SMALL.cache_bytes)
    monkeypatch.setattr(shapes, "SHORTEST_RAGGED", 3)


@pytest.fixture
def bench():
    return Bench(SMALL, DEVICE, 0)


@pytest.mark.parametrize("shape", EVERY.values(), ids=EVERY)
def test_the_definition_itself_passes(shape, defined):
    """Each layout's inputs are what a kernel of that name takes, and the float64 answer to them is what is expected."""
    bench = Bench(shape, DEVICE, 0)
    wanted = inspect.signature(getattr(kernels.reference, shape.operation)).parameters
    assert set(bench.inputs[0]) - {"d_out"} <= set(wanted)
    errors, reason = bench.check(Point(shape, shape.operation))
    assert reason is None
    assert 0 < errors["error"]["relative_l2"] < 8e-3
    assert (errors["cache_error"] is None) == (shape.cache_dtype is None)
    if shape.cache_dtype:
        assert 3 * errors["error"]["relative_l2"] < errors["cache_error"]["relative_l2"] < 0.1


@pytest.mark.parametrize(
    "point",
    [
        Point(SMALL, "decode"),
        Point(SMALL, "decode", num_splits=4),
        Point(SMALL, "attention"),
        Point(SMALL, "sdpa", "MATH"),
        Point(SMALL, "sdpa", "FLASH"),
        Point(SMALL, "repeat_sdpa", "FLASH"),
        *(Point(SMALL, "matmul", form) for form in ("rows", "broadcast", "repeat_interleave", "expand")),
        Point(replace(SMALL, n_kv_heads=1), "matmul", "rows"),
        Point(replace(SMALL, n_kv_heads=4), "matmul", "rows"),
        Point(EVERY["several tokens"], "sdpa", "MATH"),
        Point(EVERY["chunk"], "sdpa", "MATH"),
        Point(WHOLE, "sdpa", "MATH"),
        Point(EVERY["backward"], "sdpa", "MATH"),
    ],
    ids=lambda point: f"{point} {point.shape}",
)
def test_contenders_agree_with_the_definition(point):
    errors, reason = Bench(point.shape, DEVICE, 0).check(point)
    assert reason is None
    assert 0 < errors["error"]["relative_l2"] < 8e-3


def test_inputs_are_fresh_and_random():
    first, second = Bench(SMALL, DEVICE, 0), Bench(SMALL, DEVICE, 0)
    assert len(first.inputs) == 3
    assert not torch.equal(first.inputs[0]["k"], second.inputs[0]["k"])
    assert not torch.equal(first.inputs[0]["k"], first.inputs[1]["k"])
    assert first.inputs[0]["v"].float().std().item() == pytest.approx(1, abs=0.1)


def test_pages_are_shuffled_and_each_is_used_once():
    x = Bench(EVERY["ragged"], DEVICE, 0).inputs[0]
    counts = [-(-n // 4) for n in x["seq_lens"].tolist()]
    used = [page for row, count in zip(x["block_table"].tolist(), counts, strict=True) for page in row[:count]]
    assert sorted(used) == list(range(len(x["k_pages"])))
    assert used != sorted(used)
    assert sorted(x["seq_lens"].tolist()) == [3, 11, 37]


def test_calls_go_over_all_copies_and_copying_heads_needs_fewer(bench):
    assert len(bench.calls(Point(SMALL, "decode"))) == 3
    assert len(bench.calls(Point(SMALL, "repeat_sdpa", "FLASH"))) == 1


@pytest.mark.parametrize("form", ["repeat_interleave", "expand"])
def test_copied_heads_are_compared_to_the_bit(monkeypatch, form):
    point = Point(replace(SMALL, n_q_heads=6), "copy_heads", form)
    errors, reason = Bench(point.shape, DEVICE, 0).check(point)
    assert reason is None
    assert errors["error"] == {"max_abs": 0, "relative_l2": 0}
    monkeypatch.setitem(contenders.COPIES, form, lambda x, group_size: x.repeat(1, group_size, 1, 1))  # the modulo map
    assert "accepted 0" in Bench(point.shape, DEVICE, 0).check(point)[1]


@pytest.mark.parametrize("shape", [SMALL, WHOLE, EVERY["backward"]], ids=str)
@pytest.mark.parametrize("bound", [1, 2**30])
def test_the_definition_is_computed_in_parts(shape, monkeypatch, bound, defined):
    monkeypatch.setattr(bench_module, "REFERENCE_BYTES", bound)
    bench = Bench(shape, DEVICE, 0)
    x = bench.inputs[0]
    if shape is SMALL:
        whole = [kernels.reference.decode(x["q"], x["k"], x["v"])[0].unsqueeze(2)]
    else:
        leaves = [x[name].double().requires_grad_() for name in "qkv"]
        out = kernels.reference.attention(*leaves, causal=True)[0]
        whole = torch.autograd.grad(out, leaves, x["d_out"].double()) if "d_out" in x else [out.detach()]
    for all_of_it, parts in zip(whole, bench.expected[0], strict=True):
        for expected, part in zip(bench._parts_of(all_of_it), parts, strict=True):
            torch.testing.assert_close(part, expected)


def test_of_whole_sequences_the_first_and_the_last_are_compared():
    assert [(b, kv.start, q.start) for b, kv, q in Bench(WHOLE, DEVICE, 0).parts] == [(0, 0, 0), (1, 1, 2)]
    assert len(Bench(SMALL, DEVICE, 0).parts) == 2


def test_eight_bits_lose_little_and_their_largest_is_kept():
    x = torch.randn(2, 3, 5, 64)
    stored, scale = quantise(x)
    back = stored.float() * scale.unsqueeze(-1)
    assert (back - x).norm() < 0.05 * x.norm()
    torch.testing.assert_close(back.abs().amax(-1), x.abs().amax(-1))


def test_plain_reads_pages_in_order():
    shape = EVERY["MLA paged"]
    x = Bench(shape, DEVICE, 0).inputs[0]
    q, k, v = plain(shape, x, 1)
    assert (q.shape, k.shape, v.shape) == ((3, 1, 24), (1, 21, 24), (1, 21, 16))
    page, offset = x["block_table"][1, 13 // 6], 13 % 6
    assert torch.equal(k[0, 13, :16], x["latent_pages"][page, offset])
    assert torch.equal(k[0, 13, 16:], x["k_rope_pages"][page, offset])
    assert torch.equal(v[0], k[0, :, :16])


WRONG = {
    "NaN": lambda right, q, k, v, **_: (torch.full_like(q, float("nan")), None),
    "the last token forgotten": lambda right, q, k, v, **_: right(q, k[:, :, :-1], v[:, :, :-1]),
    "heads mapped to the wrong group": lambda right, q, k, v, **_: right(q, k.flip(1), v.flip(1)),
    "wrong scale": lambda right, q, k, v, **_: right(1.1 * q, k, v),
    "base 2": lambda right, q, k, v, **_: (lambda out, lse: (out, lse / 0.6931))(*right(q, k, v)),
}


@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG)
def test_wrong_answers_do_not_pass(bench, monkeypatch, defined, change):
    right = kernels.decode
    if change is WRONG["NaN"]:
        change = lambda right, q, **_: (torch.full_like(q, float("nan")), q[..., 0].float())  # noqa: E731
    monkeypatch.setattr(kernels, "decode", lambda **x: change(right, **x))
    errors, reason = bench.check(Point(SMALL, "decode"))
    assert reason
    assert all(value is None or value >= 0 for value in errors["error"].values())


def test_one_wrong_gradient_does_not_pass(defined, monkeypatch):
    shape = EVERY["backward"]
    bench = Bench(shape, DEVICE, 0)
    right = kernels.attention
    monkeypatch.setattr(kernels, "attention", lambda q, k, v, causal: right(q, k, v.detach() * 0.5 + v * 0.5, causal=causal))
    assert "relative_l2" in bench.check(Point(shape, "attention"))[1]


def test_a_yardstick_that_fails_does_not_widen_the_limit(bench, monkeypatch, defined):
    monkeypatch.setattr(bench_module, "math_attention", lambda q, k, v, **_: (torch.full_like(q[..., :16], float("nan")), None))
    assert bench.check(Point(SMALL, "decode"))[1]


def test_only_the_asked_copies_are_run():
    seen = []
    calls = calls_of(Point(SMALL, "sdpa", "MATH"), Bench(SMALL, DEVICE, 0).inputs[:2])
    for call in calls:
        seen.append(call()[0][0])
    assert len(seen) == 2 and seen[0].shape == (2, 4, 1, 16) and not torch.equal(*seen)
