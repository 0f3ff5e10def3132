"""Take in what students have handed in: from a folder of folders, of files, or a zip of either.

Whose a file is, is read from its path, in this order:

    WHO/anything.ipynb              the folder is the student (a learning platform's 'WHO_12345_assignsubmission_file_' too)
    WHO_NAME.ipynb, WHO-NAME.ipynb  text before the assignment's name; 'Copy of', '_LATE_' and numbers are ignored
    --pattern REGEX                 your own: it is searched in the path, and its group (?P<student>…) is the student

Of several files of one student the latest counts. A submission that was collected before is kept in earlier/.
"""

import re
import unicodedata
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

from . import rebuild
from .folder import Folder, Refusal, write

MOST_FILES = 20_000
PLATFORM = re.compile(r"_\d+_assignsubmission\w*$")
COPY = re.compile(r"^copy[ _]of[ _]", re.IGNORECASE)


@dataclass(frozen=True)
class Handed:
    """A notebook that was found: its path there, when it was changed, and its bytes."""

    path: str
    time: datetime
    data: bytes


def found_in(place: Path) -> Iterator[Handed]:
    """Notebooks in a folder or a zip file. Raises `Refusal` for anything else."""
    if place.is_dir():
        for path in sorted(place.rglob("*.ipynb")):
            if path.is_file() and not path.is_symlink() and not _hidden(path.relative_to(place).parts):
                with path.open("rb") as file:
                    data = file.read(rebuild.LARGEST + 1)
                yield Handed(path.relative_to(place).as_posix(), datetime.fromtimestamp(path.stat().st_mtime, UTC), data)
    elif zipfile.is_zipfile(place):
        with zipfile.ZipFile(place) as archive:
            entries = [e for e in archive.infolist() if not e.is_dir()]
            if len(entries) > MOST_FILES:
                raise Refusal(f"{place} holds {len(entries)} files, {MOST_FILES} at most are read")
            for entry in entries:
                if entry.filename.endswith(".ipynb") and not _hidden(PurePosixPath(entry.filename).parts):
                    try:
                        with archive.open(entry) as file:
                            data = file.read(rebuild.LARGEST + 1)
                    except (zipfile.BadZipFile, RuntimeError, NotImplementedError) as error:  # damaged, or with a password
                        raise Refusal(f"{place}: {entry.filename} cannot be read ({error})") from None
                    # Names only say whose it is; nothing is extracted by its path.
                    yield Handed(entry.filename, datetime(*entry.date_time, tzinfo=UTC), data)
    else:
        raise Refusal(f"{place} is no folder and no zip file")


def _hidden(parts: tuple[str, ...]) -> bool:
    return any((part.startswith(".") and part != "..") or part == "__MACOSX" for part in parts)


def student_of(path: str, assignment: str, pattern: re.Pattern | None = None) -> str | None:
    """Whose file it is, or None where the path does not say."""
    if pattern is not None:
        match = pattern.search(path)
        return tidy(match["student"]) if match and match["student"] else None
    parts = PurePosixPath(path).parts
    if len(parts) > 1:
        # The innermost folder that is not named as the assignment: WHO/NAME/NAME.ipynb is nbgrader's own shape.
        for folder in reversed(parts[:-1]):
            if folder != assignment:
                return tidy(PLATFORM.sub("", folder.rstrip("_")))
        return None
    stem = COPY.sub("", PurePosixPath(path).stem)
    before, _, _ = stem.partition(assignment)
    if before == stem:
        return None
    who = re.sub(r"(_late)?(_\d+)*$", "", before.rstrip("_- "), flags=re.IGNORECASE)
    return tidy(COPY.sub("", who).rstrip("_- "))


def tidy(name: str) -> str | None:
    """A student's id as a folder and nbgrader can take it: letters, digits and ``_ . @ -``, a letter or digit at both ends."""
    name = re.sub(r"[^\w.@-]+", "_", unicodedata.normalize("NFC", name).strip())
    return name.strip("_.@-")[:100] or None


def collect(folder: Folder, place: Path, assignment: str, pattern: str | None = None) -> list[str]:
    """Take in all notebooks of an assignment; return what to tell, line by line."""
    try:
        compiled = re.compile(pattern) if pattern else None
    except re.error as error:
        raise Refusal(f"--pattern {pattern!r} is no regular expression: {error}") from None
    if compiled is not None and "student" not in compiled.groupindex:
        raise Refusal(f"--pattern {pattern!r} has no group (?P<student>…)")
    known, latest, said = folder.class_list(), {}, []
    ids = {tidy(student): student for student in known or {}}
    for handed in found_in(place):
        student = student_of(handed.path, assignment, compiled)
        if student is None:
            said.append(f"not collected: {handed.path}: its name does not say whose it is (see --pattern)")
        elif known is not None and student not in ids:
            said.append(f"not collected: {handed.path}: {student} is not in students.csv")
        else:
            latest.setdefault(student, []).append(handed)
    new = 0
    for student, files in sorted(latest.items()):
        files.sort(key=lambda handed: (handed.time, handed.path))
        for older in files[:-1]:
            said.append(f"{student}: {files[-1].path} is the latest; {older.path} is not used")
        new += _take(folder, student, assignment, files[-1], said)
    missing = sorted(set(ids) - set(folder.students(assignment)))
    if missing:
        said.append(f"nothing yet from {len(missing)}: {', '.join(missing)}")
    said.append(f"{assignment}: {len(latest)} students found, {new} new or changed submissions")
    return said


def _handed_in(place: Path) -> datetime | None:
    """When what lies in a student's folder was handed in."""
    try:
        return datetime.strptime((place / "timestamp.txt").read_text().strip(), "%Y-%m-%d %H:%M:%S UTC").replace(tzinfo=UTC)
    except (OSError, ValueError):
        return None  # somebody put the file there by hand


def _take(folder: Folder, student: str, assignment: str, handed: Handed, said: list[str]) -> bool:
    place = folder.root / "submitted" / student / assignment
    path = place / f"{assignment}.ipynb"
    if path.exists():
        old = path.read_bytes()
        if old == handed.data:
            return False
        if (before := _handed_in(place)) is not None and handed.time < before:
            said.append(f"{student}: {handed.path} is older than what was collected before, which stays")
            return False
        when = datetime.fromtimestamp(path.stat().st_mtime, UTC).strftime("%Y-%m-%d-%H%M%S")
        kept = folder.root / "earlier" / student / assignment / f"{when}.ipynb"
        while kept.exists():
            kept = kept.with_stem(kept.stem + "-again")
        write(kept, old)
        said.append(f"{student}: replaces an earlier submission, kept as {kept.relative_to(folder.root)}")
    write(path, handed.data)
    write(place / "timestamp.txt", handed.time.strftime("%Y-%m-%d %H:%M:%S UTC\n"))
    return True
