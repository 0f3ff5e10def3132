"""Which KV head a query head reads, what is copied on the way, and what a conversion to fewer KV heads does to weights."""

import torch

from kernels import reference

from ..answers import Answer
from ..draw import Draw
from ..judge import Wrong, close, parts
from ..tasks import Property, named

SHARED = ((8, 2), (12, 3), (6, 2), (10, 2), (12, 4))
"""Query and KV heads. H_kv is neither 1 nor H_q, or a map by modulo is right; nor is it G, or dividing by H_kv is."""

AXES = ("sequence", "query head", "query", "column")


def inputs(
    draw: Draw, heads: tuple[int, int], q_len: int, kv_len: int, head_dim_qk: int = 16, head_dim_v: int = 16, batch: int = 1
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q [B, Hq, M, Dqk], k [B, Hkv, N, Dqk] and v [B, Hkv, N, Dv] in float32."""
    n_q_heads, n_kv_heads = heads
    return (
        draw.tensor(batch, n_q_heads, q_len, head_dim_qk),
        draw.tensor(batch, n_kv_heads, kv_len, head_dim_qk),
        draw.tensor(batch, n_kv_heads, kv_len, head_dim_v),
    )


def output(result):
    """The output of an answer that returns it alone or, first, with a log-sum-exp."""
    return parts(result, 2, "out, lse")[0] if isinstance(result, tuple | list) else result


def name_of_head(n_kv_heads: int, kv_len: int, width: int, draw: Draw) -> torch.Tensor:
    """Values [1, Hkv, N, width] that name their KV head: 1, 2, 3, …"""
    numbers = torch.arange(1.0, n_kv_heads + 1, device=draw.device)
    return numbers.view(1, -1, 1, 1).repeat(1, 1, kv_len, width)


@named("head map", "query head h reads KV head h // G")
def head_map(answer: Answer, draw: Draw) -> None:
    for n_q_heads, n_kv_heads in draw.some(SHARED, 2):
        q, k, _ = inputs(draw, (n_q_heads, n_kv_heads), 1, 5)
        v = name_of_head(n_kv_heads, 5, 16, draw)
        wanted = torch.arange(n_q_heads) // (n_q_heads // n_kv_heads) + 1
        close(
            output(answer(q, torch.zeros_like(k), v)), wanted.view(1, -1, 1, 1).expand(1, -1, 1, 16), AXES, "the output",
            hint=f"{n_q_heads} query heads over {n_kv_heads} KV heads. All keys are zero, so an output is the mean of "
            "its values, "
            "and each value is the number of its KV head, counted from 1: whose values did these heads read?",
        )  # fmt: skip


def same_as_definition(
    name: str,
    about: str,
    *,
    causal: bool = False,
    q_len: tuple = (1, 3),
    kv_len: tuple = (5, 11),
    widths=((16, 16),),
    n: int = 2,
) -> Property:
    """The output, of float32 input, is that of the float64 definition; shapes are drawn from these ranges and widths."""

    @named(name, about)
    def check(answer: Answer, draw: Draw) -> None:
        for heads in draw.some(SHARED, n):
            width_qk, width_v = draw.choice(widths)
            q, k, v = inputs(draw, heads, draw.integer(*q_len), draw.integer(*kv_len), width_qk, width_v)
            wanted, _ = reference.attention(q, k, v, causal=causal)
            close(
                output(answer(q, k, v, causal=causal)), wanted, AXES, "the output",
                hint=f"{heads[0]} query heads over {heads[1]} KV heads, {q.shape[2]} queries, {k.shape[2]} keys, keys "
                f"{width_qk} "
                f"wide, values {width_v}, {'causal' if causal else 'no mask'}.",
            )  # fmt: skip

    return check


@named("no copy", "no new tensor is as large as K copied for every query head")
def no_copy(answer: Answer, draw: Draw) -> None:
    heads = draw.choice(SHARED)
    group_size = heads[0] // heads[1]
    q, k, v = inputs(draw, heads, 1, 96, 32, 32)
    seen = answer.observe(q, k, v)
    wanted, _ = reference.attention(q, k, v)
    close(output(seen.result), wanted, AXES, "the output")
    if seen.largest >= group_size * k.numel():
        raise Wrong(
            f"with {heads[0]} query heads over {heads[1]} KV heads the largest new tensor has {seen.largest / k.numel():.1f} "
            "times the elements of K. Who needs K more than once? A product that broadcasts over heads copies as well, and so "
            "does a reshape of an expanded view"
        )


def _mean(tensor: torch.Tensor, axis: int, n_kv_heads: int) -> torch.Tensor:
    """Heads side by side along an axis, as the mean of each group of neighbours; float64."""
    n_heads = tensor.shape[axis]
    parts_ = tensor.double().unflatten(axis, (n_kv_heads, n_heads // n_kv_heads))
    return parts_.mean(axis + 1 if axis >= 0 else axis)


CONVERTED = ((8, 2), (12, 3), (6, 2), (12, 4))
_GROUPS = "Which heads of the old layer read the keys of one new head? And what becomes of those that are not kept?"


@named("mean of weights", "each new head is the mean of its group of neighbours")
def pooled_weights(answer: Answer, draw: Draw) -> None:
    for n_heads, n_kv_heads in draw.some(CONVERTED, 2):
        weight = draw.tensor(n_heads * 3, 5)
        wanted = _mean(weight.view(n_heads, 3, 5), 0, n_kv_heads)
        got = answer.get("pool_kv_heads")(weight, n_heads, n_kv_heads, "mean")
        close(
            got.view(n_kv_heads, 3, 5) if isinstance(got, torch.Tensor) and got.shape == (n_kv_heads * 3, 5) else got,
            wanted, ("KV head", "row", "column"), "the weight", hint=f"{n_heads} KV heads become {n_kv_heads}. {_GROUPS}",
        )  # fmt: skip


@named("whole layer", "K and V are pooled, each from its own weights and biases; W_Q and W_O stay")
def pooled_layer(answer: Answer, draw: Draw) -> None:
    n_q_heads, n_kv_heads = draw.choice(CONVERTED)
    layer = answer.get("GQALayer")(10, n_q_heads, n_q_heads, 4, bias=True)
    few = answer.get("mha_to_gqa")(layer, n_kv_heads)
    for name in ("w_q", "w_o", "w_k", "w_v"):
        for part in ("weight", "bias"):
            before, after = (each.get(name).get(part) for each in (layer, few))
            wanted = before.detach().double()
            if name in ("w_k", "w_v"):
                wanted = _mean(wanted.unflatten(0, (n_q_heads, 4)), 0, n_kv_heads).flatten(0, 1)
            close(
                after,
                wanted,
                ("row", "column")[: wanted.dim()],
                f"{name}.{part}",
                hint=f"{n_q_heads} heads, {n_kv_heads} kept.",
            )


LAYOUTS = ("out_in", "in_out", "in_heads")


def _laid_out(heads: torch.Tensor, layout: str) -> torch.Tensor:
    """[H, d, d_model], or a bias [H, d], in a layout."""
    if heads.dim() == 2:
        return heads if layout == "in_heads" else heads.flatten()
    if layout == "out_in":
        return heads.flatten(0, 1)
    return heads.flatten(0, 1).T.contiguous() if layout == "in_out" else heads.movedim(2, 0).contiguous()


def converted(name: str, about: str, *, layouts: tuple[str, ...], biases: bool) -> Property:
    """to_gqa(w_k, w_v, b_k, b_v, n_heads=…, n_kv_heads=…, layout=…) gives the four means, in the same layout."""

    @named(name, about)
    def check(answer: Answer, draw: Draw) -> None:
        for layout in layouts:
            n_heads, n_kv_heads = draw.choice(CONVERTED)
            head_dim_qk, head_dim_v, d_model = 4, 6, 10
            shapes = ((head_dim_qk, d_model), (head_dim_v, d_model), (head_dim_qk,), (head_dim_v,))
            heads = [draw.tensor(n_heads, *shape) for shape in shapes]
            given = [_laid_out(x, layout) if biases or x.dim() == 3 else None for x in heads]
            names = ("w_k", "w_v", "b_k", "b_v")
            found = parts(answer(*given, n_heads=n_heads, n_kv_heads=n_kv_heads, layout=layout), 4, ", ".join(names))
            for what, got, each, before in zip(names, found, heads, given, strict=True):
                if before is None:
                    if got is not None:
                        raise Wrong(f"{what} came as None, for there is no bias, so None has to be returned")
                    continue
                wanted = _laid_out(_mean(each, 0, n_kv_heads), layout)
                axes = ("first axis", "second axis", "third axis")[: wanted.dim()]
                hint = f"{n_heads} heads become {n_kv_heads}, keys {head_dim_qk} wide, values {head_dim_v}, d_model {d_model}."
                close(got, wanted, axes, f"{what} in layout {layout!r}", hint=f"{hint} {_GROUPS}")

    return check


def _interleaved(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attention of a model whose query head h reads KV head h mod H_kv, in float64."""
    group_size = q.shape[1] // k.shape[1]
    return reference.attention(q, k.repeat(1, group_size, 1, 1), v.repeat(1, group_size, 1, 1), causal=True)[0]


def reordered(name: str, about: str, *, head_dim_qk: int, head_dim_v: int) -> Property:
    """to_contiguous(w_q, w_o, n_q_heads, n_kv_heads): the layer with a contiguous map does what the interleaved one did."""

    @named(name, about)
    def check(answer: Answer, draw: Draw) -> None:
        n_q_heads, n_kv_heads = draw.choice(SHARED)
        d_model, tokens = 12, 5
        w_q, w_o = draw.tensor(n_q_heads * head_dim_qk, d_model), draw.tensor(d_model, n_q_heads * head_dim_v)
        x = draw.tensor(1, tokens, d_model)
        k, v = draw.tensor(1, n_kv_heads, tokens, head_dim_qk), draw.tensor(1, n_kv_heads, tokens, head_dim_v)
        new = parts(answer(w_q, w_o, n_q_heads, n_kv_heads), 2, "w_q, w_o")
        for part, got, old in zip(("w_q", "w_o"), new, (w_q, w_o), strict=True):
            if not isinstance(got, torch.Tensor) or got.shape != old.shape:
                raise Wrong(f"{part} must keep its shape {list(old.shape)}, got {getattr(got, 'shape', type(got).__name__)}")

        def layer(w_q, w_o, attend):
            q = (x @ w_q.T).unflatten(-1, (n_q_heads, head_dim_qk)).transpose(1, 2)
            return attend(q, k, v).transpose(1, 2).flatten(2) @ w_o.T.double()

        close(
            layer(*(part.to(x) for part in new), lambda *qkv: reference.attention(*qkv, causal=True)[0]),
            layer(w_q, w_o, _interleaved), ("sequence", "token", "column"), "the layer's output",
            hint=f"{n_q_heads} query heads over {n_kv_heads} KV heads, keys {head_dim_qk} wide, values {head_dim_v}. A "
            "query head "
            "may stand anywhere as long as it meets its own keys, and W_O finds its output again.",
        )  # fmt: skip

    return check
