"""Gradients of attention: sums over a group, the strides of dO, lse as an output, and what is put into memory on the way."""

import math
from typing import NamedTuple

import torch

from kernels import reference

from ..answers import Answer
from ..draw import Draw
from ..judge import Wrong, close, parts
from ..tasks import Property, named
from .full_sequence import needs_triton
from .heads import inputs

GROUPS = ((3, 1), (4, 2))
"""Query and KV heads. G > 1, or a gradient that the last head of a group overwrites is right; with H_kv = 1 any map is."""
WHOLE = (16, 8)
"""So many KV heads that without a GPU a program of the shipped kernel walks its whole group; with fewer, several share it."""

QUERY_AXES = ("sequence", "query head", "query", "column")
KEY_AXES = ("sequence", "KV head", "key", "column")


class Case(NamedTuple):
    """What a backward pass is given, float32, causal, and the gradients that it has to return, float64."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    out: torch.Tensor
    lse: torch.Tensor
    d_out: torch.Tensor
    d_lse: torch.Tensor | None
    scale: float
    wanted: tuple[torch.Tensor, torch.Tensor, torch.Tensor]

    def __str__(self):
        heads = f"{self.q.shape[1]} query heads over {self.k.shape[1]}, {self.q.shape[2]} queries, {self.k.shape[2]} keys"
        return f"{heads}, keys {self.q.shape[3]} wide, values {self.v.shape[3]}, causal."

    @property
    def delta(self) -> torch.Tensor:
        """rowsum(dO * O), [B, Hq, M]."""
        return (self.d_out.double() * self.out.double()).sum(-1).float()


def case(draw: Draw, heads, q_len: int, kv_len: int, head_dim_qk: int = 16, head_dim_v: int = 16, **also) -> Case:
    """Random tensors of these shapes. ``also``: d_out, the tensor to use; d_lse=True, a gradient of lse as well."""
    q, k, v = inputs(draw, heads, q_len, kv_len, head_dim_qk, head_dim_v)
    leaves = [x.double().requires_grad_() for x in (q, k, v)]
    out, lse = reference.attention(*leaves, causal=True)
    d_out = also.get("d_out")
    if d_out is None:
        d_out = draw.tensor(*out.shape)
    d_lse = draw.tensor(*lse.shape) if also.get("d_lse") else None
    loss = (out * d_out.double()).sum()
    if d_lse is not None:
        loss = loss + (lse * d_lse.double()).sum()
    wanted = torch.autograd.grad(loss, leaves)
    return Case(q, k, v, out.detach().float(), lse.detach().float(), d_out, d_lse, head_dim_qk**-0.5, wanted)


def all_three(answer: Answer, one: Case):
    """dq, dk, dv of an answer with the arguments of ``kernels.backward.attention_backward``."""
    needs_triton()
    return answer(one.q, one.k, one.v, one.out, one.lse, one.d_out, one.d_lse, True, one.scale, False)


def keys_and_values(answer: Answer, one: Case):
    """dk, dv of an answer dk_dv(q, k, v, d_out, lse, delta)."""
    needs_triton()
    return answer(one.q, one.k, one.v, one.d_out, one.lse, one.delta)


def in_torch(answer: Answer, one: Case):
    """dq, dk, dv of an answer gradients(q, k, v, out, lse, d_out, d_lse)."""
    return answer(one.q, one.k, one.v, one.out, one.lse, one.d_out, one.d_lse)


def judged(found, one: Case, hint: str = "") -> None:
    """dq, dk and dv, or dk and dv alone, against what is wanted."""
    names = ("dq", "dk", "dv") if isinstance(found, tuple | list) and len(found) == 3 else ("dk", "dv")
    for name, got in zip(names, parts(found, len(names), ", ".join(names)), strict=True):
        wanted = one.wanted[("dq", "dk", "dv").index(name)]
        close(got, wanted, QUERY_AXES if name == "dq" else KEY_AXES, name, hint=f"{one} {hint}".rstrip(), tolerance=3e-4)


def _of_one_head(one: Case, member: int) -> torch.Tensor:
    """dk, float64, of one query head of each group."""
    group_size = one.q.shape[1] // one.k.shape[1]
    q, d_out = (x.double()[:, member::group_size] for x in (one.q, one.d_out))
    k = one.k.double().requires_grad_()
    return torch.autograd.grad(reference.attention(q, k, one.v, causal=True)[0], k, d_out)[0]


def group_sum(call, n: int = 1) -> Property:
    """dk and dv of a shared head are sums over the query heads that share it."""

    @named("sum over a group", "a KV head's gradient is the sum over the query heads that share it")
    def check(answer: Answer, draw: Draw) -> None:
        for heads in (*draw.some(GROUPS, n), WHOLE):
            one = case(draw, heads, 7, 11)
            found = call(answer, one)
            dk = found[-2] if isinstance(found, tuple | list) and len(found) >= 2 else None
            for member, which in ((-1, "last"), (0, "first")):
                alone = _of_one_head(one, member % (heads[0] // heads[1]))
                if isinstance(dk, torch.Tensor) and dk.shape == alone.shape and torch.allclose(dk.double(), alone, 1e-3, 1e-4):
                    raise Wrong(f"dk is what the {which} query head of each group gives. {one} What became of the other heads?")
            judged(found, one)

    return check


def definition(name: str, about: str, call, *, lengths: tuple, widths: tuple = ((16, 16),)) -> Property:
    """The gradients are those of the float64 definition, for one of these (M, N) and widths (4 query heads over 2)."""

    @named(name, about)
    def check(answer: Answer, draw: Draw) -> None:
        one = case(draw, (4, 2), *draw.choice(lengths), *draw.choice(widths))
        judged(call(answer, one), one)

    return check


def _spread(draw: Draw, shape: tuple) -> list[tuple[str, torch.Tensor]]:
    """Gradients of an output of this shape as they come in practice, none of them laid out as the output is."""
    batch, n_q_heads, q_len, width = shape
    memory = torch.full((2 * math.prod(shape),), math.nan, device=draw.device)
    memory[0] = 1.0
    return [
        ("of a transposed output", draw.tensor(batch, q_len, n_q_heads, width).transpose(1, 2)),
        ("of out.sum(), one number with strides of 0", memory.as_strided(shape, (0, 0, 0, 0))),
    ]


@named("strides of dO", "dO may lie in memory in another way than O")
def strides(answer: Answer, draw: Draw) -> None:
    what, d_out = draw.choice(_spread(draw, (1, 2, 6, 16)))
    one = case(draw, (2, 1), 6, 9, d_out=d_out)
    judged(all_three(answer, one), one, f"dO is the gradient {what}: its strides are {list(d_out.stride())}.")


def through_lse(call) -> Property:
    """lse is an output too, and its gradient reaches q and k."""

    @named("gradient of lse", "what depends on lse sends a gradient as well")
    def check(answer: Answer, draw: Draw) -> None:
        one = case(draw, (2, 1), draw.integer(3, 6), draw.integer(7, 11), d_lse=True)
        judged(call(answer, one), one, "lse has a gradient here. When a score moves, by how much does lse move?")

    return check


def nothing_large(call, name: str, about: str) -> Property:
    """No tensor of H_q * N * d elements is made, nor one of H_q * M * N; 24 queries, 40 keys, 16 wide."""

    @named(name, about)
    def check(answer: Answer, draw: Draw) -> None:
        heads = draw.choice(GROUPS)
        one, seen = case(draw, heads, 24, 40, d_lse=call is in_torch), []

        def observed(*args):
            seen.append(answer.observe(*args))
            return seen[0].result

        judged(call(observed, one), one)
        limit = heads[0] * 40 * 16
        if seen[0].largest >= limit:
            raise Wrong(
                f"{one} The largest new tensor has {seen[0].largest} elements; one with a key's width for each key and each "
                f"query head has {limit}, the weights of all heads {heads[0] * 24 * 40}. Which of your tensors is that large?"
            )

    return check
