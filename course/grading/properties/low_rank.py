"""A trained model's keys and values through one latent: what a factorisation of a small rank keeps of them."""

import torch
from torch import Tensor

from .. import judge
from ..answers import Answer
from ..draw import Draw
from ..judge import Wrong
from ..tasks import named


def _numbers(draw: Draw, *shape: int, std: float = 1.0) -> Tensor:
    return draw.tensor(*shape, dtype=torch.float64, std=std).cpu()


def _heads(draw: Draw, rank: int | None, small: float = 1.0) -> tuple[Tensor, Tensor]:
    """W_K [H, d_model, d_k] and W_V [H, d_model, d_v] side by side of this rank; the keys ``small`` times as large."""
    d_model, n_heads, key, value = 24, 3, 6, 8
    columns = n_heads * (key + value)
    wide = _numbers(draw, d_model, columns)
    if rank is not None:
        wide = _numbers(draw, d_model, rank) @ _numbers(draw, rank, columns, std=rank**-0.5)
    w_k, w_v = wide.split([n_heads * key, n_heads * value], 1)
    return small * w_k.unflatten(1, (n_heads, key)).transpose(0, 1), w_v.unflatten(1, (n_heads, value)).transpose(0, 1)


def _missed(answer: Answer, w_k: Tensor, w_v: Tensor, latent_dim: int) -> tuple[Tensor, Tensor]:
    """What the latent's keys and values lack, [H, d_model, d_k + d_v], and that of the best latent, squared and summed."""
    names = ("W_DKV", "W_UK", "W_UV")
    matrices = judge.parts(answer(w_k, w_v, latent_dim), 3, ", ".join(names))
    shapes = (w_k.shape[1], latent_dim), (len(w_k), latent_dim, w_k.shape[2]), (len(w_v), latent_dim, w_v.shape[2])
    down, up_k, up_v = (judge.tensor(m, s, n).double() for m, s, n in zip(matrices, shapes, names, strict=True))
    wide = torch.cat([w_k, w_v], -1)
    best = torch.linalg.svdvals(wide.transpose(0, 1).flatten(1))[latent_dim:].square().sum()
    return wide - torch.cat([down @ up_k, down @ up_v], -1), best


@named("exact where it can be", "keys and values of a small common rank come out of the latent unchanged")
def compress_exact(answer: Answer, draw: Draw) -> None:
    rank = draw.integer(5, 9)
    w_k, w_v = _heads(draw, rank)
    missed, _ = _missed(answer, w_k, w_v, rank)
    judge.close(
        -missed, torch.zeros_like(missed), ("head", "row", "column of [W_K W_V]"), "W_DKV [W_UK W_UV] - [W_K W_V]",
        tolerance=1e-8, hint="The rank is that of the keys and values of all heads together",
    )  # fmt: skip


@named("smallest error", "no other latent of this width loses less of [W_K W_V] in squares")
def compress_best(answer: Answer, draw: Draw) -> None:
    for small in (1.0, 0.2):
        w_k, w_v = _heads(draw, None, small)
        missed, best = _missed(answer, w_k, w_v, draw.integer(6, 12))
        excess = float(missed.square().sum() / best)
        if not excess <= 1 + 1e-6:
            raise Wrong(
                f"with keys {small:g} times as large as values the squared error is {excess:.2f} times the smallest that this "
                "width allows. All heads' keys and values share one latent: how are its directions best chosen?"
            )
