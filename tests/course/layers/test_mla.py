"""The MLA layer against one written differently: both forms, any cut, ragged, in every dtype, and its gradients."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import kernels
from course.layers import MLALayer, PageAllocator
from tests.course.layers import plain
from tests.course.layers.plain import assert_close, caches

FORMS = ["auto", "expanded", "absorbed"]


@st.composite
def layers(draw):
    """A float64 layer in which no width has to equal another."""
    torch.manual_seed(draw(st.integers(0, 2**16)))
    layer = MLALayer(
        draw(st.integers(1, 20)), draw(st.sampled_from([1, 3, 5, 7, 12])),
        nope_dim=draw(st.integers(1, 11)), rope_dim=2 * draw(st.integers(1, 5)), head_dim_v=draw(st.integers(1, 13)),
        latent_dim=draw(st.integers(1, 17)), q_latent_dim=draw(st.none() | st.integers(1, 15)),
        rope_base=draw(st.sampled_from([50.0, 1e4])), pairing=draw(st.sampled_from(["halves", "interleaved"])),
        scale=draw(st.none() | st.just(0.37)), bias=draw(st.booleans()),
    ).double()  # fmt: skip
    return scatter_norms(layer)


def scatter_norms(layer):
    """Norms start at one, where a forgotten one would not show."""
    for norm in (layer.q_norm, layer.kv_norm):
        if norm is not None:
            torch.nn.init.uniform_(norm.weight, 0.5, 1.5)
    return layer


def small(dtype=torch.float32, device="cpu", **more):
    """A layer whose widths all differ."""
    widths = {"nope_dim": 10, "rope_dim": 6, "head_dim_v": 14, "latent_dim": 18, "q_latent_dim": 11} | more
    return scatter_norms(MLALayer(20, 5, **widths)).to(device, dtype)


@settings(deadline=None, max_examples=30)
@given(layer=layers(), batch=st.integers(1, 3), tokens=st.integers(1, 26), cuts=st.lists(st.integers(1, 12), max_size=6))
def test_any_cut_and_form_gives_what_one_forward_gives(layer, batch, tokens, cuts):
    x = torch.randn(batch, tokens, layer.d_model, dtype=torch.float64)
    wanted = plain.mla(layer, x)
    for form in FORMS:
        assert_close(layer(x, form=form), wanted)
        for cache in caches(layer, batch, tokens):
            assert_close(plain.in_pieces(layer, x, cache, cuts, form=form), wanted)
            assert cache.bytes_used == batch * tokens * layer.attention.bytes_per_token(8)
            assert layer.attention.elements_per_token == layer.latent_dim + layer.rope_dim


@settings(deadline=None, max_examples=12)
@given(layer=layers(), data=st.data(), form=st.sampled_from(FORMS))
def test_sequences_of_different_lengths_go_on_together(layer, data, form):
    lengths = data.draw(st.lists(st.integers(1, 15), min_size=2, max_size=3))
    cuts = data.draw(st.lists(st.integers(1, 11), min_size=1, max_size=3))
    texts = [torch.randn(1, length + sum(cuts), layer.d_model, dtype=torch.float64) for length in lengths]
    for cache in caches(layer, len(texts), max(lengths) + sum(cuts)):
        with torch.no_grad():
            for i, (text, length) in enumerate(zip(texts, lengths, strict=True)):
                layer(text[:, :length], cache.sequence(i))
        rest = torch.cat([text[:, length:] for text, length in zip(texts, lengths, strict=True)])
        got = plain.in_pieces(layer, rest, cache, cuts, form=form)
        for i, (text, length) in enumerate(zip(texts, lengths, strict=True)):
            assert_close(got[i : i + 1], plain.mla(layer, text)[:, length:])


def test_forks_share_a_prefix_and_part():
    layer = small(torch.float64)
    start, ends = torch.randn(1, 7, 20).double(), [torch.randn(1, n, 20).double() for n in (1, 9, 3)]
    cache = plain.poison(layer.new_paged_cache(PageAllocator(20, 4), 1))
    with torch.no_grad():
        layer(start, cache)
        forks = [cache.of([cache.allocator.fork(cache.sequences[0])]) for _ in ends]
        outs = [layer(end, fork) for end, fork in zip(ends, forks, strict=True)]
    for end, out in zip(ends, outs, strict=True):
        assert_close(out, plain.mla(layer, torch.cat([start, end], 1))[:, 7:])
    cache.allocator.check()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", [0, 1], ids=["contiguous", "paged"])
def test_kernels_answer_in_every_dtype(dtype, kind, device, mode):
    layer = small(dtype, device)
    x = torch.randn(2, 14, 20, device=device).to(dtype)
    wanted = plain.mla(layer, x)
    assert_close(layer(x), wanted, dtype)
    assert_close(plain.in_pieces(layer, x, caches(layer, 2, 14)[kind], [10, 3]), wanted, dtype)


def test_forms_agree_in_float32(device, mode):
    layer, x = small(device=device), torch.randn(2, 11, 20, device=device)
    with torch.no_grad():
        expanded, absorbed = layer(x, form="expanded"), layer(x, form="absorbed")
    assert_close(absorbed, expanded.double(), torch.float32)
    assert_close(absorbed, plain.mla(layer, x), torch.float32)


def test_the_equations_are_those_of_the_definition():
    """`kernels.reference` has both forms too: the layer's parts are their arguments as they stand."""
    layer, x = small(torch.float64), torch.randn(2, 9, 20, dtype=torch.float64)
    positions = torch.arange(9)
    (q_nope, q_rope), (latent, k_rope) = layer.queries(x, positions), layer.record(x, positions)
    by_head = q_nope.transpose(1, 2), q_rope.transpose(1, 2)
    expanded, _ = kernels.reference.mla_expanded(
        *by_head, latent, k_rope, layer.w_uk, layer.w_uv, scale=layer.scale, causal=True
    )
    attended, _ = kernels.reference.mla_decode(layer.absorb(q_nope), q_rope, latent, k_rope, scale=layer.scale)
    torch.testing.assert_close(layer.unabsorb(attended), expanded.transpose(1, 2))
    torch.testing.assert_close(layer(x), layer.w_o(expanded.transpose(1, 2).flatten(-2)))


