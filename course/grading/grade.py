"""The verdict on one submission: each task's report, what its cells did, and what an instructor should look at.

The grader goes through the rebuilt notebook from top to bottom, as 'Restart and run all' does: a cell is executed in the
answering process, and where a check stands the properties of its task look at the answer as it is there. Nothing in the verdict
comes from the checks that the learner's notebook holds. A cell that is no Python, or takes the process with it, loses its task,
and what was handed out is executed in its place.
"""

import ast
import dataclasses
import hashlib
import time
from collections.abc import Callable

from nbformat import NotebookNode

from . import rebuild
from .confine import Limits
from .draw import Draw
from .judge import Wrong
from .remote import Remote, Server, Session
from .tasks import UNANSWERED, Assignment, Line, Report, Task, judge

MOST_STOPS = 2
"""How often the answer of one task may end its process, or have to be stopped, before its other properties count as lost."""


def given_in(master: NotebookNode) -> dict:
    """The values that a release gives, read from its own cell."""
    for cell in master.cells:
        if rebuild.grade_id(cell) == "givens":
            for node in ast.parse(cell.source).body:
                if isinstance(node, ast.Assign) and rebuild.root_name(ast.unparse(node.targets[0])) == "givens":
                    return ast.literal_eval(node.value)
    raise ValueError("the release has no cell 'givens' that assigns them")


def grade(
    notebook: NotebookNode,
    master: NotebookNode,
    assignment: Assignment,
    seed: str,
    server: Server,
    draws: int = 2,
    limits: Limits | None = None,
    files: dict[str, bytes] | None = None,
) -> dict:
    """Grade a rebuilt notebook of the release ``master``; the verdict is plain data.

    seed: of the hidden inputs. draws: how many a property is looked at with. files: what lies beside the notebook.
    """
    begun, names = time.monotonic(), {task.name for task in assignment.tasks}
    handed_out = {rebuild.grade_id(cell): cell.source for cell in master.cells if rebuild.grade_id(cell)}
    streams = Draw(seed, givens=given_in(master))
    reports, cells, region = {}, {}, []
    with Session(server, limits, files) as session:
        for cell in notebook.cells:
            name = rebuild.grade_id(cell)
            if name in names:
                task = assignment.task(name)
                if _untouched(task, region, handed_out):
                    reports[name] = _lost(task, "unanswered", f"{UNANSWERED}: the cell is as it was handed out")
                elif spoilt := [cells[c.id]["ended"] for c in region if cells[c.id]["replaced"]]:
                    reports[name] = _lost(task, "failed", f"its cell: {'; '.join(spoilt)}")
                elif lacking := _lacking(task, region, handed_out):
                    reports[name] = _lost(task, "wrong", lacking)
                else:
                    draw = streams.of(f"{assignment.name}.{name}")
                    reports[name] = _judged(session, task, [draw.of(i) for i in range(draws)], _why(cells, region))
                region = []
            elif cell.cell_type == "code":
                ran = session.run(cell.source, own=name is None)
                # What was handed out holds imports, say, that later tasks count on.
                replaced = name in handed_out and (ran.fatal or not ran.began)
                if replaced:
                    session.run(handed_out[name])
                cells[cell.id] = {"ended": ran.ended, "said": ran.said, "replaced": replaced}
                region.append(cell)
        irregular = list(dict.fromkeys(session.irregular))
    return {
        "tasks": {name: dataclasses.asdict(report) for name, report in reports.items()},
        "cells": {key: value for key, value in cells.items() if value["ended"] or value["said"]},
        "irregular": irregular,
        "seconds": round(time.monotonic() - begun, 1),
    }


def _untouched(task: Task, region: list[NotebookNode], handed_out: dict[str, str]) -> bool:
    """Whether the answer is what was handed out: a bug that nobody touched earns nothing for what it leaves right."""
    answers = [cell for cell in region if rebuild.is_answer(cell)]
    added = [cell for cell in region if rebuild.grade_id(cell) is None]
    return (
        bool(answers)
        and all(rebuild.same_code(cell.source, handed_out[rebuild.grade_id(cell)]) for cell in answers)
        and not any(rebuild.root_name(task.answer) in rebuild.defined(cell.source) for cell in added)
    )


def _lacking(task: Task, region: list[NotebookNode], handed_out: dict[str, str]) -> str:
    """What a repair lacks: without the definition that holds the bug, the rest of the package is right as we ship it."""
    if task.kind != "fix":
        return ""
    asked = [handed_out[rebuild.grade_id(cell)] for cell in region if rebuild.is_answer(cell)]
    wanted = {pair for source in asked for pair in rebuild.changed_definitions(source)}
    there = {pair for cell in region for pair in rebuild.changed_definitions(cell.source)}
    names = ", ".join(f"`{name}`" for _, name in sorted(wanted - there))
    return f"the cell no longer holds {names}, which was handed out to be mended" if names else ""


def _lost(task: Task, state: str, message: str) -> Report:
    lines = (Line(p.name, p.about, 0, points, message, state) for p, points in task.points)
    return Report(task.name, task.title, tuple(lines), public=False)


def _judged(session: Session, task: Task, draws: list[Draw], why: str) -> Report:
    stops = 0

    def guarded(check: Callable) -> Callable:
        def looked_at(_, draw) -> str | None:
            nonlocal stops
            if stops >= MOST_STOPS:
                raise Wrong("not looked at, because the answer had ended its process or been stopped before")
            try:
                with session.within(task.seconds):
                    return check(_There(session, task.answer, why), draw)
            finally:
                stops += session.sock is None

        return looked_at

    points = tuple((dataclasses.replace(prop, check=guarded(prop.check)), n) for prop, n in task.points)
    return judge(dataclasses.replace(task, points=points), None, draws, public=False)


class _There(Remote):
    """An answer that says, where there is none, what became of its cell."""

    def __init__(self, session: Session, expression: str, why: str):
        super().__init__(session, expression)
        self._why = why

    def _here(self):
        try:
            return super()._here()
        except (NameError, AttributeError) as error:
            raise Wrong(f"there is no `{self._expression}`: {error}{self._why}") from None


def _why(cells: dict, region: list[NotebookNode]) -> str:
    """How those of a task's answer cells ended that did not end well."""
    ends = [cells[cell.id]["ended"] for cell in region if rebuild.is_answer(cell) and cells[cell.id]["ended"]]
    return f" (its cell: {'; '.join(ends)})" if ends else ""


def digest(*parts: bytes | str) -> str:
    """SHA-256 of all parts in order."""
    total = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        total.update(len(data).to_bytes(8, "big") + data)
    return total.hexdigest()
