"""Absorbed MLA against its definition and the layer it was absorbed from; contiguous and in pages, a record or two tensors."""

import math

import pytest
import torch

import kernels
from course.measure import count_traffic
from kernels import reference
from tests.kernels.accuracy import COMPILED, DTYPES, assert_accurate, assert_lse
from tests.kernels.decoding import assert_alike, assert_same, assert_state, lens, peer, scatter, variants

WIDTHS = [(512, 64), (64, 16), (48, 10)]


def sdpa(q_latent, q_rope, latent, k_rope, seq_lens, scale):
    """What PyTorch makes of one KV head whose key is the whole record and whose value is the latent."""
    record = torch.cat([latent, k_rope], -1)[:, None]
    return peer(torch.cat([q_latent, q_rope], -1), record, latent[:, None], seq_lens, scale)


def compare(q_latent, q_rope, latent, k_rope, seq_lens=None, *, scale=0.1, **options):
    got = kernels.mla_decode(q_latent, q_rope, latent, k_rope, seq_lens, scale=scale, **options)
    wanted = reference.mla_decode(q_latent, q_rope, latent, k_rope, seq_lens, scale=scale)
    columns = latent.shape[-1] + k_rope.shape[-1]
    assert_state(got, wanted, q_latent, sdpa(q_latent, q_rope, latent, k_rope, seq_lens, scale), columns=columns)
    return got


def compare_paged(q_latent, q_rope, latent, k_rope, seq_lens, page_size, *, scale=0.1, work=None, num_splits=None, **layout):
    table, *pages = scatter(seq_lens, page_size, latent, k_rope, **layout)
    got = kernels.paged_mla_decode(q_latent, q_rope, *pages, table, seq_lens, scale=scale, work=work, num_splits=num_splits)
    wanted = reference.paged_mla_decode(q_latent, q_rope, *pages, table, seq_lens, scale=scale)
    columns = latent.shape[-1] + k_rope.shape[-1]
    assert_state(got, wanted, q_latent, sdpa(q_latent, q_rope, latent, k_rope, seq_lens, scale), columns=columns)
    return got


@pytest.fixture
def step(random):
    """Queries [B, (T,) Hq, …] and a cache [B, L, …] of a decode step."""

    def make(tokens, n_q_heads, context_len, latent_dim=64, rope_dim=16, dtype=torch.float32):
        batch = tokens[0]
        return (
            random(*tokens, n_q_heads, latent_dim, dtype=dtype), random(*tokens, n_q_heads, rope_dim, dtype=dtype),
            random(batch, context_len, latent_dim, dtype=dtype), random(batch, context_len, rope_dim, dtype=dtype),
        )  # fmt: skip

    return make


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("latent_dim", "rope_dim"), WIDTHS)
@pytest.mark.parametrize("n_q_heads", [1, 5, 16, 22, 128])
def test_heads_and_widths(step, device, n_q_heads, latent_dim, rope_dim, dtype):
    """DeepSeek's widths and others, of no power of two; 128 heads are several row tiles."""
    given = step((2,), n_q_heads, 90, latent_dim, rope_dim, dtype)
    lengths = lens(device, 70, 3)
    got = compare(*given, lengths, num_splits=1)
    paged = compare_paged(*given, lengths, 16, num_splits=1)
    if not COMPILED:
        assert_same(got, paged)


def test_a_long_walk_of_wide_rows(step, device):
    """64 rows of 512 columns: every tile goes through the one loop body, which masks."""
    given = step((1,), 60, 300, 512, 64, torch.float16)
    compare(*given, lens(device, 290), num_splits=1)


@pytest.mark.parametrize("page_size", [1, 5, 48, 64, 128, 256])
def test_pages_of_any_size(step, device, page_size):
    out, lse = compare_paged(*step((3,), 5, 256), lens(device, 0, 17, 150), page_size, num_splits=1)
    assert (out[0] == 0).all() and (lse[0] == -torch.inf).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("q_len", [1, 3, 8])
def test_several_new_tokens(step, device, q_len, dtype):
    given = step((3, q_len), 3, 70, dtype=dtype)
    lengths = lens(device, q_len - 1, 35, 66)
    out, lse = compare(*given, lengths, num_splits=2)
    assert out.shape == (3, q_len, 3, 64) and lse.shape == (3, q_len, 3)
    compare_paged(*given, lengths, 7, num_splits=1)


