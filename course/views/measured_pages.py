"""Time of a paged decode against the size of its pages: recorded and live points over the floor and the contiguous twin."""

from collections.abc import Sequence

from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from .. import costs
from . import style
from .figures import Figure, figure

# The sweep of the 'paged' recording: the workhorse at batch 16 and 8,192 tokens.
SWEEP = {
    "dtype": "bfloat16",
    "batch": 16,
    "n_q_heads": 32,
    "n_kv_heads": 8,
    "head_dim_qk": 128,
    "head_dim_v": 128,
    "context_len": 8192,
    "q_len": 1,
    "cache_dtype": None,
    "lengths": "equal",
}
SIZES = (1, 256)
CONTENDERS = {
    "this kernel": ({"operation": "paged_decode", "splits": "automatic"}, style.BLUE, 9.0),
    "FlashInfer": ({"operation": "flashinfer", "backend": "fa2"}, style.VERMILLION, 5.5),
}


def page_sweep(rows: Sequence[dict], **shape) -> dict[str, dict[int, dict]]:
    """Rows that succeeded, by contender and page size; 'contiguous' holds the twin without pages under 0."""
    wanted = SWEEP | shape
    mine = [row for row in rows if row["status"] == "ok" and all(row[key] == value for key, value in wanted.items())]
    found = {
        name: {row["page_size"]: row for row in mine if row["page_size"] and all(row[key] == v for key, v in fields.items())}
        for name, (fields, _, _) in CONTENDERS.items()
    }
    twin = [row for row in mine if row["operation"] == "decode" and row["splits"] == "automatic"]
    return found | {"contiguous": {0: twin[0]} if twin else {}}


