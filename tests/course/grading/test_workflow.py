"""A class from the release to the CSV file, with everybody in it: right, half right, malicious, empty.

One class is graded for the whole file: by a command that is killed after its first verdicts, and then by one that goes on.
"""

import copy
import csv
import json
import os
import signal
import subprocess
import sys
import time

import nbformat
import psutil
import pytest

import kernels
from course.grading import __main__ as command
from course.grading import autograde, collect, confine, handout, release
from course.grading.folder import Folder, Refusal, write
from course.session import ROOT

pytestmark = [
    pytest.mark.skipif(kernels.MODE != "interpreter", reason="answers are graded in Triton's interpreter"),
    pytest.mark.filterwarnings("ignore:.*autoflush", "ignore:Cell is missing an id"),
]
NAME = "02_sharing_heads"
QUICK = confine.Limits(cell=5.0)
FULL = 21


def answer(notebook, grade_id: str):
    return next(cell for cell in notebook.cells if cell.metadata.get("nbgrader", {}).get("grade_id") == grade_id)


def changed(notebook, **answers):
    """A copy with other answers; names with '_' for '-'."""
    notebook = copy.deepcopy(notebook)
    for name, source in answers.items():
        answer(notebook, name.replace("_", "-")).source = source
    return notebook


def the_class(solved, handed_out) -> dict[str, object]:
    """Twelve students."""
    patching = (
        "import course.grading.student, torch\ncourse.grading.student.check = check = lambda *a: print('full points')\n"
        "from torch.utils.flop_counter import FlopCounterMode\nFlopCounterMode.get_total_flops = lambda self: 0"
    )
    edited = changed(solved, predict="assert True", heads="print('3 of 3')")
    edited.cells.remove(answer(edited, "attention"))
    stripped = copy.deepcopy(solved)
    stripped.metadata = {}
    for cell in stripped.cells:
        cell.metadata = {}
        del cell["id"]
    explained = changed(solved, explain="Because of the page table.")
    return {
        "01-right": explained,
        "02-half": changed(solved, attention_answer="import torch\ndef gqa_attention(q, k, v, causal=False):\n    return q"),
        "03-nothing": handed_out,
        "04-empty-file": b"",
        "05-no-notebook": b"\xff\xfehello",
        "06-another": b'{"metadata": {"course": {"assignment": "p1_gpu"}}, "cells": []}',
        "07-crashing": changed(
            solved,
            heads_answer="import os\nos._exit(0)",
            attention_answer="while True:\n    pass",
        ),
        "08-asking": changed(solved, predict_answer="input('What do you want to know? ')", convert_answer="exit()"),
        "09-editing": edited,
        "10-stripped": stripped,
        "11-patching": changed(solved, predict_answer=patching),
        "12-prying": changed(solved, reorder_answer="print(open('seeds.json').read())"),
    }


