"""The prediction lab: choosing other calls gives other constants; without a GPU nothing is called measured."""

import pytest
import torch

from course import views
from course.views import labs, labs_costs
from tests.course.views.widgets import controls


def test_without_a_recording_it_draws_the_floor(without_recording):
    lab = views.prediction_lab()
    assert "Nothing is recorded" in lab.picture.caption and lab.html() == views.prediction_lab().html()
    assert 'id="lab-prediction"' in lab.html()


def test_the_calls_chosen_make_the_constants(with_recording, recorded):
    lab = views.prediction_lab()
    assert "6 µs + bytes ÷ 4.6 TB/s" in lab.picture.caption
    small, large = controls(lab.widget, labs.widgets.Dropdown)
    (screen,) = controls(lab.widget, labs.widgets.Image)
    before = screen.value
    large.value = 4  # of another size than the first
    assert screen.value != before
    large.value = small.value
    status = controls(lab.widget, labs.widgets.HTML)[0]
    assert "no constants" in status.value


@pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU the button measures")
def test_without_a_gpu_the_button_says_so(with_recording):
    lab = views.prediction_lab()
    (button,) = controls(lab.widget, labs.widgets.Button)
    button.click()
    assert labs.NO_GPU in controls(lab.widget, labs.widgets.HTML)[0].value and not button.disabled


def test_with_a_gpu_it_fits_what_it_measures(with_recording, recorded, monkeypatch):
    """The GPU is played: made-up times of real shapes."""
    monkeypatch.setattr(labs_costs, "_place", lambda: "NVIDIA H200")
    monkeypatch.setattr(labs_costs, "_gpu_here", lambda: labs_costs.costs.gpu("H200 SXM"))
    monkeypatch.setattr(labs_costs.record, "this_machine", lambda: None)
    monkeypatch.setattr(labs_costs.record, "usual_dtype", lambda: "bfloat16")

    def measured(points, machine):
        for point in points:
            yield recorded.row(batch=point.shape.batch, context_len=point.shape.context_len)

    monkeypatch.setattr(labs_costs.record, "measure_shape", measured)
    lab = views.prediction_lab()
    (button,) = controls(lab.widget, labs.widgets.Button)
    button.click()
    assert "Your constants: 6 µs and 4.6 TB/s" in controls(lab.widget, labs.widgets.HTML)[0].value
