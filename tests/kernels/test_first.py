"""First kernels: a copy moves every bit and nothing more, a softmax is a softmax, reading reads once."""

import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import kernels
from course import measure
from kernels import first, reference
from kernels.first import copy_kernel, softmax_kernel, softmax_three_passes_kernel
from tests.kernels.accuracy import COMPILED, assert_accurate, errors

SOFTMAXES = [first.softmax, first.softmax_three_passes]
INTERPRETED = pytest.mark.skipif(kernels.MODE != "interpreter", reason="traffic is counted in Triton's interpreter")


def noise(numel, dtype, device, seed=1):
    """Elements of random bits: NaN of every payload, infinities, negative zeros."""
    size = torch.empty(0, dtype=dtype).element_size()
    generator = torch.Generator().manual_seed(seed)
    octets = torch.randint(0, 2 if dtype == torch.bool else 256, (numel * size,), dtype=torch.uint8, generator=generator)
    return octets.view(dtype).to(device)


def same_bits(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(*(t.reshape(-1).view(torch.uint8) for t in (a, b)))


@pytest.mark.parametrize(
    "dtype",
    [
        torch.bool, torch.int8, torch.uint8, torch.float8_e4m3fn, torch.int16, torch.float16, torch.bfloat16,
        torch.int32, torch.float32, torch.int64, torch.float64, torch.complex64,
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("numel", [0, 1, 255, 256, 257, 1000])
def test_a_copy_has_the_same_bits(device, dtype, numel):
    x = noise(numel, dtype, device)
    assert same_bits(first.copy(x, block=256), x)


def test_a_copy_of_any_stride_or_any_number_of_axes(device):
    x = noise(3000, torch.float16, device)
    for view in (x[::3], x[7:1500:2], x[:1].expand(700), x.view(2, 30, 50), x[0], x.view(30, 100)[5:9]):
        out = first.copy(view, block=128)
        assert same_bits(out, view.contiguous()) and out.is_contiguous()
    for view in (x.view(30, 100).T, x.view(30, 100)[:, :50]):
        with pytest.raises(ValueError, match="one axis or be contiguous"):
            first.copy(view)


def test_the_mask_keeps_the_tail_inside(device):
    """The elements after the last one are neither read nor written."""
    x, out = noise(300, torch.int32, device), torch.full((300,), 7, dtype=torch.int32, device=device)
    copy_kernel[(4,)](x, out, 200, 1, BLOCK=64)
    assert torch.equal(out[:200], x[:200]) and (out[200:] == 7).all()


def test_a_copy_beyond_31_bits(device):
    """Three elements 2**30 + 64 apart; the memory between is never touched."""
    far = torch.empty(2**31 + 129, dtype=torch.int8, device=device)[:: 2**30 + 64]
    far.copy_(torch.tensor([1, 2, 3], dtype=torch.int8, device=device))
    assert first.copy(far).tolist() == [1, 2, 3]


@pytest.mark.skipif(not COMPILED, reason="needs a CUDA GPU: more than 2**31 elements")
def test_a_copy_of_more_than_31_bits_of_elements(device):
    x = torch.arange(2**31 + 1001, dtype=torch.uint8, device=device)
    assert torch.equal(first.copy(x, block=8192), x)


@INTERPRETED
def test_a_copy_requests_every_element_once():
    """1000 elements in blocks of 256: 4 programs, 24 idle lanes."""
    counted = measure.count_traffic(first.copy, torch.arange(1000), block=256)
    assert (counted.programs, counted.loads, counted.requested("x"), counted.distinct("x")) == (4, 4, 1000, 1000)


@pytest.mark.parametrize("softmax", SOFTMAXES)
@settings(max_examples=25)
@given(
    rows=st.integers(1, 5), columns=st.integers(1, 300), size=st.sampled_from([0.1, 1.0, 30.0]),
    hidden=st.sampled_from([0.0, 0.3, 0.95]), layout=st.sampled_from(["rows", "columns", "sliced", "expanded"]),
    dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16]), seed=st.integers(0, 2**31),
)  # fmt: skip
def test_softmax_of_any_shape(softmax, rows, columns, size, hidden, layout, dtype, seed):
    generator = torch.Generator("cuda" if COMPILED else "cpu").manual_seed(seed)
    x = size * torch.randn(rows, columns, generator=generator, device=generator.device)
    x = torch.where(torch.rand(x.shape, generator=generator, device=x.device) < hidden, -torch.inf, x).to(dtype)
    if layout == "columns":
        x = x.T.contiguous().T
    elif layout == "sliced":
        x = torch.full((rows, columns + 5), torch.nan, dtype=dtype, device=x.device)[:, 2 : columns + 2].copy_(x)
    elif layout == "expanded":
        x = x[:1].expand(rows, -1)
    options = {"block": 64} if softmax is first.softmax_three_passes else {}
    out = softmax(x, **options)
    assert out.dtype == dtype and out.is_contiguous()
    peer = torch.where((x == -torch.inf).all(-1, keepdim=True), 0, x.softmax(-1))
    assert_accurate(out, reference.softmax(x), peer)


@pytest.mark.filterwarnings("ignore:.*encountered in subtract")  # the interpreter's NumPy says what the rows are made for
@pytest.mark.parametrize("softmax", SOFTMAXES)
def test_rows_of_infinity_and_nan(device, softmax):
    """No score at all gives zeros, as in attention; what is undefined stays NaN, in its own row only."""
    rows = [[-torch.inf] * 3, [0.0, -torch.inf, 0.0], [0.0, torch.nan, 1.0], [0.0, torch.inf, 1.0], [3e38, -3e38, 3e38]]
    out = softmax(torch.tensor(rows, device=device))
    assert out[0].tolist() == [0.0, 0.0, 0.0]
    assert out[1].tolist() == out[4].tolist() == [0.5, 0.0, 0.5]
    assert out[2:4].isnan().all()


def test_both_softmaxes_agree_at_every_width(random):
    """Around one and several tiles, and wide rows."""
    for columns in (1, 2, 31, 32, 33, 64, 127, 1024, 1025, 5000, 32768):
        x = random(2, columns)
        one, three = first.softmax(x), first.softmax_three_passes(x, block=32 if columns < 1000 else 1024)
        assert max(*errors(one, three), *errors(one, reference.softmax(x))) < 1e-6


def test_a_row_wider_than_a_tile_is_refused_by_one_pass(random):
    x = random(2, 32769)
    with pytest.raises(kernels.Unsupported, match="up to 32768 columns, got 32769: use softmax_three_passes"):
        first.softmax(x)
    assert_accurate(first.softmax_three_passes(x, block=8192), reference.softmax_three_passes(x))


@pytest.mark.parametrize("softmax", SOFTMAXES)
def test_softmax_offsets_beyond_31_bits(random, device, softmax):
    buffer = torch.empty(2**31 + 129 + 3, dtype=torch.float16, device=device)
    near = random(3, 3, dtype=torch.float16)
    for strides in ((2**30 + 64, 1), (1, 2**30 + 64)):
        far = buffer.as_strided((3, 3), strides).copy_(near)
        assert torch.equal(softmax(far), softmax(near))


@INTERPRETED
def test_one_pass_requests_a_third_of_three():
    x = torch.randn(3, 1000)
    assert measure.count_traffic(first.softmax, x).requested("x") == 3000
    counted = measure.count_traffic(first.softmax_three_passes, x, block=256)
    assert (counted.requested("x"), counted.distinct("x"), counted.programs) == (9000, 3000, 3)


@pytest.mark.parametrize("softmax", SOFTMAXES)
@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 0)])
def test_softmax_of_nothing(random, softmax, shape):
    assert softmax(random(*shape)).shape == shape


