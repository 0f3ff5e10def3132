"""Paged decode: logical tokens, physical pages.

What changes against `decode.py`: where a token lies. Token j of a sequence is on page block_table[sequence, j // P] at offset
j mod P, and that is all: the loop, the rows, the splits and the merge are the same. A tile that lies inside one page needs one
look-up; a tile that spans several looks up the page of each of its tokens. (PagedAttention, Kwon et al. 2023, section 4.)
"""

import torch

from . import checks, reference
from ._mode import MODE, tl, triton
from .attend import load_blocks
from .decode import LOADERS, MAX_Q_LEN, as_given, as_tokens, launch
from .work_list import WorkList


@triton.jit
def load_paged(cache, sequence, kv_head, start, stop, BLOCK_N: tl.constexpr, LAYOUT: tl.constexpr, MASKED: tl.constexpr):
    """The tile of tokens start, start + 1, … of a sequence whose pages the block table names; ``start`` is a whole tile."""
    PAGE: tl.constexpr = LAYOUT.page
    table = cache.block_table + sequence * cache.table_sequence
    rows = tl.arange(0, BLOCK_N)
    live = rows < stop - start
    if PAGE % BLOCK_N == 0:
        page = tl.load(table + start // PAGE * cache.table_entry).to(tl.int64)
        return load_blocks(cache, kv_head, page, tl.cast(start % PAGE, tl.int64), rows.to(tl.int64), live, LAYOUT, MASKED)
    else:
        token = start + rows
        # The table is read for living tokens only: its other entries may hold anything.
        entries = table + token // PAGE * cache.table_entry
        page = tl.load(entries, mask=live, other=0) if MASKED else tl.load(entries)
        offset = (token % PAGE).to(tl.int64)
        return load_blocks(cache, kv_head, page.to(tl.int64), 0, offset, live, LAYOUT, MASKED)


LOADERS["paged"] = load_paged


def paged_decode(
    q: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    *,
    scale: float | None = None,
    num_splits: int | None = None,
    work: WorkList | None = None,
    workspace: torch.Tensor | None = None,
    validate: bool = False,
    allow_tf32: bool = False,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``decode`` over a cache in pages, which already holds the new tokens' keys and values.

    Args:
        q: [B, Hq, Dqk], or [B, T, Hq, Dqk]: T <= 8 new tokens, the last T of each sequence, causal among themselves.
        k_pages: [n_pages, P, Hkv, Dqk] and v_pages: [n_pages, P, Hkv, Dv]. Any strides, any page size P. In q's dtype, or
            float8_e4m3fn with scales.
        block_table: [B, max_pages] int32 (or int64). Entries beyond a sequence's length are never followed.
        seq_lens: [B] int32 (or int64) tokens in each sequence, 0 to max_pages * P. What lies beyond is never read.
        scale: factor of the scores, 1/sqrt(Dqk) if None.
        num_splits: intervals a sequence is cut into; None chooses from max_pages * P and the GPU, never from seq_lens.
        work: a work list of ``plan_work`` instead of splits, for lengths that differ; the same for all layers of a step.
        workspace: float32 memory for partial results, one axis; allocated if None.
        validate: on a GPU, read seq_lens and block_table and check their values (waits for the GPU). On a CPU always done.
        allow_tf32: let float32 products use TF32.
        k_scale, v_scale: [n_pages, P, Hkv] float32, for an 8-bit cache: an element counts its stored value times its scale.

    Returns:
        out [B, (T,) Hq, Dv] in q's dtype and lse [B, (T,) Hq] float32, as ``decode``.

    Raises:
        TypeError, ValueError: naming the argument.
        Unsupported: widths, dtype or mode that cannot run here; a gradient is required.

    Source: Kwon et al. 2023 (2309.06180), section 4.3.
    """
    sizes = checks.new_tokens("paged_decode", MAX_Q_LEN, q=(q, "Dqk"))
    checks.cache({"k_pages": (k_pages, "n_pages P Hkv Dqk"), "v_pages": (v_pages, "n_pages P Hkv Dv")}, q, sizes)
    checks.scales({"k_scale": (k_scale, "n_pages P Hkv"), "v_scale": (v_scale, "n_pages P Hkv")}, k_pages, sizes)
    checks.heads(sizes["Hq"], sizes["Hkv"])
    checks.widths("paged_decode", sizes["Dqk"], sizes["Dv"], 576, 512)
    bounds, slots = paging("paged_decode", block_table, seq_lens, work, num_splits, sizes, q.device)
    scale = checks.softmax_scale(scale, sizes["Dqk"])
    named = {"q": q, "k_pages": k_pages, "v_pages": v_pages, "k_scale": k_scale, "v_scale": v_scale}
    checks.steering("paged_decode", num_splits, workspace, validate, allow_tf32, **named)
    if MODE == "reference":
        checks.length_values(seq_lens, block_table.shape[1] * sizes["P"])
        out, lse = reference.paged_decode(
            q, k_pages, v_pages, block_table, seq_lens, scale=scale, k_scale=k_scale, v_scale=v_scale
        )
        return out.to(q.dtype), lse.float()
    tokens, scale = checks.positive_scale(as_tokens(q), scale)
    out, lse = launch(
        "paged", tokens, None, by_head(k_pages), None, by_head(v_pages), by_head(k_scale), by_head(v_scale),
        block_table, seq_lens, bounds, slots, workspace, scale, num_splits, validate, allow_tf32,
    )  # fmt: skip
    return as_given(q, out, lse)


def by_head(pages: torch.Tensor | None) -> torch.Tensor | None:
    """[n_pages, P, Hkv, …] as the kernels take a cache: [page, KV head, token, …]."""
    return None if pages is None else pages.transpose(1, 2)


def paging(
    operation: str,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    work: WorkList | None,
    num_splits: int | None,
    sizes: dict[str, int],
    device: torch.device,
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Check what is particular to pages; the two tensors of the work list, or None and None."""
    if sizes["P"] == 0:
        raise ValueError("pages must hold at least one token, got P = 0")
    checks.table(block_table, sizes["B"], device)
    checks.tokens(operation, "max_pages * P", block_table.shape[1] * sizes["P"])
    if seq_lens is None:
        raise TypeError(f"{operation} needs seq_lens: pages do not say how many of their tokens are in use")
    checks.lengths(seq_lens, sizes["B"], device)
    if work is None:
        return None, None
    if not isinstance(work, WorkList):
        raise TypeError(f"work must be a WorkList or None, got {type(work).__name__}")
    if num_splits is not None:
        raise ValueError(f"a work list decides the intervals: num_splits must be None with it, got {num_splits}")
    for name, tensor, first in (("bounds", work.bounds, None), ("slots", work.slots, sizes["B"])):
        if not isinstance(tensor, torch.Tensor) or tensor.dtype != torch.int32 or not tensor.is_contiguous():
            raise TypeError(f"work.{name} must be a contiguous int32 tensor, as plan_work makes it")
        if tensor.dim() != 2 or tensor.shape[1] != 2 or tensor.device != device or first not in (None, len(tensor)):
            raise ValueError(
                f"work was made for another batch: work.{name} is {list(tensor.shape)} on {tensor.device}, "
                f"but q has B = {sizes['B']} on {device}"
            )
    return work.bounds, work.slots
