"""The ledger: where our kernels win and lose, as a page of the book, from the newest recordings.

``python -m course.measure --ledger`` writes the part of the page between its marks; a test holds the two equal.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from .. import costs
from .comparison import GOALS, PEERS, WORKLOADS, Entry, Goal, Workload, entries
from .recordings import RECORDED, Recording, recordings
from .shapes import PORTABLE, Shape

PAGE = RECORDED.parent / "ledger.md"
MARKS = "\n% begin {}\n", "\n% end {}\n"
GPU = "NVIDIA H200"


def newest(kind: str, gpu: str, folder: Path | None) -> Recording | None:
    return next(iter(recordings(gpu, kind, folder=folder)), None)


def render(gpu: str = GPU, folder: Path | None = None) -> str:
    """The generated part of the page, from the newest recording of each kind in ``folder`` (default: the book's)."""
    found = {workload.kind: newest(workload.kind, gpu, folder) for workload in WORKLOADS.values()}
    shown = {name: entries(workload, found[workload.kind]) for name, workload in WORKLOADS.items() if found[workload.kind]}
    counts = [summary(WORKLOADS[name], of) for name, of in shown.items() if WORKLOADS[name].bound != "bits"]
    goals = [judge(goal, shown[goal.workload]) for goal in GOALS if goal.workload in shown]
    parts = [
        "## In short",
        table("workload | rows | wins | level | losses | no peer", counts),
        "## Goals",
        "What this version of the kernels set out to reach. A ratio is our time over the other's: below 1 is faster.",
        table("goal | met | where not", goals),
    ]
    for name, workload in WORKLOADS.items():
        parts += [f"## {workload.title}", workload.words]
        if name in shown:
            table_of = bits if workload.bound == "bits" else against
            parts += [*table_of(workload, shown[name]), provenance(found[workload.kind])]
        else:
            parts.append("Not recorded yet.")
    return "\n\n".join(parts) + "\n"


def table(columns: str, rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table: the first column, and whatever else holds words, to the left."""
    names = columns.split(" | ")
    words = [i == 0 or any(row[i][:1].isalpha() for row in rows) for i in range(len(names))]
    lines = [names, ["---" if left else "---:" for left in words], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def summary(workload: Workload, of: Sequence[Entry]) -> list[str]:
    results = [entry.result.split(",")[0] for entry in of]
    counts = [results.count(word) for word in ("win", "level", "loss")]
    return [workload.title, *map(str, [len(of), *counts, len(of) - sum(counts)])]


def judge(goal: Goal, of: Sequence[Entry]) -> list[str]:
    """How many entries meet the goal, and those that do not with what they reach."""
    values = {label(e.shape): goal.value(e) for e in of if goal.only(e)}
    missed = [
        f"{name}: not measured" if value is None else f"{name}: {value:{goal.shown}}"
        for name, value in values.items()
        if value is None or not goal.met(value)
    ]
    met = f"{len(values) - len(missed)} of {len(values)}"
    return [goal.words, met if missed else f"yes, {met}", "; ".join(missed)]


def label(shape: Shape) -> str:
    return str(shape).replace(" whole", "").replace(" backward", "")


def contender(row: dict) -> str:
    """'SDPA CUDNN', 'ours, work list'."""
    if row["operation"] in PEERS:
        return " ".join(filter(None, (PEERS[row["operation"]], row["backend"])))
    if row["operation"] == "partials_then_sum":
        return "ours, partial sums"
    if row["operation"].startswith(PORTABLE):
        return "ours, portable form"
    if row["operation"] == "attention" and row["q_len"] == 1:
        return "ours, full-sequence kernel"
    return "ours, work list" if row["splits"] == "work list" else "ours"


def timed(row: dict | None) -> str:
    return costs.format_seconds(row["median_s"]) if row else "–"


def percent(share: float | None, digits: int = 0) -> str:
    return "–" if share is None else f"{share:.{digits}%}"


def bits(workload: Workload, of: Sequence[Entry]) -> Iterator[str]:
    """The table of a cache in 16 and in 8 bits."""
    rows = []
    for e in of:
        faster = f"{e.speed_up:.2f} ×" if e.speed_up else "–"
        rounding = percent(e.ours["cache_error"]["relative_l2"], 1) if e.ours else "–"
        rows.append([label(e.shape), timed(e.sixteen), timed(e.ours), faster, percent(e.read_share), rounding])
    yield table("work | 16 bits | 8 bits | faster | of read | rounding", rows)


def against(workload: Workload, of: Sequence[Entry]) -> Iterator[str]:
    """The table of a workload against its peers and, folded, everybody's times."""
    rows = []
    for e in of:
        reached = percent(e.read_share)
        if workload.bound == "arithmetic":
            reached = f"{e.flop_rate / 1e12:.0f} ({percent(e.product_share)})" if e.ours else "–"
        peer = f"{timed(e.peer)} {contender(e.peer)}" if e.peer else "–"
        rows.append([label(e.shape), timed(e.ours), peer, e.result, reached])
    reached = "of read" if workload.bound == "memory" else "TFLOP/s (of product)"
    yield table(f"work | ours | best peer | result | {reached}", rows)
    yield "<details><summary>All times</summary>"
    yield table("work | who | time | to ours", [line for e in of for line in everybody(e)])
    yield "</details>"


def everybody(e: Entry) -> Iterator[list[str]]:
    """Every contender of an entry, the fastest first, and last those without a time."""
    for row in sorted(e.rows, key=lambda row: row["median_s"] or float("inf")):
        ok = row["status"] == "ok"
        ratio = f"{row['median_s'] / e.ours['median_s']:.2f}" if ok and e.ours else "–"
        yield [label(e.shape), contender(row), timed(row) if ok else row["status"], ratio]


def provenance(recording: Recording) -> str:
    """Where the numbers of a table are from."""
    peers = [f"{name} {version}" if version else f"no {name}" for name, version in recording.provenance["peers"].items()]
    line = f"{recording.label[0].upper()}{recording.label[1:]}{''.join(f', {peer}' for peer in peers)}."
    rate = f" It read memory at {recording.read_bandwidth / 1e12:.2f} TB/s"
    if recording.product_rate:
        rate += f" and multiplied large matrices at {recording.product_rate / 1e12:.0f} TFLOP/s, hot"
    old = "" if recording.current else " **Recorded with an earlier version of the kernels.**"
    return f"*{line}{rate}.*{old}"


def marked(page: Path, name: str) -> tuple[str, str, str]:
    """A page's text before the lines '% begin NAME' and '% end NAME', between them, and after them."""
    begin, end = (mark.format(name) for mark in MARKS)
    before, rest = page.read_text(encoding="utf-8").split(begin)
    between, after = rest.split(end)
    return before + begin, between, end + after


def put(page: Path, name: str, text: str) -> None:
    """Write ``text`` between a page's marks."""
    before, _, after = marked(page, name)
    page.write_text(f"{before}\n{text}{after}", encoding="utf-8")


def write(page: Path = PAGE, folder: Path | None = None) -> None:
    """Put the generated part between the page's marks."""
    put(page, "ledger", render(folder=folder))
