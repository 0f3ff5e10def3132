"""Labs: html that needs no Python and does not change, buttons that work without a GPU."""

import base64
import json
import re

import pytest
import torch

import kernels
from course import measure, views
from course.views import labs
from tests.course.views.widgets import controls


@pytest.fixture(params=["decode_lab", "cache_lab"])
def lab(request, without_recording):
    return getattr(views, request.param)()


def test_html_says_what_it_does_and_how_to_run_it(lab):
    bundle = lab._repr_mimebundle_()
    assert set(bundle) == {labs.WIDGET_VIEW, "text/html", "text/plain"}
    page = bundle["text/html"]
    assert page.startswith(f'<div class="lab" id="lab-{lab.name}">') and "make lab" in page
    assert re.search(r'<img alt="[^"]{30,}"', page) and "<script" not in page
    assert lab.widget.model_id not in page


def test_html_is_the_same_twice(without_recording):
    assert views.cache_lab().html() == views.cache_lab().html()
    assert views.decode_lab().html() == views.decode_lab().html()


@pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU the button measures")
@pytest.mark.skipif(kernels.MODE != "interpreter", reason="requests are counted in the interpreter")
def test_without_a_gpu_the_decode_lab_counts(without_recording):
    lab = views.decode_lab()
    status = next(box for box in controls(lab.widget, labs.widgets.HTML) if box.value)
    assert labs.NO_GPU in status.value
    heads = next(box for box in controls(lab.widget, labs.widgets.Dropdown) if box.description == "heads")
    heads.value = (32, 8)
    (button,) = controls(lab.widget, labs.widgets.Button)
    button.click()
    context_len, head_dim = labs.COUNTED_SHAPE.values()
    distinct = 2 * 8 * context_len * head_dim
    assert f"{4 * distinct:,}" in status.value and status.value.count(f"{distinct:,}") >= 3
    assert not button.disabled


@pytest.mark.skipif(kernels.MODE != "interpreter", reason="stands in for a GPU with the interpreter")
def test_with_a_gpu_the_decode_lab_measures_draws_and_offers_the_run(with_recording, monkeypatch):
    """The GPU is played by the CPU: real inputs and checks, made-up times."""
    provenance = with_recording.provenance | {"gpu": "Tesla T4"}
    timings = lambda samples, seconds: [measure.Timing(1e-3, 9e-4, 2e-3, 7, "events") for _ in samples]  # noqa: E731
    machine = labs.record.Machine(torch.device("cpu"), provenance, prepare=lambda calls, *how: calls, measure=timings)
    monkeypatch.setattr(labs, "_place", lambda: "Tesla T4")
    monkeypatch.setattr(labs.record, "this_machine", lambda: machine)
    monkeypatch.setattr(labs.plans, "peers", lambda shape: [])
    monkeypatch.setattr("course.measure.bench.copies_beyond_cache", lambda *sizes: 1)
    lab = views.decode_lab()
    (screen,), (button,) = controls(lab.widget, labs.widgets.Image), controls(lab.widget, labs.widgets.Button)
    assert button.description == "measure on this GPU"
    next(box for box in controls(lab.widget, labs.widgets.Dropdown) if box.description == "tokens").value = 512
    before = screen.value
    button.click()
    status, saved = controls(lab.widget, labs.widgets.HTML)
    assert "B1 32/8 L512: decode 1000.0" in status.value
    assert screen.value != before
    run = json.loads(base64.b64decode(re.search(r"base64,([^']+)'", saved.value)[1]))
    assert run["provenance"]["gpu"] == "Tesla T4" and run["rows"][0]["median_s"] == 1e-3


def test_choosing_another_shape_redraws(with_recording):
    lab = views.decode_lab()
    (screen,) = controls(lab.widget, labs.widgets.Image)
    before = screen.value
    heads = next(box for box in controls(lab.widget, labs.widgets.Dropdown) if box.description == "heads")
    heads.value = (32, 1)
    assert screen.value != before


def test_a_failing_action_is_told_and_the_button_comes_back():
    def fail():
        raise RuntimeError("<no> memory")

    status = labs.widgets.HTML()
    button = labs._button("go", fail, status)
    button.click()
    assert "RuntimeError" in status.value and "&lt;no&gt;" in status.value and not button.disabled


def test_both_steps_of_the_cache_lab_agree():
    layer = labs.OneLayer(64, torch.device("cpu"))
    for context_len in (1, 2, 17, 64):
        torch.testing.assert_close(layer.recomputed(context_len), layer.cached(context_len))


def test_the_cache_is_written_in_place_and_only_the_newest_row_is_projected():
    layer = labs.OneLayer(32, torch.device("cpu"))
    address = layer.k.data_ptr()
    layer.k.zero_()
    layer.cached(20)
    assert layer.k.data_ptr() == address
    assert layer.k.abs().sum(1).nonzero().flatten().tolist() == [19]


def test_the_cache_lab_runs(without_recording, monkeypatch):
    monkeypatch.setattr(labs, "LENGTHS", (8, 16, 32, 64))
    monkeypatch.setattr(
        labs.timing, "measure", lambda samples, seconds: [measure.Timing(2e-3, 1e-3, 3e-3, 7, "clock") for _ in samples]
    )
    lab = labs.cache_lab()
    (screen,), (button,) = controls(lab.widget, labs.widgets.Image), controls(lab.widget, labs.widgets.Button)
    before = screen.value
    button.click()
    status = controls(lab.widget, labs.widgets.HTML)[0].value
    assert "Same output" in status and screen.value != before
