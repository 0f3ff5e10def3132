"""Reports of ``make gpu-test``: what passed on which GPU, with what, when. They lie beside the recordings of that GPU."""

import json
import os
import xml.etree.ElementTree as xml
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from .files import free_name
from .recordings import NUMBER, PROVENANCE, RECORDED, TEXT, WHOLE, fields, slug

SCHEMA, KIND = 1, "gpu-test"
# A recording's provenance without what concerns measuring.
WHERE = {name: kinds for name, kinds in PROVENANCE.items() if name not in ("method", "plan_sha256", "peers")}
OUTCOMES = ("passed", "failed", "skipped")


@dataclass(frozen=True)
class Report:
    """One report: ``files`` has the number of tests that passed, failed and were skipped in each file, ``left_out`` what was
    not run and why, ``seconds`` how long all of it took."""

    provenance: dict
    left_out: list[str]
    seconds: float
    files: dict[str, dict[str, int]]

    def total(self, outcome: str) -> int:
        """Number of tests that 'passed', 'failed' or were 'skipped'."""
        return sum(counts[outcome] for counts in self.files.values())


def count(results: Iterable[Path]) -> dict[str, dict[str, int]]:
    """Tests of each file by outcome, from pytest's results as JUnit XML of the form xunit1. An error counts as failed.

    Raises ValueError for results without a test.
    """
    files: dict[str, dict[str, int]] = {}
    for path in results:
        cases = list(xml.parse(path).iter("testcase"))
        if not cases:
            raise ValueError(f"{path.name} holds no test")
        for case in cases:
            outcome = "passed" if case.find("skipped") is None else "skipped"
            if case.find("failure") is not None or case.find("error") is not None:
                outcome = "failed"
            files.setdefault(case.get("file"), dict.fromkeys(OUTCOMES, 0))[outcome] += 1
    return dict(sorted(files.items()))


def write(report: Report, folder: Path | None = None) -> Path:
    """Write the report as ``gpu-test-<date>.json``, with a number where that is taken, into ``folder`` or the GPU's own."""
    folder = folder or RECORDED / slug(report.provenance["gpu"])
    data = {
        "schema": SCHEMA,
        "kind": KIND,
        "provenance": {name: report.provenance[name] for name in WHERE},
        "left_out": report.left_out,
        "seconds": report.seconds,
        "files": report.files,
    }
    _validate(data)
    folder.mkdir(parents=True, exist_ok=True)
    path = free_name(folder / f"{KIND}-{report.provenance['date']}.json", ".json")
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(json.dumps(data, indent=2) + "\n")
    os.replace(temporary, path)
    return path


def read(path: Path) -> Report:
    """Read and validate one report. Raises ValueError that names the file, the place and what is wrong with it."""
    try:
        data = json.loads(path.read_text())
        _validate(data)
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from None
    return Report(data["provenance"], data["left_out"], data["seconds"], data["files"])


def reports(*, folder: Path | None = None) -> list[Report]:
    """All reports that are kept, newest first."""
    found = [(read(path), path.name) for path in (folder or RECORDED).glob(f"*/{KIND}-*.json")]
    found.sort(key=lambda pair: (pair[0].provenance["date"], len(pair[1]), pair[1]), reverse=True)
    return [report for report, _ in found]


def _validate(data: object) -> None:
    wanted = {"schema": WHOLE, "kind": TEXT, "provenance": (dict,), "left_out": (list,), "seconds": NUMBER, "files": (dict,)}
    fields("report", data, wanted)
    if (data["schema"], data["kind"]) != (SCHEMA, KIND):
        raise ValueError(f"it is of schema {data['schema']} and kind {data['kind']!r}, not {SCHEMA} and {KIND!r}")
    fields("provenance", data["provenance"], WHERE)
    for name, counts in data["files"].items():
        if name.startswith("/"):
            raise ValueError(f"files holds {name!r}, which is not relative to the course's folder")
        fields(f"files.{name}", counts, dict.fromkeys(OUTCOMES, WHOLE))
