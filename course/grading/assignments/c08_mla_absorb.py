"""Chapter 8: on which side of the ridge and of M* a step lies, faults of the decode kernel, the absorbed step."""

from ... import costs
from ..draw import Draw
from ..properties import latent, shared_prefix
from ..properties.predictions import number
from ..tasks import Assignment, Task

WIDTHS = ((128, 64, 128, 512), (192, 64, 256, 512), (64, 32, 128, 256), (128, 64, 192, 448))  # d_nope, d_r, d_v, d_c


def givens(draw: Draw) -> dict:
    """A layer whose heads GPUs share: bound by products on one GPU, by bytes on several, and never far from the ridge."""
    while True:
        nope_dim, rope_dim, head_dim_v, latent_dim = draw.choice(WIDTHS)
        given = {
            "gpu": draw.choice(("A100 80GB SXM", "H100 SXM", "H200 SXM", "B200 SXM")),
            "n_gpus": draw.choice((2, 4)),
            "n_heads": draw.choice((64, 96, 128)),
            "nope_dim": nope_dim,
            "rope_dim": rope_dim,
            "head_dim_v": head_dim_v,
            "latent_dim": latent_dim,
            "q_len": draw.choice((2, 3, 4)),
            "batch": draw.choice((24, 40, 56)),
            "context_len": draw.choice((20_000, 30_000, 50_000)),
        }
        floor = _floor(given)
        if 0.2 < floor.compute_s / floor.memory_s < 0.9 and _floor(given, n_gpus=1).compute_s > 1.1 * floor.memory_s:
            gpu = costs.gpu(given["gpu"])
            return {**given, "bandwidth": gpu.bandwidth, "peak": gpu.peak_flops()}


def _layer(given: dict) -> costs.LatentAttention:
    names = ("n_heads", "nope_dim", "rope_dim", "head_dim_v", "latent_dim")
    return costs.LatentAttention(d_model=4096, **{name: given[name] for name in names})


def _share(given: dict, **other) -> costs.Attention:
    """What the kernel of one GPU sees."""
    return _layer(given).shard(other.get("n_gpus", given["n_gpus"])).absorbed


def _intensity(given: dict, **other) -> float:
    return costs.intensity(_share(given, **other), q_len=other.get("q_len", given["q_len"]))


def _floor(given: dict, **other) -> costs.Floor:
    share = _share(given, **other)
    n_bytes = costs.cache_bytes(share, given["context_len"], batch=given["batch"])
    flops = costs.attention_flops(share, given["q_len"], given["context_len"], batch=given["batch"], causal=True)
    return costs.floor(n_bytes, flops, given["gpu"])


def _ridge_heads(given: dict) -> float:
    return costs.gpu(given["gpu"]).ridge() / costs.intensity(costs.Attention.mla(1, given["latent_dim"], given["rope_dim"]))


def _twice(given: dict) -> float:
    """Bytes of key and value over those of the record: what a value loaded apart from its key costs."""
    one = _layer(given).absorbed
    return (one.head_dim_qk + one.head_dim_v) / one.elements_per_token


def _crossover(given: dict, pair: int) -> float:
    """Query tokens at which expanding pays, if an absorbed pair were ``pair`` products dearer than an expanded one."""
    return given["latent_dim"] * (given["nope_dim"] + given["head_dim_v"]) / pair


