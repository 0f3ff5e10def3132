"""The lab of splits: words without Python, counting without a GPU, and a measured sweep with one."""

import base64
import json
import re

import pytest
import torch

import kernels
from course import measure, views
from course.views import labs, labs_splits
from tests.course.views.widgets import controls


def test_html_says_what_it_does_and_is_the_same_twice(without_recording):
    page = views.split_lab().html()
    assert page.startswith('<div class="lab" id="lab-split">') and "make lab" in page and "<script" not in page
    assert page == views.split_lab().html()


def test_the_ends_of_waves_are_tried():
    assert labs_splits.splits_to_try(8, 132) == [1, 2, 4, 8, 16, 17, 32, 33, 34, 64, 128]
    assert labs_splits.splits_to_try(512, 132) == [1, 2, 4, 8, 16, 32, 64, 128]


@pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU the button measures")
@pytest.mark.skipif(kernels.MODE != "interpreter", reason="requests are counted in the interpreter")
def test_without_a_gpu_it_counts(without_recording):
    lab = views.split_lab()
    (button,) = controls(lab.widget, labs_splits.widgets.Button)
    status = controls(lab.widget, labs_splits.widgets.HTML)[0]
    assert labs_splits.NO_GPU in status.value
    button.click()
    cells = [re.findall(r"<td>([\d,]+)</td>", line) for line in status.value.split("<tr>")[2:]]
    elements = 2 * 512 * 2 * 16
    assert [row[2:4] for row in cells] == [[f"{elements:,}"] * 2] * 4  # a key is requested once, however it is cut
    assert [row[1] for row in cells] == ["2", "12", "16", "24"]  # 2 programs a split, and a merge for each of 8 rows
    assert [row[4] for row in cells] == ["0", "272", "544", "1,088"]


@pytest.mark.skipif(kernels.MODE != "interpreter", reason="stands in for a GPU with the interpreter")
def test_with_a_gpu_it_measures_draws_and_offers_the_run(with_recording, monkeypatch):
    """The GPU is played by the CPU: real inputs and checks, made-up times."""
    provenance = with_recording.provenance | {"gpu": "Tesla T4"}
    timings = lambda samples, seconds: [measure.Timing(1e-3, 9e-4, 2e-3, 7, "events") for _ in samples]  # noqa: E731
    machine = labs_splits.record.Machine(torch.device("cpu"), provenance, prepare=lambda calls, *_: calls, measure=timings)
    monkeypatch.setattr(labs, "_place", lambda: "Tesla T4")
    monkeypatch.setattr(labs_splits, "splits_to_try", lambda *_: [1, 2])
    monkeypatch.setattr(labs_splits.record, "this_machine", lambda: machine)
    monkeypatch.setattr("course.measure.bench.copies_beyond_cache", lambda *sizes: 1)
    lab = views.split_lab()
    (screen,), (button,) = controls(lab.widget, labs_splits.widgets.Image), controls(lab.widget, labs_splits.widgets.Button)
    menus = {box.description: box for box in controls(lab.widget, labs_splits.widgets.Dropdown)}
    menus["tokens"].value, menus["KV heads"].value = 2048, 1  # the fewest programs
    before = screen.value
    button.click()
    status, saved = controls(lab.widget, labs_splits.widgets.HTML)
    assert "B1 32/1 L2048: fastest with" in status.value
    assert screen.value != before and not button.disabled
    run = json.loads(base64.b64decode(re.search(r"base64,([^']+)'", saved.value)[1]))
    assert [row["num_splits"] for row in run["rows"]] == [1, 2]
    button.click()
    assert len(json.loads(base64.b64decode(re.search(r"base64,([^']+)'", saved.value)[1]))["rows"]) == 2
