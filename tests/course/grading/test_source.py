"""Sources follow their tasks: points and checks are written, what an author wrote stays."""

import dataclasses

import nbformat
import pytest

from course.grading import release, source
from course.grading.assignments import ASSIGNMENTS
from course.grading.tasks import Task, named


@named("something", "about it")
def something(answer, draw):
    return None


def read(name):
    return nbformat.read(release.SOURCES / f"{name}.ipynb", as_version=4)


@pytest.mark.parametrize("name", ASSIGNMENTS)
def test_sources_are_in_line_with_their_tasks(name):
    assert source.aligned(read(name), ASSIGNMENTS[name]) == read(name), f"python -m course.grading.source {name}"


@pytest.mark.parametrize("place", [0, 2, 5])
def test_a_new_task_gets_its_cells_in_its_place(place):
    assignment, before = ASSIGNMENTS["05_flash_decoding"], read("05_flash_decoding")
    new = Task("new", "build", "A new task", "mine", ((something, 2),))
    tasks = (*assignment.tasks[:place], new, *assignment.tasks[place:])
    after = source.aligned(before, dataclasses.replace(assignment, tasks=tasks))
    assert [c.metadata["nbgrader"]["grade_id"] for c in after.cells if c.source.startswith("check(")] == [t.name for t in tasks]
    added = [cell for cell in after.cells if cell not in before.cells]
    assert [cell.id for cell in added] == ["new-text", "new-answer", "new-check"]
    assert [cell for cell in after.cells if cell not in added] == before.cells
    assert "(2 points)" in added[0].source and added[2].metadata["nbgrader"]["points"] == 2
    nbformat.validate(after)
    first = after.cells.index(added[0])
    assert after.cells[first - 1].cell_type == "code" and after.cells[first + 3].cell_type == "markdown"
    assert release.without_solutions(after).cells[first + 1].source == "mine = None"


def test_a_bug_to_mend_is_taken_from_the_mutants():
    assignment = ASSIGNMENTS["05_flash_decoding"]
    new = Task("again", "fix", "Once more", "mended.merge", ((something, 1),))
    after = source.aligned(read(assignment.name), dataclasses.replace(assignment, tasks=(*assignment.tasks, new)))
    cell = next(cell for cell in after.cells if cell.id == "again-answer")
    assert (
        cell.source.splitlines()[0] == "%%change <<again.file>> as mended"
        and cell.metadata["course"]["stub"] == "<<again.broken>>"
    )


def test_points_follow(monkeypatch, tmp_path, capsys):
    old = read("05_flash_decoding")
    for cell in old.cells:
        if cell.metadata.get("nbgrader", {}).get("grade"):
            cell.metadata["nbgrader"]["points"] = 99
    nbformat.write(old, tmp_path / "05_flash_decoding.ipynb")
    monkeypatch.setattr(source, "SOURCES", tmp_path)
    assert source.main(["05_flash_decoding"]) == 0 and "written" in capsys.readouterr().out
    assert nbformat.read(tmp_path / "05_flash_decoding.ipynb", as_version=4) == read("05_flash_decoding")
    assert source.main(["05_flash_decoding"]) == 0 and "in line" in capsys.readouterr().out
    assert source.main(["no_such"]) == 2 and "no_such" in capsys.readouterr().err
