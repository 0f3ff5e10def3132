"""Full-sequence attention: prefill and the forward pass of training.

A program owns one tile of query positions of one query head and walks over the keys that its rows may see. Sharing KV heads
changes one line: the index of the KV head. Nothing else differs between MHA, GQA and MQA, and nothing is saved: every query
head still loads every key it needs. (Dao et al. 2022 and Dao 2023, the forward pass.)
"""

import torch

from . import checks, online_softmax, reference
from ._mode import MODE, OPERATORS, Unsupported, device_of, launching, tl, to_kernel, triton
from .attend import attend, load_contiguous
from .online_softmax import LOG2_E
from .plan import ceil_div
from .tiles import forward_tile, pad


@triton.jit(do_not_specialize=["n_q_heads", "group_size", "q_len", "kv_len"])
def attention_kernel(
    q, k, v, out, lse,
    q_strides, k_strides, v_strides,
    scale_log2, n_q_heads, group_size, q_len, kv_len,
    ROWS: tl.constexpr, BLOCK_N: tl.constexpr,
    D_QK: tl.constexpr, D_V: tl.constexpr, PAD_QK: tl.constexpr, PAD_V: tl.constexpr,
    CAUSAL: tl.constexpr, STAGES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """q [B, Hq, M, D_QK], k [B, Hkv, N, D_QK], v [B, Hkv, N, D_V] -> out [B, Hq, M, D_V], lse [B, Hq, M].

    One program owns (sequence, query head, tile of query positions).
    """
    # The last tile of a causal sequence has the most keys: it starts first, so that no long program is left for the end.
    n_tiles = tl.cdiv(q_len, ROWS)
    program = tl.program_id(0)
    row_tile = n_tiles - 1 - program % n_tiles
    head = program // n_tiles % n_q_heads
    sequence = (program // (n_tiles * n_q_heads)).to(tl.int64)
    kv_head = head // group_size

    rows = row_tile * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, PAD_QK)
    q_rows = sequence * q_strides[0] + head.to(tl.int64) * q_strides[1] + rows.to(tl.int64) * q_strides[2]
    q_tile = tl.load(
        q + q_rows[:, None] + columns.to(tl.int64)[None, :] * q_strides[3],
        mask=(rows < q_len)[:, None] & (columns < D_QK)[None, :],
        other=0.0,
    )

    # Bottom-right alignment: the last query sees the last key, so a cached prefix (kv_len > q_len) is seen by all.
    if CAUSAL:
        visible = tl.minimum(rows + 1 + kv_len - q_len, kv_len)
        all_visible = row_tile * ROWS + 1 + kv_len - q_len
        stop = tl.minimum(all_visible + ROWS - 1, kv_len)
    else:
        visible = tl.full([ROWS], 0, tl.int32) + kv_len
        all_visible = kv_len
        stop = kv_len
    source = (
        k + sequence * k_strides[0] + kv_head.to(tl.int64) * k_strides[1],
        v + sequence * v_strides[0] + kv_head.to(tl.int64) * v_strides[1],
        k_strides[2], k_strides[3], v_strides[2], v_strides[3],
    )  # fmt: skip
    m, l, acc = attend(
        q_tile, visible, 0, all_visible, stop, scale_log2, load_contiguous, source,
        ROWS, BLOCK_N, D_QK, D_V, PAD_QK, PAD_V, STAGES, PRECISION,
    )  # fmt: skip
    result, result_lse = online_softmax.finish(m, l, acc)

    out_rows = (sequence * n_q_heads + head) * q_len + rows
    columns = tl.arange(0, PAD_V)
    tl.store(
        out + out_rows[:, None] * D_V + columns[None, :],
        result.to(out.dtype.element_ty),
        mask=(rows < q_len)[:, None] & (columns < D_V)[None, :],
    )
    tl.store(lse + out_rows, result_lse, mask=rows < q_len)


@torch.library.custom_op(f"{OPERATORS}::attention", mutates_args=())
def _attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float, allow_tf32: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    batch, n_q_heads, q_len, head_dim_qk = q.shape
    n_kv_heads, kv_len, head_dim_v = v.shape[1:]
    device = device_of(q)
    checks.runnable(q.dtype, device.capability)
    kq, kk, kv = to_kernel(q, k, v)
    out = kq.new_empty(batch, n_q_heads, q_len, head_dim_v)
    lse = q.new_empty(batch, n_q_heads, q_len, dtype=torch.float32)
    if out.numel() == 0:
        return out.to(q.dtype), lse
    tile = forward_tile(q_len, head_dim_qk, head_dim_v, q.element_size(), device.capability, device.shared_memory)
    programs = batch * n_q_heads * ceil_div(q_len, tile.rows)
    checks.launchable(programs)
    with launching(q):
        attention_kernel[(programs,)](
            kq, kk, kv, out, lse,
            kq.stride(), kk.stride(), kv.stride(),
            scale * LOG2_E, n_q_heads, n_q_heads // n_kv_heads, q_len, kv_len,
            ROWS=tile.rows, BLOCK_N=tile.block_n,
            D_QK=head_dim_qk, D_V=head_dim_v, PAD_QK=pad(head_dim_qk), PAD_V=pad(head_dim_v),
            CAUSAL=causal, STAGES=tile.num_stages, PRECISION="tf32" if allow_tf32 else "ieee",
            num_warps=tile.num_warps,
        )  # fmt: skip
    return out.to(q.dtype), lse


@_attention.register_fake
def _(q, k, v, causal, scale, allow_tf32):
    return q.new_empty(*q.shape[:3], v.shape[-1]), q.new_empty(q.shape[:3], dtype=torch.float32)


def _no_backward(context, *gradients):
    raise Unsupported("attention has no backward yet: train with torch's scaled_dot_product_attention")


_attention.register_autograd(_no_backward)


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    allow_tf32: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """softmax(scale * q kᵀ) v for whole sequences: MHA, GQA and MQA.

    Args:
        q: [B, Hq, M, Dqk].  k: [B, Hkv, N, Dqk].  v: [B, Hkv, N, Dv]. Hkv divides Hq, query head h reads KV head
            h // (Hq / Hkv). Any strides. Dqk and Dv up to 256.
        causal: query i sees key j when j <= i + N - M (aligned bottom-right).
        scale: factor of the scores, 1/sqrt(Dqk) if None.
        allow_tf32: let float32 products use TF32.

    Returns:
        out [B, Hq, M, Dv] in q's dtype and lse [B, Hq, M] float32, the natural log-sum-exp of the scaled scores. A query
        without any key (causal, M > N) gives 0 and -inf.

    Raises:
        TypeError, ValueError: naming the argument.
        Unsupported: widths, dtype or mode that cannot run here; a backward pass.

    Sources: Dao et al. 2022, algorithm 1; Dao 2023 (2307.08691), section 3.1.
    """
    checks.tensors(q=q, k=k, v=v)
    sizes: dict[str, int] = {}
    checks.shape("q", q, "B Hq M Dqk", sizes)
    checks.shape("k", k, "B Hkv N Dqk", sizes)
    checks.shape("v", v, "B Hkv N Dv", sizes)
    checks.heads(sizes["Hq"], sizes["Hkv"])
    checks.widths("attention", sizes["Dqk"], sizes["Dv"], 256, 256)
    checks.flag("causal", causal)
    checks.flag("allow_tf32", allow_tf32)
    scale = checks.softmax_scale(scale, sizes["Dqk"])
    checks.no_tangent("attention", q=q, k=k, v=v)
    if MODE == "reference":
        out, lse = reference.attention(q, k, v, causal=causal, scale=scale)
        return out.to(q.dtype), lse.float()
    return _attention(q, k, v, causal, scale, allow_tf32)
