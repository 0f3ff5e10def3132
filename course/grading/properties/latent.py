"""Latent attention as a layer, as an absorbed step and as the decode kernel, with what each may cost.

Widths are drawn so that no two of d_nope, d_r, d_v and d_c are equal, and there are always several keys: with equal widths a
wrong scale or a swapped matrix hides, with one key the softmax is 1 whatever the scores.
"""

from collections.abc import Callable
from types import ModuleType

import torch
from torch import Tensor

import kernels

from ... import costs
from ...layers import rotate, rotation
from .. import judge
from ..answers import Answer, Observed
from ..draw import Draw
from ..judge import Wrong
from ..tasks import named

WIDTHS = ((12, 8, 16, 24), (20, 4, 12, 36), (10, 6, 14, 28))  # d_nope, d_r, d_v, d_c
EPS = 1e-6  # of the latent's norm


def draw_shape(draw: Draw, n_heads: int | None = None) -> costs.LatentAttention:
    """A small layer whose queries come from x directly."""
    nope_dim, rope_dim, head_dim_v, latent_dim = draw.choice(WIDTHS)
    n_heads = draw.choice((3, 5)) if n_heads is None else n_heads
    return costs.LatentAttention(draw.choice((19, 23)), n_heads, nope_dim, rope_dim, head_dim_v, latent_dim)


def draw_weights(draw: Draw, shape: costs.LatentAttention) -> dict[str, Tensor]:
    """Matrices of a layer in float64, on the CPU. Those of the queries are large, so that a softmax has something to choose."""
    widths = {
        "w_uq": (shape.n_heads, shape.d_model, shape.nope_dim),
        "w_qr": (shape.n_heads, shape.d_model, shape.rope_dim),
        "w_dkv": (shape.d_model, shape.latent_dim),
        "w_kr": (shape.d_model, shape.rope_dim),
        "w_uk": (shape.n_heads, shape.latent_dim, shape.nope_dim),
        "w_uv": (shape.n_heads, shape.latent_dim, shape.head_dim_v),
        "w_o": (shape.n_heads * shape.head_dim_v, shape.d_model),
    }
    return {
        name: _numbers(draw, *size, std=(2.0 if name in ("w_uq", "w_qr") else 1.0) * size[-2] ** -0.5)
        for name, size in widths.items()
    }


def _numbers(draw: Draw, *shape: int, std: float = 1.0) -> Tensor:
    return draw.tensor(*shape, dtype=torch.float64, std=std).cpu()


def definition(x: Tensor, weights: dict[str, Tensor], scale_width: float | None = None) -> Tensor:
    """The layer of chapter 7 on all tokens at once, x [B, M, d_model] -> [B, M, d_model]; scores over sqrt(scale_width)."""
    latent_dim, nope_dim = weights["w_uk"].shape[1:]
    rope_dim = weights["w_kr"].shape[1]
    turn = rotation(torch.arange(x.shape[1]), rope_dim, dtype=x.dtype)
    latent = torch.nn.functional.rms_norm(x @ weights["w_dkv"], (latent_dim,), eps=EPS)
    q_nope, q_rope = (torch.einsum("bmd,hdn->bhmn", x, weights[name]) for name in ("w_uq", "w_qr"))
    out, _ = kernels.reference.mla_expanded(
        q_nope, rotate(q_rope, *turn), latent, rotate(x @ weights["w_kr"], *turn), weights["w_uk"], weights["w_uv"],
        scale=(scale_width or nope_dim + rope_dim) ** -0.5, causal=True,
    )  # fmt: skip
    return out.transpose(1, 2).flatten(2) @ weights["w_o"]


def as_function(package: ModuleType) -> Callable:
    """`MLALayer` of a package ``course`` in its expanded form, as the function that chapter 7 asks for."""

    @torch.no_grad()
    def mla_layer(x, weights, cache=None):
        layer = _filled(package.layers.MLALayer, weights, x)
        stored = layer.new_cache(len(x), x.shape[1] + (cache[0].shape[1] if cache else 0))
        if cache:
            stored.append(**dict(zip(layer.widths, cache, strict=True)))
        return layer(x, stored, form="expanded"), tuple(stored[name] for name in layer.widths)

    return mla_layer


