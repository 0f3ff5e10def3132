"""Chapter 7: what a latent layer keeps and what it is made of, a fault in its expanded form, the layer itself."""

from ... import costs
from ..draw import Draw
from ..properties import latent, low_rank
from ..properties.predictions import number
from ..tasks import Assignment, Task


def givens(draw: Draw) -> dict:
    """Widths of a layer that no published model has, and what it serves."""
    return {
        "d_model": draw.choice((2048, 2560, 3072, 4096)),
        "n_heads": draw.choice((24, 40, 48, 56)),
        "nope_dim": draw.choice((96, 112, 160)),
        "rope_dim": draw.choice((32, 48)),
        "head_dim_v": draw.choice((104, 120, 144)),
        "latent_dim": draw.choice((320, 384, 448)),
        "n_layers": draw.choice((28, 36, 44)),
        "batch": draw.choice((3, 5, 6)),
        "context_len": draw.choice((12_000, 20_000, 40_000)),
    }


def _layer(given: dict) -> costs.LatentAttention:
    names = ("d_model", "n_heads", "nope_dim", "rope_dim", "head_dim_v", "latent_dim")
    return costs.LatentAttention(**{name: given[name] for name in names})


def _cache_bytes(given: dict, elements: int | None = None, batch: int | None = None) -> float:
    """Bytes in bf16, by the numbers a token leaves in a layer if they are not those of the record."""
    layer = _layer(given)
    size = costs.cache_bytes(
        layer.absorbed, given["context_len"], batch=batch or given["batch"], n_layers=given["n_layers"], bytes_per_element=2
    )
    return size * (elements or layer.elements_per_token) / layer.elements_per_token


def _parameters(given: dict, *left_out: str, n_heads: int | None = None) -> int:
    parameters = _layer({**given, "n_heads": n_heads or given["n_heads"]}).parameters
    return sum(parameters[name] for name in ("W_DKV", "W_KR", "W_UK", "W_UV") if name not in left_out)


RECORD = Task(
    name="record",
    kind="predict",
    title="What a token leaves behind",
    answer="predicted",
    points=(
        (
            number(
                "elements", "numbers that one token leaves in the cache of one layer",
                right=lambda g: _layer(g).elements_per_token, tolerance=0, unit="numbers a token and layer",
                traps={
                    "without its rotary key a token has no place in the sequence": lambda g: g["latent_dim"],
                    "where is the value stored? Does it take room of its own?": lambda g: 2 * g["latent_dim"] + g["rope_dim"],
                    "these are the keys and values of all heads. Are they kept?":
                        lambda g: _layer(g).expanded.elements_per_token,
                },
            ), 1,
        ),
        (
            number(
                "kv_heads", "KV heads, 128 wide, whose keys and values take as much room",
                right=lambda g: _layer(g).equivalent_kv_heads(), unit="KV heads",
                traps={"a KV head keeps a key and a value": lambda g: 2 * _layer(g).equivalent_kv_heads()},
            ), 1,
        ),
        (
            number(
                "kv_parameters", "parameters of the matrices that make keys and values from a token",
                right=_parameters, tolerance=0.002, unit="parameters of one layer",
                traps={
                    "which matrix makes the rotary key?": lambda g: _parameters(g, "W_KR"),
                    "which matrices have a head axis?": lambda g: _parameters(g, n_heads=1),
                    "keys and values are expanded by a matrix each": lambda g: _parameters(g, "W_UV"),
                },
                other_units={"millions": 1e6},
            ), 1,
        ),
        (
            number(
                "cache_bytes", "bytes of the caches of all sequences in all layers, bf16",
                right=_cache_bytes, unit="bytes",
                traps={
                    "was the rotary key counted?": lambda g: _cache_bytes(g, g["latent_dim"]),
                    "is the value stored apart from the latent?":
                        lambda g: _cache_bytes(g, 2 * g["latent_dim"] + g["rope_dim"]),
                    "how many sequences are there?": lambda g: _cache_bytes(g, batch=1),
                    "how many bytes has a number in bf16?": lambda g: _cache_bytes(g) / 2,
                },
                other_units={"GiB": costs.GiB, "GB": 1e9, "MiB": costs.MiB, "MB": 1e6},
            ), 2,
        ),
    ),
)  # fmt: skip

REPAIR = Task(
    name="repair",
    kind="fix",
    title="An expanded form that is almost right",
    answer="mended.reference.mla_expanded",
    points=((latent.expanded_rotary, 1), (latent.expanded_scale, 1), (latent.expanded_definition, 2)),
    shipped=lambda kernels: kernels.reference.mla_expanded,
)

LAYER = Task(
    name="layer",
    kind="build",
    title="The layer in its expanded form",
    answer="mla_layer",
    points=(
        (latent.layer_definition, 2),
        (latent.layer_chunks, 2),
        (latent.layer_cache_bytes, 2),
        (latent.layer_rotary, 1),
        (latent.layer_scale, 1),
    ),
    hidden=("rotary part",),
    shipped=latent.as_function,
    package="course",
)

COMPRESS = Task(
    name="compress",
    kind="stretch",
    title="One latent for a trained model",
    answer="compress",
    points=((low_rank.compress_exact, 1), (low_rank.compress_best, 2)),
)

ASSIGNMENT = Assignment(
    name="07_mla_compress",
    title="MLA I: compress the token",
    minutes=75,
    objectives=(
        "count what a latent layer keeps and what its matrices hold, from its widths alone",
        "tell a missing rotary part from a wrong scale by what each does to the output",
        "write latent attention that expands its cache and gives the same output however the tokens arrive",
        "say what a rank imposed in training has to do with a rank found afterwards, and what not",
    ),
    tasks=(RECORD, REPAIR, LAYER, COMPRESS),
    givens=givens,
    rubric=(
        (1, "names the two matrices between which a rotation of the content key would stand"),
        (1, "says that the rotation depends on the distance, so that no product of the matrices can be formed once"),
        (1, "says why the separate rotary key needs no head axis, and that rotating expanded keys is legal all the same"),
    ),
)