def test_caches_the_latent_after_its_norm_and_the_key_turned():
    layer, x = small(torch.float64), torch.randn(1, 5, 20, dtype=torch.float64)
    cache = layer.new_cache(1, 5)
    with torch.no_grad():
        layer(x, cache)
    [(_, stored)] = cache.stored()
    latent = plain.norm(layer.kv_norm, plain.linear(layer.w_dkv, x))
    key = plain.turned(plain.linear(layer.w_kr, x), torch.arange(5)[None], 10000.0, "interleaved")
    torch.testing.assert_close(stored["latent"], latent)
    torch.testing.assert_close(stored["k_rope"], key)
    assert cache.n_bytes == 5 * (18 + 6) * 8


def test_kernels_that_are_called(device, monkeypatch):
    """Up to 8 new tokens are decoded absorbed, from the cache as it lies; only more are expanded."""
    called = plain.record_calls(monkeypatch, "attention", "mla_decode", "paged_mla_decode")
    layer, x = small(device=device), torch.randn(1, 21, 20, device=device)
    for cache, decode in zip(caches(layer, 1, 40), ("mla_decode", "paged_mla_decode"), strict=True):
        called.clear()
        plain.in_pieces(layer, x, cache, [9, 1, 8, 3])
        assert called == [("attention", 9), (decode, 1), (decode, 8), (decode, 3)]
        called.clear()
        plain.in_pieces(layer, x[:, :18], cache, [18], form="absorbed")
        assert called == [(decode, 8), (decode, 8), (decode, 2)]
    called.clear()
    layer(x)
    assert called == [("attention", 21)]


@pytest.mark.parametrize("q_latent_dim", [None, 11])
def test_gradients(q_latent_dim, device, mode):
    layer = small(device=device, q_latent_dim=q_latent_dim, bias=True)
    x = torch.randn(2, 9, 20, device=device, requires_grad=True)
    twin = small(torch.float64, device, q_latent_dim=q_latent_dim, bias=True)
    plain.assert_gradients(layer, twin, x)
    for name, wanted in twin.named_parameters():
        assert wanted.grad.abs().max() > 0, name


