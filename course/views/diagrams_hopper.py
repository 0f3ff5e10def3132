"""Drawings of the kernels for Hopper: who fetches and who multiplies, by which barriers they meet, and when each works."""

from typing import NamedTuple

from .. import costs, measure
from ..costs import pipeline
from ..costs.pipeline import ALL, COPIES, FIRST, PRODUCER, SECOND, TENSOR, WARPS
from . import style
from .diagrams import _arrow, _box, _card, _sheet
from .figures import Figure, figure

COLOURS = {PRODUCER: style.MUTED, ALL: style.BLUE, FIRST: style.VERMILLION, SECOND: style.GREEN}
SOFT = {PRODUCER: style.FAINT, FIRST: "#fbe6da", SECOND: "#d6eee6"}


class Held(NamedTuple):
    """What lies in shared memory under one name: how much, and the barriers that say it is full and it is empty again."""

    name: str
    size: str
    full: str
    empty: str


class Roles(NamedTuple):
    """A kernel's roles. ``producers``, ``consumers``: what stands on their cards; ``between``: what consumers hand each other;
    ``turns``: how many turns of its loop are drawn, and of what; ``pale``: beginnings of names of tasks that are drawn in a
    lighter colour; ``names``: what it calls its consumers."""

    file: str
    producers: str
    consumers: tuple[str, str]
    held: tuple[Held, ...]
    between: str
    turns: tuple[int, str]
    pale: tuple[str, ...]
    names: tuple[str, str] = (FIRST, SECOND)


KERNELS = {
    "forward": Roles(
        "kernels/forward_hopper.py",
        "producer\n\none warp:\nasks for\ncopies",
        ("consumer 0\n\nrows 0–63:\nS, P and O\nin registers", "consumer 1\n\nrows 64–127:\nS, P and O\nin registers"),
        (
            Held("tile", "a number", "TILE_FULL", "TILE_EMPTY"),
            Held("q", "2 × 2 × 16 KiB", "q_full", "Q_EMPTY"),
            Held("k", "2 × 32 KiB", "k_full", "K_EMPTY"),
            Held("v", "2 × 32 KiB", "v_full", "V_EMPTY"),
        ),
        "",
        (3, "blocks of 128 keys"),
        ("V", "O"),
    ),
    "backward": Roles(
        "kernels/backward_hopper.py",
        "producer\n\none warp:\nasks for\ncopies",
        ("consumer 0\n\nkeys 0–63:\ndK and dV\nin registers", "consumer 1\n\nkeys 64–127:\ndK and dV\nin registers"),
        (
            Held("k, v", "64 KiB, once", "kv_full", ""),
            Held("q, d_out,\nlse, delta", "2 × 32.5 KiB", "full", "EMPTY"),
            Held("ds", "8 × 8 KiB", "ds_full", ""),
            Held("sums", "2 × 16 KiB", "", "tma.store_wait"),
        ),
        "",
        (2, "blocks of 64 rows"),
        ("dV", "dQ", "dK", "sQ"),
    ),
    "mla": Roles(
        "kernels/mla_hopper.py",
        "producers\n\nfour warps:\nhalf of a\nblock each",
        ("left\n\nscores block 0,\nowns columns\n0–255", "right\n\nscores block 1,\nowns columns\n256–511"),
        (
            Held("q", "72 KiB", "q_full", "Q_READ"),
            Held("K0 left\nK0 right", "32 KiB\n32 + 8 KiB", "k_full", "K0_LEFT_READ\nK0_RIGHT_READ"),
            Held("K1 left\nK1 right", "32 + 8 KiB\n32 KiB", "k_full", "K1_LEFT_READ\nK1_RIGHT_READ"),
        ),
        "left → right: m0, P0, by P0_READY\nright → left: m1 by M1_READY, P1 by P1_READY",
        (2, "pairs of blocks of 64 tokens"),
        ("O", "R"),
        ("left", "right"),
    ),
}  # fmt: skip


