"""The GQA layer against one written differently: whole, in pieces at any cut, ragged, in every dtype, and its gradients."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import kernels
from course.layers import GQALayer, PageAllocator
from tests.course.layers import plain
from tests.course.layers.plain import assert_close, caches

# Group sizes and widths that are no powers of two, and no two of a kind alike.
HEADS = [(7, 1), (6, 2), (12, 4), (5, 5), (10, 2), (9, 3), (14, 2)]


@st.composite
def layers(draw):
    """A float64 layer with any ratio of heads and any widths."""
    n_q_heads, n_kv_heads = draw(st.sampled_from(HEADS))
    rope_base = draw(st.sampled_from([None, 100.0, 5e5]))
    head_dim = draw(st.integers(1, 9)) * (1 if rope_base is None else 2)
    torch.manual_seed(draw(st.integers(0, 2**16)))
    return GQALayer(
        draw(st.integers(1, 20)), n_q_heads, n_kv_heads, head_dim,
        head_dim_v=draw(st.none() | st.integers(1, 11)), rope_base=rope_base,
        pairing=draw(st.sampled_from(["halves", "interleaved"])), bias=draw(st.booleans()),
        scale=draw(st.none() | st.just(0.7)),
    ).double()  # fmt: skip


@settings(deadline=None, max_examples=30)
@given(layer=layers(), batch=st.integers(1, 3), tokens=st.integers(1, 30), cuts=st.lists(st.integers(1, 12), max_size=6))
def test_any_cut_gives_what_one_forward_gives(layer, batch, tokens, cuts):
    x = torch.randn(batch, tokens, layer.d_model, dtype=torch.float64)
    wanted = plain.gqa(layer, x)
    assert_close(layer(x), wanted)
    for cache in caches(layer, batch, tokens):
        assert_close(plain.in_pieces(layer, x, cache, cuts), wanted)
        assert cache.bytes_used == batch * tokens * layer.attention.bytes_per_token(8)
        assert cache.lengths == [tokens] * batch


@settings(deadline=None, max_examples=15)
@given(layer=layers(), data=st.data())
def test_sequences_of_different_lengths_go_on_together(layer, data):
    lengths = data.draw(st.lists(st.integers(1, 15), min_size=2, max_size=4))
    cuts = data.draw(st.lists(st.integers(1, 11), min_size=1, max_size=4))
    more = sum(cuts)
    texts = [torch.randn(1, length + more, layer.d_model, dtype=torch.float64) for length in lengths]
    for cache in caches(layer, len(texts), max(lengths) + more):
        with torch.no_grad():
            for i, (text, length) in enumerate(zip(texts, lengths, strict=True)):
                layer(text[:, :length], cache.sequence(i))
        got = plain.in_pieces(layer, torch.cat([t[:, n:] for t, n in zip(texts, lengths, strict=True)]), cache, cuts)
        for i, (text, length) in enumerate(zip(texts, lengths, strict=True)):
            assert_close(got[i : i + 1], plain.gqa(layer, text)[:, length:])


@settings(deadline=None, max_examples=15)
@given(layer=layers(), prefix=st.integers(1, 12), tails=st.lists(st.integers(1, 10), min_size=2, max_size=3))
def test_forks_share_a_prefix_and_part(layer, prefix, tails):
    start = torch.randn(1, prefix, layer.d_model, dtype=torch.float64)
    ends = [torch.randn(1, tail, layer.d_model, dtype=torch.float64) for tail in tails]
    cache = plain.poison(layer.new_paged_cache(PageAllocator(40, 3), 1))
    with torch.no_grad():
        layer(start, cache)
        forks = [cache.of([cache.allocator.fork(cache.sequences[0])]) for _ in ends]
        outs = [layer(end, fork) for end, fork in zip(ends, forks, strict=True)]
    for end, out in zip(ends, outs, strict=True):
        assert_close(out, plain.gqa(layer, torch.cat([start, end], 1))[:, prefix:])
    cache.allocator.check()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", [0, 1], ids=["contiguous", "paged"])
def test_kernels_answer_in_every_dtype(dtype, kind, device, mode):
    layer = GQALayer(20, 6, 2, 10, head_dim_v=12, bias=True).to(device, dtype)
    x = torch.randn(2, 14, 20, device=device).to(dtype)
    wanted = plain.gqa(layer, x)
    assert_close(layer(x), wanted, dtype)
    assert_close(plain.in_pieces(layer, x, caches(layer, 2, 14)[kind], [10, 3]), wanted, dtype)


def test_kernels_that_are_called(device, monkeypatch):
    """A decode step of up to 8 tokens reads the cache where it lies; only more go to the full-sequence kernel."""
    called = plain.record_calls(monkeypatch, "attention", "decode", "paged_decode")
    layer = GQALayer(8, 4, 2, 4).to(device)
    x = torch.randn(1, 21, 8, device=device)
    for cache, decode in zip(caches(layer, 1, 40), ("decode", "paged_decode"), strict=True):
        called.clear()
        plain.in_pieces(layer, x, cache, [9, 1, 8, 3])
        assert called == [("attention", 9), (decode, 1), (decode, 8), (decode, 3)]


@pytest.mark.parametrize("pairing", ["halves", "interleaved"])
def test_gradients(pairing, device, mode):
    layer = GQALayer(12, 6, 2, 6, head_dim_v=5, bias=True, pairing=pairing).to(device)
    x = torch.randn(2, 11, 12, device=device, requires_grad=True)
    twin = GQALayer(12, 6, 2, 6, head_dim_v=5, bias=True, pairing=pairing).to(device).double()
    plain.assert_gradients(layer, twin, x)


def test_gradients_of_the_definition():
    layer = GQALayer(5, 6, 2, 4, head_dim_v=3, bias=True).double()
    assert torch.autograd.gradcheck(layer, torch.randn(1, 4, 5, dtype=torch.float64, requires_grad=True))


def test_only_distances_count():
    layer = GQALayer(8, 4, 2, 6).double()
    x = torch.randn(2, 6, 8, dtype=torch.float64)
    shifted = torch.arange(6) + torch.tensor([[100], [7]])
    assert_close(layer(x, positions=shifted), layer(x).detach())
    assert_close(layer(x, positions=torch.arange(6) + 3), layer(x).detach())
    spread = 2 * torch.arange(6)
    assert_close(layer(x, positions=spread), plain.gqa(layer, x, spread))
    assert (layer(x, positions=spread) - layer(x)).abs().max() > 1e-3


def test_under_inference_mode(device):
    layer = GQALayer(8, 4, 2, 6).to(device)
    with torch.inference_mode():
        cache = layer.new_cache(1, 4)
        x = torch.randn(1, 3, 8, device=device)
        assert_close(torch.cat([layer(x[:, :2], cache), layer(x[:, 2:], cache)], 1), plain.gqa(layer, x), torch.float32)


def test_says_what_it_is():
    assert "GQA-2, n_q_heads=6, n_kv_heads=2, head_dim=4, pairing='halves'" in repr(GQALayer(8, 6, 2, 4))
    parameters = {name: list(value.shape) for name, value in GQALayer(8, 6, 2, 4, head_dim_v=5).named_parameters()}
    assert parameters == {"w_q.weight": [24, 8], "w_k.weight": [8, 8], "w_v.weight": [10, 8], "w_o.weight": [8, 30]}
    qwen = GQALayer(8, 6, 2, 4, bias=True, out_bias=False)
    assert qwen.w_q.bias is not None and qwen.w_o.bias is None


X = torch.zeros(1, 3, 8)


@pytest.mark.parametrize(
    "error, words, call",
    [
        (ValueError, "n_kv_heads must divide n_q_heads", lambda layer: GQALayer(8, 4, 3, 6)),
        (ValueError, "head_dim must be even", lambda layer: GQALayer(8, 4, 2, 5)),
        (ValueError, "rope_base must be finite", lambda layer: GQALayer(8, 4, 2, 6, rope_base=1.0)),
        (ValueError, "pairing must be one of", lambda layer: GQALayer(8, 4, 2, 6, pairing="neox")),
        (ValueError, r"x must have shape \[B, M, d_model\] with d_model = 8", lambda layer: layer(torch.zeros(1, 3, 9))),
        (ValueError, r"x must have shape \[B, M, d_model\]", lambda layer: layer(torch.zeros(3, 8))),
        (ValueError, "x must hold at least one token", lambda layer: layer(X[:, :0])),
        (TypeError, "x must be torch.float32", lambda layer: layer(X.half())),
        (TypeError, "cache must be a ContiguousCache, a PagedCache or None", lambda layer: layer(X, {})),
        (ValueError, "cache must be .* wide for this layer", lambda layer: layer(X, GQALayer(8, 4, 4, 6).new_cache(1, 4))),
        (kernels.Unsupported, "call the layer under torch.no_grad", lambda layer: layer(X, layer.new_cache(1, 4))),
        (ValueError, r"positions must have shape \[M\] = \[3\]", lambda layer: layer(X, positions=torch.arange(4))),
        (TypeError, "positions must be a tensor of whole", lambda layer: layer(X, positions=torch.zeros(3))),
    ],
)
def test_refusals(error, words, call, device):
    with pytest.raises(error, match=words):
        call(GQALayer(8, 4, 2, 6))


def test_refusals_of_caches():
    layer = GQALayer(8, 4, 2, 6)
    with torch.no_grad():
        with pytest.raises(ValueError, match="capacity is 2 tokens"):
            layer(X, layer.new_cache(1, 2))
        with pytest.raises(ValueError, match="x and cache must have the same batch, got 1 and 2 sequences"):
            layer(X, layer.new_cache(2, 4))
        with pytest.raises(TypeError, match="k must be torch.float16"):
            layer(X, GQALayer(8, 4, 2, 6).half().new_cache(1, 4))
