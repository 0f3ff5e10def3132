"""What a class has got, as files and on the screen: CSV files of points, and how far each assignment is."""

import csv
import io
from datetime import UTC, datetime
from pathlib import Path

from nbgrader.api import MissingEntry
from nbgrader.plugins import CsvExportPlugin

from . import autograde
from .assignments import ASSIGNMENTS
from .folder import Refusal, write
from .gradebook import Book


def table(book: Book, name: str) -> str:
    """CSV of one assignment: a row a student, a column a task; stretch tasks apart from the rest."""
    assignment, folder = ASSIGNMENTS[name], book.folder
    normal = [task.name for task in assignment.tasks if task.kind != "stretch"]
    stretch = [task.name for task in assignment.tasks if task.kind == "stretch"]
    listed = folder.class_list() or {}
    text = io.StringIO()
    out = csv.writer(text)
    with book.open() as grades:
        try:
            cells = {cell.name: cell.max_score for cell in grades.find_notebook(name, name).grade_cells}
        except MissingEntry:
            raise Refusal(f"{name} was not released yet: python -m course.grading release {name}") from None
        open_questions = [cell for cell in cells if cell not in normal + stretch]
        counted = [cell for cell in normal + open_questions if cell in cells]
        stretch = [cell for cell in stretch if cell in cells]
        head = ["student", "last_name", "first_name", "handed_in", *counted, "points", "of", "late_penalty"]
        out.writerow([*head, *stretch, "stretch", "stretch_of", "needs_manual", "remarks"])
        known = {student.id: student for student in grades.students}
        for student in sorted({*known, *listed}):
            row = known.get(student)
            names = [getattr(row, key, None) or listed.get(student, {}).get(key, "") for key in ("last_name", "first_name")]
            try:
                submission = grades.find_submission(name, student)
            except MissingEntry:
                out.writerow([student, *names, "", *[""] * len(counted), 0, sum(cells[c] for c in counted), 0]
                             + [*[""] * len(stretch), 0, sum(cells[c] for c in stretch), "", "nothing handed in"])  # fmt: skip
                continue
            scores, waiting = {}, []
            for grade in (grade for notebook in submission.notebooks for grade in notebook.grades):
                scores[grade.name] = grade.score
                waiting += [grade.name] if grade.needs_manual_grade else []
            verdict = folder.verdict(name, student) or {}
            remarks = [verdict["unreadable"]] if verdict.get("unreadable") else []
            remarks += verdict.get("irregular", []) + verdict.get("notes", [])
            row = [student, *names, submission.timestamp or "", *(scores.get(c, 0) for c in counted)]
            row += [
                sum(scores.get(c, 0) for c in counted),
                sum(cells[c] for c in counted),
                submission.late_submission_penalty or 0,
            ]
            row += [
                *(scores.get(c, 0) for c in stretch),
                sum(scores.get(c, 0) for c in stretch),
                sum(cells[c] for c in stretch),
            ]
            out.writerow([*row, " ".join(waiting), "; ".join(remarks)])
    return text.getvalue()


def export(book: Book, names: list[str], to: Path | None = None) -> list[Path]:
    """Write a CSV file for each assignment, and nbgrader's own of all. Raises `Refusal` rather than write over a file."""
    place = to or book.folder.root / "exports" / datetime.now(UTC).strftime("%Y-%m-%d-%H%M%S")
    files = {place / f"{name}.csv": table(book, name) for name in names}
    every = place / "nbgrader.csv"
    for path in [*files, every]:
        if path.exists():
            raise Refusal(f"{path} is there already; name another folder with --to")
    for path, text in files.items():
        write(path, text)
    place.mkdir(parents=True, exist_ok=True)
    with book.open() as grades:
        CsvExportPlugin(to=str(every), config=book.config).export(grades)
    return [*files, every]


def status(book: Book, draws: int = autograde.DRAWS) -> str:
    """A table: what is released, handed in, graded, in the gradebook, waiting for a person."""
    folder = book.folder
    lines = [f"{folder.root}"]
    head = ("assignment", "release", "handed in", "verdicts", "gradebook", "to look at")
    lines.append(f"{head[0]:<24}{head[1]:>10}{head[2]:>11}{head[3]:>10}{head[4]:>11}{head[5]:>12}")
    for name in folder.released_names():
        students, current, written, waiting = folder.students(name), 0, 0, 0
        for student in students:
            verdict = folder.verdict(name, student)
            fresh = verdict is not None and verdict["key"] == folder.key(folder.submission(student, name), verdict["draws"])
            current += fresh
            written += fresh and book.graded_key(name, student) == verdict["key"]
        with book.open() as grades:
            waiting = sum(bool(s.needs_manual_grade) for s in grades.assignment_submissions(name))
        variant = folder.released(name).get("variant", "by hand")
        lines.append(f"{name:<24}{variant!s:>10}{len(students):>11}{current:>10}{written:>11}{waiting:>12}")
    others = folder.other_names()
    if others:
        lines.append(f"your own, graded by nbgrader itself with no fences: {', '.join(others)}")
    return "\n".join(lines)
