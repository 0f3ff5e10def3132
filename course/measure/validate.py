"""Whether a recording (or a report of tests) can go into the book: complete, possible, silent about whose machine it was.

python -m course.measure --validate PATH …      files or folders; prints what is wrong, exit status 1 if anything is
"""

import re
from collections.abc import Iterator
from pathlib import Path

from .. import costs
from . import gpu_tests
from .recordings import LIMIT, PROVENANCE, READ, ROW, check, load, slug

DIGEST = re.compile(r"[0-9a-f]{64}")
DAY = re.compile(r"\d{4}-\d\d-\d\d")

# What names a machine or a person. Slashes inside words ('and/or') and in 'q/k' are neither.
PRIVATE = {
    "a path": re.compile(r"(?<![\w/.])(?:~|/[\w.-]+)/[\w.-]|\b[A-Za-z]:\\|\bfile:"),
    "an address": re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}\b(?!\+)|\b[\w.-]+@[\w-]+|\b(?:https?|ssh)://"),
}


def files(paths: list[Path]) -> list[Path]:
    """The recordings among ``paths`` and in the folders among them. ValueError for one that is not there."""
    found = []
    for path in paths:
        inside = sorted(path.rglob("*.json")) if path.is_dir() else [path] * path.is_file()
        if not inside:
            raise ValueError(f"{path} is neither a recording nor a folder with one")
        found += inside
    return found


def faults(path: Path) -> list[str]:
    """What keeps the recording or report at ``path`` out of the book, a line each; empty if nothing does."""
    try:
        found = _of_report(path) if is_report(path) else _of_recording(path)
        return [f"{path.name}: {fault}" for fault in found]
    except ValueError as error:
        return [str(error)]


def is_report(path: Path) -> bool:
    """Whether a file is a report of ``make gpu-test``, which lies beside recordings."""
    return path.name.startswith(f"{gpu_tests.KIND}-")


def _of_recording(path: Path) -> Iterator[str]:
    recording = load(path)
    yield from _named(path, recording.kind, recording.provenance)
    parts = [("provenance", PROVENANCE, [recording.provenance]), ("reads", READ, recording.reads),
             ("limits", LIMIT, recording.limits), ("rows", ROW, recording.rows)]  # fmt: skip
    for name, known, entries in parts:
        yield from _unknown(name, known, entries)
    yield from _private({"provenance": recording.provenance, "limits": recording.limits, "rows": recording.rows})
    yield from check(recording)


def _of_report(path: Path) -> Iterator[str]:
    report = gpu_tests.read(path)
    yield from _named(path, gpu_tests.KIND, report.provenance)
    yield from _unknown("provenance", gpu_tests.WHERE, [report.provenance])
    yield from _private({"provenance": report.provenance, "left_out": report.left_out, "files": list(report.files)})


def remarks(path: Path) -> list[str]:
    """What a reader of a recording without faults should know: an earlier version of the kernels, a GPU without limits."""
    if is_report(path):
        return []
    recording = load(path)
    said = []
    if not recording.current:
        said.append("recorded with another version of the kernels than the one here")
    try:
        costs.gpu(recording.provenance["gpu"])
    except ValueError:
        said.append(f"{recording.provenance['gpu']} is not in course/costs/gpus.json, so nothing says what it cannot reach")
    return [f"{path.name}: {remark}" for remark in said]


def _named(path: Path, kind: str, p: dict) -> Iterator[str]:
    """What is wrong with the name of a file, its folder, its day and its digests."""
    if not DAY.fullmatch(p["date"]):
        yield f"provenance.date is {p['date']!r}, not a day like 2026-11-30"
    if not re.fullmatch(rf"{re.escape(kind)}-{re.escape(p['date'])}(-\d+)?\.json", path.name):
        yield f"a recording of kind {kind!r} of {p['date']} is called {kind}-{p['date']}.json"
    if path.resolve().parent.name != slug(p["gpu"]):
        yield f"what was recorded on {p['gpu']} belongs into a folder called {slug(p['gpu'])}"
    for key in ("kernels_sha256", "plan_sha256"):
        if p.get(key) is not None and not DIGEST.fullmatch(p[key]):
            yield f"provenance.{key} is {p[key]!r}, not a SHA-256 of 64 hexadecimal digits"


def _unknown(name: str, known: dict, entries: list[dict]) -> Iterator[str]:
    """Fields that no recording has: nobody reads them, so nobody knows what they tell."""
    if more := sorted({key for entry in entries for key in entry} - set(known)):
        yield f"{name} has fields that nobody knows: {', '.join(more)}"


def _private(value: dict) -> Iterator[str]:
    for where, text in _texts(value):
        for what, pattern in PRIVATE.items():
            if found := pattern.search(text):
                yield f"{where} holds {what}: {text[max(0, found.start() - 10) : found.end() + 30]!r}"


def _texts(value: object, where: str = "") -> Iterator[tuple[str, str]]:
    """Every text in a value, and the names of its fields, with its place."""
    if isinstance(value, str):
        yield where, value
    for key, each in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        place = f"{where}.{key}" if where else str(key)
        if isinstance(key, str):
            yield place, key
        yield from _texts(each, place)
