"""Grouped-head decode: one new token, its whole group of query heads in one tile.

What changes against `forward.py`: a *row* is no longer a query position but a query head. The G heads that share a KV head
become the rows of one matrix product, so a program loads each key and value once where G programs loaded it G times. Every row
keeps its own running maximum, sum and accumulator: sharing a load mixes nothing. With q_len new tokens a sequence (drafts to
verify, several tokens predicted at once) the rows are the G * q_len pairs of token and head.

A sequence may also be cut into ``num_splits`` intervals, each its own program, so that a small batch fills the GPU; the partial
results are joined by `merge.py`. (Grouped heads: Ainslie et al. 2023; splitting: Flash-Decoding, Dao et al. 2023.)
"""

from dataclasses import dataclass

import torch

from . import checks, online_softmax, plan, reference
from ._mode import MODE, OPERATORS, Device, Unsupported, device_of, launching, tl, to_kernel, triton
from .attend import attend, load_contiguous
from .merge import launch_merge
from .online_softmax import LOG2_E
from .tiles import Tile, decode_rows, decode_tile, pad

MAX_Q_LEN = 8


@triton.jit(do_not_specialize=["batch", "capacity", "n_kv_heads", "group_size", "num_splits"])
def decode_kernel(
    q, k, v, seq_lens, out, lse,
    q_strides, k_strides, v_strides, seq_lens_stride,
    scale_log2, batch, capacity, n_kv_heads, group_size, q_len, num_splits,
    ROWS: tl.constexpr, BLOCK_N: tl.constexpr,
    D_QK: tl.constexpr, D_V: tl.constexpr, PAD_QK: tl.constexpr, PAD_V: tl.constexpr,
    STAGES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """q [B, T, Hq, D_QK], k [B, Hkv, L, D_QK], v [B, Hkv, L, D_V] -> out [S, B, T, Hq, D_V], lse [S, B, T, Hq].

    One program owns (sequence, KV head, row tile, split). Row r of a KV head is token r // G, head r % G of the group.
    """
    # Neighbouring programs take the row tiles of one interval, so that a second tile finds the keys in the L2.
    n_rows = group_size * q_len
    n_tiles = tl.cdiv(n_rows, ROWS)
    program = tl.program_id(0)
    row_tile = program % n_tiles
    split = program // n_tiles % num_splits
    kv_head = program // (n_tiles * num_splits) % n_kv_heads
    sequence = (program // (n_tiles * num_splits * n_kv_heads)).to(tl.int64)

    # A length outside the cache must not lead outside the cache.
    kv_len = capacity
    if seq_lens is not None:
        kv_len = tl.minimum(tl.maximum(tl.load(seq_lens + sequence * seq_lens_stride), 0), capacity).to(tl.int32)
    blocks_per_split = tl.cdiv(tl.cdiv(kv_len, BLOCK_N), num_splits)
    start = split * blocks_per_split * BLOCK_N
    stop = tl.minimum(start + blocks_per_split * BLOCK_N, kv_len)

    # The rows of this tile: a tile ends at its group, so no row ever meets another KV head's keys.
    rows = row_tile * ROWS + tl.arange(0, ROWS)
    token = rows // group_size
    head = kv_head * group_size + rows % group_size
    in_group = rows < n_rows
    columns = tl.arange(0, PAD_QK)
    q_rows = sequence * q_strides[0] + token.to(tl.int64) * q_strides[1] + head.to(tl.int64) * q_strides[2]
    q_tile = tl.load(
        q + q_rows[:, None] + columns.to(tl.int64)[None, :] * q_strides[3],
        mask=in_group[:, None] & (columns < D_QK)[None, :],
        other=0.0,
    )

    # Of the q_len new tokens, all in the cache already, token t sees the keys up to its own.
    visible = kv_len - q_len + token + 1
    source = (
        k + sequence * k_strides[0] + kv_head.to(tl.int64) * k_strides[1],
        v + sequence * v_strides[0] + kv_head.to(tl.int64) * v_strides[1],
        k_strides[2], k_strides[3], v_strides[2], v_strides[3],
    )  # fmt: skip
    m, l, acc = attend(
        q_tile, visible, start, kv_len - q_len + 1, stop, scale_log2, load_contiguous, source,
        ROWS, BLOCK_N, D_QK, D_V, PAD_QK, PAD_V, STAGES, PRECISION,
    )  # fmt: skip
    result, result_lse = online_softmax.finish(m, l, acc)

    out_rows = ((split.to(tl.int64) * batch + sequence) * q_len + token) * (n_kv_heads * group_size) + head
    columns = tl.arange(0, PAD_V)
    tl.store(
        out + out_rows[:, None] * D_V + columns[None, :],
        result.to(out.dtype.element_ty),
        mask=in_group[:, None] & (columns < D_V)[None, :],
    )
    tl.store(lse + out_rows, result_lse, mask=in_group)


@dataclass(frozen=True)
class DecodeLaunch:
    """How a decode step is launched: its tile, the row tiles of one sequence, its splits, and the programs in all."""

    tile: Tile
    row_tiles: int
    num_splits: int
    programs: int


def plan_decode(
    batch: int,
    n_q_heads: int,
    n_kv_heads: int,
    context_len: int,
    head_dim_qk: int,
    head_dim_v: int,
    itemsize: int,
    device: Device,
    *,
    q_len: int = 1,
    num_splits: int | None = None,
) -> DecodeLaunch:
    """The launch that ``decode`` makes for these shapes on ``device``, without a tensor; ``context_len`` is the capacity."""
    rows = n_q_heads // n_kv_heads * q_len
    tile_rows = decode_rows(rows, head_dim_v, itemsize, device.capability)
    row_tiles = plan.head_tiles(n_q_heads, n_kv_heads, block_h=tile_rows, q_len=q_len)
    if num_splits is None:
        num_splits = plan.num_splits(batch, row_tiles, context_len, device.sm_count)
    alone = batch * row_tiles * num_splits <= device.sm_count
    tile = decode_tile(
        rows, head_dim_qk, head_dim_v, itemsize, device.capability, device.shared_memory, context_len // num_splits, alone
    )
    row_tiles = plan.head_tiles(n_q_heads, n_kv_heads, block_h=tile.rows, q_len=q_len)
    return DecodeLaunch(tile, row_tiles, num_splits, batch * row_tiles * num_splits)


@torch.library.custom_op(f"{OPERATORS}::decode", mutates_args=("workspace",))
def _decode(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    seq_lens: torch.Tensor | None,
    workspace: torch.Tensor | None,
    scale: float,
    num_splits: int | None,
    validate: bool,
    allow_tf32: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    batch, q_len, n_q_heads, head_dim_qk = q.shape
    n_kv_heads, capacity, head_dim_v = v.shape[1:]
    group_size = n_q_heads // n_kv_heads
    device = device_of(q)
    checks.runnable(q.dtype, device.capability)
    if validate or not q.is_cuda:
        checks.length_values(seq_lens, capacity)

    kq, kk, kv = to_kernel(q, k, v)
    launch = plan_decode(
        batch, n_q_heads, n_kv_heads, capacity, head_dim_qk, head_dim_v, q.element_size(), device,
        q_len=q_len, num_splits=num_splits,
    )  # fmt: skip
    tile, num_splits = launch.tile, launch.num_splits
    elements = plan.decode_workspace(batch, q_len, n_q_heads, head_dim_v, num_splits)
    checks.workspace_size(workspace, elements)
    checks.launchable(launch.programs)

    out = kq.new_empty(batch, q_len, n_q_heads, head_dim_v)
    lse = q.new_empty(batch, q_len, n_q_heads, dtype=torch.float32)
    if out.numel() == 0:
        return out.to(q.dtype), lse
    if num_splits == 1:
        partial_out, partial_lse = out, lse
    else:
        if workspace is None:
            workspace = q.new_empty(elements, dtype=torch.float32)
        partial_out, partial_lse = workspace[:elements].split(
            [elements // (head_dim_v + 1) * head_dim_v, lse.numel() * num_splits]
        )
    with launching(q):
        decode_kernel[(launch.programs,)](
            kq, kk, kv, seq_lens, partial_out, partial_lse,
            kq.stride(), kk.stride(), kv.stride(), 1 if seq_lens is None else seq_lens.stride(0),
            scale * LOG2_E, batch, capacity, n_kv_heads, group_size, q_len, num_splits,
            ROWS=tile.rows, BLOCK_N=tile.block_n,
            D_QK=head_dim_qk, D_V=head_dim_v, PAD_QK=pad(head_dim_qk), PAD_V=pad(head_dim_v),
            STAGES=tile.num_stages, PRECISION="tf32" if allow_tf32 else "ieee",
            num_warps=tile.num_warps,
        )  # fmt: skip
    if num_splits > 1:
        launch_merge(
            partial_out.view(num_splits, -1, head_dim_v), partial_lse.view(num_splits, -1),
            out.view(-1, head_dim_v), lse.view(-1),
        )  # fmt: skip
    return out.to(q.dtype), lse


@_decode.register_fake
def _(q, k, v, seq_lens, workspace, scale, num_splits, validate, allow_tf32):
    return q.new_empty(*q.shape[:3], v.shape[-1]), q.new_empty(q.shape[:3], dtype=torch.float32)


def decode(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    seq_lens: torch.Tensor | None = None,
    *,
    scale: float | None = None,
    num_splits: int | None = None,
    workspace: torch.Tensor | None = None,
    validate: bool = False,
    allow_tf32: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of new tokens over a contiguous cache that already holds their own keys and values.

    Args:
        q: [B, Hq, Dqk], or [B, T, Hq, Dqk]: T <= 8 new tokens, the last T of the cache, causal among themselves.
        k: [B, Hkv, L, Dqk] and v: [B, Hkv, L, Dv]: the cache, capacity L; Hkv divides Hq, query head h reads KV head
            h // (Hq / Hkv). Any strides. Dqk <= 576, Dv <= 512.
        seq_lens: [B] int32 (or int64) tokens in each sequence, 0 to L; None means L everywhere. What lies beyond a length
            is never read.
        scale: factor of the scores, 1/sqrt(Dqk) if None.
        num_splits: intervals a sequence is cut into; None chooses from the shapes and the GPU. It never depends on seq_lens.
        workspace: float32 memory for partial results, one axis of at least ``plan.decode_workspace`` elements; allocated if
            None.
        validate: on a GPU, read seq_lens and check its values (waits for the GPU). On a CPU they are always checked.
        allow_tf32: let float32 products use TF32.

    Returns:
        out [B, (T,) Hq, Dv] in q's dtype and lse [B, (T,) Hq] float32, the natural log-sum-exp of the scaled scores. A token
        without any key gives 0 and -inf.

    Raises:
        TypeError, ValueError: naming the argument.
        Unsupported: widths, dtype or mode that cannot run here; a gradient is required.

    Sources: Ainslie et al. 2023, section 2.2 (groups); Flash-Decoding, Dao et al. 2023 (splits and merge).
    """
    checks.tensors(q=q, k=k, v=v)
    if q.dim() not in (3, 4):
        raise ValueError(f"q must have shape [B, Hq, Dqk] or [B, T, Hq, Dqk], got {list(q.shape)}")
    sizes: dict[str, int] = {}
    checks.shape("q", q, "B Hq Dqk" if q.dim() == 3 else "B T Hq Dqk", sizes)
    checks.shape("k", k, "B Hkv L Dqk", sizes)
    checks.shape("v", v, "B Hkv L Dv", sizes)
    checks.heads(sizes["Hq"], sizes["Hkv"])
    checks.widths("decode", sizes["Dqk"], sizes["Dv"], 576, 512)
    if sizes.get("T", 1) == 0:
        raise ValueError("q must hold at least one new token a sequence, got T = 0")
    if sizes.get("T", 1) > MAX_Q_LEN:
        raise Unsupported(f"decode takes 1 to {MAX_Q_LEN} new tokens a sequence, got T = {sizes['T']}: use attention for more")
    scale = checks.softmax_scale(scale, sizes["Dqk"])
    checks.positive("num_splits", num_splits)
    checks.lengths(seq_lens, sizes["B"], q.device)
    checks.flag("validate", validate)
    checks.flag("allow_tf32", allow_tf32)
    checks.workspace(workspace, q.device)
    checks.no_gradient("decode", q=q, k=k, v=v, workspace=workspace)
    checks.no_tangent("decode", q=q, k=k, v=v)
    if MODE == "reference":
        checks.length_values(seq_lens, sizes["L"])
        out, lse = reference.decode(q, k, v, seq_lens, scale=scale)
        return out.to(q.dtype), lse.float()
    tokens = q if q.dim() == 4 else q.unsqueeze(1)
    out, lse = _decode(tokens, k, v, seq_lens, workspace, scale, num_splits, validate, allow_tf32)
    return (out, lse) if q.dim() == 4 else (out.squeeze(1), lse.squeeze(1))
