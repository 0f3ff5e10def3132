"""Chapter 2: what sharing saves and what a copy costs, the head map, a conversion, attention without a copy."""

from ... import costs
from ..draw import Draw
from ..properties import heads
from ..properties.predictions import number
from ..tasks import Assignment, Task


def givens(draw: Draw) -> dict:
    """A layer whose group size is not its number of KV heads, so that taking one for the other shows."""
    n_q_heads, n_kv_heads = draw.choice([(32, 8), (32, 4), (48, 8), (40, 8), (28, 4), (64, 4), (96, 8)])
    return {
        "n_q_heads": n_q_heads,
        "n_kv_heads": n_kv_heads,
        "head_dim": draw.choice([64, 128]),
        "context_len": draw.choice([65_536, 98_304, 131_072]),
        "batch": draw.choice([3, 5, 6, 12]),
    }


def _layers(given: dict) -> tuple[costs.Attention, costs.Attention]:
    """The layer with as many KV heads as query heads, and the one that shares."""
    heads_, width = given["n_q_heads"], given["head_dim"]
    return costs.Attention.mha(heads_, width), costs.Attention.gqa(heads_, given["n_kv_heads"], width)


def _new_over_old(given: dict, of) -> float:
    before, after = _layers(given)
    return of(after) / of(before)


def _cache(given: dict) -> float:
    return _new_over_old(given, lambda layer: costs.cache_bytes(layer, given["context_len"]))


def _flops(given: dict) -> float:
    return _new_over_old(given, lambda layer: costs.decode_flops(layer, given["context_len"]))


def _time(given: dict) -> float:
    n = given["context_len"]
    seconds = lambda layer: costs.floor(costs.cache_bytes(layer, n), costs.decode_flops(layer, n), "H200 SXM").seconds  # noqa: E731
    return _new_over_old(given, seconds)


def _passes(given: dict, read_back: bool = True) -> int:
    return costs.copy_passes(_layers(given)[1].group_size, read_back=read_back)


def _unit(given: dict, layer: int = 1) -> float:
    return costs.cache_bytes(_layers(given)[layer], given["context_len"], batch=given["batch"])


_GROUP = "the name counts KV heads: how many query heads share one?"

PREDICTED = (
    number(
        "cache", "bytes of the cache, new over old", right=_cache,
        traps={
            "new over old, please: this is old over new": lambda g: 1 / _cache(g),
            _GROUP: lambda g: 1 / g["n_kv_heads"],
            "which of the two head counts is in the bytes of a token?": lambda g: 1.0,
        },
    ),
    number(
        "flops", "FLOPs of attention in a decode step, new over old", right=_flops,
        traps={"every query head still meets every cached token: which head count is in the number of pairs?": _cache},
    ),
    number(
        "time", "time of a kernel that loads a shared key once, new over old", right=_time, tolerance=0.12,
        traps={
            "that would be so if the FLOPs decided. What does a GPU wait for in a decode step?": lambda g: 1.0,
            "that is the way with copies": lambda g: _passes(g) * _cache(g),
        },
    ),
    number(
        "copied", "bytes moved with copied heads, over the bytes of the layer that shares nothing",
        right=lambda g: _passes(g) * _cache(g),
        traps={
            "this compares with the shared cache; the question compares with the layer that shares nothing": _passes,
            "the copies are written and read. Where do they come from?": lambda g: (_passes(g) - 1) * _cache(g),
            "the copies are written. What does attention read?": lambda g: _passes(g, read_back=False) * _cache(g),
            "and who makes the copies, and from what?": lambda g: 1.0,
        },
    ),
    number(
        "copied_bytes", "bytes that the copying way moves in one step of one layer",
        right=lambda g: _passes(g) * _unit(g), unit="bytes",
        traps={
            "did you count V as well?": lambda g: _passes(g) * _unit(g) / 2,
            "for how many sequences?": lambda g: _passes(g) * _unit(g) / g["batch"],
            "this is the cache alone: what do the copies move?": _unit,
            "an element of 16 bits is how many bytes?": lambda g: _passes(g) * _unit(g) / 2 * 4,
            "these are the bytes of the layer that shares nothing": lambda g: _unit(g, 0),
        },
        other_units={"KiB": costs.KiB, "MiB": costs.MiB, "GiB": costs.GiB, "MB": 1e6, "GB": 1e9},
    ),
)  # fmt: skip

_SEVERAL = heads.same_as_definition(
    "several tokens", "the last M of N tokens, each sees the keys up to its own", causal=True,
    q_len=(2, 4), kv_len=(6, 11), widths=((16, 16), (8, 20)),
)  # fmt: skip
_LINEAR = heads.converted(
    "mean over groups",
    "weights as torch keeps them: K and V, each head of the mean of its group",
    layouts=("out_in",),
    biases=False,
)

_OTHERS = heads.converted(
    "other layouts",
    "the same for [in, out] and for heads on an axis of their own",
    layouts=("in_out", "in_heads"),
    biases=False,
)

ASSIGNMENT = Assignment(
    name="02_sharing_heads",
    title="Sharing heads",
    minutes=75,
    objectives=(
        "say what fewer KV heads change in bytes, FLOPs and time, and what a copy takes back",
        "tell a contiguous head map from others, by a test that separates them",
        "find a copy by the size of a tensor, and write attention that makes none",
        "convert a checkpoint to fewer KV heads, in every layout of its weights",
    ),
    tasks=(
        Task("predict", "predict", "Predict: fewer KV heads", "predicted", tuple((each, 1) for each in PREDICTED)),
        Task(
            "heads",
            "fix",
            "Mend the definition of attention",
            "mended.reference.attention",
            (
                (heads.head_map, 1),
                (heads.same_as_definition("definition", "the output is that of attention with shared heads"), 1),
                (_SEVERAL, 1),
            ),
            shipped=lambda kernels: kernels.reference.attention,
        ),
        Task(
            "conversion",
            "fix",
            "Mend a conversion to fewer KV heads",
            "converted.layers",
            ((heads.pooled_weights, 1), (heads.pooled_layer, 2)),
            shipped=lambda course: course.layers,
            package="course",
        ),
        Task(
            "attention",
            "build",
            "Attention with shared heads and no copy",
            "gqa_attention",
            (
                (heads.head_map, 1),
                (heads.same_as_definition("one token", "one query over a cache", widths=((20, 8),), kv_len=(3, 9)), 1),
                (_SEVERAL, 1),
                (heads.no_copy, 1),
            ),
            hidden=("several tokens",),
        ),
        Task(
            "convert",
            "build",
            "Fewer KV heads, in any layout",
            "to_gqa",
            (
                (_LINEAR, 1),
                (_OTHERS, 1),
                (heads.converted("biases", "biases are averaged as the weights are", layouts=heads.LAYOUTS, biases=True), 1),
            ),
            hidden=("biases",),
        ),
        Task(
            "reorder",
            "stretch",
            "A checkpoint with the other head map",
            "to_contiguous",
            (
                (heads.reordered("same layer", "the layer gives what it gave before", head_dim_qk=4, head_dim_v=4), 2),
                (heads.reordered("widths that differ", "with values of another width", head_dim_qk=4, head_dim_v=6), 1),
            ),
            hidden=("widths that differ",),
        ),
    ),
    givens=givens,
    rubric=(
        (1, "names the three causes of chapter 2: heads copied, too few programs, too many launches"),
        (
            2,
            "says for each what one would see: a tensor of G times K; a time that a larger batch, or context, does not raise",
        ),
        (1, "chooses the first to look for from the case (one sequence, 131,072 tokens), with arithmetic"),
    ),
)
