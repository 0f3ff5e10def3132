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
# A latent that becomes float32 from 8 bits is there in both formats at once.
FLOAT32_OVER_8_BITS = Tile(MIN_DOT, 16, 8, 1)


def pad(width: int) -> int:
    """The next power of two, at least 16: Triton's tiles have such edges only."""
    return max(MIN_DOT, 1 << (width - 1).bit_length())


def split_width(width: int) -> tuple[int, int]:
    """A width as the column blocks (head, tail) that waste least: 192 is 128 + 64 instead of 256; (width, 0) is one block."""
    head = 1 << (width.bit_length() - 1)
    if head >= MIN_DOT and width > head and head + pad(width - head) < pad(width):
        return head, width - head
    return width, 0


def padded_width(width: int) -> int:
    """Columns that tiles of this width really have."""
    head, tail = split_width(width)
    return pad(head) + (pad(tail) if tail else 0)


def shared_bytes(tile: Tile, columns: int, pad_qk: int, itemsize: int, *, buffers: int) -> int:
    """Shared memory of a tile: ``buffers`` tiles of keys and values of ``columns`` in all, the rows of q, and the scores.

    Scores pass through it on their way to the other warps; from 64 rows on they stay in registers.
    """
    rows = tile.rows * (max(itemsize, 2) * pad_qk + (4 * tile.block_n if tile.rows < 64 else 0))
    return buffers * itemsize * tile.block_n * columns + rows


