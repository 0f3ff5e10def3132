"""The definition of every operation of the course, in float64 and in as few words as we could find.

Same names and signatures as the kernels, plus the expanded form of MLA. Arguments that only steer a kernel (``num_splits``,
``work``, ``workspace``, ``validate``, ``allow_tf32``) are accepted and change nothing. It is plain torch, so gradients flow.
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
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> State:
    """q [B,(T,)Hq,Dqk], k [B,Hkv,L,Dqk], v [B,Hkv,L,Dv], scales [B,Hkv,L] -> out [B,(T,)Hq,Dv], lse [B,(T,)Hq].

    Of sequence b the first seq_lens[b] tokens count; the T new ones are the last of them, causal among themselves.
    """
    k, v = scaled(k, k_scale), scaled(v, v_scale)
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


def scaled(stored: Tensor, scale: Tensor | None) -> Tensor:
    """What an 8-bit cache stands for: stored […, D] times the scale […] of its token."""
    return stored if scale is None else stored.double() * scale.double().unsqueeze(-1)


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
    work: object = None,
    workspace: Tensor | None = None,
    validate: bool = False,
    allow_tf32: bool = False,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> State:
    """``decode`` with k_pages [n_pages, P, Hkv, Dqk], v_pages [n_pages, P, Hkv, Dv] and block_table [B, max_pages]."""
    k_pages, v_pages = scaled(k_pages, k_scale), scaled(v_pages, v_scale)
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
    latent_scale: Tensor | None = None,
) -> State:
    """MLA absorbed: one shared record a token, which is key and value at once.

    q_latent [B,(T,)Hq,d_c] = q_nope w_ukᵀ, q_rope [B,(T,)Hq,d_r], latent [B,L,d_c], k_rope [B,L,d_r]
    -> out [B,(T,)Hq,d_c], the attended latent, which w_uv turns into the head's value; lse [B,(T,)Hq].
    (DeepSeek-V2, section 2.1.2, the absorption of W^UK and W^UV.)
    """
    latent = scaled(latent, latent_scale)
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
    work: object = None,
    workspace: Tensor | None = None,
    validate: bool = False,
    allow_tf32: bool = False,
    latent_scale: Tensor | None = None,
) -> State:
    """``mla_decode`` with latent_pages [n_pages, P, d_c], k_rope_pages [n_pages, P, d_r] and block_table [B, max_pages]."""
    latent_pages = scaled(latent_pages, latent_scale)
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


def copy(x: Tensor, *, block: int = 1024) -> Tensor:
    """A contiguous copy."""
    return x.clone(memory_format=torch.contiguous_format)


def softmax(x: Tensor) -> Tensor:
    """exp(x - largest) / total over the last axis of x [R, N]; a row of -inf gives zeros, one with +inf or NaN gives NaN."""
    return torch.where((x == -torch.inf).all(-1, keepdim=True), 0.0, torch.softmax(x.double(), -1))


def softmax_three_passes(x: Tensor, *, block: int = 1024) -> Tensor:
    """``softmax``."""
    return softmax(x)


def one_row(q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, block_n: int | None = None) -> State:
    """q [Dqk], k [N,Dqk], v [N,Dv] -> out [Dv], lse []."""
    out, lse = attention(q[None, None, None], k[None, None], v[None, None], scale=scale)
    return out[0, 0, 0], lse[0, 0, 0]


def quantise(rows: Tensor) -> tuple[Tensor, Tensor]:
    """rows […, D] -> float8_e4m3fn […, D] and float32 scales […], with rows = stored * scale up to rounding.

    scale = max|row| / 448, so that the largest element becomes the largest number of the format, and not below the smallest
    normal float32, so that a row of zeros is stored as zeros. Both divisions are float32's, rounding is to nearest even.
    """
    rows = rows.float()
    largest = rows.abs().amax(-1)
    # A tensor as the divisor: by a number, torch on a GPU multiplies with the reciprocal, which rounds differently.
    scale = (largest / torch.full_like(largest, 448.0)).clamp_min(torch.finfo(torch.float32).tiny)
    return (rows / scale.unsqueeze(-1)).to(torch.float8_e4m3fn), scale


def _append_rows(new: Tensor, cache: Tensor, scale: Tensor | None, places: list[tuple]) -> None:
    """Write new[b, t] to cache[place] for every (b, t, place)."""
    for b, t, place in places:
        if scale is None:
            cache[place] = new[b, t]
        else:
            cache[place], scale[place] = quantise(new[b, t])


def _new_places(seq_lens: Tensor, q_len: int, capacity: int) -> list[tuple]:
    """(sequence, new token, position) of the new tokens inside the cache; seq_lens counts them, so they are the last of it."""
    positions = [(b, t, length - q_len + t) for b, length in enumerate(seq_lens.tolist()) for t in range(q_len)]
    return [(b, t, j) for b, t, j in positions if 0 <= j < capacity]


def _new_pages(seq_lens: Tensor, q_len: int, block_table: Tensor, pages: Tensor) -> list[tuple]:
    """(sequence, new token, (page, slot)) of the new tokens: position j is slot j mod P of page block_table[b, j // P]."""
    n_pages, page_size = pages.shape[:2]
    places = []
    for b, t, j in _new_places(seq_lens, q_len, block_table.shape[1] * page_size):
        page = int(block_table[b, j // page_size])
        if not 0 <= page < n_pages:
            raise ValueError(f"block_table must name pages 0 to {n_pages - 1} for the tokens in use, got {page}")
        places.append((b, t, (page, j % page_size)))
    return places


def append(
    k_new: Tensor,
    v_new: Tensor,
    k: Tensor,
    v: Tensor,
    seq_lens: Tensor,
    *,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    validate: bool = False,
) -> None:
    """k_new [B,(T,)Hkv,Dqk] into k [B,Hkv,L,Dqk], v_new [B,(T,)Hkv,Dv] into v [B,Hkv,L,Dv], in place.

    seq_lens [B] counts the new tokens: token t of T goes to position seq_lens[b] - T + t, if that is in the cache. With scales
    [B,Hkv,L] the caches are float8_e4m3fn and rows are quantised.
    """
    k_new, v_new = (rows if rows.dim() == 4 else rows.unsqueeze(1) for rows in (k_new, v_new))
    places = [(b, t, (b, slice(None), j)) for b, t, j in _new_places(seq_lens, k_new.shape[1], k.shape[2])]
    _append_rows(k_new, k, k_scale, places)
    _append_rows(v_new, v, v_scale, places)


def paged_append(
    k_new: Tensor,
    v_new: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    *,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    validate: bool = False,
) -> None:
    """``append`` to k_pages [n_pages,P,Hkv,Dqk], v_pages [n_pages,P,Hkv,Dv]; scales [n_pages,P,Hkv]."""
    k_new, v_new = (rows if rows.dim() == 4 else rows.unsqueeze(1) for rows in (k_new, v_new))
    places = _new_pages(seq_lens, k_new.shape[1], block_table, k_pages)
    _append_rows(k_new, k_pages, k_scale, places)
    _append_rows(v_new, v_pages, v_scale, places)


def mla_append(
    latent_new: Tensor,
    k_rope_new: Tensor,
    latent: Tensor,
    k_rope: Tensor,
    seq_lens: Tensor,
    *,
    latent_scale: Tensor | None = None,
    validate: bool = False,
) -> None:
    """latent_new [B,(T,)d_c] into latent [B,L,d_c], k_rope_new [B,(T,)d_r] into k_rope [B,L,d_r]; scale [B,L] of the latent."""
    latent_new, k_rope_new = (rows if rows.dim() == 3 else rows.unsqueeze(1) for rows in (latent_new, k_rope_new))
    places = [(b, t, (b, j)) for b, t, j in _new_places(seq_lens, latent_new.shape[1], latent.shape[1])]
    _append_rows(latent_new, latent, latent_scale, places)
    _append_rows(k_rope_new, k_rope, None, places)


def paged_mla_append(
    latent_new: Tensor,
    k_rope_new: Tensor,
    latent_pages: Tensor,
    k_rope_pages: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    *,
    latent_scale: Tensor | None = None,
    validate: bool = False,
) -> None:
    """``mla_append`` to latent_pages [n_pages,P,d_c], k_rope_pages [n_pages,P,d_r]; scale [n_pages,P] of the latent."""
    latent_new, k_rope_new = (rows if rows.dim() == 3 else rows.unsqueeze(1) for rows in (latent_new, k_rope_new))
    places = _new_pages(seq_lens, latent_new.shape[1], block_table, latent_pages)
    _append_rows(latent_new, latent_pages, latent_scale, places)
    _append_rows(k_rope_new, k_rope_pages, None, places)
