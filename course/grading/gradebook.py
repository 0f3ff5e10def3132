"""nbgrader and ours: it keeps gradebook, autograded notebooks, feedback and export; points come from the verdicts.

`configure` is what the course folder's nbgrader_config.py calls. It puts preprocessors of ours in nbgrader's own chains, so its
commands and its web pages work in that folder as they always do:

generate_assignment   our stubs in place of solutions (`HandOut`)
autograde             the rebuilt notebook in place of what was handed in (`Rebuild`); points and report of the verdict in the
                      checks, and nothing executed (`Verdicts`); what is irregular is marked for a person (`Attention`)

Assignments that are not of the course (BEGIN SOLUTION and HIDDEN TESTS in cells, as nbgrader's manual has it) go the classical
way: nbgrader executes them itself, in the instructor's account, with no fence around them.
"""

import contextlib
import html
import logging
import os
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import nbformat
from nbconvert.preprocessors import ClearMetadataPreprocessor
from nbgrader.api import Gradebook, MissingEntry
from nbgrader.converters import Autograde, GenerateAssignment, GenerateFeedback
from nbgrader.converters.base import NbGraderException
from nbgrader.coursedir import CourseDirectory
from nbgrader.preprocessors import (
    AssignLatePenalties,
    CheckCellMetadata,
    ClearHiddenTests,
    ClearMarkScheme,
    ClearOutput,
    ClearSolutions,
    ComputeChecksums,
    DeduplicateIds,
    Execute,
    IgnorePattern,
    IncludeHeaderFooter,
    InstantiateTests,
    LimitOutput,
    LockCells,
    NbGraderPreprocessor,
    OverwriteCells,
    OverwriteKernelspec,
    SaveAutoGrades,
    SaveCells,
)
from traitlets.config import Config
from traitlets.config.loader import PyFileConfigLoader

from . import rebuild, release
from .assignments import ASSIGNMENTS
from .folder import Folder, write
from .tasks import Line, Report

COURSE_ID = "from-mha-to-mla"
warnings.filterwarnings("ignore", message=".*autoflush.*")
# Some services leave ids out; the rebuilt notebook has them.
warnings.filterwarnings("ignore", category=nbformat.warnings.MissingIDFieldWarning)


def _ours(resources) -> str | None:
    name = resources["nbgrader"]["assignment"]
    return name if name in ASSIGNMENTS else None


class HandOut(ClearSolutions):
    """Our assignments get the stubs of their source, others nbgrader's."""

    def preprocess(self, nb, resources):
        if not _ours(resources):
            return super().preprocess(nb, resources)
        return release.without_solutions(nb), resources


class Rebuild(NbGraderPreprocessor):
    """The notebook as it is graded, in place of what was handed in."""

    def preprocess(self, nb, resources):
        name, student = _ours(resources), resources["nbgrader"]["student"]
        if not name:
            return nb, resources
        folder = Folder(self.parent.parent.coursedir.root)
        submission = folder.submission(student, name)
        try:
            nb, _ = rebuild.rebuild(folder.master(name), submission.data, ASSIGNMENTS[name])
        except rebuild.Unreadable:
            nb = folder.master(name)
        return nb, resources


class Verdicts(Execute):
    """The verdict's report and points in place of executing the checks."""

    def preprocess(self, nb, resources=None, km=None):
        name, student = _ours(resources), resources["nbgrader"]["student"]
        if not name:
            return super().preprocess(nb, resources, km)
        folder = Folder(self.parent.parent.coursedir.root)
        verdict = folder.verdict(name, student)
        if verdict is None or verdict["key"] != folder.key(folder.submission(student, name), verdict["draws"]):
            raise NbGraderException(
                f"there is no verdict on this submission of {student}; run `python -m course.grading autograde {name}`, which "
                "executes submissions behind fences, and writes the gradebook too"
            )
        return with_verdict(nb, verdict), resources


