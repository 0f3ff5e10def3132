"""Conversion: pooled weights against loops over heads, and checkpoints judged by the layers of the library they come from."""

import pathlib
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from course.layers import GQALayer, MLALayer, PageAllocator, load_deepseek, load_llama, mha_to_gqa, pool_kv_heads
from tests.course.layers import plain

ROOT = pathlib.Path(__file__).parents[3]
PREFIX = "model.layers.3.self_attn."


# --- fewer KV heads


@given(
    n_kv_heads=st.integers(1, 5),
    group=st.integers(1, 5),
    head_dim=st.integers(1, 6),
    columns=st.none() | st.integers(1, 5),
    seed=st.integers(0, 99),
)
def test_pools_neighbours(n_kv_heads, group, head_dim, columns, seed):
    n_heads = n_kv_heads * group
    torch.manual_seed(seed)
    weight = torch.randn(n_heads * head_dim, *([] if columns is None else [columns]), dtype=torch.float64)
    heads = [weight[h * head_dim : (h + 1) * head_dim] for h in range(n_heads)]
    first = torch.cat([heads[g * group] for g in range(n_kv_heads)])
    mean = torch.cat([sum(heads[g * group : (g + 1) * group]) / group for g in range(n_kv_heads)])
    assert torch.equal(pool_kv_heads(weight, n_heads, n_kv_heads, "first"), first)
    torch.testing.assert_close(pool_kv_heads(weight, n_heads, n_kv_heads), mean)


def test_pools_by_hand():
    bias = torch.tensor([1.0, 10.0, 3.0, 30.0, 5.0, 50.0, 9.0, 90.0])  # four heads, two wide
    assert pool_kv_heads(bias, 4, 2).tolist() == [2, 20, 7, 70]
    assert pool_kv_heads(bias, 4, 2, "first").tolist() == [1, 10, 5, 50]
    assert pool_kv_heads(bias, 4, 1).tolist() == [4.5, 45]


def test_random_heads_are_new_and_as_large():
    weight = 3 * torch.randn(8 * 32, 64)
    new = pool_kv_heads(weight, 8, 2, "random", torch.Generator().manual_seed(1))
    assert new.shape == (2 * 32, 64)
    assert new.square().mean().sqrt().item() == pytest.approx(3, rel=0.05)
    assert torch.equal(new, pool_kv_heads(weight, 8, 2, "random", torch.Generator().manual_seed(1)))
    assert not torch.equal(new, pool_kv_heads(weight, 8, 2, "random", torch.Generator().manual_seed(2)))
    similar = torch.nn.functional.cosine_similarity(new.flatten(), pool_kv_heads(weight, 8, 2, "first").flatten(), dim=0)
    assert abs(similar) < 0.1


