"""Recorded splits as launches, and the model's constants found in rows that were made from it."""

import dataclasses

import pytest

from course import costs, measure

H200 = costs.gpu("H200 SXM")
TRUTH = costs.WaveModel(bandwidth=4.4e12, program_rate=52e9, t0_s=4e-6, wave_s=8e-7, merge_s=3.8e-6)


def made(data, contexts=(8192, 131072), splits=tuple(2**i for i in range(8)), heads=(8,)) -> measure.Recording:
    """A recording whose split calls take what the model says."""
    rows = []
    for n_kv_heads in heads:
        for context_len in contexts:
            for num_splits in splits:
                row = data["rows"][0] | {"context_len": context_len, "n_kv_heads": n_kv_heads, "splits": "given",
                                         "num_splits": num_splits}  # fmt: skip
                seconds = TRUTH.seconds(measure.split_launch(row, H200), H200.sm_count)
                row |= {"cache_bytes": 512 * n_kv_heads * context_len, "median_s": seconds}
                rows.append(row)
    read = {"bytes": 2**31, "median_s": 2**31 / TRUTH.bandwidth, "p20_s": 4e-4, "p80_s": 5e-4}
    return measure.Recording("decode", data["provenance"], [read], [data["rows"][0], *rows])


def test_the_constants_come_back(data):
    got = measure.wave_model(made(data))
    for name, value in dataclasses.asdict(TRUTH).items():
        assert getattr(got, name) == pytest.approx(value, rel=1e-6), name


def test_splits_between_the_powers_of_two_are_left_for_testing(data):
    recording = made(data, splits=(1, 2, 4, 8, 16, 32, 64, 17))
    wrong = [row | {"median_s": 9 * row["median_s"]} if row["num_splits"] == 17 else row for row in recording.rows]
    disturbed = measure.Recording("decode", recording.provenance, recording.reads, wrong)
    assert measure.wave_model(disturbed) == measure.wave_model(recording)


def test_rows_are_those_with_given_splits_in_order(data):
    rows = measure.split_rows(made(data, splits=(4, 1, 2)), context_len=8192)
    assert [row["num_splits"] for row in rows] == [1, 2, 4]


def test_a_launch_has_the_tile_of_the_kernel(data):
    row = data["rows"][0] | {"context_len": 131072, "num_splits": 16, "splits": "given"}
    launch = measure.split_launch(row, H200)
    assert (launch.programs_per_split, launch.programs, launch.block_n, launch.bytes_per_token) == (8, 128, 128, 512)
    assert measure.split_launch(row | {"num_splits": 128}, H200).block_n == 64


def test_an_mla_row_is_one_head_with_row_tiles(data):
    mla = {"operation": "mla_decode", "n_q_heads": 128, "n_kv_heads": 1, "head_dim_qk": 576, "head_dim_v": 512}
    row = data["rows"][0] | mla | {"head_dim_shared": 512, "num_splits": 8}
    launch = measure.split_launch(row, H200)
    assert (launch.programs_per_split, launch.bytes_per_token) == (2, 1152)
    assert launch.partial_bytes == 8 * 128 * 513 * 4


def test_too_few_rows_are_said(data):
    with pytest.raises(LookupError, match="two contexts"):
        measure.wave_model(made(data, contexts=(8192,)))
    with pytest.raises(LookupError, match="no model"):
        measure.wave_model(made(data, splits=(1, 2)))
