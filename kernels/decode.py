"""Decode: new tokens over a cache, one program for each (sequence, KV head, row tile, split).

A small batch has fewer KV heads than the GPU has processors, so a sequence may be cut into ``num_splits`` intervals, each its
own program of `interval.py`; the partial results are joined by `merge.py`. A cache that lies elsewhere or holds something else
(`paged.py`, `mla.py`) is the same launch with another ``load_tile``, and an 8-bit cache only brings its scales along. On Hopper
many rows go to `decode_hopper.py` and `mla_hopper.py`, in the place of the kernel here.
(Flash-Decoding, Dao et al. 2023.)
"""

import functools
from dataclasses import dataclass

import torch

from . import checks, decode_hopper, hopper, mla_hopper, plan, reference, work_list
from ._mode import MODE, Device, device_of, launching, tl, to_kernel, triton
from ._operation import operation
from .attend import cache_of, layout_of, load_contiguous
from .interval import attend_interval, length_of
from .merge import launch_merge
from .online_softmax import LOG2_E
from .tiles import Tile, decode_rows, decode_tile, split_width

MAX_Q_LEN = 8
# How tiles are found; `paged.py` adds its way.
LOADERS = {"contiguous": load_contiguous}
# What the arguments of ``launch``, from q to slots without the part that lies in another, are called where they come from: for
# each way of finding tiles, over keys and values or over latents.
ARGUMENTS = {
    ("contiguous", False): "q - k v k_scale v_scale - seq_lens",
    ("contiguous", True): "q_latent q_rope latent k_rope latent_scale - - seq_lens",
    ("paged", False): "q - k_pages v_pages k_scale v_scale block_table seq_lens work.bounds work.slots",
    ("paged", True): "q_latent q_rope latent_pages k_rope_pages latent_scale - block_table seq_lens work.bounds work.slots",
}


