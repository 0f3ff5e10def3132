"""The primers' labs: words without Python, a button that works without a GPU, and one that works with it."""

import re

import pytest
import torch

import kernels
from course import measure, views
from course.views import labs, labs_primers
from tests.course.views.widgets import controls


@pytest.mark.parametrize("name", ["reads_lab", "copy_lab"])
def test_html_says_what_it_does_and_is_the_same_twice(name, without_recording):
    page = getattr(views, name)().html()
    assert page == getattr(views, name)().html()
    assert "make lab" in page and re.search(r'<img alt="[^"]{30,}"', page) and "Nothing is recorded" in page


def test_recorded_reads_are_drawn_and_labelled(with_recording):
    assert with_recording.label in views.reads_lab().picture.caption


@pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU the button times it")
def test_without_a_gpu_reads_are_timed_on_the_cpu(without_recording, monkeypatch):
    monkeypatch.setattr(labs_primers, "CPU_SIZES", (2**14, 2**16, 2**18, 2**20))
    monkeypatch.setattr(labs_primers, "CPU_ROTATED", 2**21)
    times = iter(range(1, 100))
    monkeypatch.setattr(
        labs_primers.timing, "measure", lambda samples, s: [measure.Timing(1e-6 * next(times), 0, 1, 7, "clock")]
    )
    lab = views.reads_lab()
    (screen,), (button,) = controls(lab.widget, labs.widgets.Image), controls(lab.widget, labs.widgets.Button)
    before = screen.value
    button.click()
    (status,) = controls(lab.widget, labs.widgets.HTML)
    assert "From memory:" in status.value and "CPU" in status.value and screen.value != before
    assert not button.disabled


@pytest.mark.skipif(kernels.MODE != "interpreter", reason="requests are counted in the interpreter")
def test_without_a_gpu_the_copy_is_counted(without_recording):
    lab = views.copy_lab()
    for box in controls(lab.widget, labs.widgets.Dropdown):
        if box.description == "stride":
            box.value = 8
    (button,) = controls(lab.widget, labs.widgets.Button)
    button.click()
    (status,) = controls(lab.widget, labs.widgets.HTML)
    assert "4 programs, 1,000 elements requested, 24 lanes masked" in status.value
    assert "31.25 KiB fetched in sectors for 3.906 KiB used" in status.value


@pytest.mark.skipif(kernels.MODE != "interpreter", reason="stands in for a GPU with the interpreter")
@pytest.mark.parametrize("name", ["reads_lab", "copy_lab"])
def test_with_a_gpu_they_measure(name, with_recording, monkeypatch):
    """The GPU is played by made-up times."""

    def read(n_bytes, machine, *, warm=False):
        return {"bytes": n_bytes, "median_s": 2e-6 + n_bytes / (8e12 if warm else 4e12)}

    def limit(one, machine):
        flops = 10**12 if "matmul" in one.operation else 0
        return {"bytes": 2 * one.n_bytes, "flops": flops, "median_s": 2e-6 + one.n_bytes / 2e12}

    monkeypatch.setattr(labs_primers, "_place", lambda: "Tesla T4")
    monkeypatch.setattr(labs, "_place", lambda: "Tesla T4")
    monkeypatch.setattr(labs_primers.record, "this_machine", lambda: object())
    monkeypatch.setattr(labs_primers.record, "read_rate", read)
    monkeypatch.setattr(labs_primers.record, "limit_rate", limit)
    lab = getattr(views, name)()
    (screen,), (button,) = controls(lab.widget, labs.widgets.Image), controls(lab.widget, labs.widgets.Button)
    before = screen.value
    button.click()
    (status,) = controls(lab.widget, labs.widgets.HTML)
    assert "TB/s" in status.value and screen.value != before
    assert ("ridge is" in status.value) == (name == "reads_lab")
