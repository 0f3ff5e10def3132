"""Labs of latent attention: both forms agree, buttons work without a GPU, the html needs no Python."""

import re

import pytest
import torch

import kernels
from course import costs, measure, views
from course.views import labs, labs_mla
from tests.course.views.widgets import controls

SMALL = costs.LatentAttention(d_model=32, n_heads=3, nope_dim=8, rope_dim=4, head_dim_v=6, latent_dim=16)
MADE = ["expanded_step_lab", "crossover_lab", "mla_lab"]


@pytest.fixture(params=MADE)
def lab(request, without_recording):
    return getattr(views, request.param)()


def test_html_says_what_it_does_and_how_to_run_it(lab):
    page = lab._repr_mimebundle_()["text/html"]
    assert page.startswith(f'<div class="lab" id="lab-{lab.name}">') and "make lab" in page
    assert re.search(r'<img alt="[^"]{30,}"', page) and lab.widget.model_id not in page


def test_html_is_the_same_twice(without_recording):
    for name in MADE:
        assert getattr(views, name)().html() == getattr(views, name)().html()


def test_the_three_forms_agree():
    two = labs_mla.TwoForms(5, 20, torch.device("cpu"), SMALL)
    torch.testing.assert_close(two.absorbed(), two.expanded(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(two.kept(), two.expanded())


@pytest.mark.parametrize("name", MADE[:2])
def test_the_timed_labs_run(name, without_recording, monkeypatch):
    monkeypatch.setattr(labs_mla, "LAYER", SMALL)
    monkeypatch.setattr(labs_mla.TwoForms.__init__, "__defaults__", (SMALL,))
    monkeypatch.setattr(labs_mla, "KEYS", 32)
    timing = lambda samples, seconds: [measure.Timing(2e-3 + i * 1e-3, 1e-3, 5e-3, 7, "clock") for i in range(len(samples))]  # noqa: E731
    monkeypatch.setattr(labs_mla.timing, "measure", timing)
    monkeypatch.setattr(labs_mla, "CONTEXTS", (8, 16, 2048))
    monkeypatch.setattr(labs_mla, "Q_LENS", (1, 2, 3, 4, 512))
    lab = getattr(views, name)()
    (screen,), (button,) = controls(lab.widget, labs.widgets.Image), controls(lab.widget, labs.widgets.Button)
    before = screen.value
    button.click()
    said = controls(lab.widget, labs.widgets.HTML)[0].value
    assert "live on" in said.lower() and screen.value != before


@pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU the button measures")
@pytest.mark.skipif(kernels.MODE != "interpreter", reason="requests are counted in the interpreter")
def test_without_a_gpu_the_latent_is_counted_once(without_recording):
    lab = views.mla_lab()
    (button,) = controls(lab.widget, labs.widgets.Button)
    button.click()
    said = controls(lab.widget, labs.widgets.HTML)[0].value
    latents, rotary = labs_mla.COUNTED_TOKENS * 512, labs_mla.COUNTED_TOKENS * 64
    assert said.count(f"<td>{latents:,}</td>") == 2 and said.count(f"<td>{rotary:,}</td>") == 2


def test_another_work_redraws(with_recording):
    lab = views.mla_lab()
    (screen,) = controls(lab.widget, labs.widgets.Image)
    before = screen.value
    work = next(box for box in controls(lab.widget, labs.widgets.Dropdown) if "batch" in box.description)
    work.value = labs_mla.WORK["1 × 131,072"]
    assert screen.value != before