@torch.no_grad()
def _filled(layer_class: type, weights: dict[str, Tensor], x: Tensor) -> torch.nn.Module:
    n_heads, latent_dim, nope_dim = weights["w_uk"].shape
    layer = layer_class(
        x.shape[-1], n_heads, nope_dim=nope_dim, rope_dim=weights["w_kr"].shape[1], head_dim_v=weights["w_uv"].shape[2],
        latent_dim=latent_dim, eps=EPS,
    ).to(x.dtype)  # fmt: skip
    for name in ("w_uq", "w_qr"):  # nn.Linear keeps its matrix transposed, heads one after another
        getattr(layer, name).weight.copy_(weights[name].mT.flatten(0, 1))
    for name in ("w_dkv", "w_kr", "w_o"):
        getattr(layer, name).weight.copy_(weights[name].mT)
    layer.w_uk.copy_(weights["w_uk"])
    layer.w_uv.copy_(weights["w_uv"])
    return layer


def _layer_call(answer: Answer, x: Tensor, weights: dict[str, Tensor], cache: tuple | None = None) -> tuple[Tensor, tuple]:
    result = answer(x, weights, cache)
    if isinstance(result, Answer):
        raise Wrong("the layer must return its output and a tuple of tensors, the cache, and nothing else")
    out, cache = judge.parts(result, 2, "the output and the cache")
    if not isinstance(cache, tuple | list) or not cache or not all(isinstance(t, Tensor) for t in cache):
        raise Wrong("the cache must be a tuple of tensors: what later calls need of the tokens so far")
    return judge.tensor(out, x.shape, "the output"), tuple(cache)


def _in_chunks(answer: Answer, x: Tensor, weights: dict[str, Tensor], cuts: list[int]) -> tuple[Tensor, tuple]:
    outs, cache = [], None
    for chunk in x.split(cuts, 1):
        out, cache = _layer_call(answer, chunk, weights, cache)
        outs.append(out)
    return torch.cat(outs, 1), cache


TOKEN_AXES = ("sequence", "token", "column")


@named("definition", "without a cache the layer is causal attention of every head over its own expanded keys and values")
def layer_definition(answer: Answer, draw: Draw) -> None:
    for batch, tokens in ((1, 3), (2, draw.integer(6, 9))):
        shape = draw_shape(draw)
        weights, x = draw_weights(draw, shape), _numbers(draw, batch, tokens, shape.d_model)
        out, _ = _layer_call(answer, x, weights)
        judge.close(
            out, definition(x, weights), TOKEN_AXES, "the output", tolerance=1e-5,
            hint="The first token sees itself alone: if it is right and the others are not, look at the scores",
        )  # fmt: skip


@named("any chunks", "the output is the same whether the tokens come at once, in pieces, or one by one")
def layer_chunks(answer: Answer, draw: Draw) -> None:
    tokens = draw.integer(7, 9)
    cut = draw.integer(2, tokens - 2)
    for cuts in ([cut, tokens - cut], [tokens - 4, 3, 1], [1] * tokens):
        shape = draw_shape(draw)
        weights, x = draw_weights(draw, shape), _numbers(draw, 2, tokens, shape.d_model)
        out, _ = _in_chunks(answer, x, weights, cuts)
        judge.close(
            out, definition(x, weights), TOKEN_AXES, f"the output of chunks of {cuts} tokens", tolerance=1e-5,
            hint="Where does a chunk's first token stand, and which keys does its last one see?",
        )  # fmt: skip


@named("cache size", "a token leaves its latent and one rotary key behind, for all heads together, and nothing else")
def layer_cache_bytes(answer: Answer, draw: Draw) -> None:
    for cuts in ([5], [3, 1, 2]):
        shape, batch = draw_shape(draw), draw.choice((1, 3))
        weights, x = draw_weights(draw, shape), _numbers(draw, batch, sum(cuts), shape.d_model)
        _, cache = _in_chunks(answer, x, weights, cuts)
        # A single number may count the tokens.
        n_bytes = sum(t.numel() * t.element_size() for t in cache if t.numel() > 1)
        kept = n_bytes / (batch * sum(cuts) * x.element_size())
        if kept == shape.elements_per_token:
            continue
        if kept == shape.latent_dim:
            raise Wrong("the cache holds as many numbers as the latents have: from what will a later query see positions?")
        if kept >= shape.expanded.elements_per_token - shape.rope_dim * (shape.n_heads - 1):
            raise Wrong(f"the cache holds {kept:g} numbers a token, as keys and values of all heads do: what has no head axis?")
        raise Wrong(
            f"the cache holds {kept:g} numbers a token, in memory of {x.element_size()} bytes each; the widths were d_c = "
            f"{shape.latent_dim}, d_r = {shape.rope_dim}, d_nope = {shape.nope_dim}, d_v = {shape.head_dim_v}, "
            f"{shape.n_heads} heads. What is needed again, and in which width does it exist for all heads at once?"
        )


