"""MLA measured: heads across the ridge (chapter 8), and the expanded form's prefill beside MHA and GQA (chapter 7)."""

from collections.abc import Mapping, Sequence

from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from .. import costs
from ..measure.shapes import PORTABLE
from . import style
from .figures import Figure, figure

HEADS = (16, 32, 64, 96, 128)
DOTTED = (0, (1, 1.5))
PLAIN, HOPPER = "this course, plain Triton", "this course, on Hopper"
FLASHINFER, FLASH_MLA = "FlashInfer, fastest", "FlashMLA"
SERIES = {PLAIN: (style.BLUE, 9.0), HOPPER: (style.PURPLE, 7.5), FLASHINFER: (style.GREEN, 6.0), FLASH_MLA: (style.GOLD, 4.5)}
PREFILL = {
    "MHA, 32 heads of 128": ({"n_q_heads": 32, "n_kv_heads": 32, "head_dim_qk": 128}, style.BLUE),
    "GQA, 32 over 8 heads of 128": ({"n_q_heads": 32, "n_kv_heads": 8, "head_dim_qk": 128}, style.GREEN),
    "expanded MLA, 16 heads of 192 and 128": ({"n_q_heads": 16, "n_kv_heads": 16, "head_dim_qk": 192}, style.VERMILLION),
}


def rates_of(recording) -> tuple[float, float] | None:
    """Bytes read and FLOPs computed a second, sustained, in the recording itself; None if it does not hold both."""
    try:
        return recording.read_bandwidth, recording.limit("matmul sustained", "flops")
    except (AttributeError, LookupError, ValueError):
        return None


def calls(rows: Sequence[Mapping], operation: str, batch: int, context_len: int) -> dict[int, dict]:
    """By heads: the fastest contiguous 16-bit call of one query token whose splits nobody imposed."""
    plain = {"batch": batch, "context_len": context_len, "q_len": 1, "page_size": None, "cache_dtype": None, "lengths": "equal"}
    best: dict[int, dict] = {}
    for row in rows:
        if row["operation"] != operation or not row["head_dim_shared"] or row["status"] != "ok" or row["splits"] == "given":
            continue
        heads = row["n_q_heads"]
        fits = all(row[key] == value for key, value in plain.items())
        if fits and (heads not in best or row["median_s"] < best[heads]["median_s"]):
            best[heads] = dict(row)
    return dict(sorted(best.items()))


def forms(rows: Sequence[Mapping], batch: int, context_len: int) -> dict[str, dict[int, dict]]:
    """By series and heads: the calls of each. Where the plain form has rows of its own, a Hopper GPU ran the other ones."""
    named, plain = (calls(rows, operation, batch, context_len) for operation in ("mla_decode", PORTABLE + "mla_decode"))
    return {
        PLAIN: plain or named,
        HOPPER: named if plain else {},
        FLASHINFER: calls(rows, "flashinfer", batch, context_len),
        FLASH_MLA: calls(rows, "flash_mla", batch, context_len),
    }


