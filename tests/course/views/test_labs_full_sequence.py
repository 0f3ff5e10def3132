"""Labs of whole sequences: html without Python, counts without a GPU, measured marks with one."""

import base64
import json
import re

import pytest
import torch

import kernels
from course import measure, views
from course.views import labs, labs_full_sequence
from tests.course.views.widgets import controls

LABS = ["forward_lab", "backward_lab"]


@pytest.mark.parametrize("name", LABS)
def test_html_says_what_it_does_and_is_the_same_twice(name, without_recording):
    page = getattr(views, name)().html()
    assert re.search(r'<img alt="[^"]{30,}"', page) and "make lab" in page and "<script" not in page
    assert page == getattr(views, name)().html()


@pytest.mark.skipif(kernels.MODE != "interpreter" or torch.cuda.is_available(), reason="counts in the interpreter")
def test_without_a_gpu_the_forward_lab_counts_what_costs_computes(without_recording):
    lab = views.forward_lab()
    (button,) = controls(lab.widget, labs.widgets.Button)
    next(b for b in controls(lab.widget, labs.widgets.Dropdown) if b.description == "heads").value = (32, 1, 128)
    button.click()
    said = next(box.value for box in controls(lab.widget, labs.widgets.HTML) if "counted" in box.value)
    for name, counted, computed in re.findall(r"left'>([^<]+)</td><td>([\d,]+)</td><td>([\d,]+)<", said):
        assert counted == computed, name


@pytest.mark.skipif(kernels.MODE != "interpreter", reason="counts in the interpreter")
def test_the_backward_count_has_a_program_for_each_head_that_owns_keys():
    said = labs_full_sequence.counted("backward", 4, 2)
    rows = re.findall(r"left'>([^<]+)</td><td>([\d,]+)</td><td>([\d,]+)<", said)
    (_, summed, few), (_, partial, many) = rows
    assert int(partial.replace(",", "")) == 2 * int(summed.replace(",", ""))
    assert int(many.replace(",", "")) == 2 * int(few.replace(",", "")) == 2 * 2 * 128 * 32 * 4


@pytest.mark.skipif(kernels.MODE != "interpreter", reason="stands in for a GPU with the interpreter")
def test_with_a_gpu_the_lab_measures_draws_and_offers_the_run(with_recording, monkeypatch):
    """The GPU is played by the CPU: real inputs and checks, made-up times."""
    provenance = with_recording.provenance | {"gpu": "Tesla T4"}
    timings = lambda samples, seconds, *heat: [measure.Timing(1e-3, 9e-4, 2e-3, 7, "events") for _ in samples]  # noqa: E731
    machine = labs.record.Machine(torch.device("cpu"), provenance, prepare=lambda calls, *how: calls, measure=timings)
    monkeypatch.setattr(labs, "_place", lambda: "Tesla T4")
    monkeypatch.setattr(labs_full_sequence.record, "this_machine", lambda: machine)
    monkeypatch.setattr(labs_full_sequence, "points", lambda shape: [labs_full_sequence.plans.ours(shape)])
    monkeypatch.setattr(labs_full_sequence, "CONTEXTS", (16, 2048))
    monkeypatch.setattr(labs_full_sequence, "TOKENS", 16)
    monkeypatch.setattr(labs_full_sequence, "HEADS", ((32, 32, 128), (2, 1, 128)))
    monkeypatch.setattr("course.measure.bench.copies_beyond_cache", lambda *sizes: 1)
    lab = views.forward_lab()
    next(b for b in controls(lab.widget, labs.widgets.Dropdown) if b.description == "tokens").value = 16
    (screen,), (button,) = controls(lab.widget, labs.widgets.Image), controls(lab.widget, labs.widgets.Button)
    before = screen.value
    button.click()
    status, saved = controls(lab.widget, labs.widgets.HTML)
    assert "attention 1000.0" in status.value, status.value
    assert screen.value != before
    run = json.loads(base64.b64decode(re.search(r"base64,([^']+)'", saved.value)[1]))
    assert run["rows"][0]["median_s"] == 1e-3


def test_what_is_measured_for_shared_heads_includes_the_partials():
    shape = labs_full_sequence.Shape(8, 32, 8, 2048, q_len=2048, direction="backward")
    assert [str(point) for point in labs_full_sequence.points(shape)] == [
        "attention", "sdpa/FLASH", "sdpa/CUDNN", "sdpa/EFFICIENT", "partials_then_sum",
    ]  # fmt: skip


@pytest.mark.parametrize(("present", "forms"), [(False, ["attention"]), (True, ["attention", "portable_attention"])])
def test_on_hopper_both_forms_are_measured(monkeypatch, present, forms):
    monkeypatch.setattr(labs_full_sequence.kernels.hopper, "present", lambda: present)
    points = labs_full_sequence.points(labs_full_sequence.Shape(8, 32, 8, 2048, q_len=2048))
    assert [str(point) for point in points if point.operation.endswith("attention")] == forms
