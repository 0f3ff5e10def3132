"""predict and the log: the verdict in words, nothing revealed too early, nothing lost."""

import json
import math

import pytest

from course import views


@pytest.fixture
def log(tmp_path, monkeypatch):
    path = tmp_path / "predictions.jsonl"
    monkeypatch.setenv("MHA_TO_MLA_PREDICTIONS", str(path))
    return path


def said(capsys, *args, **kwargs) -> str:
    views.predict(*args, **kwargs)
    return capsys.readouterr().out


@pytest.mark.parametrize(
    "guess, answer, words",
    [
        (12, 12, "Exactly right"),
        (105, 100, "Right, within 10%"),
        (95, 100, "5% too low"),
        (50, 100, "2.0 times too low"),
        (300, 100, "3.0 times too high"),
        (130, 100, "30% too high"),
        (1e6, 100, "10,000 times too high"),
        (-3, 100, "off by 103"),
        (0, 100, "off by 100"),
        (1, 0, "off by 1"),
    ],
)
def test_verdict(log, capsys, guess, answer, words):
    assert words in said(capsys, "x", guess, answer)


@pytest.mark.parametrize(
    "guess, answer, words",
    [
        (0.71, 71, "fraction"),
        (17.179869184, 16, "GiB against GB"),
        (16e3, 16, "prefix"),
        (128, 16, "bits against bytes"),
        (50, 16, None),
    ],
)
def test_a_unit_slip_is_named(log, capsys, guess, answer, words):
    text = said(capsys, "x", guess, answer, tolerance=0.01)
    assert (words in text) if words else ("unit before" not in text)


def test_no_guess_reveals_nothing_and_logs_nothing(log, capsys):
    text = said(capsys, "share", None, 71.0509, unit="%")
    assert "71" not in text and "%" in text and "None" in text
    assert not log.exists()


@pytest.mark.parametrize("guess", ["7%", [7], math.nan, math.inf, True, 3 + 1j])
def test_a_guess_that_is_no_number_is_answered_not_raised(log, capsys, guess):
    text = said(capsys, "share", guess, 71.0509)
    assert "number" in text and "71" not in text
    assert not log.exists()


def test_the_author_s_mistakes_are_errors(log):
    with pytest.raises(ValueError, match="answer must be"):
        views.predict("x", 1, "7")
    with pytest.raises(ValueError, match="tolerance"):
        views.predict("x", 1, 7, tolerance=0)


def test_the_log_only_grows(log, capsys):
    views.predict("a", 1, 2)
    first = log.read_bytes()
    views.predict("b", 2, 2, unit="%", question="how many?")
    assert log.read_bytes().startswith(first)
    entries = views.prediction_log().entries
    assert [entry["name"] for entry in entries] == ["a", "b"]
    assert [entry["within"] for entry in entries] == [False, True]


@pytest.mark.parametrize("damage", [b'{"name": "cut', b"\xff\xfe\n", b"[1, 2]\n", b'{"name": "x", "guess": "7"}\n', b"null\n"])
def test_damaged_lines_stay_and_are_reported(log, capsys, damage):
    views.predict("a", 1, 2)
    with log.open("ab") as file:
        file.write(damage)
    before = log.read_bytes()
    views.predict("b", 2, 2)
    assert log.read_bytes().startswith(before)
    kept = views.prediction_log()
    assert [entry["name"] for entry in kept.entries] == ["a", "b"]
    assert kept.damaged == [2]
    assert "line 2" in repr(kept) and "line 2" in kept._repr_html_()


def test_an_unwritable_log_does_not_stop_the_lesson(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("MHA_TO_MLA_PREDICTIONS", str(tmp_path / "no such folder" / "log"))
    assert "could not be kept" in said(capsys, "x", 1, 2)


def test_the_table_escapes_what_the_reader_or_author_wrote(log, capsys):
    views.predict("x", 1, 2, question="K < V & <script>", unit="<b>")
    shown = views.prediction_log()._repr_html_()
    assert "<script>" not in shown and "&lt;script&gt;" in shown and "<b>" not in shown


def test_an_empty_log_says_how_to_begin(log):
    assert "No predictions yet" in repr(views.prediction_log())
    assert "<table" not in views.prediction_log()._repr_html_()


def test_lines_are_json_of_their_own(log, capsys):
    views.predict("µ", 1, 2)
    assert json.loads(log.read_text().splitlines()[0])["name"] == "µ"
