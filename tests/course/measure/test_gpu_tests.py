"""Reports of GPU tests: counted from pytest's results, written beside the recordings, read back with care."""

import dataclasses
import json

import pytest

from course.measure import gpu_tests
from course.measure.recordings import RECORDED, slug

RESULTS = """<testsuites><testsuite>
<testcase file="tests/kernels/test_decode.py" name="a"/>
<testcase file="tests/kernels/test_decode.py" name="b"><failure message="no"/></testcase>
<testcase file="tests/kernels/test_decode.py" name="c"><skipped message="why"/></testcase>
<testcase file="tests/kernels/test_decode.py" name="d"><error message="at setup"/></testcase>
<testcase file="tests/kernels/test_decode.py" name="e"/>
</testsuite></testsuites>"""
MORE = '<testsuites><testsuite><testcase file="notebooks/04.ipynb" name="Cell 0"/></testsuite></testsuites>'
COUNTS = {
    "notebooks/04.ipynb": {"passed": 1, "failed": 0, "skipped": 0},
    "tests/kernels/test_decode.py": {"passed": 2, "failed": 2, "skipped": 1},
}


@pytest.fixture
def report(data):
    return gpu_tests.Report(data["provenance"], ["notebooks: this Python lacks nbval"], 61, COUNTS)


def test_counts_come_from_all_results(tmp_path):
    paths = [tmp_path / "first.xml", tmp_path / "second.xml"]
    for path, text in zip(paths, (RESULTS, MORE), strict=True):
        path.write_text(text)
    assert gpu_tests.count(paths) == COUNTS
    assert list(gpu_tests.count(paths)) == sorted(COUNTS)


def test_results_without_a_test_are_refused(tmp_path):
    path = tmp_path / "results.xml"
    path.write_text("<testsuites><testsuite/></testsuites>")
    with pytest.raises(ValueError, match=r"results\.xml holds no test"):
        gpu_tests.count([path])


def test_what_is_written_is_read_back_and_never_overwritten(report, tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_tests, "RECORDED", tmp_path)
    first = gpu_tests.write(report)
    second = gpu_tests.write(dataclasses.replace(report, seconds=62))
    assert first.relative_to(tmp_path).as_posix() == "nvidia-h200/gpu-test-2026-11-29.json"
    assert second.name == "gpu-test-2026-11-29-2.json"
    assert [found.seconds for found in gpu_tests.reports()] == [62, 61]
    found = gpu_tests.read(first)
    assert (found.files, found.left_out) == (COUNTS, report.left_out)
    assert set(found.provenance) == set(gpu_tests.WHERE)
    assert [found.total(outcome) for outcome in gpu_tests.OUTCOMES] == [3, 2, 1]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda data: data.update(schema=9), "schema 9"),
        (lambda data: data.update(kind="decode"), "kind 'decode'"),
        (lambda data: data.pop("seconds"), r"report\.seconds is missing"),
        (lambda data: data["provenance"].update(gpu=3), r"provenance\.gpu is 3, not str"),
        (lambda data: data["files"].update({"/else/test_x.py": COUNTS["notebooks/04.ipynb"]}), "not relative"),
        (lambda data: data["files"].update({"x": {"passed": 1, "failed": 0}}), r"files\.x\.skipped is missing"),
    ],
)
def test_damage_is_named(report, tmp_path, change, said):
    path = gpu_tests.write(report, tmp_path)
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))
    with pytest.raises(ValueError, match=rf"gpu-test-2026-11-29\.json: .*{said}"):
        gpu_tests.read(path)


def test_committed_reports_are_whole():
    for path in RECORDED.glob(f"*/{gpu_tests.KIND}-*.json"):
        assert path.parent.name == slug(gpu_tests.read(path).provenance["gpu"])
