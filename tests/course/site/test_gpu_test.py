"""What gpu-test runs, leaves out and keeps. That it refuses to start without a GPU is tested with the other commands."""

import types

import pytest

from course.measure import gpu_tests, record
from course.measure.recordings import PROVENANCE
from course.site import ROOT, gpu_test, test

TESTS = "import pytest\ndef test_a(): pass\ndef test_b(): pytest.skip('no')\ndef test_c(): assert {}\n"


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    """A machine with a GPU, as far as the command can tell."""
    made = {name: "0" if str in kinds else 1 for name, kinds in PROVENANCE.items()}
    monkeypatch.setattr(test, "mode", lambda: "compiled")
    monkeypatch.setattr(record, "this_machine", lambda: types.SimpleNamespace(provenance=made | {"date": "2026-12-01"}))
    monkeypatch.setattr(gpu_test, "BUILD", str(tmp_path))


def test_timed_tests_run_alone():
    (at_once, timed), _ = gpu_test.parts()
    assert not any(argument.startswith(("--numprocesses", "--dist")) for argument in timed)
    assert timed == ["tests/course/measure"]
    assert {"tests/kernels", "tests/course/layers", "notebooks"} <= set(at_once)


def test_without_jupyter_the_notebooks_are_left_out_and_named(monkeypatch):
    monkeypatch.setattr(test, "find_spec", lambda package: None if package in ("nbval", "ipykernel") else package)
    runs, left_out = gpu_test.parts()
    assert left_out == ["notebooks: this Python lacks nbval, ipykernel"]
    assert not any("nb" in argument or "notebooks" in argument for run in runs for argument in run)


@pytest.mark.parametrize("second", [True, False])
def test_report_has_every_run_and_the_status_is_the_worst(gpu, monkeypatch, tmp_path, capsys, second):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # these tests need no plugin, and all of them start slowly
    for name, passes in (("one", True), ("two", second)):
        (tmp_path / f"test_{name}.py").write_text(TESTS.format(passes))
    here = ["-p", "no:cacheprovider", f"--rootdir={tmp_path}"]  # otherwise names begin where this file and the course part
    runs = [[str(tmp_path / f"test_{name}.py"), *here] for name in ("one", "two")]
    monkeypatch.setattr(gpu_test, "parts", lambda: (runs, ["something"]))
    with pytest.raises(SystemExit) as stopped:
        gpu_test.main(["--report", str(tmp_path / "kept")])
    assert stopped.value.code == (0 if second else 1)
    kept = gpu_tests.read(tmp_path / "kept" / "gpu-test-2026-12-01.json")
    assert kept.left_out == ["something"]
    assert kept.files == {
        "test_one.py": {"passed": 2, "failed": 0, "skipped": 1},
        "test_two.py": {"passed": 1 + second, "failed": 1 - second, "skipped": 1},
    }
    said = capsys.readouterr().out
    assert "Left out: something" in said
    assert f"{3 + second} passed, {1 - second} failed, 2 skipped" in said
    assert ROOT not in (tmp_path / "kept" / "gpu-test-2026-12-01.json").read_text()


def test_part_of_the_tests_is_not_kept(gpu, monkeypatch):
    monkeypatch.setattr(test, "run_pytest", None)
    with pytest.raises(SystemExit, match="leave out -k decode"):
        gpu_test.main(["-k", "decode", "--report"])


@pytest.mark.parametrize(("statuses", "status"), [([0, 5], 0), ([5, 5], 5), ([5, 1], 1), ([2, 0], 2)])
def test_a_choice_may_leave_one_run_without_tests(gpu, monkeypatch, statuses, status):
    left = list(statuses)
    monkeypatch.setattr(test, "run_pytest", lambda arguments, report: left.pop(0))
    with pytest.raises(SystemExit) as stopped:
        gpu_test.main(["-k", "decode"])
    assert stopped.value.code == status