def page_size_figure(
    recording, *, live: Sequence[dict] = (), live_label: str = "live, this machine", live_gpu: costs.Gpu | None = None, **shape
) -> Figure:
    """Time of one paged decode against tokens of a page, above its ratio to the floor.

    recording  of kind 'paged', or None: then only what is computed (and live) is drawn
    live       rows measured on the reader's machine, of the same fields; ``live_gpu`` its data sheet, if it is known
    shape      fields of ``SWEEP`` that differ, such as ``batch``
    """
    for key in shape:
        if key not in SWEEP:
            raise ValueError(f"shape may set {', '.join(SWEEP)}, got {key!r}")
    wanted = SWEEP | shape
    gpu = costs.gpu(recording.provenance["gpu"] if recording else "H200 SXM")
    attention = costs.Attention.gqa(wanted["n_q_heads"], wanted["n_kv_heads"], wanted["head_dim_qk"], wanted["head_dim_v"])
    n_bytes = costs.cache_bytes(attention, wanted["context_len"], batch=wanted["batch"])
    flops = costs.decode_flops(attention, wanted["context_len"], batch=wanted["batch"])
    floor = costs.floor(n_bytes, flops, gpu, dtype="bfloat16").seconds
    read = n_bytes / recording.read_bandwidth if recording else None
    found = page_sweep(recording.rows if recording else (), **shape)
    mine = page_sweep(live, **(shape | ({"dtype": live[0]["dtype"]} if live else {})))
    own_floor = costs.floor(n_bytes, flops, live_gpu, dtype="float16").seconds if live_gpu else None

    fig, (top, low) = style.subplots(2, 1, height=5.6, sharex=True, gridspec_kw={"height_ratios": (2.0, 1)})
    legend: list[Line2D] = []
    said: list[str] = []

    def draw(label: str, rows: dict[int, dict], look: dict, colour: str, base: float | None) -> None:
        if not rows:
            return
        xs = sorted(rows)
        times = [rows[at]["median_s"] for at in xs]
        below = [rows[at]["median_s"] - rows[at]["p20_s"] for at in xs]
        above = [rows[at]["p80_s"] - rows[at]["median_s"] for at in xs]
        for ax, by in ((top, 1.0), (low, base)) if base else ((top, 1.0),):
            ax.plot(xs, [t / by for t in times], color=colour, linewidth=0.8, alpha=0.45)
            bars = [[e / by for e in side] for side in (below, above)]
            ax.errorbar(xs, [t / by for t in times], yerr=bars, color=colour, elinewidth=1.2, **look)
        legend.append(Line2D([], [], label=label, color=colour, **look))
        ratio = f", {min(times) / base:.2f} to {max(times) / base:.2f} times the floor" if base else ""
        said.append(f"{label}: {costs.format_seconds(times[0])} at pages of {xs[0]} to {costs.format_seconds(times[-1])} "
                    f"at {xs[-1]}{ratio}.")  # fmt: skip

    def across(label: str, seconds: float, base: float | None, **look) -> None:
        top.axhline(seconds, **look)
        if base:
            low.axhline(seconds / base, **look)
        legend.append(Line2D([], [], label=label, **look))

    for name, (_, colour, size) in CONTENDERS.items():
        ring = style.STYLES["recorded"] | {"markerfacecolor": "none", "markersize": size}
        draw(name, found[name], ring, colour, floor)
        draw(f"{name}: live", mine[name], style.STYLES["live"], colour, own_floor)
    twin, own_twin = found["contiguous"].get(0), mine["contiguous"].get(0)
    dash = {"linewidth": 1.4, "linestyle": (0, (5, 2))}
    if twin:
        across("this kernel, contiguous cache", twin["median_s"], floor, color=style.BLUE, **dash)
        said.append(f"The contiguous cache takes {costs.format_seconds(twin['median_s'])}.")
    if own_twin:
        across("this kernel, contiguous cache: live", own_twin["median_s"], own_floor, color=style.GREEN, **dash)
        said.append(f"Live, the contiguous cache takes {costs.format_seconds(own_twin['median_s'])}.")
    if read:
        rate = f"{costs.format_bytes(recording.read_bandwidth, binary=False)}/s"
        across(
            f"read rate in the same recording ({rate})", read, floor, color=style.INK, linewidth=1.0, linestyle=(0, (1, 1.5))
        )
    rate = f"{costs.format_bytes(gpu.bandwidth, binary=False)}/s"
    across(f"floor, data sheet ({rate})", floor, floor, color=style.INK, **style.STYLES["computed"])
    if own_floor:
        across(f"floor, {live_gpu.name}", own_floor, None, color=style.MUTED, linewidth=1.4, linestyle=(0, (6, 2, 1, 2)))

    for ax in (top, low):
        ax.set_xscale("log", base=2)
        ax.set_xlim(SIZES[0] * 0.8, SIZES[1] * 1.25)
        ax.xaxis.set_major_locator(FixedLocator([1, 4, 16, 64, 256]))
        ax.xaxis.set_minor_locator(NullLocator())
        ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        ax.yaxis.set_major_locator(MaxNLocator(5))
    top.set_ylabel("time of one call")
    top.yaxis.set_major_formatter(FuncFormatter(lambda value, _: costs.format_seconds(max(value, 0))))
    low.set_ylabel("time ÷ floor")
    low.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
    low.set_xlabel("tokens of a page")
    fig.legend(handles=legend, loc="outside upper left", ncols=1, handlelength=1.8, labelspacing=0.35, borderaxespad=0.2)

    work = (
        f"{wanted['n_q_heads']} query heads over {wanted['n_kv_heads']} KV heads, {wanted['head_dim_qk']} wide, "
        f"{wanted['dtype']}, batch {wanted['batch']}, {wanted['context_len']:,} tokens each"
    )
    lines = [f"Time of one paged decode against the tokens of a page ({work}) and, below, its ratio to the floor."]
    lines.append(f"Line: computed floor, {gpu.name} data sheet.")
    if any(found.values()):
        lines.append(f"Hollow marks, with bars from the 20th to the 80th percentile, and dashes: {recording.label}.")
        if not recording.current:
            lines.append("Recorded with an earlier version of the kernels.")
    else:
        lines.append("Nothing is recorded for this shape: only what is computed is drawn.")
    if any(mine.values()):
        lines.append(f"Filled marks: {live_label}.")
    return figure(
        fig,
        name="page-sizes",
        caption=" ".join(lines),
        alt=f"Two plots over pages of 1 to 256 tokens; {work}. The floor is {costs.format_seconds(floor)}. {' '.join(said)}",
    )
