"""Multi-head latent attention, absorbed: the cache holds one latent a token, and all query heads read the same.

What changes against `decode.py`: the record. With W^UK moved to the query and W^UV to the output, the key of every head is the
latent c (512 columns at DeepSeek-V3) beside one rotary key (64), and the value is the latent again. So there is one KV head,
its key lies in two blocks of columns, and the tile of the first block is loaded once and multiplied twice: by the queries, and
by the weights. Nothing is padded from 576 to 1024. The loop, the rows, the splits, the work list and the merge are the same.
(DeepSeek-V2, 2405.04434, section 2.1.2.)
"""

import torch

from . import checks, reference
from ._mode import MODE
from .decode import MAX_Q_LEN, as_given, as_tokens, launch
from .paged import by_head, paging
from .work_list import WorkList


def mla_decode(
    q_latent: torch.Tensor,
    q_rope: torch.Tensor,
    latent: torch.Tensor,
    k_rope: torch.Tensor,
    seq_lens: torch.Tensor | None = None,
    *,
    scale: float,
    num_splits: int | None = None,
    workspace: torch.Tensor | None = None,
    validate: bool = False,
    allow_tf32: bool = False,
    latent_scale: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Absorbed MLA of new tokens over a contiguous cache that already holds their own latents and rotary keys.

    Args:
        q_latent: [B, Hq, d_c], or [B, T, Hq, d_c] (T <= 8, as in ``decode``): the content query times W^UK of its head.
        q_rope: [B, (T,) Hq, d_r], rotated.
        latent: [B, L, d_c] and k_rope: [B, L, d_r]: the cache; a packed record is passed as two views of it. Any strides.
            d_c <= 512, d_r <= 64. In q's dtype; the latent may be float8_e4m3fn with ``latent_scale``, the rotary part not.
        seq_lens: [B] int32 (or int64) tokens in each sequence, 0 to L; None means L everywhere.
        scale: factor of the scores. It belongs to the model and cannot be read off these widths: 1/sqrt(d_nope + d_r) of the
            un-absorbed head, times what a context extension adds.
        num_splits, workspace, validate, allow_tf32: as in ``decode``.
        latent_scale: [B, L] float32, for an 8-bit latent, which counts its stored value times the scale of its token.

    Returns:
        out [B, (T,) Hq, d_c], the attended latent, which W^UV turns into the head's value, and lse [B, (T,) Hq] float32.

    Raises:
        TypeError, ValueError: naming the argument.
        Unsupported: widths, dtype or mode that cannot run here; a gradient is required.

    Source: DeepSeek-V2 (2405.04434), section 2.1.2.
    """
    sizes = checks.new_tokens("mla_decode", MAX_Q_LEN, q_latent=(q_latent, "d_c"), q_rope=(q_rope, "d_r"))
    checks.cache({"latent": (latent, "B L d_c")}, q_latent, sizes, q_name="q_latent")
    checks.cache({"k_rope": (k_rope, "B L d_r")}, q_latent, sizes, fp8=False, q_name="q_latent")
    checks.scales({"latent_scale": (latent_scale, "B L")}, latent, sizes)
    checks.heads(sizes["Hq"], 1)
    checks.mla_widths("mla_decode", sizes["d_c"], sizes["d_r"])
    checks.tokens("mla_decode", "L", sizes["L"])
    checks.lengths(seq_lens, sizes["B"], q_latent.device)
    scale = checks.softmax_scale(scale, None)
    named = {"q_latent": q_latent, "q_rope": q_rope, "latent": latent, "k_rope": k_rope, "latent_scale": latent_scale}
    checks.steering("mla_decode", num_splits, workspace, validate, allow_tf32, **named)
    if MODE == "reference":
        checks.length_values(seq_lens, sizes["L"])
        out, lse = reference.mla_decode(q_latent, q_rope, latent, k_rope, seq_lens, scale=scale, latent_scale=latent_scale)
        return out.to(q_latent.dtype), lse.float()
    tokens, positive = checks.positive_scale(as_tokens(q_latent), scale)
    rope_tokens, _ = checks.positive_scale(as_tokens(q_rope), scale)
    one_head = None if latent_scale is None else latent_scale.unsqueeze(1)
    out, lse = launch(
        "contiguous", tokens, rope_tokens, latent.unsqueeze(1), k_rope.unsqueeze(1), None, one_head, None,
        None, seq_lens, None, None, workspace, positive, num_splits, validate, allow_tf32,
    )  # fmt: skip
    return as_given(q_latent, out, lse)


def paged_mla_decode(
    q_latent: torch.Tensor,
    q_rope: torch.Tensor,
    latent_pages: torch.Tensor,
    k_rope_pages: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    *,
    scale: float,
    num_splits: int | None = None,
    work: WorkList | None = None,
    workspace: torch.Tensor | None = None,
    validate: bool = False,
    allow_tf32: bool = False,
    latent_scale: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``mla_decode`` over a cache in pages.

    Args:
        q_latent, q_rope, scale, num_splits, workspace, validate, allow_tf32: as in ``mla_decode``.
        latent_pages: [n_pages, P, d_c] and k_rope_pages: [n_pages, P, d_r]. Any strides, any page size P.
        block_table, seq_lens, work: as in ``paged_decode``.
        latent_scale: [n_pages, P] float32, for an 8-bit cache.

    Returns, raises: as ``mla_decode``.
    """
    sizes = checks.new_tokens("paged_mla_decode", MAX_Q_LEN, q_latent=(q_latent, "d_c"), q_rope=(q_rope, "d_r"))
    checks.cache({"latent_pages": (latent_pages, "n_pages P d_c")}, q_latent, sizes, q_name="q_latent")
    checks.cache({"k_rope_pages": (k_rope_pages, "n_pages P d_r")}, q_latent, sizes, fp8=False, q_name="q_latent")
    checks.scales({"latent_scale": (latent_scale, "n_pages P")}, latent_pages, sizes)
    checks.heads(sizes["Hq"], 1)
    checks.mla_widths("paged_mla_decode", sizes["d_c"], sizes["d_r"])
    bounds, slots = paging("paged_mla_decode", block_table, seq_lens, work, num_splits, sizes, q_latent.device)
    scale = checks.softmax_scale(scale, None)
    named = {"q_latent": q_latent, "q_rope": q_rope, "latent_pages": latent_pages, "k_rope_pages": k_rope_pages}
    named["latent_scale"] = latent_scale
    checks.steering("paged_mla_decode", num_splits, workspace, validate, allow_tf32, **named)
    if MODE == "reference":
        checks.length_values(seq_lens, block_table.shape[1] * sizes["P"])
        out, lse = reference.paged_mla_decode(
            q_latent, q_rope, latent_pages, k_rope_pages, block_table, seq_lens, scale=scale, latent_scale=latent_scale
        )
        return out.to(q_latent.dtype), lse.float()
    tokens, positive = checks.positive_scale(as_tokens(q_latent), scale)
    rope_tokens, _ = checks.positive_scale(as_tokens(q_rope), scale)
    one_head = None if latent_scale is None else latent_scale.unsqueeze(2)
    out, lse = launch(
        "paged", tokens, rope_tokens, by_head(latent_pages.unsqueeze(2)), by_head(k_rope_pages.unsqueeze(2)), None,
        by_head(one_head), None, block_table, seq_lens, bounds, slots, workspace, positive, num_splits, validate, allow_tf32,
    )  # fmt: skip
    return as_given(q_latent, out, lse)
