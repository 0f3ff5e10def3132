"""Page sizes: the figure, the explorer and the lab of chapter 6, with a synthetic recording and without one."""

import base64
import json
import re
from dataclasses import asdict

import pytest
import torch

import kernels
from course import measure, views
from course.measure.shapes import Shape
from course.views import labs, labs_paging, measured_pages
from tests.course.views.widgets import controls

RATIO = {size: 1 + 0.32 / size**0.5 for size in (1, 2, 4, 8, 16, 32, 48, 64, 128, 256)}


def row(shape: Shape, operation: str, seconds: float, backend=None) -> dict:
    made = asdict(shape) | {"operation": operation, "backend": backend, "splits": None if backend else "automatic"}
    return made | {"status": "ok", "median_s": seconds, "p20_s": seconds * 0.99, "p80_s": seconds * 1.02}


@pytest.fixture
def paged(recorded, monkeypatch):
    """A recording whose paged kernel takes RATIO times the contiguous one, found where recordings are looked for."""
    flat, shape = 120e-6, Shape(16, 32, 8, 8192)
    rows = [row(shape, "decode", flat)]
    for size, ratio in RATIO.items():
        pages = Shape(16, 32, 8, 8192, page_size=size)
        rows.append(row(pages, "paged_decode", flat * ratio))
        rows.append(row(pages, "paged_decode", flat * 2) | {"splits": "work list"})
        rows.append(row(pages, "flashinfer", flat * 1.2 * ratio, "fa2"))
    made = measure.Recording("paged", recorded.recording().provenance, recorded.recording().reads, rows)
    monkeypatch.setattr(measure, "recordings", lambda gpu=None, kind="decode", **more: [made] if kind == "paged" else [])
    return made


def test_the_sweep_is_found(paged):
    found = measured_pages.page_sweep(paged.rows)
    assert set(found["this kernel"]) == set(found["FlashInfer"]) == set(RATIO)
    assert found["this kernel"][16]["median_s"] == pytest.approx(120e-6 * RATIO[16])
    assert found["contiguous"][0]["median_s"] == 120e-6
    assert measured_pages.page_sweep(paged.rows, batch=1) == {"this kernel": {}, "FlashInfer": {}, "contiguous": {}}


def test_the_figure_says_the_times(paged):
    made = views.page_size_figure(paged)
    assert "this kernel: 158.4 µs at pages of 1 to 122.4 µs at 256" in made.alt
    assert "The contiguous cache takes 120 µs." in made.alt and paged.label in made.caption
    assert "earlier version" in made.caption


def test_without_a_recording_only_arithmetic_is_drawn(without_recording):
    made = views.page_size_figure(None)
    assert "Nothing is recorded" in made.caption and "floor is 111.8 µs" in made.alt
    with pytest.raises(ValueError, match="page_size"):
        views.page_size_figure(None, page_size=3)


def test_live_rows_are_told(paged):
    live = [row(Shape(16, 32, 8, 8192, page_size=64), "paged_decode", 5e-4), row(Shape(16, 32, 8, 8192), "decode", 4e-4)]
    made = views.page_size_figure(paged, live=live, live_label="live here")
    assert "live here" in made.caption and "this kernel: live: 500 µs" in made.alt
    assert "Live, the contiguous cache takes 400 µs." in made.alt


def test_the_explorer_shows_the_recorded_points(paged):
    made = views.page_size()
    rows = made.spec()["datasets"]["recorded"]
    assert {r["page_size"]: r["share"] for r in rows} == pytest.approx({n: 1 / x for n, x in RATIO.items() if n != 48})
    assert f"{RATIO[16]:.2f} × the time over a contiguous cache" in made.sentence
    assert made.sentence_of(**made.settings | {"log2_page": 8}).count("1.02 × the time") == 1
    assert paged.label in made.sentence


def test_the_lab_s_html_is_the_same_twice(paged):
    one, other = views.paging_lab(), views.paging_lab()
    assert one.html() == other.html() and "make lab" in one.html()
    assert re.search(r'<img alt="[^"]{30,}"', one.html()) and "<script" not in one.html()


@pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU the button measures")
@pytest.mark.skipif(kernels.MODE != "interpreter", reason="requests are counted in the interpreter")
def test_without_a_gpu_the_lab_counts(without_recording):
    lab = views.paging_lab()
    (button,) = controls(lab.widget, labs_paging.widgets.Button)
    status = controls(lab.widget, labs_paging.widgets.HTML)[0]
    assert "no CUDA GPU here" in status.value
    button.click()
    cells = [re.findall(r"<td>([\d,]+)</td>", line) for line in status.value.split("<tr>") if "<td>" in line]
    assert [line[0] for line in cells] == ["8", "16", "32", "64"]
    assert {line[1] for line in cells} == {f"{2 * 128 * 8 * 16:,}"}
    # Eight KV heads: a look-up for each token where a tile spans pages, else one for each tile of 32.
    assert [line[2] for line in cells] == ["1,024", "1,024", "32", "32"]
    assert [line[3] for line in cells] == ["16", "8", "4", "2"]


@pytest.mark.skipif(kernels.MODE != "interpreter", reason="stands in for a GPU with the interpreter")
def test_with_a_gpu_the_lab_measures_and_offers_the_run(paged, recorded, monkeypatch):
    """The GPU is played by the CPU: real inputs and checks, made-up times."""
    provenance = recorded.recording().provenance | {"gpu": "Tesla T4"}
    timings = lambda samples, seconds: [measure.Timing(1e-3, 9e-4, 2e-3, 7, "events") for _ in samples]  # noqa: E731
    machine = labs_paging.record.Machine(torch.device("cpu"), provenance, prepare=lambda calls, *how: calls, measure=timings)
    monkeypatch.setattr(labs, "_place", lambda: "Tesla T4")
    monkeypatch.setattr(labs_paging.record, "this_machine", lambda: machine)
    monkeypatch.setattr(labs_paging, "MEASURED_SIZES", (None, 64))
    monkeypatch.setattr("course.measure.bench.copies_beyond_cache", lambda *sizes: 1)
    lab = views.paging_lab()
    for name, value in (("batch", 1), ("tokens", 2048), ("heads", (32, 1))):
        next(box for box in controls(lab.widget, labs_paging.widgets.Dropdown) if box.description == name).value = value
    (screen,), (button,) = controls(lab.widget, labs_paging.widgets.Image), controls(lab.widget, labs_paging.widgets.Button)
    before = screen.value
    button.click()
    status, saved = controls(lab.widget, labs_paging.widgets.HTML)
    assert "paged_decode/page 64 1000.0" in status.value and screen.value != before
    run = json.loads(base64.b64decode(re.search(r"base64,([^']+)'", saved.value)[1]))
    assert [r["page_size"] for r in run["rows"]] == [None, 64] and run["provenance"]["gpu"] == "Tesla T4"
