"""The definition of every operation of the course, in float64 and in as few words as we could find.

Same names and signatures as the kernels, plus the expanded form of MLA. Arguments that only steer a kernel (``num_splits``,
``workspace``, ``validate``, ``allow_tf32``) are accepted and change nothing. Everything is plain torch, so gradients flow.
Lengths and tables are Python numbers here: the definitions read them from the device, and never touch what lies beyond them.
"""

import torch

Tensor = torch.Tensor
State = tuple[Tensor, Tensor]


def softmax_state(scores: Tensor, v: Tensor) -> State:
    """scores […, M, N] with -inf where hidden, v […, N, Dv] -> out […, M, Dv], natural lse […, M]; no key gives 0 and -inf."""
    largest = scores.amax(-1, keepdim=True) if scores.shape[-1] else scores.new_full((*scores.shape[:-1], 1), -torch.inf)
    shift = torch.where(largest == -torch.inf, 0.0, largest).detach()
    weights = torch.exp(scores - shift)
    mass = weights.sum(-1, keepdim=True)
    total = torch.where(mass == 0, 1.0, mass)
    lse = torch.where(mass == 0, -torch.inf, shift + torch.log(total))
    return weights @ v / total, lse.squeeze(-1)


def attention(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, scale: float | None = None, allow_tf32: bool = False
) -> State:
    """q [B,Hq,M,Dqk], k [B,Hkv,N,Dqk], v [B,Hkv,N,Dv] -> out [B,Hq,M,Dv], lse [B,Hq,M]. Query i sees j <= i + N - M."""
    q, k, v = q.double(), k.double(), v.double()
    batch, n_q_heads, q_len, head_dim_qk = q.shape
    n_kv_heads, kv_len, head_dim_v = v.shape[1:]
    scale = head_dim_qk**-0.5 if scale is None else scale
    grouped = q.reshape(batch, n_kv_heads, n_q_heads // n_kv_heads, q_len, head_dim_qk)
    scores = scale * torch.einsum("bkgmd,bknd->bkgmn", grouped, k)
    if causal:
        i = torch.arange(q_len, device=q.device)[:, None]
        j = torch.arange(kv_len, device=q.device)[None, :]
        scores = scores.masked_fill(j > i + kv_len - q_len, -torch.inf)
    out, lse = softmax_state(scores, v.unsqueeze(2))
    return out.reshape(batch, n_q_heads, q_len, head_dim_v), lse.reshape(batch, n_q_heads, q_len)


def decode(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    seq_lens: Tensor | None = None,
    *,
    scale: float | None = None,
    num_splits: int | None = None,
    workspace: Tensor | None = None,
    validate: bool = False,
    allow_tf32: bool = False,
) -> State:
    """q [B,(T,)Hq,Dqk], k [B,Hkv,L,Dqk], v [B,Hkv,L,Dv] -> out [B,(T,)Hq,Dv], lse [B,(T,)Hq].

    Of sequence b the first seq_lens[b] tokens count; the T new ones are the last of them, causal among themselves.
    """
    if q.dim() == 3:
        out, lse = decode(q.unsqueeze(1), k, v, seq_lens, scale=scale)
        return out.squeeze(1), lse.squeeze(1)
    capacity = k.shape[2]
    lengths = [capacity] * len(k) if seq_lens is None else seq_lens.tolist()
    if any(not 0 <= n <= capacity for n in lengths):
        raise ValueError(f"seq_lens must lie between 0 and the cache's {capacity} tokens, got {lengths}")
    out, lse = q.new_empty(*q.shape[:-1], v.shape[-1], dtype=torch.float64), q.new_empty(q.shape[:-1], dtype=torch.float64)
    for b, n in enumerate(lengths):
        one = slice(b, b + 1)
        state = attention(q[one].transpose(1, 2), k[one, :, :n], v[one, :, :n], causal=True, scale=scale)
        out[one], lse[one] = (x.transpose(1, 2) for x in state)
    return out, lse


def gather_pages(pages: Tensor, block_table: Tensor, seq_lens: Tensor) -> list[Tensor]:
    """pages [n_pages, P, …], block_table [B, max_pages] -> of each sequence its tokens [len, …], in order.

    Token j of sequence b lies on page block_table[b, j // P] at offset j mod P.
    """
    page_size = pages.shape[1]
    tokens = []
    for table, length in zip(block_table, seq_lens.tolist(), strict=True):
        j = torch.arange(length, device=pages.device)
        page = table.long()[j // page_size]
        if ((page < 0) | (page >= len(pages))).any():
            raise ValueError(f"block_table must name pages 0 to {len(pages) - 1} for the tokens in use, got {page.tolist()}")
        tokens.append(pages[page, j % page_size])
    return tokens


def paged_decode(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    *,
    scale: float | None = None,
    num_splits: int | None = None,
    workspace: Tensor | None = None,
    validate: bool = False,
    allow_tf32: bool = False,
) -> State:
    """``decode`` with k_pages [n_pages, P, Hkv, Dqk], v_pages [n_pages, P, Hkv, Dv] and block_table [B, max_pages]."""
    out = q.new_empty(*q.shape[:-1], v_pages.shape[-1], dtype=torch.float64)
    lse = q.new_empty(q.shape[:-1], dtype=torch.float64)
    keys, values = (gather_pages(pages, block_table, seq_lens) for pages in (k_pages, v_pages))
    for b, (k, v) in enumerate(zip(keys, values, strict=True)):
        one = slice(b, b + 1)
        out[one], lse[one] = decode(q[one], k.transpose(0, 1)[None], v.transpose(0, 1)[None], scale=scale)
    return out, lse


def mla_expanded(
    q_nope: Tensor,
    q_rope: Tensor,
    latent: Tensor,
    k_rope: Tensor,
    w_uk: Tensor,
    w_uv: Tensor,
    *,
    scale: float,
    causal: bool = False,
) -> State:
    """MLA as it is trained: every head's own keys and values, rebuilt from the latent.

    q_nope [B,Hq,M,d_nope], q_rope [B,Hq,M,d_r], latent [B,N,d_c], k_rope [B,N,d_r], w_uk [Hq,d_c,d_nope], w_uv [Hq,d_c,d_v]
    -> out [B,Hq,M,d_v], lse [B,Hq,M]. ``scale`` belongs to the model: 1/sqrt(d_nope + d_r) before any context extension.
    (DeepSeek-V2, section 2.1, equations 9 to 19.)
    """
    n_q_heads = q_nope.shape[1]
    keys = torch.einsum("bnc,hcd->bhnd", latent.double(), w_uk.double())
    values = torch.einsum("bnc,hcd->bhnd", latent.double(), w_uv.double())
    shared = k_rope.double()[:, None].expand(-1, n_q_heads, -1, -1)
    q = torch.cat([q_nope, q_rope], -1)
    return attention(q, torch.cat([keys, shared], -1), values, causal=causal, scale=scale)


def mla_decode(
    q_latent: Tensor,
    q_rope: Tensor,
    latent: Tensor,
    k_rope: Tensor,
    seq_lens: Tensor | None = None,
    *,
    scale: float,
    num_splits: int | None = None,
    workspace: Tensor | None = None,
    validate: bool = False,
    allow_tf32: bool = False,
) -> State:
    """MLA absorbed: one shared record a token, which is key and value at once.

    q_latent [B,(T,)Hq,d_c] = q_nope w_ukᵀ, q_rope [B,(T,)Hq,d_r], latent [B,L,d_c], k_rope [B,L,d_r]
    -> out [B,(T,)Hq,d_c], the attended latent, which w_uv turns into the head's value; lse [B,(T,)Hq].
    (DeepSeek-V2, section 2.1.2, the absorption of W^UK and W^UV.)
    """
    record = torch.cat([latent, k_rope], -1).unsqueeze(1)
    return decode(torch.cat([q_latent, q_rope], -1), record, latent.unsqueeze(1), seq_lens, scale=scale)


def paged_mla_decode(
    q_latent: Tensor,
    q_rope: Tensor,
    latent_pages: Tensor,
    k_rope_pages: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    *,
    scale: float,
    num_splits: int | None = None,
    workspace: Tensor | None = None,
    validate: bool = False,
    allow_tf32: bool = False,
) -> State:
    """``mla_decode`` with latent_pages [n_pages, P, d_c], k_rope_pages [n_pages, P, d_r] and block_table [B, max_pages]."""
    record_pages = torch.cat([latent_pages, k_rope_pages], -1).unsqueeze(2)
    q = torch.cat([q_latent, q_rope], -1)
    return paged_decode(q, record_pages, latent_pages.unsqueeze(2), block_table, seq_lens, scale=scale)


def merge(outs: Tensor, lses: Tensor) -> State:
    """outs [S,…,Dv], lses [S,…] over disjoint keys -> out […,Dv], lse […] over their union."""
    out, lse = softmax_state(lses.double().movedim(0, -1).unsqueeze(-2), _kept(outs, lses).movedim(0, -2))
    return out.squeeze(-2), lse.squeeze(-1)


def _kept(outs: Tensor, lses: Tensor) -> Tensor:
    """The outputs, 0 where a state has no mass: such an output may hold anything."""
    return torch.where((lses == -torch.inf).unsqueeze(-1), 0.0, outs.double())
