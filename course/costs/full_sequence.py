"""Whole sequences: which tiles of the score matrix a kernel computes, and what gradients cost in FLOPs and in bytes.

A tile is ``rows`` query positions by ``block_n`` keys. With a causal mask a tile is one of three kinds: every query sees
every key of it, some pairs are hidden, or all are. The last kind need not be loaded.
"""

from dataclasses import dataclass

from .attention import Attention, attention_flops
from .checks import unknown, whole
from .units import element_bytes, exact

MASKS = ("bottom-right", "top-left", "none")


def mask_offset(q_len: int, kv_len: int, mask: str) -> int:
    """Query i sees key j when j <= i + offset; without a mask the offset hides nothing."""
    offsets = dict(zip(MASKS, (kv_len - q_len, 0, kv_len), strict=True))
    if mask not in offsets:
        raise unknown("mask", mask, MASKS, "course.costs.full_sequence.MASKS")
    return offsets[mask]


@dataclass(frozen=True)
class TileMap:
    """Tiles of one head's scores by kind, and the keys that one head's programs ask for.

    full        every query sees every key: no mask is needed
    masked      on the diagonal, or cut by the end of the keys
    skipped     every pair is hidden: never loaded
    keys        keys loaded by all row tiles together, a key counted once for each row tile that loads it
    """

    full: int
    masked: int
    skipped: int
    keys: int

    @property
    def computed(self) -> int:
        """Tiles that are multiplied."""
        return self.full + self.masked

    @property
    def total(self) -> int:
        """Tiles of the whole rectangle."""
        return self.computed + self.skipped


def tile_row(row_tile: int, q_len: int, kv_len: int, rows: int, block_n: int, mask: str = "bottom-right") -> tuple[int, ...]:
    """Of one tile of queries: (tiles without a mask, tiles computed, keys loaded)."""
    offset = mask_offset(q_len, kv_len, mask)
    first = min(max(row_tile * rows + 1 + offset, 0), kv_len)  # keys that its first query sees
    last = min(max(min((row_tile + 1) * rows, q_len) + offset, 0), kv_len)  # and its last one
    return first // block_n, -(-last // block_n), last


def tile_map(q_len: int, kv_len: int, rows: int, block_n: int, *, mask: str = "bottom-right") -> TileMap:
    """How the rectangle of ``q_len`` queries by ``kv_len`` keys falls into tiles of ``rows`` by ``block_n``."""
    q_len, kv_len, rows = whole("q_len", q_len), whole("kv_len", kv_len), whole("rows", rows)
    block_n = whole("block_n", block_n)
    mask_offset(q_len, kv_len, mask)
    each = [tile_row(tile, q_len, kv_len, rows, block_n, mask) for tile in range(-(-q_len // rows))]
    full, computed, keys = (sum(column) for column in zip(*each, strict=True))
    return TileMap(full, computed - full, len(each) * -(-kv_len // block_n) - computed, keys)


def backward_flops(attention: Attention, q_len: int, kv_len: int, *, batch: int = 1, causal: bool = False) -> int:
    """FLOPs of the gradients of q, k and v: five products where the forward pass has two.

    Scores again, dQ and dK are as wide as a key, dP and dV as wide as a value. (A kernel may compute some of them twice.)
    """
    widths = 3 * attention.head_dim_qk + 2 * attention.head_dim_v
    forward = attention_flops(attention, q_len, kv_len, batch=batch, causal=causal)
    return forward // (attention.head_dim_qk + attention.head_dim_v) * widths


def gradient_bytes(
    attention: Attention,
    kv_len: int,
    *,
    batch: int = 1,
    bytes_per_element: float | str = 4,
    per_query_head: bool = False,
) -> int | float:
    """Bytes of dK and dV together: one for each KV head, or with ``per_query_head`` a partial one for each query head."""
    heads = attention.n_q_heads if per_query_head else attention.n_kv_heads
    elements = whole("batch", batch) * heads * whole("kv_len", kv_len) * (attention.head_dim_qk + attention.head_dim_v)
    return exact(elements * element_bytes(bytes_per_element))
