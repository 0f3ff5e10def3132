"""The MLA layer's arithmetic: against matrices really allocated, FLOPs torch counts, and the course's own figures."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from course.costs import Attention, LatentAttention, bytes_of, models
from course.costs import model as find_model

V3 = LatentAttention(7168, 128, nope_dim=128, rope_dim=64, head_dim_v=128, latent_dim=512, q_latent_dim=1536)
ODD = LatentAttention(40, 3, nope_dim=5, rope_dim=2, head_dim_v=7, latent_dim=11, q_latent_dim=13)

widths = st.integers(1, 200)
layers = st.builds(LatentAttention, widths, st.integers(1, 64), widths, widths, widths, widths, st.none() | st.integers(1, 200))


def test_v3_is_the_table_s():
    assert find_model("DeepSeek-V3").latent == V3
    assert find_model("Llama 3 8B").latent is None


@pytest.mark.parametrize("one", [m for m in models(doubtful=True) if m.attention.kind == "MLA"], ids=lambda m: m.name)
def test_every_mla_model_has_its_layer(one):
    assert one.latent.absorbed == one.attention
    assert one.latent.d_model == one.d_model
    assert one.latent.elements_per_token == one.attention.elements_per_token


def test_v3_parameters():
    # ch. 7: 48.8 M against 176.2 M; 20.9 M against 234.9, 14.7 and 1.8 M
    assert V3.query_parameters / 1e6 == pytest.approx(48.8, abs=0.05)
    direct = LatentAttention(7168, 128, 128, 64, 128, 512)
    assert direct.query_parameters / 1e6 == pytest.approx(176.2, abs=0.05)
    assert "W_DQ" not in direct.parameters
    assert direct.query_parameters / V3.query_parameters == pytest.approx(3.6, abs=0.05)
    assert V3.kv_parameters / 1e6 == pytest.approx(20.9, abs=0.05)
    assert [round(2 * 7168 * 128 * heads / 1e6, 1) for heads in (128, 8, 1)] == [234.9, 14.7, 1.8]


@pytest.mark.parametrize("layer", [V3, ODD, LatentAttention(64, 4, 8, 4, 6, 16)])
def test_parameters_are_those_of_the_matrices(layer):
    d_q = layer.q_latent_dim or layer.d_model
    shapes = {
        "W_UQ": (d_q, layer.n_heads, layer.nope_dim),
        "W_QR": (d_q, layer.n_heads, layer.rope_dim),
        "W_DKV": (layer.d_model, layer.latent_dim),
        "W_KR": (layer.d_model, layer.rope_dim),
        "W_UK": (layer.latent_dim, layer.n_heads, layer.nope_dim),
        "W_UV": (layer.latent_dim, layer.n_heads, layer.head_dim_v),
        "W_O": (layer.n_heads, layer.head_dim_v, layer.d_model),
    }
    if layer.q_latent_dim:
        shapes["W_DQ"] = (layer.d_model, layer.q_latent_dim)
    assert layer.parameters == {name: torch.empty(shape, device="meta").numel() for name, shape in shapes.items()}
    assert layer.query_parameters + layer.kv_parameters + layer.parameters["W_O"] == sum(layer.parameters.values())


def test_v3_s_cache():
    assert V3.elements_per_token == 576
    assert V3.equivalent_kv_heads() == 2.25  # ch. 7
    expanded = V3.expanded.elements_per_token
    assert expanded == 128 * 320
    assert expanded / 576 == pytest.approx(71.1, abs=0.05)


def test_scale():
    assert V3.softmax_scale() == pytest.approx(0.0721688, abs=1e-7)  # ch. 7, 8: 1/sqrt(192)
    assert V3.softmax_scale(40) / V3.softmax_scale() == pytest.approx(1.874, abs=5e-4)  # E18
    assert V3.softmax_scale(40) == pytest.approx(0.1352, abs=5e-5)
    assert V3.softmax_scale(0.5) == V3.softmax_scale(1) == pytest.approx(V3.softmax_scale(40, mscale=1e-12))


def test_fused_matrices():
    # ch. 8: 3.0 and 3.73 times; all output matrices 28.7 billion against 7.7
    (q_two, q_one), (o_two, o_one) = V3.fused_parameters["query"], V3.fused_parameters["output"]
    assert (q_one, q_two) == (786_432, 262_144)
    assert (o_one, o_two) == (3_670_016, 983_040)
    assert [round(x, 2) for x in (q_one / q_two, o_one / o_two)] == [3.0, 3.73]
    layers = find_model("DeepSeek-V3").n_layers * V3.n_heads
    assert (round(o_one * layers / 1e9, 1), round(o_two * layers / 1e9, 1)) == (28.7, 7.7)


def test_up_projections():
    assert V3.up_flops == 33_554_432  # 16.8 MFLOP each for key and value
    assert V3.up_bytes() == 33_554_432
    assert V3.up_bytes() / V3.absorbed.bytes_per_token() == pytest.approx(29_100, rel=1e-3)  # tokens
    assert V3.up_bytes("float8") == V3.up_bytes() / 2
    assert V3.expanded.flops_per_pair == 81_920  # E1
    assert pytest.approx(205, abs=0.5) == 2 * 128 * 128 * 512 / 81_920
    assert V3.absorbed.flops_per_pair / V3.expanded.flops_per_pair == pytest.approx(3.4)


def test_naive_step_against_the_absorbed_one():
    ratios = [V3.flops("expanded", 1, n) / V3.flops("absorbed", 1, n) for n in (1024, 4096, 32_768)]
    assert [round(ratio) for ratio in ratios] == [108, 117, 120]
    limit = (V3.up_flops + V3.expanded.flops_per_pair) / V3.absorbed.flops_per_pair
    assert round(limit) == 121


def test_crossover():
    assert V3.crossover_limit == pytest.approx(170.67, abs=0.005)  # E5
    assert (V3.crossover(1024), V3.crossover(4096)) == (157, 168)
    assert V3.crossover(2**20) == 171
    assert V3.crossover(1) == 1
    # without the triangle the rule is 1/M - 1/N < 1/limit
    for n in (300, 1024, 50_000):
        assert V3.crossover(n, causal=False) == math.ceil(1 / (1 / V3.crossover_limit + 1 / n))


def test_where_an_absorbed_pair_is_no_dearer_absorbing_wins_up_to_the_whole():
    small = LatentAttention(64, 4, nope_dim=64, rope_dim=8, head_dim_v=64, latent_dim=64)
    assert small.crossover_limit == math.inf
    assert small.crossover(100) == 100


@given(layers, st.integers(1, 400))
def test_crossover_is_the_first_that_pays(layer, kv_len):
    m = layer.crossover(kv_len)
    assert 1 <= m <= kv_len
    if m > 1:
        assert layer.flops("expanded", m - 1, kv_len) > layer.flops("absorbed", m - 1, kv_len)
    if m < kv_len:
        assert layer.flops("expanded", m, kv_len) <= layer.flops("absorbed", m, kv_len)


@given(layers, st.integers(1, 50), st.integers(0, 400), st.integers(1, 5))
def test_batch_and_heads_cancel(layer, q_len, prefix, batch):
    at = {"q_len": q_len, "kv_len": q_len + prefix}
    for form in ("expanded", "absorbed"):
        assert layer.flops(form, **at, batch=batch) == batch * layer.flops(form, **at)
        alone = LatentAttention(1, 1, layer.nope_dim, layer.rope_dim, layer.head_dim_v, layer.latent_dim)
        assert layer.flops(form, **at) == layer.n_heads * alone.flops(form, **at)


def test_flops_are_those_torch_counts():
    q_len, kv_len, h = 4, 9, ODD.n_heads
    empty = lambda *shape: torch.empty(shape, device="meta")  # noqa: E731
    c, k_r, q_c, q_r = empty(kv_len, 11), empty(kv_len, 2), empty(h, q_len, 5), empty(h, q_len, 2)
    w_uk, w_uv = empty(h, 11, 5), empty(h, 11, 7)
    with FlopCounterMode(display=False) as expanded:
        k, v = c @ w_uk, c @ w_uv
        scores = q_c @ k.mT + q_r @ k_r.T
        scores @ v
    with FlopCounterMode(display=False) as absorbed:
        scores = (q_c @ w_uk.mT) @ c.T + q_r @ k_r.T
        (scores @ c) @ w_uv
    assert ODD.flops("expanded", q_len, kv_len, causal=False) == expanded.get_total_flops()
    assert ODD.flops("absorbed", q_len, kv_len, causal=False) == absorbed.get_total_flops()


def test_a_shard_has_fewer_heads_and_the_whole_record():
    eighth = V3.shard(8)
    assert (eighth.n_heads, eighth.elements_per_token) == (16, 576)
    assert eighth.up_flops * 8 == V3.up_flops
    assert eighth.absorbed == Attention.mla(16)
    with pytest.raises(ValueError, match="n_gpus must divide n_heads, got 3 GPUs for 128 heads"):
        V3.shard(3)


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: LatentAttention(0, 1, 1, 1, 1, 1), ValueError, "d_model must be at least 1, got 0"),
        (lambda: LatentAttention(8, 1, 1, 1, 1, 1.5), TypeError, "latent_dim must be a whole number"),
        (lambda: LatentAttention(8, 1, 1, 1, 1, 1, 0), ValueError, "q_latent_dim must be at least 1, got 0"),
        (lambda: V3.flops("folded", 1, 2), ValueError, "form must be one of expanded, absorbed, got 'folded'"),
        (lambda: V3.softmax_scale(0), ValueError, "context_factor must be a finite number above 0"),
        (lambda: V3.up_bytes("bf17"), ValueError, "unknown dtype"),
    ],
)
def test_errors_name_the_argument(make, error, says):
    with pytest.raises(error) as caught:
        make()
    assert says in str(caught.value)


def test_bytes_of_the_up_projections_follow_the_dtype():
    assert V3.up_bytes(torch.bfloat16) == bytes_of("bfloat16") * (V3.parameters["W_UK"] + V3.parameters["W_UV"])