POINTS = {
    "01-right": FULL, "02-half": 17, "03-nothing": 0, "04-empty-file": 0, "05-no-notebook": 0, "06-another": 0,
    "07-crashing": 14, "08-asking": 13, "09-editing": FULL, "10-stripped": FULL, "12-prying": 18,
}  # fmt: skip
UNREADABLE = ("04-empty-file", "05-no-notebook", "06-another")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A course folder with a release and a class collected, nothing graded."""
    made = Folder(tmp_path_factory.mktemp("class") / "course")
    assert handout.release(made, [NAME]) == 0
    inbox = tmp_path_factory.mktemp("inbox")
    solved, handed_out = (nbformat.read(path, as_version=4) for path in (made.source(NAME), made.release(NAME)))
    for student, submission in the_class(solved, handed_out).items():
        data = submission if isinstance(submission, bytes) else json.dumps(submission).encode()
        write(inbox / student / f"{NAME}.ipynb", data)
    collect.collect(made, inbox, NAME)
    return made


@pytest.fixture(scope="module")
def killed(folder):
    """The same after an autograde that was killed: times of the verdicts that there were."""
    place = folder.root / "verdicts" / NAME
    process = subprocess.Popen(
        [sys.executable, "-m", "course.grading", "--course", folder.root, "autograde", "--jobs=1", "--cell-seconds=5"],
        cwd=ROOT, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        until = time.monotonic() + 120
        while len(list(place.glob("*.json"))) < 2 and process.poll() is None and time.monotonic() < until:
            time.sleep(0.05)
        below = psutil.Process(process.pid).children(recursive=True)
    finally:
        process.kill()
        process.wait()
    assert below
    gone, alive = psutil.wait_procs(below, timeout=10)
    assert not alive, "processes went on after the command that started them"
    return {path.name: path.stat().st_mtime_ns for path in place.glob("*.json")}


@pytest.fixture(scope="module")
def graded(folder, killed):
    """The class graded to the end: the folder and what was said."""
    said = []
    assert autograde.autograde(folder, [NAME], jobs=1, limits=QUICK, say=said.append) == 0
    return folder, said


@pytest.fixture(scope="module")
def book(graded):
    from course.grading.gradebook import Book

    return Book(graded[0])


def grades(book, student) -> dict[str, object]:
    with book.open() as gradebook:
        submission = gradebook.find_submission(NAME, student)
        return {
            g.name: (g.auto_score, g.manual_score, g.score, g.needs_manual_grade)
            for n in submission.notebooks
            for g in n.grades
        }


def test_the_release_holds_no_solution_and_is_what_students_need(folder):
    text = folder.release(NAME).read_text()
    assert "SOLUTION" not in text and '"stub"' not in text
    handed_out = nbformat.read(folder.release(NAME), as_version=4)
    assert answer(handed_out, "predict").metadata["editable"] is False
    without = release.without_solutions(nbformat.read(folder.source(NAME), as_version=4))
    assert [cell.source for cell in handed_out.cells] == [cell.source for cell in without.cells]


def test_a_killed_run_goes_on_where_it_was(killed, graded):
    folder, said = graded
    now = {path.name: path.stat().st_mtime_ns for path in (folder.root / "verdicts" / NAME).glob("*.json")}
    assert len(killed) >= 2 and len(now) == 12 and now.items() >= killed.items()
    assert sum(line.startswith("[") for line in said) == 12


def test_everybody_gets_what_they_have_earned(graded, book):
    folder, _ = graded
    for student, points in POINTS.items():
        assert autograde.points(folder.verdict(NAME, student)) == (points, FULL), student
        assert sum(score for _, _, score, _ in grades(book, student).values()) == points, student
    patched = folder.verdict(NAME, "11-patching")
    assert patched["irregular"] and 0 < autograde.points(patched)[0] < FULL


def test_what_a_person_should_look_at_is_listed_and_marked(graded, book):
    _, said = graded
    looked = "\n".join(line for line in said if line.startswith("look at"))
    for student in (*UNREADABLE, "11-patching"):
        assert student in looked and all(waiting for *_, waiting in grades(book, student).values())
    assert grades(book, "01-right")["explain"] == (None, None, 0.0, True)
    assert not any(waiting for *_, waiting in grades(book, "03-nothing").values())


def test_the_graded_notebook_says_why(graded):
    folder, _ = graded

    def text(student):
        return (folder.root / "autograded" / student / NAME / f"{NAME}.ipynb").read_text()

    assert "its cell: ended its process" in text("07-crashing")
    assert "there is no `predicted`" in text("08-asking") and "EOFError" in text("08-asking")
    assert "was missing and was put back" in text("09-editing") and "had been changed and was restored" in text("09-editing")
    assert "The submission could not be read: the file is empty" in text("04-empty-file")
    assert (folder.root / "submitted" / "05-no-notebook" / NAME / f"{NAME}.ipynb").read_bytes() == b"\xff\xfehello"


def test_grades_comments_and_scores_by_hand_survive_grading_again(graded, book):
    folder, _ = graded
    with book.open() as gradebook:
        grade = gradebook.find_grade("explain", NAME, NAME, "01-right")
        grade.manual_score, grade.needs_manual_grade = 3, False
        gradebook.find_grade("attention", NAME, NAME, "02-half").manual_score = 1.5
        gradebook.find_comment("explain", NAME, NAME, "01-right").manual_comment = "Say which page."
        gradebook.db.commit()
    said = []
    assert autograde.autograde(folder, [NAME], jobs=1, limits=QUICK, say=said.append) == 0
    assert grades(book, "01-right")["explain"] == (None, 3.0, 3.0, False)  # nothing had changed, so nothing was written
    path = folder.root / "autograded" / "01-right" / NAME / f"{NAME}.ipynb"
    path.unlink()
    (path.parent / "mine.txt").write_text("kept")
    assert autograde.autograde(folder, [NAME], jobs=1, limits=QUICK, say=said.append) == 0
    assert grades(book, "01-right")["explain"][:3] == (None, 3.0, 3.0)
    assert grades(book, "02-half")["attention"][1:3] == (1.5, 1.5)
    assert path.exists() and (path.parent / "mine.txt").read_text() == "kept"
    with book.open() as gradebook:
        assert gradebook.find_comment("explain", NAME, NAME, "01-right").comment == "Say which page."


def test_nbgrader_takes_the_verdicts_itself(graded, book):
    folder, _ = graded
    from nbgrader.converters import Autograde

    assert book.run(Autograde, NAME, "09-editing") == ""
    assert sum(score for _, _, score, _ in grades(book, "09-editing").values()) == FULL
    write(folder.root / "submitted" / "13-late" / NAME / f"{NAME}.ipynb", folder.release(NAME).read_bytes())
    try:
        assert f"python -m course.grading autograde {NAME}" in book.run(Autograde, NAME, "13-late")
    finally:
        (folder.root / "submitted" / "13-late" / NAME / f"{NAME}.ipynb").unlink()
        (folder.root / "submitted" / "13-late" / NAME).rmdir()
    done = subprocess.run(
        [sys.executable, "-m", "nbgrader", "autograde", NAME, "--student=03-nothing", "--force"],
        cwd=folder.root, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_feedback_shows_reports_and_comments(graded, book):
    folder, _ = graded
    with book.open() as gradebook:
        gradebook.find_comment("explain", NAME, NAME, "08-asking").manual_comment = "A comment by hand."
        gradebook.db.commit()
    from nbgrader.converters import GenerateFeedback

    for student, said in {"08-asking": "A comment by hand.", "04-empty-file": "the file is empty"}.items():
        assert book.run(GenerateFeedback, NAME, student) == ""
        assert said in (folder.root / "feedback" / student / NAME / f"{NAME}.html").read_text()


def test_the_export_has_a_column_for_each_task(graded, book, tmp_path):
    from course.grading import report

    files = report.export(book, [NAME], tmp_path / "out")
    with files[0].open(newline="") as file:
        rows = {row["student"]: row for row in csv.DictReader(file)}
    assert {student: float(row["points"]) + float(row["stretch"]) for student, row in rows.items() if student in POINTS} == {
        **POINTS, "01-right": FULL + 3, "02-half": 18.5,
    }  # fmt: skip
    assert float(rows["12-prying"]["stretch"]) == 0 and float(rows["12-prying"]["reorder"]) == 0
    assert rows["12-prying"]["stretch_of"] == "3.0" and rows["12-prying"]["of"] == "22.0"
    assert "explain" not in rows["03-nothing"]["needs_manual"] and "the file is empty" in rows["04-empty-file"]["remarks"]
    assert "nbgrader.csv" in files[1].name and files[1].read_text().count(NAME) >= 12
    with pytest.raises(Refusal, match="there already"):
        report.export(book, [NAME], tmp_path / "out")


def test_the_release_is_not_drawn_anew_under_a_class(graded, capsys):
    folder, _ = graded
    before = folder.release(NAME).read_bytes()
    with pytest.raises(Refusal, match="handed in variant 1"):
        handout.release(folder, [NAME], "2")
    assert handout.release(folder, [NAME]) == 0 and folder.release(NAME).read_bytes() == before


def test_variants_differ_and_an_edited_source_is_kept(tmp_path, capsys):
    folder = Folder(tmp_path / "course")
    texts = {}
    for variant in ("1", "2", "public"):
        assert handout.release(folder, ["p3_attention"], variant) == 0
        texts[variant] = folder.release("p3_attention").read_text()
    assert len(set(texts.values())) == 3
    source = folder.source("p3_attention")
    source.write_text(source.read_text().replace("# P3", "# Mine: P3"))
    assert handout.release(folder, ["p3_attention"], "public") == 0
    assert "# Mine: P3" in source.read_text() and "# Mine: P3" in folder.release("p3_attention").read_text()
    assert "edited source" in capsys.readouterr().out
    assert handout.release(folder, ["p3_attention"], "public", replace=True) == 0
    assert "# Mine" not in source.read_text() and "# Mine: P3" in source.with_suffix(".edited.ipynb.txt").read_text()
    with pytest.raises(Refusal, match="--variant"):
        handout.release(folder, ["p3_attention"], "0")


CLASSICAL = """
def double(x):
    ### BEGIN SOLUTION
    return 2 * x
    ### END SOLUTION
