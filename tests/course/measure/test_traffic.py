"""course.measure.traffic: counts are exact, belong to the right argument, and leave nothing behind."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import kernels
from course import measure
from course.measure import traffic
from kernels._mode import tl, triton

pytestmark = pytest.mark.skipif(kernels.MODE != "interpreter", reason="traffic is counted in Triton's interpreter")


@triton.jit
def copy_kernel(x, y, n, stride, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i * stride, mask=i < n), mask=i < n)


@triton.jit
def add_kernel(pair, y, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(pair[0] + i) + tl.load(pair[1] + i))


@triton.jit
def broken_kernel(x, BLOCK: tl.constexpr):
    tl.load(x + tl.arange(0, BLOCK))
    tl.static_assert(False)


def copy(x, n, stride=1, block=16):
    y = torch.empty(n)
    copy_kernel[(triton.cdiv(n, block),)](x, y, n, stride, BLOCK=block)
    return y


def toy(context_len=300, width=16):
    q = torch.randn(1, 8, width)
    k, v = torch.randn(2, 1, 2, context_len, width)
    return q, k, v


def test_grouping_divides_requests_by_the_group():
    q, k, v = toy()
    ungrouped = measure.count_traffic(kernels.attention, q.unsqueeze(2), k, v)
    grouped = measure.count_traffic(kernels.decode, q, k, v)
    assert (ungrouped.requested("k", "v"), ungrouped.distinct("k", "v")) == (76_800, 19_200)
    assert (grouped.requested("k", "v"), grouped.distinct("k", "v")) == (19_200, 19_200)
    assert (ungrouped.programs, grouped.programs) == (8, 2)
    assert grouped.requested("k") == grouped.requested("v") == 9_600


def test_splits_read_the_cache_once_and_the_merge_is_its_own_launch():
    q, k, v = toy()
    counted = measure.count_traffic(kernels.decode, q, k, v, num_splits=3)
    assert [launch.kernel for launch in counted.launches] == ["decode_kernel", "merge_kernel"]
    assert counted.requested("k", "v") == counted.distinct("k", "v") == 19_200
    assert counted.requested("q") == 3 * counted.distinct("q") == 3 * 128
    assert counted.requested("k", kernel="decode_kernel") == 9_600


def test_only_a_sequences_own_tokens_are_requested():
    q, k, v = toy()
    counted = measure.count_traffic(kernels.decode, q, k, v, torch.tensor([100], dtype=torch.int32))
    assert counted.requested("k", "v") == 2 * 2 * 100 * 16


def test_the_result_is_kept_and_right():
    q, k, v = toy(33)
    out, lse = measure.count_traffic(kernels.decode, q, k, v).result
    expected, expected_lse = kernels.reference.decode(q, k, v)
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(lse.double(), expected_lse, rtol=1e-5, atol=1e-5)


@settings(max_examples=25)
@given(n=st.integers(1, 70), stride=st.integers(0, 3), block=st.sampled_from([8, 16, 32]))
def test_masked_and_strided_loads(n, stride, block):
    counted = measure.count_traffic(copy, torch.randn(max(1, n * stride)), n, stride, block)
    (launch,) = counted.launches
    assert launch.programs == launch.loads == launch.tensors["x"].loads == -(-n // block)
    assert counted.requested() == counted.requested("x") == n
    assert counted.distinct("x") == (n if stride else 1)


def test_views_of_one_record_do_not_claim_each_others_elements():
    left, right = torch.randn(17, 2).unbind(1)
    y = torch.empty(16)
    counted = measure.count_traffic(lambda: add_kernel[(1,)]((left, right), y, BLOCK=16))
    # Sixteen neighbours from the start of each view: half of them belong to the other.
    assert {name: r.requested for name, r in counted.launches[0].tensors.items()} == {"pair[0]": 16, "pair[1]": 16}


def test_loads_outside_the_arguments_are_named_so():
    whole = torch.randn(64)
    counted = measure.count_traffic(copy, whole[:8], 24)
    assert counted.requested("x") == 8
    assert counted.requested(traffic.ELSEWHERE) == 16


def test_two_launches_share_distinct_elements():
    x = torch.randn(32)
    counted = measure.count_traffic(lambda: (copy(x, 32), copy(x, 20)))
    assert (counted.requested("x"), counted.distinct("x")) == (52, 32)


def test_temporaries_are_not_mistaken_for_each_other():
    counted = measure.count_traffic(lambda: [copy(torch.randn(64), 64) for _ in range(5)] and None)
    assert counted.distinct("x") == 5 * 64


def test_unknown_names_list_what_there_is():
    counted = measure.count_traffic(copy, torch.randn(8), 8)
    with pytest.raises(ValueError, match=r"no tensor 'xx' .*did you mean 'x'\? \(there are: x\)"):
        counted.requested("xx")
    with pytest.raises(ValueError, match=r"no kernel 'copy_kernels'.*did you mean 'copy_kernel'"):
        counted.distinct("x", kernel="copy_kernels")


def test_a_call_without_kernels_counts_nothing():
    counted = measure.count_traffic(torch.zeros, 3)
    assert counted.launches == ()
    assert counted.requested() == counted.distinct() == counted.programs == 0


def test_table():
    assert "copy_kernel" in (table := str(measure.count_traffic(copy, torch.randn(2000), 2000)))
    assert table.splitlines()[1].split() == ["copy_kernel", "x", "125", "125", "2,000", "2,000"]


def private_names():
    from triton.runtime import interpreter

    builder, executor = interpreter.InterpreterBuilder, interpreter.GridExecutor
    return builder.create_masked_load, executor.__call__, executor._init_args_hst


def test_tritons_private_names_are_still_there():
    """If this fails, Triton names its interpreter differently: ``traffic.interpreter_hooks`` is the place to mend."""
    private_names()
    assert measure.count_traffic(copy, torch.randn(5), 5).requested("x") == 5


def test_everything_is_put_back_after_an_error_and_nesting_is_refused():
    before = private_names()
    with pytest.raises(Exception, match="AssertionError"):
        measure.count_traffic(lambda: broken_kernel[(1,)](torch.randn(8), BLOCK=8))
    assert private_names() == before
    with pytest.raises(RuntimeError, match="counts do not nest"):
        measure.count_traffic(measure.count_traffic, copy, torch.randn(8), 8)
    assert private_names() == before
    assert measure.count_traffic(copy, torch.randn(8), 8).requested("x") == 8


@pytest.mark.parametrize("mode", ["compiled", "compile-only", "reference"])
def test_refused_outside_the_interpreter(monkeypatch, mode):
    monkeypatch.setattr(kernels, "MODE", mode)
    with pytest.raises(kernels.Unsupported, match=f"kernels.MODE is '{mode}'"):
        measure.count_traffic(copy, torch.randn(8), 8)


def test_another_triton_is_refused_clearly(monkeypatch):
    from triton.runtime import interpreter

    monkeypatch.delattr(interpreter.GridExecutor, "_init_args_hst")
    with pytest.raises(kernels.Unsupported, match="names its interpreter differently"):
        measure.count_traffic(copy, torch.randn(8), 8)


def test_addresses_of_expanded_and_empty_tensors():
    assert np.unique(traffic._element_addresses(torch.randn(1).expand(7))).size == 1
    assert traffic._element_addresses(torch.empty(0, 3)).size == 0
