"""Both forms of the kernels that have one for Hopper, beside the fastest peer and what a large product sustains."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from .. import costs
from ..measure import plans
from ..measure.comparison import PEERS, entry
from ..measure.ledger import contender
from ..measure.recordings import fastest
from ..measure.shapes import PORTABLE, Shape
from . import style
from .figures import Figure, figure


class Work(NamedTuple):
    """A call that both forms answer: what it is called, the kind of recording that holds it, and its shape."""

    label: str
    kind: str
    shape: Shape


WHOLE = ("MHA 32 × 128", "GQA 32/8 × 128", "16 × 192/128")
WORKS = (
    *(
        Work(f"{direction}, {heads}", "prefill", shape)
        for direction in ("forward", "backward")
        for heads, shape in zip(WHOLE, plans.prefill_workloads(direction, "bfloat16"), strict=True)
    ),
    Work("MLA decode, 128 heads", "mla", Shape.mla(64, 128, 8192)),
)
PLAIN, HOPPER, PEER = "plain Triton", "for Hopper, in Gluon", "fastest other library"
COLOURS = {PLAIN: style.BLUE, HOPPER: style.VERMILLION, PEER: style.GREEN}


def forms(recordings: Mapping[str, object]) -> dict[str, dict[str, Mapping]]:
    """Work -> {form or peer: its fastest row}, for what is recorded.

    recordings  by kind ('prefill', 'mla'), each may be None

    The peer is whichever other library was the fastest on that work.
    """
    found: dict[str, dict[str, Mapping]] = {}
    for work in WORKS:
        recording = recordings.get(work.kind)
        own = work.shape.operation
        kinds = {PLAIN: (PORTABLE + own,), HOPPER: (own,), PEER: tuple(PEERS)}
        rows = entry(work.shape, recording).rows if recording else ()
        for form, operations in kinds.items():
            if row := fastest(row for row in rows if row["operation"] in operations):
                found.setdefault(work.label, {})[form] = row
    return found


def rate(row: Mapping) -> float:
    """FLOP/s of a row, of the products that the result needs."""
    return row["flops"] / row["median_s"]


def forms_figure(
    recordings: Mapping[str, object],
    *,
    name: str = "hopper-forms",
    live: Sequence[Mapping] = (),
    live_label: str = "live, this machine",
    live_gpu: costs.Gpu | None = None,
    live_work: str | None = None,
) -> Figure:
    """TFLOP/s of each work in both forms, and of its peer, under the data sheet's peak.

    recordings  by kind, as for ``forms``; what is missing is left out, and the caption says so
    live        rows measured on the reader's machine, all of one shape, drawn as one more line called ``live_work``;
                ``live_gpu`` is that machine's data sheet, if it is known
    """
    found = forms(recordings)
    given = [recording for recording in recordings.values() if recording is not None]
    gpu = costs.gpu("H200 SXM")
    peak = gpu.peak_flops() / 1e12
    mine = {PLAIN if row["operation"].startswith(PORTABLE) else HOPPER: row for row in live if row["status"] == "ok"}
    lines = [*found] + ([live_work or live_label] if mine else [])
    shown = lines or [work.label for work in WORKS]
    fig, ax = style.subplots(height=1.9 + 0.42 * len(shown))
    ax.axvline(peak, color=style.INK, label=f"peak of the data sheet, {gpu.name}", **style.STYLES["computed"])
    sustained = next(filter(None, (recording.product_rate for recording in given)), None)
    if sustained:
        ax.axvline(sustained / 1e12, color=style.INK, linewidth=1.0, linestyle=(0, (1, 1.5)),
                   label="large matrix product, hot card, same recording")  # fmt: skip
    named = set()
    for place, label in enumerate(lines):
        rows, look = (mine, style.STYLES["live"]) if label not in found else (found[label], style.STYLES["recorded"])
        xs = [rate(row) / 1e12 for row in rows.values()]
        ax.plot([min(xs), max(xs)], [place, place], color=style.GRID, linewidth=2.5, zorder=1)
        for (form, _), x in zip(rows.items(), xs, strict=True):
            legend = form if form not in named else None
            named.add(form)
            ax.plot([x], [place], color=COLOURS[form], label=legend, zorder=2, **look)
    ax.set_yticks(range(len(shown)), shown)
    ax.set_ylim(len(shown) - 0.4, -0.6)
    ax.set_xlim(0, 1.05 * peak)
    ax.set_xlabel("TFLOP/s")
    ax.grid(axis="y", visible=False)
    fig.legend(loc="outside upper left", ncols=1, handlelength=1.6, labelspacing=0.35, borderaxespad=0.2)
    caption = ["What each form makes of the tensor cores: 8,192 tokens, bfloat16; causal, batch 2, and for MLA batch 64."]
    if found:
        old = "" if all(recording.current for recording in given) else " Recorded with an earlier version of the kernels."
        caption.append(f"Hollow marks: {given[0].label}.{old}")
    else:
        caption.append("Nothing is recorded: only the peak is drawn.")
    if mine:
        caption.append(f"Filled marks: {live_label}" + (f", a {live_gpu.name}." if live_gpu else "."))
    told = "; ".join(f"{label}: {_told(rows)}" for label, rows in found.items())
    if mine:
        told += f"; {lines[-1]}, live: {_told(mine)}"
    alt = f"Marks on a line for each work, TFLOP/s; the data sheet's peak is {peak:.0f}. {told or 'No marks'}."
    return figure(fig, name=name, caption=" ".join(caption), alt=alt)


def _told(rows: Mapping[str, Mapping]) -> str:
    return ", ".join(f"{contender(row) if form == PEER else form} {rate(row) / 1e12:.0f}" for form, row in rows.items())
