"""The steps of the kernel for Hopper: gains and losses are those of the rows, and what is not recorded is not claimed."""

import html
import re

import pytest

from course import copies, views
from course.measure import steps
from course.measure.shapes import Shape
from course.views import measured_steps
from course.views.measured_steps import ALL, CUDNN, MISSING, PLAIN, SHAPES


@pytest.fixture
def made(recorded):
    return recorded.steps_recording()


def test_gains_and_losses_are_those_of_the_rows(made):
    found = {each.step.name: each for each in measured_steps.effects(made, SHAPES[0])}
    assert list(found) == list(steps.NAMES)
    assert found["buffers"].rung == pytest.approx(420e12) and found["buffers"].gain == pytest.approx(20 / 400)
    assert found["overlap"].gain == pytest.approx(20 / 440) and found["pairs"].gain == pytest.approx(-10 / 480)
    assert [each.loss for each in found.values()] == pytest.approx([n / 100 for n in range(1, len(steps.NAMES) + 1)])
    # The last rung is the whole kernel, and the one before is the loss of the last step.
    last = found[steps.NAMES[-1]]
    assert last.rung == pytest.approx(600e12) and last.gain == pytest.approx(600e12 / last.without - 1)


def test_the_rates_of_a_shape(made):
    rates = measured_steps.rates(made, SHAPES[0])
    assert (rates[PLAIN], rates[ALL], rates[CUDNN]) == pytest.approx((300e12, 600e12, 550e12))
    assert rates.keys() == {PLAIN, ALL, CUDNN, *steps.VARIANTS}
    assert CUDNN not in measured_steps.rates(made, SHAPES[2]) and measured_steps.rates(None, SHAPES[0]) == {}


def test_the_figure_says_what_the_rows_say(made):
    drawn = views.steps_figure(made)
    assert made.label in drawn.caption and "earlier version of the kernels" in drawn.caption
    assert "plain Triton: 300 TFLOP/s." in drawn.alt and "two buffers each for K and V: 420 TFLOP/s." in drawn.alt
    assert "All but heads in sections: 552." in drawn.alt and "cuDNN: 550." in drawn.alt
    last = views.steps_figure(made, shape=SHAPES[2], name="steps-mla")
    assert "cuDNN" not in last.alt and last.name == "steps-mla" and "192/128" in last.caption


def test_a_rung_that_is_missing_is_named(made):
    made.rows[:] = [row for row in made.rows if row["backend"] != "up to overlap"]
    found = measured_steps.effects(made, SHAPES[0])
    assert found[2].gain is None and found[3].gain is None and found[2].loss is not None
    assert "Not recorded: + the softmax under the product before." in views.steps_figure(made).caption
    assert f"{MISSING} / −3%" in views.steps_table(made).rows[4][1]


def test_without_a_recording_nothing_is_claimed():
    drawn, table = views.steps_figure(None), views.steps_table(None)
    assert "No step is recorded yet" in drawn.caption and "recorded on" not in drawn.caption and "989" in drawn.alt
    assert {cell for row in table.rows for cell in row[1:]} == {MISSING}
    for words in (repr(table), table._repr_html_()):
        assert "No step is recorded yet" in words and "--only steps" in words


def test_the_table_has_a_row_for_each_step(made):
    table = views.steps_table(made)
    assert [row[0] for row in table.rows[2:-2]] == [step.title for step in steps.STEPS]
    assert table.rows[0][1:] == ("300 TFLOP/s (44%)",) * 3 and table.rows[-1][1:] == ("550 TFLOP/s (81%)",) * 2 + (MISSING,)
    assert "share of a large matrix product's speed" in table.source
    made.limits.clear()
    assert views.steps_table(made).rows[0][1] == "300 TFLOP/s" and "share" not in views.steps_table(made).source
    assert table.rows[2][1] == "+5% / −1%" and table.rows[6][1] == "−2% / −5%"
    assert made.label in repr(table) and made.label in table._repr_html_()


def test_another_shape_is_refused(made):
    with pytest.raises(ValueError, match="shape must be one of"):
        views.steps_figure(made, shape=Shape(1, 32, 8, 64, q_len=64))


@pytest.mark.parametrize("name", steps.NAMES)
def test_a_step_is_shown_line_by_line(name):
    shown = views.step_diff(name)
    page = shown._repr_html_()
    rows = re.findall(r'<span style="display:block;background.*?\n</span>', page, flags=re.S)
    told = [html.unescape(re.sub(r"<[^>]+>", "", row)) for row in rows]
    file = copies.shipped_text(steps.step(name).file).splitlines()
    marks = {"+": 0, "−": 0, " ": 0}
    for line in told:
        number, sign, code = line[:4], line[5], line[7:].rstrip("\n")
        marks[sign] += 1
        assert (sign == "−") == (number.strip() == "")
        if sign != "−":
            assert file[int(number) - 1] == code
    assert marks["+"] == len(re.findall(r"^\+(?!\+\+)", shown.diff, re.M)) and marks["+"] + marks["−"] > 0
    assert marks["−"] == page.count('aria-label="gone"') and shown.diff in repr(shown)
