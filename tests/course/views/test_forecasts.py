"""Predictions against times, and guesses against answers: what the figures say is what the numbers are."""

import pytest

from course import costs, views

H200 = costs.gpu("H200 SXM")


def test_a_perfect_model_is_told_so_and_the_floor_is_not(recorded):
    rows = [recorded.row(batch=batch, context_len=n) for batch in (1, 16) for n in (8192, 131072)]
    rows.append(recorded.row(context_len=512))  # 2 MB: too small to count
    made = views.predicted_against_measured(
        rows, costs.Prediction(recorded.T0, recorded.READ_RATE), H200, label="Made up", seen=(0, 1)
    )
    worst = max(abs(costs.floor(r["cache_bytes"], r["flops"], H200).seconds / r["median_s"] - 1) for r in rows[:4])
    assert f"floor, data sheet: 3 of 4 within 20%, worst {worst:.0%}" in made.caption
    assert "4.6 TB/s: 4 of 4 within 20%, worst 0%" in made.caption
    assert made.caption.count("Made up.") == 1


def test_nothing_large_enough_is_refused(recorded):
    with pytest.raises(ValueError, match="10 MB"):
        views.predicted_against_measured([recorded.row(context_len=512)], costs.Prediction(0, 1e12), H200, label="x")


@pytest.fixture
def log(tmp_path, monkeypatch):
    monkeypatch.setenv("MHA_TO_MLA_PREDICTIONS", str(tmp_path / "predictions.jsonl"))


def test_an_empty_log_is_said(log):
    assert "No predictions yet" in views.calibration().caption


def test_latest_guess_of_each_question_counts(log, capsys):
    views.predict("9: a", 999, 10, tolerance=0.2)
    views.predict("9: a", 11, 10, tolerance=0.2)
    views.predict("1: b", 40, 10, tolerance=0.2)
    views.predict("1: c", -1, 10)  # no place on a logarithmic axis
    made = views.calibration()
    assert "1 of 2 guesses within their tolerance" in made.caption
    assert "on average a factor 2.10 away, leaning 2.10 times to the high side" in made.caption
