"""Full-sequence attention: prefill and the forward pass of training.

A program owns one tile of query positions of one query head and walks over the keys that its rows may see. Sharing KV heads
changes one line: the index of the KV head. Nothing else differs between MHA, GQA and MQA, and nothing is saved: every query
head still loads every key it needs. (Dao et al. 2022 and Dao 2023, the forward pass.)
"""

import torch

from . import backward, checks, decode_hopper, forward_hopper, reference
from ._mode import MODE, device_of, launching, tl, to_kernel, triton
from ._operation import operation
from .attend import Cache, attend, layout_of, load_contiguous, load_queries, store_states
from .decode import launch as launch_decode
from .hopper import available, describable
from .online_softmax import LOG2_E
from .plan import ceil_div, head_tiles
from .tiles import forward_tile, split_width

# Splits are worth their merge from so many keys on, and from so many keys times splits. Measured on an H200.
MANY_KEYS, MANY_SPLIT_KEYS = 1024, 16384


@triton.jit
def load_described(cache, sequence, kv_head, start, stop, BLOCK_N: tl.constexpr, LAYOUT: tl.constexpr, MASKED: tl.constexpr):
    """``load_contiguous`` by the GPU's copy engine, from tensor descriptors: rows and columns outside the tensor read 0.

    The engine takes a whole tile from one instruction of one thread, where pointers cost every thread address arithmetic.
    """
    place = [sequence.to(tl.int32), kv_head, tl.cast(start, tl.int32), 0]
    k = cache.k.load(place).reshape(BLOCK_N, LAYOUT.padded_head)
    k_tail = k
    if LAYOUT.tail > 0:
        k_tail = cache.k_tail.load(place).reshape(BLOCK_N, LAYOUT.padded_tail)
    v = cache.v.load(place).reshape(BLOCK_N, LAYOUT.padded_v)
    return k, k, k_tail, v, k, k, k


