"""Multi-head latent attention as a layer: one latent a token is cached, and every head has its own view of it.

In rows; c and k^R are what a token leaves behind, for all heads together:

    c   = RMSNorm(x W_DKV)    [d_c]         the latent, cached after its norm
    k^R = RoPE(x W_KR)        [d_r]         one rotary key, cached turned
    c^Q = RMSNorm(x W_DQ)     [d_cq]        the query's latent; x itself where queries are not compressed
    q_r = [c^Q W_UQ_r, RoPE(c^Q W_QR_r)]    [d_nope + d_r] for head r

    expanded    k_r = [c W_UK_r, k^R]    v_r = c W_UV_r    attention of every head over its own keys and values
    absorbed    q̂_r = q^C_r W_UK_rᵀ      scores (q̂_r cᵀ + q^R_r k^Rᵀ) · scale      out_r = (Σ a c) W_UV_r

Both are the same function, because (q W_UKᵀ) cᵀ = q (c W_UK)ᵀ and (a C) W_UV = a (C W_UV). The expanded form needs fewer
products for many queries, and its gradients flow: training and prefill. The absorbed form reads the small cache and nothing
else: decode. The rotary part stands apart because a rotation between q and W_UKᵀ would depend on the distance, so that no
product of the two could be formed once. (DeepSeek-V2, 2405.04434, sections 2.1.1 to 2.1.4; the paper writes columns.)
"""

import math

import torch
from torch import Tensor, nn

from kernels.checks import softmax_scale

from ..costs import Attention
from ..costs.checks import whole
from .caches import MAX_Q_LEN, ContiguousCache, PagedCache, operations
from .gqa import CachedLayer, angle_dtype, full_attention
from .rope import check_base, check_pairing, check_rotary, rotate, rotation

FORMS = ("auto", "expanded", "absorbed")


