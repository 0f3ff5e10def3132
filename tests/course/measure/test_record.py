"""course.measure.record: the whole sweep on the CPU, with made-up times in place of a GPU's."""

import dataclasses
import json
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import kernels
from course import measure
from course.measure import files, record, timing
from course.measure.plans import Limit, Plan
from course.measure.shapes import Point, Shape

SHAPES = (Shape(1, 4, 2, 20, 16, 16), Shape(2, 4, 1, 24, 16, 16))
PLAN = Plan(
    "decode",
    (4096, 65536),
    (
        Point(SHAPES[0], "decode"),
        Point(SHAPES[0], "decode", num_splits=2),
        Point(SHAPES[0], "attention"),
        Point(SHAPES[0], "sdpa", "MATH"),
        Point(SHAPES[1], "decode"),
        Point(SHAPES[1], "attention"),
        Point(SHAPES[1], "repeat_sdpa", "FLASH"),
    ),
)


class FakeGpu:
    """Counts what is prepared and gives every sample a time of its own; ``fail`` may raise at each measurement."""

    def __init__(self, provenance, fail=lambda n: None):
        self.measured = 0
        self.prepared = 0
        self.methods, self.heats = [], []

        def prepare(calls, method="auto"):
            self.prepared += 1
            self.methods.append(method)
            for call in calls:
                call()
            return len(calls)

        def fake_measure(samples, seconds, heat=0.0):
            self.measured += 1
            self.heats.append(heat)
            fail(self.measured)
            return [measure.Timing(1e-3 * n, 0.9e-3 * n, 1.1e-3 * n, 9, "graph") for n, _ in enumerate(samples, 1)]

        self.machine = record.Machine(torch.device("cpu"), provenance, prepare, fake_measure)


@pytest.fixture(autouse=True)
def one_copy(monkeypatch):
    if kernels.MODE != "interpreter":
        pytest.skip("runs the sweep on CPU tensors, in the interpreter")
    monkeypatch.setattr(timing, "ROTATED_BYTES", 1)


@pytest.fixture(autouse=True)
def instant(request, monkeypatch):
    """The definitions answer for our kernels: most tests here are about the sweep, and the interpreter is slow."""
    if "real_kernels" not in request.fixturenames:
        request.getfixturevalue("defined")
        monkeypatch.setattr(kernels.first, "read", lambda x: x)
        monkeypatch.setattr(kernels.first, "copy", torch.clone)


@pytest.fixture
def real_kernels():
    """Asked for by a test that runs the kernels themselves."""


@pytest.fixture
def provenance(data, present_digest):
    return {**data["provenance"], "gpu": "Made-up GPU", "l2_bytes": 1, "kernels_sha256": present_digest}


@pytest.fixture
def said():
    return []


def test_a_whole_sweep_is_sealed_in_plan_order(tmp_path, provenance, said, real_kernels):
    path = record.record(PLAN, tmp_path / "gpu", FakeGpu(provenance).machine, said.append)
    assert path.name == "decode-2026-11-29.json"
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    recording = measure.load(path)
    assert recording.current
    assert [read["bytes"] for read in recording.reads] == [4096, 65536]
    assert [(r["operation"], r["backend"], r["batch"], r["splits"]) for r in recording.rows] == [
        ("decode", None, 1, "automatic"),
        ("decode", None, 1, "given"),
        ("attention", None, 1, None),
        ("sdpa", "MATH", 1, None),
        ("decode", None, 2, "automatic"),
        ("attention", None, 2, None),
        ("repeat_sdpa", "FLASH", 2, None),
    ]
    assert all(r["status"] == "ok" and r["error"]["relative_l2"] < 8e-3 for r in recording.rows)
    assert recording.rows[1]["num_splits"] == 2
    assert recording.rows[0]["num_splits"] >= 1
    assert recording.rows[2]["num_splits"] is None
    assert "[7/7 rows" in said[-2]


