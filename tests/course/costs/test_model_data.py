"""The table of models: the course's figures, windows and experts, and rows that say where they come from."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course.costs import (
    FP8_MLA,
    Attention,
    GiB,
    KiB,
    MiB,
    Model,
    cache_bytes,
    decode_floors,
    experts_read,
    model,
    models,
)

EVERY = models(doubtful=True)
ids = [each.name for each in EVERY]


@pytest.mark.parametrize(
    ("name", "kib"),
    [
        # ch. 1, 9: KiB a token in 16 bits
        ("GPT-3 175B", 4608),
        ("Llama 2 7B", 512),
        ("Llama 2 70B", 320),
        ("Llama 3 8B", 128),
        ("Mistral 7B v0.1", 128),
        ("Llama 3.1 405B", 504),
        ("DeepSeek 67B", 380),
        ("DeepSeek-V2", 67.5),
        ("DeepSeek-V3", 68.625),
        ("PaLM 540B", 118),
        # configurations whose head width is not d_model / heads
        ("Qwen3 4B", 144),
        ("gpt-oss-20b", 48),
        # hybrids and doubled layers, by the layers that keep a cache
        ("LongCat-Flash", 63),
        ("Kimi Linear 48B-A3B", 7.875),
        # ch. 7: records that are not 512 + 64
        ("MiniCPM3-4B", 34.875),
        ("Mistral Small 4 119B", 22.5),
    ],
)
def test_kib_a_token(name, kib):
    assert model(name).bytes_per_token() / KiB == kib


def test_bytes_a_token_in_other_widths():
    v3 = model("DeepSeek-V3")
    assert v3.bytes_per_token(FP8_MLA) / KiB == pytest.approx(39.1, abs=0.05)  # ch. 9, deployed: 656 B a layer
    assert v3.bytes_per_token("float8") / KiB == pytest.approx(34.3, abs=0.05)  # ch. 9, hypothetical
    assert v3.bytes_per_token() == 70_272
    assert model("GPT-3 175B").bytes_per_token() / MiB == 4.5


def test_gpt3_against_v3():
    gpt3, v3 = model("GPT-3 175B"), model("DeepSeek-V3")
    assert gpt3.bytes_per_token() / v3.bytes_per_token() == pytest.approx(67.1, abs=0.05)  # ch. 1
    assert v3.total_params / gpt3.total_params == pytest.approx(3.83, abs=0.005)
    assert gpt3.cache_bytes(131_072) / 1e9 == pytest.approx(618, abs=0.5)
    assert gpt3.cache_bytes(128_000) / 1e9 == pytest.approx(604, abs=0.5)
    assert v3.total_params / model("Llama 3 8B").total_params == pytest.approx(84, abs=0.5)  # ch. 9


def test_caches_at_32768_tokens():
    llama = model("Llama 2 7B")
    assert llama.cache_bytes(32_768) == 16 * GiB > llama.weight_bytes()  # ch. 1: more than its weights
    assert model("DeepSeek-V3").cache_bytes(32_768) / GiB == pytest.approx(2.145, abs=5e-4)
    assert model("Mistral 7B v0.1").cache_bytes(32_768) == GiB / 2  # ch. 1: the rolling buffer


def test_whole_models_at_128000_tokens():
    # ch. 9: 66.1 GB against 9.0 GB
    llama, v3 = (model(name).cache_bytes(128_000) / 1e9 for name in ("Llama 3.1 405B", "DeepSeek-V3"))
    assert (round(llama, 1), round(v3, 1), round(llama / v3, 1)) == (66.1, 9.0, 7.3)


def test_windows():
    gemma = model("Gemma 3 27B")
    assert gemma.cache_bytes(131_072) / GiB == pytest.approx(10.4, abs=0.05)  # with its windows
    assert cache_bytes(gemma.attention, 131_072, n_layers=gemma.n_layers) / GiB == 62  # if it had none
    assert gemma.cache_bytes(1000) == 1000 * gemma.bytes_per_token()  # no window is full yet


@pytest.mark.parametrize("one", EVERY, ids=ids)
def test_cache_is_the_sum_over_the_layers(one):
    for context_len in (1, 5000):
        by_layer = [
            cache_bytes(one.attention, context_len, window=one.window if at < one.n_window_layers else None)
            for at in range(one.n_layers)
        ]
        assert one.cache_bytes(context_len) == sum(by_layer)
        assert one.cache_bytes(context_len, batch=3) == 3 * sum(by_layer)


@pytest.mark.parametrize("one", EVERY, ids=ids)
def test_decode_flops_and_bytes_agree_with_the_intensity_of_a_layer(one):
    flops_per_element = one.attention.flops_per_pair / one.attention.elements_per_token
    assert one.decode_flops(5000, batch=3) == pytest.approx(flops_per_element * one.cache_bytes(5000, 3, 1))


def test_largest_batches_in_40_gib():
    # ch. 1, 9: at 32,768 tokens
    names = ["Llama 2 7B", "Llama 2 70B", "Llama 3 8B", "Mistral 7B v0.1", "DeepSeek-V3"]
    assert [model(name).max_batch(40 * GiB, 32_768) for name in names] == [2, 4, 10, 80, 18]
    v3 = model("DeepSeek-V3")
    assert (v3.max_batch(40 * GiB, 32_768, FP8_MLA), v3.max_batch(40 * GiB, 32_768, 1)) == (32, 37)


@given(st.sampled_from(EVERY), st.integers(0, 10**13), st.integers(1, 200_000))
def test_the_largest_batch_fits_and_one_more_does_not(one, budget, context_len):
    batch = one.max_batch(budget, context_len)
    assert one.cache_bytes(context_len, batch) <= budget < one.cache_bytes(context_len, batch + 1)


def test_longer_than_the_model_was_published_for():
    assert model("Llama 2 7B").beyond_context(32_768)
    assert not model("Llama 2 7B").beyond_context(4096)
    assert model("Llama 2 7B").beyond_context(4097)


# --- weights


def test_where_the_cache_overtakes_the_weights():
    # ch. 1: batch * context in tokens
    assert model("Llama 2 70B").overtake_tokens() == pytest.approx(427_000, rel=1e-3)
    assert model("Llama 3 8B").overtake_tokens() == pytest.approx(122_500, rel=1e-3)
    assert model("Llama 2 7B").overtake_tokens() == pytest.approx(25_700, rel=1e-3)
    mha = cache_bytes(Attention.mha(64, 128), 1, n_layers=80)
    assert model("Llama 2 70B").weight_bytes() / mha == pytest.approx(53_400, rel=1e-3)
    # ch. 0: equal at 13 users of 32,768 tokens
    assert model("Llama 2 70B").overtake_tokens() / 32_768 == pytest.approx(13, abs=0.1)


def test_share_of_the_bytes_that_is_cache():
    # ch. 0: a 70B with 8 KV heads at 32,768 tokens: 7% with one user, 71% with 32
    llama = model("Llama 2 70B")
    caches = [llama.cache_bytes(32_768, users) for users in (1, 32)]
    shares = [n_bytes / (n_bytes + llama.weight_bytes()) for n_bytes in caches]
    assert [round(share, 2) for share in shares] == [0.07, 0.71]


def test_experts_read_at_eight_of_256():
    # ch. 1, 9: 22% at 8 tokens, 64% at 32, 87% at 64, 98% at 128
    assert [round(100 * experts_read(batch, 256, 8)) for batch in (8, 32, 64, 128)] == [22, 64, 87, 98]
    assert experts_read(0, 256, 8) == 0
    assert experts_read(5, 8, 8) == 1


@given(st.integers(2, 300), st.integers(1, 300), st.integers(0, 300))
def test_experts_read_is_a_share_that_grows_with_the_batch(n_experts, k, batch):
    k = min(k, n_experts)
    share = experts_read(batch, n_experts, k)
    assert 0 <= share <= experts_read(batch + 1, n_experts, k) <= 1
    assert share <= batch * k / n_experts + 1e-12  # no more than if no two tokens met


def test_weights_read_by_a_mixture_of_experts():
    v3 = model("DeepSeek-V3")
    assert v3.weight_bytes_read(1) == 2 * v3.active_params
    assert v3.weight_bytes_read(10_000) == pytest.approx(v3.weight_bytes())
    # the routed part by itself: its share read is experts_read
    routed = (v3.total_params - v3.active_params) / (1 - 8 / 256)
    always = v3.total_params - routed
    assert v3.weight_bytes_read(32) == pytest.approx(2 * (always + routed * experts_read(32, 256, 8)))


@pytest.mark.parametrize("name", ["Llama 3.1 8B", "gpt-oss-120b", "Qwen3-30B-A3B", "Mixtral 8x7B"])
def test_weights_read_never_shrink_with_the_batch(name):
    one = model(name)
    reads = [one.weight_bytes_read(batch) for batch in (1, 2, 8, 64, 1024)]
    assert reads == sorted(reads)
    assert reads[0] == 2 * one.active_params
    assert reads[-1] <= one.weight_bytes()
    # and the products of a step are those of the active parameters
    assert decode_floors(one, 1, "H200 SXM", batch=8)["weights"].compute_s == pytest.approx(
        2 * one.active_params * 8 / 989.4e12
    )


def test_counted_parameters():
    # norms (2 a layer and one at the end), embedding and output matrix, four projections, three feed-forward matrices
    def dense(vocabulary, width, feed_forward, n_layers, kv_width):
        layer = 2 * width * width + 2 * width * kv_width + 3 * width * feed_forward + 2 * width
        return 2 * vocabulary * width + n_layers * layer + width

    assert model("Llama 2 7B").total_params == dense(32_000, 4096, 11_008, 32, 4096)
    assert model("Llama 3 8B").total_params == dense(128_256, 4096, 14_336, 32, 1024)
    mixtral = model("Mixtral 8x7B")  # one feed-forward block is in `dense`; a router of 8 rows a layer
    expert, router = 3 * 4096 * 14_336, 8 * 4096
    backbone = dense(32_000, 4096, 14_336, 32, 1024) + 32 * router
    assert mixtral.total_params == backbone + 32 * 7 * expert
    assert mixtral.active_params == backbone + 32 * 1 * expert


# --- the rows


def test_every_row_says_where_it_comes_from():
    for one in EVERY:
        assert one.source and one.grade in {"A", "B", "C"}, one.name
        assert (one.grade == "C") == bool(one.doubt), one.name
        assert one.grade == "A" or one.read_in, one.name  # not read in the primary source: then where?
        assert 0 <= one.n_window_layers <= one.n_layers and bool(one.window) == bool(one.n_window_layers), one.name
        assert (one.n_experts is None) == (one.n_active_experts is None), one.name
        if one.total_params and one.active_params:
            assert one.active_params <= one.total_params, one.name
        assert not re.search(r"/work|/home|/tmp|facts|from memory", repr(one)), one.name


def test_doubtful_rows_are_left_out_and_marked():
    assert {each.name for each in EVERY} - {each.name for each in models()} == {
        "GLM-4.5-Air",
        "GLM-4-9B 0414",
        "MiniCPM3-4B",
        "LongCat-Flash",
        "Kimi Linear 48B-A3B",
        "Mistral Small 4 119B",
    }
    assert f"{model('LongCat-Flash')}" == "LongCat-Flash ‡"
    assert f"{model('DeepSeek-V3')}" == "DeepSeek-V3"


def test_layers_that_keep_a_cache():
    # two attention layers in each of LongCat's 28 blocks; 7 of Kimi Linear's 27 layers
    assert (model("LongCat-Flash").n_layers, model("Kimi Linear 48B-A3B").n_layers) == (56, 7)


def test_kinds():
    names = ["GPT-2 XL", "Falcon 7B", "Falcon 40B", "Phi-3-medium 4k", "Gemma 3 27B", "Qwen3-30B-A3B", "Kimi K2"]
    assert [model(name).attention.kind for name in names] == ["MHA", "MQA", "GQA-8", "GQA-10", "GQA-16", "GQA-4", "MLA"]


@pytest.mark.parametrize("one", EVERY, ids=ids)
def test_found_by_name_in_any_spelling(one):
    assert model(one.name) is one
    assert model(one.name.lower().replace(" ", "-")) is one


def test_found_by_another_name():
    assert model("DeepSeek-R1") is model("deepseek v3")


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: model("Lama 3 8B"), ValueError, "unknown model 'Lama 3 8B'; nearest: Llama 3 8B"),
        (lambda: model("xyzzy"), ValueError, "course.costs.models(doubtful=True) lists all"),
        (lambda: model(8), TypeError, "model must be given by name, got 8"),
        (lambda: model("Llama 3 8B").cache_bytes(-1), ValueError, "context_len must be at least 0, got -1"),
        (lambda: model("Llama 3 8B").cache_bytes(True), TypeError, "context_len must be a whole number, got True"),
        (lambda: model("Gemma 3 27B").cache_bytes(1.5), TypeError, "context_len must be a whole number, got 1.5"),
        (lambda: model("Llama 3 8B").max_batch(-1, 10), ValueError, "budget_bytes must be a finite number"),
        (lambda: model("Llama 3 8B").max_batch(1, 0), ValueError, "context_len must be at least 1, got 0"),
        (lambda: model("Llama 3 8B").weight_bytes("bf17"), ValueError, "unknown dtype 'bf17'; nearest: bf16"),
        (lambda: model("Llama 3 8B").cache_bytes(1, 1, FP8_MLA), ValueError, "layout for MLA, got GQA-8"),
        (lambda: model("GLM-5").weight_bytes(), ValueError, "total_params of GLM-5 is not in the table"),
        (lambda: model("Mistral Small 4 119B").weight_bytes_read(), ValueError, "active_params of Mistral Small 4"),
        (lambda: model("DeepSeek-V3").weight_bytes_read(0), ValueError, "batch must be at least 1, got 0"),
        (lambda: model("Mistral 7B v0.1").overtake_tokens(), ValueError, "has windows of 4096 tokens"),
        (lambda: experts_read(1, 4, 5), ValueError, "n_active_experts must not exceed n_experts, got 5 of 4"),
        (lambda: experts_read(-1, 4, 2), ValueError, "batch must be at least 0, got -1"),
    ],
)
def test_errors_name_the_argument_and_what_came(make, error, says):
    with pytest.raises(error) as caught:
        make()
    assert says in str(caught.value)


def test_rows_cannot_be_changed():
    one = model("Llama 3 8B")
    assert isinstance(one, Model)
    with pytest.raises(AttributeError):
        one.n_layers = 1
