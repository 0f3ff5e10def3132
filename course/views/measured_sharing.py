"""Time of a decode call against KV heads: loads shared, and heads copied first, over their floors (chapter 2)."""

from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from .. import costs
from . import style
from .figures import Figure, figure

HEAD_DIM = 128
SHARED, COPIED = "floor: a shared key loaded once", "floor: heads copied first"
# label, fields of its rows, colour
CONTENDERS = (
    ("grouped decode kernel", {"operation": "decode", "splits": "automatic"}, style.BLUE),
    ("SDPA, enable_gqa, fastest backend", {"operation": "sdpa"}, style.GREEN),
    ("heads copied, then SDPA FLASH", {"operation": "repeat_sdpa", "backend": "FLASH"}, style.VERMILLION),
    ("SDPA MATH, enable_gqa", {"operation": "sdpa", "backend": "MATH"}, style.PURPLE),
)


def shared_heads_measured(recording, *, batch: int = 16, context_len: int = 8192, n_q_heads: int = 32) -> Figure:
    """Recorded times over KV heads, one series a contender, above their ratio to the floor of a kernel that shares its loads.

    ``recording`` is of kind 'decode', or None: then only the computed lines are drawn, and the caption says so.
    """
    gpu = costs.gpu(recording.provenance["gpu"] if recording else "H200 SXM")
    heads = [2**i for i in range(n_q_heads.bit_length()) if n_q_heads % 2**i == 0]
    shared, copied = {}, {}
    for n in heads:
        attention = costs.Attention.gqa(n_q_heads, n, HEAD_DIM)
        n_bytes = costs.cache_bytes(attention, context_len, batch=batch)
        shared[n] = costs.floor(n_bytes, costs.decode_flops(attention, context_len, batch=batch), gpu).seconds
        if n < n_q_heads:  # with a KV head for each query head there is nothing to copy
            copied[n] = n_bytes * costs.copy_passes(attention.group_size) / gpu.bandwidth
    found: dict[str, dict[int, dict]] = {}
    if recording:
        shape = {"n_q_heads": n_q_heads, "batch": batch, "context_len": context_len, "head_dim_qk": HEAD_DIM}
        for label, fields, _ in CONTENDERS:
            rows = {n: recording.fastest(n_kv_heads=n, **shape, **fields) for n in heads}
            found[label] = {n: row for n, row in rows.items() if row}

    fig, (top, low) = style.subplots(2, 1, height=6.2, sharex=True, gridspec_kw={"height_ratios": (2.2, 1)})
    top.plot(list(shared), list(shared.values()), color=style.INK, **style.STYLES["computed"])
    dashed = style.STYLES["computed"] | {"linestyle": (0, (5, 2))}
    top.plot(list(copied), list(copied.values()), color=style.VERMILLION, **dashed)
    low.axhline(1, color=style.INK, **style.STYLES["computed"])
    low.plot(list(copied), [copied[n] / shared[n] for n in copied], color=style.VERMILLION, **dashed)
    legend = [
        Line2D([], [], color=style.INK, label=SHARED, **style.STYLES["computed"]),
        Line2D([], [], color=style.VERMILLION, label=COPIED, **dashed),
    ]
    for place, (label, _, colour) in enumerate(CONTENDERS):
        rows = found.get(label)
        if not rows:
            continue
        look = style.STYLES["recorded"] | {"markerfacecolor": "none", "markersize": (9.5, 6, 7.5, 7.5)[place]}
        for ax, scale in ((top, dict.fromkeys(rows, 1.0)), (low, shared)):
            middle = [row["median_s"] / scale[n] for n, row in rows.items()]
            sides = [
                [(row["median_s"] - row["p20_s"]) / scale[n] for n, row in rows.items()],
                [(row["p80_s"] - row["median_s"]) / scale[n] for n, row in rows.items()],
            ]
            ax.plot(list(rows), middle, color=colour, linewidth=0.8, alpha=0.45)
            ax.errorbar(list(rows), middle, yerr=sides, color=colour, elinewidth=1.2, zorder=3, **look)
        legend.append(Line2D([], [], color=colour, label=label, **look))
    for ax in (top, low):
        ax.set_xscale("log", base=2)
        ax.set_yscale("log")
        ax.xaxis.set_major_locator(FixedLocator(heads))
        ax.xaxis.set_major_formatter(FuncFormatter(lambda n, _: f"{n:g}"))
        ax.xaxis.set_minor_locator(NullLocator())
        ax.yaxis.set_major_locator(LogLocator())
        ax.yaxis.set_minor_locator(NullLocator())
    top.yaxis.set_major_formatter(FuncFormatter(lambda value, _: costs.format_seconds(value)))
    low.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
    top.set_ylabel("time of one call")
    low.set_ylabel("time ÷ floor, shared")
    low.set_xlabel("KV heads")
    fig.legend(handles=legend, loc="outside upper left", ncols=1, handlelength=1.8, labelspacing=0.35, borderaxespad=0.2)
    return figure(
        fig,
        name=f"shared-heads-{batch}-{context_len}",
        caption=" ".join(_caption(recording, gpu, batch, context_len, n_q_heads, bool(any(found.values())))),
        alt=_alt(found, shared, copied, heads),
    )


def _caption(recording, gpu, batch: int, context_len: int, n_q_heads: int, measured: bool) -> list[str]:
    rate = f"{costs.format_bytes(gpu.bandwidth, binary=False)}/s"
    lines = [
        f"Time of one decode call against KV heads ({n_q_heads} query heads, {HEAD_DIM} wide, bfloat16, batch {batch}, "
        f"{context_len:,} cached tokens) and, below, its ratio to the floor of a kernel that shares its loads.",
        f"Lines: computed floors, {gpu.name} data sheet, {rate}.",
    ]
    if not measured:
        return [*lines, "Nothing is recorded for these shapes: only what is computed is drawn."]
    lines.append(f"Hollow marks, with bars from the 20th to the 80th percentile: {recording.label}.")
    return lines if recording.current else [*lines, "Recorded with an earlier version of the kernels."]


def _alt(found: dict, shared: dict, copied: dict, heads: list[int]) -> str:
    told = [
        f"Two plots with logarithmic axes over {heads[0]} to {heads[-1]} KV heads. The floor with shared loads rises from "
        f"{costs.format_seconds(shared[heads[0]])} to {costs.format_seconds(shared[heads[-1]])}; the floor with copied heads "
        f"is nearly level, {costs.format_seconds(min(copied.values()))} to {costs.format_seconds(max(copied.values()))}."
    ]
    for label, rows in found.items():
        if rows:
            ends = [f"{costs.format_seconds(rows[n]['median_s'])} at {n}" for n in (min(rows), max(rows))]
            ratios = [row["median_s"] / shared[n] for n, row in rows.items()]
            told.append(f"{label}: {' to '.join(ends)}, {min(ratios):.2f} to {max(ratios):.1f} times the floor.")
    return " ".join(told)
