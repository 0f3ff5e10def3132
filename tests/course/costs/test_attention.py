"""The cache and FLOP arithmetic, against tensors really allocated, FLOPs torch counts, and the course's own figures."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from course.costs import (
    FP8_MLA,
    Attention,
    GiB,
    attention_flops,
    cache_bytes,
    copy_passes,
    decode_flops,
    intensity,
    linear_intensity,
    model,
)

V3_LAYER = Attention.mla(128)
SHAPES = {
    "MHA": Attention.mha(32, 128),
    "GQA-8": Attention.gqa(32, 8, 128),
    "GQA-4, narrow values": Attention.gqa(28, 4, 192, 128),
    "GQA-2, group of 7": Attention.gqa(14, 2, 64),
    "MQA": Attention.mqa(71, 64),
    "expanded MLA": Attention(16, 16, 192, 128),
}

# Shapes for properties: any group, widths that differ, a value that may lie inside the key.
heads = st.integers(1, 12)
widths = st.integers(1, 300)
plain = st.builds(lambda kv, g, qk, v: Attention(kv * g, kv, qk, v), heads, heads, widths, widths)
latent = st.builds(Attention.mla, st.integers(1, 128), st.integers(1, 600), st.integers(1, 128))
attentions = plain | latent
lengths = st.integers(0, 5000)


def size(*tensors: torch.Tensor) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int8])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_bytes_are_those_of_the_tensors_a_cache_allocates(shape, dtype):
    batch, context_len, n_layers = 3, 129, 2
    caches = [
        torch.empty(batch, shape.n_kv_heads, context_len, width, dtype=dtype, device="meta")
        for _ in range(n_layers)
        for width in (shape.head_dim_qk, shape.head_dim_v)
    ]
    got = cache_bytes(shape, context_len, batch=batch, n_layers=n_layers, bytes_per_element=dtype)
    assert got == size(*caches)
    assert isinstance(got, int)


@pytest.mark.parametrize(("latent_dim", "rope_dim"), [(512, 64), (256, 32), (256, 64)])
def test_mla_keeps_one_record_whose_latent_is_key_and_value(latent_dim, rope_dim):
    latents = torch.empty(3, 129, latent_dim, dtype=torch.bfloat16, device="meta")
    k_rope = torch.empty(3, 129, rope_dim, dtype=torch.bfloat16, device="meta")
    assert cache_bytes(Attention.mla(128, latent_dim, rope_dim), 129, batch=3) == size(latents, k_rope)


@pytest.mark.parametrize(("latent_dim", "rope_dim", "record"), [(512, 64, 656), (256, 32, 328)])
def test_deployed_fp8_record_of_mla(latent_dim, rope_dim, record):
    latents = torch.empty(7, latent_dim, dtype=torch.float8_e4m3fn, device="meta")
    scales = torch.empty(7, latent_dim // 128, dtype=torch.float32, device="meta")
    k_rope = torch.empty(7, rope_dim, dtype=torch.bfloat16, device="meta")
    shape = Attention.mla(128, latent_dim, rope_dim)
    assert cache_bytes(shape, 7, bytes_per_element=FP8_MLA) == size(latents, scales, k_rope) == 7 * record


@pytest.mark.parametrize("context_len", [0, 1, 15, 16, 17, 100])
def test_a_window_is_a_rolling_buffer_that_stops_growing(context_len):
    shape, window = SHAPES["GQA-4, narrow values"], 16
    keys, values = [], []
    for token in range(context_len):
        for buffer, width in ((keys, shape.head_dim_qk), (values, shape.head_dim_v)):
            one = torch.empty(shape.n_kv_heads, width, dtype=torch.float16, device="meta")
            if len(buffer) < window:
                buffer.append(one)
            else:
                buffer[token % window] = one
    assert cache_bytes(shape, context_len, window=window) == size(*keys, *values)


def test_kinds_and_group_sizes():
    assert [each.kind for each in SHAPES.values()] == ["MHA", "GQA-8", "GQA-4", "GQA-2", "MQA", "MHA"]
    assert [each.group_size for each in SHAPES.values()] == [1, 4, 7, 7, 71, 1]
    assert (V3_LAYER.kind, V3_LAYER.group_size) == ("MLA", 128)


# --- figures of the course


def test_elements_of_one_token_and_layer():
    assert V3_LAYER.elements_per_token == 576  # ch. 1, 7: 576 and not the 1,088 of key plus value
    assert V3_LAYER.elements_per_token / (2 * 128) == 2.25  # ch. 7: as many as 2.25 KV heads of 128
    assert Attention.gqa(32, 2, 128).elements_per_token == 512  # ch. 7: two KV heads of 128 are fewer still
    assert Attention.gqa(64, 8, 64).elements_per_token == 1024  # ch. 7: gpt-oss, 8 heads of 64
    assert Attention.mha(128, 128).elements_per_token / 576 == pytest.approx(56.9, abs=0.05)  # ch. 9
    assert Attention(128, 128, 192, 128).elements_per_token / 576 == pytest.approx(71.1, abs=0.05)  # ch. 7, expanded
    assert Attention.gqa(128, 8, 128).elements_per_token / 576 == pytest.approx(3.56, abs=0.005)  # ch. 9


@pytest.mark.parametrize(
    ("config", "n_layers", "bytes_per_token"),
    [
        # Llama-3-8B; Qwen3-4B, Mistral-Small-24B and gpt-oss-20b, whose head_dim is not hidden / heads
        ({"num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096}, 32, 131_072),
        ({"num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 2560, "head_dim": 128}, 36, 147_456),
        ({"num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 5120, "head_dim": 128}, 40, 163_840),
        ({"num_attention_heads": 64, "num_key_value_heads": 8, "hidden_size": 2880, "head_dim": 64}, 24, 49_152),
        # keys and values of different widths
        ({"num_attention_heads": 64, "num_key_value_heads": 4, "head_dim": 192, "v_head_dim": 128}, 48, 122_880),
        # no num_key_value_heads: every head has its own; and MLA, whose num_key_value_heads says nothing
        ({"num_attention_heads": 12, "hidden_size": 768, "head_dim": None}, 12, 36_864),
        (
            {"num_attention_heads": 128, "num_key_value_heads": 128, "hidden_size": 7168, "v_head_dim": 128}
            | {"kv_lora_rank": 512, "qk_rope_head_dim": 64},
            61,
            70_272,
        ),
    ],
)
def test_bytes_a_token_from_a_published_configuration(config, n_layers, bytes_per_token):
    assert cache_bytes(Attention.from_config(config), 1, n_layers=n_layers) == bytes_per_token


def test_one_layer_one_sequence_at_128000_tokens():
    def megabytes(shape):
        return cache_bytes(shape, 128_000) / 1e6

    # ch. 9: MHA with 128 heads, GQA-8, MLA, MQA
    shapes = [Attention.mha(128, 128), Attention.gqa(128, 8, 128), V3_LAYER, Attention.mqa(128, 128)]
    assert [round(megabytes(each), 1) for each in shapes] == [8388.6, 524.3, 147.5, 65.5]


def test_a_70b_shape_at_32768_tokens():
    # ch. 1: 80 layers, 64 heads of 128, as MHA, GQA-8 and MQA: 80, 10, 1.25 GiB
    shapes = [Attention.mha(64, 128), Attention.gqa(64, 8, 128), Attention.mqa(64, 128)]
    assert [cache_bytes(each, 32_768, n_layers=80) / GiB for each in shapes] == [80, 10, 1.25]
    assert cache_bytes(Attention.mha(128, 128), 32_768, n_layers=61) / GiB == 122  # ch. 9: V3 if it were MHA


def test_the_workhorse_layer_and_the_l2_of_the_h200():
    # ch. 1: the cache of one 32/8/128 layer fits in 60 MiB of L2 up to about 15,000 tokens
    shape = Attention.gqa(32, 8, 128)
    assert cache_bytes(shape, 15_000) < 60 * 2**20 < cache_bytes(shape, 15_500)
    assert cache_bytes(shape, 8192) == 33_554_432  # ch. 4: the smallest recorded row, 33.6 MB


def test_decode_flops_of_a_cached_token():
    assert decode_flops(Attention(128, 128, 192, 128), 1) == 81_920  # ch. 8: V3's expanded heads
    assert decode_flops(V3_LAYER, 1) / 81_920 == pytest.approx(3.4)  # ch. 8: absorbed costs 1088/320 as much
    assert decode_flops(Attention.mha(32, 128), 1) == 4 * 128 * 32  # ch. 1: 4 d per query head and token
    assert decode_flops(Attention.mqa(32, 128), 1) == 4 * 128 * 32  # ch. 2: sharing saves none


def test_intensity_figures():
    assert intensity(Attention.mha(32, 128)) == 1  # ch. 1: MHA in 16 bits
    # ch. 1: GQA-8 with 32, 64 and 128 query heads
    assert [intensity(Attention.gqa(n, 8, 128)) for n in (32, 64, 128)] == [4, 8, 16]
    # ch. 8: MLA with 128, 64 and 16 heads
    assert [round(intensity(Attention.mla(n)), 1) for n in (128, 64, 16)] == [241.8, 120.9, 30.2]
    assert intensity(Attention.mla(1)) == pytest.approx(1.889, abs=5e-4)  # ch. 8: of each further query head
    assert intensity(Attention.mha(32, 128), bytes_per_element=1) == 2  # an 8-bit cache doubles it
    assert intensity(V3_LAYER, bytes_per_element=FP8_MLA) == pytest.approx(2 * 128 * 1088 / 656)


def test_a_linear_layer_has_about_the_batch():
    assert linear_intensity(1, 8192, 8192) == pytest.approx(1, rel=1e-3)
    assert linear_intensity(64, 8192, 8192) == pytest.approx(64, rel=0.02)
    weights, x, y = (torch.empty(shape, dtype=torch.bfloat16, device="meta") for shape in ((96, 40), (5, 96), (5, 40)))
    assert linear_intensity(5, 96, 40) == 2 * 5 * 96 * 40 / size(weights, x, y)


# --- FLOPs, against torch's counter and against the pairs written out


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize(("q_len", "kv_len"), [(1, 33), (5, 33), (17, 17)])
def test_flops_are_those_torch_counts(shape, q_len, kv_len):
    q = torch.empty(2, shape.n_q_heads, q_len, shape.head_dim_qk, device="meta")
    k = torch.empty(2, shape.n_q_heads, kv_len, shape.head_dim_qk, device="meta")  # repeated for each query head
    v = torch.empty(2, shape.n_q_heads, kv_len, shape.head_dim_v, device="meta")
    with FlopCounterMode(display=False) as counter:
        (q @ k.transpose(-1, -2)) @ v
    assert attention_flops(shape, q_len, kv_len, batch=2) == counter.get_total_flops()


@given(attentions, st.integers(0, 40), st.integers(0, 40))
def test_causal_flops_count_the_visible_pairs(shape, q_len, kv_len):
    pairs = sum(j <= i + kv_len - q_len for i in range(q_len) for j in range(kv_len))
    assert attention_flops(shape, q_len, kv_len, causal=True) == pairs * shape.flops_per_pair


def test_pair_counts_of_prefill_and_decode():
    shape, tokens = Attention.gqa(32, 8, 128), 1000
    per_pair = attention_flops(shape, 1, 1)
    assert attention_flops(shape, tokens, tokens, causal=True) == per_pair * 500_500  # ch. 1: S(S + 1)/2
    assert sum(decode_flops(shape, length) for length in range(1, tokens + 1)) == per_pair * 500_500
    assert decode_flops(shape, tokens, batch=7) == 7 * 2 * 32 * tokens * (128 + 128)


@given(attentions, st.integers(1, 8), st.integers(0, 100))
def test_several_query_tokens_see_what_one_after_another_would(shape, q_len, past):
    one_by_one = sum(decode_flops(shape, past + i + 1) for i in range(q_len))
    assert decode_flops(shape, past + q_len, q_len=q_len) == one_by_one


# --- properties


@given(attentions, lengths, lengths, st.integers(0, 9), st.integers(0, 9))
def test_cache_is_linear_in_length_and_in_batch(shape, a, b, batch_a, batch_b):
    assert cache_bytes(shape, a + b) == cache_bytes(shape, a) + cache_bytes(shape, b)
    by_batch = [cache_bytes(shape, 17, batch=batch) for batch in (batch_a, batch_b, batch_a + batch_b)]
    assert by_batch[2] == by_batch[0] + by_batch[1]


@given(attentions, lengths, st.integers(1, 5000))
def test_a_window_caps_the_length_and_changes_nothing_else(shape, context_len, window):
    assert cache_bytes(shape, context_len, window=window) == cache_bytes(shape, min(context_len, window))


@given(heads, widths)
def test_mha_is_gqa_with_groups_of_one_and_mqa_gqa_with_one_group(n_heads, width):
    assert Attention.mha(n_heads, width) == Attention.gqa(n_heads, n_heads, width)
    assert Attention.mqa(n_heads, width) == Attention.gqa(n_heads, 1, width)
    ratio = cache_bytes(Attention.mha(n_heads, width), 7) / cache_bytes(Attention.mqa(n_heads, width), 7)
    assert ratio == pytest.approx(n_heads)


@given(attentions, st.integers(1, 5000), st.integers(1, 64), st.sampled_from([1, 2, 4, 0.75]))
def test_intensity_is_flops_over_bytes_whatever_length_and_batch(shape, context_len, batch, s):
    flops = decode_flops(shape, context_len, batch=batch)
    n_bytes = cache_bytes(shape, context_len, batch=batch, bytes_per_element=s)
    assert flops / n_bytes == pytest.approx(intensity(shape, bytes_per_element=s))


@given(attentions, st.integers(1, 8), st.integers(1, 64))
def test_query_tokens_and_sharers_multiply_intensity(shape, q_len, sharers):
    assert intensity(shape, q_len=q_len, shared_by=sharers) == pytest.approx(q_len * sharers * intensity(shape))


@given(st.integers(1, 128), widths, st.integers(1, 128))
def test_a_value_inside_the_key_costs_no_bytes_but_its_products(n_heads, latent_dim, rope_dim):
    inside = Attention.mla(n_heads, latent_dim, rope_dim)
    apart = Attention(n_heads, 1, latent_dim + rope_dim, latent_dim)
    assert inside.elements_per_token == apart.elements_per_token - latent_dim
    assert decode_flops(inside, 5) == decode_flops(apart, 5)


# --- errors


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: Attention.gqa(32, 5, 128), ValueError, "n_kv_heads must divide n_q_heads, got 5 KV heads for 32"),
        (lambda: Attention.gqa(8, 16, 128), ValueError, "got 16 KV heads for 8"),
        (lambda: Attention.mha(0, 128), ValueError, "n_q_heads must be at least 1, got 0"),
        (lambda: Attention.mha(8, -1), ValueError, "head_dim_qk must be at least 1, got -1"),
        (lambda: Attention.mha(8, 64.0), TypeError, "head_dim_qk must be a whole number, got 64.0"),
        (lambda: Attention.mha(True, 64), TypeError, "n_q_heads must be a whole number, got True"),
        (lambda: Attention(8, 1, 64, 512, 512), ValueError, "head_dim_shared must fit"),
        (lambda: Attention.from_config({"num_attention_heads": 8}), ValueError, "needs the key 'hidden_size'"),
        (lambda: cache_bytes(V3_LAYER, -1), ValueError, "context_len must be at least 0, got -1"),
        (lambda: cache_bytes(V3_LAYER, 10.0), TypeError, "context_len must be a whole number, got 10.0"),
        (lambda: cache_bytes(V3_LAYER, True), TypeError, "context_len must be a whole number, got True"),
        (lambda: cache_bytes(V3_LAYER, "8K"), TypeError, "context_len must be a whole number, got '8K'"),
        (lambda: cache_bytes(V3_LAYER, 1, batch=-2), ValueError, "batch must be at least 0, got -2"),
        (lambda: cache_bytes(V3_LAYER, 1, n_layers=0), ValueError, "n_layers must be at least 1, got 0"),
        (lambda: cache_bytes(V3_LAYER, 1, window=0), ValueError, "window must be at least 1, got 0"),
        (lambda: cache_bytes(V3_LAYER, 1, bytes_per_element=float("nan")), ValueError, "bytes_per_element must be a"),
        (lambda: cache_bytes(V3_LAYER, 1, bytes_per_element=0), ValueError, "above 0, got 0"),
        (lambda: cache_bytes(V3_LAYER, 1, bytes_per_element="bfloat17"), ValueError, "nearest: bfloat16"),
        (
            lambda: cache_bytes(Attention.mha(8, 64), 1, bytes_per_element=FP8_MLA),
            ValueError,
            "layout for MLA, got MHA",
        ),
        (lambda: decode_flops(V3_LAYER, 3, q_len=4), ValueError, "q_len must not exceed context_len"),
        (lambda: attention_flops(V3_LAYER, -1, 4), ValueError, "q_len must be at least 0, got -1"),
        (lambda: intensity(V3_LAYER, shared_by=0), ValueError, "shared_by must be at least 1, got 0"),
        (lambda: linear_intensity(0, 8, 8), ValueError, "batch must be at least 1, got 0"),
    ],
)
def test_errors_name_the_argument_and_what_came(make, error, says):
    with pytest.raises(error) as caught:
        make()
    assert says in str(caught.value)


def test_whole_numbers_of_other_libraries_are_welcome():
    assert cache_bytes(V3_LAYER, torch.tensor(5)) == cache_bytes(V3_LAYER, 5)


def test_six_bit_cache():
    # ch. 9: DeepSeek 67B in 16 bits to V2 in six bits is the published 93.3%, by elements alone 82.2%
    before, after = model("DeepSeek 67B"), model("DeepSeek-V2")
    assert 1 - after.elements_per_token / before.elements_per_token == pytest.approx(0.822, abs=5e-4)
    assert 1 - after.bytes_per_token(0.75) / before.bytes_per_token() == pytest.approx(0.933, abs=5e-4)


def test_copying_the_heads_moves_more_than_never_sharing_them():
    assert [copy_passes(g) for g in (1, 2, 4, 8, 32)] == [1, 5, 9, 17, 65]
    assert [copy_passes(g, read_back=False) for g in (1, 4)] == [0, 5]
    for group_size in (2, 4, 8, 32):
        shared = cache_bytes(Attention.gqa(32, 32 // group_size, 128), 8192)
        mha = cache_bytes(Attention.mha(32, 128), 8192)
        assert shared * copy_passes(group_size) / mha == 2 + 1 / group_size
    with pytest.raises(ValueError, match="group_size"):
        copy_passes(0)
