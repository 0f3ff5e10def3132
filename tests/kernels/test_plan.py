"""Programs and splits: plain numbers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kernels
from kernels import plan

H200 = kernels.Device(capability=(9, 0), sm_count=132, shared_memory=227 * 1024)


def test_programs_of_the_workhorse():
    """32 query heads over 8 KV heads: 8 programs a sequence where one program a query head would be 32."""
    assert plan.head_tiles(32, 8, block_h=16) == 8
    assert plan.decode_programs(4, 32, 8, block_h=16) == 32
    assert plan.decode_programs(1, 32, 8, block_h=16, num_splits=16) == 128


@pytest.mark.parametrize(("n_q_heads", "n_kv_heads", "tiles"), [(48, 2, 4), (40, 2, 4), (80, 4, 8), (71, 1, 5), (7, 7, 7)])
def test_a_tile_never_spans_two_kv_heads(n_q_heads, n_kv_heads, tiles):
    assert plan.head_tiles(n_q_heads, n_kv_heads, block_h=16) == tiles


@pytest.mark.parametrize(
    ("batch", "head_tiles", "splits"), [(1, 8, 16), (16, 8, 1), (64, 8, 1), (1, 1, 128), (1, 2, 64), (9, 8, 7), (17, 8, 7)]
)
def test_splits_fill_waves(batch, head_tiles, splits):
    assert plan.num_splits(batch, head_tiles, 131072, 132) == splits


@pytest.mark.parametrize(
    ("programs", "context_len", "splits"),
    [(24, 256, 1), (1, 512, 4), (80, 1024, 1), (80, 4096, 3), (136, 1024, 1), (136, 4096, 2), (136, 8192, 4), (224, 8192, 1)],
)
def test_short_contexts_leave_waves_unfilled(programs, context_len, splits):
    """Where a wave is over so soon that filling it would take longer."""
    assert plan.num_splits(programs, 1, context_len, 132) == splits


@given(st.integers(1, 512), st.integers(1, 128), st.integers(0, 2**20), st.integers(1, 200))
def test_splits_stay_in_bounds(batch, head_tiles, context_len, sm_count):
    splits = plan.num_splits(batch, head_tiles, context_len, sm_count)
    assert splits >= 1
    if splits > 1:
        assert context_len // splits >= plan.MIN_TOKENS_PER_SPLIT
        assert batch * head_tiles * splits <= plan.MAX_WAVES * sm_count


@given(st.integers(1, 512), st.integers(1, 128), st.integers(1, 2**20), st.integers(1, 200))
def test_every_split_gets_tokens(batch, head_tiles, context_len, sm_count):
    """Of a full cache, in blocks of 64."""
    splits = plan.num_splits(batch, head_tiles, context_len, sm_count)
    blocks = plan.ceil_div(context_len, plan.BLOCK_TOKENS)
    assert (splits - 1) * plan.ceil_div(blocks, splits) < blocks


def test_workspace_holds_outputs_and_log_sum_exps():
    assert plan.decode_workspace(3, 1, 8, 64, 1) == 0
    assert plan.decode_workspace(3, 2, 8, 64, 5) == 5 * 3 * 2 * 8 * 65
    assert plan.decode_workspace(3, 2, 8, 64, shares=7) == (7 + 3) * 2 * 8 * 65


def test_plan_decode_is_what_decode_launches(random):
    """The interpreter's own device, and an H200 that is not here."""
    launch = kernels.plan_decode(1, 32, 8, 8192, 128, 128, 2, H200)
    assert (launch.tile.rows, launch.row_tiles, launch.num_splits, launch.programs) == (16, 8, 16, 128)
    assert kernels.plan_decode(1, 32, 1, 8192, 128, 128, 2, H200).tile.rows == 32
    assert kernels.plan_decode(2, 32, 8, 8192, 128, 128, 2, H200, num_splits=3).programs == 48


@pytest.mark.parametrize(("head_tiles", "shares"), [(8, 33), (2, 132), (1, 264), (200, 1), (1000, 1)])
def test_shares_of_a_work_list_fill_the_gpu_twice(head_tiles, shares):
    assert plan.shares(head_tiles, 132) == shares
    assert plan.shares(head_tiles, 66) == plan.shares(head_tiles, 132, programs_per_sm=1)


def test_plan_decode_of_other_caches():
    """MLA's latent in tiles of 64 rows, in pages or not; two programs a processor over 8-bit elements."""
    mla = {"shared_width": 512, "num_splits": 4}
    launch = kernels.plan_decode(2, 128, 1, 8192, 576, 512, 2, H200, **mla)
    assert (launch.tile.rows, launch.row_tiles, launch.programs) == (64, 2, 16)
    assert kernels.plan_decode(2, 128, 1, 8192, 576, 512, 2, H200, **mla, page_size=64).row_tiles == 2
    assert kernels.plan_decode(2, 5, 1, 8192, 576, 512, 2, H200, q_len=8, **mla).tile.rows == 64
    assert kernels.plan_decode(1, 32, 8, 131072, 128, 128, 2, H200).num_splits == 16
    assert kernels.plan_decode(1, 32, 8, 131072, 128, 128, 1, H200).num_splits == 33
