"""Speed of whole-sequence calls against context: TFLOP/s under the peak, and how far above the floor the times lie."""

from collections.abc import Mapping, Sequence

from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from .. import costs
from ..measure.shapes import Shape
from . import style
from .figures import Figure, figure

TOKENS = 16384  # of all sequences together, in the recording's grid
PLAIN = "plain Triton, the kernel shown"
OURS = "kernels.attention"
# (operation, backend) -> label, in the order of their colours.
CONTENDERS = {
    ("portable_attention", None): PLAIN,
    ("attention", None): OURS,
    ("sdpa", "CUDNN"): "PyTorch SDPA, cuDNN",
    ("sdpa", "FLASH"): "PyTorch SDPA, FLASH",
    ("flash_attn", "fa4"): "FlashAttention-4",
    ("partials_then_sum", None): "partials, then their sum",
}


def whole_sequence_speed(
    recording,
    *,
    direction: str = "forward",
    name: str | None = None,
    n_q_heads: int = 32,
    n_kv_heads: int = 8,
    widths: tuple[int, int] = (128, 128),
    causal: bool = True,
    live: Sequence[Mapping] = (),
    live_label: str = "live, this machine",
    live_gpu: costs.Gpu | None = None,
) -> Figure:
    """TFLOP/s of each contender against tokens of a sequence, above the ratio of its time to the floor.

    recording  of kind 'prefill' (``course.measure``), or None: then only the limits are drawn. Its rows are taken at 16,384
               tokens in all, whatever the length of a sequence
    live       rows measured on the reader's machine, any batch; ``live_gpu`` is that machine's data sheet, if it is known

    FLOPs are those of the pairs that the mask leaves. ValueError for a direction that is neither 'forward' nor 'backward'.
    """
    if direction not in ("forward", "backward"):
        raise ValueError(f"direction must be 'forward' or 'backward', got {direction!r}")
    gpu = costs.gpu(recording.provenance["gpu"]) if recording else costs.gpu("H200 SXM")
    same = {
        "direction": direction, "n_q_heads": n_q_heads, "n_kv_heads": n_kv_heads,
        "head_dim_qk": widths[0], "head_dim_v": widths[1], "causal": causal, "status": "ok",
    }  # fmt: skip
    recorded = _by_contender(
        row
        for row in (recording.select(**same, dtype="bfloat16") if recording else ())
        if row["q_len"] == row["context_len"] and row["batch"] * row["context_len"] == TOKENS
    )
    mine = _by_contender(
        row for row in live if row["q_len"] == row["context_len"] and all(row[key] == value for key, value in same.items())
    )
    sustained = recording.product_rate if recording else None

    fig, (top, low) = style.subplots(2, 1, height=5.2, sharex=True, gridspec_kw={"height_ratios": (2, 1)})
    peak = gpu.peak_flops() / 1e12
    top.axhline(peak, color=style.INK, label=f"peak of the data sheet, {gpu.name}", **style.STYLES["computed"])
    dotted = {"color": style.INK, "linewidth": 1.0, "linestyle": (0, (1, 1.5))}
    if sustained:
        top.axhline(sustained / 1e12, label="large matrix product, hot card, same recording", **dotted)
        low.axhline(gpu.peak_flops() / sustained, **dotted)
    low.axhline(1, color=style.INK, **style.STYLES["computed"])
    for label, colour in zip(CONTENDERS.values(), style.SERIES, strict=False):
        for rows, look, of, suffix in (
            (recorded.get(label, {}), style.STYLES["recorded"], gpu, ""),
            (mine.get(label, {}), style.STYLES["live"], live_gpu, ": live"),
        ):
            if not rows:
                continue
            xs = sorted(rows)
            top.plot(xs, [_rate(rows[x]) for x in xs], color=colour, label=label + suffix, **look)
            top.plot(xs, [_rate(rows[x]) for x in xs], color=colour, linewidth=0.8, alpha=0.45)
            if of:
                low.plot(xs, [rows[x]["median_s"] / _floor(rows[x], of) for x in xs], color=colour, **look)
    steps = sorted({x for rows in (*recorded.values(), *mine.values()) for x in rows}) or [512 * 2**n for n in range(6)]
    for ax in (top, low):
        ax.set_xscale("log", base=2)
        ax.xaxis.set_major_locator(FixedLocator(steps))
        ax.xaxis.set_minor_locator(NullLocator())
        ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    if not recorded and not mine:
        top.set_xlim(steps[0] / 1.2, steps[-1] * 1.2)
    top.set_ylim(0, 1.08 * peak)
    top.set_ylabel("TFLOP/s")
    low.set_xlabel("tokens of a sequence")
    low.set_ylabel("time ÷ floor")
    low.margins(y=0.15)
    low.set_ylim(bottom=0.8)
    low.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
    fig.legend(loc="outside upper left", ncols=1, handlelength=1.6, labelspacing=0.35, borderaxespad=0.2)

    what = {"forward": "a forward pass", "backward": "the gradients of q, k and v"}[direction]
    shape = (
        f"{n_q_heads} query heads over {n_kv_heads} KV head{'s' * (n_kv_heads > 1)}, keys {widths[0]} and values {widths[1]} "
        f"wide, {'causal' if causal else 'no mask'}, bfloat16"
    )
    lines = [f"Speed of {what} over whole sequences ({shape}) and, below, time ÷ floor. Line: computed, the data sheet's peak."]
    if recorded:
        lines.append(f"Hollow marks: {recording.label}, {TOKENS:,} tokens in all.")
        lines.append("" if recording.current else "Recorded with an earlier version of the kernels.")
    else:
        lines.append("Nothing is recorded for this shape: only what is computed is drawn.")
    if {PLAIN, OURS} <= recorded.keys():
        lines.append("On a Hopper GPU kernels.attention runs kernels of its own for the usual widths, elsewhere the one shown.")
    lines.append(f"Filled marks: {live_label}." if mine else "")
    told = [
        f"{label}, {kind}: {_rate(rows[min(rows)]):.0f} TFLOP/s at {min(rows):,} tokens to {_rate(rows[max(rows)]):.0f} at "
        f"{max(rows):,}."
        for found, kind in ((recorded, "recorded"), (mine, "live"))
        for label, rows in found.items()
    ]
    alt = f"Two plots over the tokens of a sequence; {shape}. The peak is {peak:.0f} TFLOP/s. {' '.join(told)}"
    return figure(fig, name=name or f"{direction}-speed", caption=" ".join(filter(None, lines)), alt=alt)


