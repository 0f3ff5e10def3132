"""The backward pass of full-sequence attention against float64 gradients of its definition."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.checkpoint import checkpoint

import kernels
from kernels import backward, reference, tiles
from kernels._operation import NAMESPACE
from kernels.backward import ROW_ALIGNMENT, attention_backward, group_splits, partials_then_sum, widths_of
from tests.kernels.accuracy import COMPILED, DTYPES, FLOORS, assert_accurate, errors, sdpa_math, strides_beyond_31_bits
from tests.kernels.test_tiles import GPUS

pytestmark = pytest.mark.skipif(kernels.MODE == "reference", reason="needs Triton: without it torch differentiates")


def leaves(*tensors, dtype=None):
    return [t.detach().to(dtype or t.dtype).requires_grad_() for t in tensors]


def bottom_right(q_len, kv_len, device):
    i = torch.arange(q_len, device=device)[:, None]
    return torch.arange(kv_len, device=device)[None, :] <= i + kv_len - q_len


def reference_gradients(q, k, v, d_out, d_lse=None, causal=False, scale=None):
    """float64 gradients of the definition. Rows without keys have nothing to give: their lse is a constant."""
    inputs = leaves(q, k, v, dtype=torch.float64)
    out, lse = reference.attention(*inputs, causal=causal, scale=scale)
    loss = (out * d_out.double()).sum()
    if d_lse is not None:
        loss = loss + torch.where(lse == -torch.inf, 0.0, lse * d_lse.double()).sum()
    return torch.autograd.grad(loss, inputs)


def peer_gradients(q, k, v, d_out, d_lse=None, causal=False, scale=None):
    """What PyTorch's unfused attention answers in the inputs' own dtype, for the rows that have keys."""
    inputs = leaves(q, k, v)
    first = max(q.shape[2] - k.shape[2], 0) if causal else 0
    rows = inputs[0][:, :, first:]
    mask = bottom_right(q.shape[2], k.shape[2], q.device)[first:] if causal else None
    loss = (sdpa_math(rows, *inputs[1:], mask, scale) * d_out[:, :, first:]).sum()
    if d_lse is not None:
        keys = inputs[1].repeat_interleave(q.shape[1] // k.shape[1], 1)
        scores = rows @ keys.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
        scores = scores if mask is None else scores.masked_fill(~mask, -torch.inf)
        loss = loss + (scores.float().logsumexp(-1) * d_lse[:, :, first:]).sum()
    return torch.autograd.grad(loss, inputs)


def gradients(q, k, v, d_out, d_lse=None, causal=False, scale=None):
    inputs = leaves(q, k, v)
    out, lse = kernels.attention(*inputs, causal=causal, scale=scale)
    if d_lse is None:
        return torch.autograd.grad(out, inputs, d_out)
    return torch.autograd.grad((out, lse), inputs, (d_out, d_lse))


def check(got, wanted, peer, kv_len, head_dim_v):
    """The bound of the forward pass, except that a gradient which may be 0 has no relative error.

    The score of a lone key has gradient 0, and with few keys it is a difference of almost equal numbers, dP - delta. Each is a
    sum of ``head_dim_v`` products, of about the square root of that in size, and was rounded by itself. PyTorch's unfused
    attention has the weights at hand, and a lone key's difference is exactly 0 there.
    """
    if kv_len >= 8:
        assert_accurate(got, wanted, peer)
    else:
        assert errors(got, wanted)[0] <= 2 * errors(peer, wanted)[0] + FLOORS[got.dtype] * head_dim_v**0.5


def compare(q, k, v, d_out, d_lse=None, causal=False, scale=None):
    got = gradients(q, k, v, d_out, d_lse, causal, scale)
    wanted = reference_gradients(q, k, v, d_out, d_lse, causal, scale)
    peers = peer_gradients(q, k, v, d_out, d_lse, causal, scale)
    for mine, right, peer, like in zip(got, wanted, peers, (q, k, v), strict=True):
        assert mine.dtype == like.dtype and mine.is_contiguous()
        check(mine, right, peer, *v.shape[2:])
    return got


def problem(random, batch, n_q_heads, n_kv_heads, q_len, kv_len, head_dim_qk, head_dim_v, dtype=torch.float32):
    """q, k, v and the gradient of out, as large as a loss makes it that is a mean over the queries."""
    return (
        random(batch, n_q_heads, q_len, head_dim_qk, dtype=dtype),
        random(batch, n_kv_heads, kv_len, head_dim_qk, dtype=dtype),
        random(batch, n_kv_heads, kv_len, head_dim_v, dtype=dtype),
        (random(batch, n_q_heads, q_len, head_dim_v) * max(q_len, 1) ** -0.5).to(dtype),
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("n_q_heads", "n_kv_heads", "causal"), [(2, 2, True), (4, 2, True), (3, 1, False)])
def test_matches_the_definition(random, n_q_heads, n_kv_heads, causal, dtype):
    q, k, v, d_out = problem(random, 1, n_q_heads, n_kv_heads, 37, 37, 64, 64, dtype)
    compare(q, k, v, d_out, random(1, n_q_heads, 37), causal)


def test_bfloat16_everywhere(random):
    """In the interpreter, which cannot multiply it, too."""
    compare(*problem(random, 2, 4, 2, 9, 12, 16, 16, torch.bfloat16), random(2, 4, 9))


LENGTHS = [1, 2, 7, 15, 16, 17, 63, 65, 127, 129, 1025]
SOME = [(1, 1), (2, 7), (7, 2), (15, 17), (17, 16), (1, 63), (63, 1), (65, 63), (127, 129), (129, 65)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("q_len", "kv_len"), [(m, n) for m in LENGTHS for n in LENGTHS] if COMPILED else SOME)
def test_lengths_that_fill_no_tile(random, q_len, kv_len, dtype):
    """Ends of every kind, with both masks; each query head by itself, for a tail that runs on hits the next head first."""
    if not COMPILED and dtype == torch.float32 and q_len * kv_len > 300:
        pytest.skip("the small tiles of float32 take the interpreter too long")
    q, k, v, d_out = problem(random, 1, 3, 1, q_len, kv_len, 64, 64, dtype)
    for causal in (False, True):
        got = gradients(q, k, v, d_out, causal=causal)
        wanted = reference_gradients(q, k, v, d_out, causal=causal)
        peers = peer_gradients(q, k, v, d_out, causal=causal)
        for mine, right, peer in zip(got, wanted, peers, strict=True):
            for head in range(mine.shape[1]):
                check(mine[:, head], right[:, head], peer[:, head], *v.shape[2:])


WIDTHS = [(16, 16), (40, 40), (80, 128), (96, 80), (112, 48), (144, 24), (192, 128), (256, 256), (1, 3)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("head_dim_qk", "head_dim_v"), WIDTHS)
def test_widths_that_are_no_power_of_two(random, head_dim_qk, head_dim_v, dtype):
    """Every tensor is a slice of a wider one whose remainder is NaN: a tile that reads on would show it."""
    tensors = problem(random, 1, 2, 1, 19, 37, head_dim_qk, head_dim_v, dtype)
    wide = [torch.full((*t.shape[:-1], t.shape[-1] + 24), torch.nan, dtype=dtype, device=t.device) for t in tensors]
    compare(*(w[..., :-24].copy_(t) for w, t in zip(wide, tensors, strict=True)), causal=True)


@pytest.mark.parametrize(("n_q_heads", "n_kv_heads"), [(28, 4), (71, 1)])
def test_groups_of_every_size(random, n_q_heads, n_kv_heads):
    compare(*problem(random, 1, n_q_heads, n_kv_heads, 2, 9, 16, 16, torch.float16), causal=True)


def test_every_head_of_a_group_counts_once(device):
    """With q = 0 every key weighs 1 / N, so dV says which heads were added up."""
    q = torch.zeros(1, 12, 2, 16, device=device)
    k = torch.zeros(1, 4, 5, 16, device=device)
    d_out = (10.0 ** torch.arange(12, device=device).remainder(3)).view(1, 12, 1, 1).expand(1, 12, 2, 16)
    _, _, dv = gradients(q, k, k, d_out)
    torch.testing.assert_close(dv, torch.full_like(dv, 2 * 111 / 5))


class TestStridesOfTheGradient:
    """The gradient of out comes as the loss made it, seldom as out lies in memory."""

    @pytest.fixture
    def inputs(self, random):
        return problem(random, 2, 4, 2, 33, 33, 64, 64)

    @staticmethod
    def of(loss, q, k, v):
        inputs = leaves(q, k, v)
        return torch.autograd.grad(loss(kernels.attention(*inputs, causal=True)[0]), inputs)

    def test_a_sum_is_expanded_with_stride_zero(self, inputs):
        q, k, v, _ = inputs
        expanded = self.of(lambda out: out.sum(), q, k, v)
        dense = self.of(lambda out: (out * torch.ones_like(out)).sum(), q, k, v)
        exact = reference_gradients(q, k, v, torch.ones((), device=q.device).expand(2, 4, 33, 64), causal=True)
        for a, b, right in zip(expanded, dense, exact, strict=True):
            torch.testing.assert_close(a, b)
            assert errors(a, right)[1] < 2e-6

    def test_through_a_linear_layer(self, inputs, random):
        q, k, v, _ = inputs
        weight, seed = random(256, 24), random(2, 33, 24)

        def loss(out):
            return (out.transpose(1, 2).reshape(2, 33, -1) @ weight.to(out.dtype) * seed).sum()

        got = self.of(loss, q, k, v)
        exact = leaves(q, k, v, dtype=torch.float64)
        wanted = torch.autograd.grad(loss(reference.attention(*exact, causal=True)[0]), exact)
        for mine, right in zip(got, wanted, strict=True):
            assert errors(mine, right)[1] < 2e-6

    def test_views_of_one_packed_projection(self, random):
        packed = random(2, 33, 4 + 2 + 2, 64).requires_grad_()
        d_out = random(2, 33, 4, 64)

        def loss(attention, packed):
            q, k, v = packed.transpose(1, 2).split([4, 2, 2], 1)
            return (attention(q, k, v, causal=True)[0].transpose(1, 2) * d_out).sum()

        (got,) = torch.autograd.grad(loss(kernels.attention, packed), packed)
        exact = packed.detach().double().requires_grad_()
        (wanted,) = torch.autograd.grad(loss(reference.attention, exact), exact)
        assert errors(got, wanted)[1] < 2e-6

    def test_keys_and_values_expanded_from_one_head(self, random):
        q, k, v, d_out = problem(random, 2, 4, 1, 33, 33, 64, 64)
        got = gradients(q, k.expand(-1, 2, -1, -1), v.expand(-1, 2, -1, -1), d_out)
        wanted = reference_gradients(q, k, v, d_out)
        assert_accurate(got[0], wanted[0], peer_gradients(q, k, v, d_out)[0])
        for mine, right in zip(got[1:], wanted[1:], strict=True):
            assert errors(mine.sum(1, keepdim=True), right)[1] < 2e-6

    def test_columns_that_are_not_dense(self, random):
        q, k, v, d_out = (t.transpose(2, 3).contiguous().transpose(2, 3) for t in problem(random, 1, 4, 2, 9, 21, 24, 40))
        compare(q, k, v, d_out)


def test_rows_without_keys_give_nothing(random):
    """31 of 40 queries see no key. What the loss says about them must not matter, even if it is NaN."""
    q, k, v, d_out = problem(random, 1, 2, 1, 40, 9, 16, 16)
    clean = compare(q, k, v, d_out, random(1, 2, 40), causal=True)
    assert (clean[0][:, :, :31] == 0).all()
    out, lse = kernels.attention(q, k, v, causal=True)
    d_out[:, :, :31] = q[:, :, :31] = torch.nan
    d_lse = torch.full((1, 2, 40), torch.nan, device=q.device)
    d_lse[:, :, 31:] = 0
    for got, wanted in zip(
        attention_backward(q, k, v, out, lse, d_out, d_lse, True, 0.25, False),
        gradients(q[:, :, 31:], k, v, d_out[:, :, 31:], causal=True),
        strict=True,
    ):
        assert_accurate(got[:, :, -9:], wanted.double())
        assert (got[:, :, :-9] == 0).all()


@pytest.mark.parametrize(("batch", "q_len", "kv_len"), [(0, 3, 5), (2, 0, 5), (2, 3, 0)])
def test_empty_axes(random, batch, q_len, kv_len):
    q, k, v, d_out = problem(random, batch, 2, 1, q_len, kv_len, 16, 8)
    for mine, like in zip(gradients(q, k, v, d_out, random(batch, 2, q_len)), (q, k, v), strict=True):
        assert mine.shape == like.shape and (mine == 0).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gradient_through_lse_alone(random, dtype):
    q, k, v, d_out = problem(random, 2, 4, 2, 21, 35, 40, 24, dtype)
    d_lse = random(2, 4, 1).expand(-1, -1, 21)
    inputs = leaves(q, k, v)
    _, lse = kernels.attention(*inputs, causal=True)
    got = torch.autograd.grad(lse, inputs, d_lse)
    wanted = reference_gradients(q, k, v, torch.zeros_like(d_out), d_lse, True)
    peers = peer_gradients(q, k, v, torch.zeros_like(d_out), d_lse, True)
    for mine, right, peer in zip(got, wanted, peers, strict=True):
        assert_accurate(mine, right, peer)
    assert (got[2] == 0).all()


@pytest.mark.parametrize("wanted", ["q", "k", "v", "kv"])
def test_only_what_is_asked_for(random, wanted):
    q, k, v, d_out = problem(random, 1, 2, 1, 9, 12, 16, 16)
    tensors = {"q": q.clone(), "k": k.clone(), "v": v.clone()}
    for name in wanted:
        tensors[name].requires_grad_()
    kernels.attention(**tensors)[0].backward(d_out)
    for (name, tensor), right in zip(tensors.items(), reference_gradients(q, k, v, d_out), strict=True):
        assert (tensor.grad is None) == (name not in wanted)
        if tensor.grad is not None:
            assert errors(tensor.grad, right)[1] < 2e-6


@pytest.mark.parametrize("scale", [0.0, 1.0, -0.3])
def test_scale_is_the_models_own(random, scale):
    compare(*problem(random, 1, 2, 1, 9, 12, 16, 16), scale=scale)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_large_scores_do_not_overflow(random, dtype):
    """Scores in the hundreds: P is all but 1 for one key, dq and dk are rounding, and lse rounds as coarsely as it is large."""
    q, k, v, d_out = problem(random, 1, 2, 1, 9, 40, 16, 16, dtype)
    q, k = 10 * q, 10 * k
    bound = 10 * FLOORS[dtype] + 2**-22 * reference.attention(q, k, v)[1].max()
    for mine, right in zip(gradients(q, k, v, d_out), reference_gradients(q, k, v, d_out), strict=True):
        assert errors(mine, right)[0] <= bound


@pytest.mark.parametrize("axis", ["token", "head", "batch"])
def test_offsets_beyond_two_to_the_31(random, device, axis):
    """One stride of 2**30 + 64 elements and three steps along it; the memory between is never touched."""
    far, near = strides_beyond_31_bits(random, device, axis)
    _, lse = kernels.attention(near, near, near, causal=True)
    got = attention_backward(far, far, far, far, lse, far, None, True, 0.125, False)
    wanted = attention_backward(near, near, near, near, lse, near, None, True, 0.125, False)
    for a, b in zip(got, wanted, strict=True):
        assert torch.equal(a, b)


@settings(max_examples=40 if COMPILED else 4)
@given(
    st.integers(1, 2), st.integers(1, 2), st.integers(1, 3), st.integers(1, 30), st.integers(8, 50),
    st.integers(1, 70), st.integers(1, 70), st.booleans(), st.sampled_from(DTYPES), st.integers(0, 2**31),
)  # fmt: skip
def test_any_shape(batch, n_kv_heads, group_size, q_len, kv_len, head_dim_qk, head_dim_v, causal, dtype, seed):
    generator = torch.Generator("cuda" if COMPILED else "cpu").manual_seed(seed)

    def random(*shape, dtype=torch.float32):
        return torch.randn(shape, generator=generator, device=generator.device).to(dtype)

    tensors = problem(random, batch, n_kv_heads * group_size, n_kv_heads, q_len, kv_len, head_dim_qk, head_dim_v, dtype)
    compare(*tensors, random(batch, n_kv_heads * group_size, q_len), causal)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("n_q_heads", "n_kv_heads", "causal"), [(4, 2, True), (3, 1, False)])
def test_partials_then_sum_is_the_same_gradient(random, n_q_heads, n_kv_heads, causal, dtype):
    q, k, v, d_out = problem(random, 2, n_q_heads, n_kv_heads, 9, 21, 40, 24, dtype)
    q = q.transpose(1, 2).contiguous().transpose(1, 2)
    out, lse = kernels.attention(q, k, v, causal=causal)
    got = partials_then_sum(q, k, v, out, lse, d_out, causal=causal)
    summed = gradients(q, k, v, d_out, causal=causal)
    for mine, other in zip(got, summed, strict=True):
        assert mine.dtype == dtype and mine.shape == other.shape
        torch.testing.assert_close(mine, other, rtol=2 * torch.finfo(dtype).eps, atol=FLOORS[dtype])


@pytest.mark.parametrize(
    ("programs", "group_size", "q_len", "splits"),
    [
        (1024, 8, 2048, 1), (2048, 4, 8192, 1), (1024, 8, 8192, 4), (256, 32, 2048, 8),
        (512, 4, 1024, 1), (128, 6, 1024, 3), (8, 7, 100, 7), (1, 1, 1, 1),
    ],
)  # fmt: skip
def test_a_group_is_shared_where_programs_are_few(programs, group_size, q_len, splits):
    assert group_splits(programs, group_size, q_len, 132) == splits


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_programs_that_share_a_group(random, monkeypatch, dtype):
    tensors = problem(random, 2, 6, 1, 9, 21, 40, 24, dtype)
    monkeypatch.setattr(backward, "group_splits", lambda *sizes: 3)
    compare(*tensors, None, True)
    for a, b in zip(gradients(*tensors), gradients(*tensors), strict=True):
        assert torch.equal(a, b)


def test_the_same_bits_again(random):
    tensors = problem(random, 1, 4, 2, 20, 40, 32, 32)
    for a, b in zip(gradients(*tensors), gradients(*tensors), strict=True):
        assert torch.equal(a, b)


def test_compiles_without_a_graph_break(random):
    q, k, v, d_out = problem(random, 1, 4, 2, 9, 12, 16, 16)

    def loss(q, k, v):
        out, lse = kernels.attention(q, k, v, causal=True)
        return (out * d_out).sum() + lse.sum()

    inputs = leaves(q, k, v)
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    got = torch.autograd.grad(compiled(*inputs), inputs)
    for mine, other in zip(got, torch.autograd.grad(loss(*inputs), inputs), strict=True):
        torch.testing.assert_close(mine, other)


@pytest.mark.parametrize("reentrant", [True, False])
def test_gradient_checkpointing(random, reentrant):
    q, k, v, d_out = problem(random, 1, 4, 2, 9, 12, 16, 16)
    inputs = leaves(q, k, v)
    out = checkpoint(lambda *a: kernels.attention(*a, causal=True)[0], *inputs, use_reentrant=reentrant)
    out.backward(d_out)
    for tensor, other in zip(inputs, gradients(q, k, v, d_out, causal=True), strict=True):
        assert torch.equal(tensor.grad, other)


def test_registered_as_torch_wants_it(random):
    q, k, v, d_out = problem(random, 1, 4, 2, 9, 12, 16, 16)
    out, lse = kernels.attention(q, k, v)
    registered = getattr(torch.ops, NAMESPACE).attention_backward
    torch.library.opcheck(registered, (q, k, v, out, lse, d_out, None, False, 0.25, False))


def test_a_second_derivative_is_refused(random):
    q, k, v, _ = problem(random, 1, 2, 1, 3, 4, 16, 16)
    inputs = leaves(q, k, v)
    out, _ = kernels.attention(*inputs)
    (dq,) = torch.autograd.grad(out.sum(), inputs[0], create_graph=True)
    with pytest.raises(kernels.Unsupported, match="no second derivative"):
        dq.sum().backward()


@given(st.integers(1, 256), st.integers(1, 256), st.sampled_from([2, 4]), st.sampled_from(GPUS))
def test_tiles_of_every_width(head_dim_qk, head_dim_v, itemsize, gpu):
    capability, kib = gpu
    widths = widths_of(head_dim_qk, head_dim_v)
    try:
        both = tiles.backward_tile(widths.columns, itemsize, capability, kib * 1024)
    except kernels.Unsupported:
        assert capability < (8, 0) and head_dim_qk + head_dim_v > 192
        return
    assert ROW_ALIGNMENT.value % both[0].rows == 0
    for tile in both:
        assert min(tile.rows, tile.block_n) >= 16  # both are summed over in some product


def test_a_width_that_fits_nowhere_is_refused_by_name():
    with pytest.raises(kernels.Unsupported, match="512 padded columns of at most 320"):
        tiles.backward_tile(512, 2, (7, 5), 64 * 1024)
    with pytest.raises(kernels.Unsupported, match="of the 48 that"):
        tiles.backward_tile(256, 2, (8, 6), 48 * 1024)


@pytest.mark.skipif(not COMPILED, reason="needs a CUDA GPU: counts compiled variants")
def test_lengths_compile_nothing_new(random):
    from kernels.backward import delta_kernel, dkdv_kernel, dq_kernel

    def variants():
        launched = (delta_kernel, dkdv_kernel, dq_kernel)
        return sum(len(cache[0]) for kernel in launched for cache in kernel.device_caches.values())

    before = variants()
    for n in range(1, 131):
        gradients(*problem(random, n % 3 + 1, 4, 2, n, n, 64, 64, torch.float16), causal=True)
    assert variants() - before <= 9  # three kernels, each with at most three forms of stride


def test_partials_refuse_what_attention_refuses(random):
    q, k, v, d_out = problem(random, 1, 4, 2, 5, 6, 8, 8)
    out, lse = kernels.attention(q, k, v)
    for words, arguments in [
        (r"k must have shape \[B, Hkv, N, Dqk\] with Dqk = 8", (q, k[..., :4], v, out, lse, d_out)),
        (r"v must have shape .* with N = 6", (q, k, v[:, :, :3], out, lse, d_out)),
        (r"out must have shape .* with Hq = 4", (q, k, v, out[:, :2], lse, d_out)),
        (r"d_out must have shape .* with Dv = 8", (q, k, v, out, lse, d_out[..., :4])),
        (r"lse must have shape .* with Hq = 4", (q, k, v, out, lse[:, :1], d_out)),
        ("lse must be a float32 tensor", (q, k, v, out, lse.half(), d_out)),
    ]:
        with pytest.raises((ValueError, TypeError), match=words):
            partials_then_sum(*arguments)
    with pytest.raises(kernels.Unsupported, match="q requires a gradient"):
        partials_then_sum(q.clone().requires_grad_(), k, v, out, lse, d_out)


def test_partials_of_any_scale_and_any_strides_of_lse(random):
    q, k, v, d_out = problem(random, 1, 4, 2, 5, 6, 8, 8)
    for scale in (0.0, -0.3, 0.3):
        out, lse = kernels.attention(q, k, v, scale=scale)
        wanted = gradients(q, k, v, d_out, scale=scale)
        scattered = lse.transpose(1, 2).contiguous().transpose(1, 2)
        for mine, other in zip(partials_then_sum(q, k, v, out, scattered, d_out, scale=scale), wanted, strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-6)