def test_idle_splits_are_written(step, device):
    given = step((2,), 5, 129)
    workspace = torch.full((kernels.plan.decode_workspace(2, 1, 5, 64, 8),), torch.nan, device=device)
    compare(*given, lens(device, 17, 129), num_splits=8, workspace=workspace)


def test_without_lengths_every_token_counts(step):
    compare(*step((2,), 3, 40))


@pytest.mark.parametrize("n_q_heads", [3, 16])
def test_the_layer_it_was_absorbed_from(random, device, n_q_heads):
    """DeepSeek's head: 128 columns of content, 64 of position. The scale is its 0.0721688, not the record's 0.0416667."""
    d_nope, d_rope, d_c, d_v, n = 128, 64, 512, 128, 90
    q_nope, q_rope = random(2, n_q_heads, d_nope), random(2, n_q_heads, d_rope)
    w_uk, w_uv = random(n_q_heads, d_c, d_nope) * d_c**-0.5, random(n_q_heads, d_c, d_v) * d_c**-0.5
    latent, k_rope = random(2, n, d_c), random(2, n, d_rope)
    scale = (d_nope + d_rope) ** -0.5
    assert abs(scale - 0.0721688) < 1e-7

    wanted, wanted_lse = (
        x.squeeze(2)
        for x in reference.mla_expanded(q_nope[:, :, None], q_rope[:, :, None], latent, k_rope, w_uk, w_uv, scale=scale)
    )
    q_latent = torch.einsum("bhd,hcd->bhc", q_nope.double(), w_uk.double()).float()
    table, *pages = scatter(lens(device, n, n), 16, latent, k_rope)
    for attended, lse in (
        kernels.mla_decode(q_latent, q_rope, latent, k_rope, scale=scale),
        kernels.paged_mla_decode(q_latent, q_rope, *pages, table, lens(device, n, n), scale=scale),
    ):
        out, theirs = (
            torch.einsum("bhc,hcd->bhd", x.double(), w_uv.double()).float()
            for x in (attended, sdpa(q_latent, q_rope, latent, k_rope, None, scale))
        )
        assert_accurate(out, wanted, theirs)
        assert_lse(lse, wanted_lse)
    _, lse = kernels.mla_decode(q_latent, q_rope, latent, k_rope, scale=576**-0.5)
    assert (lse.double() - wanted_lse).abs().min() > 1e-3


def test_a_scale_is_never_guessed(step, device):
    given, lengths = step((2,), 3, 40), lens(device, 40, 3)
    table, *pages = scatter(lengths, 16, *given[2:])
    for call, arguments in ((kernels.mla_decode, given), (kernels.paged_mla_decode, (*given[:2], *pages, table, lengths))):
        with pytest.raises(TypeError, match="scale"):
            call(*arguments)
        with pytest.raises(TypeError, match="scale must be a number, got NoneType"):
            call(*arguments, scale=None)


@pytest.mark.parametrize("scale", [-0.3, 0.0])
def test_scales_of_any_sign(step, device, scale):
    given, lengths = step((2,), 5, 40), lens(device, 40, 3)
    compare(*given, lengths, scale=scale)
    compare_paged(*given, lengths, 16, scale=scale)


def test_rope_and_latent_both_count(device):
    """Two tokens. The latent parts score 1 and 0, the rotary parts 0 and 1: equal weights; without one of them they differ."""
    eye = torch.eye(2, device=device)
    latent, k_rope, query = eye[None], eye.flip(0)[None], torch.tensor([[[1.0, 0.0]]], device=device)
    out, lse = kernels.mla_decode(query, query, latent, k_rope, scale=3.0)
    torch.testing.assert_close(out, torch.full_like(out, 0.5))
    torch.testing.assert_close(lse, torch.full_like(lse, 3 + math.log(2)))
    out, _ = kernels.mla_decode(query, 0 * query, latent, k_rope, scale=3.0)
    torch.testing.assert_close(out[0, 0, 0].item(), 1 / (1 + math.exp(-3)))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("latent_dim", "rope_dim"), WIDTHS)
