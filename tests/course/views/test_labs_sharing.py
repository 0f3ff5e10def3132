"""The lab of chapter 2: bytes by costs, times of forms whose answers are right."""

import base64
import re

import pytest
import torch

import kernels
from course import measure, views
from course.views import labs, labs_sharing
from tests.course.views.widgets import controls

needs_cpu = pytest.mark.skipif(torch.cuda.is_available(), reason="times torch code on the CPU")


def test_html_is_the_same_twice_and_needs_no_python():
    page = views.sharing_lab().html()
    assert page == views.sharing_lab().html()
    assert page.startswith('<div class="lab" id="lab-sharing">') and "<script" not in page
    assert "between 2.03 and 2.50 times" in page
    assert base64.b64decode(re.search(r"base64,([^\"]+)", page)[1])[:4] == b"\x89PNG"


@needs_cpu
def test_on_a_cpu_the_button_times_torch_code_and_draws(monkeypatch):
    monkeypatch.setattr(labs_sharing, "SECONDS", 1e-4)
    monkeypatch.setattr(labs_sharing, "KV_HEADS", (32, 8, 1))
    lab = views.sharing_lab()
    next(iter(controls(lab.widget, labs.widgets.Dropdown))).value = 256
    (screen,), (status,) = controls(lab.widget, labs.widgets.Image), controls(lab.widget, labs.widgets.HTML)
    before = screen.value
    controls(lab.widget, labs.widgets.Button)[0].click()
    assert "CPU, 256 tokens: matmul" in status.value
    assert status.value.count("with 8") == 4 and "grouped decode kernel" not in status.value
    assert screen.value != before


@needs_cpu
def test_a_wrong_form_carries_no_time(monkeypatch):
    monkeypatch.setattr(labs_sharing, "SECONDS", 1e-4)
    monkeypatch.setitem(measure.contenders.COPIES, "repeat_interleave", lambda x, group_size: x.repeat(1, group_size, 1, 1))
    times = labs_sharing.form_times(8, 256)
    assert "matmul, KV heads repeated" not in times and len(times) == 3


def test_a_gpu_s_rows_are_told_apart(monkeypatch):
    """The GPU is played: rows come back in another order, and one form is refused."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(labs_sharing.record, "usual_dtype", lambda: "bfloat16")
    monkeypatch.setattr(labs_sharing.record, "this_machine", lambda: None)
    monkeypatch.setattr(kernels, "MODE", "compiled")

    def rows(points, machine):
        for n, point in reversed(list(enumerate(points, 1))):
            status = "unsupported" if point.operation == "sdpa" else "ok"
            yield {"operation": point.operation, "backend": point.backend, "status": status, "median_s": n * 1e-6}

    monkeypatch.setattr(labs_sharing.record, "measure_shape", rows)
    times = labs_sharing.form_times(8, 2048)
    assert times["matmul, heads as rows"] == pytest.approx(3e-6)
    assert times["grouped decode kernel"] == pytest.approx(5e-6)
    assert "SDPA FLASH, enable_gqa" not in times
    told = labs_sharing.ratio_figure({label: {32: 2e-6, 8: 1e-6} for label in times}, "made-up GPU")
    assert "0.5 to 1" in told.alt and "made-up GPU" in told.caption
