"""Drawings of chapter 2: which query head reads which KV head, and what a token costs each of several GPUs."""

from collections.abc import Sequence

from matplotlib.patches import Circle
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from .. import costs
from . import style
from .diagrams import ROW_COLOURS, _card, _sheet
from .figures import Figure, figure

MOST_DRAWN = 12  # query heads that fit side by side


def head_sharing_figure(n_q_heads: int = 8, variants: Sequence[int] = (8, 2, 1)) -> Figure:
    """Query heads above the KV heads they read, once for each number of KV heads in ``variants``.

    ValueError for a number of KV heads that does not divide ``n_q_heads``, or for more heads than can be drawn.
    """
    if not 1 <= n_q_heads <= MOST_DRAWN or not variants or any(n < 1 or n_q_heads % n for n in variants):
        raise ValueError(
            f"each of variants must divide n_q_heads, which is at most {MOST_DRAWN}, got {n_q_heads} and {tuple(variants)}"
        )
    panel, told = 15.6, []
    fig, ax = _sheet(panel * len(variants) + 0.5)
    left, pitch = 2.6, 46 / n_q_heads
    for place, n_kv_heads in enumerate(variants):
        top = panel * (len(variants) - place)
        group_size = n_q_heads // n_kv_heads
        attention = costs.Attention.gqa(n_q_heads, n_kv_heads, 128)
        shared = f"G = {group_size}" if group_size > 1 else "G = 1, nothing is shared"
        ax.text(1, top - 1.8, f"{attention.kind}: {n_kv_heads} KV head{'s' * (n_kv_heads > 1)}", fontsize=11, weight="bold",
                va="center")  # fmt: skip
        ax.text(49, top - 1.8, shared, fontsize=10, color=style.MUTED, va="center", ha="right")
        for kv_head in range(n_kv_heads):
            colour = ROW_COLOURS[kv_head % len(ROW_COLOURS)]
            first, last = kv_head * group_size, (kv_head + 1) * group_size - 1
            middle = left + pitch * (first + last) / 2 + pitch / 2 - 0.5
            width = 4.4 if n_kv_heads > 4 else 8.0
            for q_head in range(first, last + 1):
                x = left + pitch * q_head + pitch / 2 - 0.5
                ax.plot([x, middle], [top - 6.6, top - 10.4], color=colour, linewidth=1.6, zorder=1)
                ax.add_patch(Circle((x, top - 5.4), 1.5, facecolor=colour, edgecolor=style.CARD, linewidth=1.2, zorder=2))
                ax.text(x, top - 5.45, str(q_head), color=style.INK if colour in (style.GOLD, style.SKY) else "white",
                        ha="center", va="center", fontsize=9.5, weight="bold", zorder=3)  # fmt: skip
            _card(ax, middle - width / 2, top - 13.6, width, 3.2, edge=colour, fill=style.CARD, line=1.8, zorder=2)
            ax.text(middle, top - 12.05, f"{kv_head}" if n_kv_heads > 4 else f"K, V {kv_head}", ha="center", va="center",
                    fontsize=10, zorder=3)  # fmt: skip
        told.append(
            f"{attention.kind}: "
            + "; ".join(
                f"query heads {k * group_size} to {(k + 1) * group_size - 1} read KV head {k}"
                if group_size > 1
                else f"query head {k} reads KV head {k}"
                for k in range(n_kv_heads)
            )
        )
    return figure(
        fig,
        name=f"head-sharing-{n_q_heads}-{'-'.join(map(str, variants))}",
        caption=(
            f"{n_q_heads} query heads (circles) and the KV heads they read (boxes). The boxes are what a token leaves in the "
            "cache; the circles, and the lines, are as many in every row."
        ),
        alt=". ".join(told) + ".",
    )


def tensor_parallel_figure(
    n_layers: int = 80, n_q_heads: int = 64, head_dim: int = 128, *, kv_heads: Sequence[int] = (64, 8, 1), most: int = 16
) -> Figure:
    """KiB that a token leaves on each of t GPUs when the heads are divided, t = 1, 2, 4 … ``most``; bfloat16, computed.

    The defaults are the layers of a 70B model. ValueError where heads do not divide, see ``costs.split_heads``.
    """
    degrees = [2**i for i in range(most.bit_length()) if 2**i <= most]
    lines = {}
    for n_kv_heads in kv_heads:
        attention = costs.Attention.gqa(n_q_heads, n_kv_heads, head_dim)
        shares = [costs.split_heads(attention, t) for t in degrees]
        lines[attention.kind] = [costs.cache_bytes(share, 1, n_layers=n_layers) / costs.KiB for share in shares]

    fig, ax = style.subplots(height=3.8)
    for (kind, kib), colour in zip(lines.items(), style.SERIES, strict=False):
        ax.plot(degrees, kib, color=colour, **(style.STYLES["computed"] | {"marker": "o", "markersize": 5}))
        for t, value in zip(degrees, kib, strict=True):
            ax.annotate(f"{value:,.0f}", (t, value), xytext=(5, 5), textcoords="offset points", color=colour)
        ax.annotate(kind, (degrees[0], kib[0]), xytext=(-10, 0), textcoords="offset points", ha="right", va="center",
                    color=colour, weight="bold")  # fmt: skip
    ax.set(xscale="log", yscale="log", xlabel="GPUs that share the heads", ylabel="KiB a token and GPU")
    ax.set_xlim(degrees[0] / 2.3, degrees[-1] * 1.35)
    values = [value for kib in lines.values() for value in kib]
    ax.set_ylim(min(values) / 1.8, max(values) * 2)
    ax.xaxis.set_major_locator(FixedLocator(degrees))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda t, _: f"{t:g}"))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda kib, _: f"{kib:,.0f}"))
    for side in (ax.xaxis, ax.yaxis):
        side.set_minor_locator(NullLocator())
    places = [f"each of {t}" if t > 1 else "one GPU" for t in degrees]
    shape = f"{n_layers} layers, {n_q_heads} query heads, {head_dim} wide, bfloat16"
    return figure(
        fig,
        name=f"tensor-parallel-{n_layers}-{n_q_heads}-{head_dim}",
        caption=(
            f"Computed: KiB that one token leaves on each of several GPUs when they divide the heads ({shape}). From one KV "
            "head a GPU on, a further GPU holds a copy, and the line is level."
        ),
        alt=" ".join(
            f"{kind}: " + ", ".join(f"{value:,.0f} KiB on {place}" for value, place in zip(kib, places, strict=True)) + "."
            for kind, kib in lines.items()
        ),
    )
