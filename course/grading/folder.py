"""The instructor's course folder: where releases, submissions, verdicts and the gradebook of a class lie.

It is outside the repository, and what a person put there is never removed: the commands write their own files anew, keep what
they replace, and touch no others.

    seeds.json        the private seed of the class, for you alone (mode 600), and which variant of each assignment is out
    source/NAME       the assignment with its solutions, values drawn     release/NAME      what students get
    students.csv      the class list, if you have one                     submitted/WHO/NAME  as collected
    earlier/WHO/NAME  submissions that a later one has replaced            verdicts/NAME     what grading found, a file each
    autograded, feedback, gradebook.db                                     nbgrader's        exports           CSV files
"""

import contextlib
import csv
import functools
import json
import os
import secrets
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

import nbformat

from ..session import ROOT
from . import grade, rebuild
from .assignments import ASSIGNMENTS
from .tasks import PUBLIC_SEED

DEFAULT = Path("~/from-mha-to-mla-course")
MOST_BESIDE = 20 << 20
"""Bytes of files that may lie beside a submitted notebook."""

CONFIG = """\
# Read by nbgrader wherever it is started in this folder. Add settings of your own below the last line.
import sys

sys.path.insert(0, {root!r})
from course.grading.gradebook import configure

configure(get_config(), {folder!r})
"""


class Refusal(Exception):
    """A command will not do what was asked; says why, and what to do instead."""


@dataclass(frozen=True)
class Submission:
    """What one student has handed in. ``data`` is the notebook's, ``beside`` the other files', by name."""

    student: str
    assignment: str
    data: bytes
    beside: dict[str, bytes]


