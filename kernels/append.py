"""Appending: the rows of new tokens are written to their places in the cache, and nothing else is touched.

A cache that grows by concatenation is copied whole at every step. Here it has room from the start and a step writes one row a
token, head and tensor. Where a row lies is one function: at its position in its sequence, or on the page that the table names.
With 8-bit elements a row is divided by a scale of its own before it is rounded, so that its largest element becomes 448, the
largest number of float8_e4m3fn; the scale is kept beside it. (Pages: Kwon et al. 2023, section 4. One scale a token is what
KIVI gives to values, Liu et al. 2024; here keys get it too, for a scale a channel would depend on tokens still to come.)

MLA's latent and its rotary part are rows like any others: a cache with one KV head, whose 'values' are narrow and stay 16-bit.
"""

import torch

from . import checks, reference
from ._mode import MODE, Unsupported, device_of, launching, tl, triton
from ._operation import operation
from .decode import as_tokens
from .paged import by_head
from .tiles import pad

MAX_WIDTH = 1024
FP8_MAX: tl.constexpr = tl.constexpr(448.0)
SMALLEST_SCALE: tl.constexpr = tl.constexpr(torch.finfo(torch.float32).tiny)


@triton.jit
def place_in_sequence(block_table, block_table_strides, sequence, position, page_size):
    """(sequence, slot) of a token whose sequence lies in one piece."""
    return sequence, position


@triton.jit
def place_on_page(block_table, block_table_strides, sequence, position, page_size):
    """(page, slot) of a token whose sequence lies on pages."""
    entry = block_table + sequence * block_table_strides[0] + position // page_size * block_table_strides[1]
    return tl.load(entry).to(tl.int64), position % page_size