PAGES = [dataclasses.replace(SHAPES[0], page_size=size) for size in (None, 8, 16)]


@pytest.mark.parametrize(("caches", "groups"), [(3, [3, 1]), (2, [2, 1, 1]), (0, [1, 1, 1, 1])])
def test_pages_are_timed_together_with_what_they_are_pages_of(provenance, caches, groups):
    """As far as there is room for their caches."""
    points = [Point(shape, shape.operation) for shape in (PAGES[0], SHAPES[1], *PAGES[1:])]
    gpu = FakeGpu({**provenance, "memory_bytes": int(caches * PAGES[0].cache_bytes / record.ROOM)})
    found = list(record.timed_together(points, gpu.machine))
    assert [len(group) for group in found] == groups
    assert sorted(map(str, sum(found, []))) == sorted(map(str, points))
    for number, group in enumerate(found, 1):
        rows = list(record.measure_shape(group, gpu.machine))
        assert gpu.measured == number
        assert [(r["page_size"], r["status"], r["median_s"]) for r in rows] == [
            (point.shape.page_size, "ok", 1e-3 * n) for n, point in enumerate(group, 1)
        ]


@pytest.mark.parametrize("stop_at", [1, 3, 4, 5])
def test_a_broken_off_run_goes_on_where_it_stopped(tmp_path, provenance, said, stop_at):
    def ctrl_c(n):
        if n == stop_at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        record.record(PLAN, tmp_path, FakeGpu(provenance, ctrl_c).machine, said.append)
    partial = tmp_path / "decode.partial.jsonl"
    kept = [json.loads(line) for line in partial.read_text().splitlines()[1:]]
    again = FakeGpu({**provenance, "date": "2026-11-30"})
    path = record.record(PLAN, tmp_path, again.machine, said.append)
    recording = measure.load(path)
    assert len(recording.rows) == 7
    assert again.prepared == 2 + 7 - len(kept)
    assert [line["row"] for line in kept if "row" in line] == recording.rows[: sum("row" in line for line in kept)]
    assert path.name == "decode-2026-11-29.json"  # the day it began
    assert any("going on from" in line for line in said)


def test_half_a_line_is_measured_again(tmp_path, provenance, said):
    def kill(n):
        if n == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        record.record(PLAN, tmp_path, FakeGpu(provenance, kill).machine, said.append)
    partial = tmp_path / "decode.partial.jsonl"
    text = partial.read_text()
    partial.write_text(text[:-40])
    path = record.record(PLAN, tmp_path, FakeGpu(provenance).machine, said.append)
    assert len(measure.load(path).rows) == 7


@given(st.data())
def test_a_cut_file_keeps_its_complete_lines(tmp_path_factory, data):
    lines = [{"row": {"n": n, "text": "ä\n"}} for n in range(5)]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    cut = data.draw(st.integers(0, len(text)))
    path = tmp_path_factory.mktemp("cut") / "x.partial.jsonl"
    path.write_text(text[:cut])
    kept = files._complete_lines(path)
    assert kept == lines[: len(kept)]
    assert len(kept) >= text[:cut].count("\n")


@pytest.mark.parametrize("change", ["kernels_sha256", "gpu", "torch", "driver"])
def test_another_run_is_set_aside_not_deleted(tmp_path, provenance, said, change):
    for round_ in range(2):
        with pytest.raises(ZeroDivisionError):
            other = {**provenance, change: f"other {round_}"}
            record.record(PLAN, tmp_path, FakeGpu(other, lambda n: n < 4 or 1 / 0).machine, said.append)
    record.record(PLAN, tmp_path, FakeGpu(provenance).machine, said.append)
    names = sorted(p.name for p in tmp_path.iterdir())
    assert names == ["decode-2.partial.jsonl", "decode-2026-11-29.json", "decode-3.partial.jsonl"]
    assert sum("belongs to another plan" in line for line in said) == 2


