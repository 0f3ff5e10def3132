"""How many programs a decode step becomes: plain numbers in, plain numbers out.

Nothing here looks at a device or a tensor, so an explorer can ask about any GPU.
"""

# A split shorter than this spends more on its first loads and on the merge than it saves.
MIN_TOKENS_PER_SPLIT = 128
# Splits are whole blocks: of so many tokens or, in some tiles, of twice as many.
BLOCK_TOKENS = 64
# Times, in tokens that a program walks over in as long; about right for all decode kernels on an H200.
FIRST_TOKENS = 256  # the first loads of a wave
PARTIAL_TOKENS = 288  # the partial results of a full wave, written and read
MERGE_TOKENS = 64  # the merge, apart from that
FULL = 0.85  # of a wave: one that holds fewer programs takes as long as one that holds these
MAX_WAVES = 8


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
    """Splits of each sequence that are done first.

    A program keeps only its own tiles in flight, so it takes about one program an SM to draw the whole bandwidth. Programs
    beyond that wait for the next wave, which takes as long however few they are. So each of the first waves is filled as far
    as it goes, and of these cuts, and no cut, the one is taken whose waves are over first; partial results are written and
    read in that time. ``context_len`` is the cache's capacity, not the lengths on the device: reading those would stall the
    host, and a captured graph could not follow them. (Splitting: Flash-Decoding, Dao et al. 2023; the rule is ours.)
    """
    programs = max(1, batch * head_tiles)
    blocks = max(1, ceil_div(context_len, BLOCK_TOKENS))

    def tokens(splits: int) -> float:
        waves, rest = divmod(programs * splits, sm_count)
        full_waves = waves + (max(FULL, rest / sm_count) if rest else 0)
        cut = MERGE_TOKENS + PARTIAL_TOKENS * programs * splits / sm_count if splits > 1 else 0
        return full_waves * ceil_div(blocks, splits) * BLOCK_TOKENS + ceil_div(programs * splits, sm_count) * FIRST_TOKENS + cut

    most = max(1, context_len // MIN_TOKENS_PER_SPLIT)
    cuts = [1, *(max(1, min(waves * sm_count // programs, most)) for waves in range(1, MAX_WAVES + 1))]
    # As many as get tokens: 66 programs that share 2048 blocks take 32 each, and the last two none.
    return min(sorted({ceil_div(blocks, ceil_div(blocks, cut)) for cut in cuts}), key=tokens)


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