class Attention(NbGraderPreprocessor):
    """Marks what an instructor should look at, after the points were saved."""

    def preprocess(self, nb, resources):
        name, student = _ours(resources), resources["nbgrader"]["student"]
        verdict = Folder(self.parent.parent.coursedir.root).verdict(name, student) if name else None
        if verdict and (verdict["irregular"] or verdict.get("unreadable")):
            with Gradebook(resources["nbgrader"]["db_url"]) as book:
                for grade in book.find_submission_notebook(resources["nbgrader"]["notebook"], name, student).grades:
                    grade.needs_manual_grade = True
                book.db.commit()
        return nb, resources


def with_verdict(notebook, verdict: dict):
    """Put a verdict's reports, points and notes into a rebuilt notebook."""
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        cell.outputs = []
        ran = verdict["cells"].get(cell.id)
        if ran is not None:
            said = ran["said"] if ran["said"].endswith("\n") or not ran["said"] else ran["said"] + "\n"
            ended = f"[this cell {_as_sentence(ran['ended'])}]\n" if ran["ended"] else ""
            # On stdout: nbgrader takes anything on stderr for a failure.
            cell.outputs.append(nbformat.v4.new_output("stream", name="stdout", text=said + ended))
        metadata = cell.metadata.get("nbgrader", {})
        if metadata.get("grade") and metadata.get("locked"):
            task = verdict["tasks"].get(metadata["grade_id"])
            report = report_of(task) if task else None
            text = str(report) if report else "not graded: " + verdict.get("unreadable", "the task is not part of the verdict")
            shown = {"text/plain": text, "text/html": report._repr_html_() if report else f"<p>{html.escape(text)}</p>"}
            points = min(report.got if report else 0, metadata["points"])
            cell.outputs.append(nbformat.v4.new_output("display_data", data=shown))
            # nbgrader's own rule: a result that is a number is the points.
            cell.outputs.append(
                nbformat.v4.new_output("execute_result", data={"text/plain": str(points)}, execution_count=None)
            )
    notes = [f"The submission could not be read: {verdict['unreadable']}."] if verdict.get("unreadable") else []
    notes += [f"Note: {note}." for note in verdict["notes"]]
    notes += [f"For the instructor: {what}." for what in verdict["irregular"]]
    if notes:
        cell = nbformat.v4.new_markdown_cell("\n\n".join(html.escape(note, quote=False) for note in notes))
        cell.id = "notes-of-grading"
        notebook.cells.insert(0, cell)
    notebook.metadata["course"] = {"assignment": verdict["assignment"], "verdict": verdict["key"]}
    return notebook


def _as_sentence(ended: str) -> str:
    return ended if ended.startswith(("ran ", "ended ", "sent ", "was ", "took ")) else f"ended with {ended}"


def report_of(task: dict) -> Report:
    """A report from a verdict's plain data."""
    return Report(task["task"], task["title"], tuple(Line(**line) for line in task["lines"]), public=False)


def configure(config, folder: str | Path) -> None:
    """Set up nbgrader for a course folder."""
    config.CourseDirectory.root = str(folder)
    config.CourseDirectory.course_id = COURSE_ID
    config.GenerateAssignment.preprocessors = [
        *(IncludeHeaderFooter, InstantiateTests, LockCells, HandOut, ClearOutput, CheckCellMetadata, ComputeChecksums),
        *(SaveCells, ClearHiddenTests, ClearMarkScheme, ComputeChecksums, CheckCellMetadata),
    ]
    config.Autograde.sanitize_preprocessors = [
        *(Rebuild, ClearOutput, DeduplicateIds, OverwriteKernelspec, OverwriteCells, CheckCellMetadata),
    ]
    config.Autograde.autograde_preprocessors = [
        *(Verdicts, IgnorePattern, ClearMetadataPreprocessor, LimitOutput, SaveAutoGrades, AssignLatePenalties, Attention),
        CheckCellMetadata,
    ]