def test_a_packed_record_is_two_views(step, device, latent_dim, rope_dim, dtype):
    """Record after record with a gap, which is NaN, as are dead slots; the rotary part before the latent or after it."""
    lengths = lens(device, 61, 0, 3)
    q_latent, q_rope, latent, k_rope = step((3,), 5, 64, latent_dim, rope_dim, dtype)
    wanted = compare(q_latent, q_rope, latent, k_rope, lengths, num_splits=1)
    record = latent.new_full((3, 64, rope_dim + latent_dim + rope_dim + 6), torch.nan)
    for rope_at, latent_at in ((0, rope_dim), (latent_dim, 0)):
        record.fill_(torch.nan)
        views = [record[..., latent_at : latent_at + latent_dim], record[..., rope_at : rope_at + rope_dim]]
        for b, n in enumerate(lengths.tolist()):
            views[0][b, :n], views[1][b, :n] = latent[b, :n], k_rope[b, :n]
        assert_alike(kernels.mla_decode(q_latent, q_rope, *views, lengths, scale=0.1, num_splits=1), wanted)
        pages = [x.unflatten(1, (4, 16)).flatten(0, 1) for x in views]
        table = torch.arange(12, dtype=torch.int32, device=device).view(3, 4)
        got = kernels.paged_mla_decode(q_latent, q_rope, *pages, table, lengths, scale=0.1, num_splits=1)
        definition = reference.mla_decode(q_latent, q_rope, latent, k_rope, lengths, scale=0.1)
        theirs = sdpa(q_latent, q_rope, latent, k_rope, lengths, 0.1)
        assert_state(got, definition, q_latent, theirs, columns=latent_dim + rope_dim)


def test_any_strides(step, device):
    """Columns first, sequences innermost but one, one cache for all of them, and queries that are slices of one projection."""
    q_latent, q_rope, latent, k_rope = step((2,), 5, 40, 32, 8)
    lengths = lens(device, 40, 9)
    wanted = kernels.mla_decode(q_latent, q_rope, latent, k_rope, lengths, scale=0.1)
    packed = torch.cat([q_rope, q_latent, q_rope], -1).transpose(0, 1).contiguous().transpose(0, 1)
    columns_first = [x.permute(2, 0, 1).contiguous().permute(1, 2, 0) for x in (latent, k_rope)]
    tokens_first = [x.transpose(0, 1).contiguous().transpose(0, 1) for x in (latent, k_rope)]
    odd_lengths = torch.stack([lengths, lengths + 99], 1).flatten().long()[::2]
    for cache in (columns_first, tokens_first):
        assert_alike(kernels.mla_decode(packed[..., 8:40], packed[..., :8], *cache, odd_lengths, scale=0.1), wanted)
    one_for_all = [x[:1].expand(2, -1, -1) for x in (latent, k_rope)]
    compare(q_latent, q_rope, *one_for_all, lengths)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dead_slots_and_entries_may_hold_anything(step, device, dtype):
    lengths = lens(device, 1, 16, 17, 40)
    q_latent, q_rope, latent, k_rope = step((4,), 3, 48, dtype=dtype)
    for page_size, num_splits in ((16, 1), (5, 2)):
        layout = {"num_splits": num_splits}
        wanted = compare_paged(q_latent, q_rope, latent, k_rope, lengths, page_size, filling=0.0, garbage=0, **layout)
        for filling, garbage in ((math.nan, -1), (math.inf, 2**31 - 1)):
            table, *pages = scatter(lengths, page_size, latent, k_rope, filling=filling, garbage=garbage)
            assert_same(kernels.paged_mla_decode(q_latent, q_rope, *pages, table, lengths, scale=0.1, **layout), wanted)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("n_q_heads", [5, 22])
def test_work_lists(step, device, n_q_heads, dtype):
    lengths, q_len = lens(device, 0, 300, 2), 2
    given = step((3, q_len), n_q_heads, 300, 48, 10, dtype)
    work = kernels.plan_work(lengths, n_q_heads, 1, 48, dtype, capacity=304, q_len=q_len, shares=2)
    compare_paged(*given, lengths, 16, work=work)


@pytest.mark.skipif(COMPILED, reason="loads can be counted in the interpreter only")
@pytest.mark.parametrize(
    ("n_q_heads", "dtype", "row_tiles"), [(16, torch.float16, 1), (64, torch.float16, 1), (22, torch.float32, 2)]
)
def test_a_latent_is_loaded_once(step, device, n_q_heads, dtype, row_tiles):
    """It is key and value of every head: one load of it, one of the rotary part, and nothing else, for each row tile."""
    q_latent, q_rope, latent, k_rope = step((1,), n_q_heads, 96, 512, 64, dtype)
    traffic = count_traffic(kernels.mla_decode, q_latent, q_rope, latent, k_rope, lens(device, 70), scale=0.1, num_splits=1)
    assert traffic.requested("k") == row_tiles * 70 * 512
    assert traffic.requested("k_tail") == row_tiles * 70 * 64
    assert traffic.requested("q", "q_tail") == n_q_heads * 576
    assert {name for launch in traffic.launches for name in launch.tensors} == {
        "q",
        "q_tail",
        "cache.k",
        "cache.k_tail",
        "seq_lens",
    }