"""


def test_an_exercise_of_ones_own_goes_nbgraders_way(tmp_path):
    from nbgrader.converters import GenerateAssignment

    from course.grading.gradebook import Book

    book = Book(Folder(tmp_path / "course"))
    base = {"schema_version": 3, "task": False}
    cells = [nbformat.v4.new_code_cell(CLASSICAL), nbformat.v4.new_code_cell("assert double(2) == 4")]
    cells[0].metadata["nbgrader"] = {**base, "grade": False, "solution": True, "locked": False, "grade_id": "double"}
    cells[1].metadata["nbgrader"] = {**base, "grade": True, "solution": False, "locked": True, "grade_id": "t", "points": 2}
    metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    write(
        book.folder.root / "source" / "own" / "own.ipynb",
        nbformat.writes(nbformat.v4.new_notebook(cells=cells, metadata=metadata)),
    )
    assert book.run(GenerateAssignment, "own") == ""
    assert "2 * x" not in (book.folder.root / "release" / "own" / "own.ipynb").read_text()
    write(
        book.folder.root / "submitted" / "ada" / "own" / "own.ipynb",
        (book.folder.root / "source" / "own" / "own.ipynb").read_bytes(),
    )
    assert book.folder.other_names() == ["own"] and book.classical("own") == ""
    with book.open() as gradebook:
        assert gradebook.find_submission("own", "ada").score == 2


def test_commands_refuse_with_a_reason(tmp_path, capsys):
    course = ["--course", str(tmp_path / "course")]
    assert command.main([*course, "release", "p9"]) == 2 and "no assignment 'p9'" in capsys.readouterr().err
    assert command.main([*course, "collect", str(tmp_path), NAME]) == 2 and "there are: none" in capsys.readouterr().err
    assert command.main(["--course", str(ROOT / "x"), "status"]) == 2 and "may not lie" in capsys.readouterr().err
    assert command.main([*course, "status"]) == 0
    folder = Folder(tmp_path / "course")
    with autograde.locked(folder), pytest.raises(Refusal, match="another command"), autograde.locked(folder):
        pass


def test_a_worker_that_dies_costs_nobody_else(tmp_path, monkeypatch):
    folder = Folder(tmp_path / "course")
    write(folder.release("p3_attention"), nbformat.writes(release.without_solutions(release.solved("p3_attention"))))
    for student in ("ada", "bob"):
        write(folder.root / "submitted" / student / "p3_attention" / "p3_attention.ipynb", b"")
    write(folder.root / "submitted" / "eve" / "p3_attention" / "p3_attention.ipynb", b"eve")
    monkeypatch.setattr(autograde, "_safely", _dies_for_eve)
    monkeypatch.setattr(autograde, "MOST_TRIES", 1)  # a worker takes seconds to start
    found = {
        student: verdict
        for _, student, verdict in autograde.verdicts(folder, [("p3_attention", s) for s in ("ada", "bob", "eve")], jobs=1)
    }
    assert (
        "the process that grades it ended" in found["eve"]["fault"] and not folder.verdict_path("p3_attention", "eve").exists()
    )
    assert found["ada"]["unreadable"] == found["bob"]["unreadable"] == "the file is empty"


def test_what_a_machine_lacks_is_said():
    assert autograde.missing_fences({"nobody": False, "namespaces": True, "landlock": 7}) == set()
    assert len(autograde.missing_fences({"nobody": True, "namespaces": False, "landlock": 0})) == 2


def _dies_for_eve(submission, *arguments):
    if submission.data == b"eve":
        os.kill(os.getpid(), signal.SIGKILL)
    return autograde._grade(submission, *arguments)
