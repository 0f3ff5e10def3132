"""Full-sequence attention against its definition: shapes, widths, dtypes, strides, masks, errors."""

import math
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import kernels
from kernels import reference
from tests.kernels.accuracy import COMPILED, DTYPES, assert_accurate, assert_lse, sdpa_math, strides_beyond_31_bits


def bottom_right(q_len, kv_len, device):
    i = torch.arange(q_len, device=device)[:, None]
    return torch.arange(kv_len, device=device)[None, :] <= i + kv_len - q_len


def compare(q, k, v, causal=False, scale=None, package=kernels):
    out, lse = package.attention(q, k, v, causal=causal, scale=scale)
    wanted, wanted_lse = reference.attention(q, k, v, causal=causal, scale=scale)
    mask = bottom_right(q.shape[2], k.shape[2], q.device) if causal else None
    peer = sdpa_math(q, k, v, mask, scale)
    if causal:
        peer = torch.where(mask.any(-1)[:, None], peer, 0)  # SDPA answers a row without keys with NaN
    assert out.dtype == q.dtype
    assert_accurate(out, wanted, peer)
    assert_lse(lse, wanted_lse)
    return out, lse


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("n_q_heads", "n_kv_heads"), [(3, 3), (6, 2), (5, 1)])
def test_matches_the_definition(random, n_q_heads, n_kv_heads, causal, dtype):
    q = random(2, n_q_heads, 70, 64, dtype=dtype)
    k, v = (random(2, n_kv_heads, 70, 64, dtype=dtype) for _ in range(2))
    compare(q, k, v, causal)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kv_len", [1, 2, 15, 16, 17, 63, 65, 129])
@pytest.mark.parametrize("q_len", [1, 7, 16, 17, 64, 65, 129])
def test_lengths_that_fill_no_tile(random, q_len, kv_len, dtype):
    """Three sizes of tile, ends of every kind; both masks, one after the other."""
    q, k, v = (random(1, h, n, 32, dtype=dtype) for h, n in ((3, q_len), (1, kv_len), (1, kv_len)))
    compare(q, k, v, causal=False)
    compare(q, k, v, causal=True)


WIDTHS = [(16, 16), (40, 40), (80, 128), (96, 80), (112, 48), (192, 128), (256, 256), (1, 3)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("q_len", [1, 19, 70])
@pytest.mark.parametrize(("head_dim_qk", "head_dim_v"), WIDTHS)
def test_widths_that_are_no_power_of_two(random, head_dim_qk, head_dim_v, q_len, dtype):
    """The tensors are slices of wider ones whose remainder is NaN: a tile that reads on would show it."""
    shapes = ((2, q_len, head_dim_qk), (1, 83, head_dim_qk), (1, 83, head_dim_v))
    wide = [torch.full_like(random(1, h, n, d + 24, dtype=dtype), torch.nan) for h, n, d in shapes]
    q, k, v = (w[..., :-24] for w in wide)
    for tensor in (q, k, v):
        tensor.copy_(random(*tensor.shape))
    compare(q, k, v, True)
    assert all(torch.isnan(w[..., -24:]).all() for w in wide)


@pytest.mark.skipif(kernels.MODE == "reference", reason="the definition has no programs")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("n_q_heads", "n_kv_heads", "q_len", "kv_len"),
    [(5, 1, 1, 70), (4, 2, 9, 200), (2, 2, 33, 131), (3, 1, 20, 20), (2, 1, 41, 9)],
)
def test_a_decode_step_is_the_same_call(random, monkeypatch, n_q_heads, n_kv_heads, q_len, kv_len, dtype):
    """More new tokens than `decode` takes, and more than there are keys; heads and tokens change places and change back."""
    monkeypatch.setattr(sys.modules["kernels.forward"], "few_programs", lambda *_: True)
    q, k, v = (random(2, h, n, 32, dtype=dtype) for h, n in ((n_q_heads, q_len), (n_kv_heads, kv_len), (n_kv_heads, kv_len)))
    out, lse = compare(q, k, v, causal=True)
    assert out.is_contiguous() and lse.is_contiguous()  # as tracing expects them