def roles_figure(kernel: str, *, bandwidth: float | None = None) -> Figure:
    """Roles, buffers and barriers of a kernel for Hopper, and below them its loop on one SM by ``costs.pipeline``.

    kernel     'forward', 'backward' or 'mla'
    bandwidth  bytes a second that all SMs together load with; by default what the newest recording of an H200's L2 says, and
               without one the data sheet's memory

    ValueError for another kernel.
    """
    if kernel not in KERNELS:
        raise ValueError(f"kernel must be one of {', '.join(KERNELS)}, got {kernel!r}")
    roles = KERNELS[kernel]
    made = kernel_timeline(kernel, bandwidth=bandwidth)
    tall = [2.0 + 1.9 * max(len(text.split("\n")) for text in held) for held in roles.held]
    note = 2.0 * len(roles.between.split("\n")) if roles.between else 0.0
    upper, lanes = sum(tall) + 1.2 * (len(tall) - 1), 4 * 4.0
    fig, ax = _sheet(upper + note + lanes + 9.6)
    top = upper + note + lanes + 8.0

    ax.text(24.5, top, "in shared memory", fontsize=10, color=style.PURPLE, va="center", ha="center")
    floor = top - 1.8 - upper
    _card(ax, 0.6, floor, 9.6, upper, edge=COLOURS[PRODUCER], fill=SOFT[PRODUCER], line=1.4)
    _centred(ax, 5.4, floor + upper / 2, roles.producers)
    half = (upper - 1.0) / 2
    for who, words, y in ((FIRST, roles.consumers[0], floor + half + 1.0), (SECOND, roles.consumers[1], floor)):
        _card(ax, 38.4, y, 11.0, half, edge=COLOURS[who], fill=SOFT[who], line=1.4)
        _centred(ax, 43.9, y + half / 2, words)
    y = top - 0.6
    for held, height in zip(roles.held, tall, strict=True):
        y -= height + 1.2
        _card(ax, 14.4, y, 20.2, height, edge=style.PURPLE, fill="#f6ecf4", line=1.1)
        middle = y + height / 2
        ax.text(
            15.2,
            middle + (0 if "\n" in held.name else height * 0.22),
            held.name,
            fontsize=10,
            weight="bold",
            va="center",
            linespacing=1.15,
        )
        if "\n" not in held.size:
            ax.text(34.0, middle + height * 0.22, held.size, fontsize=9.5, va="center", ha="right", linespacing=1.15,
                    color=style.MUTED)  # fmt: skip
        words = "  ·  ".join(filter(None, (held.full, held.empty))) if "\n" not in held.empty else held.empty
        ax.text(34.0, middle - (height * 0.22 if "\n" not in held.size else 0), words, fontsize=9.5, va="center", ha="right",
                linespacing=1.25)  # fmt: skip
        if held.name not in ("ds", "sums"):
            _arrow(ax, (10.4, middle + 0.6), (14.2, middle + 0.6), colour=COLOURS[PRODUCER])
        ends = ((34.8, middle + 0.6), (38.2, middle + 0.6))
        _arrow(ax, *(ends if held.full else reversed(ends)), colour=style.INK)
        if not held.empty or not held.full:  # as of ds and sums, which the producer has no part in
            continue
        _arrow(ax, (38.2, middle - 0.8), (34.8, middle - 0.8), colour=style.GOLD, line=1.2)
        _arrow(ax, (14.2, middle - 0.8), (10.4, middle - 0.8), colour=style.GOLD, line=1.2)
    base = floor
    for line in filter(None, roles.between.split("\n")):
        base -= 2.0
        ax.text(49.4, base, line, fontsize=9.5, va="center", ha="right", color=style.INK)
    _draw_timeline(ax, made, base - 3.0, roles)
    busy, turns = f"{made.busy():.0%}", " ".join(map(str, roles.turns))
    return figure(
        fig,
        name=f"roles-{kernel}",
        caption=(
            f"Roles of {roles.file}. Black arrows: a buffer is full (the barrier's name stands first); golden ones: it may be "
            f"filled again (second name). Below, computed: the first {turns} on one SM of an H200, by the model of the "
            f"explorer; in it the tensor cores work {busy} of the time."
        ),
        alt=(
            f"Left {_flat(roles.producers)}; right {_flat(roles.consumers[0])}, and {_flat(roles.consumers[1])}; between them "
            "in shared memory "
            + "; ".join(
                f"{_flat(held.name)}, {_flat(held.size)}"
                + (f", full by {held.full}" if held.full else "")
                + (f", empty by {_flat(held.empty)}" if held.empty else "")
                for held in roles.held
            )
            + ". Below, bars over time for copies, tensor cores and the arithmetic of both consumers: the tensor cores work "
            f"{busy} of the time from the first product to the last."
        ),
    )  # fmt: skip


