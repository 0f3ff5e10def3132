"""Whose a file is, and that no submission is lost."""

import os
import re
import zipfile

import pytest

from course.grading import collect
from course.grading.folder import Folder, Refusal

NAME = "05_flash_decoding"


@pytest.fixture
def folder(tmp_path):
    return Folder(tmp_path / "course")


@pytest.mark.parametrize(
    ("path", "student"),
    [
        ("ada/05_flash_decoding.ipynb", "ada"),
        ("ada/anything at all (2).ipynb", "ada"),
        ("week 5/ada/05_flash_decoding/05_flash_decoding.ipynb", "ada"),
        ("Ada Lovelace_12345_assignsubmission_file_/x.ipynb", "Ada_Lovelace"),
        ("ada_05_flash_decoding.ipynb", "ada"),
        ("ada-05_flash_decoding (1).ipynb", "ada"),
        ("ada_l_05_flash_decoding-final.ipynb", "ada_l"),
        ("Copy of ada_05_flash_decoding.ipynb", "ada"),
        ("lovelaceada_LATE_1234_56789_05_flash_decoding.ipynb", "lovelaceada"),
        ("s1234567_05_flash_decoding.ipynb", "s1234567"),
        ("ada@uni.example_05_flash_decoding.ipynb", "ada@uni.example"),
        ("Jürgen/x.ipynb", "Jürgen"),
        ("=cmd()/x.ipynb", "cmd"),
        ("../../ada/x.ipynb", "ada"),
        ("05_flash_decoding.ipynb", None),
        ("Copy of 05_flash_decoding.ipynb", None),
        ("homework.ipynb", None),
        ("../x.ipynb", None),
        (f"{NAME}/x.ipynb", None),
    ],
)
def test_the_path_says_whose_it_is(path, student):
    assert collect.student_of(path, NAME) == student


def test_a_pattern_of_ones_own_decides_alone():
    pattern = re.compile(r"^(?P<student>\d+)-")
    assert collect.student_of("123-homework.ipynb", NAME, pattern) == "123"
    assert collect.student_of("ada/x.ipynb", NAME, pattern) is None


def put(place, path, data=b"{}", age=0):
    file = place / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)
    os.utime(file, (1_700_000_000 - age, 1_700_000_000 - age))


def test_the_latest_counts_and_what_it_replaces_is_kept(folder, tmp_path):
    inbox = tmp_path / "in"
    put(inbox, "ada/a.ipynb", b"old", age=100)
    put(inbox, "ada/b.ipynb", b"first")
    put(inbox, "bob_05_flash_decoding.ipynb", b"bob")
    put(inbox, "homework.ipynb")
    put(inbox, "__MACOSX/ada/._a.ipynb")
    said = collect.collect(folder, inbox, NAME)
    assert said[-1] == f"{NAME}: 2 students found, 2 new or changed submissions"
    assert any("homework.ipynb" in line for line in said) and any("a.ipynb is not used" in line for line in said)
    place = folder.root / "submitted" / "ada" / NAME
    assert (place / f"{NAME}.ipynb").read_bytes() == b"first"
    assert (place / "timestamp.txt").read_text() == "2023-11-14 22:13:20 UTC\n"
    assert collect.collect(folder, inbox, NAME)[-1].endswith("0 new or changed submissions")
    for data in (b"second", b"first", b"second"):
        put(inbox, "ada/b.ipynb", data)
        collect.collect(folder, inbox, NAME)
    kept = sorted(path.read_bytes() for path in (folder.root / "earlier" / "ada" / NAME).iterdir())
    assert kept == [b"first", b"first", b"second"] and (place / f"{NAME}.ipynb").read_bytes() == b"second"
    assert folder.students(NAME) == ["ada", "bob"]


def test_a_zip_is_read_and_nothing_leaves_it(folder, tmp_path):
    path = tmp_path / "downloads.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("../../../ada/05_flash_decoding.ipynb", "ada's")
        archive.writestr("/elsewhere/bob/Copy of 05_flash_decoding.ipynb", "bob's")
        archive.writestr("bob/notes.txt", "")
    collect.collect(folder, path, NAME)
    assert folder.submission("ada", NAME).data == b"ada's" and folder.submission("bob", NAME).data == b"bob's"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["course", "downloads.zip"]


def test_a_class_list_tells_who_is_unknown_and_who_is_missing(folder, tmp_path):
    folder.create()
    (folder.root / "students.csv").write_text("id,first_name,last_name,email\nada,Ada,Lovelace,a@b.c\nbob,Bob,B,\n")
    for who in ("ada", "eve"):
        put(tmp_path / "in", f"{who}/x.ipynb")
    said = "\n".join(collect.collect(folder, tmp_path / "in", NAME))
    assert "eve is not in students.csv" in said and "nothing yet from 1: bob" in said
    assert folder.students(NAME) == ["ada"]
    assert folder.class_list()["ada"] == {"first_name": "Ada", "last_name": "Lovelace", "email": "a@b.c"}


def test_bad_input_is_refused(folder, tmp_path):
    for place in (tmp_path / "none", __file__):
        with pytest.raises(Refusal, match="no folder and no zip"):
            collect.collect(folder, tmp_path / place, NAME)
    with pytest.raises(Refusal, match="no regular expression"):
        collect.collect(folder, tmp_path, NAME, "(")
    with pytest.raises(Refusal, match="no group"):
        collect.collect(folder, tmp_path, NAME, "(.*)")


def test_an_older_file_stays_out_in_a_later_call_too(folder, tmp_path):
    put(tmp_path / "now", f"ada/{NAME}.ipynb", b"new")
    put(tmp_path / "found again", f"ada/{NAME}.ipynb", b"old", age=1000)
    collect.collect(folder, tmp_path / "now", NAME)
    said = collect.collect(folder, tmp_path / "found again", NAME)
    assert any("is older than what was collected before" in line for line in said)
    assert (folder.root / "submitted" / "ada" / NAME / f"{NAME}.ipynb").read_bytes() == b"new"