@pytest.mark.parametrize(
    ("shape", "few"),
    [
        ((2, 32, 8, 64, 8192), True), ((1, 32, 8, 256, 8192), True), ((1, 32, 1, 2, 1024), True), ((2, 32, 32, 64, 8192), True),
        ((4, 32, 8, 65, 99999), False), ((1, 32, 8, 273, 99999), False),  # programs enough
        ((2, 32, 8, 64, 4095), False), ((2, 32, 8, 16, 2048), True), ((1, 32, 1, 16, 1023), False),  # few keys for the splits
        ((2, 32, 8, 8, 8192), False), ((1, 60, 5, 64, 8192), False),  # rows, and their groups
    ],
    ids=str,
)  # fmt: skip
def test_few_programs(monkeypatch, shape, few):
    """On a Hopper GPU alone, and where its kernel for many rows can run: 33 rows a KV head, copies of 8 and more."""
    forward = sys.modules["kernels.forward"]
    batch, n_q_heads, n_kv_heads, q_len, kv_len = shape
    tensors = [torch.empty(batch, h, n, 128, device="meta", dtype=torch.float16) for h, n in (
        (n_q_heads, q_len), (n_kv_heads, kv_len), (n_kv_heads, kv_len)
    )]  # fmt: skip
    monkeypatch.setattr(forward, "device_of", lambda _: kernels.Device((9, 0), 132, 227 * 1024))
    for available in (True, False):
        monkeypatch.setattr(forward, "available", lambda *_, available=available: available)
        assert forward.few_programs(*tensors) == (few and available)


def test_causal_is_aligned_bottom_right(device):
    v = torch.arange(1.0, 6.0, device=device).view(1, 1, 5, 1)
    zeros = torch.zeros(1, 1, 5, 4, device=device)
    out, lse = kernels.attention(zeros[:, :, :2], zeros, v, causal=True)
    assert out.flatten().tolist() == [2.5, 3.0]
    torch.testing.assert_close(lse.flatten(), torch.tensor([math.log(4), math.log(5)], device=device))
    out, _ = kernels.attention(zeros[:, :, :1], zeros, v, causal=True)
    assert out.item() == 3.0


def test_a_query_without_keys_gives_zero(random):
    out, lse = compare(random(1, 2, 40, 16), random(1, 1, 9, 16), random(1, 1, 9, 16), causal=True)
    assert (out[:, :, :31] == 0).all() and (lse[:, :, :31] == -torch.inf).all()
    out, lse = kernels.attention(random(1, 2, 3, 16), random(1, 1, 0, 16), random(1, 1, 0, 16))
    assert (out == 0).all() and (lse == -torch.inf).all()


@pytest.mark.parametrize(("batch", "q_len"), [(0, 3), (2, 0)])
def test_nothing_asked_nothing_returned(random, batch, q_len):
    out, lse = kernels.attention(random(batch, 2, q_len, 16), random(batch, 1, 5, 16), random(batch, 1, 5, 8))
    assert out.shape == (batch, 2, q_len, 8) and lse.shape == (batch, 2, q_len)


def test_log_sum_exp_is_natural(device):
    zeros = torch.zeros(1, 1, 1000, 16, device=device)
    _, lse = kernels.attention(zeros[:, :, :1], zeros, zeros)
    assert abs(lse.item() - 6.907755) < 1e-5