@named("rotary part", "a query can tell in which order the tokens before it came")
def layer_rotary(answer: Answer, draw: Draw) -> None:
    shape, prefix = draw_shape(draw), 5
    weights, x = draw_weights(draw, shape), _numbers(draw, 1, prefix + 1, shape.d_model)
    order = torch.cat([torch.roll(draw.permutation(prefix).cpu(), 1), torch.tensor([prefix])])
    if torch.equal(order, torch.arange(prefix + 1)):
        order = torch.cat([order[:prefix].flip(0), order[prefix:]])
    last, shuffled = (_in_chunks(answer, tokens, weights, [prefix, 1])[0][:, -1] for tokens in (x, x[:, order]))
    if torch.allclose(last, shuffled, rtol=1e-6, atol=1e-8):
        raise Wrong(
            "the last token's output does not change when the tokens before it change places: no score knows a position"
        )


@named("scale", "scores are divided by the square root of a head's width before compression")
def layer_scale(answer: Answer, draw: Draw) -> None:
    shape = draw_shape(draw)
    weights, x = draw_weights(draw, shape), _numbers(draw, 2, 7, shape.d_model)
    out, _ = _layer_call(answer, x, weights)
    widths = {
        shape.head_dim_qk: "",
        shape.nope_dim: "of the content part alone; a head's query has another part",
        shape.elements_per_token: "of the record in the cache; the model was trained before anything was absorbed",
        shape.latent_dim: "of the latent, which is no head",
        shape.head_dim_v: "of a value; values do not meet queries",
        shape.d_model / shape.n_heads: "of the model over its heads; a head may have another",
        1: "of nothing: the scores are not scaled",
    }
    _blame_scale(out, {words: definition(x, weights, width) for width, words in widths.items()})


def _blame_scale(out: Tensor, candidates: dict[str, Tensor]) -> None:
    """`Wrong` with the words of the candidate that ``out`` is, '' being the right one, or else of the one it is closest to."""
    errors = {words: float((out - other).norm() / other.norm()) for words, other in candidates.items()}
    nearest = min(errors, key=errors.get)
    if errors[nearest] < 1e-5 and nearest:
        raise Wrong(f"the output is that of a scale from the width {nearest}")
    if nearest:
        raise Wrong("no scale alone makes this output right; put right what else is wrong, then look at the scale again")


# --- the expanded form as one function, q and all: kernels.reference.mla_expanded ---


def _expanded_input(
    draw: Draw, batch: int, q_len: int, kv_len: int, n_heads: int | None = None
) -> tuple[costs.LatentAttention, list[Tensor]]:
    """q_nope, q_rope, latent, k_rope, w_uk, w_uv as `kernels.reference.mla_expanded` takes them, in float64."""
    shape = draw_shape(draw, n_heads)
    return shape, [
        _numbers(draw, batch, shape.n_heads, q_len, shape.nope_dim, std=1.5),
        _numbers(draw, batch, shape.n_heads, q_len, shape.rope_dim, std=1.5),
        _numbers(draw, batch, kv_len, shape.latent_dim),
        _numbers(draw, batch, kv_len, shape.rope_dim),
        _numbers(draw, shape.n_heads, shape.latent_dim, shape.nope_dim, std=shape.latent_dim**-0.5),
        _numbers(draw, shape.n_heads, shape.latent_dim, shape.head_dim_v, std=shape.latent_dim**-0.5),
    ]


STATE_AXES = ("sequence", "head", "query", "column")


def _expanded_close(answer: Answer, tensors: list[Tensor], hint: str = "", **options) -> None:
    out, lse = judge.parts(answer(*tensors, **options), 2, "out, lse")
    wanted, wanted_lse = kernels.reference.mla_expanded(*tensors, **options)
    judge.close(out, wanted, STATE_AXES, "out", tolerance=1e-6, hint=hint)
    judge.close(lse, wanted_lse, STATE_AXES[:3], "lse", tolerance=1e-6, hint=hint)