def write(path: Path, text: str | bytes, mode: int = 0o644) -> None:
    """Write a file in one step: a reader, or a kill, finds the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(text.encode() if isinstance(text, str) else text)
        os.chmod(name, mode)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.remove(name)
        raise


class Folder:
    """A course folder. Raises `Refusal` for a place inside the repository, or around it."""

    def __init__(self, path: str | Path | None = None):
        self.root = Path(path or os.environ.get("COURSE") or DEFAULT).expanduser().resolve()
        if self.root == ROOT or ROOT in self.root.parents or self.root in ROOT.parents:
            raise Refusal(
                f"the course folder {self.root} and the repository {ROOT} may not lie in each other: what students hand in and "
                "the private seed do not belong there. Name another with --course FOLDER, or COURSE=FOLDER."
            )

    def create(self) -> None:
        """Make the folder and nbgrader's settings, where they are not there yet."""
        self.root.mkdir(parents=True, exist_ok=True)
        config = self.root / "nbgrader_config.py"
        if not config.exists():
            write(config, CONFIG.format(root=str(ROOT), folder=str(self.root)))

    # ---- seeds ----

    @functools.cached_property
    def _seeds(self) -> dict:
        path = self.root / "seeds.json"
        if not path.exists():
            self.create()
            new = json.dumps({"secret": secrets.token_hex(32), "releases": {}}, indent=1) + "\n"
            with contextlib.suppress(FileExistsError):  # another command made it in the same moment
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                with os.fdopen(descriptor, "w") as file:
                    file.write(new)
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise Refusal(f"others may read {path}, which holds the private seed of the class: chmod 600 {path}")
        try:
            seeds = json.loads(path.read_text(encoding="utf-8"))
            assert isinstance(seeds["secret"], str) and len(seeds["secret"]) >= 16 and isinstance(seeds["releases"], dict)
        except (ValueError, KeyError, TypeError, AssertionError):
            raise Refusal(f"{path} is not what was written there; restore it from a copy: grades depend on it") from None
        return seeds

    def released(self, name: str) -> dict:
        """What is known of a release: its variant, and the digest of the source as it was written. Empty before the first."""
        return self._seeds["releases"].get(name, {})

    def set_released(self, name: str, **known) -> None:
        self._seeds["releases"][name] = known
        write(self.root / "seeds.json", json.dumps(self._seeds, indent=1) + "\n", 0o600)

    def release_seed(self, variant: int | str) -> str:
        """Seed of the values and bugs of a variant: a number from 1, or 'public' for what everybody can download."""
        return PUBLIC_SEED if variant == PUBLIC_SEED else grade.digest(self._seeds["secret"], "release", str(variant))

    @property
    def hidden_seed(self) -> str:
        """Seed of the inputs that answers are graded with."""
        return grade.digest(self._seeds["secret"], "hidden")

    # ---- files ----

    def source(self, name: str) -> Path:
        return self.root / "source" / name / f"{name}.ipynb"

    def release(self, name: str) -> Path:
        return self.root / "release" / name / f"{name}.ipynb"

    def master(self, name: str):
        """The release as it was handed out. Raises `Refusal` before there is one."""
        if not self.release(name).is_file():
            raise Refusal(f"{name} was not released yet: python -m course.grading release {name}")
        return nbformat.read(self.release(name), as_version=4)

    def released_names(self) -> list[str]:
        """Assignments of the course that have a release here, in the book's order."""
        return [name for name in ASSIGNMENTS if self.release(name).is_file()]

    def other_names(self) -> list[str]:
        """Assignments of the instructor's own in this folder."""
        found = (
            sorted(p.name for p in (self.root / "source").glob("*") if p.is_dir()) if (self.root / "source").is_dir() else []
        )
        return [name for name in found if name not in ASSIGNMENTS]

    def students(self, name: str) -> list[str]:
        """Who has handed in an assignment."""
        return sorted(p.parent.name for p in (self.root / "submitted").glob(f"*/{name}") if p.is_dir())

    def submission(self, student: str, name: str) -> Submission:
        """What a student has handed in. A folder without a notebook gives an empty one."""
        place = self.root / "submitted" / student / name
        files = [p for p in sorted(place.rglob("*")) if p.is_file() and not p.is_symlink() and p.name != "timestamp.txt"]
        notebooks = [p for p in files if p.suffix == ".ipynb"]
        wanted = [p for p in notebooks if p == place / f"{name}.ipynb"] or (notebooks if len(notebooks) == 1 else [])
        beside, total = {}, 0
        for path in files:
            total += path.stat().st_size if path not in wanted else 0
            if path not in wanted and total <= MOST_BESIDE:
                beside[str(path.relative_to(place))] = path.read_bytes()
        data = b""
        if wanted:
            with wanted[0].open("rb") as file:  # one byte more than is taken says that it is too long
                data = file.read(rebuild.LARGEST + 1)
        return Submission(student, name, data, beside)

    # ---- verdicts ----

    def key(self, submission: Submission, draws: int) -> str:
        """What a verdict depends on: the submission, the release, the seed, the number of draws, the code that grades."""
        beside = [part for item in sorted(submission.beside.items()) for part in item]
        seed = grade.digest(self.hidden_seed)
        release = self.release(submission.assignment).read_bytes()
        return grade.digest(submission.data, *beside, release, seed, str(draws), grader_digest())

    def verdict_path(self, name: str, student: str) -> Path:
        return self.root / "verdicts" / name / f"{student}.json"

    def verdict(self, name: str, student: str) -> dict | None:
        """The last verdict on a student's submission, whether it is of the present one or not (see its 'key')."""
        with contextlib.suppress(OSError, ValueError):
            found = json.loads(self.verdict_path(name, student).read_text(encoding="utf-8"))
            return found if isinstance(found, dict) and "key" in found else None
        return None

    # ---- the class list ----

    def class_list(self) -> dict[str, dict] | None:
        """students.csv by id: columns id, first_name, last_name, email. None where there is none."""
        path = self.root / "students.csv"
        if not path.is_file():
            return None
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = list(csv.DictReader(file))
        if rows and "id" not in rows[0]:
            raise Refusal(f"{path} has no column 'id' (it has {', '.join(map(str, rows[0]))})")
        columns = ("first_name", "last_name", "email")
        return {
            row["id"].strip(): {c: row[c].strip() for c in columns if row.get(c)} for row in rows if (row["id"] or "").strip()
        }


@functools.cache
def grader_digest() -> str:
    """Digest of the code that a verdict depends on."""
    patterns = ("course/grading/**/*.py", "kernels/*.py", "course/costs/*", "course/layers/*.py", "course/measure/traffic.py")
    files = sorted({path for pattern in patterns for path in ROOT.glob(pattern) if path.is_file()})
    return grade.digest(*(part for path in files for part in (str(path.relative_to(ROOT)), path.read_bytes())))


def named(names: list[str], known: list[str]) -> list[str]:
    """The assignments that a command names, all known ones if none. Raises `Refusal` for one that is not known."""
    for name in names:
        if name not in known:
            raise Refusal(f"there is no assignment {name!r} here (there are: {', '.join(known) or 'none'})")
    return names or known
