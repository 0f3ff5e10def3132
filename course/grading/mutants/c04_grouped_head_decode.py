"""Wrong versions for chapter 4: tiles over two groups, drafts that see too far, walks that do not end."""

from . import Mutant

_TASK = "04_grouped_head_decode.kernel"

MUTANTS = (
    Mutant(
        name="tiles-over-all-heads",
        task=_TASK,
        file="kernels/plan.py",
        old='    """Row tiles of one sequence: H_kv * ceil(G * q_len / block_h). A tile never spans two KV heads."""\n'
        "    return n_kv_heads * ceil_div(n_q_heads // n_kv_heads * q_len, block_h)",
        new='    """Row tiles of one sequence."""\n    return ceil_div(n_q_heads * q_len, block_h)',
        story="Tiles were counted over all query heads, as if one could hold the end of one group and the beginning of "
        "the next. In "
        "a review of vLLM a group of 24 ran over into the next KV head's queries; where the group is a multiple of the tile "
        "nothing shows, and groups above 16 had divided by zero before.",
        source="vllm-project/vllm pull requests 40792 (review) and 23424",
        given=True,
    ),
    Mutant(
        name="rows-by-modulo",
        task=_TASK,
        file="kernels/interval.py",
        old="    head = kv_head * group_size + rows % group_size",
        new="    head = kv_head + rows % group_size * (n_q_heads // group_size)",
        story="The rows of a tile are every H_kv-th query head instead of neighbours. The kernel is consistent in "
        "itself, and the "
        "checkpoint is not trained for it.",
        source="ekzhang/jax-js pull request 180; onnx/onnx pull request 7274 (there as `tile` for `repeat`)",
        given=True,
    ),
    Mutant(
        name="drafts-see-each-other",
        task=_TASK,
        file="kernels/interval.py",
        old="    # Of the q_len new tokens, all in the cache already, token t sees the keys up to its own.\n"
        "    visible = kv_len - q_len + token + 1",
        new="    visible = tl.zeros_like(token) + kv_len",
        story="With one new token the length is the whole mask, so a decode kernel has no other. Given several, its "
        "first tokens see "
        "the drafts behind them, and verification accepts what it was asked to judge.",
        source="no incident: what chapter 4 says of rows that are pairs of token and head",
        given=True,
    ),
    Mutant(
        name="walk-to-the-capacity",
        task=_TASK,
        file="kernels/decode.py",
        old="    blocks_per_split = tl.cdiv(tl.cdiv(kv_len, BLOCK_N), num_splits)\n"
        "    start = split * blocks_per_split * BLOCK_N\n"
        "    stop = tl.minimum(start + blocks_per_split * BLOCK_N, kv_len)",
        new="    blocks_per_split = tl.cdiv(tl.cdiv(capacity, BLOCK_N), num_splits)\n"
        "    start = split * blocks_per_split * BLOCK_N\n"
        "    stop = tl.minimum(start + blocks_per_split * BLOCK_N, capacity)",
        story="Every sequence is walked to the end of its room, and a mask hides what is behind its length. Scores are "
        "right and the "
        "bytes are those of the longest text; and a weight of 0 times a NaN that an old request left behind is NaN.",
        source="vllm-project/flash-attention pull request 42 (the NaN); chapter 4 for the bytes",
        given=True,
    ),
    Mutant(
        name="token-and-head-taken-apart-in-two-ways",
        task=_TASK,
        file="kernels/interval.py",
        old="    token = rows // group_size",
        new="    token = rows % q_len",
        story="A row is a pair of token and head, and the two halves of it are computed by rules that do not fit "
        "together: some "
        "pairs come twice and some never. If T and G have no common divisor, every pair comes once and all is right.",
        source="no incident: a slip that shapes of 3 tokens and groups of 4 hide",
    ),
)
