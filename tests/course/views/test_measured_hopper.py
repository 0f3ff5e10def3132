"""Both forms of the kernels in one figure: what is drawn is what was recorded."""

import pytest

from course import views
from course.views import measured_hopper
from course.views.measured_hopper import HOPPER, PEER, PLAIN, forms, rate


@pytest.fixture
def kinds(recorded):
    return {"prefill": recorded.full_sequence_recording(), "mla": recorded.mla_recording()}


def test_rates_are_the_recorded_ones(kinds, recorded):
    rows = forms(kinds)
    found = {work: {form: rate(row) for form, row in each.items()} for work, each in rows.items()}
    assert list(found) == [work.label for work in measured_hopper.WORKS]
    at = found["forward, GQA 32/8 × 128"]
    assert at[HOPPER] == pytest.approx(recorded.FULL_SEQUENCE_RATE)
    assert at[PLAIN] == pytest.approx(recorded.FULL_SEQUENCE_RATE / 1.2)
    assert at[PEER] == pytest.approx(recorded.FULL_SEQUENCE_RATE / 0.9)
    mla = found["MLA decode, 128 heads"]
    assert (
        rows["MLA decode, 128 heads"][PEER]["backend"] == "fa3" and rows["forward, GQA 32/8 × 128"][PEER]["backend"] == "CUDNN"
    )
    # The faster FlashInfer; and a row whose splits were given by hand is not what the function does.
    assert mla[HOPPER] / mla[PEER] == pytest.approx(1.3 / 1.2, rel=0.01)
    assert mla[HOPPER] / mla[PLAIN] == pytest.approx(2.5 / 1.2, rel=0.02)


def test_figure_says_what_it_shows(kinds):
    picture = views.forms_figure(kinds)
    assert (
        "plain Triton 417" in picture.alt and "SDPA CUDNN 556" in picture.alt and "the data sheet's peak is 989" in picture.alt
    )
    assert "recorded on an NVIDIA H200" in picture.caption and "earlier version" in picture.caption


def test_without_a_recording():
    assert forms({"prefill": None, "mla": None}) == {}
    picture = views.forms_figure({"prefill": None, "mla": None})
    assert "Nothing is recorded" in picture.caption and "No marks" in picture.alt


def test_live_rows_are_one_more_line(kinds):
    row = {"status": "ok", "flops": 10**12, "median_s": 2e-3}
    rows = [row | {"operation": "attention"}, row | {"operation": "portable_attention", "median_s": 4e-3}]
    picture = views.forms_figure(kinds, live=rows, live_work="here: forward")
    assert f"here: forward, live: {HOPPER} 500, {PLAIN} 250" in picture.alt and "Filled marks" in picture.caption
