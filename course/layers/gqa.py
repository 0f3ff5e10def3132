"""Grouped-query attention as a layer: four projections, the rotation, a cache.

H_kv = H_q is multi-head attention, H_kv = 1 multi-query attention, and nothing in the layer asks which it is.

    q = x W_Q    k = x W_K    v = x W_V    one position at a time, heads side by side
    q, k         turned by their positions (`rope`); a cached key is stored turned, because its position stays
    out          softmax(q kᵀ · scale) v for every head, with KV head r // G for query head r, then W_O

(Ainslie et al. 2023, 2305.13245, section 2.2; rotation: Su et al. 2021.)
"""

import torch
from torch import Tensor, nn

import kernels
from kernels.checks import softmax_scale

from ..costs import Attention
from ..costs.checks import whole
from .caches import MAX_Q_LEN, ContiguousCache, PagedCache, operations
from .pages import PageAllocator
from .rope import check_base, check_pairing, check_rotary, rotate, rotation


class CachedLayer(nn.Module):
    """What the layers share: how a cache for them is made, and where new tokens stand."""

    widths: dict[str, tuple[int, int] | int]
    """What a token leaves in the cache, by name."""

    def new_cache(self, batch: int, capacity: int) -> ContiguousCache:
        """An empty contiguous cache for this layer, in its dtype, on its device."""
        return ContiguousCache(batch, capacity, self.widths, dtype=self.w_o.weight.dtype, device=self.w_o.weight.device)

    def new_paged_cache(self, allocator: PageAllocator, batch: int) -> PagedCache:
        """A cache in pages for this layer, in its dtype, on its device, with ``batch`` empty sequences."""
        return PagedCache(allocator, batch, self.widths, dtype=self.w_o.weight.dtype, device=self.w_o.weight.device)

    def check_input(self, x: Tensor, cache: ContiguousCache | PagedCache | None) -> None:
        """x [B, M, d_model] in the layer's dtype; a cache of the layer's own widths, and no gradient with it."""
        weight = self.w_o.weight
        if not isinstance(x, Tensor) or x.dim() != 3 or x.shape[-1] != self.d_model:
            came = list(x.shape) if isinstance(x, Tensor) else type(x).__name__
            raise ValueError(f"x must have shape [B, M, d_model] with d_model = {self.d_model}, got {came}")
        if not x.shape[0] or not x.shape[1]:
            raise ValueError(f"x must hold at least one token of one sequence, got {list(x.shape)}")
        if x.dtype != weight.dtype or x.device != weight.device:
            raise TypeError(f"x must be {weight.dtype} on {weight.device}, as the layer is, got {x.dtype} on {x.device}")
        if cache is None:
            return
        if not isinstance(cache, ContiguousCache | PagedCache):
            raise TypeError(f"cache must be a ContiguousCache, a PagedCache or None, got {type(cache).__name__}")
        if cache.widths != self.widths:
            raise ValueError(f"cache must be {self.widths} wide for this layer, got {cache.widths}")
        if len(cache.lengths) != len(x):
            raise ValueError(f"x and cache must have the same batch, got {len(x)} and {len(cache.lengths)} sequences")
        if torch.is_grad_enabled() and (x.requires_grad or any(p.requires_grad for p in self.parameters())):
            raise kernels.Unsupported(
                "a cache keeps no graph, so no gradient would reach it: call the layer under torch.no_grad(), "
                "or without a cache to train"
            )

    def places(self, x: Tensor, cache: ContiguousCache | PagedCache | None, positions: Tensor | None) -> Tensor:
        """Positions of the new tokens, [M] or [B, M]: behind what is cached, unless the caller says otherwise."""
        batch, q_len, _ = x.shape
        if positions is None:
            new = torch.arange(q_len, device=x.device)
            return new if cache is None else cache.seq_lens.long()[:, None] + new
        if not isinstance(positions, Tensor) or positions.shape not in ((q_len,), (batch, q_len)):
            came = list(positions.shape) if isinstance(positions, Tensor) else type(positions).__name__
            raise ValueError(f"positions must have shape [M] = [{q_len}] or [B, M] = [{batch}, {q_len}], got {came}")
        return positions.to(x.device)