def test_another_plan_is_set_aside(tmp_path, provenance, said):
    with pytest.raises(ZeroDivisionError):
        record.record(PLAN, tmp_path, FakeGpu(provenance, lambda n: n < 4 or 1 / 0).machine, said.append)
    smaller = Plan("decode", PLAN.reads, PLAN.points[:1])
    assert len(measure.load(record.record(smaller, tmp_path, FakeGpu(provenance).machine, said.append)).rows) == 1
    assert (tmp_path / "decode-2.partial.jsonl").exists()


def test_nothing_is_overwritten(tmp_path, provenance, said):
    paths = [record.record(PLAN, tmp_path, FakeGpu(provenance).machine, said.append) for _ in range(3)]
    assert [p.name for p in paths] == ["decode-2026-11-29.json", "decode-2026-11-29-2.json", "decode-2026-11-29-3.json"]


def spoil(monkeypatch, operation, action):
    monkeypatch.setattr(kernels, operation, action)


def no_memory(*_, **__):
    raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nmore")


def statuses(path):
    return [row["status"] for row in measure.load(path).rows]


def test_out_of_memory_at_one_contender(tmp_path, provenance, said, monkeypatch):
    spoil(monkeypatch, "attention", no_memory)
    path = record.record(PLAN, tmp_path, FakeGpu(provenance).machine, said.append)
    assert statuses(path) == ["ok", "ok", "out of memory", "ok", "ok", "out of memory", "ok"]
    assert measure.load(path).rows[2]["reason"] == "CUDA out of memory. Tried to allocate 2.00 GiB."


def test_out_of_memory_for_the_inputs_of_one_shape(tmp_path, provenance, said, monkeypatch):
    bench = record.Bench
    monkeypatch.setattr(record, "Bench", lambda shape, *args: no_memory() if shape.batch == 1 else bench(shape, *args))
    path = record.record(PLAN, tmp_path, FakeGpu(provenance).machine, said.append)
    assert statuses(path) == ["out of memory"] * 4 + ["ok"] * 3


def test_out_of_memory_while_measuring(tmp_path, provenance, said):
    path = record.record(PLAN, tmp_path, FakeGpu(provenance, lambda n: n == 3 and no_memory()).machine, said.append)
    assert statuses(path) == ["out of memory"] * 3 + ["ok"] * 4


def test_wrong_output_carries_no_time(tmp_path, provenance, said, monkeypatch):
    spoil(monkeypatch, "attention", lambda q, k, v, causal: (q + 1, q[..., 0].float()))
    path = record.record(PLAN, tmp_path, FakeGpu(provenance).machine, said.append)
    assert statuses(path) == ["ok", "ok", "wrong", "ok", "ok", "wrong", "ok"]
    wrong = measure.load(path).rows[2]
    assert wrong["median_s"] is None
    assert wrong["error"]["max_abs"] > 0.1
    assert "against float64" in wrong["reason"]


def test_nan_is_wrong_and_valid_json(tmp_path, provenance, said, monkeypatch):
    spoil(monkeypatch, "attention", lambda q, k, v, causal: (q * float("nan"), q[..., 0].float()))
    wrong = measure.load(record.record(PLAN, tmp_path, FakeGpu(provenance).machine, said.append)).rows[2]
    assert (wrong["status"], wrong["error"]) == ("wrong", {"max_abs": None, "relative_l2": None})


def test_a_backend_that_refuses_is_a_row(tmp_path, provenance, said):
    plan = Plan("decode", (), (Point(SHAPES[0], "sdpa", "CUDNN"), Point(SHAPES[0], "decode")))
    rows = measure.load(record.record(plan, tmp_path, FakeGpu(provenance).machine, said.append)).rows
    assert [row["status"] for row in rows] == ["unsupported", "ok"]
    assert rows[0]["reason"]


