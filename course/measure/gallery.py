"""The page of recorded GPUs: what has been recorded, on which GPU, when and with what, from the files themselves.

``python -m course.measure --ledger`` writes the part of the page between its marks, like the ledger's.
"""

from collections import defaultdict
from pathlib import Path

from .. import costs
from . import gpu_tests
from .code import is_current
from .ledger import put, table
from .plans import KINDS
from .recordings import RECORDED, Recording, recordings

PAGE = RECORDED.parent / "recorded_gpus.md"


def by_gpu(folder: Path | None = None) -> dict[str, list[Recording]]:
    """All recordings in ``folder`` (default: the book's), by GPU; of one GPU in the order of the plans, the newest first."""
    found = defaultdict(list)
    for kind in KINDS:
        for recording in recordings(None, kind, folder=folder):
            found[recording.provenance["gpu"]].append(recording)
    return dict(sorted(found.items()))


def render(folder: Path | None = None) -> str:
    """The generated part of the page: each GPU with its limits as recorded, and a line for each of its recordings."""
    parts = []
    for gpu, its in by_gpu(folder).items():
        p = its[0].provenance
        parts += [
            f"## {gpu}",
            f"{p['sm_count']} SMs, compute capability {p['capability']}, {p['memory_bytes'] / 1e9:.0f} GB of memory, "
            f"{p['l2_bytes'] / costs.MiB:.0f} MiB of L2, as the device reports them.",
            *[tested(report) for report in gpu_tests.reports(folder=folder) if report.provenance["gpu"] == gpu][:1],
            table("kind | day | rows with a time | read, TB/s | kernels | software", [line(each) for each in its]),
        ]
    return "\n\n".join(parts) + "\n"


def tested(report: gpu_tests.Report) -> str:
    """The newest report of a GPU's tests in a sentence."""
    counts = ", ".join(f"{report.total(outcome):,} {outcome}" for outcome in gpu_tests.OUTCOMES)
    p = report.provenance
    version = "" if is_current(p) else ", with an earlier version of the kernels"
    return f"Tests there on {p['date']}, with torch {p['torch']} and Triton {p['triton']}{version}: {counts}."


def line(recording: Recording) -> list[str]:
    p = recording.provenance
    timed = len(recording.select(status="ok"))
    read = f"{recording.read_bandwidth / 1e12:.2f}" if recording.reads else "–"
    software = [f"driver {p['driver']}"] * bool(p["driver"]) + [f"torch {p['torch']}", f"Triton {p['triton']}"]
    software += [f"{name} {version}" for name, version in p["peers"].items() if version]
    rows = f"{timed} of {len(recording.rows)}"
    return [recording.kind, p["date"], rows, read, "these" if recording.current else "earlier", ", ".join(software)]


def write(page: Path = PAGE, folder: Path | None = None) -> None:
    """Put the generated part between the page's marks."""
    put(page, "recordings", render(folder))