@named("expanded form", "every head attends over its own keys and values, causal from the bottom right")
def expanded_definition(answer: Answer, draw: Draw) -> None:
    for q_len, kv_len, causal in ((1, 6, False), (3, 7, True)):
        _, tensors = _expanded_input(draw, 2, q_len, kv_len)
        _expanded_close(answer, tensors, scale=0.11 + 0.01 * draw.integer(0, 9), causal=causal)


def _pointed(draw: Draw, q_rope: Tensor, k_rope: Tensor) -> tuple[Tensor, Tensor]:
    """Rotary queries that are all alike, and keys of which one is theirs: with silent content it takes all, at any scale."""
    direction = torch.nn.functional.normalize(q_rope[:1, :1].flatten(0, -2)[:1], dim=-1)[0]
    sign = torch.full(k_rope.shape[:2], -1.0, dtype=k_rope.dtype, device=k_rope.device)
    sign[:, draw.integer(0, k_rope.shape[1] - 1)] = 1.0
    return 40 * direction.expand_as(q_rope).contiguous(), 40 * sign.unsqueeze(-1) * direction


ROTARY_HINT = (
    "The content queries were zeros, so rotary parts alone decide, and they point at one token: all heads must take its value"
)


@named("rotary part", "the rotary query meets the rotary key, and their product counts in the score")
def expanded_rotary(answer: Answer, draw: Draw) -> None:
    _, (q_nope, q_rope, latent, k_rope, *matrices) = _expanded_input(draw, 1, 2, 6)
    q_rope, k_rope = _pointed(draw, q_rope, k_rope)
    tensors = [torch.zeros_like(q_nope), q_rope, latent, k_rope, *matrices]
    out, _ = judge.parts(answer(*tensors, scale=0.3), 2, "out, lse")
    wanted, _ = kernels.reference.mla_expanded(*tensors, scale=0.3)
    judge.close(out, wanted, STATE_AXES, "out", tolerance=1e-6, hint=ROTARY_HINT)


def _scale_counts(call: Callable, queries: list[Tensor], draw: Draw, axes: tuple[str, ...], tolerance: float) -> None:
    """``call(queries, scale)`` has to know a scale as it knows its queries: what else may be wrong in it does not matter."""
    scale, factor = draw.choice((0.1, 0.2, 0.3)), draw.choice((0.4, 2.5))
    wanted, got = call([factor * q for q in queries], scale), call(queries, factor * scale)
    plain = call(queries, scale)
    if not all(isinstance(out, Tensor) for out in (wanted, plain)):
        raise Wrong(f"the output must be a tensor, got {type(wanted).__name__}")
    if torch.equal(wanted, plain):
        raise Wrong("queries that are longer give the same output: do they meet the keys at all?")
    judge.close(
        got, wanted, axes, f"the output with {factor} times the scale, which is to be that with {factor} times the queries,",
        tolerance=tolerance, hint="Which factor do the scores get, both parts of them?",
    )  # fmt: skip


SCALE = named("scale argument", "the scores are multiplied by the scale that the caller gives, whatever the widths")


@SCALE
def expanded_scale(answer: Answer, draw: Draw) -> None:
    _, (q_nope, q_rope, *rest) = _expanded_input(draw, 2, 2, 6)

    def call(queries: list[Tensor], scale: float) -> Tensor:
        return judge.parts(answer(*queries, *rest, scale=scale), 2, "out, lse")[0]

    _scale_counts(call, [q_nope, q_rope], draw, STATE_AXES, 1e-6)


# --- the absorbed step: a function of queries, records and the two matrices ---


