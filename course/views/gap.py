"""Where the time of one decode call goes: from the data sheet's floor to what was measured, step by step."""

from collections.abc import Mapping

from .. import costs, measure
from ..measure.recordings import fastest
from . import style
from .figures import Figure, figure

CALL = {"batch": 1, "n_q_heads": 32, "n_kv_heads": 8, "context_len": 8192}  # 33.6 MB, read in several splits
UNSPLIT = {"batch": 16, "n_q_heads": 32, "n_kv_heads": 8, "context_len": 512}  # as many bytes, no split, no merge


def gap_steps(recording: measure.Recording, gpu: costs.Gpu | None = None) -> list[tuple[str, float]]:
    """(what, seconds) of the parts that add up to the recorded time of ``CALL``, the data sheet's floor first.

    Each part is a difference of two figures of the same recording, so the parts hold what they hold: 'a read of this size'
    is what a plain read of so few bytes takes beyond its share of a large one.
    """
    gpu = gpu or costs.gpu(recording.provenance["gpu"])
    whole, unsplit = (_row(recording, shape) for shape in (CALL, UNSPLIT))
    n_bytes = whole["cache_bytes"]
    marks = [
        ("bytes ÷ data sheet", n_bytes / gpu.bandwidth),
        ("the memory's real rate", n_bytes / recording.read_bandwidth),
        ("a read of so few bytes:\nlaunch, first loads, tail", recording.read_seconds(n_bytes)),
        ("a kernel that computes\nwith what it loads", unsplit["median_s"]),
        ("splitting and merging", whole["median_s"]),
    ]
    times = [0.0, *(seconds for _, seconds in marks)]
    return [(what, after - before) for (what, after), before in zip(marks, times, strict=False)]


def gap_waterfall(recording: measure.Recording) -> Figure:
    """The steps of ``gap_steps`` as floating bars, each starting where the one before ended."""
    steps = gap_steps(recording)
    total = sum(seconds for _, seconds in steps)
    n_bytes = _row(recording, CALL)["cache_bytes"]
    fig, ax = style.subplots(height=3.9)
    start = 0.0
    names = [*(what for what, _ in steps), "recorded"]
    for place, (_, seconds) in enumerate(steps):
        low, high = sorted((start, start + seconds))
        ax.barh(place, (high - low) * 1e6, left=low * 1e6, height=0.55, color=style.BLUE if place == 0 else style.GOLD)
        ax.text(high * 1e6 + total * 1e6 * 0.02, place, f"{'' if place == 0 else '+' if seconds >= 0 else '−'}"
                f"{abs(seconds) * 1e6:.1f} µs", va="center")  # fmt: skip
        ax.plot([(start + seconds) * 1e6] * 2, [place - 0.28, place + 1.28], color=style.MUTED, linewidth=0.8)
        start += seconds
    ax.barh(len(steps), total * 1e6, height=0.55, facecolor=style.CARD, edgecolor=style.INK, linewidth=1.4)
    ax.text(total * 1e6 * 1.02, len(steps), f"{total * 1e6:.1f} µs", va="center", weight="bold")
    ax.set_yticks(range(len(names)), names)
    ax.invert_yaxis()
    ax.set_xlim(0, total * 1e6 * 1.28)
    ax.set_xlabel("µs")
    ax.grid(axis="y", visible=False)
    told = "; ".join(f"{what.replace(chr(10), ' ')} {seconds * 1e6:+.1f} µs" for what, seconds in steps)
    return figure(
        fig,
        name="gap-waterfall",
        caption=(
            f"Where the time of one call goes: 32 query heads over 8 KV heads, 8,192 tokens, batch 1, {n_bytes / 1e6:.1f} MB. "
            f"The first bar is computed, the others are differences of times {recording.label}."
        ),
        alt=f"Bars that start where the one before ended: {told}; together the recorded {total * 1e6:.1f} µs.",
    )


def _row(recording: measure.Recording, shape: Mapping) -> dict:
    rows = [
        row
        for row in recording.rows
        if row["operation"] == "decode" and row["splits"] == "automatic" and row["dtype"] == "bfloat16"
        and all(row[key] == value for key, value in shape.items())
    ]  # fmt: skip
    if (found := fastest(rows)) is None:
        raise LookupError(f"this recording holds no decode call of {dict(shape)}")
    return found
