"""course.measure.gallery: a line for each recording, and a page that is not behind them."""

from course.measure import gallery, gpu_tests, ledger


def test_a_gpu_has_a_line_for_each_recording(data, write, present_digest):
    folder = write(data).parent.parent
    data["provenance"]["date"] = "2026-12-01"
    write(data, "decode-2026-12-01.json")
    text = gallery.render(folder)
    assert text.count("## NVIDIA H200") == 1
    first, second = (row for row in text.splitlines() if row.startswith("| decode"))
    assert "2026-12-01" in first and "2026-11-29" in second
    ok = sum(row["status"] == "ok" for row in data["rows"])
    assert f"| {ok} of {len(data['rows'])} |" in first
    assert f"| {2**31 / 4.6e-4 / 1e12:.2f} |" in first
    assert "earlier" in first
    assert "Tests there" not in text
    counts = {"tests/kernels/test_decode.py": {"passed": 9, "failed": 0, "skipped": 1}}
    gpu_tests.write(gpu_tests.Report(data["provenance"], [], 61.5, counts), folder / "nvidia-h200")
    software = f"with torch {data['provenance']['torch']} and Triton {data['provenance']['triton']}"
    told = f"Tests there on 2026-12-01, {software}, with an earlier version of the kernels: 9 passed, 0 failed, 1 skipped."
    assert told in gallery.render(folder)
    data["provenance"]["kernels_sha256"] = present_digest
    gpu_tests.write(gpu_tests.Report(data["provenance"], [], 61.5, counts), folder / "nvidia-h200")
    assert f"Tests there on 2026-12-01, {software}: 9 passed" in gallery.render(folder)


def test_the_page_is_not_behind_the_recordings():
    _, shown, _ = ledger.marked(gallery.PAGE, "recordings")
    assert shown.strip("\n") == gallery.render().strip("\n"), "write it: python -m course.measure --ledger"
