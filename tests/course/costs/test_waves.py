"""Waves, partial results and the model of a split decode call: hand-worked figures, and constants found again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course.costs import Attention, SplitLaunch, WaveModel, fit_waves, partial_bytes, split_tokens, tokens_worth_a_split

WORKHORSE = Attention.gqa(32, 8, 128)


def launch(num_splits, *, context_len=131_072, pairs=8, block_n=128):
    return SplitLaunch(context_len, num_splits, pairs, 512, partial_bytes(WORKHORSE, num_splits), block_n)


def test_partial_results_of_known_shapes():
    assert partial_bytes(WORKHORSE, 16) == 16 * 32 * 129 * 4 == 264_192
    assert partial_bytes(Attention.mla(128), 16) == 16 * 128 * 513 * 4 == 4_202_496
    assert partial_bytes(WORKHORSE, 16, batch=3, q_len=2) == 6 * 264_192
    assert partial_bytes(WORKHORSE, 1) == 0


def test_they_are_what_the_kernel_s_workspace_holds():
    from kernels import plan

    for splits in (1, 2, 7, 64):
        assert partial_bytes(WORKHORSE, splits, batch=3, q_len=2) == 4 * plan.decode_workspace(3, 2, 32, 128, splits)


@pytest.mark.parametrize(
    "attention, tokens", [(WORKHORSE, 4), (Attention.mla(16), 28), (Attention.mla(128), 228), (Attention.mha(32, 128), 1)]
)
def test_tokens_worth_a_split(attention, tokens):
    assert int(tokens_worth_a_split(attention)) == tokens


def test_a_split_is_whole_tiles():
    assert split_tokens(8192, 16, 64) == (512, 16)
    assert split_tokens(8192, 17, 64) == (512, 16)  # the seventeenth has none
    assert split_tokens(100, 3, 64) == (64, 2)
    assert split_tokens(40, 1, 64) == (40, 1)


@given(st.integers(1, 10**6), st.integers(1, 300), st.sampled_from([16, 64, 128]))
def test_the_splits_with_tokens_cover_the_context(context_len, num_splits, block_n):
    tokens, used = split_tokens(context_len, num_splits, block_n)
    assert used <= num_splits and (used - 1) * tokens < context_len <= used * tokens


def test_one_program_too_many_opens_a_wave():
    assert launch(16).waves(132) == (0, 128) and launch(16).efficiency(132) == pytest.approx(0.970, abs=5e-4)
    assert launch(17).waves(132) == (1, 4) and launch(17).efficiency(132) == pytest.approx(0.515, abs=5e-4)


def test_hand_worked_times():
    model = WaveModel(bandwidth=4e12, program_rate=50e9, t0_s=4e-6, wave_s=1e-6, merge_s=3e-6)
    one = 131_072 * 512  # bytes of a KV head
    assert model.seconds(launch(1), 132) == pytest.approx(4e-6 + one / 50e9)
    # 128 programs of 8,192 tokens: together they would read 6.4 TB/s, so the memory decides
    partial = 2 * partial_bytes(WORKHORSE, 16) / 4e12
    assert model.seconds(launch(16), 132) == pytest.approx(7e-6 + 8 * one / 4e12 + partial)
    assert model.without_waves(launch(16)) == pytest.approx(4e-6 + 8 * one / 4e12)
    assert model.without_waves(launch(2)) == pytest.approx(4e-6 + one / 2 / 50e9)
    # 136 programs of 7,808 tokens: 132 share the memory, then four read at their own rate
    n_bytes = 7_808 * 512
    partial = 2 * partial_bytes(WORKHORSE, 17) / 4e12
    assert model.seconds(launch(17), 132) == pytest.approx(8e-6 + 132 * n_bytes / 4e12 + n_bytes / 50e9 + partial)


@given(st.floats(0, 1e-4), st.floats(0, 1e-4))
def test_clean_points_give_the_overheads_back(wave_s, merge_s):
    truth = WaveModel(4.4e12, 52e9, 4e-6, wave_s, merge_s)
    launches = [launch(2**i, context_len=8192) for i in range(8)]
    known = {"bandwidth": 4.4e12, "program_rate": 52e9, "t0_s": 4e-6, "sm_count": 132}
    got = fit_waves([(one, truth.seconds(one, 132)) for one in launches], **known)
    assert got.wave_s == pytest.approx(wave_s, rel=1e-5, abs=1e-12)
    assert got.merge_s == pytest.approx(merge_s, rel=1e-5, abs=1e-12)


def test_overheads_are_not_negative():
    truth = WaveModel(4.4e12, 52e9, 4e-6, 0, 0)
    known = {"bandwidth": 4.4e12, "program_rate": 52e9, "t0_s": 4e-6, "sm_count": 132}
    points = [(launch(n, context_len=8192), 0.9 * truth.seconds(launch(n, context_len=8192), 132)) for n in (1, 2, 32, 64)]
    got = fit_waves(points, **known)
    assert got.wave_s == 0 or got.merge_s == 0


def test_bad_arguments():
    with pytest.raises(ValueError, match="program_rate"):
        WaveModel(4e12, 0, 0, 0, 0)
    with pytest.raises(ValueError, match="several"):
        fit_waves([(launch(2), 1e-3)], bandwidth=4e12, program_rate=5e10, t0_s=0, sm_count=132)
    with pytest.raises(ValueError, match="num_splits"):
        partial_bytes(WORKHORSE, 0)