@triton.jit(do_not_specialize=["n_q_heads", "group_size", "q_len", "kv_len"])
def attention_kernel(
    q, k, k_tail, v, out, lse,
    q_strides, kv_strides,
    scale_log2, n_q_heads, group_size, q_len, kv_len,
    load_tile: tl.constexpr, ROWS: tl.constexpr, BLOCK_N: tl.constexpr, LAYOUT: tl.constexpr,
    CAUSAL: tl.constexpr, STAGES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """q [B, Hq, M, Dqk], k [B, Hkv, N, Dqk], v [B, Hkv, N, Dv] -> out [B, Hq, M, Dv], lse [B, Hq, M].

    One program owns (sequence, query head, tile of query positions). k, its second block of columns and v are pointers, with
    strides, or tensor descriptors, which know their own.
    """
    # The last tile of a causal sequence has the most keys: it starts first, so that no long program is left for the end.
    n_tiles = tl.cdiv(q_len, ROWS)
    program = tl.program_id(0)
    row_tile = n_tiles - 1 - program % n_tiles
    head = program // n_tiles % n_q_heads
    sequence = (program // (n_tiles * n_q_heads)).to(tl.int64)
    kv_head = head // group_size

    rows = row_tile * ROWS + tl.arange(0, ROWS)
    live = rows < q_len
    q_rows = sequence * q_strides[0] + head.to(tl.int64) * q_strides[1] + rows.to(tl.int64) * q_strides[2]
    q_tile = load_queries(q, q_rows, q_strides[3], live, LAYOUT.head, LAYOUT.padded_head)
    q_tail_tile = q_tile
    if LAYOUT.tail > 0:
        q_tail_tile = load_queries(q + LAYOUT.head * q_strides[3], q_rows, q_strides[3], live, LAYOUT.tail, LAYOUT.padded_tail)

    # Bottom-right alignment: the last query sees the last key, so a cached prefix (kv_len > q_len) is seen by all.
    if CAUSAL:
        visible = tl.minimum(rows + 1 + kv_len - q_len, kv_len)
        all_visible = row_tile * ROWS + 1 + kv_len - q_len
        stop = tl.minimum(all_visible + ROWS - 1, kv_len)
    else:
        visible = tl.full([ROWS], 0, tl.int32) + kv_len
        all_visible = kv_len
        stop = kv_len
    cache = Cache(
        k, k_tail, v, None, None, None,
        kv_strides[0], kv_strides[1], kv_strides[2], kv_strides[3], kv_strides[4], kv_strides[5],
    )  # fmt: skip
    m, l, acc, _ = attend(
        q_tile, q_tile, q_tail_tile, visible, load_tile, cache, sequence, kv_head, 0, all_visible, stop, scale_log2,
        ROWS, BLOCK_N, LAYOUT, STAGES, PRECISION,
    )  # fmt: skip
    store_states(out, lse, (sequence * n_q_heads + head) * q_len + rows, live, m, l, acc, LAYOUT, 1, 0)


def describe(tensor: torch.Tensor, rows: int, columns: int):
    """Tensor descriptor of [B, H, N, D] in blocks of ``rows`` tokens of one head."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    # The step along an axis of one entry is never taken, but has to look like one.
    strides = [stride if size > 1 else 16 for size, stride in zip(tensor.shape[:-1], tensor.stride()[:-1], strict=True)]
    return TensorDescriptor(tensor, list(tensor.shape), [*strides, 1], [1, 1, rows, columns])


def few_programs(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> bool:
    """Whether a causal call is better done as the decode step that it is: new tokens over a cache that holds their keys.

    With a program for each query head and tile of rows, few new tokens of few sequences leave most of a GPU idle. The kernel of
    `decode_hopper.py` takes the rows of a whole group into one tile, and its launch cuts the keys into splits.
    """
    batch, n_q_heads, q_len, head_dim_qk = q.shape
    n_kv_heads, kv_len, head_dim_v = v.shape[1:]
    device = device_of(q)
    if not available(q, k, v):
        return False
    step = n_q_heads // n_kv_heads, q_len, head_dim_qk, head_dim_v, q.element_size(), device
    row_tiles = batch * head_tiles(n_q_heads, n_kv_heads, block_h=decode_hopper.TILE.rows, q_len=q_len)
    splits = device.sm_count // max(1, row_tiles)
    return splits > 1 and kv_len >= max(MANY_KEYS, MANY_SPLIT_KEYS // splits) and decode_hopper.faster(*step)


@operation("attention")
def _attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float, allow_tf32: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    batch, n_q_heads, q_len, head_dim_qk = q.shape
    n_kv_heads, kv_len, head_dim_v = v.shape[1:]
    device = device_of(q)
    checks.runnable(q.dtype, device.capability)
    out_dtype = q.dtype
    if causal and few_programs(q, k, v):
        states = launch_decode(
            "contiguous", q.transpose(1, 2), None, k, None, v, *[None] * 7, scale, None, False, allow_tf32
        )  # fmt: skip
        return tuple(state.transpose(1, 2).contiguous() for state in states)
    q, k, v = to_kernel(q, k, v)
    out = q.new_empty(batch, n_q_heads, q_len, head_dim_v)
    lse = q.new_empty(batch, n_q_heads, q_len, dtype=torch.float32)
    if out.numel() == 0:
        return out.to(out_dtype), lse
    if forward_hopper.faster(q, k, v):
        forward_hopper.launch(q, k, v, out, lse, causal, scale)
        return out, lse
    head, tail = split_width(head_dim_qk)
    k_tail = k[..., head:] if tail else None
    k = k[..., :head]
    layout = layout_of(head, tail, head_dim_v, k, k_tail, v)
    blocks = {"k": (k, layout.padded_head), "k_tail": (k_tail, layout.padded_tail), "v": (v, layout.padded_v)}
    described = device.capability >= (9, 0) and all(describable(t) for t, _ in blocks.values() if t is not None)
    tile = forward_tile(q_len, head_dim_qk, head_dim_v, q.element_size(), device.capability, device.shared_memory)
    described = described and tile.rows > 16  # few rows are bound by memory, where pointers are as good
    programs = batch * n_q_heads * ceil_div(q_len, tile.rows)
    checks.launchable(programs)
    sources = {
        name: describe(tensor, tile.block_n, columns) if described and tensor is not None else tensor
        for name, (tensor, columns) in blocks.items()
    }
    strides = [stride for tensor, _ in blocks.values() for stride in ((0, 0) if tensor is None else tensor.stride()[:2])]
    with launching(q):
        attention_kernel[(programs,)](
            q, *sources.values(), out, lse,
            q.stride(), tuple(strides),
            scale * LOG2_E, n_q_heads, n_q_heads // n_kv_heads, q_len, kv_len,
            load_tile=load_described if described else load_contiguous,
            ROWS=tile.rows, BLOCK_N=tile.block_n, LAYOUT=layout,
            CAUSAL=causal, STAGES=tile.num_stages, PRECISION="tf32" if allow_tf32 else "ieee",
            num_warps=tile.num_warps,
        )  # fmt: skip
    return out.to(out_dtype), lse


@_attention.register_fake
def _(q, k, v, causal, scale, allow_tf32):
    return q.new_empty(*q.shape[:3], v.shape[-1]), q.new_empty(q.shape[:3], dtype=torch.float32)


_attention.register_autograd(backward.backward, setup_context=backward.setup_context)


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    allow_tf32: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """softmax(scale * q kᵀ) v for whole sequences: MHA, GQA, MQA and MLA's expanded form. Differentiable.

    Hopper GPUs have forms of their own for the usual widths, `forward_hopper.py` and `backward_hopper.py`, and do a chunk of
    few tokens over many keys as a decode step. There gradients are added up in any order, so that they may differ in their last
    bits from one call to the next, unless ``torch.use_deterministic_algorithms`` is set.

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
        Unsupported: widths, dtype or mode that cannot run here.

    Sources: Dao et al. 2022, algorithm 1; Dao 2023 (2307.08691), section 3.1.
    """
    named = {"q": (q, "B Hq M Dqk"), "k": (k, "B Hkv N Dqk"), "v": (v, "B Hkv N Dv")}
    sizes = checks.sequences("attention", causal, allow_tf32, **named)
    scale = checks.softmax_scale(scale, sizes["Dqk"])
    checks.no_tangent("attention", q=q, k=k, v=v)
    if MODE == "reference":
        out, lse = reference.attention(q, k, v, causal=causal, scale=scale)
        return out.to(q.dtype), lse.float()
    q, scale = checks.positive_scale(q, scale)
    return _attention(q, k, v, causal, scale, allow_tf32)