def _by_contender(rows) -> dict[str, dict[int, Mapping]]:
    """Label -> tokens -> row; the fastest where a place has several."""
    found: dict[str, dict[int, Mapping]] = {}
    for row in sorted(rows, key=lambda row: -row["median_s"]):
        label = CONTENDERS.get((row["operation"], row["backend"]))
        if label:
            found.setdefault(label, {})[row["context_len"]] = row
    return found


def _rate(row: Mapping) -> float:
    return row["flops"] / row["median_s"] / 1e12


def shape_of(row: Mapping) -> Shape:
    """The shape that a row of whole sequences was measured on."""
    fields = ("batch", "n_q_heads", "n_kv_heads", "context_len", "head_dim_qk", "head_dim_v", "q_len", "causal", "direction")
    return Shape(**{field: row[field] for field in fields})


def _floor(row: Mapping, gpu: costs.Gpu) -> float:
    """Seconds: every tensor moved once, or all products, whichever takes longer."""
    shape = shape_of(row)
    kv_elements = shape.cache_bytes // 2
    elements = kv_elements + kv_elements // shape.n_kv_heads * shape.n_q_heads * shape.q_len // shape.context_len
    passes = 1 if row["direction"] == "forward" else 2
    return costs.floor(2 * passes * elements, row["flops"], gpu, dtype=gpu.half).seconds
