"""Attention of one query over one head, by one program: the loop of all later kernels in its smallest form.

What changes against `first.py`: the row to be normalised is no longer read but made, score by score, and is never there as a
whole. Tiles of keys and values arrive one after the other and none comes back, so the row carries the three numbers of
`online_softmax.py` instead of its scores. Products are sums over vectors here; `forward.py` and `decode.py` put more rows
beside this one, and their products become matrix products. (Milakov and Gimelshein 2018, section 3, with the values taken
along: Dao et al. 2022, algorithm 1.)
"""

import torch

from . import checks, online_softmax, reference
from ._mode import MODE, Unsupported, device_of, launching, tl, to_kernel, triton
from ._operation import operation
from .online_softmax import LOG2_E
from .tiles import pad

MAX_TILE = 16384  # elements of a tile that a program keeps in registers


@triton.jit(do_not_specialize=["kv_len"])
def one_row_kernel(
    q, k, v, out, lse,
    q_stride, k_strides, v_strides,
    scale_log2, kv_len,
    BLOCK_N: tl.constexpr,
    D_QK: tl.constexpr, D_V: tl.constexpr, PAD_QK: tl.constexpr, PAD_V: tl.constexpr,
):  # fmt: skip
    """q [D_QK], k [N, D_QK], v [N, D_V] -> out [D_V], lse []."""
    columns = tl.arange(0, PAD_QK).to(tl.int64)
    v_columns = tl.arange(0, PAD_V).to(tl.int64)
    q_row = tl.load(q + columns * q_stride, mask=columns < D_QK, other=0.0).to(tl.float32)

    m, l, acc = online_softmax.begin(1, PAD_V)
    for start in range(0, kv_len, BLOCK_N):
        keys = (start + tl.arange(0, BLOCK_N)).to(tl.int64)[:, None]
        in_cache = keys < kv_len
        k_tile = tl.load(k + keys * k_strides[0] + columns * k_strides[1], mask=in_cache & (columns < D_QK), other=0.0)
        v_tile = tl.load(v + keys * v_strides[0] + v_columns * v_strides[1], mask=in_cache & (v_columns < D_V), other=0.0)

        scores = tl.sum(q_row * k_tile, 1, keep_dims=True)
        scores = tl.where(in_cache, scores, float("-inf"))
        m, l, rescale, p = online_softmax.weigh(m, l, tl.trans(scores), scale_log2)
        acc = acc * rescale[:, None] + tl.sum(tl.trans(p) * v_tile, 0, keep_dims=True)

    result, result_lse = online_softmax.finish(m, l, acc)
    tl.store(out + v_columns[None, :], result.to(out.dtype.element_ty), mask=(v_columns < D_V)[None, :])
    tl.store(lse + tl.arange(0, 1), result_lse)


@operation("one_row")
def _one_row(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, block_n: int
) -> tuple[torch.Tensor, torch.Tensor]:
    checks.runnable(q.dtype, device_of(q).capability)
    kv_len, head_dim_v = v.shape
    head_dim_qk = len(q)
    kq, kk, kv = to_kernel(q, k, v)
    out = kq.new_empty(head_dim_v)
    lse = q.new_empty((), dtype=torch.float32)
    with launching(q):
        one_row_kernel[(1,)](
            kq, kk, kv, out, lse,
            kq.stride(0), kk.stride(), kv.stride(),
            scale * LOG2_E, kv_len,
            BLOCK_N=block_n, D_QK=head_dim_qk, D_V=head_dim_v, PAD_QK=pad(head_dim_qk), PAD_V=pad(head_dim_v),
        )  # fmt: skip
    return out.to(q.dtype), lse


@_one_row.register_fake
def _(q, k, v, scale, block_n):
    return q.new_empty(v.shape[1]), q.new_empty((), dtype=torch.float32)


def one_row(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, scale: float | None = None, block_n: int = 16
) -> tuple[torch.Tensor, torch.Tensor]:
    """softmax(scale * q kᵀ) v for one query and one head.

    Args:
        q: [Dqk].  k: [N, Dqk].  v: [N, Dv]. Any strides. Dqk up to 576, Dv up to 512.
        scale: factor of the scores, 1/sqrt(Dqk) if None.
        block_n: keys of a tile, a power of two; times the width padded to a power of two at most 16384. The result does not
            depend on it, up to rounding.

    Returns:
        out [Dv] in q's dtype and lse [] float32, the natural log-sum-exp of the scaled scores; 0 and -inf if N = 0.

    Raises:
        TypeError, ValueError: naming the argument.
        Unsupported: widths, dtype or mode that cannot run here; a gradient is required.
    """
    checks.tensors(q=q, k=k, v=v)
    sizes: dict[str, int] = {}
    checks.shape("q", q, "Dqk", sizes)
    checks.shape("k", k, "N Dqk", sizes)
    checks.shape("v", v, "N Dv", sizes)
    checks.widths("one_row", sizes["Dqk"], sizes["Dv"], 576, 512)
    checks.tokens("one_row", "N", sizes["N"])
    scale = checks.softmax_scale(scale, sizes["Dqk"])
    if isinstance(block_n, bool) or not isinstance(block_n, int):
        raise TypeError(f"block_n must be an integer, got {type(block_n).__name__}")
    if block_n < 1 or block_n & (block_n - 1):
        raise ValueError(f"block_n must be a power of two, got {block_n}")
    width = max(pad(sizes["Dqk"]), pad(sizes["Dv"]))
    if block_n * width > MAX_TILE:
        raise Unsupported(f"one_row keeps a tile in registers: block_n goes up to {MAX_TILE // width} here, got {block_n}")
    checks.no_gradient("one_row", q=q, k=k, v=v)
    checks.no_tangent("one_row", q=q, k=k, v=v)
    if MODE == "reference":
        out, lse = reference.one_row(q, k, v, scale=scale)
        return out.to(q.dtype), lse.float()
    q, scale = checks.positive_scale(q, scale)
    return _one_row(q, k, v, scale, block_n)
