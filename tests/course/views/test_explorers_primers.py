"""The primers' explorers: what they claim holds for settings that the general tests do not look at."""

import dataclasses

import pytest

from course import costs, measure, views
from course.views.explorers import memory_strip, read_time, rotation

pytest.importorskip("vl_convert")


@pytest.fixture
def reads(with_recording, monkeypatch):
    """A recording of reads: 2 µs and 4 TB/s from memory, 8 TB/s again, 3 µs and 4 TB/s copied."""

    def row(n_bytes, t0, rate, **more):
        return {"bytes": n_bytes, "median_s": t0 + n_bytes / rate, **more}

    sizes = [2**n for n in range(16, 33)]
    made = dataclasses.replace(
        with_recording,
        kind="reads",
        reads=[row(n, 2e-6, 4e12) for n in sizes],
        limits=[row(n, 1e-6, 8e12, operation="warm read", flops=0) for n in sizes]
        + [row(2 * n, 3e-6, 4e12, operation="copy", flops=0) for n in sizes]
        + [row(3 * 2**27, 0, 1e12, operation="matmul burst", flops=2 * 8192**3)],
        rows=[],
    )
    monkeypatch.setattr(measure, "recordings", lambda gpu=None, kind="decode", **_: [made] if kind == "reads" else [])
    return made


def test_every_recorded_read_and_copy_is_drawn_and_no_product(reads):
    rows = views.read_time().spec()["datasets"]["recorded_reads"]
    assert len(rows) == 3 * 17 and {row["gpu"] for row in rows} == {"H200 SXM"}
    assert {row["way"] for row in rows} == set(read_time.WAYS)


def test_the_fixed_time_is_fitted(reads):
    assert views.read_time().settings["t0_tenths"] == 20


@pytest.mark.parametrize("way, ratio, warm", [("read from memory", "1.49", False), ("read again", "0.74", True)])
def test_a_warm_read_beats_the_data_sheet_and_is_told_why(reads, way, ratio, warm):
    said = views.read_time().sentence_of(way=way, log2_bytes=25, t0_tenths=20, gpu="H200 SXM")
    assert f"{ratio} × the first" in said and ("did not come from memory" in said) == warm


def test_another_gpu_has_no_recorded_time(reads):
    said = views.read_time().sentence_of(way="read from memory", log2_bytes=25, t0_tenths=0, gpu="L4")
    assert "No time is recorded" in said and "the data sheet's rate" in said


def test_sectors_of_the_strip_are_those_that_lanes_touch():
    explorer = views.memory_strip()
    for stride in memory_strip.STRIDES:
        for n in (1, 33, 45, 64):
            settings = {"n": n, "block": 16, "stride": stride, "program": 1}
            mine = [row for row in explorer.expected(**settings) if row["kind"] == memory_strip.KINDS[0]]
            touched = {row["address"] * 4 // 32 for row in mine}
            assert f"{len(touched)} sector" in explorer.sentence_of(**settings)


def test_masked_lanes_are_in_the_last_program_only():
    rows = views.memory_strip().expected(n=45, block=16, stride=1, program=0)
    masked = [row for row in rows if row["kind"] == memory_strip.KINDS[3]]
    assert len(masked) == 3 and {row["owner"] for row in masked} == {2}


def test_the_score_follows_the_difference_alone():
    explorer = views.rotation()

    def score(**settings):
        said = explorer.sentence_of(**settings)
        return said.split("score is ")[1].split(",")[0]

    for pair in rotation.PAIRS:
        alike = {score(t=t, j=t - 3, shift=shift, pair=pair) for t in (3, 10, 31) for shift in (0, 1, 100)}
        assert len(alike) == 1
    assert score(t=9, j=0, shift=0, pair=0) != score(t=8, j=0, shift=0, pair=0)


def test_speeds_are_those_of_a_head_128_wide():
    assert [round(rotation.speed(pair), 12) for pair in rotation.PAIRS] == [1, 0.1, 0.01, 0.001]
    assert costs.model("Llama 2 7B").attention.head_dim_qk == rotation.HEAD_DIM
