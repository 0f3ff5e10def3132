"""course.measure.validate: what the book holds is good, and what could not be true or should not be told is found."""

import pytest

from course.measure import __main__ as command
from course.measure import gpu_tests, validate
from course.measure.recordings import RECORDED

A_PATH = "/" + "home/ada/notes.txt"  # in two parts: the repository holds none


@pytest.mark.parametrize("path", validate.files([RECORDED]), ids=lambda path: path.name)
def test_what_the_book_holds_is_good(path):
    assert validate.faults(path) == []


def test_a_made_up_recording_is_good(data, write):
    path = write(data)
    assert validate.faults(path) == []
    assert validate.remarks(path) == [f"{path.name}: recorded with another version of the kernels than the one here"]


def too_fast(data):
    data["rows"][0] |= {"median_s": 1e-9, "p20_s": 1e-9, "p80_s": 1e-9}


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda data: data["rows"][0].pop("dtype"), "rows[0].dtype is missing"),
        (too_fast, "above 100% of the data sheet"),
        (lambda data: data["provenance"].update(kernels_sha256="2066a451"), "not a SHA-256"),
        (lambda data: data["provenance"].update(host="gpu-box-7"), "nobody knows: host"),
        (lambda data: data["rows"][0].update(machine="gpu-box-7"), "nobody knows: machine"),
        (lambda data: data["provenance"].update(method=f"see {A_PATH}"), "provenance.method holds a path"),
        (lambda data: data["provenance"].update(method="see C:\\Users\\ada"), "provenance.method holds a path"),
        (lambda data: data["provenance"].update(method="run by ada@gpu-box"), "provenance.method holds an address"),
        (lambda data: data["provenance"].update(method="run on 10.0.0.7"), "provenance.method holds an address"),
        (lambda data: data["provenance"]["peers"].update(FlashInfer="~/src/flashinfer"), "peers.FlashInfer holds a path"),
    ],
)
def test_a_fault_is_found(data, write, spoil, said):
    spoil(data)
    [fault] = validate.faults(write(data))
    assert said in fault


def test_a_report_of_tests_is_judged_too(data, tmp_path):
    folder = tmp_path / "nvidia-h200"
    counts = {"tests/kernels/test_decode.py": {"passed": 9, "failed": 0, "skipped": 1}}
    good = gpu_tests.write(gpu_tests.Report(data["provenance"], ["sites: no browser"], 61.5, counts), folder)
    assert validate.faults(good) == validate.remarks(good) == []
    told = gpu_tests.write(gpu_tests.Report(data["provenance"], [f"no {A_PATH}"], 61.5, counts), folder)
    [fault] = validate.faults(told)
    assert "left_out.0 holds a path" in fault


def test_a_recording_lies_where_its_gpu_and_kind_say(data, write):
    path = write(data)
    elsewhere = path.parent.parent / "nvidia-l4"
    elsewhere.mkdir()
    moved = path.rename(elsewhere / path.name)
    assert ["folder called nvidia-h200" in fault for fault in validate.faults(moved)] == [True]
    renamed = moved.rename(path.with_name("mine.json"))  # back in its folder
    assert ["is called decode-2026-11-29.json" in fault for fault in validate.faults(renamed)] == [True]


def test_a_gpu_without_limits_is_remarked_on(data, write):
    data["provenance"]["gpu"] = "Made-up GPU"
    path = write(data, folder="made-up-gpu")
    assert validate.faults(path) == []
    assert any("Made-up GPU is not in" in remark for remark in validate.remarks(path))


def test_the_command_says_what_is_wrong(data, write, capsys):
    path = write(data)
    assert command.main(["--validate", str(path.parent)]) == 0
    assert "1 of 1 can go into the book" in capsys.readouterr().out
    path.write_text("{")
    assert command.main(["--validate", str(path)]) == 1
    assert "damaged" in capsys.readouterr().out
    assert command.main(["--validate", str(path.parent / "none")]) == 2
    assert "neither a recording nor a folder with one" in capsys.readouterr().err