@pytest.mark.skipif(not COMPILED, reason="needs a CUDA GPU: counts compiled variants")
def test_lengths_compile_a_handful(random):
    def variants(kernel):
        return sum(len(cache[0]) for cache in kernel.device_caches.values())

    def sweep():
        for n in (*range(1, 131), 1000, 1024):
            first.copy(random(n))
            first.softmax(random(3, n))
            first.softmax_three_passes(random(3, n))

    every = copy_kernel, softmax_kernel, softmax_three_passes_kernel
    before = [variants(kernel) for kernel in every]
    sweep()
    after = [variants(kernel) for kernel in every]
    assert all(b - a <= 4 for a, b in zip(before, after, strict=True))
    sweep()
    assert [variants(kernel) for kernel in every] == after


def test_compiles_without_a_graph_break(random):
    def step(x):
        return first.softmax(first.copy(x)) + first.softmax_three_passes(x)

    x = random(3, 40)
    torch.testing.assert_close(torch.compile(step, fullgraph=True, backend="aot_eager")(x), step(x))


def test_without_triton_torch_answers(random, monkeypatch):
    monkeypatch.setattr(sys.modules["kernels.first"], "MODE", "reference")
    x = random(3, 40, dtype=torch.float16)
    assert torch.equal(first.copy(x), x)
    assert torch.equal(first.softmax(x), reference.softmax(x).half())
    assert torch.equal(first.softmax_three_passes(x), reference.softmax(x).half())