class MLALayer(CachedLayer):
    """Latent attention with query compression, normalised latents and a decoupled rotary part.

    Args:
        d_model, n_heads: width of the tokens, and query heads.
        nope_dim, rope_dim: widths of a query's (and key's) part without and with rotation.
        head_dim_v: width of a head's value.
        latent_dim, q_latent_dim: widths of the cached latent and of the query's; None: queries come from x directly.
        rope_base, pairing: of the rotation; DeepSeek's checkpoints are 'interleaved'.
        scale: factor of the scores, 1/sqrt(nope_dim + rope_dim) if None. Never that of the absorbed width. Context extension
            may multiply it (DeepSeek-V3: 1.874).
        bias: biases of W_DQ, W_DKV, W_KR and W_O, which some configurations have.
        eps: of the norms.

    W_UK and W_UV are parameters [n_heads, latent_dim, width], as `kernels.reference.mla_expanded` takes them.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        *,
        nope_dim: int,
        rope_dim: int,
        head_dim_v: int,
        latent_dim: int,
        q_latent_dim: int | None = None,
        rope_base: float = 10000.0,
        pairing: str = "interleaved",
        scale: float | None = None,
        bias: bool = False,
        eps: float = 1e-6,
    ) -> None:
        super().__init__()
        widths = {"nope_dim": nope_dim, "head_dim_v": head_dim_v, "latent_dim": latent_dim}
        for name, width in {"d_model": d_model, "n_heads": n_heads, **widths}.items():
            whole(name, width)
        check_rotary("rope_dim", rope_dim)
        check_base("rope_base", rope_base)
        check_pairing(pairing)
        self.d_model, self.n_heads = d_model, n_heads
        self.nope_dim, self.rope_dim, self.head_dim_v = nope_dim, rope_dim, head_dim_v
        self.latent_dim, self.q_latent_dim = latent_dim, q_latent_dim
        self.rope_base, self.pairing = rope_base, pairing
        self.scale = softmax_scale(scale, nope_dim + rope_dim)
        self.attention = Attention.mla(n_heads, latent_dim, rope_dim)
        self.widths = {"latent": latent_dim, "k_rope": rope_dim}

        self.w_dq = self.q_norm = None
        if q_latent_dim is not None:
            self.w_dq = nn.Linear(d_model, whole("q_latent_dim", q_latent_dim), bias=bias)
            self.q_norm = nn.RMSNorm(q_latent_dim, eps=eps)
        q_source = d_model if q_latent_dim is None else q_latent_dim
        self.w_uq = nn.Linear(q_source, n_heads * nope_dim, bias=False)
        self.w_qr = nn.Linear(q_source, n_heads * rope_dim, bias=False)
        self.w_dkv = nn.Linear(d_model, latent_dim, bias=bias)
        self.kv_norm = nn.RMSNorm(latent_dim, eps=eps)
        self.w_kr = nn.Linear(d_model, rope_dim, bias=bias)
        self.w_uk = nn.Parameter(torch.empty(n_heads, latent_dim, nope_dim))
        self.w_uv = nn.Parameter(torch.empty(n_heads, latent_dim, head_dim_v))
        self.w_o = nn.Linear(n_heads * head_dim_v, d_model, bias=bias)
        for weight in (self.w_uk, self.w_uv):  # as nn.Linear begins
            nn.init.uniform_(weight, -1 / math.sqrt(latent_dim), 1 / math.sqrt(latent_dim))

    def queries(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """x [B, M, d_model] -> q^C [B, M, H, d_nope] and q^R [B, M, H, d_r], the latter turned."""
        source = x if self.w_dq is None else self.q_norm(self.w_dq(x))
        q_nope = self.w_uq(source).unflatten(-1, (self.n_heads, self.nope_dim))
        q_rope = self.w_qr(source).unflatten(-1, (self.n_heads, self.rope_dim))
        return q_nope, self._turn(q_rope, positions, per_head=True)

    def record(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """What tokens leave in the cache: x [B, M, d_model] -> c [B, M, d_c], normalised, and k^R [B, M, d_r], turned."""
        return self.kv_norm(self.w_dkv(x)), self._turn(self.w_kr(x), positions, per_head=False)

    def expand(self, latent: Tensor, k_rope: Tensor) -> tuple[Tensor, Tensor]:
        """c [B, N, d_c], k^R [B, N, d_r] -> each head's keys [B, H, N, d_nope + d_r] and values [B, H, N, d_v]."""
        k_nope = torch.einsum("bnc,hcd->bhnd", latent, self.w_uk)
        v = torch.einsum("bnc,hcd->bhnd", latent, self.w_uv)
        shared = k_rope.unsqueeze(1).expand(-1, self.n_heads, -1, -1)
        return torch.cat([k_nope, shared], -1), v

    def absorb(self, q_nope: Tensor) -> Tensor:
        """q^C [B, T, H, d_nope] -> q^C W_UKᵀ [B, T, H, d_c], which meets the latent itself."""
        return torch.einsum("bthd,hcd->bthc", q_nope, self.w_uk)

    def unabsorb(self, attended: Tensor) -> Tensor:
        """The attended latent [B, T, H, d_c] -> each head's value [B, T, H, d_v]."""
        return torch.einsum("bthc,hcd->bthd", attended, self.w_uv)

    def forward(
        self,
        x: Tensor,
        cache: ContiguousCache | PagedCache | None = None,
        *,
        form: str = "auto",
        positions: Tensor | None = None,
    ) -> Tensor:
        """x [B, M, d_model] -> [B, M, d_model]: the M tokens attend, causally, to what is cached and to each other.

        Args:
            cache: made by `new_cache` or `new_paged_cache`; the tokens' latents and rotary keys are appended to it. None: the
                tokens have only themselves, and gradients flow (in the expanded form).
            form: 'expanded', 'absorbed', or 'auto': absorbed with a cache and at most 8 new tokens, else expanded. Absorbed
                takes more than 8 in several steps, each reading the cache once.
            positions: [M] or [B, M] of the rotation; None counts on from what is cached.
        """
        if form not in FORMS:
            raise ValueError(f"form must be one of {', '.join(FORMS)}, got {form!r}")
        self.check_input(x, cache)
        positions = self.places(x, cache, positions)
        q_nope, q_rope = self.queries(x, positions)
        latent, k_rope = self.record(x, positions)
        if form == "auto":
            form = "absorbed" if cache is not None and x.shape[1] <= MAX_Q_LEN else "expanded"
        if form == "expanded":
            out = self._expanded(q_nope, q_rope, latent, k_rope, cache)
        else:
            out = self._absorbed(q_nope, q_rope, latent, k_rope, cache)
        return self.w_o(out.flatten(-2))

    def _expanded(
        self, q_nope: Tensor, q_rope: Tensor, latent: Tensor, k_rope: Tensor, cache: ContiguousCache | PagedCache | None
    ) -> Tensor:
        q = torch.cat([q_nope, q_rope], -1)
        if cache is None:
            return full_attention(q, *self.expand(latent, k_rope), self.scale)
        cache.append(latent=latent, k_rope=k_rope)
        parts = [full_attention(q[rows], *self.expand(**stored), self.scale) for rows, stored in cache.stored()]
        return torch.cat(parts)

    def _absorbed(
        self, q_nope: Tensor, q_rope: Tensor, latent: Tensor, k_rope: Tensor, cache: ContiguousCache | PagedCache | None
    ) -> Tensor:
        q_latent, parts = self.absorb(q_nope), []
        for first in range(0, q_nope.shape[1], MAX_Q_LEN):
            last = min(first + MAX_Q_LEN, q_nope.shape[1])
            new = slice(first, last)
            if cache is None:  # the tokens so far are the cache, as they lie
                decode = operations(q_latent.dtype).mla_decode
                attended, _ = decode(q_latent[:, new], q_rope[:, new], latent[:, :last], k_rope[:, :last], scale=self.scale)
            else:
                cache.append(latent=latent[:, new], k_rope=k_rope[:, new])
                attended, _ = cache.decode(q_latent[:, new], q_rope[:, new], scale=self.scale)
            parts.append(self.unabsorb(attended))
        return torch.cat(parts, 1)

    def _turn(self, x: Tensor, positions: Tensor, *, per_head: bool) -> Tensor:
        cos, sin = rotation(positions, self.rope_dim, base=self.rope_base, dtype=angle_dtype(x.dtype))
        if per_head:
            cos, sin = cos.unsqueeze(-2), sin.unsqueeze(-2)
        return rotate(x, cos, sin, pairing=self.pairing)

    def extra_repr(self) -> str:
        """What the weights' shapes do not say."""
        return (
            f"n_heads={self.n_heads}, nope_dim={self.nope_dim}, rope_dim={self.rope_dim}, head_dim_v={self.head_dim_v}, "
            f"latent_dim={self.latent_dim}, q_latent_dim={self.q_latent_dim}, pairing={self.pairing!r}, scale={self.scale:.4g}"
        )
