"""The sources of the assignments agree with their tasks, run, and leave nothing of a solution in what is handed out."""

import ast
import json
import re
import subprocess
import sys

import nbformat
import pytest

import kernels
from course.grading import release
from course.grading.answers import Local
from course.grading.assignments import ASSIGNMENTS
from course.grading.tasks import PUBLIC_SEED, judge
from course.session import ROOT
from tests.course.grading.grade import SEEDS, draw

PRIVATE = ("spring", "autumn", "a", "b", "c")
HINT = re.compile(r"<summary>Hint (\d)")


@pytest.fixture(params=ASSIGNMENTS, scope="module")
def name(request):
    return request.param


@pytest.fixture(scope="module")
def source(name):
    return nbformat.read(release.SOURCES / f"{name}.ipynb", as_version=4)


def _metadata(cell) -> dict:
    return cell.metadata.get("nbgrader", {})


def _checks(notebook) -> dict:
    return {_metadata(cell)["grade_id"]: cell for cell in notebook.cells if cell.source.startswith("check(")}


def test_an_assignment_has_every_kind_of_task(name):
    assignment = ASSIGNMENTS[name]
    assert {task.kind for task in assignment.tasks} == {"predict", "fix", "build", "stretch"}
    assert assignment.objectives and assignment.rubric and 30 <= assignment.minutes <= 90
    points = {kind: sum(t.max_points for t in assignment.tasks if t.kind == kind) for kind in ("stretch", "build")}
    whole = sum(task.max_points for task in assignment.tasks) + sum(points for points, _ in assignment.rubric)
    assert points["stretch"] <= 4 and 15 <= whole <= 26
    told = re.search(r"(\d+) in all", release.solved(name).cells[0].source)
    assert told is None or int(told[1]) == whole


def test_the_metadata_is_that_of_the_tasks(name, source):
    assignment, checks = ASSIGNMENTS[name], _checks(source)
    assert list(checks) == [task.name for task in assignment.tasks]
    for task in assignment.tasks:
        cell = checks[task.name]
        assert cell.source == f'check("{name}.{task.name}", {task.answer}, givens)'
        assert _metadata(cell) == {
            "schema_version": 3, "grade": True, "solution": False, "locked": True, "task": False,
            "grade_id": task.name, "points": task.max_points,
        }  # fmt: skip
    explain = [cell for cell in source.cells if _metadata(cell).get("grade") and _metadata(cell)["solution"]]
    assert [_metadata(cell)["points"] for cell in explain] == [sum(points for points, _ in assignment.rubric)]
    assert all(cell.cell_type == "markdown" for cell in explain)


def test_ids_are_unique_and_cells_in_order(source):
    nbformat.validate(source)
    ids = [_metadata(cell)["grade_id"] for cell in source.cells if _metadata(cell)]
    assert len(set(ids)) == len(ids)
    assert len({cell.id for cell in source.cells}) == len(source.cells)
    for cell in source.cells:
        solved = release.SOLUTION.search(cell.source) is not None
        assert solved == ("course" in cell.metadata and "stub" in cell.metadata["course"])
        assert not solved or (_metadata(cell)["solution"] and not _metadata(cell)["locked"])
        assert cell.cell_type == "markdown" or not cell.outputs
    order = [_metadata(cell).get("grade_id") for cell in source.cells]
    for check in _checks(source):
        assert f"{check}-answer" in order[: order.index(check)]


def test_it_starts_as_its_chapter_does(name, source):
    def bootstrap(notebook):
        return [cell.source for cell in notebook.cells if "bootstrap" in cell.metadata.get("tags", [])]

    chapter = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)
    assert bootstrap(source) == bootstrap(chapter)
    assert source.metadata["kernelspec"] == chapter.metadata["kernelspec"]


