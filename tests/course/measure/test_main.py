"""python -m course.measure: the plan without a GPU, and a clear refusal to record."""

import pytest
import torch

import kernels
from course.measure import Timing, record, timing
from course.measure import __main__ as command
from course.measure.plans import KINDS, Plan
from course.measure.shapes import Point, Shape


def test_list_needs_no_gpu(capsys):
    assert command.main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines[:-1]] == list(KINDS)
    assert lines[-1].startswith("together about ")
    assert command.main(["--list", "--only", "decode"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("B1 32/8 L8192 (32 MiB): decode, decode/1, decode/2")
    assert "rows, 4 reads, 0 limits: about" in lines[-1]
    assert command.main(["--list", "--quick", "--only", "mla", "fp8"]) == 0
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()[:-1]] == ["quick-mla", "quick-fp8"]


def test_an_unknown_kind_is_refused(capsys):
    with pytest.raises(SystemExit):
        command.main(["--only", "mha"])
    assert "choose from" in capsys.readouterr().err


@pytest.fixture
def plans():
    shape = Shape(1, 4, 2, 20, 16, 16)
    return [Plan("decode", (), (Point(shape, "decode"),)), Plan("paged", (), (Point(shape, "attention"),))]


@pytest.fixture
def machine(data, monkeypatch):
    monkeypatch.setattr(timing, "ROTATED_BYTES", 1)
    times = [Timing(1e-3, 1e-3, 1e-3, 9, "graph")]
    provenance = {**data["provenance"], "gpu": "Made-up GPU", "l2_bytes": 1}
    return record.Machine(torch.device("cpu"), provenance, lambda calls, *how: calls, lambda samples, *_: times * len(samples))


on_cpu = pytest.mark.skipif(torch.cuda.is_available(), reason="plays a GPU on the CPU")


@on_cpu
def test_a_second_run_goes_on_with_what_is_missing(plans, machine, defined, tmp_path, capsys):
    assert command.run(plans[:1], tmp_path, machine, again=False) == 0
    assert command.run(plans, tmp_path, machine, again=False) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["decode-2026-11-29.json", "paged-2026-11-29.json"]
    assert "decode: decode-2026-11-29.json has it" in capsys.readouterr().out
    assert command.run(plans, tmp_path, machine, again=True) == 0
    assert len(list(tmp_path.iterdir())) == 4


@on_cpu
def test_a_bug_in_one_kind_does_not_stop_the_others(plans, machine, defined, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(kernels, "decode", lambda **_: None)
    assert command.run(plans, tmp_path, machine, again=False) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["decode.partial.jsonl", "paged-2026-11-29.json"]
    assert "1 rows of kind 'decode' failed" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="what happens without a GPU")
def test_without_a_gpu_nothing_is_recorded(capsys, tmp_path):
    assert command.main(["--out", str(tmp_path / "out")]) == 2
    assert "No CUDA GPU here" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_quick_recording_on_a_gpu(tmp_path):
    from course import measure

    assert command.main(["--quick", "--only", "decode", "tokens", "--out", str(tmp_path)]) == 0
    for path in tmp_path.iterdir():
        recording = measure.load(path)
        assert recording.current
        assert all(row["status"] == "ok" for row in recording.select(operation="decode"))