def layer_step(package: ModuleType) -> Callable:
    """A decode step of `MLALayer` of a package ``course``, queries and records given, in the form that it chooses itself."""

    @torch.no_grad()
    def step(q_nope, q_rope, latent, k_rope, w_uk, w_uv, scale):
        n_heads, latent_dim, nope_dim = w_uk.shape
        layer = package.layers.MLALayer(
            1, n_heads, nope_dim=nope_dim, rope_dim=k_rope.shape[2], head_dim_v=w_uv.shape[2], latent_dim=latent_dim,
            scale=scale,
        ).to(latent.dtype)  # fmt: skip
        layer.w_uk.copy_(w_uk)
        layer.w_uv.copy_(w_uv)
        layer.w_o = _Through(layer.w_o.weight)
        layer.queries = lambda x, positions: (q_nope[:, None], q_rope[:, None])
        layer.record = lambda x, positions: (latent[:, -1:], k_rope[:, -1:])
        cache = layer.new_cache(*latent.shape[:2])
        cache.append(latent=latent[:, :-1], k_rope=k_rope[:, :-1])
        return layer(latent.new_zeros(len(latent), 1, 1), cache)[:, 0].unflatten(-1, (n_heads, -1))

    return step


class _Through(torch.nn.Identity):
    """In the place of W_O: the heads' outputs as they are. The layer asks its weight for dtype and device."""

    def __init__(self, weight: torch.nn.Parameter):
        super().__init__()
        self.weight = weight


def _step_input(draw: Draw, batch: int, tokens: int, n_heads: int | None = None) -> tuple[costs.LatentAttention, list[Tensor]]:
    shape, (q_nope, q_rope, *rest) = _expanded_input(draw, batch, 1, tokens, n_heads)
    return shape, [q_nope[:, :, 0], q_rope[:, :, 0], *rest]


def _step_close(answer: Answer, tensors: list[Tensor], scale: float, hint: str = "") -> None:
    q_nope, q_rope, *rest = tensors
    out, _ = kernels.reference.mla_expanded(q_nope[:, :, None], q_rope[:, :, None], *rest, scale=scale)
    judge.close(answer(*tensors, scale), out[:, :, 0], ("sequence", "head", "column"), "the output", tolerance=1e-9, hint=hint)


@named("same numbers", "in float64 the step gives what expanded keys and values give, head by head")
def step_definition(answer: Answer, draw: Draw) -> None:
    for batch, tokens in ((1, 5), (3, draw.integer(9, 14))):
        _, tensors = _step_input(draw, batch, tokens)
        _step_close(answer, tensors, 0.2, "Every head has its own two matrices and its own softmax")


@named("rotary part", "the rotary parts add their products to the scores")
def step_rotary(answer: Answer, draw: Draw) -> None:
    _, (q_nope, q_rope, latent, k_rope, *matrices) = _step_input(draw, 2, 7)
    q_rope, k_rope = _pointed(draw, q_rope, k_rope)
    _step_close(answer, [torch.zeros_like(q_nope), q_rope, latent, k_rope, *matrices], 0.3, ROTARY_HINT)


@SCALE
def step_scale(answer: Answer, draw: Draw) -> None:
    _, (q_nope, q_rope, *rest) = _step_input(draw, 2, 6)
    axes = ("sequence", "head", "column")
    _scale_counts(lambda queries, scale: answer(*queries, *rest, scale), [q_nope, q_rope], draw, axes, 1e-9)


@named("FLOPs", "a step costs no more than 1.2 times what the absorbed form needs")
def step_flops(answer: Answer, draw: Draw) -> None:
    for batch, tokens in ((1, 160), (2, draw.integer(90, 120))):
        shape, tensors = _step_input(draw, batch, tokens, n_heads=6)
        counted, absorbed = _step_seen(answer, tensors, shape).flops, shape.flops("absorbed", 1, tokens, batch=batch)
        if counted > 1.2 * absorbed:
            raise Wrong(
                f"torch counted {counted / absorbed:.1f} times the FLOPs of the absorbed form over {tokens} tokens. "
                "Which product has all cached tokens on one side and a head's matrix on the other?"
            )


@named("forbidden tensors", "no tensor is as large as the keys or values of all heads; the scores may be made")
def step_tensors(answer: Answer, draw: Draw) -> None:
    for batch, tokens in ((1, 160), (2, draw.integer(180, 220))):
        shape, tensors = _step_input(draw, batch, tokens, n_heads=6)
        largest = _step_seen(answer, tensors, shape).largest
        pairs = batch * tokens * shape.n_heads
        if largest >= pairs * min(shape.nope_dim, shape.head_dim_v):
            raise Wrong(
                f"an operation made a tensor of {largest:,} elements over {batch * tokens} tokens and {shape.n_heads} heads, "
                f"{largest / pairs:.0f} for each pair of token and head. Scores have 1. A key or a value was "
                "expanded, or a product with broadcasting copied the latents for each head: let heads be rows of one product"
            )


