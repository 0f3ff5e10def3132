"""Time of a decode call against the number of its splits: recorded and live points over the model of waves and the floor."""

from collections.abc import Mapping, Sequence

from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from .. import costs, measure
from . import style
from .figures import Figure, figure

# (batch, query heads, KV heads, tokens) of the shapes that are drawn by default.
SHAPES = ((1, 32, 8, 131_072), (16, 32, 8, 8192), (1, 32, 8, 8192))
FIELDS = ("batch", "n_q_heads", "n_kv_heads", "context_len")
SPLITS = (1, 2, 4, 8, 16, 32, 64, 128)
HEAD_DIM = 128


def split_times(
    recording,
    *,
    shapes: Sequence[tuple[int, int, int, int]] = SHAPES,
    model: costs.WaveModel | None = None,
    live: Sequence[Mapping] = (),
    live_label: str = "live, this machine",
    live_gpu: costs.Gpu | None = None,
    name: str = "split-times",
) -> Figure:
    """Time of one call against its splits, both axes logarithmic, above its ratio to the floor; one colour a shape.

    recording  of kind 'decode', or None: then only floors are drawn, and the model if one is given
    shapes     (batch, query heads, KV heads, tokens), 128 wide
    model      its line is drawn for the recording's GPU (the H200 without a recording)
    live       rows measured on the reader's machine; ``live_gpu`` is its GPU, if the data sheet is known
    """
    gpu = costs.gpu(recording.provenance["gpu"]) if recording else costs.gpu("H200 SXM")
    fig, (top, low) = style.subplots(2, 1, height=5.6, sharex=True, gridspec_kw={"height_ratios": (2.4, 1)})
    legend, said, drawn = [], [], 0
    for shape, colour in zip(shapes, style.SERIES, strict=False):
        fields = dict(zip(FIELDS, shape, strict=True))
        floor = _floor(fields, gpu)
        recorded = measure.split_rows(recording, **fields) if recording else []
        own_floor = _floor(fields, live_gpu) if live_gpu else None
        mine = [row for row in live if row["status"] == "ok" and all(row[key] == value for key, value in fields.items())]
        if model:
            xs = list(range(1, SPLITS[-1] + 1))
            times = [model.seconds(_launch(fields, n, gpu), gpu.sm_count) for n in xs]
            top.plot(xs, times, color=colour, **style.STYLES["computed"] | {"linewidth": 1.2})
            low.plot(xs, [t / floor for t in times], color=colour, **style.STYLES["computed"] | {"linewidth": 1.2})
        top.axhline(floor, color=colour, linewidth=1.0, linestyle=(0, (4, 3)))
        for rows, kind, least in ((recorded, "recorded", floor), (mine, "live", own_floor)):
            for ax, scale in ((top, 1.0), (low, least)):
                if rows and scale:
                    xs = [row["num_splits"] for row in rows]
                    ys = [row["median_s"] / scale for row in rows]
                    around = [
                        [(row["median_s"] - row["p20_s"]) / scale for row in rows],
                        [(row["p80_s"] - row["median_s"]) / scale for row in rows],
                    ]
                    ax.errorbar(xs, ys, yerr=around, color=colour, elinewidth=1.2, zorder=3, **style.STYLES[kind])
        drawn += len(recorded)
        label = f"batch {fields['batch']}, {fields['n_kv_heads']} KV heads, {fields['context_len']:,} tokens"
        legend.append(Line2D([], [], color=colour, label=label, **style.STYLES["recorded" if recorded else "computed"]))
        told = [f"{label}: floor {costs.format_seconds(floor)}"]
        for rows, kind in ((recorded, "recorded"), (mine, "live")):
            if rows:
                best = min(rows, key=lambda row: row["median_s"])
                told.append(f"{kind} {_time(rows[0])}, fastest {_time(best)}, {_time(rows[-1])}")
        said.append("; ".join(told) + ".")
    if model:
        legend.append(Line2D([], [], color=style.INK, label="model of waves", **style.STYLES["computed"] | {"linewidth": 1.2}))
    legend.append(Line2D([], [], color=style.INK, label="floor, data sheet", linewidth=1.0, linestyle=(0, (4, 3))))
    if live:
        legend.append(Line2D([], [], color=style.INK, label="live", **style.STYLES["live"]))
    low.axhline(1, color=style.INK, linewidth=1.0, linestyle=(0, (4, 3)))
    _axes(top, low)
    fig.legend(handles=legend, loc="outside upper left", ncols=1, handlelength=1.6, labelspacing=0.35, borderaxespad=0.2)

    lines = [
        f"Time of one call against the splits of a sequence and, below, its ratio to the floor ({HEAD_DIM}-wide heads, "
        f"bfloat16; floor of one {gpu.name})."
    ]
    if drawn:
        lines.append(f"Hollow marks, with bars from the 20th to the 80th percentile: {recording.label}.")
        if not recording.current:
            lines.append("Recorded with an earlier version of the kernels.")
    else:
        lines.append("Nothing is recorded for these shapes: only what is computed is drawn.")
    if model:
        lines.append("Lines: the model of waves, computed.")
    if live:
        lines.append(f"Filled marks: {live_label}.")
    alt = "Two plots with logarithmic axes over 1 to 128 splits. " + " ".join(said)
    return figure(fig, name=name, caption=" ".join(lines), alt=alt)


def _time(row: Mapping) -> str:
    return f"{costs.format_seconds(row['median_s'])} with {row['num_splits']} split{'s' * (row['num_splits'] > 1)}"


def _floor(fields: Mapping, gpu: costs.Gpu) -> float:
    attention = costs.Attention.gqa(fields["n_q_heads"], fields["n_kv_heads"], HEAD_DIM)
    n_bytes = costs.cache_bytes(attention, fields["context_len"], batch=fields["batch"])
    flops = costs.decode_flops(attention, fields["context_len"], batch=fields["batch"])
    return costs.floor(n_bytes, flops, gpu, dtype=gpu.half).seconds


def _launch(fields: Mapping, num_splits: int, gpu: costs.Gpu) -> costs.SplitLaunch:
    row = dict(fields) | {"head_dim_qk": HEAD_DIM, "head_dim_v": HEAD_DIM, "head_dim_shared": 0, "q_len": 1}
    return measure.split_launch(row | {"num_splits": num_splits}, gpu)


def _axes(top, low) -> None:
    for ax in (top, low):
        ax.set_xscale("log", base=2)
        ax.set_yscale("log")
        ax.xaxis.set_major_locator(FixedLocator(SPLITS))
        ax.xaxis.set_minor_locator(NullLocator())
        ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        ax.yaxis.set_minor_locator(NullLocator())
    low.set_xlabel("splits of each sequence")
    top.set_ylabel("time of one call")
    bottom, height = top.get_ylim()
    top.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if height / bottom < 50 else (1, 3)))
    top.yaxis.set_major_formatter(FuncFormatter(lambda value, _: costs.format_seconds(value)))
    low.set_ylabel("time ÷ floor")
    highest = max(2.2, low.get_ylim()[1])
    low.set_ylim(0.85, highest * 1.1)
    low.yaxis.set_major_locator(FixedLocator([mark for mark in (1, 2, 5, 10, 20, 50, 100) if mark <= highest]))
    low.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
