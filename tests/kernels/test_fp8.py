"""Caches of 8 bits: what counts is the stored value times the scale of its token, to the accuracy of the queries' dtype."""

import math
import sys

import pytest
import torch

import kernels
from kernels import reference
from tests.kernels.accuracy import COMPILED, DTYPES, assert_lse
from tests.kernels.decoding import assert_alike, assert_same, assert_state, by_token, lens, peer, scatter

FP8 = torch.float8_e4m3fn
pytestmark = pytest.mark.skipif(
    COMPILED and torch.cuda.get_device_capability() < (8, 9), reason="needs compute capability 8.9: float8_e4m3fn"
)


def dequantised(stored, scale, dtype):
    """The cache in the queries' dtype, for PyTorch to attend to."""
    return (stored.float() * scale.unsqueeze(-1)).to(dtype)


def compare(q, k, v, k_scale, v_scale, seq_lens=None, **options):
    got = kernels.decode(q, k, v, seq_lens, k_scale=k_scale, v_scale=v_scale, **options)
    wanted = reference.decode(q, k, v, seq_lens, scale=options.get("scale"), k_scale=k_scale, v_scale=v_scale)
    full = dequantised(k, k_scale, q.dtype), dequantised(v, v_scale, q.dtype)
    theirs = peer(q, *full, seq_lens, options.get("scale"))
    assert_state(got, wanted, q, theirs, columns=q.shape[-1], size=max(1.0, v_scale.abs().max().item()))
    return got


@pytest.fixture
def cache(random, generator, device):
    """k, v in 8 bits with a scale between 1/2 and 2 a token and head: keys about 1, as they come from a layer."""

    def make(batch, n_kv_heads, context_len, head_dim_qk, head_dim_v):
        rows = batch, n_kv_heads, context_len
        k_scale, v_scale = (4 ** (torch.rand(rows, generator=generator, device=device) - 0.5) for _ in range(2))
        return random(*rows, head_dim_qk).to(FP8), random(*rows, head_dim_v).to(FP8), k_scale, v_scale

    return make


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("n_q_heads", "n_kv_heads"), [(10, 2), (3, 3), (71, 1)])
def test_groups(random, device, cache, n_q_heads, n_kv_heads, dtype):
    """Grouped, one query head a KV head, and one KV head for all; a length of 0 and ragged ends."""
    out, lse = compare(
        random(3, n_q_heads, 64, dtype=dtype), *cache(3, n_kv_heads, 100, 64, 64), lens(device, 0, 17, 93), num_splits=1
    )
    assert (out[0] == 0).all() and (lse[0] == -torch.inf).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("head_dim_qk", "head_dim_v"), [(128, 128), (96, 96), (192, 128), (20, 20), (64, 256), (576, 512), (2, 6)]
)
def test_widths(random, device, cache, head_dim_qk, head_dim_v, dtype):
    """The cache is a slice of a wider one whose remainder is NaN; strides are even and no more."""
    k, v, *scales = cache(1, 2, 70, head_dim_qk, head_dim_v)
    gap = torch.full((1, 2, 70, 2), torch.nan, device=device).to(FP8)
    k, v = (torch.cat([gap, x, gap], -1)[..., 2:-2] for x in (k, v))
    compare(random(1, 6, head_dim_qk, dtype=dtype), k, v, *scales, lens(device, 61), num_splits=2)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("q_len", [2, 8])
def test_several_new_tokens(random, device, cache, q_len, dtype):
    q = random(3, q_len, 5, 32, dtype=dtype)
    compare(q, *cache(3, 1, 100, 32, 48), lens(device, q_len - 1, 65, 97), num_splits=2)


def test_long_walks(random, device, cache):
    """Over 2048 tokens a tile holds 128 keys; on a GPU the pipeline is as deep as it gets."""
    compare(random(1, 5, 64, dtype=torch.float16), *cache(1, 1, 2304, 64, 64), lens(device, 2201), num_splits=1)