@pytest.mark.parametrize(("n_q_heads", "n_kv_heads"), [(6, 2), (12, 3), (14, 2), (7, 1)])
def test_heads_map_in_contiguous_groups(device, n_q_heads, n_kv_heads):
    k = torch.zeros(1, n_kv_heads, 5, 16, device=device)
    v = torch.arange(1.0, n_kv_heads + 1, device=device).view(1, -1, 1, 1).expand(1, n_kv_heads, 5, 16)
    out, _ = kernels.attention(torch.zeros(1, n_q_heads, 2, 16, device=device), k, v)
    group_size = n_q_heads // n_kv_heads
    assert out[0, :, 0, 0].tolist() == [h // group_size + 1 for h in range(n_q_heads)]


def test_views_of_one_packed_projection(random):
    batch, length, width, n_q_heads, n_kv_heads = 2, 33, 16, 4, 2
    packed = random(batch, length, n_q_heads + 2 * n_kv_heads, width).transpose(1, 2)
    q, k, v = packed.split([n_q_heads, n_kv_heads, n_kv_heads], 1)
    compare(q, k, v, True)
    k, v = k[:, :1].expand(-1, 2, -1, -1), v[:, :1].expand(-1, 2, -1, -1)
    compare(q, k, v)
    compare(q, random(batch, n_kv_heads, width, 40).transpose(2, 3), random(batch, n_kv_heads, width, 40).transpose(2, 3))


@pytest.mark.parametrize("scale", [0.0, 1.0, -0.3, 2])
def test_scale_is_the_models_own(random, scale):
    compare(random(1, 2, 9, 16), random(1, 1, 12, 16), random(1, 1, 12, 16), scale=scale)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_large_scores_do_not_overflow(random, dtype):
    compare(100 * random(1, 2, 9, 16, dtype=dtype), 100 * random(1, 1, 12, 16, dtype=dtype), random(1, 1, 12, 16, dtype=dtype))


@pytest.mark.parametrize("axis", ["token", "head", "batch"])
def test_offsets_beyond_two_to_the_31(random, device, axis):
    """One stride of 2**30 + 64 elements and three steps along it; the memory between is never touched."""
    far, near = strides_beyond_31_bits(random, device, axis)
    for a, b in zip(kernels.attention(far, far, far), kernels.attention(near, near, near), strict=True):
        assert torch.equal(a, b)


@settings(max_examples=25)
@given(
    st.integers(1, 3), st.integers(1, 3), st.integers(1, 4), st.integers(1, 40), st.integers(1, 90),
    st.integers(1, 70), st.integers(1, 70), st.booleans(), st.sampled_from(DTYPES), st.integers(0, 2**31),
)  # fmt: skip
def test_any_shape(batch, n_kv_heads, group_size, q_len, kv_len, head_dim_qk, head_dim_v, causal, dtype, seed):
    generator = torch.Generator("cuda" if COMPILED else "cpu").manual_seed(seed)
    q, k, v = (
        torch.randn(batch, h, n, d, generator=generator, device=generator.device).to(dtype)
        for h, n, d in (
            (n_kv_heads * group_size, q_len, head_dim_qk),
            (n_kv_heads, kv_len, head_dim_qk),
            (n_kv_heads, kv_len, head_dim_v),
        )
    )
    compare(q, k, v, causal)


def test_compiles_without_a_graph_break(random):
    q, k, v = random(1, 4, 9, 16), random(1, 2, 12, 16), random(1, 2, 12, 16)
    compiled = torch.compile(lambda *a: kernels.attention(*a, causal=True), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(q, k, v), kernels.attention(q, k, v, causal=True))


def test_a_scale_that_changes_breaks_no_graph(random):
    q, k, v = random(1, 4, 9, 16), random(1, 2, 12, 16), random(1, 2, 12, 16)
    compiled = torch.compile(lambda *a: kernels.attention(*a[:3], scale=a[3]), fullgraph=True, backend="aot_eager")
    for scale in (0.25, 0.5, 0.7):
        torch.testing.assert_close(compiled(q, k, v, scale), kernels.attention(q, k, v, scale=scale))


def test_forward_mode_is_refused(random):
    q, k, v = random(1, 2, 3, 16), random(1, 1, 3, 16), random(1, 1, 3, 16)
    with pytest.raises(kernels.Unsupported, match="q carries a tangent"):
        torch.func.jvp(lambda q: kernels.attention(q, k, v)[0], (q,), (q,))


@pytest.mark.skipif(not COMPILED, reason="needs a CUDA GPU: counts compiled variants")
def test_lengths_compile_nothing_new(random):
    from kernels.forward import attention_kernel

    def variants():
        return sum(len(cache[0]) for cache in attention_kernel.device_caches.values())

    before = variants()
    for n in range(1, 131):
        k = random(1, 2, n, 64, dtype=torch.float16)
        kernels.attention(random(1, 4, n, 64, dtype=torch.float16), k, k, causal=True)
    assert variants() - before <= 9  # three tile sizes, each with at most three forms of stride


def test_refusals(random):
    q, k, v = random(2, 4, 5, 16), random(2, 2, 7, 16), random(2, 2, 7, 16)
    for error, words, arguments in [
        (TypeError, "q must be a torch.Tensor", (None, k, v)),
        (TypeError, "float64", (q.double(), k.double(), v.double())),
        (TypeError, "one dtype", (q, k.half(), v)),
        (ValueError, r"q must have shape \[B, Hq, M, Dqk\]", (q[0], k, v)),
        (ValueError, "Hkv", (q, k, v[:, :1])),
        (ValueError, "Dqk", (q, k[..., :8], v)),
        (ValueError, "B = 2", (q, k[:1], v[:1])),
        (ValueError, "multiple of the KV heads", (q[:, :3], k, v)),
        (TypeError, "dense", (q.to_sparse(), k, v)),
    ]:
        with pytest.raises(error, match=words):
            kernels.attention(*arguments)
    for error, words, options in [
        (TypeError, "causal", {"causal": 1}),
        (TypeError, "scale", {"scale": "1"}),
        (ValueError, "scale", {"scale": math.nan}),
        (ValueError, "scale", {"scale": 3e38}),
        (ValueError, "scale", {"scale": 10**400}),
        (TypeError, "allow_tf32", {"allow_tf32": None}),
    ]:
        with pytest.raises(error, match=words):
            kernels.attention(q, k, v, **options)
    with pytest.raises(kernels.Unsupported, match="256"):
        kernels.attention(random(1, 1, 1, 257), random(1, 1, 1, 257), random(1, 1, 1, 16))