def test_gradients_of_the_definition():
    layer = scatter_norms(MLALayer(5, 3, nope_dim=2, rope_dim=4, head_dim_v=3, latent_dim=4, q_latent_dim=3)).double()
    x = torch.randn(1, 4, 5, dtype=torch.float64, requires_grad=True)
    for form in FORMS:
        assert torch.autograd.gradcheck(lambda x, form=form: layer(x, form=form), x)


def test_kernels_have_no_gradient_in_the_absorbed_form(device):
    with pytest.raises(kernels.Unsupported, match="mla_decode has no backward"):
        small(device=device)(torch.randn(1, 3, 20, device=device), form="absorbed")


def test_only_distances_count():
    layer, x = small(torch.float64), torch.randn(2, 6, 20, dtype=torch.float64)
    assert_close(layer(x, positions=torch.arange(6) + torch.tensor([[100], [7]])), plain.mla(layer, x))
    spread = 2 * torch.arange(6)
    assert_close(layer(x, positions=spread), plain.mla(layer, x, spread))


def test_the_scale_is_that_of_the_whole_head():
    layer = MLALayer(8, 2, nope_dim=128, rope_dim=64, head_dim_v=128, latent_dim=512)
    assert layer.scale == pytest.approx(0.0721688, abs=1e-7)
    assert MLALayer(8, 2, nope_dim=8, rope_dim=8, head_dim_v=8, latent_dim=8, scale=0.5).scale == 0.5


def test_parameters_of_a_layer_of_v3():
    """Counted without memory, against the published widths."""
    with torch.device("meta"):
        layer = MLALayer(7168, 128, nope_dim=128, rope_dim=64, head_dim_v=128, latent_dim=512, q_latent_dim=1536)
    count = {name: value.numel() for name, value in layer.named_parameters()}
    query = 7168 * 1536 + 1536 * 128 * (128 + 64)
    key_value = 7168 * (512 + 64) + 512 * 128 * (128 + 128)
    assert count["w_dq.weight"] + count["w_uq.weight"] + count["w_qr.weight"] == query
    assert sum(count[name] for name in ("w_dkv.weight", "w_kr.weight", "w_uk", "w_uv")) == key_value
    assert sum(count.values()) == query + key_value + 128 * 128 * 7168 + 1536 + 512
    assert layer.attention.elements_per_token == 576


def test_says_what_it_is():
    assert "n_heads=5, nope_dim=10, rope_dim=6, head_dim_v=14, latent_dim=18, q_latent_dim=11" in repr(small())


WIDTHS = {"nope_dim": 4, "rope_dim": 2, "head_dim_v": 4, "latent_dim": 6}
X = torch.zeros(1, 3, 20)


@pytest.mark.parametrize(
    "error, words, call",
    [
        (ValueError, "rope_dim must be even", lambda: MLALayer(8, 2, **WIDTHS | {"rope_dim": 3})),
        (ValueError, "latent_dim must be at least 1", lambda: MLALayer(8, 2, **WIDTHS | {"latent_dim": 0})),
        (TypeError, "nope_dim must be a whole", lambda: MLALayer(8, 2, **WIDTHS | {"nope_dim": 4.0})),
        (ValueError, "n_heads must be at least 1", lambda: MLALayer(8, 0, **WIDTHS)),
        (ValueError, "q_latent_dim must be at least 1", lambda: MLALayer(8, 2, **WIDTHS, q_latent_dim=0)),
        (ValueError, "pairing must be one of", lambda: MLALayer(8, 2, **WIDTHS, pairing="neox")),
        (TypeError, "scale must be a number", lambda: MLALayer(8, 2, **WIDTHS, scale="1")),
        (ValueError, "form must be one of auto, expanded, absorbed", lambda: small()(X, form="fused")),
        (ValueError, r"x must have shape \[B, M, d_model\] with d_model = 20", lambda: small()(X[..., :8])),
        (ValueError, "cache must be .* wide for this layer", lambda: small()(X, small(latent_dim=8).new_cache(1, 4))),
        (kernels.Unsupported, "call the layer under torch.no_grad", lambda: small()(X, small().new_cache(1, 4))),
    ],
)
def test_refusals(error, words, call):
    with pytest.raises(error, match=words):
        call()