REGIME = Task(
    name="regime",
    kind="predict",
    title="Which side of the ridge, which side of M*",
    answer="predicted",
    points=(
        (
            number(
                "crossover", "query tokens from which expanding needs fewer FLOPs, over a very long context",
                right=lambda g: _layer(g).crossover_limit, tolerance=0.02, unit="query tokens",
                traps={
                    "the rotary part is multiplied in both forms":
                        lambda g: _crossover(g, 2 * g["latent_dim"] + g["rope_dim"] - g["nope_dim"] - g["head_dim_v"]),
                    "an absorbed pair has two products with the latent: one for the score, one for the value":
                        lambda g: _crossover(g, g["latent_dim"] - g["nope_dim"]),
                    "does W_UV have to meet the cached tokens as well?":
                        lambda g: _crossover(g, 2 * g["latent_dim"] - g["nope_dim"] - g["head_dim_v"])
                        * g["nope_dim"] / (g["nope_dim"] + g["head_dim_v"]),
                },
            ), 1,
        ),
        (
            number(
                "intensity", "FLOPs of attention for each byte of cache that one of the GPUs reads",
                right=_intensity, unit="FLOP/B",
                traps={
                    "how many heads has one of the GPUs?": lambda g: _intensity(g, n_gpus=1),
                    "how many query tokens meet each latent?": lambda g: _intensity(g, q_len=1),
                    "is the latent read a second time, as the value?": lambda g: _intensity(g) / _twice(g),
                    "a multiply-add is two FLOPs": lambda g: _intensity(g) / 2,
                },
            ), 1,
        ),
        (
            number(
                "ridge_heads", "query heads at which one query token a step reaches the data sheet's ridge",
                right=_ridge_heads, unit="heads",
                traps={
                    "the value lies inside the key: does it cost bytes?": lambda g: _ridge_heads(g) * _twice(g),
                    "heads do not make the record larger": lambda g: costs.gpu(g["gpu"]).ridge(),
                },
            ), 1,
        ),
        (
            number(
                "floor_us", "the floor of this layer's attention on one of the GPUs, in microseconds",
                right=lambda g: 1e6 * _floor(g).seconds, unit="µs",
                traps={
                    "loads and products overlap inside one kernel": lambda g: 1e6 * (_floor(g).memory_s + _floor(g).compute_s),
                    "a kernel is not faster than the slower of its two parts":
                        lambda g: 1e6 * min(_floor(g).memory_s, _floor(g).compute_s),
                    "which of bytes and FLOPs does each GPU have a part of, and which in full?":
                        lambda g: 1e6 * _floor(g, n_gpus=1).seconds,
                    "is the cache divided over the GPUs?":
                        lambda g: 1e6 * max(_floor(g).memory_s / g["n_gpus"], _floor(g).compute_s),
                },
                other_units={"ms": 1e3, "s": 1e6},
            ), 2,
        ),
    ),
)  # fmt: skip

KERNEL = Task(
    name="kernel",
    kind="fix",
    title="A decode kernel with a fault",
    answer="mended.mla_decode",
    points=((latent.kernel_definition, 1), (latent.kernel_scale, 1), (latent.kernel_rotary, 1), (latent.kernel_reads, 2)),
    shipped=lambda kernels: kernels.mla_decode,
)

STEP = Task(
    name="step",
    kind="build",
    title="The absorbed step",
    answer="absorbed_step",
    points=(
        (latent.step_definition, 2),
        (latent.step_rotary, 1),
        (latent.step_scale, 1),
        (latent.step_flops, 2),
        (latent.step_tensors, 2),
    ),
    hidden=("rotary part",),
    shipped=latent.layer_step,
    package="course",
)

PLAN = Task(
    name="plan",
    kind="stretch",
    title="A prefix that many users share",
    answer="plan",
    points=((shared_prefix.plan_flops, 2), (shared_prefix.plan_cheapest, 2)),
    shipped=shared_prefix.cheapest_plan,
    package="course",
)

ASSIGNMENT = Assignment(
    name="08_mla_absorb",
    title="MLA II: absorb, and the decode kernel",
    minutes=85,
    objectives=(
        "say from widths, heads and GPUs whether a step is bound by bytes or by products, and whether to expand or absorb",
        "find a fault of a decode kernel that no test of its output can see, by its counted loads",
        "write a decode step that works on the latents as they lie, and prove it by its FLOPs and its tensors",
        "count what changes when many sequences share a prefix",
    ),
    tasks=(REGIME, KERNEL, STEP, PLAN),
    givens=givens,
    rubric=(
        (1, "each GPU keeps all latents, because every head reads the same record"),
        (1, "the products are divided, so the step moves left on the roofline and memory sets the floor"),
        (1, "names the division by sequences and says what it divides"),
    ),
)