def _step_seen(answer: Answer, tensors: list[Tensor], shape: costs.LatentAttention) -> Observed:
    """A call of the step, watched. One that torch sees no products of has no costs to grade."""
    batch, tokens, _ = tensors[2].shape
    seen = answer.observe(*tensors, 0.2)
    judge.tensor(seen.result, (batch, shape.n_heads, shape.head_dim_v), "the output")
    if 2 * seen.flops < shape.flops("absorbed", 1, tokens, batch=batch):
        raise Wrong("torch counted far fewer FLOPs than any right step needs: are the products made by torch, and all of them?")
    return seen


# --- the decode kernel: kernels.mla_decode ---


def _kernel_input(draw: Draw, n_heads: int, tokens: int) -> list[Tensor]:
    batch, latent_dim, rope_dim = 2, 32, 16
    return [
        draw.tensor(batch, n_heads, latent_dim),
        draw.tensor(batch, n_heads, rope_dim, std=2.0),
        draw.tensor(batch, tokens, latent_dim),
        draw.tensor(batch, tokens, rope_dim),
    ]


def _kernel_close(answer: Answer, tensors: list[Tensor], hint: str = "", **options) -> None:
    out, lse = judge.parts(answer(*tensors, **options), 2, "out, lse")
    wanted, wanted_lse = kernels.reference.mla_decode(*tensors, **options)
    judge.close(out, wanted, ("sequence", "head", "column"), "out", tolerance=1e-3, hint=hint)
    judge.close(lse, wanted_lse, ("sequence", "head"), "lse", tolerance=1e-3, hint=hint)


@named("definition", "over a ragged batch the kernel agrees with the definition, whatever lies beyond a length")
def kernel_definition(answer: Answer, draw: Draw) -> None:
    tensors = _kernel_input(draw, draw.choice((3, 5)), 40)
    lengths = torch.tensor([draw.integer(20, 39), draw.integer(2, 16)], dtype=torch.int32, device=draw.device)
    for cache in tensors[2:]:
        for row, length in zip(cache, lengths.tolist(), strict=True):
            row[length:] = torch.nan
    _kernel_close(
        answer, [*tensors, lengths], "Beyond a length the cache held NaN; a NaN here says that it was read", scale=0.15
    )


@SCALE
def kernel_scale(answer: Answer, draw: Draw) -> None:
    q_latent, q_rope, *cache = _kernel_input(draw, 4, 12)

    def call(queries: list[Tensor], scale: float) -> Tensor:
        return judge.parts(answer(*queries, *cache, scale=scale), 2, "out, lse")[0]

    _scale_counts(call, [q_latent, q_rope], draw, ("sequence", "head", "column"), 1e-3)


@named("rotary part", "the rotary parts add their products to the scores")
def kernel_rotary(answer: Answer, draw: Draw) -> None:
    q_latent, q_rope, latent, k_rope = _kernel_input(draw, 4, 12)
    q_rope, k_rope = _pointed(draw, q_rope, k_rope)
    tensors = torch.zeros_like(q_latent), q_rope, latent, k_rope
    out, _ = judge.parts(answer(*tensors, scale=0.2), 2, "out, lse")
    wanted, _ = kernels.reference.mla_decode(*tensors, scale=0.2)
    judge.close(out, wanted, ("sequence", "head", "column"), "out", tolerance=1e-3, hint=ROTARY_HINT)


@named("loaded once", "a record's numbers are requested once, though the latent is key and value")
def kernel_reads(answer: Answer, draw: Draw) -> None:
    tensors = _kernel_input(draw, draw.choice((3, 5, 8)), draw.integer(20, 40))
    seen = answer.observe(*tensors, scale=0.2, num_splits=1)
    for place, name in ((2, "latent"), (3, "k_rope")):
        there, asked = tensors[place].numel(), seen.requested(place)
        if asked < there:
            raise Wrong(f"the kernel requested {asked:,} numbers of {name}, which has {there:,}: some are never read")
        if asked > there:
            raise Wrong(
                f"the kernel requested {asked / there:.2f} numbers of {name} for each that it holds, with all heads in one "
                "tile. A tile that was loaded can be multiplied twice"
            )
