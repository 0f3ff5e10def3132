"""course.measure.record: the whole sweep on the CPU, with made-up times in place of a GPU's."""

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import kernels
from course import measure
from course.measure import contenders, record, timing
from course.measure.contenders import Point, Shape

SHAPES = (Shape(1, 4, 2, 20, 16, 16), Shape(2, 4, 1, 24, 16, 16))
PLAN = record.Plan(
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

        def prepare(calls):
            self.prepared += 1
            for call in calls:
                call()
            return len(calls)

        def fake_measure(samples, seconds):
            self.measured += 1
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
    """The definition answers for our kernels: most tests here are about the sweep, and the interpreter is slow."""
    if "real_kernels" in request.fixturenames:
        return
    run = contenders.run

    def defined(point, q, k, v):
        if point.operation in ("decode", "attention"):
            out, lse = kernels.reference.decode(q, k, v)
            return out.to(q.dtype), lse.float()
        return run(point, q, k, v)

    monkeypatch.setattr(contenders, "run", defined)
    monkeypatch.setattr(kernels.first, "read", lambda x: x)


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
    kept = record._complete_lines(path)
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
    smaller = record.Plan("decode", PLAN.reads, PLAN.points[:1])
    assert len(measure.load(record.record(smaller, tmp_path, FakeGpu(provenance).machine, said.append)).rows) == 1
    assert (tmp_path / "decode-2.partial.jsonl").exists()


def test_nothing_is_overwritten(tmp_path, provenance, said):
    paths = [record.record(PLAN, tmp_path, FakeGpu(provenance).machine, said.append) for _ in range(3)]
    assert [p.name for p in paths] == ["decode-2026-11-29.json", "decode-2026-11-29-2.json", "decode-2026-11-29-3.json"]


def spoil(monkeypatch, operation, action):
    run = contenders.run
    monkeypatch.setattr(
        contenders, "run", lambda point, *qkv: action(*qkv) if point.operation == operation else run(point, *qkv)
    )


def no_memory(*_):
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
    spoil(monkeypatch, "attention", lambda q, k, v: (q + 1, None))
    path = record.record(PLAN, tmp_path, FakeGpu(provenance).machine, said.append)
    assert statuses(path) == ["ok", "ok", "wrong", "ok", "ok", "wrong", "ok"]
    wrong = measure.load(path).rows[2]
    assert wrong["median_s"] is None
    assert wrong["error"]["max_abs"] > 0.1
    assert "against float64" in wrong["reason"]


def test_nan_is_wrong_and_valid_json(tmp_path, provenance, said, monkeypatch):
    spoil(monkeypatch, "attention", lambda q, k, v: (q * float("nan"), None))
    wrong = measure.load(record.record(PLAN, tmp_path, FakeGpu(provenance).machine, said.append)).rows[2]
    assert (wrong["status"], wrong["error"]) == ("wrong", {"max_abs": None, "relative_l2": None})


def test_a_backend_that_refuses_is_a_row(tmp_path, provenance, said):
    plan = record.Plan("decode", (), (Point(SHAPES[0], "sdpa", "CUDNN"), Point(SHAPES[0], "decode")))
    rows = measure.load(record.record(plan, tmp_path, FakeGpu(provenance).machine, said.append)).rows
    assert [row["status"] for row in rows] == ["unsupported", "ok"]
    assert rows[0]["reason"]


def test_a_bug_is_not_a_row(tmp_path, provenance, said, monkeypatch):
    spoil(monkeypatch, "attention", lambda q, k, v: q.no_such_method())
    with pytest.raises(AttributeError):
        record.record(PLAN, tmp_path, FakeGpu(provenance).machine, said.append)


def test_a_lost_context_ends_the_run_after_its_row_and_the_next_goes_on(tmp_path, provenance, said, monkeypatch):
    def crash(*_):
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
    plan = record.Plan("decode", (), (Point(SHAPES[0], "decode"),))
    fast = record.Machine(
        gpu.machine.device,
        provenance,
        gpu.machine.prepare,
        lambda samples, _: [measure.Timing(1e-12, 1e-12, 1e-12, 9, "graph")],
    )
    record.record(plan, tmp_path, fast, said.append)
    assert any(line.startswith("PROBLEM operation=decode") for line in said)


def test_the_decode_plan():
    plan = record.decode_plan()
    assert len(set(plan.points)) == len(plan.points)
    shapes = set(plan.by_shape)
    assert Shape(128, 32, 8, 1024) in shapes
    assert Shape(1, 64, 8, 32768) in shapes
    grid = [
        s
        for s in shapes
        if s.n_q_heads == 32 and s.batch in (1, 16, 64) and s.context_len in (512, 2048, 8192, 32768, 131072)
    ]
    assert len(grid) == 3 * 5 * 6
    automatic = {p.shape for p in plan.points if p.operation == "decode" and p.num_splits is None}
    assert automatic == shapes
    given_splits = [p for p in plan.points if p.num_splits]
    assert len(given_splits) == 18 * 8
    assert all(p.shape.cache_bytes <= 10**9 for p in plan.points if p.copies_heads)
    assert all(p.shape.group_size > 1 for p in plan.points if p.operation == "repeat_sdpa")
    assert len(plan.points) * record.SECONDS_A_ROW < 5 * 60


def test_the_plans_digest_follows_its_content():
    assert record.decode_plan().sha256 == record.decode_plan().sha256
    assert record.decode_plan("float16").sha256 != record.decode_plan().sha256
    assert record.quick_plan().kind == "quick"
