"""Caches: bytes against what is allocated, growth in place, parts, forks with copies, and that no step copies the cache."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

import kernels
from course.costs import Attention
from course.layers import ContiguousCache, OutOfPages, PageAllocator, PagedCache
from tests.course.layers.plain import poison

HEADS = {"k": (2, 8), "v": (2, 6)}
LATENT = {"latent": 12, "k_rope": 4}
TOLERANCE = {"atol": 1e-5, "rtol": 1e-5}
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def rows(widths, batch, tokens, dtype=torch.float64, device="cpu"):
    """New tokens for a cache of these widths."""
    shapes = {name: width if isinstance(width, tuple) else (width,) for name, width in widths.items()}
    return {name: torch.randn(batch, tokens, *shape, device=device).to(dtype) for name, shape in shapes.items()}


def both(widths, batch, dtype=torch.float64, device="cpu", *, capacity=24, page_size=4):
    """A contiguous and a paged cache of the same room, full of NaN."""
    allocator = PageAllocator(batch * -(-capacity // page_size), page_size)
    return [
        poison(ContiguousCache(batch, capacity, widths, dtype=dtype, device=device)),
        poison(PagedCache(allocator, batch, widths, dtype=dtype, device=device)),
    ]


def read(cache, name):
    """Of each sequence its stored rows, [(Hkv,) N, width]."""
    return [row for _, stored in cache.stored() for row in stored[name]]


@pytest.mark.parametrize("widths", [HEADS, LATENT], ids=["heads", "latent"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_reports_the_bytes_that_are_allocated(widths, dtype, device):
    for cache in both(widths, 3, dtype, device):
        allocated = sum(cache[name].untyped_storage().nbytes() for name in widths)
        assert cache.n_bytes == allocated == 3 * 24 * cache.bytes_per_token
        assert cache.bytes_used == 0
        attention = Attention.mla(5, 12, 4) if widths is LATENT else Attention.gqa(4, 2, 8, 6)
        assert cache.bytes_per_token == attention.bytes_per_token(dtype.itemsize)


def test_paged_bytes_by_hand():
    cache = PagedCache(PageAllocator(10, 4), 2, LATENT, dtype=torch.float64)
    token = 8 * (12 + 4)
    cache.append(**rows(LATENT, 2, 5))
    assert (cache.n_bytes, cache.bytes_held, cache.bytes_used) == (40 * token, 16 * token, 10 * token)
    fork = cache.of([cache.sequences[0], cache.allocator.fork(cache.sequences[0])])
    assert (cache.bytes_held, cache.bytes_used) == (16 * token, 10 * token)  # shared tokens count once
    fork.append(**rows(LATENT, 2, 1))
    assert (cache.bytes_held, cache.bytes_used) == (20 * token, 13 * token)  # one page copied, with its one token
    cache.allocator.free(fork.sequences[1])
    assert (cache.bytes_held, cache.bytes_used) == (16 * token, 11 * token)


def test_contiguous_bytes_of_a_part():
    cache = ContiguousCache(3, 10, HEADS, dtype=torch.float64)
    part = cache.sequence(1)
    part.append(**rows(HEADS, 1, 4))
    assert part.n_bytes * 3 == cache.n_bytes and part.bytes_used == cache.bytes_used == 4 * 2 * (8 + 6) * 8


@pytest.mark.parametrize("widths", [HEADS, LATENT], ids=["heads", "latent"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_appends_in_place_and_reads_back(widths, dtype, device, mode):
    for cache in both(widths, 2, dtype, device):
        addresses = [cache[name].data_ptr() for name in widths]
        pieces = [rows(widths, 2, tokens, dtype, device) for tokens in (1, 6, 3)]
        for piece in pieces:
            cache.append(**piece)
        assert cache.lengths == [10, 10] and cache.seq_lens.tolist() == [10, 10]
        assert (
            cache.seq_lens.dtype == torch.int32 and cache.seq_lens.device == cache["k" if widths is HEADS else "latent"].device
        )
        for name in widths:
            wanted = torch.cat([piece[name] for piece in pieces], 1)
            wanted = wanted.transpose(1, 2) if widths is HEADS else wanted
            assert torch.equal(torch.stack(read(cache, name)), wanted)
        assert [cache[name].data_ptr() for name in widths] == addresses


@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_ragged_sequences_and_forks_keep_their_own(data):
    """Any mix of appends to parts of a batch, forks and ends; paged and contiguous tell the same story."""
    torch.manual_seed(data.draw(st.integers(0, 2**16)))
    page_size = data.draw(st.integers(1, 5))
    cache = poison(PagedCache(PageAllocator(60, page_size), 2, LATENT, dtype=torch.float64))
    texts = {sequence: torch.empty(0, 12, dtype=torch.float64) for sequence in cache.sequences}
    for _ in range(data.draw(st.integers(1, 8))):
        action = data.draw(st.sampled_from(["append", "append", "fork", "free"]))
        some = data.draw(st.lists(st.sampled_from(sorted(texts)), min_size=1, max_size=3, unique=True))
        if action == "append":
            tokens = data.draw(st.integers(1, 5))
            if cache.allocator.pages_needed(some, tokens) > cache.allocator.n_free:
                continue
            new = rows(LATENT, len(some), tokens)
            cache.of(some).append(**new)
            for sequence, row in zip(some, new["latent"], strict=True):
                texts[sequence] = torch.cat([texts[sequence], row])
        elif action == "fork":
            length = data.draw(st.integers(0, len(texts[some[0]])))
            texts[cache.allocator.fork(some[0], length)] = texts[some[0]][:length]
        elif len(texts) > 1:
            cache.allocator.free(some[0])
            del texts[some[0]]
        cache.allocator.check()
        everyone = cache.of(list(texts))
        for text, got in zip(texts.values(), read(everyone, "latent"), strict=True):
            assert torch.equal(text, got)
    assert not any(text.isnan().any() for text in texts.values())


@pytest.mark.parametrize("widths", [HEADS, LATENT], ids=["heads", "latent"])
def test_parts_share_memory_and_counts(widths):
    for cache in both(widths, 3):
        cache.sequence(1).append(**rows(widths, 1, 5))
        cache.sequence(2).append(**rows(widths, 1, 2))
        cache.append(**rows(widths, 3, 1))
        assert cache.lengths == [1, 6, 3] and cache.seq_lens.tolist() == [1, 6, 3]
        assert cache.select([1, 2]).lengths == [6, 3] and cache.select([1, 2]).seq_lens.tolist() == [6, 3]
        assert [len(stored[next(iter(widths))]) for _, stored in cache.stored()] == [1, 1, 1]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_decodes_ragged_lengths(dtype, device, mode):
    """Against softmax written out; both kinds, several new tokens, dead slots NaN."""
    for cache in both(HEADS, 2, dtype, device):
        for i, length in enumerate((9, 4)):
            cache.sequence(i).append(**rows(HEADS, 1, length, dtype, device))
        q = torch.randn(2, 3, 6, 8, device=device).to(dtype)
        out, lse = cache.decode(q, scale=0.3)
        for b, (k, v) in enumerate(zip(read(cache, "k"), read(cache, "v"), strict=True)):
            for t in range(3):
                for r in range(6):
                    seen = k.shape[1] - 3 + t + 1
                    scores = 0.3 * k[r // 3, :seen].double() @ q[b, t, r].double()
                    torch.testing.assert_close(
                        out[b, t, r].double(), scores.softmax(0) @ v[r // 3, :seen].double(), **TOLERANCE
                    )
                    assert lse[b, t, r].item() == pytest.approx(scores.logsumexp(0).item(), abs=1e-5)


def test_decodes_latents(device, mode):
    for cache in both(LATENT, 2, torch.float32, device):
        cache.append(**rows(LATENT, 2, 7, torch.float32, device))
        q_latent, q_rope = torch.randn(2, 2, 5, 12, device=device), torch.randn(2, 2, 5, 4, device=device)
        out, _ = cache.decode(q_latent, q_rope, scale=0.2)
        latent, k_rope = torch.stack(read(cache, "latent")), torch.stack(read(cache, "k_rope"))
        wanted, _ = kernels.reference.mla_decode(q_latent, q_rope, latent, k_rope, scale=0.2)
        torch.testing.assert_close(out.double(), wanted, **TOLERANCE)


class Largest(TorchDispatchMode):
    """The largest number of elements in any tensor that an operation returns as new memory."""

    def __init__(self, *known):
        super().__init__()
        self.known = {tensor.untyped_storage().data_ptr() for tensor in known}
        self.elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage().data_ptr() not in self.known:
                self.elements = max(self.elements, tensor.numel())
        return result


@pytest.mark.parametrize("widths", [HEADS, LATENT], ids=["heads", "latent"])
@pytest.mark.parametrize("kind", [0, 1], ids=["contiguous", "paged"])
def test_a_step_copies_no_cache(widths, kind, device, monkeypatch):
    """It calls the kernels that read and write in place, and makes no tensor as large as one sequence's tokens."""
    called = []
    names = [f"{paged}{mla}{what}" for paged in ("", "paged_") for mla in ("", "mla_") for what in ("append", "decode")]
    for name in names:
        real = getattr(kernels, name)
        monkeypatch.setattr(kernels, name, lambda *a, name=name, real=real, **o: (called.append(name), real(*a, **o))[1])
    cache = both(widths, 2, torch.float32, device, capacity=512, page_size=64)[kind]
    cache.append(**rows(widths, 2, 40, torch.float32, device))
    queries = (torch.randn(2, 1, 4, 8, device=device),)
    if widths is LATENT:
        queries = torch.randn(2, 1, 4, 12, device=device), torch.randn(2, 1, 4, 4, device=device)
    new = rows(widths, 2, 1, torch.float32, device)
    called.clear()
    with Largest(*(cache[name] for name in widths)) as seen:
        cache.append(**new)
        cache.decode(*queries, scale=0.5)
    prefix = ("paged_" if kind else "") + ("mla_" if widths is LATENT else "")
    assert called == [f"{prefix}append", f"{prefix}decode"]
    assert 0 < seen.elements < 300 or kernels.MODE == "reference"  # the definitions copy as they please


