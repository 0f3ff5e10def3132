"""The lab of both forms: html without Python, a sentence without a GPU, live marks with one."""

import re

import pytest
import torch

import kernels
from course import copies, measure, views
from course.views import labs, labs_hopper
from tests.course.views.widgets import controls


def test_html_says_what_it_does_and_is_the_same_twice(without_recording):
    page = views.hopper_lab().html()
    assert re.search(r'<img alt="[^"]{30,}"', page) and "make lab" in page and "<script" not in page
    assert page == views.hopper_lab().html()


@pytest.mark.skipif(torch.cuda.is_available(), reason="for a machine without a GPU")
@pytest.mark.parametrize("work", [*labs_hopper.WHOLE, *labs_hopper.MLA])
def test_without_a_gpu_it_says_what_it_would_do(work, with_recording):
    lab = views.hopper_lab()
    next(b for b in controls(lab.widget, labs.widgets.Dropdown) if b.description == "work").value = work
    (button,) = controls(lab.widget, labs.widgets.Button)
    button.click()
    said = " ".join(box.value for box in controls(lab.widget, labs.widgets.HTML))
    assert f"{labs_hopper.shape_of(work, 4096)}, " in said and "TFLOP a call" in said


def test_both_forms_are_measured_on_a_hopper_gpu_only(monkeypatch):
    shape = labs_hopper.shape_of("MLA decode, 128 heads", 8192)
    assert [point.operation for point in labs_hopper.points(shape)][0] == "mla_decode"
    for present in (True, False):
        monkeypatch.setattr(kernels.hopper, "present", lambda present=present: present)
        names = [point.operation for point in labs_hopper.points(shape)]
        assert names == ["mla_decode", *(["portable_mla_decode"] if present else [])]


@pytest.mark.skipif(kernels.MODE != "interpreter", reason="stands in for a GPU with the interpreter")
def test_with_a_gpu_the_lab_measures_and_draws(with_recording, monkeypatch):
    """The GPU is played by the CPU: real inputs and checks, made-up times."""
    provenance = with_recording.provenance | {"gpu": "Tesla T4"}
    timings = lambda samples, seconds, *heat: [measure.Timing(1e-3, 9e-4, 2e-3, 7, "events") for _ in samples]  # noqa: E731
    machine = labs.record.Machine(torch.device("cpu"), provenance, prepare=lambda calls, *how: calls, measure=timings)
    monkeypatch.setattr(labs, "_place", lambda: "Tesla T4")
    monkeypatch.setattr(labs_hopper.record, "this_machine", lambda: machine)
    monkeypatch.setattr(labs_hopper, "TOKENS", 16)
    monkeypatch.setattr(labs_hopper, "CONTEXTS", (16, 4096))
    monkeypatch.setattr(labs_hopper, "WHOLE", labs_hopper.WHOLE | {"forward, GQA 32/8 × 128": (2, 1, 128, "forward")})
    monkeypatch.setattr("course.measure.bench.copies_beyond_cache", lambda *sizes: 1)
    lab = views.hopper_lab()
    next(b for b in controls(lab.widget, labs.widgets.Dropdown) if b.description == "tokens").value = 16
    (screen,), (button,) = controls(lab.widget, labs.widgets.Image), controls(lab.widget, labs.widgets.Button)
    before = screen.value
    button.click()
    said = " ".join(box.value for box in controls(lab.widget, labs.widgets.HTML))
    assert "did not work" not in said and "attention" in said and screen.value != before
    assert "hopper-lab.json" in said


@pytest.mark.skipif(torch.cuda.is_available(), reason="for a machine without a GPU")
def test_the_race_is_for_a_hopper_gpu(capsys):
    views.early_release(runs=3)
    assert capsys.readouterr().out == "no Hopper GPU here: on one, three kernels run 3 times each on the same input\n"


@pytest.mark.parametrize("name", labs_hopper.EARLY)
def test_the_race_moves_one_line_and_drops_none(name):
    racing = copies.edited(labs_hopper.RACING, labs_hopper.EARLY[name], name)
    shipped = copies.shipped_text(labs_hopper.RACING)
    assert racing != shipped and sorted(racing.splitlines()) == sorted(shipped.splitlines())
