"""Paged decode: a table is nothing but addresses. Pages of any size, order and layout, with anything in what is not in use."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import kernels
from course.measure import count_traffic
from kernels import reference
from tests.kernels.accuracy import COMPILED, DTYPES, strides_beyond_31_bits
from tests.kernels.decoding import assert_alike, assert_same, assert_state, by_token, lens, peer, scatter, variants


def compare(q, k, v, seq_lens, page_size, *, num_splits=None, **layout):
    """Against the definition and, in the interpreter, ``decode``: the same tiles in the same order give the same bits."""
    table, k_pages, v_pages = scatter(seq_lens, page_size, by_token(k), by_token(v), **layout)
    got = kernels.paged_decode(q, k_pages, v_pages, table, seq_lens, num_splits=num_splits)
    assert_state(got, reference.paged_decode(q, k_pages, v_pages, table, seq_lens), q, peer(q, k, v, seq_lens))
    if not COMPILED:
        assert_same(got, kernels.decode(q, k, v, seq_lens, num_splits=num_splits))
    return got


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("page_size", [1, 5, 16, 48, 64, 128, 256])
def test_pages_of_any_size(random, device, page_size, dtype):
    """A page that a tile fits into, and one that it does not; a length of 0, one within a tile, and a ragged end."""
    q, k, v = random(3, 6, 32, dtype=dtype), random(3, 2, 256, 32, dtype=dtype), random(3, 2, 256, 32, dtype=dtype)
    out, lse = compare(q, k, v, lens(device, 0, 17, 150), page_size, num_splits=1)
    assert (out[0] == 0).all() and (lse[0] == -torch.inf).all()


@pytest.mark.parametrize("page_size", [48, 64, 128, 256])
def test_long_walks(random, device, page_size):
    """From 2048 tokens on tiles may hold 128 keys: two pages of 64, one of 128, half of one of 256, parts of four of 48."""
    q, k, v = (random(*shape, dtype=torch.float16) for shape in ((1, 5, 64), (1, 1, 2304, 64), (1, 1, 2304, 64)))
    compare(q, k, v, lens(device, 2201), page_size, num_splits=1)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("q_len", range(1, 9))
def test_several_new_tokens(random, device, q_len, dtype):
    """More new tokens than tokens in all, as many, and fewer; across a page's edge and a tile's."""
    q, k, v = (random(*shape, dtype=dtype) for shape in ((4, q_len, 3, 16), (4, 1, 70, 16), (4, 1, 70, 16)))
    out, lse = compare(q, k, v, lens(device, q_len - 1, q_len, 35, 66), 7, num_splits=1)
    assert out.shape == (4, q_len, 3, 16) and lse.shape == (4, q_len, 3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("num_splits", [2, 5])
def test_splits(random, device, num_splits, dtype):
    q, k, v = (random(*shape, dtype=dtype) for shape in ((2, 5, 16), (2, 1, 100, 16), (2, 1, 100, 16)))
    compare(q, k, v, lens(device, 3, 97), 10, num_splits=num_splits)


@pytest.mark.parametrize(("n_q_heads", "n_kv_heads"), [(14, 2), (71, 1), (6, 6)])
@pytest.mark.parametrize("page_size", [16, 64])
def test_a_tile_never_meets_another_kv_head(device, n_q_heads, n_kv_heads, page_size):
    k = torch.zeros(2, page_size, n_kv_heads, 16, device=device)
    v = torch.arange(1.0, n_kv_heads + 1, device=device).view(1, 1, -1, 1).expand(2, page_size, n_kv_heads, 16)
    q = torch.zeros(1, n_q_heads, 16, device=device)
    out, _ = kernels.paged_decode(q, k, v, lens(device, 1, 0).view(1, 2), lens(device, page_size + 3), num_splits=1)
    wanted = torch.tensor([h // (n_q_heads // n_kv_heads) + 1.0 for h in range(n_q_heads)], device=device)
    assert torch.equal(out[0], wanted[:, None].expand(-1, 16))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("head_dim_qk", "head_dim_v"), [(40, 80), (192, 128), (576, 512), (1, 2)])
def test_widths_that_are_no_power_of_two(random, device, head_dim_qk, head_dim_v, dtype):
    """The pages are slices of wider ones whose remainder is NaN: a tile that reads on would show it."""
    lengths = lens(device, 61, 3)
    q, k, v = (random(*shape, dtype=dtype) for shape in ((2, 4, head_dim_qk), (2, 2, 70, head_dim_qk), (2, 2, 70, head_dim_v)))
    table, *pages = scatter(lengths, 16, by_token(k), by_token(v))
    sliced = [torch.cat([x, torch.full_like(x[..., :1], torch.nan).expand(*x.shape[:-1], 8)], -1)[..., :-8] for x in pages]
    got = kernels.paged_decode(q, *sliced, table, lengths)
    assert_state(got, reference.paged_decode(q, *pages, table, lengths), q, peer(q, k, v, lengths))


def test_any_strides(random, device):
    """Tables and pages as other programs keep them: heads outside, every second entry, columns first, one head for all."""
    q, lengths = random(5, 32, 2).permute(2, 0, 1), lens(device, 23, 40)
    k, v = random(2, 1, 40, 32), random(2, 1, 40, 32)
    table, k_pages, v_pages = scatter(lengths, 8, by_token(k), by_token(v))
    wanted = kernels.paged_decode(q, k_pages, v_pages, table, lengths, num_splits=2)

    heads_outside = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (k_pages, v_pages)]
    columns_first = [x.permute(3, 0, 2, 1).contiguous().permute(1, 3, 2, 0) for x in (k_pages, v_pages)]
    every_second = [torch.stack([x, torch.full_like(x, torch.nan)], 2).flatten(1, 2)[:, ::2] for x in (k_pages, v_pages)]
    for pages in (heads_outside, columns_first, every_second):
        assert_alike(kernels.paged_decode(q, *pages, table, lengths, num_splits=2), wanted)

    spaced = torch.full((4, 10), -9, device=device, dtype=torch.int32)
    spaced[::2, ::2] = table
    odd_lengths = torch.stack([lengths, lengths + 10**6], 1).flatten()[::2]
    spaced, turned = spaced[::2, ::2], table.T.contiguous().T
    for entries, counts in ((turned, lengths), (spaced, odd_lengths), (table.long(), lengths), (table, lengths.long())):
        assert_alike(kernels.paged_decode(q, k_pages, v_pages, entries, counts, num_splits=2), wanted)

    shared = [x.expand(-1, -1, 5, -1) for x in (k_pages, v_pages)]
    got = kernels.paged_decode(q, *shared, table, lengths)
    assert_state(got, reference.paged_decode(q, k_pages, v_pages, table, lengths), q, peer(q, k, v, lengths))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dead_slots_and_entries_may_hold_anything(random, device, dtype):
    """Every slot beyond a length and every unowned page, and every entry that is not in use."""
    lengths = lens(device, 1, 16, 17, 40)
    q, k, v = random(4, 3, 32, dtype=dtype), random(4, 1, 48, 32, dtype=dtype), random(4, 1, 48, 32, dtype=dtype)
    wanted = compare(q, k, v, lengths, 16, num_splits=1, filling=0.0, garbage=0)
    for filling in (math.nan, math.inf):
        for garbage in (-1, 2**31 - 1):
            table, *pages = scatter(lengths, 16, by_token(k), by_token(v), filling=filling, garbage=garbage)
            assert_same(kernels.paged_decode(q, *pages, table, lengths, num_splits=1), wanted)


@pytest.mark.parametrize("page_size", [5, 64])
def test_dead_slots_of_drafts_splits_and_work_lists(random, device, page_size):
    """The same with several new tokens, a table of 64 bits, and a program that passes from one sequence to the next."""
    lengths, q_len = lens(device, 0, 2, 131, 64), 3
    q, k, v = random(4, q_len, 2, 24), random(4, 1, 192, 24), random(4, 1, 192, 24)
    work = kernels.plan_work(lengths, 2, 1, 24, q.dtype, capacity=195, q_len=q_len, shares=2)
    for options in ({"num_splits": 2}, {"work": work}):
        results = []
        for filling, garbage in ((0.0, 0), (math.nan, -(2**62)), (-math.inf, 2**62)):
            table, *pages = scatter(
                lengths, page_size, by_token(k), by_token(v), filling=filling, garbage=garbage, table_dtype=torch.int64
            )
            results.append(kernels.paged_decode(q, *pages, table, lengths, **options))
        assert_same(results[0], results[1])
        assert_same(results[0], results[2])
        assert_state(results[0], reference.decode(q, k, v, lengths), q, peer(q, k, v, lengths))


def test_sequences_may_share_pages(random, device):
    """Two sequences with one prefix, and a third that is that prefix: a page stored once counts like a page stored for each."""
    q, prefix, tails = random(3, 4, 16), random(2, 8, 2, 16), random(2, 4, 8, 2, 16)
    k_pages, v_pages = torch.cat([prefix[:, None, :], tails], 1)
    k_copies, v_copies = (torch.cat([x[:1], x[1:3], x[:1], x[3:5], x[:1]]) for x in (k_pages, v_pages))
    shared, copied = lens(device, 0, 1, 2, 0, 3, 4, 0, -1, -1), lens(device, 0, 1, 2, 3, 4, 5, 6, -1, -1)
    lengths = lens(device, 22, 24, 7)
    wanted = kernels.paged_decode(q, k_copies, v_copies, copied.view(3, 3), lengths)
    got = kernels.paged_decode(q, k_pages, v_pages, shared.view(3, 3), lengths)
    assert_same(got, wanted)
    k, v = (x[copied.view(3, 3).clamp_min(0)].flatten(1, 2).transpose(1, 2) for x in (k_copies, v_copies))
    assert_state(got, reference.decode(q, k, v, lengths), q, peer(q, k, v, lengths))


@pytest.mark.parametrize("axis", ["token", "head", "batch"])
def test_offsets_beyond_two_to_the_31(random, device, axis):
    """One stride of 2**30 + 64 elements and three steps along it; a page far out, a head, or a slot of a page."""
    far, near = (x.transpose(1, 2) for x in strides_beyond_31_bits(random, device, axis))
    q = random(1, 2 * near.shape[2], 64, dtype=torch.float16)
    table = torch.arange(len(near), dtype=torch.int32, device=device).flip(0)[None]
    lengths = lens(device, near.shape[1] * len(near))
    options = {"num_splits": 1, "validate": True}
    assert_same(
        kernels.paged_decode(q, far, far, table, lengths, **options),
        kernels.paged_decode(q, near, near, table, lengths, **options),
    )


@pytest.mark.parametrize("scale", [-0.3, 0.0, 2])
def test_scales_of_any_sign(random, device, scale):
    lengths = lens(device, 30, 9)
    q, k, v = random(2, 3, 16), random(2, 1, 40, 16), random(2, 1, 40, 16)
    table, *pages = scatter(lengths, 16, by_token(k), by_token(v))
    got = kernels.paged_decode(q, *pages, table, lengths, scale=scale)
    wanted = reference.paged_decode(q, *pages, table, lengths, scale=scale)
    assert_state(got, wanted, q, peer(q, k, v, lengths, scale))


def test_room_that_nobody_uses(random, device):
    """A table for a million tokens, all of whose entries but one are the same memory, and pages that nobody owns."""
    q, pages = random(2, 4, 16), random(50, 16, 2, 16)
    table = lens(device, 7, 31).view(2, 1).expand(2, 65536)
    got = kernels.paged_decode(q, pages, pages, table, lens(device, 16, 3), num_splits=1)
    assert_same(got, kernels.paged_decode(q, pages, pages, table[:, :1], lens(device, 16, 3), num_splits=1))


@pytest.mark.parametrize(("batch", "n_pages", "max_pages"), [(2, 0, 0), (2, 0, 3), (2, 4, 0), (0, 4, 2), (0, 0, 0)])
def test_nothing_to_attend_to(random, device, batch, n_pages, max_pages):
    pages = random(n_pages, 16, 2, 16)
    table = torch.full((batch, max_pages), -1, dtype=torch.int32, device=device)
    out, lse = kernels.paged_decode(random(batch, 4, 16), pages, pages, table, lens(device, *[0] * batch))
    assert out.shape == (batch, 4, 16) and (out == 0).all() and (lse == -torch.inf).all()


@settings(max_examples=30 if COMPILED else 10)
@given(
    st.integers(1, 3), st.integers(1, 2), st.integers(1, 9), st.integers(1, 4), st.integers(0, 120), st.integers(1, 70),
    st.integers(1, 70), st.integers(1, 70), st.integers(1, 2), st.sampled_from(DTYPES), st.integers(0, 2**31),
)  # fmt: skip
def test_any_shape(
    batch, n_kv_heads, group_size, q_len, context_len, page_size, head_dim_qk, head_dim_v, num_splits, dtype, seed
):
    generator = torch.Generator("cuda" if COMPILED else "cpu").manual_seed(seed)

    def random(*shape):
        return torch.randn(shape, generator=generator, device=generator.device).to(dtype)

    q = random(batch, q_len, n_kv_heads * group_size, head_dim_qk)
    k, v = random(batch, n_kv_heads, context_len, head_dim_qk), random(batch, n_kv_heads, context_len, head_dim_v)
    lengths = torch.randint(0, context_len + 1, (batch,), generator=generator, device=generator.device, dtype=torch.int32)
    compare(q, k, v, lengths, page_size, num_splits=num_splits, seed=seed)


@pytest.mark.skipif(COMPILED, reason="loads can be counted in the interpreter only")
@pytest.mark.parametrize(("page_size", "look_ups"), [(32, 3), (8, 70)])
def test_pages_cost_nothing_but_the_look_ups(random, device, page_size, look_ups):
    """70 tokens in tiles of 32: every key once, as without pages; the table once a tile that fits a page, else once a token."""
    q, k, v, lengths = random(1, 4, 16), random(1, 1, 96, 16), random(1, 1, 96, 16), lens(device, 70)
    table, *pages = scatter(lengths, page_size, by_token(k), by_token(v))
    traffic = count_traffic(kernels.paged_decode, q, *pages, table, lengths, num_splits=1)
    assert traffic.requested("k") == traffic.requested("v") == 70 * 16
    assert traffic.requested("block_table") == look_ups


def test_compiles_without_a_graph_break(random, device):
    q, lengths = random(2, 4, 16), lens(device, 40, 3)
    table, *pages = scatter(lengths, 16, random(2, 48, 2, 16), random(2, 48, 2, 16))
    compiled = torch.compile(lambda *a: kernels.paged_decode(*a, num_splits=2), fullgraph=True, backend="aot_eager")
    assert_same(compiled(q, *pages, table, lengths), kernels.paged_decode(q, *pages, table, lengths, num_splits=2))


def test_values_in_use_are_checked_on_request(random, device):
    """The message names the entry. On a CPU values are always checked, on a GPU when asked."""
    q, pages = random(2, 4, 16), random(6, 8, 2, 16)

    def refused(words, table, lengths):
        for options in ({"validate": True}, *([] if COMPILED else [{}])):
            with pytest.raises(ValueError, match=words):
                kernels.paged_decode(q, pages, pages, table, lengths, **options)

    table = lens(device, 0, 1, -1, 3, 4, 5).view(2, 3)
    kernels.paged_decode(q, pages, pages, table, lens(device, 16, 24), validate=True)
    refused(r"block_table must name pages 0 to 5 .* got -1 at \[0, 2\]", table, lens(device, 17, 24))
    refused(r"got 6 at \[1, 1\]", lens(device, 0, 1, 9, 3, 6, 9).view(2, 3), lens(device, 16, 9))
    refused(r"got 2147483647 at \[1, 0\]", lens(device, 0, 1, 2, 2**31 - 1, 4, 5).view(2, 3), lens(device, 24, 1))
    refused(r"got 4294967297 at \[0, 0\]", lens(device, 2**32 + 1, 1, dtype=torch.int64).view(2, 1), lens(device, 1, 1))
    refused("seq_lens must lie between 0 and the cache's 24 tokens, got values from 3 to 25", table, lens(device, 3, 25))
    refused("got values from -1 to 3", table, lens(device, 3, -1))


def test_refusals(random, device):
    q, pages, table, lengths = (
        random(2, 4, 16),
        random(6, 8, 2, 16),
        lens(device, 0, 1, 2, 3, 4, 5).view(2, 3),
        lens(device, 9, 1),
    )
    for error, words, arguments in [
        (TypeError, "v_pages must be a torch.Tensor", (q, pages, None, table, lengths)),
        (TypeError, "k_pages is float16 but q is float32", (q, pages.half(), pages, table, lengths)),
        (TypeError, "block_table must be an int32", (q, pages, pages, table.float(), lengths)),
        (TypeError, "block_table must be a torch.Tensor", (q, pages, pages, None, lengths)),
        (TypeError, "paged_decode needs seq_lens", (q, pages, pages, table, None)),
        (TypeError, "seq_lens must be int32", (q, pages, pages, table, lengths.float())),
        (ValueError, r"seq_lens must have shape \[B\] = \[2\]", (q, pages, pages, table, lengths[:1])),
        (
            ValueError,
            r"block_table must have shape \[B, max_pages\] with B = 2, got \[3, 2\]",
            (q, pages, pages, table.T, lengths),
        ),
        (ValueError, "block_table must have shape", (q, pages, pages, table[0], lengths)),
        (ValueError, "block_table is on meta", (q, pages, pages, table.to("meta"), lengths)),
        (ValueError, r"q must have shape \[B, Hq, Dqk\]", (q[0], pages, pages, table, lengths)),
        (ValueError, "Dqk = 16", (q, pages[..., :8], pages, table, lengths)),
        (ValueError, "n_pages = 6", (q, pages, pages[:5], table, lengths)),
        (ValueError, "P = 8", (q, pages, pages[:, :7], table, lengths)),
        (ValueError, "Hkv = 2", (q, pages, pages[:, :, :1], table, lengths)),
        (ValueError, "at least one token, got P = 0", (q, pages[:, :0], pages[:, :0], table, lengths)),
        (ValueError, "multiple of the KV heads", (q[:, :3], pages, pages, table, lengths)),
        (ValueError, "T = 0", (q[:, None][:, :0], pages, pages, table, lengths)),
        (kernels.Unsupported, "8 new tokens", (q[:, None].expand(-1, 9, -1, -1), pages, pages, table, lengths)),
        (kernels.Unsupported, "head_dim_v = 512", (q, pages, random(6, 8, 2, 513), table, lengths)),
        (kernels.Unsupported, "q requires a gradient", (random(2, 4, 16).requires_grad_(), pages, pages, table, lengths)),
        (kernels.Unsupported, "v_pages requires a gradient", (q, pages, pages.clone().requires_grad_(), table, lengths)),
    ]:
        with pytest.raises(error, match=words):
            kernels.paged_decode(*arguments)
    for error, words, options in [
        (TypeError, "num_splits must be an integer", {"num_splits": 1.5}),
        (TypeError, "scale must be a number", {"scale": "0.1"}),
        (TypeError, "work must be a WorkList or None, got tuple", {"work": (table, table)}),
        (TypeError, "allow_tf32 must be True or False", {"allow_tf32": 1}),
        (ValueError, "scale must be finite", {"scale": math.nan}),
        (ValueError, "k_scale belongs to a float8_e4m3fn cache", {"k_scale": random(6, 8, 2)}),
    ]:
        with pytest.raises(error, match=words):
            kernels.paged_decode(q, pages, pages, table, lengths, **options)
    with pytest.raises(ValueError, match="workspace must hold at least 272 elements, got 271"):
        kernels.paged_decode(q, pages, pages, table.repeat(1, 30), lengths, num_splits=2, workspace=q.new_empty(271))
    for position, name in ((0, "q"), (1, "k_pages"), (2, "v_pages")):
        given = [q, pages, pages]

        def of_one(x, position=position, given=given):
            return kernels.paged_decode(*given[:position], x, *given[position + 1 :], table, lengths)[0]

        with pytest.raises(kernels.Unsupported, match=f"{name} carries a tangent"):
            torch.func.jvp(of_one, (given[position],), (given[position],))
    with torch.no_grad():
        kernels.paged_decode(q, pages.clone().requires_grad_(), pages, table, lengths)


@pytest.mark.skipif(not COMPILED, reason="needs a CUDA GPU: lengths stay on it")
def test_a_length_outside_the_cache_stays_inside(random, device):
    q, pages, table = random(2, 4, 32), random(6, 8, 2, 32), lens(device, 5, 1, 2, 3, 4, 0).view(2, 3)
    got = kernels.paged_decode(q, pages, pages, table, lens(device, 10**9, -5))
    assert_same(got, kernels.paged_decode(q, pages, pages, table, lens(device, 24, 0)))


@pytest.mark.skipif(not COMPILED, reason="needs a CUDA GPU: graph capture")
def test_graph_capture_follows_lengths_and_table(random, device):
    """A step is captured once; later steps change lengths and table in place, as a server does when a page fills up."""
    q, k, v = (random(2, *shape, dtype=torch.bfloat16) for shape in ((8, 64), (2, 4096, 64), (2, 4096, 64)))
    lengths = lens(device, 8, 8)
    table, *pages = scatter(lens(device, 4096, 4096), 16, by_token(k), by_token(v))
    live = torch.full_like(table, -1)
    live[:, 0] = table[:, 0]
    kernels.paged_decode(q, *pages, live, lengths)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = kernels.paged_decode(q, *pages, live, lengths)
    for n in (4096, 0, 77):
        lengths.fill_(n)
        live.fill_(-1)
        live[:, : -(-n // 16)] = table[:, : -(-n // 16)]
        graph.replay()
        assert_state(got, reference.decode(q, k, v, lengths), q, peer(q, k, v, lengths))


@pytest.mark.skipif(not COMPILED, reason="needs a CUDA GPU: the allocator is asked")
@pytest.mark.parametrize("page_size", [16, 64])
def test_the_cache_is_not_copied(random, device, page_size):
    q, pages = random(1, 8, 128, dtype=torch.float16), random(8192 // page_size, page_size, 2, 128, dtype=torch.float16)
    table, lengths = torch.arange(len(pages), dtype=torch.int32, device=device)[None], lens(device, 8192)
    kernels.paged_decode(q, pages, pages, table, lengths)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    kernels.paged_decode(q, pages, pages, table, lengths)
    assert torch.cuda.max_memory_allocated() - before < pages.numel() * pages.element_size() // 4


@pytest.mark.skipif(not COMPILED, reason="needs a CUDA GPU: counts compiled variants")
@pytest.mark.parametrize("listed", [False, True])
def test_lengths_and_batches_compile_nothing_new(random, device, listed):
    """A table that grows from one page to thousands, with splits or a work list: a handful of variants, then none."""
    from kernels.decode import decode_kernel
    from kernels.merge import merge_kernel
    from kernels.work_list import plan_work_kernel, work_kernel

    jitted = decode_kernel, work_kernel, merge_kernel, plan_work_kernel
    pages = random(8, 16, 2, 64, dtype=torch.float16)

    def sweep():
        for n in (*range(1, 131), *range(140, 40_000, 397)):
            for batch in (1, 2, 3, 16):
                table = torch.zeros(batch, -(-n // 16), dtype=torch.int32, device=device)
                lengths = torch.full((batch,), n, dtype=torch.int32, device=device)
                work = kernels.plan_work(lengths, 8, 2, 64, pages.dtype, capacity=table.shape[1] * 16) if listed else None
                kernels.paged_decode(random(batch, 8, 64, dtype=torch.float16), pages, pages, table, lengths, work=work)

    before = variants(*jitted)
    sweep()
    after = variants(*jitted)
    # Two tiles, and a table whose rows are 1, a multiple of 16, or any other number of entries apart.
    assert all(b - a <= most for a, b, most in zip(before, after, (6, 6, 4, 1), strict=True))
    sweep()
    assert variants(*jitted) == after