def mla_heads(
    recording,
    *,
    batch: int = 64,
    context_len: int = 8192,
    gpu: costs.Gpu | str | None = None,
    live: Sequence[Mapping] = (),
    live_label: str = "live, this machine",
    name: str = "mla-heads",
) -> Figure:
    """Time of one absorbed decode call against the query heads on the GPU, over both floors and both ridges.

    recording  of kind 'mla', or None: then only what is computed is drawn
    gpu        whose data sheet the floors use; by default the recording's GPU, or the H200
    live       rows measured on the reader's machine
    """
    if gpu is None:
        gpu = recording.provenance["gpu"] if recording else "H200 SXM"
    gpu = gpu if isinstance(gpu, costs.Gpu) else costs.gpu(gpu)
    found = forms(recording.rows if recording else (), batch, context_len)
    mine = {label: rows for label, rows in forms(live, batch, context_len).items() if rows}
    rates = rates_of(recording) if recording else None
    xs = list(range(8, 137, 4))

    def floor_of(heads: int) -> costs.Floor:
        one = costs.Attention.mla(heads)
        n_bytes = costs.cache_bytes(one, context_len, batch=batch)
        return costs.floor(n_bytes, costs.decode_flops(one, context_len, batch=batch), gpu)

    measured = any(found.values()) or bool(mine)
    if measured:
        fig, (top, low) = style.subplots(2, 1, height=6.1, sharex=True, gridspec_kw={"height_ratios": (2.2, 1)})
    else:
        fig, top = style.subplots(height=4.0)
        low = None
    floors = [floor_of(heads) for heads in xs]
    top.plot(xs, [f.memory_s for f in floors], color=style.INK, **style.STYLES["computed"])
    top.plot(xs, [f.compute_s for f in floors], color=style.VERMILLION, **style.STYLES["computed"])
    legend = [
        Line2D([], [], color=style.INK, label=f"bytes ÷ {_tera(gpu.bandwidth)} TB/s, data sheet", **style.STYLES["computed"]),
        Line2D([], [], color=style.VERMILLION, label=f"FLOPs ÷ {_tera(gpu.peak_flops())} TFLOP/s, data sheet",
               **style.STYLES["computed"]),
    ]  # fmt: skip
    per_head = costs.intensity(costs.Attention.mla(1))
    ridges = {"data sheet": gpu.ridge() / per_head}
    if rates:
        read, sustained = rates
        top.plot(xs, [f.memory_s * gpu.bandwidth / read for f in floors], color=style.INK, linewidth=1.1, linestyle=DOTTED)
        top.plot(
            xs, [f.compute_s * gpu.peak_flops() / sustained for f in floors], color=style.VERMILLION, linewidth=1.1,
            linestyle=DOTTED,
        )  # fmt: skip
        label = f"the same at recorded rates, {_tera(read)} TB/s and {_tera(sustained)} TFLOP/s"
        legend.append(Line2D([], [], color=style.MUTED, linewidth=1.1, linestyle=DOTTED, label=label))
        ridges["recorded"] = sustained / read / per_head
    for words, at in ridges.items():
        for ax in filter(None, (top, low)):
            ax.axvline(at, color=style.MUTED, linewidth=0.9, linestyle="-" if words == "data sheet" else DOTTED)
        top.annotate(
            f"ridge:\n{words}\n{at:.0f} heads", (at, 0.02), xycoords=("data", "axes fraction"), ha="right", va="bottom",
            fontsize=9.5, color=style.MUTED, xytext=(-4, 0), textcoords="offset points",
        )  # fmt: skip
    told = []
    for label, (colour, size) in SERIES.items():
        rows = found[label]
        if not rows:
            continue
        look = style.STYLES["recorded"] | {"markersize": size, "markerfacecolor": "none"}
        _marks(top, low, rows, floor_of, colour, look)
        legend.append(Line2D([], [], color=colour, label=f"{label}, recorded", **look))
        told.append((label, "recorded", rows))
    for label, rows in mine.items():
        colour = SERIES[label][0]
        _marks(top, low, rows, floor_of, colour, style.STYLES["live"])
        legend.append(Line2D([], [], color=colour, label=f"{label}, {live_label}", **style.STYLES["live"]))
        told.append((label, "live", rows))
    top.set_yscale("log")
    top.set_ylabel("time of one call")
    top.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    top.yaxis.set_major_formatter(FuncFormatter(lambda value, _: costs.format_seconds(value)))
    top.yaxis.set_minor_locator(NullLocator())
    (low or top).set_xlabel("query heads on the GPU")
    top.xaxis.set_major_locator(FixedLocator(HEADS))
    top.set_xlim(6, 138)
    if low:
        low.set_ylabel("time ÷ floor")
        low.axhline(1, color=style.INK, **style.STYLES["computed"])
        low.set_ylim(0.9, max(2.0, low.get_ylim()[1]))
        low.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
    fig.legend(handles=legend, loc="outside upper left", ncols=1, handlelength=1.6, labelspacing=0.35, borderaxespad=0.2)

    n_bytes = costs.cache_bytes(costs.Attention.mla(1), context_len, batch=batch)
    shape = (
        f"batch {batch}, {context_len:,} tokens each, {costs.format_bytes(n_bytes, binary=False)} of latents and rotary keys"
    )
    caption = [f"Absorbed MLA, one query token, bfloat16, {shape}: time of one call against the query heads on the GPU."]
    caption.append(f"Lines are computed ({gpu.name}): bytes over bandwidth does not depend on the heads, FLOPs over peak does.")
    caption.append(
        "Vertical lines: the ridge in heads, " + ", ".join(f"{at:.0f} by {words}" for words, at in ridges.items()) + "."
    )
    if any(found.values()):
        caption.append(f"Hollow marks: {recording.label}. Below: time over the larger floor of the data sheet.")
        if found[HOPPER]:
            caption.append("On this GPU the form for Hopper runs where it is the faster; plain Triton was recorded beside it.")
        if not recording.current:
            caption.append("Recorded with an earlier version of the kernels.")
    else:
        caption.append("Nothing is recorded for these shapes: only what is computed is drawn.")
    if mine:
        caption.append(f"Filled marks: {live_label}.")
    alt = [f"Against 16 to 128 heads a flat line at {costs.format_seconds(floors[0].memory_s)} for the bytes and a rising line "
           f"for the FLOPs, which cross at {ridges['data sheet']:.0f} heads."]  # fmt: skip
    for label, kind, rows in told:
        times = [f"{costs.format_seconds(rows[h]['median_s'])} with {h}" for h in sorted(rows)]
        alt.append(f"{label}, {kind}: {', '.join(times)} heads.")
    return figure(fig, name=name, caption=" ".join(caption), alt=" ".join(alt))