def test_there_are_hints_in_steps(name, source):
    assignment, hints, kinds = ASSIGNMENTS[name], [], {}
    for cell in source.cells:
        hints += HINT.findall(cell.source) if cell.cell_type == "markdown" else []
        if cell.source.startswith("check("):
            kinds[_metadata(cell)["grade_id"]], hints = hints, []
    for task in assignment.tasks:
        assert kinds[task.name] == [str(i + 1) for i in range(len(kinds[task.name]))]
        assert len(kinds[task.name]) >= (2 if task.kind in ("fix", "build") else 0), f"{task.name} wants hints in steps"
    assert kinds[assignment.tasks[0].name]


@pytest.mark.parametrize("seed", [PUBLIC_SEED, *PRIVATE])
def test_nothing_of_a_solution_is_handed_out(name, seed):
    solved = release.solved(name, seed)
    handed_out = release.without_solutions(solved)
    text = json.dumps(handed_out, ensure_ascii=False)
    assert "SOLUTION" not in text and "<<" not in text and ">>" not in text and '"stub"' not in text
    lines = {line.strip() for cell in handed_out.cells for line in cell.source.splitlines()}
    secret = {line.strip() for cell in solved.cells for part in release.SOLUTION.findall(cell.source) for line in
              part.splitlines()[1:-1]}  # fmt: skip
    secret -= {line.strip() for cell in solved.cells for line in cell.metadata.get("course", {}).get("stub", "").splitlines()}
    open_text = {line.strip() for cell in solved.cells for line in release.SOLUTION.sub("", cell.source).splitlines()}
    assert secret - open_text
    assert not (secret - open_text) & lines
    for cell in handed_out.cells:
        if cell.cell_type == "code" and not cell.source.startswith("%%"):
            ast.parse(cell.source)


def test_the_code_of_the_sources_has_our_style(tmp_path):
    # What a magic defines is unknown to ruff, and each answer may import what it needs.
    for name in ASSIGNMENTS:
        nbformat.write(release.solved(name), tmp_path / f"{name}.ipynb")
    command = [
        sys.executable,
        "-m",
        "ruff",
        "check",
        "--quiet",
        "--extend-ignore=F811,F821",
        "--config",
        ROOT / "pyproject.toml",
    ]
    done = subprocess.run([*command, tmp_path], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def _run(shell, notebook, seen):
    """The cells in order, except that a check looks as ``seen(task, answer)`` does."""
    shell.user_ns.clear()
    shell.init_user_ns()
    for cell in notebook.cells:
        if cell.cell_type != "code" or "bootstrap" in cell.metadata.get("tags", []):
            continue
        if cell.source.startswith("check("):
            seen(_metadata(cell)["grade_id"], eval(cell.source, dict(shell.user_ns, check=lambda _, answer, givens: answer)))
            continue
        ran = shell.run_cell(cell.source, store_history=False, silent=True)
        ran.raise_error()


def test_the_solutions_get_all_points(name, shell, monkeypatch):
    def seen(task, answer):
        here = f"{name}.{task}"
        report = judge(ASSIGNMENTS[name].task(task), Local(answer), [draw(here, SEEDS[0])], public=False)
        assert report.got == report.points, report

    _run(shell, release.solved(name, SEEDS[0]), seen)


def test_what_is_handed_out_runs_and_asks(name, shell):
    def seen(task, answer):
        here, kind = f"{name}.{task}", ASSIGNMENTS[name].task(task).kind
        report = judge(ASSIGNMENTS[name].task(task), Local(answer), [draw(here, SEEDS[0])], public=True)
        # Without Triton nothing runs a kernel, whose fault cannot show then.
        unseen = {"not here"} if kernels.MODE == "reference" else set()
        if kind == "fix":
            assert 0 <= report.got < report.points + len(unseen), f"the bug is not seen by the public checks: {report}"
        else:
            assert {line.state for line in report.lines} <= {"unanswered"} | unseen, report

    _run(shell, release.without_solutions(release.solved(name, SEEDS[0])), seen)