class Book:
    """nbgrader in a course folder, called from Python. It reads the folder's nbgrader_config.py, with what was added there."""

    def __init__(self, folder: Folder):
        folder.create()
        # nbgrader starts `alembic` by its name alone, which lies beside this Python.
        os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
        self.folder, self.config = folder, Config()
        configure(self.config, folder.root)
        own = folder.root / "nbgrader_config.py"
        self.config.merge(PyFileConfigLoader(own.name, str(own.parent)).load_config())
        self.directory = CourseDirectory(config=self.config)
        self.log = logging.getLogger("course.grading.nbgrader")

    @contextlib.contextmanager
    def open(self) -> Iterator[Gradebook]:
        with Gradebook(self.directory.db_url, self.directory.course_id) as book:
            yield book

    def run(self, converter, name: str, student: str = "*", submitted: str | None = None, notebook: str | None = None) -> str:
        """Run one of nbgrader's converters; return '' or why it failed."""
        directory = CourseDirectory(config=self.config)
        directory.assignment_id, directory.student_id = name, student
        # Naming the notebook makes nbgrader replace that file, and not remove the folder around it.
        directory.notebook_id = notebook or (name if name in ASSIGNMENTS else "*")
        if submitted:
            directory.submitted_directory = submitted
        app = converter(coursedir=directory, config=self.config)
        app.force = True
        said: list[str] = []

        class Keep(logging.Handler):
            def emit(self, record):
                if record.levelno >= logging.ERROR:
                    said.append(record.getMessage())

        handler, level, spread = Keep(), app.log.level, app.log.propagate
        silent, app.log.handlers = app.log.handlers, [handler]
        app.log.propagate = False
        here = os.getcwd()
        try:
            app.start()
        except (NbGraderException, SystemExit) as error:
            return "\n".join(said) or str(error)
        finally:
            os.chdir(here)
            app.log.handlers, app.log.level, app.log.propagate = silent, level, spread
        return ""

    # ---- what the commands do ----

    def release(self, name: str) -> str:
        return self.run(GenerateAssignment, name)

    def has_submissions(self, name: str) -> bool:
        with self.open() as book:
            try:
                return len(book.find_assignment(name).submissions) > 0
            except MissingEntry:
                return False

    def graded_key(self, name: str, student: str) -> str | None:
        """Key of the verdict that the gradebook holds for a student, if it holds one."""
        path = self.folder.root / "autograded" / student / name / f"{name}.ipynb"
        try:
            key = nbformat.read(path, as_version=4).metadata.get("course", {}).get("verdict")
        except (OSError, ValueError):
            return None
        with self.open() as book:
            try:
                book.find_submission(name, student)
            except MissingEntry:
                return None
        return key

    def write_verdict(self, name: str, student: str, unreadable: bool) -> str:
        """Let nbgrader autograde one submission; return '' or why it failed."""
        plain = self.folder.root / "submitted" / student / name / f"{name}.ipynb"
        if not unreadable and plain.is_file():
            return self.run(Autograde, name, student)
        # nbgrader opens the file first, and there is none that it could open: give it the release to put the verdict into.
        stand_in = Path("verdicts", f".stand-in-{os.getpid()}")
        place = self.folder.root / stand_in / student / name
        try:
            write(place / f"{name}.ipynb", self.folder.release(name).read_bytes())
            timestamp = plain.with_name("timestamp.txt")
            if timestamp.is_file():
                shutil.copy(timestamp, place)
            return self.run(Autograde, name, student, submitted=str(stand_in))
        finally:
            shutil.rmtree(self.folder.root / stand_in, ignore_errors=True)

    def describe(self, student: str, **about: str) -> None:
        """Store what the class list says of a student."""
        with self.open() as book:
            book.update_or_create_student(student, **about)

    def all_feedback(self, names: list[str], say: Callable[[str], None] = print) -> int:
        """Write the page of every student who is in the gradebook, comments of today included; return how many failed."""
        work = [
            (name, path.parent.name) for name in names for path in sorted((self.folder.root / "autograded").glob(f"*/{name}"))
        ]
        failed = 0
        for i, (name, student) in enumerate(work, 1):
            why = self.run(GenerateFeedback, name, student)
            failed += bool(why)
            say(f"[{i:>4}/{len(work)}] {name} {student}: {why or f'feedback/{student}/{name}'}")
        return failed

    def classical(self, name: str, student: str = "*") -> str:
        """nbgrader's own way for an assignment that is not of the course."""
        return self.run(Autograde, name, student)
