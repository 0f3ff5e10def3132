"""Time against arithmetic: recorded and live points over the floor, and how far above it they lie."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from .. import costs
from . import style
from .figures import Figure, figure

# The shape a row has unless `select` or a series says otherwise: the course's workhorse, the Llama-3-8B layer.
WORKHORSE = {
    "operation": "decode",
    "dtype": "bfloat16",
    "batch": 1,
    "n_q_heads": 32,
    "n_kv_heads": 8,
    "head_dim_qk": 128,
    "head_dim_v": 128,
    "context_len": 8192,
}
OPERATIONS = {
    "grouped decode kernel": {"operation": "decode"},
    "full-sequence kernel, one query row": {"operation": "attention"},
    "PyTorch SDPA, fastest backend": {"operation": "sdpa"},
}
AXES = {"context_len": ("cached tokens of a sequence", (512, 131072)), "batch": ("sequences in the batch", (1, 128))}


@dataclass(frozen=True)
class Series:
    """One colour of the plot: its label, the fields its rows must have, and the rows found, keyed by the x value."""

    label: str
    colour: str
    fields: dict
    recorded: dict[int, dict]
    live: dict[int, dict]
    missing: dict[int, str]

    def cost(self, x_name: str, x: int) -> tuple[int, int]:
        """Bytes and FLOPs of one call at ``x``."""
        at = self.fields | {x_name: x}
        attention = costs.Attention.gqa(at["n_q_heads"], at["n_kv_heads"], at["head_dim_qk"], at["head_dim_v"])
        n_bytes = costs.cache_bytes(
            attention, at["context_len"], batch=at["batch"], bytes_per_element=costs.bytes_of(at["dtype"])
        )
        return n_bytes, costs.decode_flops(attention, at["context_len"], batch=at["batch"])


def matching(rows: Sequence[Mapping], fields: Mapping, x_name: str) -> tuple[dict[int, dict], dict[int, str]]:
    """Of the rows with these fields the fastest at each x, and the reasons at those x where none succeeded.

    A row whose number of splits was imposed is left out unless ``fields`` names ``splits`` or ``num_splits``.
    """
    best: dict[int, dict] = {}
    failed: dict[int, str] = {}
    for row in rows:
        if any(row.get(key) != value for key, value in fields.items() if key != x_name):
            continue
        if row.get("splits") == "given" and not {"splits", "num_splits"} & set(fields):
            continue
        x = row[x_name]
        if row.get("status", "ok") != "ok":
            failed[x] = row["status"]
        elif x not in best or row["median_s"] < best[x]["median_s"]:
            best[x] = dict(row)
    return best, {x: reason for x, reason in failed.items() if x not in best}


def grid(lo: int, hi: int, points: int = 33) -> list[int]:
    """Whole numbers from lo to hi, evenly spaced on a log scale, without repeats."""
    return sorted({round(lo * (hi / lo) ** (i / (points - 1))) for i in range(points)})


def measured_against_arithmetic(
    recording,
    *,
    name: str = "measured-against-arithmetic",
    gpu: costs.Gpu | str | None = None,
    x: str = "context_len",
    series: Mapping[str, Mapping] | None = None,
    select: Mapping | None = None,
    prediction: costs.Prediction | None = None,
    live: Sequence[Mapping] = (),
    live_label: str = "live, this machine",
    live_gpu: costs.Gpu | None = None,
) -> Figure:
    """Time of one call against context or batch, both axes logarithmic, above its ratio to the floor.

    recording    of kind 'decode' (``course.measure``), or None: then only the computed lines are drawn, and the caption says so
    gpu          whose data sheet the floor uses; by default the recording's GPU, or the H200
    x            'context_len' or 'batch'
    series       label -> fields that tell its rows apart, such as {'batch 16': {'batch': 16}}; one colour each. By default the
                 three operations, or, if ``select`` names one operation, the batches with at least three recorded points
    select       fields that all rows share; what is not named is the workhorse's (32 query heads over 8 KV heads, 128 wide)
    prediction   two constants (``costs.fit``), drawn as a dashed line
    live         rows measured on the reader's machine, with the same fields as recorded ones; any 16-bit dtype will do
    live_gpu     the GPU of the live rows, if its data sheet is known: it gets a floor, and live ratios are to that floor

    ValueError for an unknown x or for a field that rows do not have.
    """
    if x not in AXES:
        raise ValueError(f"x must be one of {', '.join(AXES)}, got {x!r}")
    select = dict(select or {})
    fixed = WORKHORSE | select
    if series is None:
        series = OPERATIONS if "operation" not in select else _batches(recording, fixed, x, select)
    for key in {key for fields in (fixed, *series.values()) for key in fields} - set(WORKHORSE):
        if key not in ("splits", "num_splits", "backend"):
            raise ValueError(f"rows have no field {key!r}; they have {', '.join(WORKHORSE)}, splits, num_splits, backend")
    if gpu is None:
        gpu = recording.provenance["gpu"] if recording else "H200 SXM"
    gpu = gpu if isinstance(gpu, costs.Gpu) else costs.gpu(gpu)

    live_dtype = live[0]["dtype"] if live else None

    drawn: list[Series] = []
    for (label, fields), colour in zip(series.items(), style.SERIES, strict=False):
        fields = fixed | dict(fields)
        recorded, missing = matching(recording.rows if recording else (), fields, x)
        drawn.append(Series(label, colour, fields, recorded, matching(live, fields | {"dtype": live_dtype}, x)[0], missing))

    points = sorted({at for one in drawn for at in (*one.recorded, *one.live)})
    lo, hi = (points[0], points[-1]) if len(points) > 1 else AXES[x][1]
    xs = grid(lo, hi)
    # Series of one shape share a floor, which is then drawn in ink.
    shapes: dict[tuple, Series] = {}
    for one in drawn:
        shapes.setdefault(tuple(one.cost(x, at) for at in xs), one)
    read_rate = recording.read_bandwidth if recording else None

    if points or prediction:
        fig, (top, low) = style.subplots(2, 1, height=5.6, sharex=True, gridspec_kw={"height_ratios": (2.4, 1)})
    else:  # nothing to take a ratio of
        fig, top = style.subplots(height=3.8)
        low = None
    legend: list[Line2D] = []

    def line(label: str, **look) -> None:
        legend.append(Line2D([], [], label=label, **look))

    for place, one in enumerate(drawn):
        ring = style.STYLES["recorded"]
        if len(shapes) == 1 < len(drawn):
            # Contenders for the same work: rings of falling size, so that equal times show as rings in one another.
            ring = ring | {"markerfacecolor": "none", "markersize": max(4.5, 9.5 - 2 * place)}
        _points(top, low, one, one.recorded, ring, x, gpu)
        _points(top, low, one, one.live, style.STYLES["live"], x, live_gpu)
        if one.recorded:
            line(one.label, color=one.colour, **ring)
        if one.live:
            line(f"{one.label}: live", color=one.colour, **style.STYLES["live"])
    computed = style.STYLES["computed"]
    for costs_at, one in shapes.items():
        colour = style.INK if len(shapes) == 1 else one.colour
        floors = [_floor(one, x, at, gpu) for at in xs]
        top.plot(xs, floors, color=colour, **computed)
        if read_rate:
            top.plot(
                xs,
                [n_bytes / read_rate for n_bytes, _ in costs_at],
                color=colour,
                linewidth=1.0,
                linestyle=(0, (1, 1.5)),
            )
        if live_gpu and any(one.live for one in drawn):
            own = [_floor(one, x, at, live_gpu) for at in xs]
            top.plot(xs, own, color=colour, linewidth=1.4, linestyle=(0, (6, 2, 1, 2)))
        if prediction:
            predicted = [prediction.seconds(n_bytes) for n_bytes, _ in costs_at]
            top.plot(xs, predicted, color=colour, linewidth=1.4, linestyle=(0, (5, 2)))
            low.plot(
                xs,
                [p / f for p, f in zip(predicted, floors, strict=True)],
                color=colour,
                linewidth=1.4,
                linestyle=(0, (5, 2)),
            )
    line(f"floor, data sheet ({_rate(gpu.bandwidth)})", color=style.INK, **computed)
    if live_gpu and any(one.live for one in drawn):
        line(
            f"floor, {live_gpu.name} ({_rate(live_gpu.bandwidth)})",
            color=style.INK,
            linewidth=1.4,
            linestyle=(0, (6, 2, 1, 2)),
        )
    if read_rate:
        line(
            f"read rate in the same recording ({_rate(read_rate)})",
            color=style.INK,
            linewidth=1.0,
            linestyle=(0, (1, 1.5)),
        )
        if low:
            low.axhline(gpu.bandwidth / read_rate, color=style.INK, linewidth=1.0, linestyle=(0, (1, 1.5)))
    if prediction:
        told = f"{costs.format_seconds(prediction.t0_s)} + bytes ÷ {_rate(prediction.bandwidth)}"
        line(f"prediction, {told}", color=style.INK, linewidth=1.4, linestyle=(0, (5, 2)))
    if low:
        low.axhline(1, color=style.INK, **computed)

    _axes(top, low, x, points)
    fig.legend(handles=legend, loc="outside upper left", ncols=1, handlelength=1.6, labelspacing=0.35, borderaxespad=0.2)
    caption, alt = _words(recording, drawn, gpu, x, (lo, hi), prediction, read_rate, live_label if live else None, live_gpu)
    return figure(fig, name=name, caption=caption, alt=alt)


def _batches(recording, fixed: dict, x: str, select: dict) -> dict[str, dict]:
    """One series for each recorded batch, or one alone where the batch is given or is the x axis."""
    free = {key: value for key, value in fixed.items() if key not in ("batch", x)}
    places: dict[int, set[int]] = {}
    for row in recording.rows if recording else ():
        if all(row.get(key) == value for key, value in free.items()):
            places.setdefault(row["batch"], set()).add(row[x])
    found = sorted(batch for batch, at in places.items() if len(at) >= 3)  # fewer make no curve
    if x == "batch" or "batch" in select or not found:
        return {
            next((label for label, at in OPERATIONS.items() if at["operation"] == fixed["operation"]), fixed["operation"]): {}
        }
    return {f"batch {batch}": {"batch": batch} for batch in found[: len(style.SERIES)]}


def _rate(bandwidth: float) -> str:
    return f"{costs.format_bytes(bandwidth, binary=False)}/s"


def _points(top, low, one: Series, rows: dict[int, dict], look: dict, x_name: str, gpu: costs.Gpu | None) -> None:
    """Times above and, where the GPU is known, their ratio to its floor below."""
    if not rows:
        return
    xs = sorted(rows)
    median = [rows[at]["median_s"] for at in xs]
    panels = [(top, [1.0] * len(xs))] + ([(low, [_floor(one, x_name, at, gpu) for at in xs])] if gpu else [])
    spread = [
        [rows[at]["median_s"] - rows[at].get("p20_s", rows[at]["median_s"]) for at in xs],
        [rows[at].get("p80_s", rows[at]["median_s"]) - rows[at]["median_s"] for at in xs],
    ]
    for ax, scale in panels:
        ax.plot(
            xs,
            [m / s for m, s in zip(median, scale, strict=True)],
            color=one.colour,
            linewidth=0.8,
            alpha=0.45,
            zorder=2.4,
        )
        ax.errorbar(
            xs, [m / s for m, s in zip(median, scale, strict=True)],
            yerr=[[e / s for e, s in zip(side, scale, strict=True)] for side in spread],
            color=one.colour, elinewidth=1.2, zorder=3, **look,
        )  # fmt: skip


def _floor(one: Series, x_name: str, at: int, gpu: costs.Gpu) -> float:
    n_bytes, flops = one.cost(x_name, at)
    dtype = one.fields["dtype"] if one.fields["dtype"] in gpu.peaks else "float16"  # a Turing GPU has no bfloat16
    return costs.floor(n_bytes, flops, gpu, dtype=dtype).seconds


def _axes(top, low, x: str, points: list[int]) -> None:
    lo, hi = AXES[x][1]
    steps = points if len(points) > 1 else [lo * 4**k for k in range(20) if lo * 4**k <= hi]
    steps = steps[:: -(-len(steps) // 6)]
    for ax in filter(None, (top, low)):
        ax.set_xscale("log", base=2)
        ax.set_yscale("log")
        ax.xaxis.set_major_locator(FixedLocator(steps))
        ax.xaxis.set_minor_locator(NullLocator())
        ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    (low or top).set_xlabel(AXES[x][0])
    top.set_ylabel("time of one call")
    bottom, height = top.get_ylim()
    top.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if height / bottom < 50 else (1,)))
    top.yaxis.set_major_formatter(FuncFormatter(lambda value, _: costs.format_seconds(value)))
    top.yaxis.set_minor_locator(NullLocator())
    if low:
        low.set_ylabel("time ÷ floor")
        highest = max(2.2, low.get_ylim()[1])
        low.set_ylim(0.85, highest * 1.1)
        marks = [mark for mark in (1, 1.5, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1000) if mark <= highest]
        marks = [mark for mark in marks if mark not in (1.5, 3)] if highest > 6 else marks
        low.yaxis.set_major_locator(
            FixedLocator(marks if len(marks) < 6 else [mark for mark in marks if mark not in (2, 20, 200)])
        )
        low.yaxis.set_minor_locator(NullLocator())
        low.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))


def _words(recording, drawn, gpu, x, span, prediction, read_rate, live_label, live_gpu) -> tuple[str, str]:
    """Caption and alternative text, from the data."""
    shared = {key: drawn[0].fields[key] for key in WORKHORSE if all(one.fields[key] == drawn[0].fields[key] for one in drawn)}
    shape = []
    if "n_q_heads" in shared and "n_kv_heads" in shared:
        n_kv_heads = shared["n_kv_heads"]
        shape.append(f"{shared['n_q_heads']} query heads over {n_kv_heads} KV head{'s' * (n_kv_heads > 1)}")
    widths = {shared.get("head_dim_qk"), shared.get("head_dim_v")} - {None}
    shape.append(" and ".join(f"{width}" for width in sorted(widths)) + " wide")
    shape.append(shared.get("dtype", ""))
    if x != "batch" and "batch" in shared:
        shape.append(f"batch {shared['batch']}")
    if x != "context_len" and "context_len" in shared:
        shape.append(f"{shared['context_len']:,} cached tokens")
    shape = ", ".join(filter(None, shape))

    measured = any(one.recorded for one in drawn)
    lines = [
        f"Time of one call against {AXES[x][0]} ({shape}) and, below, its ratio to the floor."
        if measured or prediction
        else f"Time of one call against {AXES[x][0]} ({shape})."
    ]
    lines.append(f"Line: computed floor, {gpu.name} data sheet, {_rate(gpu.bandwidth)}.")
    if measured:
        lines.append(
            f"Hollow marks, with bars from the 20th to the 80th percentile: {recording.label}; dotted: "
            f"{_rate(read_rate)} read in the same recording."
        )
        if not recording.current:
            lines.append("Recorded with an earlier version of the kernels.")
    else:
        lines.append("Nothing is recorded for these shapes: only what is computed is drawn.")
    if live_label:
        lines.append(f"Filled marks: {live_label}.")
    if prediction:
        lines.append(f"Dashed: {costs.format_seconds(prediction.t0_s)} + bytes ÷ {_rate(prediction.bandwidth)}.")
    missing = [f"{one.label} at {at:,} ({reason})" for one in drawn for at, reason in sorted(one.missing.items())]
    if missing:
        lines.append(f"Missing: {'; '.join(missing)}.")

    told = [f"Two plots with logarithmic axes over {AXES[x][0]} from {span[0]:,} to {span[1]:,}; {shape}."]
    floors = {one.label: (_floor(one, x, span[0], gpu), _floor(one, x, span[1], gpu)) for one in drawn}
    for label, (first, last) in floors.items() if len(set(floors.values())) > 1 else [("", next(iter(floors.values())))]:
        told.append(
            f"The floor{' of ' + label if label else ''} rises from {costs.format_seconds(first)} to "
            f"{costs.format_seconds(last)}."
        )
    for one in drawn:
        for rows, kind, floor_of in ((one.recorded, "recorded", gpu), (one.live, "live", live_gpu)):
            if rows:
                a, b = min(rows), max(rows)
                first, last = (costs.format_seconds(rows[at]["median_s"]) for at in (a, b))
                times = f"{first} at {a:,} to {last} at {b:,}"
                ratios = [rows[at]["median_s"] / _floor(one, x, at, floor_of) for at in rows] if floor_of else []
                above = f", {min(ratios):.2f} to {max(ratios):.2f} times the floor" if ratios else ""
                told.append(f"{one.label}, {kind}: {times}{above}.")
    return " ".join(lines), " ".join(told)