def test_refusals(random, device):
    x = random(4, 8)
    for error, words, call in [
        (TypeError, "x must be a torch.Tensor", lambda: first.copy([1.0])),
        (TypeError, "x must be a dense", lambda: first.copy(x.to_sparse())),
        (TypeError, "1, 2, 4 or 8 bytes", lambda: first.copy(x.to(torch.complex128))),
        (ValueError, "power of two from 1 to 8192", lambda: first.copy(x, block=100)),
        (ValueError, "power of two from 1 to 8192", lambda: first.softmax_three_passes(x, block=0)),
        (ValueError, "power of two from 1 to 8192", lambda: first.softmax_three_passes(x, block=16384)),
        (TypeError, "block must be an integer", lambda: first.copy(x, block=True)),
        (kernels.Unsupported, "x requires a gradient", lambda: first.copy(x.clone().requires_grad_())),
        (kernels.Unsupported, "x requires a gradient", lambda: first.softmax(x.clone().requires_grad_())),
        (kernels.Unsupported, "x carries a tangent", lambda: torch.func.jvp(first.softmax, (x,), (x,))),
        (ValueError, r"x must have shape \[R, N\]", lambda: first.softmax(x[0])),
        (TypeError, "float16, bfloat16 or float32", lambda: first.softmax_three_passes(x.double())),
        (TypeError, "x must be a torch.Tensor", lambda: first.softmax([[1.0]])),
    ]:
        with pytest.raises(error, match=words):
            call()


@pytest.mark.parametrize("numel", [1, 1023, 8192, 8193, 50001])
@pytest.mark.parametrize("programs", [None, 1, 3])
def test_every_element_is_read_once(device, numel, programs):
    x = torch.randint(-(2**31), 2**31 - 1, (numel,), dtype=torch.int32, device=device)
    wanted = 0
    for value in x.tolist():
        wanted ^= value
    got = 0
    for value in first.read(x, programs=programs).tolist():
        got ^= value
    assert got == wanted


def test_a_number_of_programs_is_positive(device):
    x = torch.ones(4, dtype=torch.int32, device=device)
    for error, programs in ((ValueError, 0), (ValueError, -1), (TypeError, 2.0)):
        with pytest.raises(error, match="programs"):
            first.read(x, programs=programs)


def test_refuses_what_it_cannot_read(device):
    for bad in ([1], torch.ones(4, device=device), torch.ones(4, 4, dtype=torch.int32, device=device).T[:, :2]):
        with pytest.raises(TypeError, match="contiguous int32"):
            first.read(bad)
