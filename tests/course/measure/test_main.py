"""python -m course.measure: the plan without a GPU, and a clear refusal to record."""

import pytest
import torch

from course.measure import __main__ as command


def test_list_needs_no_gpu(capsys):
    assert command.main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("B1 32/8 L8192 (32 MiB): decode, decode/1, decode/2")
    assert "rows, 4 reads: about" in lines[-1]
    assert command.main(["--list", "--quick"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 5


@pytest.mark.skipif(torch.cuda.is_available(), reason="what happens without a GPU")
def test_without_a_gpu_nothing_is_recorded(capsys, tmp_path):
    assert command.main(["--out", str(tmp_path / "out")]) == 2
    assert "No CUDA GPU here" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_quick_recording_on_a_gpu(tmp_path):
    from course import measure

    assert command.main(["--quick", "--out", str(tmp_path)]) == 0
    (path,) = tmp_path.iterdir()
    recording = measure.load(path)
    assert recording.current
    assert all(row["status"] == "ok" for row in recording.select(operation="decode"))
