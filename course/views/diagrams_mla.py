"""Drawings of latent attention: what a token leaves behind, where the parenthesis goes, what one program owns."""

from . import style
from .diagrams import ROW_COLOURS, _arrow, _box, _card, _sheet
from .figures import Figure, figure

KEPT, SOFT = style.VERMILLION, "#cfe4f2"
NARROW = "#fbe3d2"


def latent_record_figure(
    *,
    d_model: int = 7168,
    n_heads: int = 128,
    nope_dim: int = 128,
    rope_dim: int = 64,
    head_dim_v: int = 128,
    latent_dim: int = 512,
) -> Figure:
    """From a token's hidden state to what is cached, and from there to the keys and values of every head."""
    fig, ax = _sheet(55)

    def tensor(x, y, width, height, name, shape, *, fill=SOFT, edge=style.MUTED, line=1.0, below=True):
        _box(ax, x, y, width, height, fill=fill, edge=edge, line=line)
        ax.text(x + width / 2, y + height / 2, name, ha="center", va="center", fontsize=10.5, weight="bold")
        ax.text(
            x + width / 2,
            y - 1.1 if below else y + height + 1.1,
            shape,
            ha="center",
            va="center",
            fontsize=9.5,
            color=style.MUTED,
        )

    def product(start, end, words, x, y, *, ha="left"):
        _arrow(ax, start, end, colour=style.MUTED, line=1.3)
        ax.text(x, y, words, fontsize=10, va="center", ha=ha)

    ax.text(1, 53.2, "one token, one layer", fontsize=11.5, weight="bold", va="center")
    tensor(14, 47.2, 22, 2.8, "h", f"{d_model:,} numbers, the hidden state", below=False)
    product((20, 47.0), (14.5, 40.0), "W$^{DKV}$", 8.2, 43.8)
    product((32, 47.0), (39.5, 40.0), "W$^{KR}$, then rotate", 37.2, 43.8)
    _card(ax, 2.6, 32.2, 46.4, 9.2, edge=KEPT, line=2.0)
    ax.text(25.8, 33.5, f"cached: {latent_dim} + {rope_dim} = {latent_dim + rope_dim}", ha="center", fontsize=10, color=KEPT,
            weight="bold", va="center")  # fmt: skip
    tensor(4.0, 37.0, 20.5, 2.8, "c", f"{latent_dim}, no head axis", fill=NARROW)
    tensor(36.4, 37.0, 6.4, 2.8, "k$^R$", f"{rope_dim}, no head axis", fill=NARROW)

    product((11, 32.0), (11, 25.4), "W$^{UK}$", 5.4, 28.8)
    product((21, 32.0), (25.4, 25.4), "W$^{UV}$", 19.0, 27.4)
    product((39.6, 32.0), (17.6, 23.6), "", 0, 0)
    ax.text(36.4, 27.0, "the same k$^R$\nfor every head", fontsize=10, va="center", linespacing=1.2)
    for i in range(3):
        y = 22.0 - i * 5.0 - (1.6 if i == 2 else 0)
        colour = ROW_COLOURS[i]
        label = f"head {n_heads - 1}" if i == 2 else f"head {i}"
        _box(ax, 7.6, y, 6.4, 2.6, fill=SOFT, edge=colour, line=1.6)
        _box(ax, 14.0, y, 3.2, 2.6, fill=NARROW, edge=colour, line=1.6)
        _box(ax, 22.6, y, 6.4, 2.6, fill=SOFT, edge=colour, line=1.6)
        ax.text(10.8, y + 1.25, "k$^C$", ha="center", va="center", fontsize=10)
        ax.text(15.6, y + 1.25, "k$^R$", ha="center", va="center", fontsize=10)
        ax.text(25.8, y + 1.25, "v", ha="center", va="center", fontsize=10)
        ax.text(6.8, y + 1.25, label, ha="right", va="center", fontsize=9.5, color=style.MUTED)
    ax.text(12.4, 13.6, "⋮", fontsize=12, ha="center", va="center", color=style.MUTED)
    per_head = nope_dim + rope_dim + head_dim_v
    ax.text(31.4, 17.6, f"a key of {nope_dim} + {rope_dim} and\na value of {head_dim_v} for each\nof {n_heads} heads:\n"
            f"{n_heads * per_head:,} numbers,\nmade when needed,\nnever kept", fontsize=10,
            va="center", linespacing=1.3)  # fmt: skip
    ax.text(1, 3.2, "weights with a head axis: W$^{UK}$, W$^{UV}$, W$^{UQ}$, W$^{QR}$", fontsize=10, va="center")
    ax.text(1, 0.9, "without: W$^{DKV}$, W$^{KR}$", fontsize=10, va="center")
    return figure(
        fig,
        name="latent-record",
        caption=(
            f"What one token leaves behind in one layer (computed, DeepSeek-V3's widths by default): a latent of "
            f"{latent_dim} and "
            f"a rotary key of {rope_dim}, in the orange frame. The keys and values of {n_heads} heads are made "
            f"from it when needed."
        ),
        alt=(
            f"The hidden state, {d_model} numbers, is projected to a latent c of {latent_dim} and a rotary key of "
            f"{rope_dim}; these "
            f"{latent_dim + rope_dim} are framed as cached. From c each of {n_heads} heads gets a content key of "
            f"{nope_dim} and a "
            f"value of {head_dim_v}; the rotary key joins every head's key unchanged."
        ),
    )  # fmt: skip


