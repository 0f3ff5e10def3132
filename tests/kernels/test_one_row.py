"""One query, one head: the loop by hand and against the definition."""

import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import kernels
from course import measure
from kernels import reference
from kernels.one_row import one_row_kernel
from tests.kernels.accuracy import COMPILED, assert_accurate, assert_lse, sdpa_math, strides_beyond_31_bits


def compare(q, k, v, **options):
    out, lse = kernels.one_row(q, k, v, **options)
    scale = options.get("scale")
    wanted, wanted_lse = reference.one_row(q, k, v, scale=scale)
    assert out.dtype == q.dtype and out.shape == v.shape[1:] and lse.shape == ()
    peer = sdpa_math(q[None, None, None], k[None, None], v[None, None], scale=scale)[0, 0, 0] if len(k) else None
    assert_accurate(out, wanted, peer)
    assert_lse(lse, wanted_lse)
    return out, lse


@pytest.mark.parametrize("block_n", [1, 2, 4, 16])
def test_hand_worked_row(device, block_n):
    """Scores 2, 0 | 3, 1 and values 1, 2 | 3, 4. Two tiles of two are the example that the book works through."""
    q = torch.ones(1, device=device)
    k, v = (torch.tensor(x, device=device)[:, None] for x in ([2.0, 0.0, 3.0, 1.0], [1.0, 2.0, 3.0, 4.0]))
    out, lse = kernels.one_row(q, k, v, scale=1.0, block_n=block_n)
    assert round(out.item(), 4) == 2.5813 and round(lse.item(), 4) == 3.4402


@settings(max_examples=30)
@given(
    kv_len=st.integers(0, 40), head_dim_qk=st.integers(1, 70), head_dim_v=st.integers(1, 70),
    block_n=st.sampled_from([2, 16, 64]), scale=st.sampled_from([None, 1.0, 0.3, -0.3, 0.0]),
    dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16]), seed=st.integers(0, 2**31),
)  # fmt: skip
def test_any_shape(kv_len, head_dim_qk, head_dim_v, block_n, scale, dtype, seed):
    """Slices of wider tensors whose remainder is NaN, and keys that lie column by column."""
    generator = torch.Generator("cuda" if COMPILED else "cpu").manual_seed(seed)

    def inside_nan(*shape):
        around = torch.full([size + 3 for size in shape], torch.nan, dtype=dtype, device=generator.device)
        view = around[tuple(slice(1, size + 1) for size in shape)]
        return view.copy_(torch.randn(shape, generator=generator, device=generator.device))

    q, k, v = inside_nan(head_dim_qk), inside_nan(head_dim_qk, kv_len).T, inside_nan(kv_len, head_dim_v)
    compare(q, k, v, scale=scale, block_n=block_n)


@pytest.mark.parametrize(("head_dim_qk", "head_dim_v"), [(1, 2), (128, 128), (192, 128), (576, 512)])
def test_widths(random, head_dim_qk, head_dim_v):
    compare(random(head_dim_qk), random(50, head_dim_qk), random(50, head_dim_v))


def test_no_key(random):
    out, lse = kernels.one_row(random(8), random(0, 8), random(0, 5))
    assert (out == 0).all() and lse == -torch.inf


def test_strides(random):
    q, k, v = random(12), random(40, 12), random(40, 12)
    compare(q[::2], k[::3, ::2], v.T[:, :14].T)
    compare(q[:1].expand(6), k[:1, :6].expand(9, -1), v[:9, :1].expand(-1, 4))


def test_offsets_beyond_31_bits(random, device):
    far, near = (t[0, 0] for t in strides_beyond_31_bits(random, device, "token"))
    q = random(64, dtype=torch.float16)
    assert all(torch.equal(a, b) for a, b in zip(kernels.one_row(q, far, far), kernels.one_row(q, near, near), strict=True))


@pytest.mark.skipif(kernels.MODE != "interpreter", reason="traffic is counted in Triton's interpreter")
def test_every_key_and_value_is_requested_once():
    counted = measure.count_traffic(kernels.one_row, torch.randn(10), torch.randn(37, 10), torch.randn(37, 6), block_n=4)
    assert (counted.programs, counted.requested("k"), counted.requested("v"), counted.requested("q")) == (1, 370, 222, 10)


@pytest.mark.skipif(not COMPILED, reason="needs a CUDA GPU: counts compiled variants")
def test_lengths_compile_one_kernel(random):
    q = random(64)
    for n in range(130):
        kernels.one_row(q, random(max(n, 2), 64)[:n], random(max(n, 2), 64)[:n])
    variants = sum(len(cache[0]) for cache in one_row_kernel.device_caches.values())
    for n in (200, 333, 4096):
        kernels.one_row(q, random(n, 64), random(n, 64))
    assert sum(len(cache[0]) for cache in one_row_kernel.device_caches.values()) == variants


def test_compiles_without_a_graph_break(random):
    q, k, v = random(16), random(20, 16), random(20, 8)
    compiled = torch.compile(kernels.one_row, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(q, k, v), kernels.one_row(q, k, v))


def test_without_triton_the_definition_answers(random, monkeypatch):
    monkeypatch.setattr(sys.modules["kernels.one_row"], "MODE", "reference")
    q, k, v = random(16).half(), random(20, 16).half(), random(20, 8).half()
    out, lse = kernels.one_row(q, k, v, scale=-1.0)
    wanted, wanted_lse = reference.one_row(q, k, v, scale=-1.0)
    assert torch.equal(out, wanted.half()) and torch.equal(lse, wanted_lse.float())


def test_refusals(random):
    q, k, v = random(16), random(7, 16), random(7, 4)
    for error, words, arguments, options in [
        (ValueError, r"q must have shape \[Dqk\]", (q[None], k, v), {}),
        (ValueError, "Dqk = 16", (q, k[:, :8], v), {}),
        (ValueError, "N = 7", (q, k, v[:5]), {}),
        (TypeError, "v is float16", (q, k, v.half()), {}),
        (TypeError, "float16, bfloat16 or float32", (q.double(), k.double(), v.double()), {}),
        (ValueError, "head_dim_v must be at least 1", (q, k, v[:, :0]), {}),
        (kernels.Unsupported, "head_dim_qk = 576", (random(577), random(1, 577), random(1, 1)), {}),
        (ValueError, "block_n must be a power of two", (q, k, v), {"block_n": 3}),
        (TypeError, "block_n must be an integer", (q, k, v), {"block_n": 2.0}),
        (kernels.Unsupported, "block_n goes up to 1024 here", (q, k, v), {"block_n": 2048}),
        (TypeError, "scale must be a number", (q, k, v), {"scale": "1"}),
        (kernels.Unsupported, "k requires a gradient", (q, k.clone().requires_grad_(), v), {}),
    ]:
        with pytest.raises(error, match=words):
            kernels.one_row(*arguments, **options)
    with pytest.raises(kernels.Unsupported, match="v carries a tangent"):
        torch.func.jvp(lambda v: kernels.one_row(q, k, v)[0], (v,), (v,))
