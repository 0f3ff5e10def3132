"""course.measure.plans and shapes: what is recorded, and its bytes and FLOPs."""

from dataclasses import replace

import pytest

from course import costs
from course.measure import plans
from course.measure.plans import KINDS
from course.measure.recordings import CHOICES
from course.measure.shapes import FLOAT8, Point, Shape

PLANS = {kind: plan("bfloat16") for kind, plan in KINDS.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_every_plan_is_recordable(kind):
    plan = PLANS[kind]
    assert plan.kind == kind
    assert len(set(plan.points)) == len(plan.points)
    assert plan.sha256 == KINDS[kind]("bfloat16").sha256
    assert kind == "reads" or plan.sha256 != KINDS[kind]("float16").sha256
    for point in plan.points:
        assert point.operation in CHOICES["operation"]
        assert point.backend in CHOICES["backend"]
        assert point.splits in CHOICES["splits"]
        assert point.shape.cache_bytes > 0 and point.shape.flops > 0
        assert isinstance(point.shape.cache_bytes, int) and isinstance(point.shape.flops, int)
    assert all(p.shape.cache_bytes <= 10**9 for p in plan.points if p.copies_heads)
    assert all(p.shape.group_size > 1 for p in plan.points if p.operation == "repeat_sdpa")


def test_the_whole_takes_minutes_and_compiles_few_shapes():
    assert sum(plan.estimate_s for plan in PLANS.values()) < 10 * 60  # the book says: about ten minutes
    points = [point for plan in PLANS.values() for point in plan.points]
    assert sum(point.operation == "flex" for point in points) <= 5
    compiled = [point.shape for point in points if point.operation == "flash_attn"]
    forms = {(s.direction, s.causal, s.group_size, s.head_dim_qk) for s in compiled}
    assert forms == {(way, True, *form) for way in ("forward", "backward") for form in ((1, 128), (4, 128), (1, 192))}
    for direction in ("forward", "backward"):
        assert set(plans.prefill_workloads(direction, "bfloat16")) <= set(compiled)


def test_the_quick_plans_ask_each_contender_once_for_each_form():
    for plan in PLANS.values():
        quick = plan.quick()
        assert quick.kind == f"quick-{plan.kind}"
        assert set(quick.points) <= set(plan.points)
        assert {(p.operation, p.backend, p.splits) for p in quick.points} == {
            (p.operation, p.backend, p.splits) for p in plan.points
        }
    assert sum(plan.quick().estimate_s for plan in PLANS.values()) < 3 * 60
    assert {p.shape.n_q_heads for p in PLANS["mla"].quick().points} == {16, 32, 64, 96, 128}


def test_the_decode_plan():
    plan = PLANS["decode"]
    shapes = set(plan.by_shape)
    assert Shape(128, 32, 8, 1024) in shapes
    assert Shape(1, 64, 8, 32768) in shapes
    grid = [
        s for s in shapes if s.n_q_heads == 32 and s.batch in (1, 16, 64) and s.context_len in (512, 2048, 8192, 32768, 131072)
    ]
    assert len(grid) == 3 * 5 * 6
    automatic = {p.shape for p in plan.points if p.operation == "decode" and p.num_splits is None}
    assert automatic == shapes
    assert len([p for p in plan.points if p.num_splits]) == 18 * 8 + 2 * len(plans.BETWEEN)
    # 8 KV heads: 16 splits are the last that one wave of 132 programs holds, 33 the last of two.
    assert {16, 17, 32, 33} <= {p.num_splits for p in plan.points if p.shape == Shape(1, 32, 8, 131072)}
    # The rows that the chapters read, and FlashInfer twice and FlexAttention on some of the workloads.
    assert len([p for p in plan.points if p.operation not in ("flashinfer", "flex")]) == 789 + 2 * len(plans.BETWEEN)
    assert len([p for p in plan.points if p.operation == "flashinfer"]) == 16


def test_the_other_plans_hold_what_chapters_draw():
    paged, mla, prefill, fp8, tokens = (PLANS[kind] for kind in ("paged", "mla", "prefill", "fp8", "tokens"))
    sizes = {p.shape.page_size for p in paged.points if p.shape.batch == 16 and p.operation == "paged_decode"}
    assert sizes == {1, 2, 4, 8, 16, 32, 48, 64, 128, 256}
    ragged = [p for p in paged.points if p.shape.lengths == "ragged"]
    assert {(p.shape.page_size, str(p)) for p in ragged} == {
        (size, name)
        for size in (16, 64)
        for name in ("paged_decode", "paged_decode/work list", "flashinfer/fa2", "flashinfer/CUDA cores")
    }
    for n_heads in (16, 32, 64, 96, 128):
        assert Point(Shape.mla(64, n_heads, 8192), "mla_decode") in mla.points
    for size in (16, 64):
        assert Point(Shape.mla(64, 128, 8192, page_size=size), "paged_mla_decode") in mla.points
    assert Point(Shape.mla(1, 128, 131072), "mla_decode", num_splits=1) in mla.points
    # FlashMLA reads pages of 64: a contiguous cache can be handed over as such, pages of another size cannot.
    fa3, flash_mla = ({p.shape for p in mla.points if name in (p.operation, p.backend)} for name in ("fa3", "flash_mla"))
    assert flash_mla == fa3 and {s.page_size for s in flash_mla} == {None, 64}
    lengths = {(s.context_len, s.causal) for s in prefill.by_shape if s.direction == "forward" and s.q_len == s.context_len}
    assert lengths == {(n, causal) for n in (512, 1024, 2048, 4096, 8192, 16384) for causal in (True, False)}
    assert {s.batch * s.context_len for s in prefill.by_shape if s.q_len == s.context_len} == {16384}
    for shape in fp8.by_shape:
        assert replace(shape, cache_dtype=None) in fp8.by_shape and replace(shape, cache_dtype=FLOAT8) in fp8.by_shape
    assert {s.q_len for s in tokens.by_shape if s.n_kv_heads == 1} == set(range(1, 9))
    for shape in plans.many_row_workloads("bfloat16"):
        assert plans.ours(shape) in tokens.points
        assert (plans.portable(shape) in tokens.points) == (shape.group_size * shape.q_len > 32)
    reads = PLANS["reads"]
    assert (reads.reads[0], reads.reads[-1]) == (64 * costs.KiB, 4 * costs.GiB)
    assert {limit.operation for limit in reads.limits} == {
        *("warm read", "copy", "torch copy"),
        *("matmul burst", "matmul sustained"),
    }


def test_the_plans_about_what_people_write():
    sharing, eager = PLANS["sharing"], PLANS["eager"]
    assert (sharing.method, eager.method, PLANS["decode"].method) == ("auto", "events", "auto")
    assert eager.quick().method == "events"
    for shape, points in (sharing.by_shape | eager.by_shape).items():
        assert Point(shape, "matmul", "rows") in points
        assert any(p.operation == "copy_heads" for p in points) == (shape.group_size > 1)
    assert all(p.operation != "copy_heads" or p.shape.group_size > 1 for p in sharing.points + eager.points)


def test_bytes_and_flops_are_the_arithmetic():
    shape = Shape(1, 32, 8, 8192)
    assert shape.cache_bytes == 33_554_432
    assert shape.flops == 4 * 128 * 32 * 8192
    assert shape.group_size == 4
    assert shape.attention == costs.Attention.gqa(32, 8, 128)
    assert Shape.mla(64, 128, 8192).cache_bytes == 64 * 8192 * 1152
    assert Shape.mla(64, 128, 8192).attention == costs.Attention.mla(128)
    # 8 bits: two float32 scales a token and head; in MLA one a token, and the rotary part stays in 16 bits.
    assert replace(shape, cache_dtype=FLOAT8).cache_bytes == 8192 * 8 * (128 + 128 + 8)
    assert Shape.mla(1, 16, 10, cache_dtype=FLOAT8).cache_bytes == 10 * (512 + 4 + 128)


def test_the_backward_pass_is_five_products():
    whole = Shape(2, 32, 8, 8192, q_len=8192)
    assert whole.flops == 2 * 32 * (8192 * 8193 // 2) * 2 * 256
    assert replace(whole, direction="backward").flops == whole.flops * 5 // 2
    wide = replace(whole, head_dim_qk=192)
    assert replace(wide, direction="backward").flops / wide.flops == (3 * 192 + 2 * 128) / 320


def test_ragged_lengths_are_fixed_and_spread():
    shape = Shape(64, 32, 8, 32768, lengths="ragged")
    lengths = shape.seq_lens
    assert lengths == replace(shape, page_size=16).seq_lens
    assert (min(lengths), max(lengths), len(set(lengths))) == (512, 32768, 64)
    assert lengths != sorted(lengths)
    assert shape.cache_bytes == 4096 * sum(lengths)


def test_what_answers_a_shape():
    assert Shape(1, 32, 8, 64).operation == "decode"
    assert Shape(1, 32, 8, 64, q_len=8, page_size=16).operation == "paged_decode"
    assert Shape.mla(1, 16, 64, page_size=16).operation == "paged_mla_decode"
    assert Shape(1, 32, 8, 64, q_len=9).operation == "attention"


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        (Shape(1, 32, 8, 8192), "B1 32/8 L8192"),
        (Shape.mla(64, 128, 32768, page_size=16, lengths="ragged"), "B64 MLA 128 ragged L32768 page 16"),
        (Shape(2, 16, 16, 64, head_dim_qk=192, q_len=64, causal=False, direction="backward"),
         "B2 16/16 192/128 L64 whole not causal backward"),
        (Shape(1, 32, 8, 64, cache_dtype=FLOAT8), "B1 32/8 L64 FP8"),
    ],
)  # fmt: skip
def test_names(shape, text):
    assert str(shape) == text


def test_points_say_how_they_split():
    shape = Shape(1, 32, 8, 64, page_size=16)
    assert plans.ours(shape).splits == "automatic"
    assert [p.splits for p in plans.splits(shape)] == ["given"] * 8
    assert Point(shape, "paged_decode", work_list=True).splits == "work list"
    assert Point(shape, "flashinfer", "fa2").splits is None
    assert Point(shape, "repeat_sdpa", "FLASH").bytes_moved == 9 * shape.cache_bytes
    assert Point(shape, "matmul", "broadcast").bytes_moved == 9 * shape.cache_bytes
    assert Point(shape, "matmul", "rows").bytes_moved == shape.cache_bytes
    assert Point(shape, "copy_heads", "expand").bytes_moved == 5 * shape.cache_bytes
