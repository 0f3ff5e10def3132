"""Chapter 1: bytes and floors of a decode step, a byte counter to repair, a step with a cache."""

from ... import costs
from ..draw import Draw
from ..properties import cache_size, cached_decoding
from ..properties.predictions import number
from ..tasks import Assignment, Task

GPUS = ("A100 80GB SXM", "H100 SXM", "H200 SXM")


def givens(draw: Draw) -> dict:
    n_kv_heads, group_size = draw.choice((2, 4, 8)), draw.choice((3, 4, 6, 8))
    head_dim_qk, head_dim_v = draw.choice(((192, 128), (96, 64), (128, 96), (128, 192)))
    n_layers = draw.choice((32, 40, 48))
    window = draw.choice((512, 1024, 2048))
    return {
        "gpu": draw.choice(GPUS),
        "n_layers": n_layers,
        "n_window_layers": n_layers * draw.choice((2, 3)) // 4,
        "window": window,
        "n_q_heads": n_kv_heads * group_size,
        "n_kv_heads": n_kv_heads,
        "head_dim_qk": head_dim_qk,
        "head_dim_v": head_dim_v,
        "bytes_per_element": draw.choice((1, 2)),
        "batch": draw.integer(6, 24),
        "context_len": draw.integer(10, 40) * 1000,
        "weights_gb": draw.integer(8, 40),
    }


def _cache(g: dict, *, window: bool = True, batch: int | None = None, **changed) -> float:
    g = g | changed
    layer = costs.Attention.gqa(g["n_q_heads"], g["n_kv_heads"], g["head_dim_qk"], g["head_dim_v"])
    options = {"batch": g["batch"] if batch is None else batch, "bytes_per_element": g["bytes_per_element"]}
    full, rest = g["n_layers"] - g["n_window_layers"], g["n_window_layers"]
    kept = g["window"] if window else None
    return costs.cache_bytes(layer, g["context_len"], n_layers=full, **options) + costs.cache_bytes(
        layer, g["context_len"], n_layers=rest, window=kept, **options
    )


def _flops(g: dict, *, window: bool = True, **changed) -> float:
    g = g | changed
    layer = costs.Attention.gqa(g["n_q_heads"], g["n_kv_heads"], g["head_dim_qk"], g["head_dim_v"])
    full, rest = g["n_layers"] - g["n_window_layers"], g["n_window_layers"]
    kept = min(g["context_len"], g["window"]) if window else g["context_len"]
    return full * costs.decode_flops(layer, g["context_len"], batch=g["batch"]) + rest * costs.decode_flops(
        layer, kept, batch=g["batch"]
    )


def _floor(g: dict, n_bytes: float, flops: float) -> costs.Floor:
    return costs.floor(n_bytes, flops, g["gpu"])


def _memory_ms(g: dict, n_bytes: float) -> float:
    return _floor(g, n_bytes, 0).memory_s * 1e3


def _compute_ms(g: dict, flops: float) -> float:
    return _floor(g, 0, flops).compute_s * 1e3


def _growth(g: dict, *, cache_once: bool = False) -> float:
    """Tokens a second with twice the batch, over those with the batch; times are bytes over bandwidth."""
    weights, cache = g["weights_gb"] * 1e9, _cache(g)
    return 2 * (weights + cache) / (weights + (1 if cache_once else 2) * cache)


TIMES = {"µs": 1e-3, "s": 1e3}