def test_every_number_of_the_format(device):
    """One token for each of the 254 numbers, 8 columns of it, so that a byte in the wrong column or token would show."""
    numbers = torch.arange(256, dtype=torch.uint8, device=device).view(FP8)
    numbers = numbers[~numbers.float().isnan()].view(-1, 1).expand(-1, 8)
    rolled = torch.stack([numbers[:, 0].view(torch.uint8).roll(i) for i in range(8)], 1).view(FP8)
    ones = torch.ones(1, 1, 1, device=device)
    for j in range(0, len(rolled), 17):
        one = rolled[j].view(1, 1, 1, 8)
        out, _ = kernels.decode(torch.zeros(1, 1, 8, device=device), one, one, k_scale=ones, v_scale=ones)
        assert torch.equal(out.flatten(), one.float().flatten())
    q = torch.eye(8, device=device)[None]
    k, v = rolled[None, None], torch.zeros_like(rolled)[None, None]
    for j in (0, 40, 120, 200):
        _, lse = kernels.decode(q, k[:, :, j : j + 1], v[:, :, j : j + 1], scale=1.0, k_scale=ones, v_scale=ones)
        torch.testing.assert_close(lse.flatten(), rolled[j].float(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_scales_of_any_stride(random, device, cache, dtype):
    """One a head, one for the whole cache, each expanded without memory; and one a token, transposed as an engine keeps it."""
    k, v, k_scale, v_scale = cache(2, 2, 70, 32, 32)
    q, lengths = random(2, 6, 32, dtype=dtype), lens(device, 61, 9)
    a_head, whole = k_scale[:1, :, :1].expand(2, 2, 70), v_scale[0, 0, 0].expand(2, 2, 70)
    compare(q, k, v, a_head, whole, lengths)
    got = kernels.decode(q, k, v, lengths, k_scale=a_head.contiguous(), v_scale=whole.contiguous())
    assert_alike(kernels.decode(q, k, v, lengths, k_scale=a_head, v_scale=whole), got)
    token_first = [x.permute(2, 0, 1).contiguous().permute(1, 2, 0) for x in (k_scale, v_scale)]
    assert_alike(
        kernels.decode(q, k, v, lengths, k_scale=token_first[0], v_scale=token_first[1]),
        kernels.decode(q, k, v, lengths, k_scale=k_scale, v_scale=v_scale),
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_and_queries_of_zeros(random, device, cache, dtype):
    """A scale of 0 makes a key or a value 0; all of them at once, too. Query heads of zeros weigh every token alike."""
    k, v, k_scale, v_scale = cache(2, 1, 70, 32, 32)
    q = random(2, 4, 32, dtype=dtype)
    q[:, ::2] = 0
    k_scale[:, :, ::3], v_scale[:, :, 1::2] = 0, 0
    _, lse = compare(q, k, v, k_scale, v_scale, lens(device, 70, 33))
    torch.testing.assert_close(lse[:, 0], lens(device, 70, 33).log())
    out, lse = compare(q, k, v, 0 * k_scale, 0 * v_scale)
    assert (out == 0).all()
    torch.testing.assert_close(lse, torch.full_like(lse, math.log(70)))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("order", ["rising", "falling", "mixed"])
def test_scales_far_apart(random, device, cache, order, dtype):
    """From 1e-6 to 1e6 in one tile: no overflow on the way, and an error that is small beside the result."""
    k, v, k_scale, _ = cache(1, 1, 100, 32, 32)
    far = torch.logspace(-6, 6, 100, device=device)
    far = {
        "rising": far,
        "falling": far.flip(0),
        "mixed": far[torch.randperm(100, generator=torch.Generator().manual_seed(3))],
    }[order]
    v = (v.float() / 1024).to(FP8)  # 1e6 times it is a number of float16
    for keys, values in ((k_scale, far.expand(1, 1, 100)), (far.expand(1, 1, 100), k_scale)):
        q = random(1, 5, 32, dtype=dtype)
        out, lse = kernels.decode(q, k, v, k_scale=keys, v_scale=values)
        wanted, wanted_lse = reference.decode(q, k, v, k_scale=keys, v_scale=values)
        assert out.isfinite().all() and lse.isfinite().all()
        assert (out.double() - wanted).norm() <= {torch.float32: 1e-5}.get(dtype, 5e-3) * wanted.norm()
        torch.testing.assert_close(lse.double(), wanted_lse, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_scales_of_any_sign(random, device, cache, dtype):
    """A value is stored value times scale, whatever its sign; in a last tile too, whose dead rows have a scale of 0."""
    k, v, k_scale, v_scale = cache(2, 1, 70, 32, 32)
    q, lengths = random(2, 4, 32, dtype=dtype), lens(device, 61, 9)
    compare(q, k, v, -k_scale, -v_scale, lengths)
    v_scale[:, :, ::2] *= -1e-3
    compare(q, k, v, k_scale, v_scale, lengths)
    compare(q, k, v, k_scale, -v_scale, lengths)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [1e-6, 1.0, 1000.0])
def test_queries_of_any_size(random, device, cache, size, dtype):
    """Queries meet 8-bit keys in float16, which neither the smallest nor the largest of them may fall out of."""
    q = (size * random(2, 5, 32)).to(dtype)
    compare(q, *cache(2, 1, 40, 32, 32), lens(device, 40, 9), scale=0.2 / size)


@pytest.mark.parametrize("scale", [-0.3, 0.0])
def test_softmax_scales_of_any_sign(random, device, cache, scale):
    compare(random(2, 5, 32), *cache(2, 1, 40, 32, 32), lens(device, 40, 9), scale=scale)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("page_size", [5, 64, 128])
def test_pages(random, device, cache, page_size, dtype):
    """NaN in every slot not in use, in every page that nobody owns, and in their scales; with splits and with a work list."""
    k, v, k_scale, v_scale = cache(2, 2, 150, 32, 20)
    q, lengths = random(2, 6, 32, dtype=dtype), lens(device, 139, 3)
    table, *pages, k_scales, v_scales = scatter(lengths, page_size, *(by_token(x) for x in (k, v, k_scale, v_scale)))
    options = {"k_scale": k_scales, "v_scale": v_scales}
    wanted = reference.paged_decode(q, *pages, table, lengths, **options)
    theirs = peer(q, dequantised(k, k_scale, dtype), dequantised(v, v_scale, dtype), lengths)
    size = v_scale.max().item()
    got = kernels.paged_decode(q, *pages, table, lengths, **options, num_splits=1)
    assert_state(got, wanted, q, theirs, size=size)
    if not COMPILED:
        assert_same(got, kernels.decode(q, k, v, lengths, k_scale=k_scale, v_scale=v_scale, num_splits=1))
    work = kernels.plan_work(lengths, 6, 2, 20, FP8, capacity=150, shares=2)
    assert_state(kernels.paged_decode(q, *pages, table, lengths, **options, work=work), wanted, q, theirs, size=size)


def test_dead_slots_may_hold_anything(random, device, cache):
    """In 8 bits NaN is the byte 127 or 255, and a scale may be infinite."""
    k, v, k_scale, v_scale = cache(3, 2, 40, 32, 32)
    q, lengths = random(3, 6, 32), lens(device, 0, 17, 33)
    clean = compare(q, k, v, k_scale, v_scale, lengths, num_splits=2)
    for byte, scale in ((127, math.nan), (255, math.inf), (126, -math.inf)):
        for b, n in enumerate(lengths.tolist()):
            for stored in (k, v):
                stored[b, :, n:].view(torch.uint8).fill_(byte)
            k_scale[b, :, n:], v_scale[b, :, n:] = scale, scale
        assert_same(kernels.decode(q, k, v, lengths, k_scale=k_scale, v_scale=v_scale, num_splits=2), clean)


def mla_compare(q_latent, q_rope, latent, k_rope, latent_scale, seq_lens, num_splits=1, page_size=16):
    """Contiguous, and in pages with a work list."""
    options = {"scale": 0.04, "latent_scale": latent_scale}
    wanted = reference.mla_decode(q_latent, q_rope, latent, k_rope, seq_lens, **options)
    full = dequantised(latent, latent_scale, q_latent.dtype)[:, None]
    size = {"columns": latent.shape[-1] + k_rope.shape[-1], "size": max(1.0, latent_scale.abs().max().item())}
    theirs = peer(torch.cat([q_latent, q_rope], -1), torch.cat([full, k_rope[:, None]], -1), full, seq_lens, 0.04)
    got = kernels.mla_decode(q_latent, q_rope, latent, k_rope, seq_lens, **options, num_splits=num_splits)
    assert_state(got, wanted, q_latent, theirs, **size)
    table, *pages, options["latent_scale"] = scatter(seq_lens, page_size, latent, k_rope, latent_scale)
    capacity, (n_q_heads, latent_dim) = table.shape[1] * page_size, q_latent.shape[-2:]
    work = kernels.plan_work(seq_lens, n_q_heads, 1, latent_dim, FP8, capacity=capacity, shares=2)
    got = kernels.paged_mla_decode(q_latent, q_rope, *pages, table, seq_lens, **options, work=work)
    assert_state(got, wanted, q_latent, theirs, **size)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("n_q_heads", "latent_dim", "rope_dim", "page_size"),
    [(5, 512, 64, 64), (22, 512, 64, 16), (40, 64, 16, 128), (3, 48, 10, 7), (16, 66, 1, 48)],
)
def test_latents(random, device, n_q_heads, latent_dim, rope_dim, page_size, dtype):
    """The latent in 8 bits, the rotary part, whose error would turn the keys, as it is."""
    q_latent, q_rope = random(2, n_q_heads, latent_dim, dtype=dtype), random(2, n_q_heads, rope_dim, dtype=dtype)
    latent, k_rope = random(2, 100, latent_dim).to(FP8), random(2, 100, rope_dim, dtype=dtype)
    latent_scale = random(2, 100).abs() + 0.5
    mla_compare(q_latent, q_rope, latent, k_rope, latent_scale, lens(device, 91, 3), page_size=page_size)


def test_several_new_tokens_over_latents(random, device):
    tokens = (2, 3, 5)
    mla_compare(
        random(*tokens, 64), random(*tokens, 16), random(2, 70, 64).to(FP8), random(2, 70, 16),
        torch.full((1, 1), 0.5, device=device).expand(2, 70), lens(device, 2, 67), num_splits=2,
    )  # fmt: skip


def test_a_record_of_bytes(random, device):
    """One row of bytes a token: 512 of 8 bits, a float32 scale, 64 of 16 bits. Three views of it are the cache."""
    q_latent, q_rope = random(1, 5, 512, dtype=torch.float16), random(1, 5, 64, dtype=torch.float16)
    latent, k_rope, latent_scale = random(1, 40, 512).to(FP8), random(1, 40, 64, dtype=torch.float16), random(1, 40).abs() + 0.5
    row = torch.cat([latent.view(torch.uint8), latent_scale[..., None].view(torch.uint8), k_rope.view(torch.uint8)], -1)
    views = row[..., :512].view(FP8), row.view(torch.float16)[..., 258:], row.view(torch.float32)[..., 128]
    options = {"scale": 0.1, "num_splits": 1}
    assert_alike(
        kernels.mla_decode(q_latent, q_rope, *views[:2], **options, latent_scale=views[2]),
        kernels.mla_decode(q_latent, q_rope, latent, k_rope, **options, latent_scale=latent_scale),
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_append_and_decode(random, device, dtype):
    """What was appended in 8 bits comes back within the format's rounding: 1/16 of a number, 2**-10 scales near zero."""
    q, k_new, v_new = (random(*shape, dtype=dtype) for shape in ((2, 6, 64), (2, 60, 2, 64), (2, 60, 2, 48)))
    lengths = lens(device, 60, 60)
    k, v = torch.zeros(2, 2, 64, 64, device=device).to(FP8), torch.zeros(2, 2, 64, 48, device=device).to(FP8)
    k_scale, v_scale = torch.zeros(2, 2, 2, 64, device=device)
    kernels.append(k_new, v_new, k, v, lengths, k_scale=k_scale, v_scale=v_scale)
    out, lse = compare(q, k, v, k_scale, v_scale, lengths)

    originals = [by_token(x).double() for x in (k_new, v_new)]
    k_off, v_off = (torch.maximum(x.abs() / 16, x.abs().amax(-1, keepdim=True) / 448 * 2**-10) * (1 + 1e-5) for x in originals)
    grouped = q.double().view(2, 2, 3, 64)
    score_off = (grouped.abs() @ k_off.mT).amax(-1).view(2, 6) / 8
    wanted, wanted_lse = reference.decode(q, *originals)
    assert ((lse - wanted_lse).abs() <= score_off + 1e-3).all()
    assert (out.double() - wanted).norm() <= wanted.norm() / 16

    # Queries of zeros weigh all tokens alike: what is left is the values' rounding.
    out, _ = kernels.decode(0 * q, k, v, lengths, k_scale=k_scale, v_scale=v_scale)
    wanted, _ = reference.decode(0 * q, *originals)
    assert ((out.double() - wanted).abs() <= v_off.mean(2).repeat_interleave(3, 1) + 1e-3).all()


def test_append_and_decode_latents_on_pages(random, device):
    """Token by token over a page's edge, as generation does it."""
    q_latent, q_rope, latent_new, k_rope_new = (random(1, *shape) for shape in ((5, 32), (5, 16), (20, 32), (20, 16)))
    pages, k_rope_pages = torch.zeros(4, 8, 32, device=device).to(FP8), torch.full((4, 8, 16), torch.nan, device=device)
    scales = torch.full((4, 8), torch.nan, device=device)
    table = lens(device, 3, 0, 2).view(1, 3)
    for n in range(1, 21):
        new = latent_new[:, n - 1], k_rope_new[:, n - 1]
        kernels.paged_mla_append(*new, pages, k_rope_pages, table, lens(device, n), latent_scale=scales)
        got = kernels.paged_mla_decode(
            q_latent, q_rope, pages, k_rope_pages, table, lens(device, n), scale=0.1, latent_scale=scales
        )
    wanted = reference.mla_decode(q_latent, q_rope, latent_new, k_rope_new, scale=0.1)
    assert (got[0].double() - wanted[0]).norm() <= wanted[0].norm() / 16
    stored, scale = reference.quantise(latent_new)
    assert_lse(got[1], reference.mla_decode(q_latent, q_rope, stored, k_rope_new, scale=0.1, latent_scale=scale)[1])


def test_compiles_without_a_graph_break(random, device, cache):
    k, v, k_scale, v_scale = cache(2, 2, 40, 32, 32)
    q, lengths = random(2, 4, 32), lens(device, 40, 3)

    def step(q, lengths):
        return kernels.decode(q, k, v, lengths, k_scale=k_scale, v_scale=v_scale)

    assert_same(torch.compile(step, fullgraph=True, backend="aot_eager")(q, lengths), step(q, lengths))


def test_refusals(random, device, cache):
    k, v, k_scale, v_scale = cache(2, 2, 8, 16, 16)
    q, lengths = random(2, 4, 16), lens(device, 8, 3)
    odd = torch.empty(2 * 2 * 8 * 16 + 1, device=device).to(FP8)[1:].view(2, 2, 8, 16)
    odd_rows = torch.empty(2, 2, 8, 17, device=device).to(FP8)[..., :16]
    for error, words, given in [
        (ValueError, r"k_scale is missing: .* float32 scales \[B, Hkv, L\]", (k, v, None, v_scale)),
        (ValueError, "v_scale is missing", (k, v, k_scale, None)),
        (
            ValueError,
            "k_scale belongs to a float8_e4m3fn cache, and this one is float32",
            (k.float(), v.float(), k_scale, None),
        ),
        (ValueError, "v_scale belongs to", (k.float(), v.float(), None, v_scale)),
        (TypeError, "v is float32 but k is float8_e4m3fn", (k, v.float(), k_scale, v_scale)),
        (TypeError, "v is float8_e4m3fn but k is float32", (k.float(), v, None, None)),
        (TypeError, "k must be float16, bfloat16, float32 or float8_e4m3fn", (k.to(torch.float8_e5m2), v, k_scale, v_scale)),
        (TypeError, "k_scale must be float32, got float16", (k, v, k_scale.half(), v_scale)),
        (TypeError, "v_scale must be float32, got float64", (k, v, k_scale, v_scale.double())),
        (TypeError, "v_scale must be a torch.Tensor, got float", (k, v, k_scale, 1.0)),
        (ValueError, r"k_scale must have shape \[B, Hkv, L\]", (k, v, k_scale[..., None], v_scale)),
        (ValueError, r"v_scale must have shape \[B, Hkv, L\] with L = 8", (k, v, k_scale, v_scale[..., :7])),
        (ValueError, "v_scale is on meta", (k, v, k_scale, v_scale.to("meta"))),
        (ValueError, r"v in float8_e4m3fn .* even number .* got shape \[2, 2, 8, 15\]", (k, v[..., :15], k_scale, v_scale)),
        (ValueError, "k in float8_e4m3fn must have dense columns", (k.mT.contiguous().mT, v, k_scale, v_scale)),
        (ValueError, "even address, got a view of offset 1", (odd, v, k_scale, v_scale)),
        (ValueError, r"v in float8_e4m3fn .* strides \[272, 136, 17, 1\]", (k, odd_rows, k_scale, v_scale)),
    ]:
        with pytest.raises(error, match=words):
            kernels.decode(q, *given[:2], lengths, k_scale=given[2], v_scale=given[3])
    with pytest.raises(TypeError, match="q must be float16, bfloat16 or float32"):
        kernels.decode(q.to(FP8), k, v, k_scale=k_scale, v_scale=v_scale)
    with pytest.raises(ValueError, match=r"k_scale must have shape \[n_pages, P, Hkv\]"):
        table = lens(device, 0, 1).view(2, 1)
        kernels.paged_decode(q, by_token(k), by_token(v), table, lengths, k_scale=k_scale, v_scale=v_scale)

    latent, k_rope, latent_scale = k[:, 0], random(2, 8, 16), k_scale[:, 0]
    for error, words, given in [
        (TypeError, "k_rope is float8_e4m3fn", (latent, latent, latent_scale)),
        (TypeError, "k_rope is float16", (latent, k_rope.half(), latent_scale)),
        (ValueError, r"latent_scale is missing: .* scales \[B, L\]", (latent, k_rope, None)),
        (ValueError, "latent_scale belongs to a float8_e4m3fn cache", (k_rope, k_rope, latent_scale)),
        (ValueError, r"latent_scale must have shape \[B, L\]", (latent, k_rope, k_scale)),
    ]:
        with pytest.raises(error, match=words):
            kernels.mla_decode(q, q, *given[:2], lengths, scale=0.1, latent_scale=given[2])
    with pytest.raises(ValueError, match="latent_pages in float8_e4m3fn must have dense columns"):
        kernels.paged_mla_decode(
            q,
            q,
            latent.mT.contiguous().mT,
            k_rope,
            lens(device, 0, 1).view(2, 1),
            lengths,
            scale=0.1,
            latent_scale=latent_scale,
        )
    with pytest.raises(kernels.Unsupported, match="q requires a gradient"):
        kernels.decode(q.clone().requires_grad_(), k, v, k_scale=k_scale, v_scale=v_scale)
    with pytest.raises(kernels.Unsupported, match="v_scale requires a gradient"):
        kernels.decode(q, k, v, k_scale=k_scale, v_scale=v_scale.clone().requires_grad_())
    with pytest.raises(kernels.Unsupported, match="latent_scale requires a gradient"):
        kernels.mla_decode(q, q, latent, k_rope, scale=0.1, latent_scale=latent_scale.clone().requires_grad_())


def test_older_gpus_say_so(random, device, cache, monkeypatch):
    k, v, k_scale, v_scale = cache(2, 2, 8, 16, 16)
    q = random(2, 4, 16)
    old = kernels.Device(capability=(8, 6), sm_count=84, shared_memory=99 * 1024)
    monkeypatch.setattr(sys.modules["kernels.decode"], "device_of", lambda tensor: old)
    for call in (
        lambda: kernels.decode(q, k, v, k_scale=k_scale, v_scale=v_scale),
        lambda: kernels.mla_decode(q, q, k[:, 0], random(2, 8, 16), scale=0.1, latent_scale=k_scale[:, 0]),
    ):
        with pytest.raises(kernels.Unsupported, match="float8_e4m3fn needs compute capability 8.9, this GPU has 8.6"):
            call()


@pytest.mark.parametrize("ratio", [1e3, 1e5, 1e7])
def test_a_large_scale_without_weight_hides_no_small_one(device, ratio):
    """One token of large values that nobody looks at, among tokens of small ones, in one tile."""
    q = torch.zeros(1, 1, 16, dtype=torch.float16, device=device)
    q[..., 0] = 1
    k = torch.zeros(1, 1, 4, 16, device=device)
    k[0, 0, 0, 0] = -60
    v = torch.linspace(-448, 448, 64, device=device).view(1, 1, 4, 16).to(torch.float8_e4m3fn)
    scales = {"k_scale": torch.ones(1, 1, 4, device=device), "v_scale": torch.full((1, 1, 4), 1e-3, device=device)}
    scales["v_scale"][..., 0] *= ratio
    out, _ = kernels.decode(q, k.to(torch.float8_e4m3fn), v, scale=1.0, **scales)
    wanted, _ = reference.decode(q, k.to(torch.float8_e4m3fn), v, scale=1.0, **scales)
    assert (out.double() - wanted).norm() <= 2e-3 * wanted.norm()