class GQALayer(CachedLayer):
    """Attention of H_q query heads over H_kv shared KV heads.

    Args:
        d_model: width of the tokens that come and go.
        n_q_heads, n_kv_heads, head_dim: H_q, H_kv (divides H_q) and the width of a head, which need not be d_model / H_q.
        head_dim_v: width of a value; head_dim if None.
        rope_base: base of the rotation (Llama 2: 10,000; Llama 3: 500,000); None leaves it out.
        pairing: 'halves', as Hugging Face's checkpoints have it, or 'interleaved'.
        bias: whether the projections have biases.
        out_bias: whether W_O has one; as ``bias`` if None (Qwen2 has them on q, k and v only).
        scale: factor of the scores; 1/sqrt(head_dim) if None.
    """

    def __init__(
        self,
        d_model: int,
        n_q_heads: int,
        n_kv_heads: int,
        head_dim: int,
        *,
        head_dim_v: int | None = None,
        rope_base: float | None = 10000.0,
        pairing: str = "halves",
        bias: bool = False,
        out_bias: bool | None = None,
        scale: float | None = None,
    ) -> None:
        super().__init__()
        self.d_model = whole("d_model", d_model)
        self.attention = Attention.gqa(n_q_heads, n_kv_heads, head_dim, head_dim_v)  # checks the heads and widths
        self.n_q_heads, self.n_kv_heads = n_q_heads, n_kv_heads
        self.head_dim, self.head_dim_v = head_dim, self.attention.head_dim_v
        if rope_base is not None:
            check_rotary("head_dim", head_dim)
            check_base("rope_base", rope_base)
        check_pairing(pairing)
        self.rope_base, self.pairing = rope_base, pairing
        self.scale = softmax_scale(scale, head_dim)
        self.widths = {"k": (n_kv_heads, head_dim), "v": (n_kv_heads, self.head_dim_v)}
        self.w_q = nn.Linear(d_model, n_q_heads * head_dim, bias=bias)
        self.w_k = nn.Linear(d_model, n_kv_heads * head_dim, bias=bias)
        self.w_v = nn.Linear(d_model, n_kv_heads * self.head_dim_v, bias=bias)
        self.w_o = nn.Linear(n_q_heads * self.head_dim_v, d_model, bias=bias if out_bias is None else out_bias)

    def project(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x [B, M, d_model] -> q [B, M, Hq, d], k [B, M, Hkv, d], v [B, M, Hkv, dv], q and k turned to ``positions``."""
        q = self.w_q(x).unflatten(-1, (self.n_q_heads, self.head_dim))
        k = self.w_k(x).unflatten(-1, (self.n_kv_heads, self.head_dim))
        v = self.w_v(x).unflatten(-1, (self.n_kv_heads, self.head_dim_v))
        if self.rope_base is not None:
            cos, sin = rotation(positions, self.head_dim, base=self.rope_base, dtype=angle_dtype(x.dtype))
            cos, sin = cos.unsqueeze(-2), sin.unsqueeze(-2)  # the same for every head
            q, k = rotate(q, cos, sin, pairing=self.pairing), rotate(k, cos, sin, pairing=self.pairing)
        return q, k, v

    def forward(
        self, x: Tensor, cache: ContiguousCache | PagedCache | None = None, *, positions: Tensor | None = None
    ) -> Tensor:
        """x [B, M, d_model] -> [B, M, d_model].

        Without a cache the M tokens attend to each other, causally, and gradients flow. With one they are appended to it and
        attend to all it holds: up to 8 by the decode kernel, which reads the cache where it lies, more by the full-sequence
        kernel (for which pages are gathered first).

        ``positions`` [M] or [B, M] are those of the rotation; None counts on from what is cached. They do not change who sees
        whom: that is the order in the cache.
        """
        self.check_input(x, cache)
        q, k, v = self.project(x, self.places(x, cache, positions))
        if cache is None:
            out = full_attention(q, k.transpose(1, 2), v.transpose(1, 2), self.scale)
        else:
            cache.append(k=k, v=v)
            if x.shape[1] <= MAX_Q_LEN:
                out, _ = cache.decode(q, scale=self.scale)
            else:
                parts = (full_attention(q[rows], kv["k"], kv["v"], self.scale) for rows, kv in cache.stored())
                out = torch.cat(list(parts))
        return self.w_o(out.flatten(-2))

    def extra_repr(self) -> str:
        """What the weights' shapes do not say."""
        heads = f"n_q_heads={self.n_q_heads}, n_kv_heads={self.n_kv_heads}, head_dim={self.head_dim}"
        return f"{self.attention.kind}, {heads}, pairing={self.pairing!r}"


def full_attention(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """q [B, M, Hq, d], the last M of k [B, Hkv, N, d] and v [B, Hkv, N, dv] -> [B, M, Hq, dv], causal, differentiable."""
    out, _ = operations(q.dtype).attention(q.transpose(1, 2), k, v, causal=True, scale=scale)
    return out.transpose(1, 2)


def angle_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of cosines and sines: float32, and in a float64 layer float64."""
    return torch.float64 if dtype == torch.float64 else torch.float32