def test_without_room_nothing_changes():
    for cache in both(HEADS, 2, capacity=8):
        cache.append(**rows(HEADS, 2, 7))
        before = {name: cache[name].clone() for name in HEADS}
        error = ValueError if isinstance(cache, ContiguousCache) else OutOfPages
        with pytest.raises(error, match="capacity is 8 tokens: no room for 2 more behind 7|2 pages are needed .* 0 are free"):
            cache.append(**rows(HEADS, 2, 2))
        assert cache.lengths == [7, 7]
        for name in HEADS:
            assert torch.equal(cache[name].nan_to_num(1e9), before[name].nan_to_num(1e9))
        cache.append(**rows(HEADS, 2, 1))


@pytest.mark.parametrize(
    "error, words, change",
    [
        (TypeError, "append wants k and v, got k", lambda new: new.pop("v")),
        (TypeError, "k must be a torch.Tensor", lambda new: new.update(k=[1.0])),
        (
            ValueError,
            r"k must have shape \[2, T, 2, 8\], got \[2, 3, 2, 9\]",
            lambda new: new.update(k=torch.zeros(2, 3, 2, 9)),
        ),
        (
            ValueError,
            r"v must have shape \[2, 3, 2, 6\], got \[2, 4, 2, 6\]",
            lambda new: new.update(v=torch.zeros(2, 4, 2, 6)),
        ),
        (ValueError, r"k must have shape \[2, T, 2, 8\], got \[2, 2, 8\]", lambda new: new.update(k=torch.zeros(2, 2, 8))),
        (TypeError, "v must be torch.float32 on", lambda new: new.update(v=new["v"].half())),
        (kernels.Unsupported, "v requires a gradient", lambda new: new["v"].requires_grad_()),
    ],
)
def test_appends_are_checked_before_anything_changes(error, words, change):
    for cache in both(HEADS, 2, torch.float32):
        new = rows(HEADS, 2, 3, torch.float32)
        change(new)
        with pytest.raises(error, match=words):
            cache.append(**new)
        assert cache.lengths == [0, 0]
        if isinstance(cache, PagedCache):
            cache.allocator.check()
            assert cache.allocator.n_free == cache.allocator.n_pages


