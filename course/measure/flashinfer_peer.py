"""FlashInfer as a contender, where it is installed: its wrappers, planned once, on our inputs.

Its own layouts are token-major. Whole sequences and contiguous caches are copied into them once, before anything is timed;
pages and MLA records are read as they lie.
"""

import flashinfer
import flashinfer.mla
import torch

from .contenders import OWN_PAGE, Answer, Call, Contender, Inputs
from .shapes import Point, Shape


def _workspace(device: torch.device) -> torch.Tensor:
    """FlashInfer's memory for plans and partial results: one for each wrapper, which keeps its plan there, and zeroed."""
    return torch.zeros(256 * 2**20, dtype=torch.uint8, device=device)


def planned(point: Point) -> Contender:
    """FlashInfer's wrapper for the shape, planned once; 'fa2' and 'fa3' are its tensor-core kernels."""
    shape = point.shape
    plan = _flashinfer_mla if shape.head_dim_shared else _flashinfer_decode if shape.decodes else _flashinfer_prefill
    made: list[Contender] = []

    def contender(x: Inputs) -> Call:
        if not made:
            made.append(plan(point, x))
        return made[0](x)

    return contender


def _pages(shape: Shape, x: Inputs) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """FlashInfer's block table: where each sequence begins in the list of pages, the list, tokens on its last page."""
    page = shape.page_size or OWN_PAGE
    counts = [-(-n // page) for n in shape.seq_lens]
    bounds = torch.tensor([0, *counts]).cumsum(0).int()
    last = torch.tensor([n - (count - 1) * page for n, count in zip(shape.seq_lens, counts, strict=True)]).int()
    if shape.page_size:
        pages = torch.cat([own[:count] for own, count in zip(x["block_table"], counts, strict=True)])
    else:
        pages = torch.arange(sum(counts), dtype=torch.int32, device=next(iter(x.values())).device)
    return bounds, pages, last


def _tokens(shape: Shape, out: torch.Tensor) -> Answer:
    """[B * M, Hq, Dv] -> [B, Hq, M, Dv]."""
    return (out.unflatten(0, (shape.batch, shape.q_len)).transpose(1, 2),), None


def _flashinfer_decode(point: Point, x: Inputs) -> Contender:
    shape, dtype = point.shape, x["q"].dtype
    bounds, pages, last = _pages(shape, x)
    sizes = (shape.n_q_heads, shape.n_kv_heads, shape.head_dim_qk, shape.page_size or OWN_PAGE)
    types = {"q_data_type": dtype, "kv_data_type": dtype}
    if shape.q_len == 1:
        tensor_cores = point.backend != "CUDA cores"
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
            _workspace(x["q"].device), "NHD", use_tensor_cores=tensor_cores, backend=point.backend if tensor_cores else "auto"
        )
        wrapper.plan(bounds, pages, last, *sizes, **types)
    else:
        wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(_workspace(x["q"].device), "NHD", backend=point.backend)
        q_bounds = torch.arange(shape.batch + 1, dtype=torch.int32) * shape.q_len
        wrapper.plan(q_bounds, bounds, pages, last, *sizes, causal=True, **types)

    def contender(x: Inputs) -> Call:
        if shape.page_size:
            cache = x["k_pages"], x["v_pages"]
        else:  # token-major pages of its own: a copy, made once
            cache = tuple(x[name].transpose(1, 2).reshape(-1, OWN_PAGE, shape.n_kv_heads, x[name].shape[-1]) for name in "kv")
        q = x["q"].flatten(0, 1) if shape.q_len > 1 else x["q"]
        return lambda: _tokens(shape, wrapper.run(q, cache))

    return contender


def _flashinfer_mla(point: Point, x: Inputs) -> Contender:
    shape, device = point.shape, x["q_latent"].device
    bounds, pages, _ = _pages(shape, x)
    page = shape.page_size or OWN_PAGE
    wrapper = flashinfer.mla.BatchMLAPagedAttentionWrapper(_workspace(device), backend=point.backend)
    wrapper.plan(
        metadata=flashinfer.mla.MLAPlanMetadata.csr(
            qo_indptr=torch.arange(shape.batch + 1, dtype=torch.int32, device=device) * shape.q_len,
            kv_indptr=bounds.to(device),
            kv_indices=pages,
            kv_len_arr=torch.tensor(shape.seq_lens, dtype=torch.int32, device=device),
        ),
        num_heads=shape.n_q_heads, head_dim_ckv=512, head_dim_kpe=64, page_size=page, causal=shape.q_len > 1,
        sm_scale=shape.scale, q_data_type=x["q_latent"].dtype, kv_data_type=x["q_latent"].dtype, scale_mode="default",
        query_layout="split", kv_cache_layout="split",
    )  # fmt: skip

    def contender(x: Inputs) -> Call:
        q = tuple(x[name].flatten(0, 1) if shape.q_len > 1 else x[name] for name in ("q_latent", "q_rope"))
        if shape.page_size:
            cache = x["latent_pages"], x["k_rope_pages"]
        else:
            cache = tuple(x[name].reshape(-1, page, x[name].shape[-1]) for name in ("latent", "k_rope"))
        return lambda: _tokens(shape, wrapper.run(query=q, kv_cache=cache))

    return contender


def _flashinfer_prefill(point: Point, x: Inputs) -> Contender:
    shape, dtype = point.shape, x["q"].dtype
    wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(_workspace(x["q"].device), "NHD", backend=point.backend)
    steps = torch.arange(shape.batch + 1, dtype=torch.int32, device=x["q"].device)
    wrapper.plan(
        steps * shape.q_len, steps * shape.context_len, shape.n_q_heads, shape.n_kv_heads, shape.head_dim_qk, shape.head_dim_v,
        causal=shape.causal, q_data_type=dtype, kv_data_type=dtype,
    )  # fmt: skip

    def contender(x: Inputs) -> Call:
        q, k, v = (x[name].transpose(1, 2).flatten(0, 1) for name in "qkv")  # token-major: copies, made once
        return lambda: _tokens(shape, wrapper.run(q, k, v))

    return contender