FLOORS = Task(
    name="floors",
    kind="predict",
    title="What a step has to read and to compute",
    answer="predicted",
    points=(
        (
            number(
                "cache",
                "the caches of all sequences",
                right=lambda g: _cache(g) / costs.GiB,
                unit="GiB",
                traps={
                    "did you count the values as well?": lambda g: _cache(g, head_dim_v=g["head_dim_qk"]) / 2 / costs.GiB,
                    "keys and values differ in width": lambda g: _cache(g, head_dim_v=g["head_dim_qk"]) / costs.GiB,
                    "whose keys and values are stored: those of query heads or of KV heads?": lambda g: (
                        _cache(g, n_kv_heads=g["n_q_heads"]) / costs.GiB
                    ),
                    "what does a layer with a window keep?": lambda g: _cache(g, window=False) / costs.GiB,
                    "how many sequences are there?": lambda g: _cache(g, batch=1) / costs.GiB,
                    "how large is a stored number?": lambda g: (
                        _cache(g, bytes_per_element=3 - g["bytes_per_element"]) / costs.GiB
                    ),
                },
                other_units={"bytes": 1 / costs.GiB, "MiB": costs.MiB / costs.GiB, "GB": 1e9 / costs.GiB},
            ),
            2,
        ),
        (
            number(
                "memory",
                "bytes over the bandwidth",
                right=lambda g: _memory_ms(g, _cache(g)),
                unit="ms",
                traps={
                    "one GiB is more than one GB": lambda g: _memory_ms(g, _cache(g) / costs.GiB * 1e9),
                    "what does a layer with a window read?": lambda g: _memory_ms(g, _cache(g, window=False)),
                    "whose keys and values are read?": lambda g: _memory_ms(g, _cache(g, n_kv_heads=g["n_q_heads"])),
                },
                other_units=TIMES,
            ),
            1,
        ),
        (
            number(
                "compute",
                "FLOPs over the peak",
                right=lambda g: _compute_ms(g, _flops(g)),
                unit="ms",
                traps={
                    "how many FLOPs is one multiply-add?": lambda g: _compute_ms(g, _flops(g)) / 2,
                    "each query head has scores of its own": lambda g: _compute_ms(g, _flops(g, n_q_heads=g["n_kv_heads"])),
                    "how many tokens does a layer with a window look at?": lambda g: _compute_ms(g, _flops(g, window=False)),
                },
                other_units=TIMES,
            ),
            1,
        ),
        (
            number(
                "growth",
                "how much twice the batch brings",
                right=_growth,
                traps={
                    "does the second half of the batch read no cache?": lambda g: _growth(g, cache_once=True),
                    "then every byte would be shared": lambda g: 2.0,
                    "then no byte would be shared": lambda g: 1.0,
                },
            ),
            1,
        ),
    ),
)

COUNTER = Task(
    name="counter",
    kind="fix",
    title="A counter of cache bytes",
    answer="mended.costs",
    points=(
        (cache_size.heads, 1),
        (cache_size.widths, 1),
        (cache_size.latent, 1),
        (cache_size.configurations, 1),
        (cache_size.batch_and_window, 1),
        (cache_size.real_models, 1),
    ),
    hidden=(cache_size.real_models.name,),
    shipped=lambda course: course.costs,
    package="course",
)

STEP = Task(
    name="step",
    kind="build",
    title="One step with a cache",
    answer="decode_step",
    points=(
        (cached_decoding.same, 2),
        (cached_decoding.stored, 1),
        (cached_decoding.work, 1),
        (cached_decoding.other_shapes, 1),
    ),
    hidden=(cached_decoding.other_shapes.name,),
)

LOOP = Task(
    name="loop",
    kind="stretch",
    title="A whole text with a cache",
    answer="generate",
    points=((cached_decoding.same_text, 2), (cached_decoding.rows, 2)),
)

ASSIGNMENT = Assignment(
    name="01_kv_cache",
    title="The KV cache",
    minutes=90,
    objectives=(
        "compute the bytes of a cache from a configuration, with windows, widths and batch",
        "compute both terms of the floor of a decode step, and what a larger batch brings",
        "find what a counter of cache bytes forgets",
        "write a decode step that stores rotated keys in place and does the work of one token",
    ),
    tasks=(FLOORS, COUNTER, STEP, LOOP),
    givens=givens,
    rubric=(
        (1, "argues layer by layer that with a causal mask no later token changes a stored key or value"),
        (1, "says what bidirectional attention changes (keys from the second layer on), and that queries are used once"),
        (1, "explains why the whole model would have to run again: keys of layer 2 are made from what layer 1 puts out"),
    ),
)