@pytest.mark.parametrize(
    "error, words, call",
    [
        (ValueError, "widths must name k and v, or latent and k_rope, got k", lambda: ContiguousCache(1, 4, {"k": (1, 4)})),
        (
            TypeError,
            r"widths\['v'\] must be \(n_kv_heads, width\), got 4",
            lambda: ContiguousCache(1, 4, {"k": (1, 4), "v": 4}),
        ),
        (TypeError, r"widths\['latent'\] must be a width", lambda: ContiguousCache(1, 4, {"latent": (1, 4), "k_rope": 2})),
        (ValueError, "same number of heads, got 1 and 2", lambda: ContiguousCache(1, 4, {"k": (1, 4), "v": (2, 4)})),
        (ValueError, r"widths\['k'\] must be at least 1", lambda: ContiguousCache(1, 4, {"k": (1, 0), "v": (1, 4)})),
        (ValueError, "capacity must be at least 1", lambda: ContiguousCache(1, 0, HEADS)),
        (ValueError, "batch must be at least 1", lambda: ContiguousCache(0, 4, HEADS)),
        (TypeError, "dtype must be", lambda: ContiguousCache(1, 4, HEADS, dtype=torch.int8)),
        (TypeError, "allocator must be a PageAllocator", lambda: PagedCache(4, 1, HEADS)),
        (ValueError, "rows must be neighbours", lambda: ContiguousCache(3, 4, HEADS).select([0, 2])),
        (ValueError, "rows must be neighbours", lambda: ContiguousCache(3, 4, HEADS).sequence(3)),
        (ValueError, "rows must lie between 0 and 0", lambda: PagedCache(PageAllocator(3, 4), 1, HEADS).sequence(1)),
        (ValueError, "sequence 5 does not exist", lambda: PagedCache(PageAllocator(3, 4), 1, HEADS).of([5])),
        (ValueError, "sequences must be different", lambda: PagedCache(PageAllocator(3, 4), 1, HEADS).of([0, 0])),
        (ValueError, "append them first", lambda: ContiguousCache(1, 4, HEADS).decode(torch.zeros(1, 1, 2, 8))),
        (TypeError, "wants q_latent and q_rope, got 1", lambda: ContiguousCache(1, 4, LATENT).decode(torch.zeros(1, 1, 2, 8))),
    ],
)
def test_refusals(error, words, call):
    with pytest.raises(error, match=words):
        call()


def test_an_allocator_serves_one_cache():
    allocator = PageAllocator(4, 4)
    PagedCache(allocator, 0, HEADS)
    with pytest.raises(ValueError, match="allocator must be new"):
        PagedCache(allocator, 1, HEADS)
