"""The tile of every kernel, chosen in one place from widths, number format and what the device offers.

A tile that needs more shared memory than a program may have does not launch at all, and one that needs more registers than
there are spills into memory, so the choice starts from the size that is fast on a large GPU and shrinks until it fits. The
shapes to start from were measured on an H200; the limits are the device's own: 64 KiB on a T4, 99 on consumer cards, 163 on an
A100, 227 from Hopper on.
"""

from dataclasses import dataclass

from ._mode import Unsupported

MIN_DOT = 16  # the smallest tile edge of a tensor-core product


@dataclass(frozen=True)
class Tile:
    """Rows and keys of one tile, and how a program runs it."""

    rows: int
    block_n: int
    num_warps: int
    num_stages: int


# Without tensor cores (Triton uses none before compute capability 8.0, and none for full float32) both operands of a product
# pass through registers as float32: few rows over many threads, or they spill.
NO_TENSOR_CORES = Tile(8, 32, 8, 1)
FLOAT32 = Tile(MIN_DOT, 32, 8, 1)


def pad(width: int) -> int:
    """The next power of two, at least 16: Triton's tiles have such edges only."""
    return max(MIN_DOT, 1 << (width - 1).bit_length())


def shared_bytes(tile: Tile, pad_qk: int, pad_v: int, itemsize: int) -> int:
    """Bound on the shared memory of a tile: the loads in flight, the rows of q, and the probabilities on their way."""
    in_flight = tile.num_stages * tile.block_n * (pad_qk + pad_v)
    return itemsize * (in_flight + tile.rows * pad_qk + tile.rows * tile.block_n)


def _fit(tile: Tile, pad_qk: int, pad_v: int, itemsize: int, shared_memory: int) -> Tile:
    """Give up pipeline stages first, then keys, then rows, until the tile fits."""
    while shared_bytes(tile, pad_qk, pad_v, itemsize) > shared_memory:
        if tile.num_stages > 2:
            tile = Tile(tile.rows, tile.block_n, tile.num_warps, tile.num_stages - 1)
        elif tile.block_n > 32:
            tile = Tile(tile.rows, tile.block_n // 2, tile.num_warps, tile.num_stages)
        elif tile.rows > 2 * MIN_DOT:
            tile = Tile(tile.rows // 2, tile.block_n, tile.num_warps, tile.num_stages)
        elif tile.num_stages > 1:
            tile = Tile(tile.rows, tile.block_n, tile.num_warps, 1)
        elif tile.block_n > MIN_DOT:
            tile = Tile(tile.rows, tile.block_n // 2, tile.num_warps, 1)
        else:
            raise Unsupported(
                f"no tile of widths {pad_qk} and {pad_v} is sure to fit this GPU: the smallest may need "
                f"{shared_bytes(tile, pad_qk, pad_v, itemsize)} bytes of shared memory, a program has {shared_memory}"
            )
    return tile


def decode_rows(rows: int, head_dim_v: int, itemsize: int, capability: tuple[int, int]) -> int:
    """Rows of a decode tile, of the ``rows`` = group_size * q_len that share their keys.

    All of them where the accumulator leaves room, for a second tile reads the cache a second time.
    """
    if capability < (8, 0):
        return NO_TENSOR_CORES.rows
    if itemsize == 4:
        return FLOAT32.rows
    return min(pad(rows), max(MIN_DOT, 8192 // pad(head_dim_v)), 128)


def decode_tile(
    rows: int,
    head_dim_qk: int,
    head_dim_v: int,
    itemsize: int,
    capability: tuple[int, int],
    shared_memory: int,
    tokens: int,
    alone: bool,
) -> Tile:
    """Tile of the grouped decode kernel for ``rows`` = group_size * q_len.

    A program walks over about ``tokens`` keys; ``alone`` says that it has an SM to itself.
    """
    pad_qk, pad_v = pad(head_dim_qk), pad(head_dim_v)
    if capability < (8, 0):
        return _fit(NO_TENSOR_CORES, pad_qk, pad_v, 4, shared_memory)
    if itemsize == 4:
        return _fit(FLOAT32, pad_qk, pad_v, itemsize, shared_memory)
    tile_rows = decode_rows(rows, head_dim_v, itemsize, capability)
    # Alone on its SM a program has to keep enough bytes in flight by itself. Smaller tiles leave room for neighbours, whose
    # loads fill each other's gaps; and a short walk is over before a long pipeline has filled.
    block_n = 128 if alone and tokens >= 2048 else 64
    num_warps = 4 if tile_rows * pad_v < 8192 else 8  # or the accumulators crowd the registers
    return _fit(Tile(tile_rows, block_n, num_warps, 3), pad_qk, pad_v, itemsize, shared_memory)


def forward_tile(
    q_len: int, head_dim_qk: int, head_dim_v: int, itemsize: int, capability: tuple[int, int], shared_memory: int
) -> Tile:
    """Tile of the full-sequence kernel. Only three sizes of ``q_len`` are told apart, so lengths do not multiply compiles."""
    pad_qk, pad_v = pad(head_dim_qk), pad(head_dim_v)
    if capability < (8, 0):
        return _fit(NO_TENSOR_CORES, pad_qk, pad_v, 4, shared_memory)
    if itemsize == 4:
        tile = FLOAT32
    elif q_len <= MIN_DOT:
        tile = Tile(MIN_DOT, 64, 4, 3)
    elif q_len <= 64:
        tile = Tile(64, 64, 4 if pad_v <= 128 else 8, 3)
    else:
        wide = pad_qk + pad_v > 256
        tile = Tile(128, 64 if wide else 128, 8, 2 if wide else 3)
    return _fit(tile, pad_qk, pad_v, itemsize, shared_memory)
