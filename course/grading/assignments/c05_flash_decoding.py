"""Chapter 5: how many splits, and how their partial states are joined."""

from ... import costs
from ..draw import Draw
from ..properties import partial_states as states
from ..properties.predictions import number
from ..tasks import Assignment, Task

BLOCK_N = 128  # tokens of a tile, as the chapter's kernel has them
GPUS = ("L4", "A10", "A100 80GB SXM", "RTX 4090", "RTX 5090", "H100 PCIe", "H200 SXM", "B200 SXM")


def givens(draw: Draw) -> dict:
    """A decode call whose splits do not fill a wave exactly, and a number of splits of which some stay empty."""
    while True:
        gpu = draw.choice(GPUS)
        batch, n_kv_heads, group_size = draw.choice((2, 3)), draw.choice((4, 8)), draw.choice((4, 6, 8))
        tiles, many = draw.integer(500, 1000), draw.integer(50, 200)
        given = {
            "gpu": gpu, "sm_count": costs.gpu(gpu).sm_count, "batch": batch, "n_q_heads": n_kv_heads * group_size,
            "n_kv_heads": n_kv_heads, "head_dim": draw.choice((64, 128)), "context_len": tiles * BLOCK_N, "many_splits": many,
        }  # fmt: skip
        few = most_splits(given)
        if (
            few >= 2
            and _used(given, few) == few
            and _used(given, few + 1) == few + 1
            and launch(given, few).efficiency(given["sm_count"]) < 0.97
            and 4 <= empty_splits(given) < many // 2
        ):
            return given


def attention(given: dict) -> costs.Attention:
    return costs.Attention.gqa(given["n_q_heads"], given["n_kv_heads"], given["head_dim"])


def launch(given: dict, num_splits: int) -> costs.SplitLaunch:
    """The call in so many splits; a tile holds the group, so a program is a sequence, a KV head and a split."""
    shape = attention(given)
    return costs.SplitLaunch(
        given["context_len"], num_splits, given["batch"] * given["n_kv_heads"], shape.bytes_per_token() / given["n_kv_heads"],
        costs.partial_bytes(shape, num_splits, batch=given["batch"]), BLOCK_N,
    )  # fmt: skip


def _used(given: dict, num_splits: int) -> int:
    return costs.split_tokens(given["context_len"], num_splits, BLOCK_N)[1]


def most_splits(given: dict) -> int:
    """Splits with which all programs still run in one wave."""
    return given["sm_count"] // (given["batch"] * given["n_kv_heads"])


def empty_splits(given: dict) -> int:
    return given["many_splits"] - _used(given, given["many_splits"])


def efficiency(given: dict, more: int = 0) -> float:
    """Share of the places of all waves that hold a program, with ``more`` splits than fit into one."""
    return launch(given, most_splits(given) + more).efficiency(given["sm_count"])


def break_even(given: dict) -> float:
    return costs.tokens_worth_a_split(attention(given))


PREDICT = Task(
    "splits", "predict", "How many splits, and how full is the GPU?", "predicted",
    (
        (number(
            "splits", "the most splits that still run in one wave", right=most_splits, tolerance=0, unit="splits",
            traps={
                "Is there a program for each query head? The heads of a group share one.":
                    lambda g: g["sm_count"] // (g["batch"] * g["n_q_heads"]),
                "How many sequences are there?": lambda g: g["sm_count"] // g["n_kv_heads"],
                "Does the last of them still find an SM in the first wave?": lambda g: most_splits(g) + 1,
            },
        ), 1),
        (number(
            "efficiency", "share of the places of that wave that hold a program", right=efficiency, unit="a share of 1",
            other_units={"per cent": 0.01},
            traps={"That is the share that stays idle.": lambda g: 1 - efficiency(g)},
        ), 1),
        (number(
            "efficiency_one_more", "the same with one split more", right=lambda g: efficiency(g, 1), unit="a share of 1",
            other_units={"per cent": 0.01},
            traps={
                "More programs than places? They run in waves, and a wave that is begun has all its places.":
                    lambda g: launch(g, most_splits(g) + 1).programs / g["sm_count"],
                "That is the share of the last wave alone.":
                    lambda g: launch(g, most_splits(g) + 1).programs / g["sm_count"] - 1,
            },
        ), 1),
        (number(
            "empty_splits", "splits without a token", right=empty_splits, tolerance=0, unit="splits",
            traps={
                "A split is a whole number of tiles. How many tiles does each take, and after how many splits are all taken?":
                    lambda g: 0,
                "That is how many have tokens.": lambda g: _used(g, g["many_splits"]),
            },
        ), 1),
        (number(
            "break_even_tokens", "tokens of a split whose cache is as many bytes as its partial results", right=break_even,
            tolerance=0.02, unit="tokens",
            traps={
                "Partial results are float32, whatever the cache is in.": lambda g: break_even(g) / 2,
                "A token leaves a key and a value.": lambda g: break_even(g) * 2,
                "Which heads does the cache have, and which the partial results?":
                    lambda g: break_even(g) * g["n_kv_heads"] / g["n_q_heads"],
            },
        ), 1),
    ),
)  # fmt: skip

WEIGHTS = Task(
    "weights", "fix", "A merge that gives other numbers than one softmax", "mended.merge",
    (
        (states.mass(states.launched), 1),
        (states.log_sum_exp(states.launched), 1),
        (states.empty_states(states.launched), 1),
        (states.many_states(states.launched), 1),
    ),
    hidden=("empty states", "many states"),
    shipped=lambda kernels: kernels.merge,
)  # fmt: skip

IDLE = Task(
    "idle", "fix", "A decode call with idle splits", "repaired.decode",
    (
        (states.more_splits_than_tiles, 1),
        (states.sequence_without_tokens, 1),
        (states.several_new_tokens, 1),
        (states.uneven_splits, 1),
    ),
    hidden=("splits that divide nothing evenly",),
    shipped=lambda kernels: kernels.decode,
)  # fmt: skip

MERGE = Task(
    "merge", "build", "Merge two states", "merge_two",
    (
        (states.mass(states.in_turn), 1),
        (states.order, 1),
        (states.empty_states(states.in_turn), 1),
        (states.formats, 1),
        (states.large_scores(states.in_turn), 1),
        (states.one_row_empty(states.in_turn), 1),
        (states.number_of_splits, 1),
    ),
    hidden=("large scores", "rows apart", "number of splits"),
)  # fmt: skip

SINK = Task(
    "sink", "stretch", "An attention sink, afterwards", "with_sink",
    ((states.sink, 1), (states.sink_at_the_ends, 1)),
    hidden=("sink at the ends",),
)  # fmt: skip


ASSIGNMENT = Assignment(
    name="05_flash_decoding",
    title="Flash-Decoding: splits and partial states",
    minutes=75,
    objectives=(
        "predict programs, waves and idle places of a split decode call from its shapes",
        "merge partial attention states by their mass, in one base of the logarithm, with states that have no keys",
        "find the faults of a split kernel that appear only where splits are idle or rows see nothing",
        "say why the number of splits changes bits, and what it costs to keep them",
    ),
    tasks=(PREDICT, WEIGHTS, IDLE, MERGE, SINK),
    givens=givens,
    rubric=(
        (1, "names the cause: the number of splits follows the batch, and with it the order in which floats are added"),
        (1, "says that neither answer is the wrong one: both lie within rounding of the exact value"),
        (1, "gives the remedy, a fixed size of splits that ignores the neighbours, and its price: idle SMs or needless merges"),
    ),
)  # fmt: skip