def test_a_bug_is_not_a_row(tmp_path, provenance, said, monkeypatch):
    """It is told, the rest goes on, nothing is sealed; once it is mended only its rows are measured."""
    with pytest.MonkeyPatch.context() as broken:
        spoil(broken, "attention", lambda q, k, v, causal: q.no_such_method())
        with pytest.raises(record.Failed, match="2 rows of kind 'decode' failed"):
            record.record(PLAN, tmp_path, FakeGpu(provenance).machine, said.append)
    assert any("no_such_method" in line and "Traceback" in line for line in said)
    again = FakeGpu(provenance)
    path = record.record(PLAN, tmp_path, again.machine, said.append)
    assert again.prepared == 2
    assert statuses(path) == ["ok"] * 7
    assert "failed" not in path.read_text()


def test_a_lost_context_ends_the_run_after_its_row_and_the_next_goes_on(tmp_path, provenance, said, monkeypatch):
    def crash(*_, **__):
        def lost():
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

        broken.setattr(record, "release", lost)
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    with pytest.MonkeyPatch.context() as broken:
        spoil(broken, "attention", crash)
        with pytest.raises(record.ContextLost):
            record.record(PLAN, tmp_path, FakeGpu(provenance).machine, said.append)
    path = record.record(PLAN, tmp_path, FakeGpu(provenance).machine, said.append)
    rows = measure.load(path).rows
    assert [row["status"] for row in rows] == ["ok", "ok", "unsupported", "ok", "ok", "ok", "ok"]
    assert rows[2]["reason"] == "crashed: CUDA error: an illegal memory access was encountered"


def test_a_read_kernel_that_skips_is_caught(tmp_path, provenance, said, monkeypatch):
    monkeypatch.setattr(kernels.first, "read", lambda x: x[:-1])
    with pytest.raises(RuntimeError, match="did not read each of 4096 bytes once"):
        record.record(PLAN, tmp_path, FakeGpu(provenance).machine, said.append)


def test_impossible_points_are_pointed_out(tmp_path, provenance, said):
    provenance["gpu"] = "NVIDIA H200"
    gpu = FakeGpu(provenance)
    plan = Plan("decode", (), (Point(SHAPES[0], "decode"),))
    fast = record.Machine(
        gpu.machine.device,
        provenance,
        gpu.machine.prepare,
        lambda samples, _: [measure.Timing(1e-12, 1e-12, 1e-12, 9, "graph")],
    )
    record.record(plan, tmp_path, fast, said.append)
    assert any(line.startswith("PROBLEM operation=decode") for line in said)


def test_a_peer_that_raises_whatever_is_a_row(tmp_path, provenance, said, monkeypatch):
    monkeypatch.setitem(sys.modules, "flashinfer", None)
    plan = Plan("decode", (), (Point(SHAPES[0], "flashinfer", "fa2"), Point(SHAPES[0], "decode")))
    rows = measure.load(record.record(plan, tmp_path, FakeGpu(provenance).machine, said.append)).rows
    assert [row["status"] for row in rows] == ["unsupported", "ok"]
    assert "flashinfer" in rows[0]["reason"]
    assert any("flashinfer/fa2: unsupported: " in line for line in said)


def test_a_peer_has_the_version_of_its_package(monkeypatch):
    versions = {"flash-attn-4": "4.0.0b36"}

    def version(name):
        if name not in versions:
            raise record.importlib.metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(record.importlib.metadata, "version", version)
    assert record._package_version("flash-attn-4") == "4.0.0b36"
    assert record._package_version("sglang-kernel") is None


