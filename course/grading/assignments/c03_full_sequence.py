"""Chapter 3: which tiles are computed, a kernel repaired, and one taken from MHA to GQA with lse and without hidden tiles."""

from ... import costs
from ..draw import Draw
from ..properties import full_sequence
from ..properties.predictions import number
from ..tasks import Assignment, Task


def givens(draw: Draw) -> dict:
    """A chunk of a prompt behind a cached prefix, in tiles; lengths that fill no tile."""
    rows = draw.choice([64, 128])
    n_q_heads, n_kv_heads = draw.choice([(32, 8), (32, 4), (40, 8), (28, 4)])
    q_len = rows * draw.integer(4, 7) + draw.choice([8, 24, 40])
    return {
        "q_len": q_len,
        "kv_len": q_len + draw.choice([210, 330, 450, 570]),
        "rows": rows,
        "block_n": draw.choice([32, 64, 128]),
        "n_q_heads": n_q_heads,
        "n_kv_heads": n_kv_heads,
        "head_dim": draw.choice([64, 128]),
    }


def _tiles(given: dict, mask: str = "bottom-right") -> costs.TileMap:
    return costs.tile_map(given["q_len"], given["kv_len"], given["rows"], given["block_n"], mask=mask)


def _requested(given: dict, mask: str = "bottom-right", heads: str = "n_q_heads") -> int:
    return 2 * given["head_dim"] * given[heads] * _tiles(given, mask).keys


def _fewer_heads(given: dict) -> float:
    n, heads, width = 8192, given["n_q_heads"], given["head_dim"]
    layers = costs.Attention.mha(heads, width), costs.Attention.gqa(heads, given["n_kv_heads"], width)
    flops = [costs.attention_flops(layer, n, n, causal=True) for layer in layers]
    return flops[0] / flops[1]


_TOP_LEFT = "which token of the sequence is the first query? This counts as if nothing were cached"
_NO_MASK = "this counts as if every query saw every key"

PREDICTED = (
    number(
        "full", "tiles in which every query sees every key", right=lambda g: _tiles(g).full, tolerance=0,
        traps={_TOP_LEFT: lambda g: _tiles(g, "top-left").full, _NO_MASK: lambda g: _tiles(g, "none").full},
    ),
    number(
        "masked", "tiles that are computed with a mask", right=lambda g: _tiles(g).masked, tolerance=0,
        traps={
            "are these all that are computed? The question is for those that need a mask": lambda g: _tiles(g).computed,
            "without a causal mask only the last column of tiles needs one": lambda g: _tiles(g, "none").masked,
        },
    ),
    number(
        "skipped", "tiles that are never loaded", right=lambda g: _tiles(g).skipped, tolerance=0,
        traps={_TOP_LEFT: lambda g: _tiles(g, "top-left").skipped, _NO_MASK: lambda g: 0},
    ),
    number(
        "requested", "elements of K and V that all programs request", right=_requested, unit="elements",
        traps={
            "whose keys does a program walk over: does sharing spare it the walk?": lambda g: _requested(g, heads="n_kv_heads"),
            "did you count V as well?": lambda g: _requested(g) / 2,
            "for how many heads?": lambda g: _requested(g) / g["n_q_heads"],
            _NO_MASK: lambda g: _requested(g, "none"),
            _TOP_LEFT: lambda g: _requested(g, "top-left"),
            "these are bytes; the question is for elements": lambda g: 2 * _requested(g),
        },
        other_units={"millions of elements": 1e6},
    ),
    number(
        "fewer_heads", "time of prefill attention with as many KV heads as query heads, over the time with few",
        right=_fewer_heads, tolerance=0.1,
        traps={
            "that is the factor on the cache. What does a GPU wait for in a long prefill?":
                lambda g: g["n_q_heads"] / g["n_kv_heads"],
            "that is a factor on the cache, the other way round": lambda g: g["n_kv_heads"] / g["n_q_heads"],
        },
    ),
)  # fmt: skip

_BUILT = full_sequence.definition(
    "definition", "any lengths: the output is that of the definition", q_len=(2, 14), kv_len=(33, 45), widths=((16, 16),)
)
_KERNEL = full_sequence.definition(
    "definition", "widths that differ, several tiles of keys", q_len=(2, 4), kv_len=(34, 60), widths=((40, 24), (40, 16)),
)  # fmt: skip

ASSIGNMENT = Assignment(
    name="03_full_sequence",
    title="The full-sequence kernel",
    minutes=90,
    objectives=(
        "count which tiles a causal call computes, masks and skips, for any number of queries and keys",
        "find a fault in an attention kernel by tests that separate it: zero queries, rows without keys, equal scores",
        "turn a kernel for MHA into one for shared heads that returns the log-sum-exp and loads no hidden tile",
        "say what sharing KV heads does not change in prefill",
    ),
    tasks=(
        Task("predict", "predict", "Predict: tiles of a chunk", "predicted", tuple((each, 1) for each in PREDICTED)),
        Task(
            "kernel",
            "fix",
            "Mend the kernel",
            "mended.attention",
            (
                (full_sequence.mask_alignment(), 1),
                (_KERNEL, 1),
                (full_sequence.lse_natural, 1),
                (full_sequence.empty_rows, 1),
                (full_sequence.hidden_tiles, 1),
            ),
            shipped=lambda kernels: kernels.attention,
        ),
        Task(
            "gqa",
            "build",
            "From MHA to shared heads",
            "gqa_attention",
            (
                (full_sequence.head_map, 1),
                (_BUILT, 1),
                (full_sequence.lse_natural, 1),
                (full_sequence.empty_rows, 1),
                (full_sequence.hidden_tiles, 2),
            ),
            hidden=("empty rows",),
        ),
        Task(
            "window",
            "stretch",
            "A window",
            "windowed_attention",
            ((full_sequence.window, 1), (full_sequence.outside_the_window, 2)),
        ),
    ),
    givens=givens,
    rubric=(
        (1, "prefill reads a key once for a whole tile of queries, so it is bound by FLOPs; decode by bytes"),
        (1, "the number of pairs is counted by query heads"),
        (1, "names what does shrink: cache, projections and their weights, and where the L2 serves repeated loads"),
        (1, "says what would have to change for prefill attention to become cheaper, or when a short chunk is bound by memory"),
    ),
)
