"""The waterfall: its parts add up to what was recorded, and each is the difference that it claims to be."""

import dataclasses

import pytest

from course import views
from course.views import gap


@pytest.fixture
def recording(recorded):
    made = recorded.recording()
    extra = recorded.row(batch=16, context_len=512, n_kv_heads=8)
    extra |= {"median_s": extra["median_s"] * 0.9}
    reads = [
        {"bytes": 33554432, "median_s": 9e-6, "p20_s": 9e-6, "p80_s": 9e-6},
        {"bytes": 2**31, "median_s": 2**31 / recorded.READ_RATE, "p20_s": 4e-4, "p80_s": 5e-4},
    ]
    return dataclasses.replace(made, rows=[*made.rows, extra], reads=reads)


def test_parts_add_up_and_are_differences(recording, recorded):
    steps = dict(views.gap_steps(recording))
    parts = list(steps.values())
    whole = recorded.row(context_len=8192)["median_s"]
    n_bytes = 33554432
    assert sum(parts) == pytest.approx(whole)
    assert parts[0] == pytest.approx(n_bytes / 4.8e12)
    assert sum(parts[:2]) == pytest.approx(n_bytes / recorded.READ_RATE)
    assert sum(parts[:3]) == pytest.approx(9e-6)
    assert parts[-1] == pytest.approx(whole * 0.1)


def test_both_calls_read_the_same_bytes(recorded):
    assert len({recorded.row(**{k: v for k, v in call.items() if k != "n_q_heads"})["cache_bytes"]
                for call in (gap.CALL, gap.UNSPLIT)}) == 1  # fmt: skip


def test_the_figure_says_the_parts(recording):
    made = views.gap_waterfall(recording)
    assert "33.6 MB" in made.caption and "recorded on an NVIDIA H200" in made.caption
    for what, seconds in views.gap_steps(recording):
        assert f"{what.replace(chr(10), ' ')} {seconds * 1e6:+.1f} µs" in made.alt


def test_without_the_call_it_says_which_is_missing(recorded):
    made = recorded.recording()
    empty = dataclasses.replace(made, rows=[])
    with pytest.raises(LookupError, match="'batch': 1"):
        views.gap_waterfall(empty)