def kernel_timeline(kernel: str, *, bandwidth: float | None = None, turns: int | None = None) -> pipeline.Timeline:
    """The loop of a kernel for Hopper on one SM of an H200, for as many turns as ``roles_figure`` draws, or given ones."""
    gpu = costs.gpu("H200 SXM")
    turns = turns or KERNELS[kernel].turns[0]
    if bandwidth is None:
        found = measure.recordings("NVIDIA H200", "reads")
        bandwidth = found[0].l2_bandwidth if found else None

    def load(n_bytes: int) -> float:
        return pipeline.copy_cycles(n_bytes, gpu, bandwidth)

    if kernel == "forward":
        cycles = {"product": 2 * pipeline.product_cycles(128, 128, 128), "softmax": pipeline.exponential_cycles(128 * 128)}
        return pipeline.timeline(pipeline.attention_walk(pipeline.CONSUMERS_IN_FLIGHT, turns, load=load(64 * 1024), **cycles))
    if kernel == "backward":
        return pipeline.timeline(pipeline.backward_walk(turns, load=load(2 * 64 * 128 * 2 + 2 * 64 * 4)))
    return pipeline.timeline(pipeline.mla_walk(turns, load=load(2 * 64 * 576 * 2)))


def _draw_timeline(ax, made: pipeline.Timeline, top: float, roles: Roles) -> None:
    lanes = ((COPIES, None), (TENSOR, None), (WARPS, FIRST), (WARPS, SECOND))
    labels = ("copies", "tensor\ncores", *(name.replace(" ", "\n") for name in roles.names))
    left, width, height, pitch = 9.4, 40.0, 2.7, 4.0
    scale = width / max(made.ends)
    for place, ((unit, who), label) in enumerate(zip(lanes, labels, strict=True)):
        y = top - (place + 1) * pitch + 0.8
        ax.text(1, y + height / 2, label, fontsize=9.5, va="center", linespacing=1.0)
        _box(ax, left, y, width, height, fill=style.FAINT, line=0)
        for task, start, end in zip(made.tasks, made.starts, made.ends, strict=True):
            if task.unit != unit or (who and task.who != who) or end == start:
                continue
            x, long = left + start * scale, (end - start) * scale
            pale = task.name.startswith(roles.pale)
            _box(ax, x, y, long, height, fill=COLOURS[task.who], edge=style.CARD, line=0.5, alpha=0.55 if pale else 1.0)
            words = _label(task.name)
            if unit == TENSOR and long > 0.68 * len(words) + 0.25:
                ax.text(x + long / 2, y + height / 2, words, fontsize=9, va="center", ha="center",
                        color=style.INK if pale else "white")  # fmt: skip
    y = top - len(lanes) * pitch - 0.4
    _arrow(ax, (left, y), (left + width, y), colour=style.MUTED, line=1.0)
    ax.text(left, y - 1.4, "0", fontsize=9.5, va="center", color=style.MUTED)
    ax.text(left + width, y - 1.4, f"{max(made.ends):,.0f} cycles", fontsize=9.5, va="center", ha="right", color=style.MUTED)


def _label(name: str) -> str:
    """Name of a task without the consumer, which its colour tells, and where it is long without the turn."""
    return name.split("-")[0].rstrip("ab")


def _centred(ax, x: float, y: float, words: str) -> None:
    first, *rest = words.split("\n\n")
    lines = sum(text.count("\n") + 1 for text in rest)
    ax.text(x, y + 0.85 * lines, first, fontsize=10, weight="bold", ha="center", va="center")
    ax.text(x, y - 0.9, "\n".join(rest), fontsize=9.5, ha="center", va="center", linespacing=1.15)


def _flat(words: str) -> str:
    return " ".join(words.split())