def _fit(tile: Tile, columns: int, pad_qk: int, itemsize: int, shared_memory: int, depth: int = 1, spare: int = 0) -> Tile:
    """Give up pipeline stages first, then keys, then rows, until the tile fits.

    A pipeline of s stages holds (s - 1) / ``depth`` tiles, and ``spare`` more where the tensor cores read them in place.
    """

    def needed(tile: Tile) -> int:
        buffers = max(1, -(-(tile.num_stages - 1) // depth)) + spare
        return shared_bytes(tile, columns, pad_qk, itemsize, buffers=buffers)

    while needed(tile) > shared_memory:
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
                f"no tile of {columns} columns of keys and values is sure to fit this GPU: the smallest may need "
                f"{needed(tile)} bytes of shared memory, a program has {shared_memory}"
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
    if pad(head_dim_v) <= 256:
        return min(pad(rows), max(MIN_DOT, 8192 // pad(head_dim_v)))
    # MLA's many heads are worth a large tile: they share every key. Hopper's tensor cores read keys in place; elsewhere keys
    # pass through the registers and crowd them, and 8-bit keys do so twice as they become 16.
    in_place = 2 if capability[0] == 9 else 1
    return min(pad(rows), (32 if itemsize > 1 else 16) * in_place)


def decode_tile(
    rows: int,
    head_dim_qk: int,
    head_dim_v: int,
    itemsize: int,
    capability: tuple[int, int],
    shared_memory: int,
    tokens: int,
    *,
    shared_width: int = 0,
    page_size: int | None = None,
    eight_bits: bool = False,
) -> Tile:
    """Tile of the decode kernels for ``rows`` = group_size * q_len, and programs that walk over about ``tokens`` keys each.

    ``itemsize`` is that of what is multiplied, 4 also where the cache has ``eight_bits``. ``shared_width`` columns of a key are
    its value too and are loaded once; ``page_size`` is None for a contiguous cache.
    """
    pad_qk = pad(shared_width) + pad(head_dim_qk - shared_width) if shared_width else padded_width(head_dim_qk)
    columns = pad_qk + (0 if shared_width else pad(head_dim_v))
    if capability < (8, 0):
        return _fit(NO_TENSOR_CORES, columns, pad_qk, 4, shared_memory)
    if itemsize == 4:
        tile = FLOAT32_OVER_8_BITS if eight_bits and shared_width else FLOAT32
        return _fit(tile, columns, pad_qk, itemsize, shared_memory)
    if itemsize == 1 and shared_width:
        columns += pad(head_dim_qk - shared_width)  # the rotary part stays in 16 bits
    tile_rows = decode_rows(rows, head_dim_v, itemsize, capability)
    accumulator = tile_rows * pad(head_dim_v)
    # A program keeps its bytes in flight by itself: two or three large tiles, or a short walk would be over before they flow.
    hopper_fp8 = itemsize == 1 and capability[0] == 9 and page_size is None and tile_rows == MIN_DOT
    wide = pad(head_dim_v) > 256 and not hopper_fp8
    block_n = 128 if tokens >= 2048 and not wide else 64
    # Tiles that span pages look up each token's; for a wide record that takes the threads of eight warps.
    spans_pages = page_size is not None and page_size % block_n != 0 and pad(head_dim_v) > 256
    # Or the accumulators crowd the registers.
    num_warps = 4 if accumulator * (2 if itemsize == 1 else 1) <= 8192 and tile_rows < 64 and not spans_pages else 8
    if accumulator >= 32768:
        num_stages = 2
    elif page_size is not None and not spans_pages:
        num_stages = 5  # two more, in which the look-up is on its way
    else:
        num_stages = 4 if itemsize == 1 and not shared_width else 3
    return _fit(
        Tile(tile_rows, block_n, num_warps, num_stages), columns, pad_qk, itemsize, shared_memory,
        1 if page_size is None else 2, int(tile_rows >= 64),
    )  # fmt: skip


def forward_tile(
    q_len: int,
    head_dim_qk: int,
    head_dim_v: int,
    itemsize: int,
    capability: tuple[int, int],
    shared_memory: int,
) -> Tile:
    """Tile of the full-sequence kernel. Only three sizes of ``q_len`` are told apart, so lengths do not multiply compiles."""
    pad_qk = padded_width(head_dim_qk)
    columns = pad_qk + pad(head_dim_v)
    if capability < (8, 0):
        return _fit(NO_TENSOR_CORES, columns, pad_qk, 4, shared_memory)
    if itemsize == 4:
        tile = FLOAT32
    elif q_len <= MIN_DOT:
        tile = Tile(MIN_DOT, 64, 4, 3)
    elif q_len <= 64 or columns <= 128:
        tile = Tile(64, 128 if columns <= 128 else 64, 4 if pad(head_dim_v) <= 128 else 8, 3)
    else:
        tile = Tile(128, 64 if columns > 256 else 128, 8, 3)
    return _fit(tile, columns, pad_qk, itemsize, shared_memory, spare=int(tile.rows >= 64))


# For each kind of GPU: up to how many columns of k and v together; the tile of the dK/dV kernel, which owns block_n keys and
# takes so many rows a step; the tile of the dQ kernel, which owns the rows and takes block_n keys a step; and the KiB of shared
# memory that the larger of the two needs. Their loops spill next to nothing. The first line with room is taken.
BACKWARD_HOPPER = (
    (128, Tile(64, 64, 4, 2), Tile(128, 64, 8, 3), 81),
    (256, Tile(64, 64, 4, 2), Tile(128, 64, 8, 3), 161),
    (320, Tile(32, 64, 4, 2), Tile(128, 64, 8, 3), 201),
    (512, Tile(32, 64, 8, 2), Tile(128, 32, 8, 2), 193),
)
BACKWARD_BLACKWELL = (
    (256, Tile(64, 64, 8, 2), Tile(128, 64, 8, 2), 146),
    (320, Tile(64, 64, 8, 2), Tile(128, 64, 8, 2), 202),
    (512, Tile(32, 64, 8, 2), Tile(64, 32, 4, 2), 162),
)
BACKWARD_TENSOR_CORES = (
    (256, Tile(64, 64, 8, 2), Tile(64, 64, 4, 2), 75),
    (320, Tile(32, 32, 8, 2), Tile(64, 32, 8, 2), 61),
    (512, Tile(32, 32, 8, 2), Tile(32, 32, 8, 2), 68),
)
BACKWARD_FLOAT32 = (
    (320, Tile(16, 32, 8, 1), Tile(16, 32, 8, 1), 65),
    (512, Tile(16, 16, 8, 1), Tile(16, 16, 8, 1), 67),
)
BACKWARD_NO_TENSOR_CORES = ((320, Tile(16, 16, 8, 1), Tile(16, 16, 8, 1), 37),)


def backward_tile(columns: int, itemsize: int, capability: tuple[int, int], shared_memory: int) -> tuple[Tile, Tile]:
    """Tiles of the dK/dV and of the dQ kernel for k and v of so many padded columns together.

    Lengths do not enter, so they do not multiply compiles.
    """
    if capability < (8, 0):
        table = BACKWARD_NO_TENSOR_CORES
    elif itemsize == 4:
        table = BACKWARD_FLOAT32
    else:
        table = {9: BACKWARD_HOPPER, 10: BACKWARD_BLACKWELL}.get(capability[0], BACKWARD_TENSOR_CORES)
    fitting = [(dkdv, dq) for limit, dkdv, dq, kib in table if columns <= limit and kib * 1024 <= shared_memory]
    if not fitting:
        limit, _, _, kib = table[-1]
        raise Unsupported(
            f"the backward of attention has no tile for this GPU: k and v have {columns} padded columns of at most {limit}, "
            f"and need {kib} KiB of shared memory of the {shared_memory // 1024} that a program has"
        )
    return fitting[0]
