"""Chapter 4: programs and requests, a grouped kernel repaired, and one made of the kernel that takes a head at a time."""

from kernels import plan

from ... import costs
from ..draw import Draw
from ..properties import grouped
from ..properties.predictions import number
from ..tasks import Assignment, Task


def givens(draw: Draw) -> dict:
    """Groups that are no multiple of the tile, so that tiles over all heads are fewer than tiles that end at groups."""
    n_q_heads, n_kv_heads = draw.choice(grouped.STRADDLING)
    return {
        "n_q_heads": n_q_heads,
        "n_kv_heads": n_kv_heads,
        "head_dim": draw.choice([64, 128]),
        "rows": 16,
        "batch": draw.choice([3, 5, 7]),
        "context_len": draw.choice([4096, 8192, 12_288, 16_384]),
    }


def _programs(given: dict) -> int:
    return plan.decode_programs(given["batch"], given["n_q_heads"], given["n_kv_heads"], block_h=given["rows"])


def _flat(given: dict) -> int:
    """Programs of tiles over all heads."""
    return given["batch"] * plan.ceil_div(given["n_q_heads"], given["rows"])


def _requested(given: dict, programs: int) -> int:
    """Bytes that so many programs request, each all keys and values of one KV head."""
    one = costs.Attention.gqa(1, 1, given["head_dim"])
    return programs * costs.cache_bytes(one, given["context_len"])


def _heads(given: dict) -> int:
    return given["batch"] * given["n_q_heads"]


_KV = "did you count V as well?"
_WIDE = "an element of 16 bits is how many bytes?"
_UNITS = {"KiB": costs.KiB, "MiB": costs.MiB, "GiB": costs.GiB, "MB": 1e6, "GB": 1e9}

PREDICTED = (
    number(
        "programs_before", "programs with one query head each", right=_heads, tolerance=0,
        traps={
            "for how many sequences?": lambda g: g["n_q_heads"],
            "that would be one for each KV head": lambda g: g["batch"] * g["n_kv_heads"],
        },
    ),
    number(
        "programs", "programs with the heads of a group as rows", right=_programs, tolerance=0,
        traps={
            "a tile of these would hold heads of two groups, and needs the keys of both": _flat,
            "does a whole group fit into a tile?": lambda g: g["batch"] * g["n_kv_heads"],
            "for how many sequences?": lambda g: _programs(g) // g["batch"],
        },
    ),
    number(
        "requested_before", "bytes of K and V that one-head programs request",
        right=lambda g: _requested(g, _heads(g)), unit="bytes",
        traps={
            _KV: lambda g: _requested(g, _heads(g)) / 2,
            _WIDE: lambda g: _requested(g, _heads(g)) * 2,
            "these are the bytes of the cache. How often is each of them asked for?":
                lambda g: _requested(g, g["batch"] * g["n_kv_heads"]),
        },
        other_units=_UNITS,
    ),
    number(
        "requested", "bytes of K and V that grouped programs request",
        right=lambda g: _requested(g, _programs(g)), unit="bytes",
        traps={
            "does one tile hold the whole group, and did you count V as well?": lambda g: _requested(g, _programs(g)) / 2,
            _WIDE: lambda g: _requested(g, _programs(g)) * 2,
        },
        other_units=_UNITS,
    ),
    number(
        "executed", "FLOPs that a program executes for a byte that it loads",
        right=lambda g: 2 * g["rows"] / costs.bytes_of("bfloat16"),
        traps={
            "that is the group: what becomes of rows that hold no head?": lambda g: g["n_q_heads"] / g["n_kv_heads"],
            "that is for an element": lambda g: 2 * g["rows"],
            "a multiply-add is two FLOPs": lambda g: g["rows"] / 2,
        },
    ),
)  # fmt: skip

_RAGGED = ((38, 17, 1), (33, 16), (2, 40))

ASSIGNMENT = Assignment(
    name="04_grouped_head_decode",
    title="Grouped-head decode",
    minutes=90,
    objectives=(
        "predict programs and requested bytes of a decode step, for groups that are no multiple of the tile",
        "find a fault in a grouped kernel by groups, lengths and numbers of tokens that separate it",
        "turn a kernel with one query head a program into one that loads a shared key once, and show it by counting",
        "say what sharing a load costs: programs",
    ),
    tasks=(
        Task("predict", "predict", "Predict: programs and requests", "predicted", tuple((each, 1) for each in PREDICTED)),
        Task(
            "kernel",
            "fix",
            "Mend the grouped kernel",
            "mended.decode",
            (
                (grouped.tiles_end_at_groups(), 1),
                (
                    grouped.definition(
                        "definition", "output and lse over a ragged cache, NaN behind each length", lengths=_RAGGED
                    ),
                    1,
                ),
                (grouped.several_tokens(), 1),
                (grouped.own_length, 1),
            ),
            shipped=lambda kernels: kernels.decode,
        ),
        Task(
            "grouped",
            "build",
            "Load a shared key once",
            "grouped_decode",
            (
                (
                    grouped.definition(
                        "definition", "output and lse over a ragged cache, NaN behind each length", lengths=_RAGGED
                    ),
                    1,
                ),
                (grouped.requested_once(), 2),
                (grouped.tiles_end_at_groups((*grouped.STRADDLING, (71, 1), (28, 4))), 1),
                (grouped.own_length, 1),
                (
                    grouped.definition(
                        "empty sequences", "a sequence of no tokens gives 0 and -inf", lengths=((0, 5), (19, 0))
                    ),
                    1,
                ),
            ),
            hidden=("empty sequences",),
        ),
        Task(
            "tokens",
            "stretch",
            "Rows are heads times tokens",
            "grouped_tokens",
            (
                (grouped.several_tokens(), 1),
                (grouped.requested_once(True, ((2, 8, 2), (4, 6, 2), (3, 10, 2))), 2),
            ),
        ),
    ),
    givens=givens,
    rubric=(
        (1, "tells requested, distinct and loaded from memory apart, and says what the L2 does for programs that run together"),
        (1, "counts programs against SMs for the case, and names what one program can read"),
        (1, "says which of the two decides at batch 1 and which at a large batch, with numbers"),
        (1, "names the next step: more programs for one sequence, and what it adds (partial results, a merge)"),
    ),
)