def test_a_mean_in_16_bits_is_rounded_once():
    weight = torch.tensor([1.0, 1.0078125, 1.0, 1.0], dtype=torch.bfloat16)
    assert pool_kv_heads(weight, 4, 1).item() == torch.tensor(1.001953125).bfloat16().item()
    assert pool_kv_heads(torch.full((4,), 60000.0, dtype=torch.float16), 4, 1).item() == 60000


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("n_kv_heads", [1, 2, 4, 6, 12])
def test_layers_with_equal_heads_in_a_group_keep_their_function(bias, n_kv_heads):
    """Then the mean and the first are the head itself; a group of heads that are no neighbours would not be equal."""
    few = GQALayer(10, 12, n_kv_heads, 6, head_dim_v=4, bias=bias, rope_base=100.0, pairing="interleaved", scale=0.6).double()
    many = GQALayer(10, 12, 12, 6, head_dim_v=4, bias=bias, rope_base=100.0, pairing="interleaved", scale=0.6).double()
    state = dict(few.state_dict())
    for name, value in state.items():
        if name.startswith(("w_k", "w_v")):
            state[name] = value.unflatten(0, (n_kv_heads, -1)).repeat_interleave(12 // n_kv_heads, 0).flatten(0, 1)
    many.load_state_dict(state)
    x = torch.randn(2, 7, 10, dtype=torch.float64)
    for how in ("mean", "first"):
        got = mha_to_gqa(many, n_kv_heads, how)
        assert got.n_kv_heads == n_kv_heads and got.widths == few.widths
        torch.testing.assert_close(got(x), many(x))


def test_converts_every_tensor_and_leaves_the_source_alone():
    many = GQALayer(10, 6, 6, 4, head_dim_v=3, bias=True, out_bias=False).to(torch.bfloat16).eval()
    before = {name: value.clone() for name, value in many.state_dict().items()}
    few = mha_to_gqa(many, 2)
    assert few.w_q.weight.dtype == torch.bfloat16 and not few.training and few.w_o.bias is None
    assert torch.equal(few.w_q.weight, many.w_q.weight) and few.w_q.weight.data_ptr() != many.w_q.weight.data_ptr()
    for name in ("w_k.weight", "w_k.bias", "w_v.weight", "w_v.bias"):
        assert torch.equal(few.state_dict()[name], pool_kv_heads(before[name], 6, 2)), name
    assert all(torch.equal(value, before[name]) for name, value in many.state_dict().items())
    again = mha_to_gqa(mha_to_gqa(many.float(), 3), 1)
    torch.testing.assert_close(again.w_k.weight, mha_to_gqa(many, 1).w_k.weight)
    generator = torch.Generator().manual_seed(3)
    assert not torch.equal(mha_to_gqa(many, 2, "random", generator).w_k.weight, mha_to_gqa(many, 2).w_k.weight)
    assert all(parameter.requires_grad for parameter in few.parameters())


@pytest.mark.parametrize(
    "error, words, call",
    [
        (ValueError, "how must be one of mean, first, random, got 'sum'", lambda: pool_kv_heads(torch.zeros(4), 4, 2, "sum")),
        (ValueError, "n_kv_heads must divide n_heads, got 3 and 4", lambda: pool_kv_heads(torch.zeros(4), 4, 3)),
        (ValueError, "weight must have shape .* n_heads = 4, got", lambda: pool_kv_heads(torch.zeros(6, 2), 4, 2)),
        (ValueError, "weight must have shape", lambda: pool_kv_heads(torch.zeros(4, 2, 2), 4, 2)),
        (ValueError, "would replace all heads", lambda: pool_kv_heads(torch.zeros(4), 4, 4, "random")),
        (TypeError, "layer must be a GQALayer, got Linear", lambda: mha_to_gqa(torch.nn.Linear(2, 2), 1)),
        (ValueError, "n_kv_heads must divide", lambda: mha_to_gqa(GQALayer(8, 6, 6, 4), 4)),
        (ValueError, "n_kv_heads must divide n_heads, got 6 and 3", lambda: mha_to_gqa(GQALayer(8, 6, 3, 4), 6)),
    ],
)
def test_refusals_of_pooling(error, words, call):
    with pytest.raises(error, match=words):
        call()


# --- checkpoints


@pytest.mark.parametrize("order", ["kernels, transformers.models.llama.modeling_llama", "transformers.pipelines, kernels"])
def test_the_library_and_our_kernels_can_be_imported_together(order):
    """Another package is called `kernels` too, and the library looks for it."""
    pytest.importorskip("transformers")
    done = subprocess.run(
        [sys.executable, "-c", f"import {order}; print(kernels.attention.__module__)"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.stdout.strip() == "kernels.forward", done.stderr


def random_weights(module):
    """Every parameter random, norms and biases too, so that none can be forgotten."""
    module = module.double()
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return module


def prefixed(module):
    """The module's state dict as a model has it, with neighbours that must not be touched."""
    state = {PREFIX + name: value for name, value in module.state_dict().items()}
    other = {"model.layers.30.self_attn.q_proj.weight": torch.zeros(1), "model.norm.weight": torch.zeros(1)}
    return state | other | {PREFIX + "rotary_emb.inv_freq": torch.zeros(2)}


def answer(module, rotary, x, **options):
    """The judge's output for x [B, M, d_model], causal."""
    module.config._attn_implementation = "eager"
    positions = torch.arange(x.shape[1])[None]
    mask = torch.full((x.shape[1], x.shape[1]), -torch.inf, dtype=torch.float64).triu(1)[None, None]
    with torch.no_grad():
        turns = rotary(x, positions)
        return module(x, position_embeddings=turns, attention_mask=mask, **options)[0]


def assert_same_function(layer, judge, rotary, x):
    """Whole and in pieces, over both caches. The judge has its angles in float32."""
    wanted = answer(judge, rotary, x)
    batch, tokens, _ = x.shape
    close = {"atol": 2e-5, "rtol": 1e-5}
    torch.testing.assert_close(layer(x).detach(), wanted, **close)
    for cache in (layer.new_cache(batch, tokens), layer.new_paged_cache(PageAllocator(40, 3), batch)):
        torch.testing.assert_close(plain.in_pieces(layer, x, cache, [5, 1, 9]), wanted, **close)


@pytest.mark.parametrize("pairing", ["halves", "interleaved"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("heads", [(7, 1), (6, 2), (5, 5)])
def test_llama(heads, bias, pairing):
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    config = llama.LlamaConfig(
        hidden_size=4 * heads[0], num_attention_heads=heads[0], num_key_value_heads=heads[1], head_dim=10, attention_bias=bias,
        rope_parameters={"rope_type": "default", "rope_theta": 700.0},
    )  # fmt: skip
    judge = random_weights(llama.LlamaAttention(config, 0))
    layer = GQALayer(4 * heads[0], *heads, 10, rope_base=700.0, bias=bias, pairing=pairing).double()
    assert load_llama(layer, prefixed(judge), PREFIX) is layer
    assert_same_function(
        layer, judge, llama.LlamaRotaryEmbedding(config), torch.randn(2, 17, 4 * heads[0], dtype=torch.float64)
    )


@pytest.mark.parametrize("pairing", ["halves", "interleaved"])
@pytest.mark.parametrize("q_latent_dim, bias", [(None, False), (None, True), (13, False), (13, True)])
@pytest.mark.parametrize("version", [2, 3])
def test_deepseek(version, q_latent_dim, bias, pairing):
    name = f"deepseek_v{version}"
    deepseek = pytest.importorskip(f"transformers.models.{name}.modeling_{name}")
    of = {part: getattr(deepseek, f"DeepseekV{version}{part}") for part in ("Config", "Attention", "RotaryEmbedding")}
    config = of["Config"](
        hidden_size=25, num_attention_heads=5, num_key_value_heads=5, q_lora_rank=q_latent_dim, kv_lora_rank=18,
        qk_nope_head_dim=10, qk_rope_head_dim=6, v_head_dim=14, attention_bias=bias,
        rope_parameters={"rope_type": "default", "rope_theta": 700.0},
    )  # fmt: skip
    judge = random_weights(of["Attention"](config, 0))
    layer = MLALayer(
        25, 5, nope_dim=10, rope_dim=6, head_dim_v=14, latent_dim=18, q_latent_dim=q_latent_dim, rope_base=700.0,
        pairing=pairing, bias=bias,
    ).double()  # fmt: skip
    assert load_deepseek(layer, prefixed(judge), PREFIX) is layer
    x = torch.randn(2, 17, 25, dtype=torch.float64)
    assert_same_function(layer, judge, of["RotaryEmbedding"](config), x)
    torch.testing.assert_close(layer(x, form="absorbed"), layer(x))


@pytest.mark.parametrize("pairing", ["halves", "interleaved"])
def test_deepseek_with_rotary_rows_in_halves(pairing):
    deepseek = pytest.importorskip("transformers.models.deepseek_v3.modeling_deepseek_v3")
    config = deepseek.DeepseekV3Config(
        hidden_size=25, num_attention_heads=5, num_key_value_heads=5, q_lora_rank=13, kv_lora_rank=18, rope_interleave=False,
        qk_nope_head_dim=10, qk_rope_head_dim=6, v_head_dim=14, rope_parameters={"rope_type": "default", "rope_theta": 700.0},
    )  # fmt: skip
    judge = random_weights(deepseek.DeepseekV3Attention(config, 0))
    layer = mla(q_latent_dim=13, rope_base=700.0, pairing=pairing)
    load_deepseek(layer, prefixed(judge), PREFIX, pairing="halves")
    x = torch.randn(2, 17, 25, dtype=torch.float64)
    assert_same_function(layer, judge, deepseek.DeepseekV3RotaryEmbedding(config), x)


def mla(**more):
    return MLALayer(25, 5, nope_dim=10, rope_dim=6, head_dim_v=14, latent_dim=18, **more).double()


def deepseek_state(q_latent_dim=None):
    """A checkpoint of the shapes that `mla` has, without the library."""
    shapes = {
        "kv_a_proj_with_mqa.weight": (24, 25),
        "kv_a_layernorm.weight": (18,),
        "kv_b_proj.weight": (5 * 24, 18),
        "o_proj.weight": (25, 70),
    }
    if q_latent_dim is None:
        shapes["q_proj.weight"] = (5 * 16, 25)
    else:
        shapes |= {"q_a_proj.weight": (q_latent_dim, 25), "q_a_layernorm.weight": (q_latent_dim,)}
        shapes["q_b_proj.weight"] = (5 * 16, q_latent_dim)
    return {PREFIX + name: torch.randn(shape) for name, shape in shapes.items()}


def llama_state(n_kv_heads=2, bias=False):
    shapes = {"q_proj": (24, 8), "k_proj": (4 * n_kv_heads, 8), "v_proj": (4 * n_kv_heads, 8), "o_proj": (8, 24)}
    state = {f"{PREFIX}{name}.weight": torch.randn(shape) for name, shape in shapes.items()}
    return state | ({f"{PREFIX}{name}.bias": torch.randn(shape[0]) for name, shape in shapes.items()} if bias else {})


def test_rows_go_where_the_equations_have_them():
    state, layer = deepseek_state(), mla(pairing="halves")
    load_deepseek(layer, state, PREFIX)
    q = state[PREFIX + "q_proj.weight"].double()
    kv_b, kv_a = state[PREFIX + "kv_b_proj.weight"].double(), state[PREFIX + "kv_a_proj_with_mqa.weight"].double()
    for r in range(5):
        assert torch.equal(layer.w_uq.weight[10 * r : 10 * r + 10], q[16 * r : 16 * r + 10])
        assert torch.equal(layer.w_qr.weight[6 * r : 6 * r + 6], q[16 * r + 10 : 16 * r + 16][[0, 2, 4, 1, 3, 5]])
        assert torch.equal(layer.w_uk[r], kv_b[24 * r : 24 * r + 10].T)
        assert torch.equal(layer.w_uv[r], kv_b[24 * r + 10 : 24 * r + 24].T)
    assert torch.equal(layer.w_dkv.weight, kv_a[:18]) and torch.equal(layer.w_kr.weight, kv_a[18:][[0, 2, 4, 1, 3, 5]])


def test_biases_of_three_projections_as_qwen_has_them():
    state = llama_state(bias=True)
    del state[PREFIX + "o_proj.bias"]
    layer = load_llama(GQALayer(8, 6, 2, 4, bias=True, out_bias=False), state, PREFIX)
    assert torch.equal(layer.w_k.bias, state[PREFIX + "k_proj.bias"])


def test_loads_into_the_layers_own_dtype_and_without_a_prefix():
    state = {name.removeprefix(PREFIX): value.bfloat16() for name, value in llama_state().items()}
    layer = load_llama(GQALayer(8, 6, 2, 4), state)
    assert layer.w_q.weight.dtype == torch.float32
    assert torch.equal(layer.w_v.weight, state["v_proj.weight"].float())
    no_rotation = load_llama(GQALayer(8, 6, 2, 4, rope_base=None, pairing="interleaved"), state)
    assert torch.equal(no_rotation.w_q.weight, state["q_proj.weight"].float())


def spoiled(state, **changes):
    """The checkpoint with entries replaced, or left out where None is given."""
    for name, value in changes.items():
        key = PREFIX + name.replace("__", ".")
        if value is None:
            del state[key]
        else:
            state[key] = value
    return state


@pytest.mark.parametrize(
    "error, words, make, state",
    [
        (ValueError, r"k_proj.weight must have shape \[24, 8\] for this layer, got \[8, 8\]", {"n_kv_heads": 6}, {}),
        (KeyError, "no 'model.layers.3.self_attn.v_proj.weight', which", {}, {"v_proj__weight": None}),
        (KeyError, "no 'model.layers.3.self_attn.q_proj.bias'", {"bias": True}, {}),
        (ValueError, "no place for: model.layers.3.self_attn.k_proj.bias", {}, {"k_proj__bias": torch.zeros(8)}),
        (ValueError, "no place for: model.layers.3.self_attn.q_norm.weight", {}, {"q_norm__weight": torch.zeros(4)}),
        (ValueError, "multiply it by its scales", {}, {"q_proj__weight": torch.zeros(24, 8).to(torch.float8_e4m3fn)}),
    ],
)
def test_refusals_of_llama_change_nothing(error, words, make, state):
    layer = GQALayer(8, 6, make.get("n_kv_heads", 2), 4, bias=make.get("bias", False))
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    with pytest.raises(error, match=words):
        load_llama(layer, spoiled(llama_state(), **state), PREFIX)
    assert all(torch.equal(value, before[name]) for name, value in layer.state_dict().items())


@pytest.mark.parametrize(
    "error, words, make, state",
    [
        (KeyError, "no 'model.layers.3.self_attn.q_a_proj.weight'", {"q_latent_dim": 13}, {}),
        (ValueError, r"kv_b_proj.weight must have shape \[120, 18\]", {}, {"kv_b_proj__weight": torch.zeros(80, 18)}),
        (ValueError, "no place for: .*weight_scale_inv", {}, {"o_proj__weight_scale_inv": torch.zeros(1, 1)}),
        (ValueError, "no place for: .*kv_a_proj_with_mqa.bias", {}, {"kv_a_proj_with_mqa__bias": torch.zeros(24)}),
    ],
)
def test_refusals_of_deepseek_change_nothing(error, words, make, state):
    layer = mla(**make)
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    with pytest.raises(error, match=words):
        load_deepseek(layer, spoiled(deepseek_state(), **state), PREFIX)
    assert all(torch.equal(value, before[name]) for name, value in layer.state_dict().items())


@pytest.mark.parametrize(
    "error, words, call",
    [
        (TypeError, "layer must be a GQALayer, got MLALayer", lambda: load_llama(mla(), {}, PREFIX)),
        (TypeError, "layer must be a MLALayer, got GQALayer", lambda: load_deepseek(GQALayer(8, 6, 2, 4), {}, PREFIX)),
        (ValueError, "prefix must end with a full stop", lambda: load_llama(GQALayer(8, 6, 2, 4), {}, PREFIX[:-1])),
        (ValueError, "pairing must be one of", lambda: load_deepseek(mla(), {}, PREFIX, pairing="neox")),
        (KeyError, "it has nothing", lambda: load_llama(GQALayer(8, 6, 2, 4), {}, PREFIX)),
    ],
)
def test_refusals_of_loading(error, words, call):
    with pytest.raises(error, match=words):
        call()
