"""What the decode tests share: lengths, pages in any order with anything in their dead slots, and PyTorch's own answer."""

import torch

from tests.kernels.accuracy import COMPILED, FLOORS, assert_accurate, assert_lse, sdpa_math


def lens(device, *values, dtype=torch.int32):
    return torch.tensor(values, dtype=dtype, device=device)


def peer(q, k, v, seq_lens, scale=None):
    """SDPA MATH in the inputs' dtype, with lengths as a mask; 0 where a sequence is empty."""
    tokens = q if q.dim() == 4 else q.unsqueeze(1)
    q_len, context_len = tokens.shape[1], k.shape[2]
    lengths = torch.full((len(k),), context_len, device=k.device) if seq_lens is None else seq_lens.long()
    keys = torch.arange(context_len, device=k.device)
    last = lengths[:, None] - q_len + torch.arange(q_len, device=k.device)[None, :]
    mask = keys[None, None, :] <= last[:, :, None]
    alive = (keys < lengths[:, None])[:, None, :, None]
    k, v = torch.where(alive, k, 0), torch.where(alive, v, 0)
    out = sdpa_math(tokens.transpose(1, 2), k, v, mask[:, None], scale)
    out = torch.where(mask.any(-1)[:, None, :, None], out, 0).transpose(1, 2)
    return out if q.dim() == 4 else out.squeeze(1)


def assert_same(one, other):
    """Two results are equal, bit for bit."""
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def assert_alike(one, other):
    """Bit for bit in the interpreter. For a GPU another layout is another kernel, whose sums may run in another order."""
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=4 * FLOORS[one[0].dtype] if COMPILED else 0)


def assert_repeats(run, device):
    """A thousand replays of a CUDA graph give what the first run gave, bit for bit; ``run`` returns the tensors."""
    first = [x.clone() for x in run()]
    differing = torch.zeros((), dtype=torch.int64, device=device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        differing += sum((one != other).sum() for one, other in zip(run(), first, strict=True))
    for _ in range(1000):
        graph.replay()
    assert differing.item() == 0


def assert_state(got, wanted, q, peer=None, *, columns=128, size=1.0):
    """(out, lse) in the dtype of q, against the float64 definition and PyTorch in that dtype.

    A kernel adds the products of a float32 score one after another, so what their sum loses grows with the ``columns`` of a
    key; libraries of matrix products add several chains side by side. 16-bit inputs meet tensor cores, which do so too.
    """
    assert got[0].dtype == q.dtype
    if q.dtype == torch.float32:
        size *= max(1, columns / 128)
    assert_accurate(got[0], wanted[0], peer, size)
    assert_lse(got[1], wanted[1])


def by_token(cache):
    """[B, Hkv, L, …] as pages have it: [B, L, Hkv, …]."""
    return cache.transpose(1, 2)


def scatter(seq_lens, page_size, *caches, filling=torch.nan, garbage=-1, spare=3, table_dtype=torch.int32, seed=1):
    """A block table and, of each cache [B, L, …], its pages [n_pages, P, …]: the tokens in use, on pages in random order.

    Every other slot, of unowned pages too, holds ``filling``, and every table entry not in use ``garbage``. There is room for L
    tokens a sequence, L rounded up to whole pages.
    """
    max_pages = -(-caches[0].shape[1] // page_size)
    n_pages = len(seq_lens) * max_pages + spare
    order = torch.randperm(n_pages, generator=torch.Generator().manual_seed(seed)).tolist()
    table = torch.full((len(seq_lens), max_pages), garbage, dtype=table_dtype)
    pages = [
        cache.new_full((n_pages, page_size, *cache.shape[2:]), filling, dtype=torch.float32).to(cache.dtype) for cache in caches
    ]
    for b, length in enumerate(seq_lens.tolist()):
        for i in range(-(-length // page_size)):
            table[b, i] = page = order.pop()
            tokens = slice(i * page_size, min((i + 1) * page_size, length))
            for paged, cache in zip(pages, caches, strict=True):
                paged[page, : tokens.stop - tokens.start] = cache[b, tokens]
    return table.to(seq_lens.device), *pages


def variants(*jitted):
    """How many variants of each kernel this process has compiled for a GPU."""
    return tuple(sum(len(cache[0]) for cache in kernel.device_caches.values()) for kernel in jitted)
