"""How many programs a decode step becomes: plain numbers in, plain numbers out.

Nothing here looks at a device or a tensor, so an explorer can ask about any GPU.
"""

# A split shorter than this spends more on its first loads and on the merge than it saves.
MIN_TOKENS_PER_SPLIT = 128
# Splits are whole blocks: of so many tokens or, in some tiles, of twice as many.
BLOCK_TOKENS = 64


def ceil_div(a: int, b: int) -> int:
    """Smallest integer not below a / b."""
    return -(-a // b)


def head_tiles(n_q_heads: int, n_kv_heads: int, *, block_h: int, q_len: int = 1) -> int:
    """Row tiles of one sequence: H_kv * ceil(G * q_len / block_h). A tile never spans two KV heads."""
    return n_kv_heads * ceil_div(n_q_heads // n_kv_heads * q_len, block_h)


def decode_programs(batch: int, n_q_heads: int, n_kv_heads: int, *, block_h: int, q_len: int = 1, num_splits: int = 1) -> int:
    """Programs of a grouped decode launch: (sequence, row tile, split)."""
    return batch * head_tiles(n_q_heads, n_kv_heads, block_h=block_h, q_len=q_len) * num_splits


def num_splits(batch: int, head_tiles: int, context_len: int, sm_count: int) -> int:
    """Splits of each sequence that fill the GPU once.

    A program keeps only its own tiles in flight, so it takes about one program an SM to draw the whole bandwidth, and beyond
    that a split only adds partial results to write and to read. One wave it is, unless it would leave more than 30% of the
    SMs idle, where two waves divide better. ``context_len`` is the cache's capacity, not the lengths on the device: reading
    those would stall the host, and a captured graph could not follow them. (Splitting: Flash-Decoding, Dao et al. 2023; the
    rule is ours, from measurements on an H200.)
    """
    programs = max(1, batch * head_tiles)
    splits = sm_count // programs
    if programs * splits < 0.7 * sm_count:
        splits = 2 * sm_count // programs
    splits = max(1, min(splits, context_len // MIN_TOKENS_PER_SPLIT))
    # As many as get tokens: 66 programs that share 2048 blocks take 32 each, and the last two none.
    blocks = max(1, ceil_div(context_len, BLOCK_TOKENS))
    return ceil_div(blocks, ceil_div(blocks, splits))


def decode_workspace(
    batch: int, q_len: int, n_q_heads: int, head_dim_v: int, num_splits: int = 1, *, shares: int | None = None
) -> int:
    """float32 elements that the partial results of a decode need: outputs and log-sum-exps; 0 for one split.

    With a work list of so many ``shares``: share i leaves sequence b in state i + b, so there are shares + batch states.
    """
    states = shares + batch if shares is not None else num_splits * batch if num_splits > 1 else 0
    return states * q_len * n_q_heads * (head_dim_v + 1)


def shares(head_tiles: int, sm_count: int, *, programs_per_sm: int = 2) -> int:
    """Equal shares that a ragged batch is cut into: with ``head_tiles`` programs a share, ``programs_per_sm`` an SM.

    Two, because a program that passes from one sequence to the next has nothing in flight for a moment; one where a program
    fills an SM, and a second could only wait for it.
    """
    return max(1, programs_per_sm * sm_count // head_tiles)
