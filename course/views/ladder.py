"""The kernels of the course as a ladder: one new idea each, the lines it took, and how fast the result is recorded."""

import html
from collections.abc import Callable
from dataclasses import dataclass

from kernels.attend import half_queries, load_bytes, load_contiguous, load_scales
from kernels.decode import decode_kernel
from kernels.first import copy_kernel, softmax_kernel
from kernels.forward import attention_kernel
from kernels.interval import attend_interval
from kernels.merge import merge_kernel
from kernels.one_row import one_row_kernel
from kernels.paged import load_paged

from .. import costs, measure
from ..measure.recordings import fastest
from ..measure.shapes import PORTABLE
from .source import CHANGED, NEW, show

GPU = "NVIDIA H200"
CALL = {"n_q_heads": 32, "n_kv_heads": 8, "context_len": 8192, "dtype": "bfloat16", "status": "ok"}
LATENT = CALL | {"n_q_heads": 16, "n_kv_heads": 1, "head_dim_shared": 512}
BATCHES = (1, 16)
MISSING = "not recorded"


@dataclass(frozen=True)
class Rung:
    """One kernel: its idea, the functions that hold it, what they are compared with, and its recorded rows by batch."""

    name: str
    idea: str
    functions: tuple
    against: object | None
    kind: str | None
    rows: Callable[[int], dict] | None = None

    @property
    def lines(self) -> str:
        """Lines of its functions; with ``against`` how many of them are new or changed."""
        if not self.functions:
            return "none"
        shown = [show(function, against=self.against) for function in self.functions]
        total = sum(len(each.lines) for each in shown)
        if self.against is None:
            return f"{total}"
        marked = sum(sign in (NEW, CHANGED) for each in shown for sign in each.signs)
        return f"{marked} of {total}"


RUNGS = (
    Rung("copy", "a program owns a block; a mask ends it", (copy_kernel,), None, "reads"),
    Rung("row softmax", "a program owns a row and reduces it", (softmax_kernel,), copy_kernel, None),
    Rung("one-row attention", "a row that arrives in pieces", (one_row_kernel,), softmax_kernel, None),
    Rung(
        "query tile", "many query rows meet a tile of keys", (attention_kernel,), one_row_kernel, "decode",
        lambda batch: {"operation": "attention", "q_len": 1} | CALL,
    ),
    Rung(
        "head tile", "rows are the heads of a group", (attend_interval,), attention_kernel, "decode",
        lambda batch: {"operation": "decode", "splits": "given", "num_splits": 1} | CALL,
    ),
    Rung(
        "split and merge", "an interval for each program, states joined", (decode_kernel, merge_kernel), None,
        "decode", lambda batch: {"operation": "decode", "splits": "automatic"} | CALL,
    ),
    Rung(
        "page", "the address is looked up", (load_paged,), load_contiguous, "paged",
        lambda batch: {"operation": "paged_decode", "splits": "automatic", "page_size": 64, "cache_dtype": None} | CALL,
    ),
    Rung(
        "record (MLA, 16 heads)", "one row is key and value for all heads", (), None, "mla",
        lambda batch: {"operation": PORTABLE + "mla_decode", "splits": "automatic", "cache_dtype": None} | LATENT,
    ),
    Rung(
        "bits (8, GQA)", "a number is half as wide, with a scale", (load_bytes, load_scales, half_queries),
        None, "fp8", lambda batch: {"operation": "decode", "splits": "automatic", "cache_dtype": "float8_e4m3fn"} | CALL,
    ),
)  # fmt: skip
COLUMNS = ("rung", "one new idea", "lines", *(f"batch {batch}" for batch in BATCHES))


@dataclass(frozen=True)
class Ladder:
    """The table, and the words that say where its times come from."""

    rows: tuple[tuple[str, ...], ...]
    source: str

    def __repr__(self) -> str:
        widths = [max(len(row[i]) for row in (COLUMNS, *self.rows)) for i in range(len(COLUMNS))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
                 for row in (COLUMNS, *self.rows)]  # fmt: skip
        return "\n".join([*lines, self.source])

    def _repr_html_(self) -> str:
        def line(cells, tag: str) -> str:
            name, idea, *rest = map(html.escape, cells)  # on a phone there is no room for a column of ideas
            shown = [f"<strong>{name}</strong><br>{idea}", *rest]
            return "<tr>" + "".join(f"<{tag} style='text-align:left'>{cell}</{tag}>" for cell in shown) + "</tr>"

        body = "".join(line(row, "td") for row in self.rows)
        return (
            "<table class='kernel-ladder' style='font-size:0.85em;line-height:1.35'>"
            f"<thead>{line(COLUMNS, 'th')}</thead><tbody>{body}</tbody></table>"
            f"<p>{html.escape(self.source)}</p>"
        )


def kernel_ladder() -> Ladder:
    """The ladder from copy to 8-bit caches, with the newest recording of each kind on an H200."""
    newest = {rung.kind: next(iter(measure.recordings(GPU, rung.kind)), None) for rung in RUNGS if rung.kind}
    found = {kind: recording for kind, recording in newest.items() if recording}
    source = "; ".join(dict.fromkeys(recording.label for recording in found.values())) or "nothing is recorded yet"
    old = [rung.name for rung in RUNGS if rung.kind in found and not found[rung.kind].current]
    told = (
        "Lines: of the kernel's functions, and how many of them are new or changed against the rung below. Times: one call "
        "over 8,192 tokens a sequence, 32 query heads over 8 KV heads (MLA: 16 heads, the portable form), "
        f"{source}; in brackets the share of the read rate of the same recording. The copy is of 4 GiB, read and written."
        + (f" Recorded with an earlier version of the kernels: {', '.join(old)}." if old else "")
    )
    return Ladder(tuple(_row(rung, newest.get(rung.kind)) for rung in RUNGS), told)


def _row(rung: Rung, recording: measure.Recording | None) -> tuple[str, ...]:
    if recording is None:
        speeds = (MISSING if rung.kind else "–",) * len(BATCHES)
    elif rung.rows is None:
        speeds = (f"{recording.limit('copy') / 1e12:.2f} TB/s", "–")
    else:
        speeds = tuple(_speed(recording, rung.rows(batch) | {"batch": batch}) for batch in BATCHES)
    return rung.name, rung.idea, rung.lines, *speeds


def _speed(recording: measure.Recording, fields: dict) -> str:
    row = fastest([row for row in recording.rows if all(row.get(k, v) == v for k, v in fields.items())])
    if row is None:
        return MISSING
    share = row["cache_bytes"] / row["median_s"] / recording.read_bandwidth
    return f"{costs.format_seconds(row['median_s'])} ({share:.0%})"