def absorb_figure(*, n_heads: int = 128, nope_dim: int = 128, latent_dim: int = 512, context_len: int = 32768) -> Figure:
    """The same product with its parenthesis in two places, and the tensors that appear on the way."""
    fig, ax = _sheet(46)

    def tensor(x, y, width, height, name, *, fill=SOFT, edge=style.MUTED):
        _box(ax, x, y, width, height, fill=fill, edge=edge, line=1.2)
        ax.text(x + width / 2, y + height / 2, name, ha="center", va="center", fontsize=10.5, weight="bold")

    def symbol(x, y, what):
        ax.text(x, y, what, ha="center", va="center", fontsize=14)

    big = n_heads * context_len * nope_dim
    small = n_heads * latent_dim
    ax.text(1, 44.3, "expanded: q ( C U )ᵀ", fontsize=11.5, weight="bold", va="center")
    ax.text(
        1, 41.9, f"every cached token is projected, for each of {n_heads} heads", fontsize=10, color=style.MUTED, va="center"
    )
    tensor(1.5, 31.4, 3.6, 1.4, "q", fill=NARROW)
    symbol(7.4, 32.1, "×")
    ax.text(9.2, 32.0, "(", fontsize=26, va="center", ha="center", color=style.MUTED)
    tensor(10.8, 26.2, 10.0, 12.6, "C")
    symbol(22.6, 32.1, "×")
    tensor(24.2, 27.2, 3.6, 10.0, "U")
    ax.text(29.4, 32.0, ")ᵀ", fontsize=22, va="center", ha="center", color=style.MUTED)
    tensor(33.2, 26.2, 3.6, 12.6, "CU", fill=NARROW, edge=KEPT)
    ax.text(37.6, 32.4, f"{context_len:,} × {nope_dim}\na head: in all\n{big / 1e6:,.0f} million\nnumbers a step", fontsize=10,
            va="center", linespacing=1.25)  # fmt: skip
    ax.plot([1, 49], [23.6, 23.6], color=style.GRID, linewidth=1)
    ax.text(1, 21.4, "absorbed: ( q Uᵀ ) Cᵀ", fontsize=11.5, weight="bold", va="center")
    ax.text(
        1, 19.0, "the query is projected instead; C stays as it lies in the cache", fontsize=10, color=style.MUTED, va="center"
    )
    ax.text(1.2, 9.2, "(", fontsize=26, va="center", ha="center", color=style.MUTED)
    tensor(2.6, 8.6, 3.6, 1.4, "q", fill=NARROW)
    symbol(7.8, 9.3, "×")
    tensor(9.4, 7.4, 10.0, 3.6, "Uᵀ")
    ax.text(20.8, 9.2, ")", fontsize=26, va="center", ha="center", color=style.MUTED)
    symbol(22.6, 9.3, "×")
    tensor(24.2, 4.2, 12.6, 10.0, "Cᵀ")
    tensor(38.2, 13.0, 10.0, 2.0, "q̂", fill=NARROW, edge=KEPT)
    ax.text(38.2, 8.4, f"1 × {latent_dim}\na head: in all\n{small:,}\nnumbers", fontsize=10, va="center", linespacing=1.25)
    ax.text(1, 1.4, "the same scores; each head keeps its own U, q̂ and softmax", fontsize=10, va="center")
    return figure(
        fig,
        name="absorb",
        caption=(
            f"One product, two orders (computed: {n_heads} heads, {context_len:,} cached tokens, latent "
            f"{latent_dim}, content key "
            f"{nope_dim}). Framed in orange: the tensor that appears on the way."
        ),
        alt=(
            "Above, the cached latents C are multiplied by a head's U before they meet the query: an intermediate of "
            f"{context_len:,} by {nope_dim} for each head, {big / 1e6:,.0f} million numbers. Below, the query is "
            f"multiplied by U "
            f"transposed and then meets C: an intermediate of {latent_dim} numbers a head, {small:,} in all."
        ),
    )  # fmt: skip