def test_offsets_beyond_two_to_the_31(step, device):
    """Page 58300 of 64 tokens of 576 columns begins 2,149,171,200 elements into the pages."""
    dtype = torch.float16  # the interpreter makes a copy of bfloat16
    q_latent, q_rope, latent, k_rope = step((1,), 5, 64, 512, 64, dtype)
    far = torch.empty(58400, 64, 576, dtype=dtype, device=device)
    far[58300, :, :512], far[58300, :, 512:] = latent[0], k_rope[0]
    results = []
    for pages, page in ((far, 58300), (far[58300:58301].clone(), 0)):
        table, lengths = lens(device, page).view(1, 1), lens(device, 64)
        views = pages[..., :512], pages[..., 512:]
        results.append(kernels.paged_mla_decode(q_latent, q_rope, *views, table, lengths, scale=0.1, validate=True))
    assert_same(*results)


@pytest.mark.parametrize("axis", ["token", "batch"])
def test_strides_beyond_two_to_the_30(step, device, axis):
    """Three records 2**30 + 64 elements apart, as tokens of a sequence and as sequences."""
    stride = 2**30 + 64
    buffer = torch.empty(2 * stride + 4096, dtype=torch.float16, device=device)
    shape, strides = {"token": ((1, 3, 80), (1, stride, 1)), "batch": ((3, 3, 80), (stride, 80, 1))}[axis]
    far = buffer.as_strided(shape, strides)
    q_latent, q_rope, latent, k_rope = step((shape[0],), 5, 3, 64, 16, torch.float16)
    far[..., :64], far[..., 64:] = latent, k_rope
    assert_same(*(kernels.mla_decode(q_latent, q_rope, x[..., :64], x[..., 64:], scale=0.1) for x in (far, far.contiguous())))


@pytest.mark.parametrize(("batch", "context_len"), [(2, 0), (0, 5), (0, 0)])
def test_nothing_to_attend_to(step, device, batch, context_len):
    out, lse = kernels.mla_decode(*step((batch,), 3, context_len), scale=0.1)
    assert out.shape == (batch, 3, 64) and (out == 0).all() and (lse == -torch.inf).all()


def test_compiles_without_a_graph_break(step, device):
    q_latent, q_rope, latent, k_rope = step((2,), 5, 48, 16, 8)
    lengths = lens(device, 40, 3)
    table, *pages = scatter(lengths, 16, latent, k_rope)
    work = kernels.plan_work(lengths, 5, 1, 16, torch.float32, capacity=48, shares=2)

    def both(q_latent, q_rope, lengths, work):
        return (
            *kernels.mla_decode(q_latent, q_rope, latent, k_rope, lengths, scale=0.1, num_splits=2),
            *kernels.paged_mla_decode(q_latent, q_rope, *pages, table, lengths, scale=0.1, work=work),
        )

    compiled = torch.compile(both, fullgraph=True, backend="aot_eager")
    assert_same(compiled(q_latent, q_rope, lengths, work), both(q_latent, q_rope, lengths, work))


