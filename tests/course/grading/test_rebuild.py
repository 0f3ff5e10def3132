"""Submissions get the shape of their release back, and files that are none are told apart."""

import json

import nbformat
import pytest

from course.grading import rebuild
from tests.course.grading.submissions import RIGHT, SMALL, as_bytes, handed_in, master


def rebuilt(notebook):
    return rebuild.rebuild(master(), as_bytes(notebook), SMALL)


def sources(notebook) -> list[str]:
    return [cell.source for cell in notebook.cells]


def strip(notebook):
    for cell in notebook.cells:
        cell.metadata = {}
        del cell["id"]
    notebook.metadata = {}


def test_a_whole_submission_comes_back_as_it_is():
    made, notes = rebuilt(handed_in(before=["x = 1"]))
    assert notes == [] and sources(made) == sources(handed_in(before=["x = 1"]))
    nbformat.validate(made)


def test_answers_without_metadata_are_found_by_the_checks():
    made, notes = rebuilt(handed_in(before=["x = 1"], change=strip))
    assert sources(made) == sources(handed_in(before=["x = 1"]))
    assert len(notes) == 4 and all("found by its place" in note for note in notes)


def test_answers_without_metadata_and_checks_are_found_by_what_they_define():
    def change(notebook):
        notebook.cells = [cell for cell in notebook.cells if not cell.source.startswith("check(")]
        strip(notebook)

    made, _ = rebuilt(handed_in(change=change))
    assert [cell.source for cell in made.cells if cell.id.endswith("-answer")] == list(RIGHT.values())
    assert [cell.id for cell in made.cells] == [cell.id for cell in master().cells]


def test_checks_that_were_edited_moved_or_deleted_are_those_of_the_release():
    def change(notebook):
        cells = {cell.id: cell for cell in notebook.cells}
        cells["first"].source = "print('2 of 2 points')"
        cells["second"].metadata["nbgrader"]["points"] = 100
        notebook.cells.remove(cells["third"])
        notebook.cells.insert(0, notebook.cells.pop(5))

    made, notes = rebuilt(handed_in(change=change))
    assert made.cells == handed_in().cells
    assert notes == [
        "the cell 'first' had been changed and was restored",
        "the cell 'third' was missing and was put back as it was handed out",
    ]


def test_a_copied_answer_cell_counts_where_it_was_written_in():
    def change(notebook):
        copied = nbformat.from_dict(json.loads(json.dumps(master().cells[4])))
        notebook.cells.insert(4, copied)

    made, _ = rebuilt(handed_in(change=change))
    answers = {cell.id: cell.source for cell in made.cells}
    assert answers["second-answer"] == RIGHT["second"]
    assert len({cell.id for cell in made.cells}) == len(made.cells)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "empty"),
        (b" \n", "empty"),
        (b"hello", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"\xff\xfe{\x00}\x00", "not UTF-8"),
        (b"[1, 2]", "no list of cells"),
        (b'{"worksheets": []}', "no list of cells"),
        (b'{"cells": [1, {"cell_type": 3}, {"cell_type": "code", "source": [1, null], "metadata": 5}]}', "no answer cell"),
        (b'{"cells": [{"cell_type": "code", "source": "check(\'05_flash_decoding.merge\', f)"}]}', "another assignment"),
        (b'{"metadata": {"course": {"assignment": "p1_gpu"}}, "cells": []}', "another assignment (p1_gpu)"),
        (b'{"cells": [' + b"{}," * 1001 + b"{}]}", "1002 cells"),
        (b" " * (rebuild.LARGEST + 1) + b"1", "at most"),
    ],
)
def test_what_is_no_submission_says_why(data, said):
    with pytest.raises(rebuild.Unreadable) as error:
        rebuild.rebuild(master(), data, SMALL)
    assert said in str(error.value)


def test_text_that_is_no_utf8_inside_json_is_taken():
    made, _ = rebuilt(handed_in(first="given = {'n': 7}  # \\ud800".replace("\\ud800", "\ud800")))
    assert "given = {'n': 7}" in sources(made)[2]
    nbformat.writes(made).encode()


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("x = 1", "x = 1  # looked at it", True),
        (
            "%%change kernels/a.py as mended\ndef f(): return 1",
            "%%change kernels/a.py as mended\ndef f():\n    return 1\n",
            True,
        ),
        ("%%change kernels/a.py as mended\nX = 1", "%%change kernels/b.py as mended\nX = 1", False),
        ("x = 1", "x = 2", False),
        ("def", "def  # no Python", False),
    ],
)
def test_code_is_the_same_whatever_its_comments_and_layout(one, other, same):
    assert rebuild.same_code(one, other) == same


def test_the_definitions_of_a_change():
    cell = "%%change kernels/merge.py as mended\nimport torch\nX = 1\n@f\ndef merge(): ...\n"
    assert rebuild.changed_definitions(cell) == {("kernels/merge.py", "merge")}
    assert rebuild.changed_definitions("def merge(): ...") == rebuild.changed_definitions("%%change a.py as b\ndef") == set()