def latent_tile_figure(
    *, rows: int = 64, block_n: int = 64, latent_dim: int = 512, rope_dim: int = 64, n_heads: int = 128
) -> Figure:
    """What one program owns: a tile of latents and rotary keys, loaded once and multiplied twice, by the rows of its heads."""
    fig, ax = _sheet(51)
    width, tail = 26.0, 4.2
    ax.text(1, 49.2, "one tile of the cache, in memory", fontsize=11.5, weight="bold", va="center")
    top = 41.2
    _box(ax, 2, top, width, 5.4, fill=SOFT, edge=style.BLUE, line=1.4)
    _box(ax, 2 + width, top, tail, 5.4, fill=NARROW, edge=style.BLUE, line=1.4)
    ax.text(2 + width / 2, top + 2.7, f"c: {block_n} × {latent_dim}", ha="center", va="center", fontsize=10.5)
    ax.text(2 + width + tail / 2, top + 2.7, f"k$^R$\n{rope_dim}", ha="center", va="center", fontsize=10, linespacing=1.1)
    ax.text(34.0, top + 2.7, "two blocks of\ncolumns, not\npadded to 1,024", fontsize=10, va="center", linespacing=1.25)
    _arrow(ax, (15, top - 0.3), (15, top - 5.0), colour=style.VERMILLION, line=2.2)
    _arrow(ax, (2 + width + tail / 2, top - 0.3), (2 + width + tail / 2, top - 5.0), colour=style.VERMILLION, line=2.2)
    ax.text(16.4, top - 2.7, "loaded once", fontsize=10.5, va="center", color=style.VERMILLION, weight="bold")

    _card(ax, 1, 1.2, 48, 34.4, edge=style.MUTED, line=1.2)
    ax.text(2.2, 33.8, f"one program: {rows} query heads as rows", fontsize=11.5, weight="bold", va="center")

    def rows_at(x, y, w, h, words):
        step = h / 6
        for i in range(6):
            _box(ax, x, y + h - step * (i + 1), w, step, fill=ROW_COLOURS[i], line=0.3, alpha=0.85)
        _box(ax, x, y, w, h, fill="none", edge=style.MUTED, line=1.0)
        ax.text(x + w / 2, y - 1.2, words, ha="center", va="center", fontsize=9.5, color=style.MUTED)

    def sign(x, y, what):
        ax.text(x, y, what, fontsize=20 if what == "·" else 14, ha="center", va="center")

    def tile(x, y, w, h, fill, words, size=10.5):
        _box(ax, x, y, w, h, fill=fill, edge=style.BLUE, line=1.2)
        ax.text(x + w / 2, y + h / 2, words, ha="center", va="center", fontsize=size)

    ax.text(2.2, 31.0, "1  scores: c and k$^R$ are the key", fontsize=10.5, va="center")
    rows_at(2.6, 21.4, 9.0, 7.4, f"q̂: {rows} × {latent_dim}")
    sign(13.2, 25.0, "·")
    tile(14.6, 21.4, 5.6, 7.4, SOFT, "cᵀ")
    sign(22.0, 25.0, "+")
    rows_at(24.2, 21.4, 3.0, 7.4, f"q$^R$: {rope_dim}")
    sign(29.0, 25.0, "·")
    tile(30.6, 21.4, 5.6, 7.4, NARROW, "k$^R$ᵀ")
    sign(38.0, 25.0, "=")
    rows_at(40.0, 21.4, 6.6, 7.4, f"{rows} × {block_n}")
    ax.text(2.2, 17.0, "2  each row folds its scores in; c is the value too", fontsize=10.5, va="center")
    rows_at(3.4, 6.2, 6.6, 7.4, f"{rows} × {block_n}")
    sign(12.0, 10.0, "·")
    tile(13.8, 7.0, 11.4, 5.8, SOFT, "c, the same tile", size=10)
    sign(27.2, 10.0, "=")
    rows_at(29.2, 6.2, 11.4, 7.4, f"{rows} × {latent_dim}, attended latents")
    tiles = -(-n_heads // rows)
    again = "once" if tiles == 1 else f"{tiles} times, once for each tile of rows"
    return figure(
        fig,
        name=f"latent-tile-{rows}",
        caption=(
            f"What one program of the MLA decode kernel owns (computed; {rows} rows and {block_n} tokens a tile). The tile of "
            f"latents is loaded once and multiplied twice. With {n_heads} heads the cache is requested {again}."
        ),
        alt=(
            f"A tile of {block_n} tokens, {latent_dim} latent and {rope_dim} rotary columns, is loaded once. In "
            f"the program {rows} "
            "rows, one a query head, multiply the latent and the rotary columns to scores; the weights of the same rows then "
            f"multiply the same latents to {rows} attended latents of {latent_dim}."
        ),
    )  # fmt: skip