def test_refusals(step, random, device):
    q_latent, q_rope, latent, k_rope = step((2,), 3, 48, 32, 8)
    lengths = lens(device, 40, 3)
    for error, words, arguments in [
        (TypeError, "k_rope must be a torch.Tensor", (q_latent, q_rope, latent, None)),
        (TypeError, "q_rope is float16 but q_latent is float32", (q_latent, q_rope.half(), latent, k_rope)),
        (TypeError, "latent is float16", (q_latent, q_rope, latent.half(), k_rope)),
        (TypeError, "k_rope is bfloat16", (q_latent, q_rope, latent, k_rope.bfloat16())),
        (TypeError, "seq_lens must be int32", (q_latent, q_rope, latent, k_rope, lengths.half())),
        (ValueError, r"q_latent must have shape \[B, Hq, d_c\] or \[B, T, Hq, d_c\]", (q_latent[0], q_rope[0], latent, k_rope)),
        (ValueError, r"q_rope must have shape \[B, Hq, d_r\] with Hq = 3", (q_latent, q_rope[:, :2], latent, k_rope)),
        (ValueError, r"q_rope must have shape \[B, Hq, d_r\]", (q_latent, q_rope[:, None], latent, k_rope)),
        (ValueError, r"latent must have shape \[B, L, d_c\] with d_c = 32", (q_latent, q_rope, latent[..., :31], k_rope)),
        (ValueError, r"latent must have shape \[B, L, d_c\], got", (q_latent, q_rope, latent[:, None], k_rope)),
        (ValueError, "L = 48", (q_latent, q_rope, latent, k_rope[:, :47])),
        (ValueError, "d_r = 8", (q_latent, q_rope, latent, k_rope[..., :7])),
        (ValueError, "query heads", (q_latent[:, :0], q_rope[:, :0], latent, k_rope)),
        (ValueError, "rope_dim must be at least 1", (q_latent, q_rope[..., :0], latent, k_rope[..., :0])),
        (ValueError, "T = 0", (q_latent[:, None][:, :0], q_rope[:, None][:, :0], latent, k_rope)),
        (ValueError, r"seq_lens must have shape \[B\] = \[2\]", (q_latent, q_rope, latent, k_rope, lengths[:1])),
        (
            kernels.Unsupported,
            "latent_dim = 512, got 513",
            (random(1, 1, 513), random(1, 1, 8), random(1, 1, 513), random(1, 1, 8)),
        ),
        (
            kernels.Unsupported,
            "rope_dim = 64, got 65",
            (random(1, 1, 16), random(1, 1, 65), random(1, 1, 16), random(1, 1, 65)),
        ),
        (
            kernels.Unsupported,
            "8 new tokens",
            (q_latent[:, None].expand(-1, 9, -1, -1), q_rope[:, None].expand(-1, 9, -1, -1), latent, k_rope),
        ),
        (kernels.Unsupported, "q_rope requires a gradient", (q_latent, q_rope.clone().requires_grad_(), latent, k_rope)),
        (kernels.Unsupported, "latent requires a gradient", (q_latent, q_rope, latent.clone().requires_grad_(), k_rope)),
    ]:
        with pytest.raises(error, match=words):
            kernels.mla_decode(*arguments, scale=0.1)
    table, *pages = scatter(lengths, 16, latent, k_rope)
    given = (q_latent, q_rope, *pages, table, lengths)
    for error, words, changed, options in [
        (TypeError, "paged_mla_decode needs seq_lens", {5: None}, {}),
        (TypeError, "block_table must be an int32", {4: table.float()}, {}),
        (ValueError, "block_table must have shape", {4: table[:1]}, {}),
        (ValueError, r"k_rope_pages must have shape \[n_pages, P, d_r\] with n_pages", {3: pages[1][:-1]}, {}),
        (ValueError, "P = 0", {2: pages[0][:, :0], 3: pages[1][:, :0]}, {}),
        (ValueError, r"got -7 at \[1, 0\]", {4: torch.where(table == table[1, 0], -7, table)}, {"validate": True}),
        (ValueError, "between 0 and the cache's 48 tokens", {5: lens(device, 49, 1)}, {"validate": True}),
        (ValueError, "workspace must hold at least 396 elements", {}, {"num_splits": 2, "workspace": random(395)}),
        (kernels.Unsupported, "k_rope_pages requires a gradient", {3: pages[1].clone().requires_grad_()}, {}),
    ]:
        arguments = [changed.get(i, argument) for i, argument in enumerate(given)]
        with pytest.raises(error, match=words):
            kernels.paged_mla_decode(*arguments, scale=0.1, **options)
    for call, tensors, rest, names in (
        (kernels.mla_decode, (q_latent, q_rope, latent, k_rope), (lengths,), ("q_latent", "q_rope", "latent", "k_rope")),
        (kernels.paged_mla_decode, given[:4], given[4:], ("q_latent", "q_rope", "latent_pages", "k_rope_pages")),
    ):
        for position, name in enumerate(names):

            def of_one(x, call=call, tensors=tensors, rest=rest, position=position):
                return call(*tensors[:position], x, *tensors[position + 1 :], *rest, scale=0.1)[0]

            with pytest.raises(kernels.Unsupported, match=f"{name} carries a tangent"):
                torch.func.jvp(of_one, (tensors[position],), (tensors[position],))