@triton.jit(do_not_specialize=["batch", "capacity", "n_kv_heads", "group_size", "q_len", "num_splits"])
def decode_kernel(
    q, q_tail, cache, seq_lens, out, lse, q_strides, q_tail_strides, seq_lens_stride,
    scale_log2, batch, capacity, n_kv_heads, group_size, q_len, num_splits,
    load_tile: tl.constexpr, ROWS: tl.constexpr, BLOCK_N: tl.constexpr, LAYOUT: tl.constexpr,
    STAGES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Queries [B, T, Hq, …] over a cache -> out [S, B, T, Hq, v], lse [S, B, T, Hq].

    One program owns (sequence, KV head, row tile, split).
    """
    # Neighbouring programs take the row tiles of one interval, so that a second tile finds the keys in the L2.
    n_tiles = tl.cdiv(group_size * q_len, ROWS)
    program = tl.program_id(0)
    row_tile = program % n_tiles
    split = program // n_tiles % num_splits
    kv_head = program // (n_tiles * num_splits) % n_kv_heads
    sequence = (program // (n_tiles * num_splits * n_kv_heads)).to(tl.int64)

    kv_len = length_of(seq_lens, seq_lens_stride, sequence, capacity)
    blocks_per_split = tl.cdiv(tl.cdiv(kv_len, BLOCK_N), num_splits)
    start = split * blocks_per_split * BLOCK_N
    stop = tl.minimum(start + blocks_per_split * BLOCK_N, kv_len)
    attend_interval(
        q, q_tail, q_strides, q_tail_strides, load_tile, cache, out, lse, split.to(tl.int64) * batch + sequence,
        sequence, kv_head, row_tile, start, stop, kv_len, scale_log2, n_kv_heads * group_size, group_size, q_len,
        ROWS, BLOCK_N, LAYOUT, STAGES, PRECISION,
    )  # fmt: skip


@dataclass(frozen=True)
class DecodeLaunch:
    """How a decode step is launched: its tile, the row tiles of one sequence, its splits, and the programs in all."""

    tile: Tile
    row_tiles: int
    num_splits: int
    programs: int


@functools.lru_cache(maxsize=1024)  # asked at every step, with the same numbers
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
    shared_width: int = 0,
    page_size: int | None = None,
    eight_bits: bool = False,
    portable: bool = False,
) -> DecodeLaunch:
    """The launch that ``decode`` makes for these shapes on ``device``, without a tensor; ``context_len`` is the capacity.

    ``itemsize``, ``shared_width`` (MLA's latent), ``page_size`` and ``eight_bits``: as in ``tiles.decode_tile``.
    ``portable`` asks for the kernel that runs on every GPU, as tensors get it whose strides a Hopper GPU's own cannot take.
    """
    rows, given = n_q_heads // n_kv_heads * q_len, num_splits
    own = not portable and not shared_width and decode_hopper.faster(
        n_q_heads // n_kv_heads, q_len, head_dim_qk, head_dim_v, itemsize, device, page_size
    )  # fmt: skip
    tile_rows = decode_hopper.TILE.rows if own else decode_rows(rows, head_dim_v, itemsize, device.capability)
    row_tiles = plan.head_tiles(n_q_heads, n_kv_heads, block_h=tile_rows, q_len=q_len)
    if num_splits is None:
        # Two programs an SM where tiles have to be converted and are small: one loads while the other computes.
        slots = device.sm_count * (2 if itemsize == 1 and not shared_width else 1)
        num_splits = plan.num_splits(batch, row_tiles, context_len, slots)
    tile = decode_hopper.TILE if own else decode_tile(
        rows, head_dim_qk, head_dim_v, itemsize, device.capability, device.shared_memory, context_len // num_splits,
        shared_width=shared_width, page_size=page_size, eight_bits=eight_bits,
    )  # fmt: skip
    if own and plan.ceil_div(plan.ceil_div(context_len, tile.block_n), num_splits) == 1:
        # Programs of one block have no next one to multiply under a softmax. Then smaller ones are done first, if they all find
        # an SM. Measured on an H200.
        plain = plan_decode(
            batch, n_q_heads, n_kv_heads, context_len, head_dim_qk, head_dim_v, itemsize, device, q_len=q_len,
            num_splits=given, page_size=page_size, eight_bits=eight_bits, portable=True,
        )  # fmt: skip
        if rows > plain.tile.rows and plain.programs <= device.sm_count:
            return plain
    num_splits = min(num_splits, max(1, plan.ceil_div(context_len, tile.block_n)))
    row_tiles = plan.head_tiles(n_q_heads, n_kv_heads, block_h=tile.rows, q_len=q_len)
    return DecodeLaunch(tile, row_tiles, num_splits, batch * row_tiles * num_splits)


@operation("decode", mutates_args=("workspace",))
def launch(
    load_tile: str,
    q: torch.Tensor,
    q_tail: torch.Tensor | None,
    k: torch.Tensor,
    k_tail: torch.Tensor | None,
    v: torch.Tensor | None,
    k_scale: torch.Tensor | None,
    v_scale: torch.Tensor | None,
    block_table: torch.Tensor | None,
    seq_lens: torch.Tensor | None,
    bounds: torch.Tensor | None,
    slots: torch.Tensor | None,
    workspace: torch.Tensor | None,
    scale: float,
    num_splits: int | None,
    validate: bool,
    allow_tf32: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Launch a decode over any cache: q [B, T, Hq, …], k and v [sequence or page, Hkv, token, …], v None where k is the value.

    ``load_tile`` is a name among ``LOADERS``, because an operation of torch takes no functions.
    ``bounds`` and ``slots`` are a work list; without one every sequence is cut into ``num_splits``.
    """
    batch, q_len, n_q_heads, head_dim_qk = q.shape
    n_kv_heads, page_size = k.shape[1:3]
    capacity = page_size if block_table is None else block_table.shape[1] * page_size
    head_dim_v = (k if v is None else v).shape[-1]
    group_size = n_q_heads // n_kv_heads
    device = device_of(q)
    checks.runnable(q.dtype, device.capability)
    checks.runnable(k.dtype, device.capability)
    checks.even_address(k)
    checks.even_address(v)
    if workspace is not None:
        others = q, q_tail, k, k_tail if v is None else v, k_scale, v_scale, block_table, seq_lens, bounds, slots
        checks.apart(f"workspace {ARGUMENTS[load_tile, v is None]}", (workspace, *others), 1)
    if validate or not q.is_cuda:
        checks.length_values(seq_lens, capacity)
        checks.table_values(block_table, seq_lens, page_size, len(k))
        work_list.check_values(bounds, slots, seq_lens, capacity)

    out_dtype = q.dtype
    q, k, v = to_kernel(q, k, v)
    q_tail, k_tail = to_kernel(q_tail, k_tail)
    # The column blocks of a key: given apart (MLA), or those of its width; in 8 bits even and odd columns take their place.
    if q_tail is not None:
        head, tail = head_dim_qk, q_tail.shape[-1]
    elif k_scale is None:
        head, tail = split_width(head_dim_qk)
    else:
        head, tail = head_dim_qk, 0
    if tail and q_tail is None:
        q, q_tail, k, k_tail = q[..., :head], q[..., head:], k[..., :head], k[..., head:]
    apart = 1 if k_scale is None else 2
    page = 0 if block_table is None else page_size
    layout = layout_of(head // apart, tail, head_dim_v // apart, k, k_tail, v, k_scale, v_scale, page=page)
    itemsize = 4 if q.dtype == torch.float32 else k.element_size()  # of what is multiplied: 8-bit keys become what q is
    # A share's walks are pieces of sequences, and two programs are planned for each SM: a tile for short walks leaves room.
    walk, given = (capacity, num_splits) if bounds is None else (0, 1)
    shapes = batch, n_q_heads, n_kv_heads, walk, head + tail, head_dim_v, itemsize, device
    form = {
        "q_len": q_len, "shared_width": head if v is None else 0, "page_size": page or None, "eight_bits": k_scale is not None
    }  # fmt: skip
    planned = plan_decode(*shapes, num_splits=given, portable=hopper.is_portable(), **form)
    # On Hopper many rows have a kernel of their own. Where it cannot take the tensors, the splits stay as they were planned.
    many_rows = planned.tile == decode_hopper.TILE
    if many_rows and not decode_hopper.takes(q, k, v):
        many_rows, planned = False, plan_decode(*shapes, num_splits=planned.num_splits, portable=True, **form)
    tile, num_splits = planned.tile, planned.num_splits
    out = q.new_empty(batch, q_len, n_q_heads, head_dim_v)
    lse = q.new_empty(batch, q_len, n_q_heads, dtype=torch.float32)
    shares = None if bounds is None else len(bounds) - 1
    programs = planned.programs if shares is None else shares * planned.row_tiles
    elements = plan.decode_workspace(batch, q_len, n_q_heads, head_dim_v, num_splits, shares=shares)
    checks.launchable(programs)
    checks.workspace_size(workspace, elements)
    if out.numel() == 0:
        return out.to(out_dtype), lse
    partial_out, partial_lse = out, lse
    if elements:
        if workspace is None:
            workspace = q.new_empty(elements, dtype=torch.float32)
        partial_out, partial_lse = workspace[:elements].split([elements // (head_dim_v + 1) * n for n in (head_dim_v, 1)])

    cache = cache_of(k, k_tail, v, k_scale, v_scale, block_table)
    options = {
        "load_tile": LOADERS[load_tile], "ROWS": tile.rows, "BLOCK_N": tile.block_n, "LAYOUT": layout,
        "STAGES": tile.num_stages, "PRECISION": "tf32" if allow_tf32 else "ieee", "num_warps": tile.num_warps,
    }  # fmt: skip
    strides = (
        q.stride(), None if q_tail is None else q_tail.stride(), 1 if seq_lens is None else seq_lens.stride(0)
    )  # fmt: skip
    with launching(q):
        # These two leave the same states in the same places.
        if many_rows:
            decode_hopper.launch(
                q, k, v, block_table, seq_lens, bounds, partial_out, partial_lse,
                scale * LOG2_E, capacity, page, num_splits, programs,
            )  # fmt: skip
        elif v is None and mla_hopper.faster(q, q_tail, k, k_tail, page, capacity, num_splits):
            mla_hopper.launch(
                q, q_tail, k, k_tail, block_table, seq_lens, bounds, partial_out, partial_lse,
                scale * LOG2_E, capacity, page, num_splits, programs,
            )  # fmt: skip
        elif bounds is None:
            decode_kernel[(programs,)](
                q, q_tail, cache, seq_lens, partial_out, partial_lse, *strides,
                scale * LOG2_E, batch, capacity, n_kv_heads, group_size, q_len, num_splits, **options,
            )  # fmt: skip
        else:
            work_list.work_kernel[(programs,)](
                q, q_tail, cache, seq_lens, bounds, partial_out, partial_lse, *strides,
                scale * LOG2_E, capacity, n_kv_heads, group_size, q_len, **options,
            )  # fmt: skip
    if elements:
        rows = q_len * n_q_heads * (batch if slots is None else 1)
        launch_merge(
            partial_out.view(-1, rows, head_dim_v), partial_lse.view(-1, rows), out.view(-1, head_dim_v), lse.view(-1), slots
        )
    return out.to(out_dtype), lse


@launch.register_fake
def _(load_tile, q, q_tail, k, k_tail, v, *rest):
    return q.new_empty(*q.shape[:3], (k if v is None else v).shape[-1]), q.new_empty(q.shape[:3], dtype=torch.float32)


def as_tokens(q: torch.Tensor) -> torch.Tensor:
    """[B, Hq, …] or [B, T, Hq, …] as the latter."""
    return q if q.dim() == 4 else q.unsqueeze(1)


def as_given(q: torch.Tensor, out: torch.Tensor, lse: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The results with a token axis where the caller's q has one."""
    return (out, lse) if q.dim() == 4 else (out.squeeze(1), lse.squeeze(1))


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
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of new tokens over a contiguous cache that already holds their own keys and values.

    Args:
        q: [B, Hq, Dqk], or [B, T, Hq, Dqk]: T <= 8 new tokens, the last T of the cache, causal among themselves.
        k: [B, Hkv, L, Dqk] and v: [B, Hkv, L, Dv]: the cache, capacity L; Hkv divides Hq, query head h reads KV head
            h // (Hq / Hkv). Any strides. Dqk <= 576, Dv <= 512. In q's dtype, or float8_e4m3fn with scales.
        seq_lens: [B] int32 (or int64) tokens in each sequence, 0 to L; None means L everywhere. What lies beyond a length
            is never read.
        scale: factor of the scores, 1/sqrt(Dqk) if None.
        num_splits: intervals a sequence is cut into; None chooses from the shapes and the GPU. It never depends on seq_lens.
            More than a full cache has tiles of keys count as that many, because the others would have nothing to do.
        workspace: float32 memory for partial results, one axis of at least ``plan.decode_workspace`` elements, that holds no
            input; allocated if None.
        validate: on a GPU, read seq_lens and check its values (waits for the GPU). On a CPU they are always checked.
        allow_tf32: let float32 products use TF32.
        k_scale, v_scale: [B, Hkv, L] float32, for an 8-bit cache: an element counts its stored value times the scale of its
            token and head. Any strides, so a scale may be shared by expanding it.

    Returns:
        out [B, (T,) Hq, Dv] in q's dtype and lse [B, (T,) Hq] float32, the natural log-sum-exp of the scaled scores. A token
        without any key gives 0 and -inf.

    Raises:
        TypeError, ValueError: naming the argument.
        Unsupported: widths, dtype or mode that cannot run here; a gradient is required.

    Sources: Ainslie et al. 2023, section 2.2 (groups); Flash-Decoding, Dao et al. 2023 (splits and merge).
    """
    sizes = checks.new_tokens("decode", MAX_Q_LEN, q=(q, "Dqk"))
    checks.cache({"k": (k, "B Hkv L Dqk"), "v": (v, "B Hkv L Dv")}, q, sizes)
    checks.scales({"k_scale": (k_scale, "B Hkv L"), "v_scale": (v_scale, "B Hkv L")}, k, sizes)
    checks.heads(sizes["Hq"], sizes["Hkv"])
    checks.widths("decode", sizes["Dqk"], sizes["Dv"], 576, 512)
    checks.tokens("decode", "L", sizes["L"])
    checks.lengths(seq_lens, sizes["B"], q.device)
    scale = checks.softmax_scale(scale, sizes["Dqk"])
    checks.steering("decode", num_splits, workspace, validate, allow_tf32, q=q, k=k, v=v, k_scale=k_scale, v_scale=v_scale)
    if MODE == "reference":
        checks.length_values(seq_lens, sizes["L"])
        out, lse = reference.decode(q, k, v, seq_lens, scale=scale, k_scale=k_scale, v_scale=v_scale)
        return out.to(q.dtype), lse.float()
    tokens, scale = checks.positive_scale(as_tokens(q), scale)
    out, lse = launch(
        "contiguous", tokens, None, k, None, v, k_scale, v_scale, None, seq_lens, None, None, workspace,
        scale, num_splits, validate, allow_tf32,
    )  # fmt: skip
    return as_given(q, out, lse)