def expanded_prefill(recording, *, name: str = "expanded-prefill") -> Figure:
    """Time over floor of causal prefill against its length: MHA, GQA and MLA's expanded form, 16,384 tokens in a call.

    ``recording`` of kind 'prefill', or None: then the floors alone are drawn.
    """
    gpu = costs.gpu(recording.provenance["gpu"] if recording else "H200 SXM")
    rows: dict[str, dict[int, dict]] = {}
    for label, (fields, _) in PREFILL.items():
        best: dict[int, dict] = {}
        wanted = fields | {"operation": "attention", "head_dim_v": 128, "direction": "forward", "causal": True, "status": "ok"}
        for row in recording.select(**wanted) if recording else ():
            n = row["context_len"]
            if row["q_len"] == n and row["batch"] * n == 16384 and (n not in best or row["median_s"] < best[n]["median_s"]):
                best[n] = row
        rows[label] = best
    measured = any(rows.values())
    lengths = sorted({n for best in rows.values() for n in best}) or [512, 1024, 2048, 4096, 8192, 16384]

    def floor_of(fields: Mapping, context_len: int) -> costs.Floor:
        one = costs.Attention.gqa(fields["n_q_heads"], fields["n_kv_heads"], fields["head_dim_qk"], 128)
        batch = 16384 // context_len
        flops = costs.attention_flops(one, context_len, context_len, batch=batch, causal=True)
        # Queries and outputs are as large as the keys and values of as many heads.
        heads = costs.Attention.gqa(one.n_q_heads, one.n_q_heads, one.head_dim_qk, one.head_dim_v)
        n_bytes = sum(costs.cache_bytes(each, context_len, batch=batch) for each in (one, heads))
        return costs.floor(n_bytes, flops, gpu)

    if measured:
        fig, (top, low) = style.subplots(2, 1, height=5.4, sharex=True, gridspec_kw={"height_ratios": (2, 1)})
    else:
        fig, top = style.subplots(height=3.8)
        low = None
    legend = []
    for place, (label, (fields, colour)) in enumerate(PREFILL.items()):
        # Equal times show as rings in one another.
        ring = style.STYLES["recorded"] | {"markerfacecolor": "none", "markersize": 9.5 - 2 * place}
        at = [n for n in lengths if n in rows[label]]
        top.plot(lengths, [floor_of(fields, n).seconds for n in lengths], color=colour, **style.STYLES["computed"])
        if at:
            times = [rows[label][n]["median_s"] for n in at]
            ratios = [t / floor_of(fields, n).seconds for t, n in zip(times, at, strict=True)]
            top.plot(at, times, color=colour, **ring)
            low.plot(at, ratios, color=colour, linewidth=0.8, alpha=0.45)
            low.plot(at, ratios, color=colour, **ring)
        look = ring if at else {"linestyle": "-"}
        legend.append(Line2D([], [], color=colour, label=label, **look))
    legend.append(Line2D([], [], color=style.INK, label=f"floor, {gpu.name} data sheet", **style.STYLES["computed"]))
    for ax in filter(None, (top, low)):
        ax.set_xscale("log", base=2)
        ax.xaxis.set_major_locator(FixedLocator(lengths))
        ax.xaxis.set_minor_locator(NullLocator())
        ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    top.set_yscale("log")
    top.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    top.yaxis.set_minor_locator(NullLocator())
    top.yaxis.set_major_formatter(FuncFormatter(lambda value, _: costs.format_seconds(value)))
    top.set_ylabel("time of one call")
    (low or top).set_xlabel("tokens of a prompt (16,384 in a call)")
    if low:
        low.axhline(1, color=style.INK, **style.STYLES["computed"])
        low.set_ylabel("time ÷ floor")
        low.set_ylim(0.9, max(2.5, low.get_ylim()[1]))
        low.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
    fig.legend(handles=legend, loc="outside upper left", ncols=1, handlelength=1.6, labelspacing=0.35, borderaxespad=0.2)
    caption = ["Causal prefill with the full-sequence kernel, bfloat16: time of one call and its ratio to the floor."]
    caption.append(
        f"Lines: computed, {gpu.name} data sheet: queries, keys, values and outputs moved once, or the FLOPs if they take "
        "longer."
    )
    if measured:
        caption.append(f"Hollow marks: {recording.label}.")
        if not recording.current:
            caption.append("Recorded with an earlier version of the kernels.")
    else:
        caption.append("Nothing is recorded for these shapes: only what is computed is drawn.")
    alt = ["Time against prompt length, both logarithmic: every floor rises in proportion to the length."]
    for label, best in rows.items():
        if best:
            ratios = [best[n]["median_s"] / floor_of(PREFILL[label][0], n).seconds for n in best]
            alt.append(f"{label}: {min(ratios):.2f} to {max(ratios):.2f} times the floor.")
    return figure(fig, name=name, caption=" ".join(caption), alt=" ".join(alt))


def _marks(top, low, rows: Mapping[int, Mapping], floor_of, colour: str, look: Mapping) -> None:
    """Times above, their ratio to the larger floor below, with bars from the 20th to the 80th percentile."""
    heads = sorted(rows)
    for ax, scale in ((top, [1.0] * len(heads)), (low, [floor_of(h).seconds for h in heads])):
        median, p20, p80 = (
            [rows[h][key] / s for h, s in zip(heads, scale, strict=True)] for key in ("median_s", "p20_s", "p80_s")
        )
        bars = [[m - lo for m, lo in zip(median, p20, strict=True)], [hi - m for m, hi in zip(median, p80, strict=True)]]
        ax.plot(heads, median, color=colour, linewidth=0.8, alpha=0.45)
        ax.errorbar(heads, median, yerr=bars, color=colour, elinewidth=1.2, zorder=3, **look)


def _tera(rate: float) -> str:
    return f"{rate / 1e12:.3g}"
