"""Heads across the ridge, and the expanded form's prefill: recorded points are the recording's, words are the data's."""

import pytest

from course import costs, measure, views
from course.views import measured_mla
from course.views.explorers import mla_ridge, rotary_residual


@pytest.fixture
def mla(with_recording):
    return measure.recordings("NVIDIA H200", "mla")[0]


def test_the_fastest_contiguous_call_is_taken(mla, recorded):
    found = measured_mla.calls(mla.rows, "mla_decode", 64, 8192)
    assert list(found) == [16, 32, 64, 96, 128]
    assert found[16]["splits"] == "automatic" and found[16]["page_size"] is None
    assert measured_mla.calls(mla.rows, "flashinfer", 64, 8192)[128]["backend"] == "fa3"
    assert not measured_mla.calls(mla.rows, "mla_decode", 3, 8192)


def test_the_plain_form_is_taken_from_its_own_rows_where_it_has_some(mla):
    plain, hopper, *peers = measured_mla.forms(mla.rows, 64, 8192).values()
    assert all(list(found) == [16, 32, 64, 96, 128] for found in (plain, hopper, *peers)) and len(peers) == 2
    assert {row["operation"] for row in plain.values()} == {"portable_mla_decode"}
    assert {row["operation"] for row in hopper.values()} == {"mla_decode"}
    made = views.mla_heads(mla)
    assert "the form for Hopper runs where it is the faster" in made.caption and "on Hopper, recorded:" in made.alt
    assert "FlashMLA, recorded:" in made.alt


def test_a_recording_of_one_form_has_no_second_series(mla):
    rows = [row for row in mla.rows if not row["operation"].startswith("portable_")]
    plain, hopper, *_ = measured_mla.forms(rows, 64, 8192).values()
    assert list(plain) == [16, 32, 64, 96, 128] and not hopper


def test_both_ridges_are_named_in_heads(mla):
    made = views.mla_heads(mla)
    assert "109 by data sheet" in made.caption  # E6
    read, peak = measured_mla.rates_of(mla)
    per_head = costs.intensity(costs.Attention.mla(1))
    assert f"{peak / read / per_head:.0f} by recorded" in made.caption
    assert mla.label in made.caption and "earlier version" in made.caption
    assert "with 128 heads" in made.alt


def test_without_a_recording_it_is_computed_and_says_so():
    made = views.mla_heads(None, batch=1, context_len=131_072)
    assert "Nothing is recorded" in made.caption and "recorded on" not in made.caption
    assert "109 by data sheet" in made.caption


def test_live_rows_are_drawn_and_named(mla, recorded):
    live = [recorded.mla_row(recorded.Shape.mla(64, 32, 8192))]
    made = views.mla_heads(mla, live=live, live_label="live on this machine's toy")
    assert "Filled marks: live on this machine's toy." in made.caption
    assert made.png != views.mla_heads(mla).png
    assert "plain Triton, live:" in made.alt and "on Hopper, live:" not in made.alt
    shape = recorded.Shape.mla(64, 64, 8192)
    both = [recorded.mla_row(shape), recorded.mla_row(shape, "portable_mla_decode", slower=2.5)]
    made = views.mla_heads(mla, live=both)
    assert "plain Triton, live:" in made.alt and "on Hopper, live:" in made.alt


def test_a_recording_without_a_product_has_no_second_ridge(with_recording):
    made = views.mla_heads(with_recording)
    assert "by recorded" not in made.caption


def test_expanded_prefill(with_recording):
    prefill = measure.recordings("NVIDIA H200", "prefill")[0]
    made = views.expanded_prefill(prefill)
    assert "expanded MLA, 16 heads of 192 and 128:" in made.alt and prefill.label in made.caption
    assert "Nothing is recorded" in views.expanded_prefill(None).caption


def test_the_explorer_s_points_are_the_recording_s(mla):
    rows = views.mla_ridge().spec()["datasets"]["recorded"]
    assert len(rows) == 3 * 5 * 4
    at = {r["mark"]: r for r in rows if (r["heads_of_row"], r["work_of_row"]) == (128, "64 × 8,192")}
    for label, found in measured_mla.forms(mla.rows, 64, 8192).items():
        assert at[mla_ridge.MARKS[label]]["seconds"] == found[128]["median_s"]
    assert all(r["intensity"] == pytest.approx(241.8, abs=0.05) for r in at.values())


def test_the_ridge_is_crossed_near_109_heads():
    explorer = views.mla_ridge()
    at = explorer.settings | {"gpu": "H200 SXM"}
    assert "109 heads with one query token: compute-bound" in explorer.sentence_of(**at)
    assert "memory-bound" in explorer.sentence_of(**at | {"n_gpus": 8})
    assert "156 heads with one query token: memory-bound" in explorer.sentence_of(**at | {"gpu": "H100 SXM"})
    assert mla_ridge.WORK.keys() >= {"64 × 8,192"}


def test_a_rotation_serves_one_distance_only():
    assert rotary_residual.best_residual(1, 64, 1e4) == 0 == rotary_residual.first_residual(0, 64, 1e4)
    many = [rotary_residual.best_residual(n, 128, 1e4) for n in (1, 2, 8, 64, 1024, 65536)]
    assert many == sorted(many) and many[-1] > 0.99
    assert "serves one distance exactly" in views.rotary_residual().sentence_of("10,000", 128, 0)