@pytest.mark.skipif(COMPILED, reason="on a GPU lengths are checked only when asked")
@pytest.mark.parametrize("values", [(49, 1), (-1, 3)])
def test_lengths_outside_the_cache_are_refused(step, device, values):
    with pytest.raises(ValueError, match="seq_lens must lie between 0 and the cache's 48 tokens"):
        kernels.mla_decode(*step((2,), 3, 48), lens(device, *values), scale=0.1)


@pytest.mark.skipif(not COMPILED, reason="needs a CUDA GPU: graph capture")
@pytest.mark.parametrize("n_q_heads", [16, 128])
def test_graph_capture_follows_the_lengths(step, device, n_q_heads):
    """Both ways in one graph: splits over a contiguous cache, and a list made in the graph over pages."""
    q_latent, q_rope, latent, k_rope = step((2,), n_q_heads, 4096, 512, 64, torch.bfloat16)
    lengths = lens(device, 8, 8)
    table, *pages = scatter(lens(device, 4096, 4096), 64, latent, k_rope)

    def both():
        work = kernels.plan_work(lengths, n_q_heads, 1, 512, q_latent.dtype, capacity=4096)
        return (
            kernels.mla_decode(q_latent, q_rope, latent, k_rope, lengths, scale=0.1),
            kernels.paged_mla_decode(q_latent, q_rope, *pages, table, lengths, scale=0.1, work=work),
        )

    both()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = both()
    for values in ((4096, 77), (0, 0), (1, 4096)):
        lengths.copy_(lens(device, *values))
        graph.replay()
        wanted = reference.mla_decode(q_latent, q_rope, latent, k_rope, lengths, scale=0.1)
        for got in results:
            assert_state(got, wanted, q_latent, sdpa(q_latent, q_rope, latent, k_rope, lengths, 0.1))


@pytest.mark.skipif(not COMPILED, reason="needs a CUDA GPU: the allocator is asked")
def test_the_cache_is_not_copied(step):
    """Not even where one record is passed as two views of it."""
    q_latent, q_rope, *_ = step((1,), 16, 1, 512, 64, torch.float16)
    record = torch.zeros(1, 8192, 576, dtype=torch.float16, device="cuda")
    kernels.mla_decode(q_latent, q_rope, record[..., :512], record[..., 512:], scale=0.1)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    kernels.mla_decode(q_latent, q_rope, record[..., :512], record[..., 512:], scale=0.1)
    assert torch.cuda.max_memory_allocated() - before < record.numel() * record.element_size() // 2


@pytest.mark.skipif(not COMPILED, reason="needs a CUDA GPU: counts compiled variants")
@pytest.mark.parametrize("paged", [False, True])
def test_lengths_and_batches_compile_nothing_new(random, device, paged):
    """A cache that grows, or a table with a work list: a handful of variants, then none."""
    from kernels.decode import decode_kernel
    from kernels.merge import merge_kernel
    from kernels.work_list import plan_work_kernel, work_kernel

    jitted = decode_kernel, work_kernel, merge_kernel, plan_work_kernel
    record = random(16, 40_000, 80, dtype=torch.float16)
    pages = record[0, :512].view(8, 64, 80)

    def sweep():
        for n in (*range(1, 131), *range(140, 40_000, 797)):
            for batch in (1, 2, 3, 16):
                queries = random(batch, 16, 64, dtype=torch.float16), random(batch, 16, 16, dtype=torch.float16)
                if paged:
                    table = torch.zeros(batch, -(-n // 64), dtype=torch.int32, device=device)
                    lengths = torch.full((batch,), n, dtype=torch.int32, device=device)
                    work = kernels.plan_work(lengths, 16, 1, 64, pages.dtype, capacity=table.shape[1] * 64)
                    views = pages[..., :64], pages[..., 64:]
                    kernels.paged_mla_decode(*queries, *views, table, lengths, scale=0.1, work=work)
                else:
                    views = record[:batch, :n, :64], record[:batch, :n, 64:]
                    kernels.mla_decode(*queries, *views, scale=0.1)

    before = variants(*jitted)
    sweep()
    after = variants(*jitted)
    assert all(b - a <= most for a, b, most in zip(before, after, (6, 6, 4, 1), strict=True))
    sweep()
    assert variants(*jitted) == after