def test_every_form_of_the_work_is_recorded(tmp_path, provenance, said, monkeypatch):
    """Paged, MLA, 8 bits, several tokens, whole sequences and gradients share one schema and one recorder."""
    latent = Shape(2, 3, 1, 21, 24, 16, head_dim_shared=16)
    whole = Shape(2, 4, 2, 20, 24, 16, q_len=20)
    points = [
        Point(dataclasses.replace(SHAPES[0], page_size=6), "paged_decode"),
        Point(latent, "mla_decode"),
        Point(dataclasses.replace(latent, page_size=6, cache_dtype="float8_e4m3fn"), "paged_mla_decode"),
        Point(dataclasses.replace(SHAPES[0], q_len=3), "decode", num_splits=2),
        Point(whole, "attention"),
        Point(dataclasses.replace(whole, direction="backward"), "attention"),
        Point(dataclasses.replace(whole, direction="backward"), "sdpa", "MATH"),
    ]
    gpu = FakeGpu(provenance)
    monkeypatch.setattr(record, "HOT_INTENSITY", 20)
    path = record.record(Plan("mla", (4096,), tuple(points)), tmp_path, gpu.machine, said.append)
    recording = measure.load(path)
    assert [row["status"] for row in recording.rows] == ["ok"] * 7
    assert recording.select(cache_dtype="float8_e4m3fn")[0]["cache_error"]["max_abs"] > 0
    assert len(recording.select(direction="backward", operation="attention")) == 1
    assert recording.select(page_size=6, operation="paged_decode")[0]["num_splits"] == 1
    assert gpu.methods == ["auto"] * 6 + ["events"] * 2  # a read and five forward shapes, then two backward
    assert gpu.heats[1] == 0.0 and gpu.heats[-1] == record.HEAT_S


def test_a_plan_says_how_it_is_timed(tmp_path, provenance, said):
    points = Point(SHAPES[0], "decode"), Point(SHAPES[0], "copy_heads", "expand")
    gpu = FakeGpu(provenance)
    recording = measure.load(record.record(Plan("eager", (), points, method="events"), tmp_path, gpu.machine, said.append))
    assert gpu.methods == ["events"] * 2
    assert recording.select(operation="copy_heads")[0]["error"] == {"max_abs": 0, "relative_l2": 0}


def test_limits_are_recorded_and_resumed(tmp_path, provenance, said, monkeypatch):
    monkeypatch.setattr(record, "MATMUL_SIZE", 8)
    monkeypatch.setattr(record, "COOLING_S", 0)
    limits = [Limit("warm read", 4096), Limit("copy", 4096), Limit("torch copy", 4096)]
    limits += [Limit("matmul burst", 128), Limit("matmul sustained", 128)]
    plan = Plan("reads", (4096,), (), tuple(limits))
    with pytest.raises(ZeroDivisionError):
        record.record(plan, tmp_path, FakeGpu(provenance, lambda n: n < 4 or 1 / 0).machine, said.append)
    again = FakeGpu(provenance)
    recording = measure.load(record.record(plan, tmp_path, again.machine, said.append))
    assert again.measured == 3
    assert [(limit["operation"], limit["bytes"], limit["flops"]) for limit in recording.limits] == [
        ("warm read", 4096, 0),
        ("copy", 8192, 0),
        ("torch copy", 8192, 0),
        ("matmul burst", 384, 1024),
        ("matmul sustained", 384, 1024),
    ]
    assert recording.limit("matmul sustained", "flops") == 1024 / 1e-3
    assert recording.rows == []


def test_what_is_recorded_is_found_again(tmp_path, provenance, said):
    machine = FakeGpu(provenance).machine
    path = record.record(PLAN, tmp_path, machine, said.append)
    tomorrow = record.planned(PLAN, machine) | {"date": "2026-12-24", "commit": "abc"}
    assert files.up_to_date("decode", tmp_path, tomorrow) == path.name
    assert files.up_to_date("decode", tmp_path, tomorrow | {"torch": "3.0"}) is None
    assert files.up_to_date("decode", tmp_path, tomorrow | {"plan_sha256": "other"}) is None
    assert files.up_to_date("mla", tmp_path, tomorrow) is None