@triton.jit
def write_row(
    new, new_strides, cache, cache_strides, scales, scale_strides, sequence, token, head, outer, slot,
    WIDTH: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """Row (sequence, token, head) of ``new`` becomes row (outer, head, slot) of ``cache``: as it is, or scaled to 8 bits."""
    columns = tl.arange(0, PADDED).to(tl.int64)
    row = new + sequence * new_strides[0] + token * new_strides[1] + head * new_strides[2]
    values = tl.load(row + columns * new_strides[3], mask=columns < WIDTH, other=0.0)
    if scales is not None:
        values = values.to(tl.float32)
        # The floor keeps a row of zeros from 0 / 0, and a tiny row from a scale that has lost its digits.
        scale = tl.maximum(tl.div_rn(tl.max(tl.abs(values), 0), FP8_MAX), SMALLEST_SCALE)
        values = tl.div_rn(values, scale)
        tl.store(scales + outer * scale_strides[0] + head * scale_strides[1] + slot * scale_strides[2], scale)
    row = cache + outer * cache_strides[0] + head * cache_strides[1] + slot * cache_strides[2]
    tl.store(row + columns * cache_strides[3], values.to(cache.dtype.element_ty), mask=columns < WIDTH)


@triton.jit(do_not_specialize=["q_len", "n_kv_heads", "n_outer", "capacity", "page_size"])
def append_kernel(
    k_new, v_new, k, v, k_scale, v_scale, block_table, seq_lens,
    k_new_strides, v_new_strides, k_strides, v_strides, k_scale_strides, v_scale_strides,
    block_table_strides, seq_lens_stride,
    q_len, n_kv_heads, n_outer, capacity, page_size,
    place: tl.constexpr, D_QK: tl.constexpr, D_V: tl.constexpr, PAD_QK: tl.constexpr, PAD_V: tl.constexpr,
):  # fmt: skip
    """k_new [B, T, Hkv, D_QK], v_new [B, T, Hkv, D_V] -> k [outer, Hkv, slot, D_QK], v [outer, Hkv, slot, D_V].

    One program writes one new token's rows of one KV head. ``outer`` counts sequences or pages.
    """
    program = tl.program_id(0)
    head = (program % n_kv_heads).to(tl.int64)
    token = (program // n_kv_heads % q_len).to(tl.int64)
    sequence = (program // (n_kv_heads * q_len)).to(tl.int64)

    # The length counts the new tokens already. A position outside the cache is not written, and no table is asked for it.
    position = tl.load(seq_lens + sequence * seq_lens_stride).to(tl.int64) - q_len + token
    if (position >= 0) & (position < capacity):
        outer, slot = place(block_table, block_table_strides, sequence, position, page_size)
        if (outer >= 0) & (outer < n_outer):
            write_row(
                k_new, k_new_strides, k, k_strides, k_scale, k_scale_strides, sequence, token, head, outer, slot, D_QK, PAD_QK
            )
            write_row(
                v_new, v_new_strides, v, v_strides, v_scale, v_scale_strides, sequence, token, head, outer, slot, D_V, PAD_V
            )


@operation("append", mutates_args=("k", "v", "k_scale", "v_scale"))
def _append(
    names: str,
    k_new: torch.Tensor,
    v_new: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    k_scale: torch.Tensor | None,
    v_scale: torch.Tensor | None,
    block_table: torch.Tensor | None,
    seq_lens: torch.Tensor,
    validate: bool,
) -> None:
    """As ``append_kernel`` has it: k_new [B, T, Hkv, Dqk], k [outer, Hkv, slot, Dqk], k_scale [outer, Hkv, slot].

    ``names`` are the caller's for k, v, k_scale, v_scale, k_new and v_new, for errors.
    """
    batch, q_len, n_kv_heads, head_dim_qk = k_new.shape
    n_outer, _, page_size, head_dim_v = v.shape
    capacity = page_size if block_table is None else page_size * block_table.shape[1]
    checks.runnable(k_new.dtype, device_of(k).capability)
    checks.runnable(k.dtype, device_of(k).capability)
    checks.apart(f"{names} block_table seq_lens", (k, v, k_scale, v_scale, k_new, v_new, block_table, seq_lens), 4)
    if validate or not k.is_cuda:
        checks.length_values(seq_lens, capacity)
        checks.table_values(block_table, seq_lens, page_size, n_outer)
    programs = batch * q_len * n_kv_heads
    if programs == 0:
        return
    checks.launchable(programs)

    # The interpreter rounds to 8 bits wrongly: there a float32 copy goes in and torch rounds it, as with bfloat16 elsewhere.
    unrounded = MODE == "interpreter" and k.dtype == checks.FP8
    kk, kv = (cache.float() if unrounded and cache.dtype == checks.FP8 else cache for cache in (k, v))
    with launching(k):
        append_kernel[(programs,)](
            k_new, v_new, kk, kv, k_scale, v_scale, block_table, seq_lens,
            k_new.stride(), v_new.stride(), kk.stride(), kv.stride(), _strides(k_scale), _strides(v_scale),
            _strides(block_table), seq_lens.stride(0),
            q_len, n_kv_heads, n_outer, capacity, page_size,
            place=place_in_sequence if block_table is None else place_on_page,
            D_QK=head_dim_qk, D_V=head_dim_v, PAD_QK=pad(head_dim_qk), PAD_V=pad(head_dim_v),
            num_warps=1 if max(head_dim_qk, head_dim_v) <= 256 else 4,
        )  # fmt: skip
    for cache, written in ((k, kk), (v, kv)):
        if written is not cache:
            cache.copy_(written)


@_append.register_fake
def _(names, k_new, v_new, k, v, k_scale, v_scale, block_table, seq_lens, validate):
    return None


def append(
    k_new: torch.Tensor,
    v_new: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    seq_lens: torch.Tensor,
    *,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    validate: bool = False,
) -> None:
    """Write the keys and values of new tokens into a contiguous cache, in place.

    Args:
        k_new: [B, Hkv, Dqk], or [B, T, Hkv, Dqk] with T new tokens a sequence, and v_new: [B, (T,) Hkv, Dv].
        k: [B, Hkv, L, Dqk] and v: [B, Hkv, L, Dv]: the cache, in the dtype of the new rows or both float8_e4m3fn. Any strides
            that give each element memory of its own, which no other argument shares.
        seq_lens: [B] int32 (or int64) tokens in each sequence *with* the new ones: what ``decode`` takes next. New token t of T
            goes to position seq_lens[b] - T + t, and is not written where that is negative or beyond the capacity L.
        k_scale, v_scale: [B, Hkv, L] float32, with a float8_e4m3fn cache only: receive the scale of each row,
            max|row| / 448 and not below the smallest normal float32. What is stored is row / scale, rounded to nearest even;
            the row is stored * scale again. A row of zeros is stored as zeros.
        validate: on a GPU, read seq_lens and check its values (waits for the GPU). On a CPU they are always checked.

    Raises:
        TypeError, ValueError: naming the argument.
        Unsupported: widths, dtype or mode that cannot run here (8 bits need compute capability 8.9); a gradient is required.
    """
    new = {"k_new": (k_new, "Hkv Dqk"), "v_new": (v_new, "Hkv Dv")}
    caches = {"k": (k, "B Hkv L Dqk"), "v": (v, "B Hkv L Dv")}
    scales = {"k_scale": (k_scale, "B Hkv L"), "v_scale": (v_scale, "B Hkv L")}
    sizes = _check("append", new, caches, scales, seq_lens, validate)
    if MODE == "reference":
        checks.length_values(seq_lens, sizes["L"])
        reference.append(k_new, v_new, k, v, seq_lens, k_scale=k_scale, v_scale=v_scale)
    else:
        k_new, v_new = as_tokens(k_new), as_tokens(v_new)
        names = "k v k_scale v_scale k_new v_new"
        _append(names, k_new, v_new, k, v, k_scale, v_scale, None, seq_lens, validate)


def paged_append(
    k_new: torch.Tensor,
    v_new: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    *,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    validate: bool = False,
) -> None:
    """``append`` to pages: position j of sequence b is slot j mod P of page block_table[b, j // P].

    Args:
        k_pages: [n_pages, P, Hkv, Dqk] and v_pages: [n_pages, P, Hkv, Dv], any page size P.
        block_table: [B, max_pages] int32 (or int64). Entries beyond a sequence's tokens are never read. A token whose entry is
            no page is not written. A page that receives new tokens must belong to one sequence.
        k_scale, v_scale: [n_pages, P, Hkv] float32, with float8_e4m3fn pages only.
        validate: check the table's entries in use as well.

    The rest as in ``append``; the capacity is max_pages * P.
    """
    new = {"k_new": (k_new, "Hkv Dqk"), "v_new": (v_new, "Hkv Dv")}
    caches = {"k_pages": (k_pages, "n_pages P Hkv Dqk"), "v_pages": (v_pages, "n_pages P Hkv Dv")}
    scales = {"k_scale": (k_scale, "n_pages P Hkv"), "v_scale": (v_scale, "n_pages P Hkv")}
    sizes = _check("paged_append", new, caches, scales, seq_lens, validate)
    _check_pages("paged_append", block_table, sizes, k_new.device)
    if MODE == "reference":
        checks.length_values(seq_lens, sizes["P"] * block_table.shape[1])
        reference.paged_append(k_new, v_new, k_pages, v_pages, block_table, seq_lens, k_scale=k_scale, v_scale=v_scale)
    else:
        k_new, v_new = as_tokens(k_new), as_tokens(v_new)
        k_scale, v_scale = by_head(k_scale), by_head(v_scale)
        names = "k_pages v_pages k_scale v_scale k_new v_new"
        _append(names, k_new, v_new, by_head(k_pages), by_head(v_pages), k_scale, v_scale, block_table, seq_lens, validate)


def mla_append(
    latent_new: torch.Tensor,
    k_rope_new: torch.Tensor,
    latent: torch.Tensor,
    k_rope: torch.Tensor,
    seq_lens: torch.Tensor,
    *,
    latent_scale: torch.Tensor | None = None,
    validate: bool = False,
) -> None:
    """``append`` for MLA: one record a token, in two tensors or in two views of one packed record.

    Args:
        latent_new: [B, (T,) d_c] and k_rope_new: [B, (T,) d_r]: the normalised latent and the rotated shared key.
        latent: [B, L, d_c] and k_rope: [B, L, d_r]: the cache. The latent may be float8_e4m3fn, k_rope has the dtype of the
            new rows.
        latent_scale: [B, L] float32, with a float8_e4m3fn latent only.

    The rest as in ``append``.
    """
    new = {"latent_new": (latent_new, "d_c"), "k_rope_new": (k_rope_new, "d_r")}
    caches = {"latent": (latent, "B L d_c"), "k_rope": (k_rope, "B L d_r")}
    sizes = _check("mla_append", new, caches, {"latent_scale": (latent_scale, "B L")}, seq_lens, validate)
    if MODE == "reference":
        checks.length_values(seq_lens, sizes["L"])
        reference.mla_append(latent_new, k_rope_new, latent, k_rope, seq_lens, latent_scale=latent_scale)
    else:
        latent_new, k_rope_new = (_one_head(rows) for rows in (latent_new, k_rope_new))
        scale = None if latent_scale is None else latent_scale.unsqueeze(1)
        names = "latent k_rope latent_scale - latent_new k_rope_new"
        _append(names, latent_new, k_rope_new, latent.unsqueeze(1), k_rope.unsqueeze(1), scale, None, None, seq_lens, validate)


def paged_mla_append(
    latent_new: torch.Tensor,
    k_rope_new: torch.Tensor,
    latent_pages: torch.Tensor,
    k_rope_pages: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    *,
    latent_scale: torch.Tensor | None = None,
    validate: bool = False,
) -> None:
    """``mla_append`` to pages: latent_pages [n_pages, P, d_c], k_rope_pages [n_pages, P, d_r], latent_scale [n_pages, P].

    ``block_table`` and ``validate`` as in ``paged_append``.
    """
    new = {"latent_new": (latent_new, "d_c"), "k_rope_new": (k_rope_new, "d_r")}
    caches = {"latent_pages": (latent_pages, "n_pages P d_c"), "k_rope_pages": (k_rope_pages, "n_pages P d_r")}
    sizes = _check("paged_mla_append", new, caches, {"latent_scale": (latent_scale, "n_pages P")}, seq_lens, validate)
    _check_pages("paged_mla_append", block_table, sizes, latent_new.device)
    if MODE == "reference":
        checks.length_values(seq_lens, sizes["P"] * block_table.shape[1])
        reference.paged_mla_append(
            latent_new, k_rope_new, latent_pages, k_rope_pages, block_table, seq_lens, latent_scale=latent_scale
        )
    else:
        latent_new, k_rope_new = (_one_head(rows) for rows in (latent_new, k_rope_new))
        scale = None if latent_scale is None else latent_scale.unsqueeze(1)
        names = "latent_pages k_rope_pages latent_scale - latent_new k_rope_new"
        _append(
            names, latent_new, k_rope_new, latent_pages.unsqueeze(1), k_rope_pages.unsqueeze(1), scale, None,
            block_table, seq_lens, validate,
        )  # fmt: skip


def _one_head(rows: torch.Tensor) -> torch.Tensor:
    """[B, (T,) D] -> [B, T, 1, D]."""
    return (rows if rows.dim() == 3 else rows.unsqueeze(1)).unsqueeze(2)


def _strides(tensor: torch.Tensor | None) -> tuple[int, ...] | None:
    return None if tensor is None else tensor.stride()


def _check(operation: str, new: dict, caches: dict, scales: dict, seq_lens: torch.Tensor, validate: bool) -> dict[str, int]:
    """Check tensors given by name with the letters of their axes, and return the sizes. The first caches have the scales."""
    rows = {name: tensor for name, (tensor, _) in new.items()}
    checks.tensors(**rows)
    name, (first, letters) = next(iter(new.items()))
    several = len(letters.split()) + 2  # axes, with B and T
    if first.dim() not in (several - 1, several):
        wanted = ", ".join(letters.split())
        raise ValueError(f"{name} must have shape [B, {wanted}] or [B, T, {wanted}], got {list(first.shape)}")
    sizes: dict[str, int] = {}
    for name, (tensor, letters) in new.items():
        checks.shape(name, tensor, f"B T {letters}" if first.dim() == several else f"B {letters}", sizes)
        width = letters.split()[-1]
        if sizes[width] == 0:
            raise ValueError(f"{name} must have at least one column, got {width} = 0")
        if sizes[width] > MAX_WIDTH:
            raise Unsupported(f"{operation} goes up to {width} = {MAX_WIDTH}, got {sizes[width]}")

    scaled = list(caches)[: len(scales)]
    eight_bits = getattr(caches[scaled[0]][0], "dtype", None) == checks.FP8
    for name, (tensor, letters) in caches.items():
        wanted = checks.FP8 if eight_bits and name in scaled else first.dtype
        checks.dense(name, tensor, (wanted,), f"{wanted} beside {', '.join(new)} of {first.dtype}")
        checks.together(name, tensor, next(iter(new)), first)
        checks.shape(name, tensor, letters, sizes)
    checks.scales(scales, caches[scaled[0]][0], sizes)
    for name, (tensor, _) in (caches | scales).items():
        if tensor is not None:
            checks.own_memory(name, tensor)

    if seq_lens is None:
        raise TypeError("seq_lens must be an int32 tensor [B], got None: it says where the new tokens go")
    checks.lengths(seq_lens, sizes["B"], first.device)
    if "L" in sizes:
        checks.tokens(operation, "L", sizes["L"])
    checks.flag("validate", validate)
    everything = {name: tensor for name, (tensor, _) in (new | caches | scales).items() if tensor is not None}
    checks.no_gradient(operation, **everything)
    checks.no_tangent(operation, **everything)
    return sizes


def _check_pages(operation: str, block_table: torch.Tensor, sizes: dict[str, int], device: torch.device) -> None:
    checks.table(block_table, sizes["B"], device)
    checks.tokens(operation, "max_pages * P", block_table.shape[1] * sizes["P"])
    if sizes["P"] == 0:
        raise ValueError("a page must hold at least one token, got P = 0")
