"""Figures: words from the data, bytes from the drawing alone, and nothing that breaks without a recording."""

import base64
import io
import re

import matplotlib.pyplot as plt
import pytest
from PIL import Image

from course import costs, views
from course.measure.code import kernels_sha256
from course.views import figures, measured, style


def simple(**more):
    fig, ax = views.subplots(height=2)
    ax.plot([1, 2], [3, 4], **views.STYLES["recorded"])
    return views.figure(fig, **{"name": "simple", "caption": "A < B & C", "alt": 'a "quoted" <line>'} | more)


def test_a_figure_is_html_and_image_and_closed():
    made = simple()
    assert plt.get_fignums() == []
    bundle = made._repr_mimebundle_()
    assert set(bundle) == {"text/html", "image/png", "text/plain"}
    assert Image.open(io.BytesIO(base64.b64decode(bundle["image/png"]))).size == (1000, 400)
    page = bundle["text/html"]
    assert page.startswith("<figure") and bundle["image/png"] in page
    assert "A &lt; B &amp; C" in page and "<line>" not in page
    assert re.search(r'<img alt="[^"]+"', page) and "<figcaption" in page


def test_the_same_bytes_twice():
    assert simple().png == simple().png


@pytest.mark.parametrize("wrong", [{"caption": " "}, {"alt": ""}, {"name": "Not an id"}, {"name": "9"}])
def test_a_figure_without_words_or_id_is_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        simple(**wrong)
    plt.close("all")


def test_five_labels_differ_without_colour():
    looks = [tuple(str(look.get(key)) for key in ("linestyle", "marker", "markerfacecolor")) for look in style.STYLES.values()]
    assert list(style.STYLES) == ["computed", "counted", "recorded", "live", "quoted"]
    assert len(set(looks)) == 5


# --- measured against arithmetic


def test_caption_and_alt_come_from_the_recording(recorded):
    made = views.measured_against_arithmetic(recorded.recording(kernels_sha256=kernels_sha256()))
    for part in (
        "recorded on an NVIDIA H200",
        "driver 580.1",
        "torch 2.11.0",
        "Triton 3.6.0",
        "2026-11-29",
        "4.8 TB/s",
        "4.6 TB/s",
    ):
        assert part in made.caption
    assert "earlier version" not in made.caption
    floor = costs.floor(*_cost(131072), "H200 SXM").seconds
    seconds = recorded.row(context_len=131072)["median_s"]
    assert costs.format_seconds(seconds) in made.alt and costs.format_seconds(floor) in made.alt
    assert f"{seconds / floor:.2f}" in made.alt
    # The fastest backend, and no row whose splits were imposed.
    assert costs.format_seconds(seconds * 1.2) in made.alt
    assert costs.format_seconds(seconds * 9.0) not in made.alt and costs.format_seconds(seconds * 20.0) not in made.alt


def _cost(context_len):
    attention = costs.Attention.gqa(32, 8, 128)
    return costs.cache_bytes(attention, context_len), costs.decode_flops(attention, context_len)


def test_other_kernels_are_said_to_be_other(recorded):
    assert "earlier version" in views.measured_against_arithmetic(recorded.recording()).caption


def test_without_a_recording_only_what_is_computed_is_drawn():
    made = views.measured_against_arithmetic(None)
    assert "Nothing is recorded" in made.caption and "recorded on" not in made.caption
    assert costs.format_seconds(costs.floor(*_cost(131072), "H200 SXM").seconds) in made.alt


def test_one_operation_gives_a_colour_a_batch(recorded):
    made = views.measured_against_arithmetic(recorded.recording(), select={"operation": "decode", "n_kv_heads": 32})
    assert "batch 1, recorded" in made.alt and "batch 16, recorded" in made.alt
    assert "SDPA" not in made.alt


def test_batch_as_the_axis(recorded):
    made = views.measured_against_arithmetic(recorded.recording(), x="batch", series={"grouped": {}})
    assert "sequences in the batch from 1 to 16" in made.alt and "8,192 cached tokens" in made.caption


def test_what_is_missing_is_said(recorded):
    full = recorded.recording()
    for row in full.rows:
        if row["operation"] == "attention" and row["context_len"] == 131072:
            row.update(status="out of memory", median_s=None)
    assert "full-sequence kernel, one query row at 131,072 (out of memory)" in views.measured_against_arithmetic(full).caption


def test_live_points_are_measured_by_their_own_gpu(recorded):
    live = [recorded.row(dtype="float16", median_s=1e-3, p20_s=9e-4, p80_s=2e-3)]
    t4 = costs.gpu("T4")
    made = views.measured_against_arithmetic(recorded.recording(), live=live, live_label="live on a T4", live_gpu=t4)
    floor = costs.floor(*_cost(8192), t4, dtype="float16").seconds
    assert "live on a T4" in made.caption and f"{1e-3 / floor:.2f} to" in made.alt
    unknown = views.measured_against_arithmetic(recorded.recording(), live=live, live_label="live on something")
    assert "grouped decode kernel, live: 1 ms at 8,192 to 1 ms at 8,192." in unknown.alt


def test_a_prediction_is_told_with_its_constants(recorded):
    prediction = costs.fit([(r["cache_bytes"], r["median_s"]) for r in (recorded.row(), recorded.row(context_len=131072))])
    made = views.measured_against_arithmetic(recorded.recording(), prediction=prediction)
    assert "6 µs + bytes ÷ 4.6 TB/s" in made.caption


@pytest.mark.parametrize("wrong", [{"x": "tokens"}, {"select": {"heads": 3}}, {"series": {"a": {"n_heads": 3}}}])
def test_wrong_fields_are_refused(wrong):
    with pytest.raises(ValueError):
        views.measured_against_arithmetic(None, **wrong)


def test_matching_takes_the_fastest_and_keeps_reasons():
    rows = [
        {"a": 1, "context_len": 1, "median_s": 3.0},
        {"a": 1, "context_len": 1, "median_s": 2.0},
        {"a": 2, "context_len": 1, "median_s": 1.0},
        {"a": 1, "context_len": 2, "median_s": None, "status": "unsupported"},
        {"a": 1, "context_len": 1, "median_s": None, "status": "wrong"},
    ]
    best, failed = measured.matching(rows, {"a": 1, "context_len": 99}, "context_len")
    assert {x: row["median_s"] for x, row in best.items()} == {1: 2.0}
    assert failed == {2: "unsupported"}


def test_shrinking_keeps_size_and_colours():
    fig, ax = views.subplots(height=1)
    ax.axis("off")
    made = views.figure(fig, name="blank", caption="c", alt="a")
    assert Image.open(io.BytesIO(figures.shrink(made.png))).convert("RGB").getpixel((5, 5)) == (255, 255, 255)
